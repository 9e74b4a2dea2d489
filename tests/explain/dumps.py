"""Clusters as ``kubectl get nodes,services,endpointslices -o json`` prints them, cut down."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zonewise.api import LeanEndpointSlice, Node, Pod, Service, convert
from zonewise.explain.cluster import ReportedCluster, ReportSettings
from zonewise.explain.service import explain_service
from zonewise.explain.service_report import ServiceReport

Item = dict[str, Any]
AUTO = {"service.kubernetes.io/topology-mode": "Auto"}
NO_PDB: Item = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudgetList", "items": []}
NO_TDB: Item = {
    "apiVersion": "zonewise.io/v1alpha1",
    "kind": "TopologyDisruptionBudgetList",
    "items": [],
}
ROUNDING = 2e-6
DRIVER = "csi.zonewise.io"
KEY = f"topology.{DRIVER}/zone"


def node(name: str, zone: str = "", *, milli: int = 1000, ready: bool = True, **more: str) -> Item:
    """A node; without a zone it has no label."""
    labels = {"topology.kubernetes.io/zone": zone} if zone else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels | more},
        "status": {
            "allocatable": {"cpu": f"{milli}m"},
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }


def service(
    name: str = "web",
    *,
    namespace: str = "default",
    annotations: Mapping[str, str] = AUTO,
    **spec: Any,
) -> Item:
    """A Service that requests hints."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "annotations": dict(annotations)},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80}]} | spec,
    }


def endpoint(
    address: str,
    zone: str = "",
    *,
    on: str = "",
    ready: bool = True,
    terminating: bool = False,
    hints: Iterable[str] = (),
) -> Item:
    """An endpoint of a slice."""
    body: Item = {
        "addresses": [address],
        "conditions": {"ready": ready, "serving": ready, "terminating": terminating},
    }
    if zone:
        body["zone"] = zone
    if on:
        body["nodeName"] = on
    if hints := list(hints):
        body["hints"] = {"forZones": [{"name": hint} for hint in hints]}
    return body


def part(
    endpoints: Sequence[Item],
    *,
    of: str = "web",
    name: str = "web-1",
    namespace: str = "default",
    family: str = "IPv4",
    **labels: str,
) -> Item:
    """A slice; without labels it does not say which controller writes it."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": of}
            | {f"endpointslice.kubernetes.io/{key}": value for key, value in labels.items()},
        },
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": [{"name": "", "port": 80}],
    }


def pod(
    address: str,
    on: str,
    *,
    of: str = "web",
    ready: bool = True,
    terminating: bool = False,
    **spec: Any,
) -> Item:
    """A pod of a Service."""
    metadata: Item = {"name": f"p-{address}", "namespace": "default", "labels": {"app": of}}
    if terminating:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": on, "containers": []} | spec,
        "status": {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }


def listed(items: Iterable[Item]) -> Item:
    """What one call of kubectl prints."""
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


def with_budgets(items: Iterable[Item], empty: Item = NO_PDB) -> str:
    """The text of a dump of these objects, as a list which says that no budget was left out.

    Objects in a typed list keep the kind they name, and one JSON value is read fast.
    """
    return json.dumps({**empty, "items": list(items)})


def cluster(items: Iterable[Item], settings: ReportSettings | None = None) -> ReportedCluster:
    """The cluster of a dump."""
    kinds: dict[str, list[Item]] = {"Node": [], "Service": [], "EndpointSlice": [], "Pod": []}
    for item in items:
        kinds[item["kind"]].append(item)
    return ReportedCluster(
        nodes=[convert(Node, item) for item in kinds["Node"]],
        services=[convert(Service, item) for item in kinds["Service"]],
        slices=[convert(LeanEndpointSlice, item) for item in kinds["EndpointSlice"]],
        pods=[convert(Pod, item) for item in kinds["Pod"]],
        settings=settings,
    )


def explain(items: Iterable[Item], settings: ReportSettings | None = None) -> ServiceReport:
    """The report on the only Service of a dump."""
    source = cluster(items, settings)
    (only,) = source.services.values()
    return explain_service(source, only)


def recorded(row: Mapping[str, Any]) -> list[Item]:
    """One line of hints.jsonl."""
    items = [node(f"n-{zone}", zone, milli=cpu) for zone, cpu in row["cpu_milli"].items()]
    endpoints = [
        endpoint(f"10.0.{n >> 8}.{n & 255}", zone) for n, zone in enumerate(row["endpoint_zones"])
    ]
    return [*items, service(), *packed(endpoints)]


def lived(step: Mapping[str, Any], hints: Mapping[str, Sequence[str]]) -> list[Item]:
    """One state of a life of churn.jsonl; endpoints that had hints before still carry them."""
    nodes = [
        node(n["name"], n["zone"], milli=n["cpu_milli"], ready=n["ready"]) for n in step["nodes"]
    ]
    endpoints = [
        endpoint(
            e["address"],
            on=e["node"],
            ready=e["ready"],
            terminating=e["terminating"],
            hints=hints.get(e["address"], ()),
        )
        for e in step["endpoints"]
    ]
    return [*nodes, service(), *packed(endpoints)]


def lived_pods(step: Mapping[str, Any], slices: Sequence[Item]) -> list[Item]:
    """One state of a life as pods, with the slices of the state before."""
    return [
        *(item for item in lived(step, {}) if item["kind"] != "EndpointSlice"),
        *slices,
        *(
            pod(e["address"], e["node"], ready=e["ready"], terminating=e["terminating"])
            for e in step["endpoints"]
        ),
    ]


def packed(endpoints: Sequence[Item]) -> list[Item]:
    """Slices of a hundred."""
    return [
        part(endpoints[start : start + 100], name=f"web-{start}")
        for start in range(0, len(endpoints), 100)
    ]
