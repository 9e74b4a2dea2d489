"""Random Services and slices: every field that a proxy reads, valid for an API server."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

Obj = dict[str, Any]
PROTOCOLS = ("TCP", "UDP", "SCTP")
NAMES = ("http", "dns", "metrics")
CONDITIONS: tuple[Obj, ...] = (
    {},
    {"ready": True, "serving": True, "terminating": False},
    {"ready": True, "serving": True, "terminating": False},
    {"ready": True},
    {"ready": False, "serving": False, "terminating": False},
    {"ready": False},
    {"ready": False, "serving": True, "terminating": True},
    {"ready": False, "serving": False, "terminating": True},
    {"ready": True, "serving": False, "terminating": True},
)
RANGES = ("10.0.0.0/8", "172.16.0.0/12", " 192.0.2.0/24 ", "fd00::/8", "0.0.0.0/0", "::/0")


def random_service(
    rng: random.Random, number: int, nodes: Sequence[str], zones: Sequence[str]
) -> tuple[Obj, list[Obj], list[Obj]]:
    """A Service in the namespace ``r<number>``, the addresses of its load balancer, its slices."""
    kind = rng.choice(("ClusterIP", "NodePort", "LoadBalancer", "LoadBalancer"))
    families = rng.choice((["IPv4"], ["IPv4"], ["IPv6"], ["IPv4", "IPv6"]))
    ports = [
        {"name": name, "protocol": rng.choice(PROTOCOLS), "port": 80 + offset, "targetPort": 8080}
        for offset, name in enumerate(rng.sample(NAMES, rng.randint(1, 3)))
    ]
    spec: Obj = {
        "type": kind,
        "ports": ports,
        "ipFamilies": families,
        "ipFamilyPolicy": "RequireDualStack" if len(families) == 2 else "SingleStack",
        "internalTrafficPolicy": rng.choice(("Cluster", "Cluster", "Local")),
    }
    if rng.random() < 0.3:
        spec["externalIPs"] = rng.choice(
            (
                [f"198.18.{number >> 8}.{number & 255}"],
                [f"2001:db8:1::{number + 1:x}"],
                [f"198.18.{number >> 8}.{number & 255}", f"2001:db8:1::{number + 1:x}"],
            )
        )
    if kind != "ClusterIP" or "externalIPs" in spec:
        spec["externalTrafficPolicy"] = rng.choice(("Cluster", "Local"))
    if rng.random() < 0.3:
        spec["sessionAffinity"] = "ClientIP"
        spec["sessionAffinityConfig"] = {
            "clientIP": {"timeoutSeconds": rng.choice((1, 90, 10800, 86400))}
        }
    ingress: list[Obj] = []
    if kind == "LoadBalancer":
        if rng.random() < 0.4:
            spec["loadBalancerSourceRanges"] = rng.sample(RANGES, rng.randint(1, 3))
        spec["allocateLoadBalancerNodePorts"] = rng.random() < 0.7
        ingress = rng.choice(
            (
                [],
                [{"ip": f"198.19.{number >> 8}.{number & 255}"}],
                [{"ip": f"198.19.{number >> 8}.{number & 255}", "ipMode": "Proxy"}],
                [
                    {"ip": f"198.19.{number >> 8}.{number & 255}", "ipMode": "VIP"},
                    {"ip": f"2001:db8:2::{number + 1:x}"},
                ],
                [{"hostname": "lb.example.com"}],
            )
        )
        if ingress and rng.random() < 0.2:
            spec["externalIPs"] = [f"198.19.{number >> 8}.{number & 255}"]
    meta = {"name": "s", "namespace": f"r{number}"}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}
    slices = [
        piece
        for family in ("IPv4", "IPv6")
        if family in families or rng.random() < 0.1
        for piece in _slices(rng, number, family, ports, nodes, zones)
    ]
    return service, ingress, slices


def _slices(
    rng: random.Random,
    number: int,
    family: str,
    ports: Sequence[Obj],
    nodes: Sequence[str],
    zones: Sequence[str],
) -> list[Obj]:
    """Up to three slices. An address that is in two of them terminates in all but one."""
    hinted, noded = rng.choice((0.0, 0.9, 1.0, 1.0)), rng.choice((0.0, 0.0, 0.9, 1.0))
    dying = rng.random() < 0.25
    parts: list[list[Obj]] = [[] for _ in range(rng.randint(0, 3))]
    for count in range(rng.randint(0, 8) if parts else 0):
        four = f"10.{1 + (number >> 8)}.{number & 255}.{count + 1}"
        address = four if family == "IPv4" else f"fd00:1::{number + 1:x}:{count + 1:x}"
        entry: Obj = {"addresses": [address], "conditions": rng.choice(CONDITIONS)}
        if dying:
            entry["conditions"] = rng.choice(CONDITIONS[4:])
        if rng.random() < 0.9:
            entry["nodeName"] = rng.choice((*nodes, "ghost"))
        hints: Obj = {}
        if rng.random() < hinted:
            hints["forZones"] = [{"name": z} for z in rng.sample(zones, rng.choice((1, 1, 2)))]
        if rng.random() < noded:
            hints["forNodes"] = [{"name": n} for n in rng.sample(nodes, rng.choice((1, 1, 2)))]
        if hints:
            entry["hints"] = hints
        rng.choice(parts).append(entry)
        if rng.random() < 0.15:
            leaving = {"ready": False, "serving": rng.random() < 0.5, "terminating": True}
            again = {**entry, "conditions": leaving, "nodeName": rng.choice(nodes)}
            if not entry["conditions"].get("terminating"):
                rng.choice(parts).append(again)
    return [
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"s-{family.lower()}-{index}",
                "namespace": f"r{number}",
                "labels": {"kubernetes.io/service-name": "s"},
            },
            "addressType": family,
            "endpoints": endpoints,
            "ports": [
                {
                    "name": port["name"],
                    "protocol": port["protocol"],
                    "port": rng.choice((8080, 8080, 9090)),
                }
                for port in ports
                if rng.random() < 0.85
            ],
        }
        for index, endpoints in enumerate(parts)
    ]
