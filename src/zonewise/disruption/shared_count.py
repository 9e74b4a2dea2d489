"""One count for all budgets that select the same pods and group them by the same domains.

Which domains a budget guards, and how much it allows, is no part of a count. A thousand budgets
with one selector cost one count, and what is derived from it alone (what owners request, which
revisions are old, which owners have to be read) is derived once for each state.
"""

from __future__ import annotations

from collections.abc import Iterable

from zonewise.api.values.selector import Selector
from zonewise.disruption.budget import BudgetKey
from zonewise.disruption.domain_counts import DomainCounts
from zonewise.disruption.owners import Owners, Place
from zonewise.disruption.standing import OwnerDemand, demand_of


class SharedCount:
    """A count, who reads it, and the pods that it has yet to look at."""

    def __init__(self, selector: Selector, domain_counts: DomainCounts) -> None:
        self.selector = selector
        self.domain_counts = domain_counts
        self.budgets: set[BudgetKey] = set()
        self._unseen: list[str] | None = None
        self._demand: tuple[object, OwnerDemand] | None = None
        self._requested: tuple[object, frozenset[Place]] | None = None

    def look_again(self) -> None:
        """Nodes have changed: every pod may be in another domain."""
        self.domain_counts.nodes_changed()
        self._unseen = None

    @property
    def all_unseen(self) -> bool:
        """Whether every pod will be looked at anyway."""
        return self._unseen is None

    def unseen(self, pods: Iterable[str], count: int) -> list[str]:
        """The next pods to look at; none when all were."""
        if self._unseen is None:
            self._unseen = list(pods)
        taken = self._unseen[-count:]
        del self._unseen[-count:]
        return taken

    def demand(self, owners: Owners) -> OwnerDemand:
        """What the owners of the pods request."""
        seen = (self.domain_counts.version, owners.version)
        if self._demand is None or self._demand[0] != seen:
            self._demand = (seen, demand_of(self.domain_counts, owners))
        return self._demand[1]

    def requested(self, owners: Owners, watched: frozenset[tuple[str, str]]) -> frozenset[Place]:
        """Owners of pods whose group and kind are not watched."""
        seen = (self.domain_counts.owners_version, owners.version, watched)
        if self._requested is None or self._requested[0] != seen:
            places = frozenset(
                place
                for reference in self.domain_counts.owners
                if reference is not None
                for place in owners.followed(reference)
                if place[:2] not in watched
            )
            self._requested = (seen, places)
        return self._requested[1]

    def missing(self, owners: Owners) -> frozenset[Place]:
        """Owners of pods that were not found."""
        return frozenset(
            place
            for reference in self.domain_counts.owners
            if reference is not None and (place := owners.missing(reference)) is not None
        )
