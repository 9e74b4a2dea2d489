"""Random partial configurations of a few kinds, as several appliers of one object would write them.

Together they have every way a field can be owned: scalars, maps, atomic maps, atomic lists, lists
keyed by one and by two fields (one of them defaulted), sets, and objects nested in all of these.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Config = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A kind that configurations are made for."""

    api_version: str
    kind: str
    plural: str
    definition: str
    make: Callable[[random.Random], Config]
    status: Callable[[random.Random], Config] | None = None
    schema: Config | None = None  # of a custom resource

    @property
    def group(self) -> str:
        """The API group, empty for the core group."""
        return self.api_version.rpartition("/")[0]

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Where objects of this kind live."""
        root = "/apis" if "/" in self.api_version else "/api"
        parts = [f"{root}/{self.api_version}/namespaces/{namespace}/{self.plural}", name]
        return "/".join(filter(None, [*parts, subresource]))

    def config(self, rng: random.Random, name: str) -> Config:
        """A configuration of the object as a whole."""
        config = self.make(rng)
        config.setdefault("metadata", {}).update(name=name)
        return {"apiVersion": self.api_version, "kind": self.kind, **config}

    def status_config(self, rng: random.Random, name: str) -> Config:
        """A configuration of the object's status."""
        assert self.status is not None
        head = {"apiVersion": self.api_version, "kind": self.kind, "metadata": {"name": name}}
        return {**head, "status": self.status(rng)}


def some(rng: random.Random, config: Config, *, keep: float = 0.5) -> Config:
    """A random part of the keys."""
    return {key: value for key, value in config.items() if rng.random() < keep}


def picked(rng: random.Random, items: list[Any]) -> list[Any]:
    """Some of the items in random order."""
    return rng.sample(items, rng.randrange(len(items) + 1))


def words(rng: random.Random, prefix: str = "k") -> dict[str, str]:
    """A small map of strings."""
    return some(rng, {f"{prefix}{n}": str(rng.randrange(3)) for n in range(4)})


def metadata(rng: random.Random) -> Config:
    """Labels, annotations, a set (finalizers) and a list keyed by uid (owners)."""
    owners = [
        {"apiVersion": "v1", "kind": "Pod", "name": f"o{n}", "uid": f"u-{n}"} for n in range(2)
    ]
    return some(
        rng,
        {
            "labels": words(rng, "example.com/l"),
            "annotations": words(rng, "a"),
            "finalizers": picked(rng, ["example.com/x", "example.com/y", "example.com/z"]),
            "ownerReferences": picked(rng, owners),
        },
        keep=0.3,
    )


def config_map(rng: random.Random) -> Config:
    """Plain maps."""
    data = {"data": words(rng), "binaryData": some(rng, {"b1": "AA==", "b2": "AQ=="})}
    return {"metadata": metadata(rng), **some(rng, data, keep=0.8)}


def service(rng: random.Random) -> Config:
    """A list keyed by two fields of which one has a default, and an atomic map."""
    ports = []
    for port in picked(rng, [80, 81, 82]):
        item: Config = {"port": port, "name": f"p{port}"}
        if rng.random() < 0.3:
            item["protocol"] = "TCP"
        if rng.random() < 0.3:
            item["targetPort"] = rng.choice([8080, "web"])
        ports.append(item)
    spec = some(
        rng,
        {
            "ports": ports or [{"port": 80, "name": "p80"}],
            "selector": words(rng),
            "sessionAffinity": rng.choice(["None", "ClientIP"]),
            "publishNotReadyAddresses": rng.random() < 0.5,
        },
        keep=0.6,
    )
    return {"metadata": metadata(rng), "spec": spec}


def conditions(rng: random.Random) -> list[Config]:
    """Conditions, keyed by type."""
    return [
        {
            "type": f"example.com/C{n}",
            "status": rng.choice(["True", "False"]),
            "reason": rng.choice(["A", "B"]),
            "message": rng.choice(["", "m"]),
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for n in picked(rng, [0, 1, 2])
    ]


def service_status(rng: random.Random) -> Config:
    """Conditions and an atomic list below an object."""
    ingress = [{"ip": f"192.0.2.{n}", "ipMode": "VIP"} for n in picked(rng, [1, 2])]
    return some(
        rng, {"conditions": conditions(rng), "loadBalancer": {"ingress": ingress}}, keep=0.7
    )


def container(rng: random.Random, name: str) -> Config:
    """A container with keyed and atomic lists of its own."""
    return {
        "name": name,
        **some(
            rng,
            {
                "image": f"i{rng.randrange(2)}",
                "args": picked(rng, ["a", "b"]),
                "env": [{"name": f"e{n}", "value": str(n)} for n in picked(rng, [0, 1, 2])],
                "ports": [
                    {"containerPort": port, **some(rng, {"protocol": "TCP", "name": f"p{port}"})}
                    for port in picked(rng, [80, 81])
                ],
                "resources": {"limits": some(rng, {"cpu": "1", "memory": "1Gi"})},
            },
            keep=0.6,
        ),
    }


def deployment(rng: random.Random) -> Config:
    """Everything at once, as deep as it goes."""
    app = {"app": "x"}
    pod = some(
        rng,
        {
            "volumes": [{"name": f"v{n}", "emptyDir": {}} for n in picked(rng, [0, 1])],
            "nodeSelector": words(rng),
            "tolerations": [{"key": "k", "operator": "Exists"}] * rng.randrange(2),
            "terminationGracePeriodSeconds": rng.randrange(3),
            "topologySpreadConstraints": [
                {
                    "topologyKey": f"t{n}",
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "maxSkew": rng.randrange(1, 3),
                }
                for n in picked(rng, [0, 1])
            ],
        },
        keep=0.4,
    )
    containers = [container(rng, name) for name in picked(rng, ["a", "b", "c"])]
    spec = some(
        rng,
        {
            "replicas": rng.randrange(3),
            "minReadySeconds": rng.randrange(2),
            "strategy": rng.choice(
                [{"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}, {}]
            ),
        },
    )
    return {
        "metadata": metadata(rng),
        "spec": {
            "selector": {"matchLabels": app},
            "template": {
                "metadata": {"labels": {**app, **words(rng)}},
                "spec": {"containers": containers or [{"name": "a", "image": "i0"}], **pod},
            },
            **spec,
        },
    }


def deployment_status(rng: random.Random) -> Config:
    """Numbers and conditions."""
    numbers = {"observedGeneration": rng.randrange(3), "replicas": rng.randrange(3)}
    return some(rng, {"conditions": conditions(rng), **numbers}, keep=0.7)


def endpoint_slice(rng: random.Random) -> Config:
    """Lists that are one value each.

    Never empty: the real server mixes null and [] up here, which no client can see or predict.
    """
    addresses, numbers = picked(rng, [1, 2]) or [3], picked(rng, [1, 2]) or [3]
    endpoints = [{"addresses": [f"192.0.2.{n}"], **some(rng, {"zone": f"z{n}"})} for n in addresses]
    ports = [{"name": f"p{n}", **some(rng, {"port": 80 + n})} for n in numbers]
    spec = some(rng, {"endpoints": endpoints, "ports": ports}, keep=0.7)
    return {"metadata": metadata(rng), "addressType": "IPv4", **spec}


TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
POINT = {"type": "object", "properties": {"x": NUMBER, "y": NUMBER}}
ITEM = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": TEXT,
        "zone": {"type": "string", "default": "z"},
        "tags": {"type": "array", "items": TEXT, "x-kubernetes-list-type": "set"},
        "at": POINT,
    },
}
THING = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "size": NUMBER,
                "port": {"x-kubernetes-int-or-string": True},
                "point": POINT,
                "whole": {**POINT, "x-kubernetes-map-type": "atomic"},
                "names": {"type": "object", "additionalProperties": TEXT},
                "points": {"type": "object", "additionalProperties": POINT},
                "list": {"type": "array", "items": TEXT},
                "set": {"type": "array", "items": TEXT, "x-kubernetes-list-type": "set"},
                "items": {
                    "type": "array",
                    "items": ITEM,
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name", "zone"],
                },
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "any": {"x-kubernetes-preserve-unknown-fields": True},
            },
        },
        "status": {
            "type": "object",
            "properties": {"phase": TEXT, "points": {"type": "array", "items": POINT}},
        },
    },
}


def untyped(rng: random.Random, depth: int = 2) -> Any:
    """Any value."""
    plain: list[Any] = [1, 2, True, "a", "b"]
    if not depth or rng.random() < 0.4:
        return rng.choice([*plain, picked(rng, plain)])
    return {name: untyped(rng, depth - 1) for name in picked(rng, ["a", "b", "c"])}


def point(rng: random.Random) -> Config:
    """Two numbers, or one, or none."""
    return some(rng, {"x": rng.randrange(2), "y": rng.randrange(2)})


def thing(rng: random.Random) -> Config:
    """A custom resource with a field of every kind that a schema can describe."""
    items = [
        {
            "name": name,
            **some(
                rng,
                {
                    "zone": "z",
                    "tags": picked(rng, ["t", "u", "v"]),
                    "at": point(rng),
                },
            ),
        }
        for name in picked(rng, ["a", "b", "c"])
    ]
    spec = {
        "size": rng.randrange(3),
        "port": rng.choice([80, "web"]),
        "point": point(rng),
        "whole": point(rng),
        "names": words(rng),
        "points": {name: point(rng) for name in picked(rng, ["p", "q"])},
        "list": picked(rng, ["a", "b"]),
        "set": picked(rng, ["a", "b", "c"]),
        "items": items,
        "free": {name: untyped(rng) for name in picked(rng, ["f", "g"])},
        "any": untyped(rng),
    }
    return {"metadata": metadata(rng), "spec": some(rng, spec, keep=0.4)}


def thing_status(rng: random.Random) -> Config:
    """A text and an atomic list."""
    points = [point(rng) for _ in range(rng.randrange(3))]
    return some(rng, {"phase": rng.choice(["A", "B"]), "points": points}, keep=0.7)


SUBJECTS = [
    Subject(
        api_version="v1",
        kind="ConfigMap",
        plural="configmaps",
        definition="io.k8s.api.core.v1.ConfigMap",
        make=config_map,
    ),
    Subject(
        api_version="v1",
        kind="Service",
        plural="services",
        definition="io.k8s.api.core.v1.Service",
        make=service,
        status=service_status,
    ),
    Subject(
        api_version="apps/v1",
        kind="Deployment",
        plural="deployments",
        definition="io.k8s.api.apps.v1.Deployment",
        make=deployment,
        status=deployment_status,
    ),
    Subject(
        api_version="discovery.k8s.io/v1",
        kind="EndpointSlice",
        plural="endpointslices",
        definition="io.k8s.api.discovery.v1.EndpointSlice",
        make=endpoint_slice,
    ),
    Subject(
        api_version="lives.example.com/v1",
        kind="Thing",
        plural="things",
        definition="",
        make=thing,
        status=thing_status,
        schema=THING,
    ),
]
