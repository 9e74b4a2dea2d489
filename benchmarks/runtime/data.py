"""EndpointSlices as a real API server renders them, with all their metadata."""

from __future__ import annotations

import hashlib
import json
from typing import Any

SLICES = 1000
ENDPOINTS = 100
NODES = 400
ZONES = ("eu-west-1a", "eu-west-1b", "eu-west-1c")
FIRST_VERSION = 1_000_000_000
"""Versions have ten digits throughout, so that they can be changed in place."""


def uid(*parts: object) -> str:
    digits = hashlib.sha256(repr(parts).encode()).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:32]}"


def endpoint(slice_number: int, number: int) -> dict[str, Any]:
    index = slice_number * ENDPOINTS + number
    node = index * 7919 % NODES
    namespace = f"team-{slice_number % 50}"
    return {
        "addresses": [f"10.{index >> 16 & 255}.{index >> 8 & 255}.{index & 255}"],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "targetRef": {
            "kind": "Pod",
            "namespace": namespace,
            "name": f"service-{slice_number}-{uid(index)[:8]}-{uid(index, 1)[:5]}",
            "uid": uid("pod", index),
        },
        "nodeName": f"ip-10-0-{node >> 8}-{node & 255}.eu-west-1.compute.internal",
        "zone": ZONES[node % len(ZONES)],
        "hints": {"forZones": [{"name": ZONES[node % len(ZONES)]}]},
    }


def endpoint_slice(number: int, *, endpoints: int = ENDPOINTS) -> dict[str, Any]:
    name = f"service-{number}"
    return {
        "metadata": {
            "name": f"{name}-{uid(number)[:5]}",
            "generateName": f"{name}-",
            "namespace": f"team-{number % 50}",
            "uid": uid("slice", number),
            "resourceVersion": str(FIRST_VERSION + number),
            "generation": 12,
            "creationTimestamp": "2026-11-15T12:00:00Z",
            "labels": {
                "app": name,
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                "kubernetes.io/service-name": name,
            },
            "annotations": {
                "endpoints.kubernetes.io/last-change-trigger-time": "2026-11-15T12:00:00Z"
            },
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Service",
                    "name": name,
                    "uid": uid("service", number),
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": [
                {
                    "manager": "kube-controller-manager",
                    "operation": "Update",
                    "apiVersion": "discovery.k8s.io/v1",
                    "time": "2026-11-15T12:00:00Z",
                    "fieldsType": "FieldsV1",
                    "fieldsV1": {
                        "f:addressType": {},
                        "f:endpoints": {},
                        "f:metadata": {
                            "f:annotations": {".": {}},
                            "f:generateName": {},
                            "f:labels": {".": {}, "f:app": {}, "f:kubernetes.io/service-name": {}},
                            "f:ownerReferences": {".": {}},
                        },
                        "f:ports": {},
                    },
                }
            ],
        },
        "addressType": "IPv4",
        "endpoints": [endpoint(number, position) for position in range(endpoints)],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def list_page(first: int, count: int) -> bytes:
    """One page of all slices; ``count`` beyond the end gives the rest."""
    last = min(SLICES, first + count)
    metadata: dict[str, Any] = {"resourceVersion": str(FIRST_VERSION + SLICES)}
    if last < SLICES:
        metadata |= {"continue": str(last), "remainingItemCount": SLICES - last}
    return compact(
        {
            "kind": "EndpointSliceList",
            "apiVersion": "discovery.k8s.io/v1",
            "metadata": metadata,
            "items": [endpoint_slice(number) for number in range(first, last)],
        }
    )


def event(kind: str, number: int, *, endpoints: int) -> bytes:
    """One line of a watch."""
    names = {"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1"}
    item = {**names, **endpoint_slice(number, endpoints=endpoints)}
    return compact({"type": kind, "object": item}) + b"\n"


def end_of_initial_events() -> bytes:
    """The bookmark after the last of all objects."""
    metadata = {
        "resourceVersion": str(FIRST_VERSION + SLICES),
        "annotations": {"k8s.io/initial-events-end": "true"},
    }
    return compact({"type": "BOOKMARK", "object": {"metadata": metadata}}) + b"\n"
