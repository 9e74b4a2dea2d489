"""Where nodes are, followed change by change, and the shares that follow from it.

Most changes of a node (heartbeats, images, pressure) do not change its place; they cost one
comparison. Those that do are collected, and ``recompute`` makes the new shares once for all of
them: five thousand nodes added at once are one pass, not five thousand.

A Service may count only the nodes its pods could run on. Such shares are kept per reach, not per
Service, and made when they are first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from zonewise.api.objects.core import Node
from zonewise.topology.eligible_nodes import EligibleNodes
from zonewise.topology.nodes import zone_of
from zonewise.topology.shares import (
    CountedNode,
    MissingCpu,
    MissingZone,
    Shares,
    counted_node,
    shares_of_counted,
)


class NodeShares:
    """Zones of nodes by name, and the shares of zones."""

    def __init__(
        self,
        nodes: Callable[[], Iterable[Node]],
        *,
        missing_cpu: MissingCpu = MissingCpu.DISABLE,
        missing_zone: MissingZone = MissingZone.DISABLE,
    ) -> None:
        self.zones: dict[str, str] = {}
        """The zone of every node there is, "" if it has none."""
        self._shares: Shares | None = None
        self._nodes = nodes
        self._missing_cpu = missing_cpu
        self._missing_zone = missing_zone
        self._placed: dict[str, CountedNode] = {}
        self._moved: set[str] = set()
        self._reached: dict[EligibleNodes, Shares] = {}

    def note(self, old: Node | None, new: Node | None) -> bool:
        """Take in a change of a node; whether anything follows from it."""
        if new is None:
            return old is not None and self._forget(old.metadata.name)
        name, zone, counted = new.metadata.name, zone_of(new), counted_node(new)
        moved = self.zones.get(name) != zone
        changed = moved or self._placed.get(name) != counted
        if moved:
            self.zones[name] = zone
            self._moved.add(name)
        if counted is not None:
            self._placed[name] = counted
        else:
            self._placed.pop(name, None)
        return changed or (bool(self._reached) and _other_guests(old, new))

    def recompute(self) -> set[str]:
        """Recompute the shares; returns the nodes that were added or moved since the last time."""
        self._shares = self._compute(self._placed.values())
        self._reached = {reach: self._within(reach) for reach in self._reached}
        moved, self._moved = self._moved, set()
        return moved

    def within(self, reach: EligibleNodes | None) -> Shares:
        """The shares of all nodes, or of those within a reach, as they were last settled."""
        if self._shares is None:
            self._shares = self._compute(self._placed.values())
        if reach is None:
            return self._shares
        if reach not in self._reached:
            self._reached[reach] = self._within(reach)
        return self._reached[reach]

    def keep(self, reaches: Iterable[EligibleNodes]) -> None:
        """Drop the reaches that no Service has any more."""
        used = set(reaches)
        self._reached = {reach: shares for reach, shares in self._reached.items() if reach in used}

    def _within(self, reach: EligibleNodes) -> Shares:
        names = (node.metadata.name for node in reach.select(self._nodes()))
        return self._compute(self._placed[name] for name in names if name in self._placed)

    def _compute(self, nodes: Iterable[CountedNode]) -> Shares:
        return shares_of_counted(
            nodes,
            self.zones.values(),
            missing_cpu=self._missing_cpu,
            missing_zone=self._missing_zone,
        )

    def _forget(self, name: str) -> bool:
        self._moved.discard(name)
        self.zones.pop(name, None)
        return self._placed.pop(name, None) is not None


def _other_guests(old: Node | None, new: Node) -> bool:
    """Whether other pods may run on the node than before."""
    return (
        old is None
        or old.metadata.labels != new.metadata.labels
        or old.spec.taints != new.spec.taints
    )
