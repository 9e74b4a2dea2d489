"""A conversion webhook, and the kind it converts: an address as one text, or as two fields.

``Translator`` plays the webhook over HTTPS. Unless a test says otherwise it does what it is asked;
``spoil`` is what it does to its answers instead.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.contract.talking import Api
from tests.contract.waiting import wait_for_status, wait_until_established
from tests.contract.webhook_bench import CA
from tests.runtime.loopback import Reply, Seen, server_tls, web

Obj = dict[str, Any]
Spoil = Callable[[Obj], Obj | Reply]
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

PLAIN: Obj = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "address": {"type": "string"},
                "replicas": {"type": "integer", "default": 1},
                "old": {"type": "string"},
            },
        },
        "status": {
            "type": "object",
            "properties": {"seen": {"type": "string"}, "replicas": {"type": "integer"}},
        },
    },
}
SPLIT: Obj = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "host": {"type": "string"},
                "port": {"type": "integer"},
                "replicas": {"type": "integer"},
                "color": {"type": "string", "default": "red"},
            },
        },
        "status": {
            "type": "object",
            "properties": {"seen": {"type": "string"}, "replicas": {"type": "integer"}},
        },
    },
}
SUBRESOURCES: Obj = {
    "status": {},
    "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
}


def translate(obj: Obj, version: str) -> Obj:
    """The object at another version; v1 has one text, v2 two fields."""
    converted: Obj = json.loads(json.dumps(obj))
    converted["apiVersion"] = version
    spec = converted.get("spec") or {}
    if version.endswith("/v2"):
        host, _, port = spec.pop("address", "").partition(":")
        spec.pop("old", None)
        if host:
            spec["host"] = host
        if port:
            spec["port"] = int(port)
    else:
        host, port = spec.pop("host", ""), spec.pop("port", None)
        spec.pop("color", None)
        if host:
            spec["address"] = host if port is None else f"{host}:{port}"
    return converted


class Translator:
    """The webhook, and the requests it got."""

    def __init__(self) -> None:
        self.url = ""
        self.port = 0
        self.spoil: Spoil | None = None
        self.requests: list[Obj] = []
        self.reviews: list[Obj] = []
        self._lock = threading.Lock()

    def answer(self, seen: Seen) -> Reply:
        """What is sent back."""
        review = json.loads(seen.body)
        request = review["request"]
        with self._lock:
            self.requests.append(request)
            self.reviews.append(review)
        desired = request["desiredAPIVersion"]
        response = {
            "uid": request["uid"],
            "convertedObjects": [translate(obj, desired) for obj in request["objects"]],
            "result": {"status": "Success"},
        }
        version = review["apiVersion"]
        whole = {"apiVersion": version, "kind": "ConversionReview", "response": response}
        answer = self.spoil(whole) if self.spoil is not None else whole
        return answer if isinstance(answer, Reply) else Reply(body=json.dumps(answer).encode())

    def conversion(self, **config: Any) -> Obj:
        """The stanza of a definition that names this webhook."""
        bundle = base64.b64encode(CA.cert_pem.bytes()).decode()
        client = {"url": f"{self.url}/convert", "caBundle": bundle, **config}
        webhook = {"clientConfig": client, "conversionReviewVersions": ["v1"]}
        return {"strategy": "Webhook", "webhook": webhook}


@contextmanager
def translating() -> Iterator[Translator]:
    """The webhook, listening."""
    translator = Translator()
    with web(translator.answer, tls=server_tls(CA)) as listening:
        translator.url, translator.port = listening.url, listening.port
        yield translator


def definition(api: Api, conversion: Obj | None, **spec: Any) -> Obj:
    """A definition of Doors; v1 is stored."""
    group = f"{api.ns}.example"
    body: Obj = {
        "metadata": {"name": f"doors.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "doors", "kind": "Door"},
            "versions": [
                version(
                    "v1", PLAIN, storage=True, selectableFields=[{"jsonPath": ".spec.address"}]
                ),
                version("v2", SPLIT, selectableFields=[{"jsonPath": ".spec.host"}]),
            ],
            **spec,
        },
    }
    if conversion is not None:
        body["spec"]["conversion"] = conversion
    return body


def version(name: str, schema: Obj, *, storage: bool = False, **more: Any) -> Obj:
    """One version of Doors."""
    return {
        "name": name,
        "served": True,
        "storage": storage,
        "schema": {"openAPIV3Schema": schema},
        "subresources": SUBRESOURCES,
        "additionalPrinterColumns": [
            {"name": "Address", "type": "string", "jsonPath": ".spec.address"},
            {"name": "Host", "type": "string", "jsonPath": ".spec.host"},
        ],
        **more,
    }


def define(api: Api, conversion: Obj | None, **spec: Any) -> tuple[str, str]:
    """Define Doors; gives their paths at v1 and at v2."""
    body = definition(api, conversion, **spec)
    api.create(DEFINITIONS, body, quiet=True, expect="201 Created")
    wait_until_established(api, f"{DEFINITIONS}/doors.{api.ns}.example")
    first = f"/apis/{api.ns}.example/v1/namespaces/{api.ns}/doors"
    second = first.replace("/v1/", "/v2/", 1)
    wait_for_status(api, first, 200)
    wait_for_status(api, second, 200)
    return first, second


def door(api: Api, name: str, number: str, labels: Obj | None = None, **spec: Any) -> Obj:
    """A Door at a version."""
    meta: Obj = {"name": name}
    if labels:
        meta["labels"] = labels
    head = {"apiVersion": f"{api.ns}.example/{number}", "kind": "Door"}
    return {**head, "metadata": meta, "spec": spec}
