"""The budgets of one namespace and everything they are counted from, kept as it changes.

Shells feed it from their stores; it makes no requests. A change is only recorded: a namespace whose
budgets are never read costs nothing. It is counted at the next read, and then costs constant work
in each count whose selector matches the pod before or after. Budgets with the same selector and the
same domains share one count. ``count_changes`` does the same in slices, so that the reader of a
namespace with much to count can let other tasks run in between.

``BUDGETS_LIMIT`` budgets per domain are counted in a namespace, the oldest first, so that new ones
never displace those in force. The others allow nothing where they guard: that a budget is not
counted must not disrupt a pod. Undivided budgets, of which only the embedded cluster has any, are
not limited, as Kubernetes does not limit them.

Nodes are one mapping for all namespaces. ``nodes_changed`` is called when one is added, deleted, or
gets other labels or taints; heartbeats do not matter (``is_irrelevant_change``).
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
from zonewise.disruption.budget_state import BudgetState, SharedCount, count_budget, uncounted_state
from zonewise.disruption.domain_counts import DomainCounts, identity
from zonewise.disruption.grouping import Grouping
from zonewise.disruption.ledger import Ledger
from zonewise.disruption.owners import OwnerKey, Owners, ScaleOwner
from zonewise.disruption.verdict import DisruptionVerdict, VerdictRound

BUDGETS_LIMIT = 100
"""How many budgets per domain are counted in a namespace."""
PODS_PER_SLICE = 200
"""How many pods are counted before ``count_changes`` pauses: a few milliseconds."""

_IndexEntry: TypeAlias = tuple[Any, Any]

BudgetRank: TypeAlias = tuple[str, str, BudgetKey]
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
        self._keys_by_name: dict[str, str] = {}
        self._keys_by_owner: dict[str, dict[str, None]] = {}
        self._nodes = nodes
        self._nodes_version = 0
        self._ranked: list[BudgetRank] = []
        """Budgets per domain, the oldest first."""
        self._undivided: dict[BudgetKey, None] = {}
        self._plain: SelectorIndex[BudgetKey] = SelectorIndex()
        self._beyond_limit: SelectorIndex[BudgetKey] = SelectorIndex()
        self._index_entries: dict[BudgetKey, _IndexEntry] = {}
        """The index that has each budget, and its key there."""
        self._counts: dict[tuple[Selector, Grouping], SharedCount] = {}
        self._counts_by_selector: SelectorIndex[SharedCount] = SelectorIndex()
        self._changed: dict[str, Pod | None] = {}
        """Pods with changes that are not counted yet, as they were last counted."""
        self._uncounted: dict[SharedCount, None] = {}
        """Counts for which all pods have to be counted."""
        self._states: dict[BudgetKey, tuple[tuple[object, ...], BudgetState]] = {}
        for pod in pods:
            self.put_pod(pod)
        for budget in budgets:
            self.put_budget(budget)

    # Changes.

    def put_pod(self, pod: Pod) -> None:
        """Add or change a pod."""
        key = identity(pod)
        old = self.pods.get(key)
        self._changed.setdefault(key, old)
        self.pods[key] = pod
        self._keys_by_name[pod.metadata.name] = key
        if old is None or old.metadata.controller != pod.metadata.controller:
            self._remove_from_owner(key, old)
            if (owner := pod.metadata.controller) is not None:
                self._keys_by_owner.setdefault(owner.uid, {})[key] = None

    def drop_pod(self, pod: Pod) -> None:
        """Remove a deleted pod."""
        key = identity(pod)
        known = self.pods.pop(key, None)
        if known is not None:
            self._changed.setdefault(key, known)
            self._remove_from_owner(key, known)
        if self._keys_by_name.get(pod.metadata.name) == key:
            del self._keys_by_name[pod.metadata.name]

    def _remove_from_owner(self, key: str, pod: Pod | None) -> None:
        owner = None if pod is None else pod.metadata.controller
        if owner is not None and (siblings := self._keys_by_owner.get(owner.uid)) is not None:
            siblings.pop(key, None)
            if not siblings:
                del self._keys_by_owner[owner.uid]

    def put_budget(self, budget: Budget) -> None:
        """Add or change a budget; only another selector or other domains cost a new count."""
        key = budget.key
        old = self.budgets.get(key)
        if old is not None and _rank(old) != _rank(budget):
            self.drop_budget(key)
            old = None
        self.budgets[key] = budget
        rank = _rank(budget)
        if old is None and rank is not None:
            insort(self._ranked, rank)
        if budget.undivided:
            self._undivided[key] = None
        else:
            self._undivided.pop(key, None)
        self._index_budget(budget)
        if old is None:
            self._index_at_limit()

    def drop_budget(self, key: BudgetKey) -> None:
        """Remove a budget."""
        budget = self.budgets.pop(key, None)
        if budget is None:
            return
        self._unindex_budget(key)
        self._undivided.pop(key, None)
        if (rank := _rank(budget)) is not None:
            del self._ranked[bisect_left(self._ranked, rank)]
            self._index_at_limit()

    def _index_at_limit(self) -> None:
        """After a budget was added or removed: index those at the limit again."""
        for key in self.budgets_at_limit():
            self._index_budget(self.budgets[key])

    def _index_budget(self, budget: Budget) -> None:
        """Put a budget into the index that it belongs to now."""
        key, selector = budget.key, budget.selector
        entry: _IndexEntry = (self._plain, selector)
        if budget.plain is None:
            entry = (self._beyond_limit, selector)
            if not self.is_beyond_limit(key):
                entry = (self._counts_by_selector, _count_key(budget))
        if self._index_entries.get(key) == entry:
            return
        self._unindex_budget(key)
        self._index_entries[key] = entry
        index, index_key = entry
        if index is not self._counts_by_selector:
            index.add(selector, key)
            return
        count = self._counts.get(index_key)
        if count is None:
            counts = DomainCounts(budget.grouping.without_guard, self._nodes)
            count = self._counts[index_key] = SharedCount(selector, counts)
            self._counts_by_selector.add(selector, count)
            self._uncounted[count] = None
        count.budgets.add(key)

    def _unindex_budget(self, key: BudgetKey) -> None:
        if (entry := self._index_entries.pop(key, None)) is None:
            return
        self._states.pop(key, None)
        index, index_key = entry
        if index is not self._counts_by_selector:
            index.discard(index_key, key)
            return
        count = self._counts[index_key]
        count.budgets.discard(key)
        if not count.budgets:
            del self._counts[index_key]
            self._counts_by_selector.discard(count.selector, count)
            self._uncounted.pop(count, None)

    def nodes_changed(self) -> None:
        """Count every pod again: its domain may have changed."""
        self._nodes_version += 1
        for count in self._counts.values():
            count.recount_all()
            self._uncounted[count] = None

    # Counting.

    def count_changes(self) -> Generator[None, None, None]:
        """Count all changes, with a pause after each slice."""
        work_done = 0
        while self._changed or self._uncounted:
            work_done += self._count_changed_pod() if self._changed else self._count_slice()
            if work_done >= PODS_PER_SLICE:
                work_done = 0
                yield

    def _count_all_changes(self) -> None:
        for _ in self.count_changes():
            pass

    def _count_changed_pod(self) -> int:
        """Count a changed pod; returns the work done."""
        key, old = self._changed.popitem()
        new = self.pods.get(key)
        matching = self._counts_by_selector.matching
        counts_before = () if old is None else tuple(matching(old.metadata.labels))
        if old is not None and new is not None and old.metadata.labels == new.metadata.labels:
            counts_after = counts_before
        else:
            counts_after = () if new is None else tuple(matching(new.metadata.labels))
        still_counting = set(counts_after)
        for count in counts_before:
            if count not in still_counting:
                count.domain_counts.drop(key)
        if new is not None:
            for count in counts_after:
                if not count.will_recount_all:
                    count.domain_counts.put(new)
        return 1 + len(counts_before) + len(counts_after)

    def _count_slice(self) -> int:
        """Count some of the pods that a count has not counted yet; returns how many."""
        count = next(iter(self._uncounted))
        keys = count.take_uncounted(self.pods, PODS_PER_SLICE)
        if not keys:
            del self._uncounted[count]
        for key in keys:
            pod = self.pods.get(key)
            if pod is not None and count.selector.matches(pod.metadata.labels):
                count.domain_counts.put(pod)
        return len(keys)

    def state_and_counts(self, key: BudgetKey) -> tuple[BudgetState, DomainCounts]:
        """The state of a budget without grants, cached until something changes, and its counts."""
        self._count_all_changes()
        budget = self.budgets[key]
        if self.is_beyond_limit(key):
            return uncounted_state(budget, BUDGETS_LIMIT), DomainCounts(
                budget.grouping, self._nodes
            )
        count = self._counts[_count_key(budget)]
        counts = count.domain_counts
        versions = (budget, counts.version, self.owners.version, self._nodes_version)
        cached = self._states.get(key)
        if cached is None or cached[0] != versions:
            cached = (versions, count_budget(budget, counts, count.demand(self.owners)))
            self._states[key] = cached
        return cached[1], counts

    # Reads.

    def find_pod(self, name: str) -> Pod | None:
        """The pod with a name, if it is known."""
        key = self._keys_by_name.get(name)
        return None if key is None else self.pods.get(key)

    def pods_owned_by(self, uid: str) -> list[Pod]:
        """The pods of a controller."""
        return [self.pods[key] for key in self._keys_by_owner.get(uid, ())]

    def budgets_covering(self, pod: Pod) -> Sequence[Budget]:
        """The budgets that select a pod, by name, without those beyond the limit."""
        labels = pod.metadata.labels
        keys = [*self._plain.matching(labels), *self.budgets_counting(labels)]
        return sorted(
            (self.budgets[key] for key in keys), key=lambda budget: (budget.name, budget.kind)
        )

    def plain_budgets_of(self, pod: Pod) -> list[Budget]:
        """The plain budgets that select a pod, if they are too many for Kubernetes to evict it."""
        if pod.metadata.labels and len(list(self._plain.matching(pod.metadata.labels))) < 2:
            return []
        covering = self.budgets_covering(pod)
        plain = [budget for budget in covering if budget.plain is not None]
        too_many = len(plain) > 1 and not any(budget.has_term for budget in covering)
        return plain if too_many else []

    def budgets_beyond_limit(self, pod: Pod) -> Iterator[Budget]:
        """The budgets that select a pod and are not counted, because the limit is reached."""
        for key in self._beyond_limit.matching(pod.metadata.labels):
            yield self.budgets[key]

    def budgets_counting(self, labels: Mapping[str, str]) -> Iterator[BudgetKey]:
        """The budgets that count pods with these labels."""
        for count in self._counts_by_selector.matching(labels):
            yield from count.budgets

    def budgets_within_limit(self) -> list[BudgetKey]:
        """The budgets that are counted."""
        return [*(rank[2] for rank in self._ranked[:BUDGETS_LIMIT]), *self._undivided]

    @property
    def counted_budgets(self) -> int:
        """How many budgets are counted."""
        return min(len(self._ranked), BUDGETS_LIMIT) + len(self._undivided)

    def is_beyond_limit(self, key: BudgetKey) -> bool:
        """Whether a budget is not counted, because the limit is reached by older ones."""
        if len(self._ranked) <= BUDGETS_LIMIT:
            return False
        rank = _rank(self.budgets[key])
        return rank is not None and rank >= self._ranked[BUDGETS_LIMIT]

    def budgets_at_limit(self) -> list[BudgetKey]:
        """The last budget that is counted and the first that is not, if there are so many."""
        return [rank[2] for rank in self._ranked[BUDGETS_LIMIT - 1 : BUDGETS_LIMIT + 1]]

    def owners_to_request(self, watched: frozenset[tuple[str, str]]) -> set[OwnerKey]:
        """Owners of covered pods whose group and kind are not watched.

        They have to be requested, and again as long as there are such pods.
        """
        self._count_all_changes()
        counts = self._counts.values()
        return set().union(*(count.owners_to_request(self.owners, watched) for count in counts))

    def missing_owners(self) -> list[OwnerKey]:
        """Owners of covered pods that are not known."""
        self._count_all_changes()
        missing = (counts.missing_owners(self.owners) for counts in self._counts.values())
        return sorted(set().union(*missing))

    def state(self, key: BudgetKey, now: float) -> BudgetState:
        """The state of a budget, with the grants of the ledger."""
        return VerdictRound(self, now).state(key)

    def judge(self, pod: Pod, now: float, *, evicting: bool = True) -> DisruptionVerdict:
        """Whether a pod may be disrupted."""
        return VerdictRound(self, now).judge(pod, evicting=evicting)


def _rank(budget: Budget) -> BudgetRank | None:
    """The order in which budgets are counted; those without domains are not limited."""
    if budget.plain is not None or budget.undivided:
        return None
    return budget.created, budget.name, budget.key


def _count_key(budget: Budget) -> tuple[Selector, Grouping]:
    return budget.selector, budget.grouping.without_guard


def is_irrelevant_change(old: Node | None, new: Node | None) -> bool:
    """Whether a change of a node does not matter to budgets."""
    if old is None or new is None:
        return old is new
    return old.metadata.labels == new.metadata.labels and old.spec.taints == new.spec.taints
