"""What the topology keys of a Service mean on every node: its endpoints there, and by which key.

The function of the proxy decides, over the endpoints that a proxy reads: those of the slices as
they are, port by port, without slices that it ignores. For a headless Service it is a name server
that obeys keys, and its endpoints are those that have names. A policy Local comes before the keys,
as it does in a proxy. Nodes with the same values of the keys have the same verdict, so it is made
once for each combination of values. Shares of traffic are by the CPU of nodes that count, as
everywhere; ports count alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from zonewise.api.objects.core import Service
from zonewise.api.reason import Reason
from zonewise.explain.cluster import ReportedCluster
from zonewise.explain.columns import table
from zonewise.traffic.dns_answers import read_named_endpoints
from zonewise.traffic.endpoint import TrafficEndpoint
from zonewise.traffic.routes.choice import (
    ClientLocation,
    PlacedEndpoint,
    RouteRule,
    Selection,
    ServicePolicy,
)
from zonewise.traffic.routes.endpoints import read_route_endpoints
from zonewise.traffic.routes.service import read_port_endpoints

_Endpoints: TypeAlias = tuple[TrafficEndpoint, ...]

NAMES = 4
"""How many nodes and endpoints a line of the table names."""


@dataclass(frozen=True, slots=True)
class KeyVerdict:
    """Where traffic of a node to some ports goes."""

    node: str
    zone: str
    ports: tuple[str, ...]
    rule: RouteRule
    key: str | None
    endpoints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeysReport:
    """The verdicts of all nodes, by name; parts of all traffic in its zone, and rejected.

    A node has one verdict, or several if the endpoints of some ports are others. ``ignored`` is
    what a proxy takes no endpoints from, and why. With ``local`` a policy Local decides instead of
    the keys, and what finds no endpoint is dropped.
    """

    keys: tuple[str, ...]
    nodes: tuple[KeyVerdict, ...]
    in_zone: Fraction
    rejected: Fraction
    ignored: tuple[Reason, ...] = ()
    local: bool = False

    @property
    def in_zone_of_answered(self) -> Fraction:
        """The part of the traffic that is not rejected which stays in its zone."""
        return self.in_zone / (1 - self.rejected) if self.rejected < 1 else Fraction(0)

    @property
    def silent(self) -> int:
        """On how many nodes some port rejects everything."""
        return len({one.node for one in self.nodes if not one.endpoints})

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "keys": list(self.keys),
            "inZone": float(round(self.in_zone, 6)),
            "rejected": float(round(self.rejected, 6)),
            "nodes": [
                {
                    "node": one.node,
                    "zone": one.zone,
                    "ports": list(one.ports),
                    "why": one.rule.value,
                    "key": one.key,
                    "endpoints": list(one.endpoints),
                }
                for one in self.nodes
            ],
        }

    def lines(self) -> list[str]:
        """As people read it: nodes with one verdict on one line."""
        by_port = len({one.ports for one in self.nodes}) > 1
        alike: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
        for one in self.nodes:
            alike.setdefault((self._decided_by(one), one.ports, one.endpoints), []).append(one.node)
        heads = ["DECIDED BY", "ON NODES", "PORTS", "ENDPOINTS"]
        rows = [
            [said, _some(nodes), ", ".join(port or "-" for port in ports), _some(ends)]
            for (said, ports, ends), nodes in alike.items()
        ]
        if not by_port:
            heads, *rows = ([*row[:2], row[3]] for row in (heads, *rows))
        return [
            f"Topology keys: {', '.join(self.keys)}",
            *table(heads, rows),
            self._summary(),
        ]

    def _decided_by(self, one: KeyVerdict) -> str:
        if self.local:
            return "policy Local" if one.endpoints else "dropped: no endpoint on the node"
        return one.key or ("rejected: no endpoint" if one.rule is RouteRule.NOTHING else "rejected")

    def _summary(self) -> str:
        stays = f"{_percent(self.in_zone)} of the traffic stays in its zone"
        if self.local:
            nodes = len({one.node for one in self.nodes})
            dropped = f"{_percent(self.rejected)} is dropped, on {self.silent} of {nodes} nodes"
            return (
                "The policy Local comes before the topology keys for traffic to the ClusterIP:"
                f" {stays} and {dropped}."
            )
        rejected = f" and {_percent(self.rejected)} is rejected" if self.rejected else ""
        return (
            f"By its topology keys {stays}{rejected}, where the proxy is Zonewise's; kube-proxy"
            " does not know them."
        )


def keys_report(
    cluster: ReportedCluster, service: Service, policy: ServicePolicy, family: str
) -> KeysReport | None:
    """What the keys mean for the endpoints of one family; None if there are no keys that count."""
    keys, local = policy.keys, policy.internal_local
    if not keys:
        return None
    alike: dict[_Endpoints, list[str]] = {}
    for port, known in _by_port(cluster, service, family).items():
        alike.setdefault(known, []).append(port)
    every = sum(map(len, alike.values()))
    labels = cluster.labels
    weights = {place.node: weight for place, weight in cluster.senders}
    made: dict[tuple[str | None, ...], list[Selection[TrafficEndpoint]]] = {}
    verdicts: list[KeyVerdict] = []
    total, stays, lost = 0, Fraction(0), Fraction(0)
    for name in sorted(labels):
        values = (name,) if local else tuple(labels[name].get(key) for key in keys)
        if values not in made:
            place = ClientLocation.of_labels(name, labels[name])
            made[values] = [
                policy.choose_for_cluster_ip(known, place, labels, None) for known in alike
            ]
        zone = cluster.zones[name]
        weight = weights.get(name, 0)
        total += weight
        for ports, chosen in zip(alike.values(), made[values], strict=True):
            addresses = tuple(dict.fromkeys(target.name for target in chosen.endpoints))
            verdicts.append(
                KeyVerdict(name, zone, tuple(ports), chosen.rule, chosen.key, addresses)
            )
            part = Fraction(weight * len(ports), every)
            if chosen.endpoints:
                near = sum(target.zone == zone != "" for target in chosen.endpoints)
                stays += part * near / len(chosen.endpoints)
            else:
                lost += part
    whole = Fraction(total or 1)
    ignored = () if _headless(service) else read_route_endpoints(cluster.slices(service)).notes
    return KeysReport(keys, tuple(verdicts), stays / whole, lost / whole, ignored, local)


def _by_port(cluster: ReportedCluster, service: Service, family: str) -> Mapping[str, _Endpoints]:
    """The endpoints of each port by its name, as the program that obeys the keys reads them."""
    slices = cluster.slices(service)
    if _headless(service):
        each = {one.address: one for one in reversed(read_named_endpoints(slices))}
        size = 4 if family == "IPv4" else 16
        here = (one for _, one in sorted(each.items()) if len(one.packed) == size)
        return {"": tuple(_placed(cluster, one.address, one) for one in here)}
    found = read_port_endpoints(service, slices, family)
    return {
        name: tuple(_placed(cluster, one.backend.address, one) for one in known)
        for (name, _), known in found.items()
    } or {"": ()}


def _placed(cluster: ReportedCluster, address: str, one: PlacedEndpoint) -> TrafficEndpoint:
    """An endpoint by its address; it is where its node is."""
    return TrafficEndpoint(
        address,
        zone=cluster.zones.get(one.node, one.zone),
        node=one.node,
        ready=one.ready,
        serving=one.serving,
        terminating=one.terminating,
    )


def _headless(service: Service) -> bool:
    return service.spec.cluster_ip == "None"


def _some(names: list[str] | tuple[str, ...]) -> str:
    more = len(names) - NAMES
    shown = ", ".join(names[:NAMES]) or "-"
    return f"{shown} and {more} more" if more > 0 else shown


def _percent(exact: Fraction) -> str:
    return f"{float(round(exact * 100, 1)):.1f} %"
