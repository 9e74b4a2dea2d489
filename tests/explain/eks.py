"""A cluster as one of Amazon's would be dumped: 40 nodes in three zones, Services of every mode.

Nodes are distributed unevenly and have two sizes, so no number is right by symmetry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tests.explain.dumps import AUTO, Item, endpoint, part
from tests.explain.dumps import node as plain_node
from tests.explain.dumps import service as plain_service

ZONES = {"eu-west-1a": 16, "eu-west-1b": 13, "eu-west-1c": 11}
MODE = "service.kubernetes.io/topology-mode"
KEYS = "zonewise.io/topology-keys"
ZONE = "topology.kubernetes.io/zone"

NODES: dict[str, list[str]] = {
    zone: [f"ip-10-0-{subnet}-{number}.{zone[:-1]}.compute.internal" for number in range(count)]
    for subnet, (zone, count) in enumerate(ZONES.items())
}
A, B, C = (NODES[zone] for zone in ZONES)


def nodes() -> list[Item]:
    """The nodes; every third has twice the CPU."""
    items = []
    for zone, names in NODES.items():
        for number, name in enumerate(names):
            item = plain_node(name, zone, milli=7910 if number % 3 == 2 else 3920)
            item["metadata"]["labels"]["kubernetes.io/hostname"] = name
            items.append(item)
    return items


def service(
    number: int,
    name: str,
    on: Iterable[str] = (),
    *,
    annotations: Mapping[str, str] | None = None,
    namespace: str = "shop",
    hinted: bool = False,
    headless: bool = False,
    manager: str = "endpointslice-controller.k8s.io",
    **spec: Any,
) -> list[Item]:
    """A Service with its slice: an endpoint on each of these nodes, hinted to its own zone."""
    zones = {name: zone for zone, names in NODES.items() for name in names}
    rows = [
        endpoint(f"10.1.{number}.{at}", zones[node], on=node, hints=[zones[node]] if hinted else [])
        for at, node in enumerate(on, 1)
    ]
    port = {"name": "http", "protocol": "TCP", "port": 80}
    address = {"clusterIP": "None" if headless else f"172.20.0.{number}"}
    item = plain_service(
        name, namespace=namespace, annotations=annotations or {}, ports=[port], **address | spec
    )
    labels = {"managed-by": manager} if manager else {}
    piece = part(rows, of=name, name=f"{name}-x", namespace=namespace, **labels)
    if headless:
        piece["metadata"]["labels"]["service.kubernetes.io/headless"] = ""
    piece["ports"] = [{"name": "http", "protocol": "TCP", "port": 8080}]
    return [item, piece] if rows else [item]


def services() -> list[Item]:
    """Services of every mode, each in a state that a report could get wrong."""
    even = [*A[:4], *B[:4], *C[:4]]
    api = service(1, "kubernetes", A[:2], namespace="default", manager="", selector=None)
    alias = service(2, "alias", type="ExternalName", externalName="db.example.com", clusterIP="")
    return [
        *api,
        *alias,
        *service(3, "auto", even, annotations=AUTO),
        *service(4, "plain", even),
        *service(
            5, "local", [*A[:3], *B[:3], *C[:3]], annotations=AUTO, internalTrafficPolicy="Local"
        ),
        *service(6, "local-plain", even, internalTrafficPolicy="Local"),
        *service(7, "keyed", even, annotations={KEYS: ZONE}),
        *service(8, "two-zones", [*A[:4], *C[:4]], trafficDistribution="PreferClose"),
        *service(9, "near", [*A[:5], *B[:4], *C[:4]], trafficDistribution="PreferSameZone"),
        *service(10, "node", even, trafficDistribution="PreferSameNode"),
        *service(11, "shared", [*A[:2], B[0]], annotations={MODE: "zonewise.io/shared"}),
        *service(12, "weighted", [*A[:3], B[0]], annotations={MODE: "zonewise.io/weighted"}),
        *service(13, "kept", BETWEEN_LIMITS, annotations=AUTO, hinted=True),
        *service(14, "not-kept", BETWEEN_LIMITS, annotations=AUTO),
        *service(
            15,
            "half-local",
            [*A[:4], *B[:4], *C[:3]],
            annotations=AUTO | {"zonewise.io/overload": "40%/50%"},
            type="LoadBalancer",
            internalTrafficPolicy="Local",
        ),
        *(
            item
            for number in range(10)
            for item in service(20 + number, f"db-{number}", even[:3], headless=True)
        ),
    ]


BETWEEN_LIMITS = [*A[:3], *B[:3], *C[:3]]
"""Nodes of endpoints with which hints are kept, but not added."""


def cluster() -> list[Item]:
    """All nodes, Services and slices."""
    return [*nodes(), *services()]
