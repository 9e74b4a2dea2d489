"""What other pods mean for a node: counts per domain, and their effect.

A factor counts pods (a tally, or the pods that carry a term) over the domains of one topology key.
Its role says what follows: refuse where the count is too high or zero, or score by it.

Domains are *wide* (a zone with hundreds of nodes) or *narrow* (a hostname: one node). A change of a
wide count touches many nodes, so nodes are indexed by the domain's name and the count is looked up
when they are compared. A change of a narrow count touches one, so the node is indexed by the count
itself; else every node would have a drawer of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from zonewise.scheduling.node_fit import NodeFit
from zonewise.scheduling.terms import Constraint
from zonewise.topology import HOSTNAME_LABEL


class CountRole(IntEnum):
    """What a count means."""

    SPREAD = 0
    NEAR = 1
    AWAY = 2
    UNWELCOME = 3
    EVEN = 4
    LIKE = 5


class TopologyCount:
    """Counts of one tally over the domains of one key, for one set of requirements."""

    __slots__ = (
        "constraint",
        "counts",
        "key",
        "members",
        "narrow",
        "nodes",
        "role",
        "slot",
        "sums",
        "weight",
    )

    def __init__(
        self,
        role: CountRole,
        key: str,
        counts: Mapping[str, int],
        *,
        constraint: Constraint | None = None,
        weight: int = 0,
    ) -> None:
        self.role = role
        self.key = key
        self.counts = counts
        self.constraint = constraint
        self.weight = weight
        self.narrow = key == HOSTNAME_LABEL
        self.slot = 0
        self.sums: dict[str, int] = {}
        self.members: dict[str, int] = {}
        self.nodes: dict[str, set[str]] = {}
        """Of a narrow key: which nodes are in a domain; mostly one."""

    def counted(self, standing: NodeFit) -> bool:
        """Whether the pods of a node count."""
        constraint = self.constraint
        return constraint is None or (
            (standing.selected or not constraint.honor_affinity)
            and (standing.untainted or not constraint.honor_taints)
        )

    def join(self, name: str, label: str | None, domain: str | None) -> None:
        """A node is added, with no pods yet."""
        if domain is not None:
            self.members[domain] = self.members.get(domain, 0) + 1
            self.sums.setdefault(domain, 0)
        if self.narrow and label is not None:
            self.nodes.setdefault(label, set()).add(name)

    def leave(self, name: str, label: str | None, domain: str | None, count: int) -> None:
        """A node is removed, with its pods."""
        if domain is not None:
            self.members[domain] -= 1
            self.sums[domain] -= count
            if not self.members[domain]:
                del self.members[domain], self.sums[domain]
        if self.narrow and label is not None:
            self.nodes[label].discard(name)
            if not self.nodes[label]:
                del self.nodes[label]

    def state(self, label: str | None, count: int) -> int | None:
        """Of a narrow key: what a node is filed under; None without the label."""
        if label is None:
            return None
        if self.role is CountRole.EVEN:
            return count
        total = self.sums.get(label, 0)
        return min(total, 1) if self.role in (CountRole.AWAY, CountRole.UNWELCOME) else total

    def least(self) -> int:
        """The smallest count of a domain, zero if there are fewer domains than there should be."""
        assert self.constraint is not None
        if not self.sums or len(self.sums) < self.constraint.min_domains:
            return 0
        return min(self.sums.values())
