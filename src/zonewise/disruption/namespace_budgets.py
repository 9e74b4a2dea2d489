"""The budgets of one namespace and everything they are counted from, kept as it changes.

Shells feed it from their stores; it makes no requests. A change of a pod costs constant work in
each budget that selects it. Counting a budget costs its domains and owners, not its pods, and is
done at the first read after a change.

Nodes are one mapping for all namespaces. ``nodes_changed`` is called when one is added, deleted, or
gets other labels or taints; heartbeats do not matter (``same_place``).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.disruption.budget import Budget, BudgetKey
from zonewise.disruption.domain_counts import DomainCounts, identity
from zonewise.disruption.ledger import Ledger
from zonewise.disruption.owners import Owners, Place, ScaleOwner
from zonewise.disruption.standing import BudgetStanding, standing
from zonewise.disruption.verdict import DisruptionVerdict, Round

ANY_LABEL = ("", "")
"""The key of budgets whose selector requires no specific label."""


class NamespaceBudgets:
    """Budgets, pods, owners and grants of a namespace."""

    def __init__(
        self,
        nodes: Mapping[str, Node],
        *,
        budgets: Iterable[Budget] = (),
        pods: Iterable[Pod] = (),
        owners: Iterable[ScaleOwner] = (),
        ledger: Ledger | None = None,
    ) -> None:
        self.owners = Owners(owners)
        self.ledger = ledger or Ledger()
        self.budgets: dict[BudgetKey, Budget] = {}
        self._by_label: dict[tuple[str, str], set[BudgetKey]] = {}
        self.pods: dict[str, Pod] = {}
        self._names: dict[str, str] = {}
        self._nodes = nodes
        self._nodes_version = 0
        self._domain_counts: dict[BudgetKey, DomainCounts] = {}
        self._standings: dict[BudgetKey, tuple[tuple[object, ...], BudgetStanding]] = {}
        for pod in pods:
            self.put_pod(pod)
        for budget in budgets:
            self.put_budget(budget)

    def put_pod(self, pod: Pod) -> None:
        """Add a pod, or see it changed."""
        key = identity(pod)
        old = self.pods.get(key)
        self.pods[key] = pod
        self._names[pod.metadata.name] = key
        if old is not None and old.metadata.labels != pod.metadata.labels:
            for domain_counts in self._domain_counts.values():
                domain_counts.drop(key)
        for budget in self._selecting(pod):
            if budget.plain is None:
                self._domain_counts[budget.key].put(pod)

    def drop_pod(self, pod: Pod) -> None:
        """Remove a deleted pod."""
        key = identity(pod)
        self.pods.pop(key, None)
        if self._names.get(pod.metadata.name) == key:
            del self._names[pod.metadata.name]
        for domain_counts in self._domain_counts.values():
            domain_counts.drop(key)

    def named(self, name: str) -> Pod | None:
        """The pod of a name, if it is known."""
        key = self._names.get(name)
        return None if key is None else self.pods.get(key)

    def put_budget(self, budget: Budget) -> None:
        """Add a budget, or see it changed; only another selector or grouping costs a count."""
        old = self.budgets.get(budget.key)
        if old is not None and old.selector != budget.selector:
            self._by_label[_label(old)].discard(old.key)
        self.budgets[budget.key] = budget
        self._by_label.setdefault(_label(budget), set()).add(budget.key)
        if budget.plain is not None:
            self._domain_counts.pop(budget.key, None)
            return
        same = (
            old is not None
            and old.plain is None
            and (old.selector, old.grouping) == (budget.selector, budget.grouping)
        )
        if not same:
            domain_counts = self._domain_counts[budget.key] = DomainCounts(
                budget.grouping, self._nodes
            )
            self._standings.pop(budget.key, None)
            for pod in self.pods.values():
                if budget.selector.matches(pod.metadata.labels):
                    domain_counts.put(pod)

    def drop_budget(self, key: BudgetKey) -> None:
        """Remove a budget."""
        if key in self.budgets:
            self._by_label[_label(self.budgets[key])].discard(key)
        for known in (self.budgets, self._domain_counts, self._standings):
            known.pop(key, None)

    def nodes_changed(self) -> None:
        """Look at every pod's place again."""
        self._nodes_version += 1
        for domain_counts in self._domain_counts.values():
            domain_counts.placed_anew()

    def covering(self, pod: Pod) -> Sequence[Budget]:
        """The budgets that select a pod, by name."""
        return sorted(self._selecting(pod), key=lambda budget: (budget.name, budget.kind))

    def _selecting(self, pod: Pod) -> list[Budget]:
        """The same in any order: a budget is found by a label that all its pods have."""
        labels = pod.metadata.labels
        found = []
        for place in (*labels.items(), ANY_LABEL):
            for key in self._by_label.get(place, ()):
                budget = self.budgets[key]
                if budget.selector.matches(labels):
                    found.append(budget)
        return found

    def counted(self, key: BudgetKey) -> tuple[BudgetStanding, DomainCounts]:
        """The state of a budget, without grants; counted again only if something changed."""
        budget, domain_counts = self.budgets[key], self._domain_counts[key]
        seen = (budget, domain_counts.version, self.owners.version, self._nodes_version)
        known = self._standings.get(key)
        if known is None or known[0] != seen:
            known = (seen, standing(budget, domain_counts, self.owners))
            self._standings[key] = known
        return known[1], domain_counts

    def requested(self, watched: Container[tuple[str, str]]) -> set[Place]:
        """Owners of covered pods whose group and kind are not watched: they have to be requested,
        and again while there are such pods.
        """
        return {
            place
            for domain_counts in self._domain_counts.values()
            for reference in domain_counts.owners
            if reference is not None
            for place in self.owners.followed(reference)
            if place[:2] not in watched
        }

    def unknown(self) -> list[Place]:
        """Owners of covered pods that were not found."""
        found = {
            missing
            for domain_counts in self._domain_counts.values()
            for reference in domain_counts.owners
            if reference is not None and (missing := self.owners.missing(reference)) is not None
        }
        return sorted(found)

    def standing(self, key: BudgetKey, now: float) -> BudgetStanding:
        """The state of a budget, with the grants of the ledger."""
        return Round(self, now).standing(key)

    def may_disrupt(self, pod: Pod, now: float, *, evicting: bool = True) -> DisruptionVerdict:
        """Whether a pod may be disrupted."""
        return Round(self, now).judge(pod, evicting=evicting)


def _label(budget: Budget) -> tuple[str, str]:
    """A label that every pod of a budget has; of several the last by name, which is as good."""
    needed = budget.selector.required
    exact = [(name, next(iter(values))) for name, values in needed.items() if len(values) == 1]
    return max(exact, default=ANY_LABEL)


def same_place(old: Node | None, new: Node | None) -> bool:
    """Whether a change of a node means nothing to budgets."""
    if old is None or new is None:
        return old is new
    return old.metadata.labels == new.metadata.labels and old.spec.taints == new.spec.taints
