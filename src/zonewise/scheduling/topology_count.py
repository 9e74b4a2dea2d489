"""Counts of pods over the domains of a topology key, and their role in a decision.

The pods are those that selections match, or those that have a term themselves. The role of a count
says what follows: refuse where it is too high or zero, or score by it.

Domains are *wide* (a zone with hundreds of nodes) or *narrow* (a hostname: one node). A change of a
wide count touches many nodes, so nodes are indexed by the domain's name and the count is looked up
when they are compared. A change of a narrow count touches one, so the node is indexed by the count
itself; else every node would have a bucket of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from zonewise.scheduling.node_fit import NodeFit
from zonewise.scheduling.terms import SpreadConstraint
from zonewise.topology.nodes import HOSTNAME_LABEL


class CountRole(IntEnum):
    """What a count is for."""

    SPREAD = 0
    AFFINITY = 1
    ANTI_AFFINITY = 2
    EXISTING_ANTI_AFFINITY = 3
    SOFT_SPREAD = 4
    PREFERENCE = 5


class TopologyCount:
    """Counts over the domains of one key, for one set of requirements."""

    __slots__ = (
        "constraint",
        "counts_by_node",
        "key",
        "narrow",
        "node_totals",
        "nodes_by_domain",
        "role",
        "slot",
        "totals",
        "weight",
    )

    def __init__(
        self,
        role: CountRole,
        key: str,
        counts_by_node: Mapping[str, int],
        *,
        constraint: SpreadConstraint | None = None,
        weight: int = 0,
    ) -> None:
        self.role = role
        self.key = key
        self.counts_by_node = counts_by_node
        self.constraint = constraint
        self.weight = weight
        self.narrow = key == HOSTNAME_LABEL
        self.slot = 0
        self.totals: dict[str, int] = {}
        self.node_totals: dict[str, int] = {}
        self.nodes_by_domain: dict[str, set[str]] = {}
        """Of a narrow key: the nodes of a domain; mostly one."""

    def includes(self, node_fit: NodeFit) -> bool:
        """Whether the pods of a node are counted."""
        constraint = self.constraint
        return constraint is None or (
            (node_fit.matches_selector or not constraint.honor_affinity)
            and (node_fit.untainted or not constraint.honor_taints)
        )

    def add_node(self, name: str, label: str | None, domain: str | None) -> None:
        """A node is added, with no pods yet."""
        if domain is not None:
            self.node_totals[domain] = self.node_totals.get(domain, 0) + 1
            self.totals.setdefault(domain, 0)
        if self.narrow and label is not None:
            self.nodes_by_domain.setdefault(label, set()).add(name)

    def remove_node(self, name: str, label: str | None, domain: str | None, count: int) -> None:
        """A node is removed, with its pods."""
        if domain is not None:
            self.node_totals[domain] -= 1
            self.totals[domain] -= count
            if not self.node_totals[domain]:
                del self.node_totals[domain], self.totals[domain]
        if self.narrow and label is not None:
            self.nodes_by_domain[label].discard(name)
            if not self.nodes_by_domain[label]:
                del self.nodes_by_domain[label]

    def narrow_state(self, label: str | None, count: int) -> int | None:
        """Of a narrow key: the part of a node's bucket key; None without the label."""
        if label is None:
            return None
        if self.role is CountRole.SOFT_SPREAD:
            return count
        total = self.totals.get(label, 0)
        return (
            min(total, 1)
            if self.role in (CountRole.ANTI_AFFINITY, CountRole.EXISTING_ANTI_AFFINITY)
            else total
        )

    def min_total(self) -> int:
        """The smallest total of a domain; 0 if there are fewer than ``min_domains``."""
        assert self.constraint is not None
        if not self.totals or len(self.totals) < self.constraint.min_domains:
            return 0
        return min(self.totals.values())
