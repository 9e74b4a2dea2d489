"""The budgets of one namespace and everything they are counted from, kept as it changes.

Shells feed it from their stores; it makes no requests. A change is only noted, whatever it is: a
namespace whose budgets nobody asks for costs nothing. It is counted at the next read, and then
costs constant work in each count whose selector matches the pod before or after. Budgets with the
same selector and the same domains share one count. ``settling`` does the same in slices, so that
the reader of a namespace with much to count can let others work in between.

``BUDGETS_LIMIT`` budgets per domain are counted in a namespace, the oldest first, so that new ones
never displace those in force. The others allow nothing where they guard: a budget that is not
counted is no reason to disrupt a pod.

Nodes are one mapping for all namespaces. ``nodes_changed`` is called when one is added, deleted, or
gets other labels or taints; heartbeats do not matter (``same_place``).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.values.selector import Selector
from zonewise.api.values.selector_index import SelectorIndex
from zonewise.disruption.budget import Budget, BudgetKey
from zonewise.disruption.domain_counts import DomainCounts, identity
from zonewise.disruption.grouping import Grouping
from zonewise.disruption.ledger import Ledger
from zonewise.disruption.owners import Owners, Place, ScaleOwner
from zonewise.disruption.standing import BudgetStanding, SharedCount, standing, uncounted
from zonewise.disruption.verdict import DisruptionVerdict, Round

BUDGETS_LIMIT = 100
"""So many budgets per domain are counted in a namespace."""
SLICE = 200
"""So many pods are counted before ``settling`` pauses, a few milliseconds."""

_Enlisted: TypeAlias = tuple[Any, Any]

Rank: TypeAlias = tuple[str, str, BudgetKey]
"""When a budget was created, its name and its key."""


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
        self.pods: dict[str, Pod] = {}
        self._names: dict[str, str] = {}
        self._owned: dict[str, dict[str, None]] = {}
        self._nodes = nodes
        self._nodes_version = 0
        self._ranked: list[Rank] = []
        """Budgets per domain, the oldest first."""
        self._plain: SelectorIndex[BudgetKey] = SelectorIndex()
        self._beyond: SelectorIndex[BudgetKey] = SelectorIndex()
        self._enlisted: dict[BudgetKey, _Enlisted] = {}
        """Where each budget is found."""
        self._counts: dict[tuple[Selector, Grouping], SharedCount] = {}
        self._counting: SelectorIndex[SharedCount] = SelectorIndex()
        self._changed: dict[str, Pod | None] = {}
        """Pods with changes that are not counted yet, as they were counted last."""
        self._uncounted: dict[SharedCount, None] = {}
        """Counts for which all pods have to be looked at."""
        self._standings: dict[BudgetKey, tuple[tuple[object, ...], BudgetStanding]] = {}
        for pod in pods:
            self.put_pod(pod)
        for budget in budgets:
            self.put_budget(budget)

    # What changes.

    def put_pod(self, pod: Pod) -> None:
        """Add a pod, or see it changed."""
        key = identity(pod)
        old = self.pods.get(key)
        self._changed.setdefault(key, old)
        self.pods[key] = pod
        self._names[pod.metadata.name] = key
        if old is None or old.metadata.controller != pod.metadata.controller:
            self._disown(key, old)
            if (owner := pod.metadata.controller) is not None:
                self._owned.setdefault(owner.uid, {})[key] = None

    def drop_pod(self, pod: Pod) -> None:
        """Remove a deleted pod."""
        key = identity(pod)
        known = self.pods.pop(key, None)
        if known is not None:
            self._changed.setdefault(key, known)
            self._disown(key, known)
        if self._names.get(pod.metadata.name) == key:
            del self._names[pod.metadata.name]

    def _disown(self, key: str, pod: Pod | None) -> None:
        owner = None if pod is None else pod.metadata.controller
        if owner is not None and (siblings := self._owned.get(owner.uid)) is not None:
            siblings.pop(key, None)
            if not siblings:
                del self._owned[owner.uid]

    def put_budget(self, budget: Budget) -> None:
        """Add a budget, or see it changed; only another selector or other domains cost a count."""
        key = budget.key
        old = self.budgets.get(key)
        if old is not None and _rank(old) != _rank(budget):
            self.drop_budget(key)
            old = None
        self.budgets[key] = budget
        rank = _rank(budget)
        if old is None and rank is not None:
            insort(self._ranked, rank)
        self._enlist(budget)
        if old is None:
            self._enlist_at_limit()

    def drop_budget(self, key: BudgetKey) -> None:
        """Remove a budget."""
        budget = self.budgets.pop(key, None)
        if budget is None:
            return
        self._withdraw(key)
        if (rank := _rank(budget)) is not None:
            del self._ranked[bisect_left(self._ranked, rank)]
            self._enlist_at_limit()

    def _enlist_at_limit(self) -> None:
        """After a budget came or went: the one at the limit is counted now, or not any more."""
        for key in self.at_limit():
            self._enlist(self.budgets[key])

    def _enlist(self, budget: Budget) -> None:
        """Let a budget be found by its selector, as what it is now."""
        key, selector = budget.key, budget.selector
        where: _Enlisted = (self._plain, selector)
        if budget.plain is None:
            where = (self._beyond, selector)
            if not self.is_beyond_limit(key):
                where = (self._counting, _count_key(budget))
        if self._enlisted.get(key) == where:
            return
        self._withdraw(key)
        self._enlisted[key] = where
        index, place = where
        if index is not self._counting:
            index.add(selector, key)
            return
        count = self._counts.get(place)
        if count is None:
            domain_counts = DomainCounts(budget.grouping.unguarded, self._nodes)
            count = self._counts[place] = SharedCount(selector, domain_counts)
            self._counting.add(selector, count)
            self._uncounted[count] = None
        count.budgets.add(key)

    def _withdraw(self, key: BudgetKey) -> None:
        if (where := self._enlisted.pop(key, None)) is None:
            return
        self._standings.pop(key, None)
        index, place = where
        if index is not self._counting:
            index.discard(place, key)
            return
        count = self._counts[place]
        count.budgets.discard(key)
        if not count.budgets:
            del self._counts[place]
            self._counting.discard(count.selector, count)
            self._uncounted.pop(count, None)

    def nodes_changed(self) -> None:
        """Look at every pod's place again."""
        self._nodes_version += 1
        for count in self._counts.values():
            count.look_again()
            self._uncounted[count] = None

    # Counting.

    def settling(self) -> Generator[None, None, None]:
        """Count what has changed, with a pause after each slice."""
        worked = 0
        while self._changed or self._uncounted:
            worked += self._count_change() if self._changed else self._count_anew()
            if worked >= SLICE:
                worked = 0
                yield

    def _settle(self) -> None:
        for _ in self.settling():
            pass

    def _count_change(self) -> int:
        """Count one pod again; gives in how many counts."""
        key, old = self._changed.popitem()
        new = self.pods.get(key)
        before = () if old is None else tuple(self._counting.matching(old.metadata.labels))
        if old is not None and new is not None and old.metadata.labels == new.metadata.labels:
            after = before
        else:
            after = () if new is None else tuple(self._counting.matching(new.metadata.labels))
        kept = set(after)
        for count in before:
            if count not in kept:
                count.domain_counts.drop(key)
        if new is not None:
            for count in after:
                if not count.all_unseen:
                    count.domain_counts.put(new)
        return 1 + len(before) + len(after)

    def _count_anew(self) -> int:
        """Look at some of the pods that a count has yet to look at."""
        count = next(iter(self._uncounted))
        keys = count.unseen(self.pods, SLICE)
        if not keys:
            del self._uncounted[count]
        for key in keys:
            pod = self.pods.get(key)
            if pod is not None and count.selector.matches(pod.metadata.labels):
                count.domain_counts.put(pod)
        return len(keys)

    def counted(self, key: BudgetKey) -> tuple[BudgetStanding, DomainCounts]:
        """The state of a budget, without grants; counted again only if something changed."""
        self._settle()
        budget = self.budgets[key]
        if self.is_beyond_limit(key):
            return uncounted(budget, BUDGETS_LIMIT), DomainCounts(budget.grouping, self._nodes)
        count = self._counts[_count_key(budget)]
        domain_counts = count.domain_counts
        seen = (budget, domain_counts.version, self.owners.version, self._nodes_version)
        known = self._standings.get(key)
        if known is None or known[0] != seen:
            known = (seen, standing(budget, domain_counts, count.demand(self.owners)))
            self._standings[key] = known
        return known[1], domain_counts

    # What is read.

    def named(self, name: str) -> Pod | None:
        """The pod of a name, if it is known."""
        key = self._names.get(name)
        return None if key is None else self.pods.get(key)

    def owned(self, uid: str) -> list[Pod]:
        """The pods of a controller."""
        return [self.pods[key] for key in self._owned.get(uid, ())]

    def covering(self, pod: Pod) -> Sequence[Budget]:
        """The budgets that select a pod, by name, without those beyond the limit."""
        labels = pod.metadata.labels
        keys = [*self._plain.matching(labels), *self.counting(labels)]
        return sorted(
            (self.budgets[key] for key in keys), key=lambda budget: (budget.name, budget.kind)
        )

    def beyond_limit(self, pod: Pod) -> Iterator[Budget]:
        """The budgets that select a pod and are not counted, because older ones are many enough."""
        for key in self._beyond.matching(pod.metadata.labels):
            yield self.budgets[key]

    def counting(self, labels: Mapping[str, str]) -> Iterator[BudgetKey]:
        """The budgets that count pods with these labels."""
        for count in self._counting.matching(labels):
            yield from count.budgets

    def within_limit(self) -> list[BudgetKey]:
        """The budgets that are counted."""
        return [rank[2] for rank in self._ranked[:BUDGETS_LIMIT]]

    @property
    def counted_number(self) -> int:
        """How many budgets are counted."""
        return min(len(self._ranked), BUDGETS_LIMIT)

    def is_beyond_limit(self, key: BudgetKey) -> bool:
        """Whether a budget is not counted, because older ones are many enough."""
        if len(self._ranked) <= BUDGETS_LIMIT:
            return False
        rank = _rank(self.budgets[key])
        return rank is not None and rank >= self._ranked[BUDGETS_LIMIT]

    def at_limit(self) -> list[BudgetKey]:
        """The last budget that is counted and the first that is not, if there are that many."""
        return [rank[2] for rank in self._ranked[BUDGETS_LIMIT - 1 : BUDGETS_LIMIT + 1]]

    def requested(self, watched: frozenset[tuple[str, str]]) -> set[Place]:
        """Owners of covered pods whose group and kind are not watched: they have to be requested,
        and again while there are such pods.
        """
        self._settle()
        counts = self._counts.values()
        return set().union(*(count.requested(self.owners, watched) for count in counts))

    def unknown(self) -> list[Place]:
        """Owners of covered pods that were not found."""
        self._settle()
        return sorted(set().union(*(count.missing(self.owners) for count in self._counts.values())))

    def standing(self, key: BudgetKey, now: float) -> BudgetStanding:
        """The state of a budget, with the grants of the ledger."""
        return Round(self, now).standing(key)

    def may_disrupt(self, pod: Pod, now: float, *, evicting: bool = True) -> DisruptionVerdict:
        """Whether a pod may be disrupted."""
        return Round(self, now).judge(pod, evicting=evicting)


def _rank(budget: Budget) -> Rank | None:
    """The order in which budgets are counted; a plain one is counted by its own controller."""
    if budget.plain is not None:
        return None
    return budget.created, budget.name, budget.key


def _count_key(budget: Budget) -> tuple[Selector, Grouping]:
    return budget.selector, budget.grouping.unguarded


def same_place(old: Node | None, new: Node | None) -> bool:
    """Whether a change of a node means nothing to budgets."""
    if old is None or new is None:
        return old is new
    return old.metadata.labels == new.metadata.labels and old.spec.taints == new.spec.taints
