"""A webhook that converts, and the kind it converts: an address as one text, or as two fields.

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
from tests.contract.waiting import established, reached
from tests.contract.webhook_bench import CA
from tests.runtime.loopback import Reply, Seen, server_tls, web

Obj = dict[str, Any]
Spoil = Callable[[Obj], Obj | Reply]
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
KEPT = "kept.example/port"

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


def translate(obj: Obj, wanted: str) -> Obj:
    """The object at another version; v1 has one text, v2 two fields."""
    made: Obj = json.loads(json.dumps(obj))
    made["apiVersion"] = wanted
    spec = made.get("spec") or {}
    if wanted.endswith("/v2"):
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
    return made


class Translator:
    """The webhook, and what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.port = 0
        self.spoil: Spoil | None = None
        self.asked: list[Obj] = []
        self.reviews: list[Obj] = []
        self._lock = threading.Lock()

    def answer(self, seen: Seen) -> Reply:
        """What is sent back."""
        review = json.loads(seen.body)
        request = review["request"]
        with self._lock:
            self.asked.append(request)
            self.reviews.append(review)
        wanted = request["desiredAPIVersion"]
        response = {
            "uid": request["uid"],
            "convertedObjects": [translate(one, wanted) for one in request["objects"]],
            "result": {"status": "Success"},
        }
        version = review["apiVersion"]
        whole = {"apiVersion": version, "kind": "ConversionReview", "response": response}
        made = self.spoil(whole) if self.spoil is not None else whole
        return made if isinstance(made, Reply) else Reply(body=json.dumps(made).encode())

    def conversion(self, **config: Any) -> Obj:
        """The stanza of a definition that names this webhook."""
        bundle = base64.b64encode(CA.cert_pem.bytes()).decode()
        client = {"url": f"{self.url}/convert", "caBundle": bundle, **config}
        webhook = {"clientConfig": client, "conversionReviewVersions": ["v1"]}
        return {"strategy": "Webhook", "webhook": webhook}


@contextmanager
def translating() -> Iterator[Translator]:
    """The webhook, listening."""
    one = Translator()
    with web(one.answer, tls=server_tls(CA)) as listening:
        one.url, one.port = listening.url, listening.port
        yield one


def definition(api: Api, conversion: Obj | None, **spec: Any) -> Obj:
    """A definition of Doors; v1 is stored."""
    group = f"{api.ns}.example"
    made: Obj = {
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
        made["spec"]["conversion"] = conversion
    return made


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
    api.made(DEFINITIONS, body, quiet=True)
    established(api, f"{DEFINITIONS}/doors.{api.ns}.example")
    first = f"/apis/{api.ns}.example/v1/namespaces/{api.ns}/doors"
    second = first.replace("/v1/", "/v2/", 1)
    reached(api, first, 200)
    reached(api, second, 200)
    return first, second


def door(api: Api, name: str, number: str, labels: Obj | None = None, **spec: Any) -> Obj:
    """A Door at a version."""
    meta: Obj = {"name": name}
    if labels:
        meta["labels"] = labels
    head = {"apiVersion": f"{api.ns}.example/{number}", "kind": "Door"}
    return {**head, "metadata": meta, "spec": spec}
