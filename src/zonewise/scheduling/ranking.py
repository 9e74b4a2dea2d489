"""All nodes by how well they suit one set of requirements, updated incrementally.

A node whose own verdict is no refusal is in a drawer with all nodes that other pods treat alike:
same wide domains, same narrow counts, same taints and preferences. In a drawer the best is on top
of a heap. So choosing compares drawers, a few dozen, and not nodes, a thousand; and a new pod moves
one node. The answer is the same as if every node were compared: within a drawer all that differs is
the node's own score.

Ties go to the node with fewer pods, then to the smaller ``tie``, a hash of seed and name: never to
the one that happened to be added first.

Not every change is processed at once. The counts and verdicts mark the nodes that a ranking must
update (``dirty``): counts that changed, nodes that were added, deleted, or became better. A node
that only became worse, as one does that just got a pod with other requirements, stays where it is;
its entry is corrected when it comes up. So pods with one set of requirements cost those with others
nothing. Entries of a heap that are not the newest of their node are skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush, heapreplace

from zonewise.scheduling import decision
from zonewise.scheduling.decision import NodeRefusal
from zonewise.scheduling.node_fit import FitEntry, NodeFits
from zonewise.scheduling.node_info import NodeInfo
from zonewise.scheduling.requirements import Requirements
from zonewise.scheduling.scores import NodeGroup, Seen, extras
from zonewise.scheduling.topology_count import CountRole, TopologyCount

_DrawerKey = tuple[tuple[str | None, ...], tuple[int | None, ...], int, int]
_NOBODY: frozenset[str] = frozenset()


class _Drawer:
    __slots__ = ("disliked", "heap", "key", "preferred", "size", "states", "wide")

    def __init__(self, key: _DrawerKey) -> None:
        self.key = key
        self.wide, self.states, self.disliked, self.preferred = key
        self.heap: list[FitEntry] = []
        self.size = 0


class _Row:
    __slots__ = ("counts", "domains", "drawer", "entry", "labels", "shape", "wide")

    def __init__(self, shape: int, labels: tuple[str | None, ...]) -> None:
        self.shape = shape
        self.labels = labels
        self.counts = [0] * len(labels)
        self.domains: list[str | None] = []
        self.wide: tuple[str | None, ...] = ()
        self.drawer: _Drawer | None = None
        self.entry: FitEntry | None = None


class Ranking:
    """The nodes as requirements rank them; ``itself`` if the pod matches its own affinity."""

    def __init__(
        self,
        requirements: Requirements,
        node_fits: NodeFits,
        topology_counts: Sequence[TopologyCount],
        node_infos: Mapping[str, NodeInfo],
        *,
        itself: bool,
    ) -> None:
        self.requirements = requirements
        self._itself = itself
        self.node_fits = node_fits
        self._node_infos = node_infos
        self._topology_counts = sorted(
            topology_counts, key=lambda topology_count: topology_count.role
        )
        self._narrow = [
            topology_count for topology_count in self._topology_counts if topology_count.narrow
        ]
        self._of: dict[CountRole, list[tuple[int, TopologyCount]]] = {
            role: [] for role in CountRole
        }
        wide: dict[str, int] = {}
        each = self._each = tuple(enumerate(self._topology_counts))
        for number, topology_count in each:
            self._of[topology_count.role].append((number, topology_count))
            if not topology_count.narrow:
                topology_count.slot = wide.setdefault(topology_count.key, len(wide))
        for slot, topology_count in enumerate(self._narrow):
            topology_count.slot = slot
        self._wide_keys = tuple(wide)
        self._spread_keys = tuple(
            topology_count.key for _, topology_count in self._of[CountRole.SPREAD]
        )
        self._even_keys = tuple(
            topology_count.key for _, topology_count in self._of[CountRole.EVEN]
        )
        self._rows: dict[str, _Row] = {}
        self._drawers: dict[_DrawerKey, _Drawer] = {}
        self.dirty: set[str] = set(node_fits.verdicts)
        """Nodes that must be looked at before the next answer."""

    def refresh(self) -> None:
        """Look at the nodes that are marked; the fitness must be up to date."""
        if not self.dirty:
            return
        again = dict[str, None]()
        for name in self.dirty:
            node_info = self._node_infos.get(name)
            if node_info is not None:
                self._count(node_info, again)
                again[name] = None
            elif name in self._rows:
                self._leave(name, self._rows.pop(name), again)
        self.dirty.clear()
        for name in again:
            row = self._rows.get(name)
            if row is not None:
                self._file(name, row)

    def refusal(self, name: str) -> NodeRefusal | None:
        """Why a node cannot take the pod, or None."""
        row = self._rows.get(name)
        if row is None:
            return decision.NOT_NAMED
        if row.drawer is None:
            return self.node_fits.verdicts[name].refusal
        return self._against(self._seen(row.drawer), self._least(), self._first())

    def refusals(self) -> dict[str, NodeRefusal]:
        """Why each node that cannot take the pod cannot."""
        least, first = self._least(), self._first()
        said = {
            drawer.key: self._against(self._seen(drawer), least, first)
            for drawer in self._drawers.values()
        }
        found: dict[str, NodeRefusal] = {}
        for name in self._node_infos:
            row = self._rows.get(name)
            if row is None:
                refusal: NodeRefusal | None = decision.NOT_NAMED
            elif row.drawer is None:
                refusal = self.node_fits.verdicts[name].refusal
            else:
                refusal = said[row.drawer.key]
            if refusal is not None:
                found[name] = refusal
        return found

    def best(self, excluded: Collection[str] = _NOBODY) -> str | None:
        """The pod's node; None if no node can take it."""
        least, first = self._least(), self._first()
        possible: list[NodeGroup] = []
        for drawer in tuple(self._drawers.values()):
            seen = self._seen(drawer)
            if self._against(seen, least, first) is None:
                top, size = self._top(drawer, excluded)
                if top is not None:
                    possible.append(
                        NodeGroup(seen, drawer.wide, drawer.disliked, drawer.preferred, size, top)
                    )
        if not possible:
            return None
        winner: FitEntry | None = None
        scores = extras(
            possible, self._of[CountRole.EVEN], self._of[CountRole.LIKE], self.requirements.strict
        )
        for group, extra in zip(possible, scores, strict=True):
            score, count, tie, name = group.top
            candidate = (score - extra, count, tie, name)
            if winner is None or candidate < winner:
                winner = candidate
        assert winner is not None
        return winner[3]

    def _count(self, node_info: NodeInfo, again: dict[str, None]) -> None:
        """Bring the counts of a node's domains up to date."""
        name = node_info.name
        row = self._rows.get(name)
        if row is None or row.shape != node_info.shape:
            if row is not None:
                self._leave(name, row, again)
            row = self._rows[name] = self._join(node_info)
        counts = row.counts
        for number, topology_count in self._each:
            count = topology_count.counts.get(name, 0)
            change = count - counts[number]
            if change:
                counts[number] = count
                domain = row.domains[number]
                if domain is not None:
                    topology_count.sums[domain] += change
                    if topology_count.narrow:
                        again.update(dict.fromkeys(topology_count.nodes[domain]))

    def _join(self, node_info: NodeInfo) -> _Row:
        labels, standing = node_info.labels, self.node_fits.verdicts[node_info.name].standing
        row = _Row(node_info.shape, tuple(labels.get(one.key) for one in self._topology_counts))
        row.wide = tuple(labels.get(key) for key in self._wide_keys)
        whole = {
            CountRole.SPREAD: all(key in labels for key in self._spread_keys),
            CountRole.EVEN: not self.requirements.strict
            or all(key in labels for key in self._even_keys),
        }
        for topology_count, label in zip(self._topology_counts, row.labels, strict=True):
            counted = whole.get(topology_count.role, True) and topology_count.counted(standing)
            domain = label if counted else None
            row.domains.append(domain)
            topology_count.join(node_info.name, label, domain)
        return row

    def _leave(self, name: str, row: _Row, again: dict[str, None]) -> None:
        for number, topology_count in enumerate(self._topology_counts):
            label = row.labels[number]
            topology_count.leave(name, label, row.domains[number], row.counts[number])
            if topology_count.narrow and label is not None:
                again.update(dict.fromkeys(topology_count.nodes.get(label, ())))
        if row.drawer is not None:
            self._take_out(row)

    def _file(self, name: str, row: _Row) -> None:
        """Lay a node into its drawer."""
        verdict = self.node_fits.verdicts[name]
        if verdict.refusal is not None:
            if row.drawer is not None:
                self._take_out(row)
            return
        states = tuple(
            [
                topology_count.state(row.labels[number], row.counts[number])
                for number, topology_count in enumerate(self._topology_counts)
                if topology_count.narrow
            ]
        )
        standing = verdict.standing
        key = (row.wide, states, standing.disliked, standing.preferred)
        entry = verdict.entry
        drawer = row.drawer
        if drawer is not None and drawer.key == key:
            if row.entry == entry:
                return
        else:
            if drawer is not None:
                self._take_out(row)
            drawer = self._drawers.get(key)
            if drawer is None:
                drawer = self._drawers[key] = _Drawer(key)
            row.drawer = drawer
            drawer.size += 1
        row.entry = entry
        heap = drawer.heap
        heappush(heap, entry)
        if len(heap) > 4 * drawer.size + 64:
            drawer.heap = sorted({one for one in heap if self._newest(drawer, one)})

    def _take_out(self, row: _Row) -> None:
        drawer = row.drawer
        assert drawer is not None
        drawer.size -= 1
        if not drawer.size:
            del self._drawers[drawer.key]
        row.drawer = row.entry = None

    def _newest(self, drawer: _Drawer, entry: FitEntry) -> bool:
        row = self._rows.get(entry[3])
        return row is not None and row.drawer is drawer and row.entry == entry

    def _top(self, drawer: _Drawer, excluded: Collection[str]) -> tuple[FitEntry | None, int]:
        """The best of a drawer, and how many there are."""
        heap, size, aside = drawer.heap, drawer.size, list[FitEntry]()
        top = None
        while heap:
            entry = heap[0]
            row = self._rows.get(entry[3])
            if row is None or row.drawer is not drawer or row.entry != entry:
                heappop(heap)
            elif (now := self.node_fits.verdicts[entry[3]].entry) != entry:
                row.entry = now
                heapreplace(heap, now)
            elif entry[3] in excluded:
                aside.append(heappop(heap))
            else:
                top = entry
                break
        for entry in aside:
            heappush(heap, entry)
        if excluded:
            size -= sum(
                1
                for name in excluded
                if (row := self._rows.get(name)) is not None and row.drawer is drawer
            )
        return top, size

    def _seen(self, drawer: _Drawer) -> Seen:
        """The count of each factor where the nodes of a drawer are; None without the label."""
        wide, states = drawer.wide, drawer.states
        seen: Seen = []
        for topology_count in self._topology_counts:
            if topology_count.narrow:
                seen.append(states[topology_count.slot])
            else:
                label = wide[topology_count.slot]
                seen.append(None if label is None else topology_count.sums.get(label, 0))
        return seen

    def _least(self) -> list[int]:
        return [topology_count.least() for _, topology_count in self._of[CountRole.SPREAD]]

    def _first(self) -> bool:
        """Whether the pod is the first that its own affinity matches: then any node will do."""
        near = self._of[CountRole.NEAR]
        return self._itself and not any(
            any(topology_count.sums.values()) for _, topology_count in near
        )

    def _against(self, seen: Seen, least: Sequence[int], first: bool) -> NodeRefusal | None:
        """What other pods have against the nodes of a drawer."""
        if not self._topology_counts:
            return None
        for smallest, (number, topology_count) in zip(
            least, self._of[CountRole.SPREAD], strict=True
        ):
            count, constraint = seen[number], topology_count.constraint
            assert constraint is not None
            if count is None:
                return decision.NO_DOMAIN
            if count + constraint.itself - smallest > constraint.max_skew:
                return decision.UNEVEN
        near = self._of[CountRole.NEAR]
        if near:
            counts = [seen[number] for number, _ in near]
            if None in counts or (not first and not all(counts)):
                return decision.NOT_NEAR
        if any(seen[number] for number, _ in self._of[CountRole.AWAY]):
            return decision.TOO_NEAR
        if any(seen[number] for number, _ in self._of[CountRole.UNWELCOME]):
            return decision.UNWELCOME
        return None
