"""What the topology keys of a Service mean on every node: who is used there, and by which key.

The same function decides that decides for a proxy. Nodes with the same values of the keys have the
same verdict, so it is made once for each combination of values. Shares of traffic are by the CPU of
nodes that count, as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from zonewise.api.objects.core import Service
from zonewise.explain.cluster import ReportedCluster
from zonewise.explain.columns import table
from zonewise.topology import counts, cpu_milli
from zonewise.traffic import (
    ProxyLocation,
    RouteRule,
    Selection,
    TrafficEndpoint,
    by_keys,
    topology_keys,
)

NAMES = 4
"""How many nodes and endpoints a line of the table names."""


@dataclass(frozen=True, slots=True)
class KeyVerdict:
    """Where traffic of a node goes."""

    node: str
    zone: str
    rule: RouteRule
    key: str | None
    endpoints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeysReport:
    """The verdicts of all nodes, by name; parts of all traffic in its zone, and rejected."""

    keys: tuple[str, ...]
    nodes: tuple[KeyVerdict, ...]
    in_zone: Fraction
    rejected: Fraction

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
                    "why": one.rule.value,
                    "key": one.key,
                    "endpoints": list(one.endpoints),
                }
                for one in self.nodes
            ],
        }

    def lines(self) -> list[str]:
        """As people read it: nodes with one verdict on one line."""
        alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for one in self.nodes:
            said = one.key or (
                "rejected: no endpoint" if one.rule is RouteRule.NOTHING else "rejected"
            )
            alike.setdefault((said, one.endpoints), []).append(one.node)
        rows = [[said, _some(nodes), _some(ends)] for (said, ends), nodes in alike.items()]
        percent = f"{float(round(self.in_zone * 100, 1)):.1f}"
        told = f"By its topology keys {percent} % of the traffic stays in its zone"
        if self.rejected:
            told += f" and {float(round(self.rejected * 100, 1)):.1f} % is rejected"
        return [
            f"Topology keys: {', '.join(self.keys)}",
            *table(["DECIDED BY", "ON NODES", "ENDPOINTS"], rows),
            f"{told}, where the proxy is Zonewise's; kube-proxy does not know them.",
        ]


def keys_report(
    cluster: ReportedCluster, service: Service, endpoints: Iterable[TrafficEndpoint]
) -> KeysReport | None:
    """What the keys mean for the endpoints of one family; None if there are no keys that count."""
    keys = topology_keys(service)
    if not keys:
        return None
    known = tuple(endpoints)
    labels = {name: node.metadata.labels for name, node in cluster.nodes.items()}
    made: dict[tuple[str | None, ...], Selection[TrafficEndpoint]] = {}
    verdicts: list[KeyVerdict] = []
    total, stays, lost = 0, Fraction(0), 0
    for name in sorted(labels):
        values = tuple(labels[name].get(key) for key in keys)
        chosen = made.get(values)
        if chosen is None:
            chosen = by_keys(known, ProxyLocation.labelled(name, labels[name]), keys, labels)
            made[values] = chosen
        zone = cluster.zones[name]
        verdicts.append(
            KeyVerdict(name, zone, chosen.rule, chosen.key, tuple(t.name for t in chosen.targets))
        )
        weight = cpu_milli(cluster.nodes[name]) if counts(cluster.nodes[name]) else 0
        total += weight
        if chosen.targets:
            near = sum(target.zone == zone != "" for target in chosen.targets)
            stays += Fraction(weight * near, len(chosen.targets))
        else:
            lost += weight
    whole = Fraction(total or 1)
    return KeysReport(keys, tuple(verdicts), stays / whole, lost / whole)


def _some(names: list[str] | tuple[str, ...]) -> str:
    more = len(names) - NAMES
    shown = ", ".join(names[:NAMES]) or "-"
    return f"{shown} and {more} more" if more > 0 else shown
