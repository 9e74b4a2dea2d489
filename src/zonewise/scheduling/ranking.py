"""All nodes ranked by one set of requirements, updated incrementally.

A node whose own verdict is not a refusal is in a bucket with all nodes for which other pods count
the same: same wide domains, same narrow counts, same taints and preferences. The best of a bucket
is on top of a heap. So a decision compares buckets, a few dozen, and not nodes, a thousand; and a
new pod moves one node. The answer is the same as if every node were compared: nodes of a bucket
differ only in their own scores.

Ties go to the node with fewer pods, then to the smaller ``tie``, a hash of seed and name: never to
the one that was added first.

Not every change is processed at once. The counts and verdicts mark the nodes that a ranking must
update (``dirty``): counts that changed, nodes that were added, deleted, or became better. A node
that only became worse, for example because it got a pod with other requirements, stays where it is;
its entry is corrected when it is on top. So pods with one set of requirements cost those with
others nothing. Entries of a heap that are not the current ones of their node are skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush, heapreplace

from zonewise.scheduling import decision
from zonewise.scheduling.decision import NodeRefusal
from zonewise.scheduling.node_fit import FitEntry, NodeFits
from zonewise.scheduling.node_info import NodeInfo
from zonewise.scheduling.requirements import Requirements
from zonewise.scheduling.scores import DomainTotals, NodeGroup, score_groups
from zonewise.scheduling.topology_count import CountRole, TopologyCount

_BucketKey = tuple[tuple[str | None, ...], tuple[int | None, ...], int, int]
_NO_NAMES: frozenset[str] = frozenset()


class _Bucket:
    __slots__ = (
        "heap",
        "intolerable_taints",
        "key",
        "preference",
        "size",
        "states",
        "wide_domains",
    )

    def __init__(self, key: _BucketKey) -> None:
        self.key = key
        self.wide_domains, self.states, self.intolerable_taints, self.preference = key
        self.heap: list[FitEntry] = []
        self.size = 0


class _Row:
    __slots__ = ("bucket", "counts", "domains", "entry", "labels", "shape", "wide_domains")

    def __init__(self, shape: int, labels: tuple[str | None, ...]) -> None:
        self.shape = shape
        self.labels = labels
        self.counts = [0] * len(labels)
        self.domains: list[str | None] = []
        self.wide_domains: tuple[str | None, ...] = ()
        self.bucket: _Bucket | None = None
        self.entry: FitEntry | None = None


class Ranking:
    """The nodes ranked; ``self_match``: the pod matches its own affinity terms."""

    def __init__(
        self,
        requirements: Requirements,
        node_fits: NodeFits,
        counts: Sequence[TopologyCount],
        node_infos: Mapping[str, NodeInfo],
        *,
        self_match: bool,
    ) -> None:
        self.requirements = requirements
        self._self_match = self_match
        self.node_fits = node_fits
        self._node_infos = node_infos
        self._topology_counts = sorted(counts, key=lambda count: count.role)
        self._narrow = [count for count in self._topology_counts if count.narrow]
        self._counts_by_role: dict[CountRole, list[tuple[int, TopologyCount]]] = {
            role: [] for role in CountRole
        }
        wide_slots: dict[str, int] = {}
        numbered = self._numbered = tuple(enumerate(self._topology_counts))
        for number, count in numbered:
            self._counts_by_role[count.role].append((number, count))
            if not count.narrow:
                count.slot = wide_slots.setdefault(count.key, len(wide_slots))
        for slot, count in enumerate(self._narrow):
            count.slot = slot
        self._wide_keys = tuple(wide_slots)
        self._spread_keys = tuple(count.key for _, count in self._counts_by_role[CountRole.SPREAD])
        self._even_keys = tuple(
            count.key for _, count in self._counts_by_role[CountRole.SOFT_SPREAD]
        )
        self._rows: dict[str, _Row] = {}
        self._buckets: dict[_BucketKey, _Bucket] = {}
        self.dirty: set[str] = set(node_fits.verdicts)
        """Names of nodes that must be updated before the next answer."""

    def refresh(self) -> None:
        """Update the dirty nodes; ``node_fits`` must be up to date."""
        if not self.dirty:
            return
        changed = dict[str, None]()
        for name in self.dirty:
            node_info = self._node_infos.get(name)
            if node_info is not None:
                self._count(node_info, changed)
                changed[name] = None
            elif name in self._rows:
                self._remove_row(name, self._rows.pop(name), changed)
        self.dirty.clear()
        for name in changed:
            row = self._rows.get(name)
            if row is not None:
                self._put_into_bucket(name, row)

    def refusal(self, name: str) -> NodeRefusal | None:
        """Why a node cannot take the pod; None if it can."""
        row = self._rows.get(name)
        if row is None:
            return decision.NOT_NAMED
        if row.bucket is None:
            return self.node_fits.verdicts[name].refusal
        return self._find_refusal(
            self._domain_totals(row.bucket), self._min_totals(), self._is_first_of_affinity()
        )

    def refusals(self) -> dict[str, NodeRefusal]:
        """The refusals of all nodes that cannot take the pod."""
        min_totals, is_first = self._min_totals(), self._is_first_of_affinity()
        by_bucket = {
            bucket.key: self._find_refusal(self._domain_totals(bucket), min_totals, is_first)
            for bucket in self._buckets.values()
        }
        refusals: dict[str, NodeRefusal] = {}
        for name in self._node_infos:
            row = self._rows.get(name)
            if row is None:
                refusal: NodeRefusal | None = decision.NOT_NAMED
            elif row.bucket is None:
                refusal = self.node_fits.verdicts[name].refusal
            else:
                refusal = by_bucket[row.bucket.key]
            if refusal is not None:
                refusals[name] = refusal
        return refusals

    def find_best(self, excluded: Collection[str] = _NO_NAMES) -> str | None:
        """The best node; None if no node can take the pod."""
        min_totals, is_first = self._min_totals(), self._is_first_of_affinity()
        groups: list[NodeGroup] = []
        for bucket in tuple(self._buckets.values()):
            totals = self._domain_totals(bucket)
            if self._find_refusal(totals, min_totals, is_first) is None:
                best, size = self._find_best_of(bucket, excluded)
                if best is not None:
                    groups.append(
                        NodeGroup(
                            totals,
                            bucket.wide_domains,
                            bucket.intolerable_taints,
                            bucket.preference,
                            size,
                            best,
                        )
                    )
        if not groups:
            return None
        best_candidate: FitEntry | None = None
        scores = score_groups(
            groups,
            self._counts_by_role[CountRole.SOFT_SPREAD],
            self._counts_by_role[CountRole.PREFERENCE],
            self.requirements.require_all_keys,
        )
        for group, extra in zip(groups, scores, strict=True):
            score, count, tie, name = group.best
            candidate = (score - extra, count, tie, name)
            if best_candidate is None or candidate < best_candidate:
                best_candidate = candidate
        assert best_candidate is not None
        return best_candidate[3]

    def _count(self, node_info: NodeInfo, changed: dict[str, None]) -> None:
        """Bring the counts of a node's domains up to date."""
        name = node_info.name
        row = self._rows.get(name)
        if row is None or row.shape != node_info.shape:
            if row is not None:
                self._remove_row(name, row, changed)
            row = self._rows[name] = self._add_row(node_info)
        counts = row.counts
        for number, topology_count in self._numbered:
            count = topology_count.counts_by_node.get(name, 0)
            change = count - counts[number]
            if change:
                counts[number] = count
                domain = row.domains[number]
                if domain is not None:
                    topology_count.totals[domain] += change
                    if topology_count.narrow:
                        changed.update(dict.fromkeys(topology_count.nodes_by_domain[domain]))

    def _add_row(self, node_info: NodeInfo) -> _Row:
        labels, fit = node_info.labels, self.node_fits.verdicts[node_info.name].fit
        row = _Row(node_info.shape, tuple(labels.get(count.key) for count in self._topology_counts))
        row.wide_domains = tuple(labels.get(key) for key in self._wide_keys)
        has_all_keys = {
            CountRole.SPREAD: all(key in labels for key in self._spread_keys),
            CountRole.SOFT_SPREAD: not self.requirements.require_all_keys
            or all(key in labels for key in self._even_keys),
        }
        for count, label in zip(self._topology_counts, row.labels, strict=True):
            is_counted = has_all_keys.get(count.role, True) and count.includes(fit)
            domain = label if is_counted else None
            row.domains.append(domain)
            count.add_node(node_info.name, label, domain)
        return row

    def _remove_row(self, name: str, row: _Row, changed: dict[str, None]) -> None:
        for number, count in enumerate(self._topology_counts):
            label = row.labels[number]
            count.remove_node(name, label, row.domains[number], row.counts[number])
            if count.narrow and label is not None:
                changed.update(dict.fromkeys(count.nodes_by_domain.get(label, ())))
        if row.bucket is not None:
            self._remove_from_bucket(row)

    def _put_into_bucket(self, name: str, row: _Row) -> None:
        """Put a node into its bucket."""
        verdict = self.node_fits.verdicts[name]
        if verdict.refusal is not None:
            if row.bucket is not None:
                self._remove_from_bucket(row)
            return
        states = tuple(
            [
                count.narrow_state(row.labels[number], row.counts[number])
                for number, count in enumerate(self._topology_counts)
                if count.narrow
            ]
        )
        fit = verdict.fit
        key = (row.wide_domains, states, fit.intolerable_taints, fit.preference)
        entry = verdict.entry
        bucket = row.bucket
        if bucket is not None and bucket.key == key:
            if row.entry == entry:
                return
        else:
            if bucket is not None:
                self._remove_from_bucket(row)
            bucket = self._buckets.get(key)
            if bucket is None:
                bucket = self._buckets[key] = _Bucket(key)
            row.bucket = bucket
            bucket.size += 1
        row.entry = entry
        heap = bucket.heap
        heappush(heap, entry)
        if len(heap) > 4 * bucket.size + 64:
            bucket.heap = sorted(
                {candidate for candidate in heap if self._is_current(bucket, candidate)}
            )

    def _remove_from_bucket(self, row: _Row) -> None:
        bucket = row.bucket
        assert bucket is not None
        bucket.size -= 1
        if not bucket.size:
            del self._buckets[bucket.key]
        row.bucket = row.entry = None

    def _is_current(self, bucket: _Bucket, entry: FitEntry) -> bool:
        row = self._rows.get(entry[3])
        return row is not None and row.bucket is bucket and row.entry == entry

    def _find_best_of(
        self, bucket: _Bucket, excluded: Collection[str]
    ) -> tuple[FitEntry | None, int]:
        """The best node of a bucket, and the number of its nodes."""
        heap, size, excluded_entries = bucket.heap, bucket.size, list[FitEntry]()
        best = None
        while heap:
            entry = heap[0]
            row = self._rows.get(entry[3])
            if row is None or row.bucket is not bucket or row.entry != entry:
                heappop(heap)
            elif (current := self.node_fits.verdicts[entry[3]].entry) != entry:
                row.entry = current
                heapreplace(heap, current)
            elif entry[3] in excluded:
                excluded_entries.append(heappop(heap))
            else:
                best = entry
                break
        for entry in excluded_entries:
            heappush(heap, entry)
        if excluded:
            size -= sum(
                1
                for name in excluded
                if (row := self._rows.get(name)) is not None and row.bucket is bucket
            )
        return best, size

    def _domain_totals(self, bucket: _Bucket) -> DomainTotals:
        """The total of each topology count in the domains of a bucket; None without the label."""
        wide, states = bucket.wide_domains, bucket.states
        totals: DomainTotals = []
        for count in self._topology_counts:
            if count.narrow:
                totals.append(states[count.slot])
            else:
                label = wide[count.slot]
                totals.append(None if label is None else count.totals.get(label, 0))
        return totals

    def _min_totals(self) -> list[int]:
        return [count.min_total() for _, count in self._counts_by_role[CountRole.SPREAD]]

    def _is_first_of_affinity(self) -> bool:
        """Whether the pod is the first that its own affinity matches; then any node is allowed."""
        affinity_counts = self._counts_by_role[CountRole.AFFINITY]
        return self._self_match and not any(
            any(count.totals.values()) for _, count in affinity_counts
        )

    def _find_refusal(
        self, totals: DomainTotals, min_totals: Sequence[int], is_first: bool
    ) -> NodeRefusal | None:
        """Why other pods prevent the nodes of a bucket; None if they do not."""
        if not self._topology_counts:
            return None
        for smallest, (number, topology_count) in zip(
            min_totals, self._counts_by_role[CountRole.SPREAD], strict=True
        ):
            count, constraint = totals[number], topology_count.constraint
            assert constraint is not None
            if count is None:
                return decision.SPREAD_LABEL_MISSING
            if count + constraint.self_match - smallest > constraint.max_skew:
                return decision.SPREAD_VIOLATED
        affinity_counts = self._counts_by_role[CountRole.AFFINITY]
        if affinity_counts:
            counts = [totals[number] for number, _ in affinity_counts]
            if None in counts or (not is_first and not all(counts)):
                return decision.AFFINITY_UNMET
        if any(totals[number] for number, _ in self._counts_by_role[CountRole.ANTI_AFFINITY]):
            return decision.ANTI_AFFINITY_VIOLATED
        if any(
            totals[number] for number, _ in self._counts_by_role[CountRole.EXISTING_ANTI_AFFINITY]
        ):
            return decision.EXISTING_ANTI_AFFINITY_VIOLATED
        return None
