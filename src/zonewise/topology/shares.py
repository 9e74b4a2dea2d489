"""How much of all traffic each zone is expected to send.

A zone's share is the allocatable CPU of its counting nodes divided by that of all. It is kept as
two whole numbers, a weight and the sum of weights, so that a comparison with a limit multiplies
integers instead of rounding: on the boundary every comparison is exact and the same on every
machine.

Nodes with missing information are not silently left out. ``Shares`` then carries a reason why
nothing may be decided with them. It names the first such node (by name, so that the same cluster
gives the same text) and says how many more there are; the zones are those of the other nodes, for
reports. What is done is a setting:

* ``missing_zone``: ``disable`` allows no decision; ``skip-node`` leaves the node out.
* ``missing_cpu``: ``disable`` allows no decision; ``equal`` makes every counting node weigh one
  core as soon as the CPU of one is missing. Mixing cores with guesses would favour some zones.

Shares are a value: a shell compares the new with the old one and processes its Services only if
they differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from types import MappingProxyType
from typing import NamedTuple

from zonewise.api.objects.core import Node
from zonewise.api.reason import Reason
from zonewise.topology.nodes import ZONE_LABEL, cpu_milli, sends_traffic, zone_of

CORE_MILLI = 1000


class MissingCpu(Enum):
    """What a counting node without allocatable CPU means."""

    DISABLE = "disable"
    EQUAL = "equal"


class MissingZone(Enum):
    """What a counting node without a zone means."""

    DISABLE = "disable"
    SKIP_NODE = "skip-node"


@dataclass(frozen=True, slots=True)
class ZoneShare:
    """One zone: its counting nodes, their CPU, and the weight its share is made of."""

    name: str
    nodes: int
    cpu_milli: int
    weight: int


@dataclass(frozen=True, slots=True)
class Shares:
    """The zones that send traffic, by name; with a reason, nothing may be decided with them.

    ``silent_zones`` have nodes, but none that counts now; they may come back.
    """

    zones: tuple[ZoneShare, ...] = ()
    reason: Reason | None = None
    silent_zones: frozenset[str] = field(default=frozenset(), compare=False)
    weights: Mapping[str, int] = field(init=False, repr=False, compare=False)
    total: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.zones, key=lambda zone: zone.name))
        weights = {zone.name: zone.weight for zone in ordered}
        object.__setattr__(self, "zones", ordered)
        object.__setattr__(self, "weights", MappingProxyType(weights))
        object.__setattr__(self, "total", sum(weights.values()))

    def share(self, zone: str) -> Fraction:
        """The part of all traffic that starts in a zone."""
        return Fraction(self.weights.get(zone, 0), self.total or 1)


class CountedNode(NamedTuple):
    """What a counting node adds to the shares; no zone is "", no CPU is 0."""

    name: str
    zone: str
    cpu_milli: int


def counted_node(node: Node) -> CountedNode | None:
    """What a node adds to the shares, None if it does not count."""
    if not sends_traffic(node):
        return None
    return CountedNode(node.metadata.name, zone_of(node), cpu_milli(node))


def shares_of(
    nodes: Iterable[Node],
    *,
    missing_cpu: MissingCpu = MissingCpu.DISABLE,
    missing_zone: MissingZone = MissingZone.DISABLE,
) -> Shares:
    """The shares of a cluster, or of the part of it that the caller selected."""
    all_nodes = list(nodes)
    counting = (node for node in map(counted_node, all_nodes) if node is not None)
    return shares_of_counted(
        counting, map(zone_of, all_nodes), missing_cpu=missing_cpu, missing_zone=missing_zone
    )


def shares_of_counted(
    counted_nodes: Iterable[CountedNode],
    zones: Iterable[str] = (),
    *,
    missing_cpu: MissingCpu = MissingCpu.DISABLE,
    missing_zone: MissingZone = MissingZone.DISABLE,
) -> Shares:
    """The shares of a cluster whose counting nodes are known already.

    ``zones`` are those of all nodes, whether they count or not.
    """
    without_zone: list[str] = []
    without_cpu: list[str] = []
    nodes: dict[str, int] = {}
    cpus: dict[str, int] = {}
    for name, zone, cpu in counted_nodes:
        if not zone:
            without_zone.append(name)
            continue
        if not cpu:
            without_cpu.append(name)
        nodes[zone] = nodes.get(zone, 0) + 1
        cpus[zone] = cpus.get(zone, 0) + cpu
    without_zone.sort()
    without_cpu.sort()
    equal = bool(without_cpu) and missing_cpu is MissingCpu.EQUAL
    zone_shares = {
        zone: ZoneShare(zone, count, cpus[zone], count * CORE_MILLI if equal else cpus[zone])
        for zone, count in sorted(nodes.items())
    }
    reason = None
    if without_zone and missing_zone is MissingZone.DISABLE:
        reason = _node_without_zone(without_zone)
    elif without_cpu and not equal:
        reason = _node_without_cpu(without_cpu)
    elif len(zone_shares) < 2:
        reason = _too_few_zones(tuple(zone_shares))
    return Shares(tuple(zone_shares.values()), reason, frozenset(zones) - zone_shares.keys() - {""})


def _node_without_zone(names: list[str]) -> Reason:
    return Reason(
        code="NodeWithoutZone",
        message=f"node {names[0]} has no zone label{_format_others(names)}",
        object=f"Node/{names[0]}",
        numbers={"nodes": len(names)},
        fix=f"Label it with {ZONE_LABEL}, or run with --missing-zone=skip-node.",
    )


def _node_without_cpu(names: list[str]) -> Reason:
    return Reason(
        code="NodeWithoutCpu",
        message=f"node {names[0]} does not report allocatable CPU{_format_others(names)}",
        object=f"Node/{names[0]}",
        numbers={"nodes": len(names)},
        fix="Let its kubelet report CPU, or run with --missing-cpu=equal.",
    )


def _too_few_zones(zones: tuple[str, ...]) -> Reason:
    if zones:
        text = f"all Ready nodes that count are in zone {zones[0]}"
        return Reason(
            code="OneZone",
            message=text,
            numbers={"zones": 1},
            fix="Hints need Ready nodes in two zones or more.",
        )
    return Reason(
        code="NoNodes",
        message="no node outside the control plane is Ready with a zone",
        numbers={"zones": 0},
        fix="Hints need Ready nodes in two zones or more.",
    )


def _format_others(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
