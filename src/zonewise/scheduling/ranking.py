"""All nodes in the order of how well they suit one wish, kept while pods come and go.

A node whose own verdict is no refusal lies in a drawer with all nodes that other pods treat alike:
same wide domains, same narrow counts, same taints and preferences. In a drawer the best is on top
of a heap. So to choose is to compare drawers, a few dozen, and not nodes, a thousand; and a pod
that comes moves one node. The answer is the same as if every node were asked: within a drawer all
that differs is the node's own score.

Ties go to the node with fewer pods, then to the smaller ``tie``, a hash of seed and name: never to
the one that happened to come first.

Entries of a heap that are not the newest of their node are skipped when they come up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from math import log

from zonewise.scheduling import decision
from zonewise.scheduling.decision import Refusal
from zonewise.scheduling.factor import Factor, Role
from zonewise.scheduling.fitness import TOP, Fitness, Verdict
from zonewise.scheduling.place import Place
from zonewise.scheduling.terms import HOSTNAME
from zonewise.scheduling.wish import Wish

TAINTS, PREFERENCES, SPREADING, NEIGHBOURS = 3, 2, 2, 2
"""How much each scaled score counts beside the node's own."""

Entry = tuple[int, int, int, str]
Seen = list[int | None]
_DrawerKey = tuple[tuple[str | None, ...], tuple[int | None, ...], int, int]
_Possible = Sequence[tuple["_Drawer", Seen, Entry, int]]
_NOBODY: frozenset[str] = frozenset()


class _Drawer:
    __slots__ = ("disliked", "heap", "key", "preferred", "size", "states", "wide")

    def __init__(self, key: _DrawerKey) -> None:
        self.key = key
        self.wide, self.states, self.disliked, self.preferred = key
        self.heap: list[Entry] = []
        self.size = 0


class _Row:
    __slots__ = (
        "counts",
        "domains",
        "drawer",
        "entry",
        "labels",
        "seen",
        "shape",
        "verdict",
        "wide",
    )

    def __init__(self, shape: int, labels: tuple[str | None, ...], verdict: Verdict) -> None:
        self.shape = shape
        self.labels = labels
        self.verdict = verdict
        self.counts = [0] * len(labels)
        self.seen: list[int] = []
        self.domains: list[str | None] = []
        self.wide: tuple[str | None, ...] = ()
        self.drawer: _Drawer | None = None
        self.entry: Entry | None = None


class Ranking:
    """The nodes as one wish sees them; ``itself`` if the pod is one of those it wants near."""

    def __init__(
        self,
        wish: Wish,
        fitness: Fitness,
        factors: Sequence[Factor],
        places: Mapping[str, Place],
        *,
        itself: bool,
    ) -> None:
        self.wish = wish
        self._itself = itself
        self.fitness = fitness
        self._places = places
        self._factors = sorted(factors, key=lambda factor: factor.role)
        self._narrow = [factor for factor in self._factors if factor.narrow]
        self._of: dict[Role, list[tuple[int, Factor]]] = {role: [] for role in Role}
        wide: dict[str, int] = {}
        each = self._each = tuple(enumerate(self._factors))
        for number, factor in each:
            self._of[factor.role].append((number, factor))
            if not factor.narrow:
                factor.slot = wide.setdefault(factor.key, len(wide))
        for slot, factor in enumerate(self._narrow):
            factor.slot = slot
        self._sources = tuple({id(one.counts): one.counts for one in self._factors}.values())
        self._wide_keys = tuple(wide)
        self._spread_keys = tuple(factor.key for _, factor in self._of[Role.SPREAD])
        self._even_keys = tuple(factor.key for _, factor in self._of[Role.EVEN])
        self._rows: dict[str, _Row] = {}
        self._drawers: dict[_DrawerKey, _Drawer] = {}
        names = wish.needs.names
        self._scope = None if names is None or self._factors else names
        self.refresh(places)

    def refresh(self, names: Iterable[str]) -> None:
        """Look again at these nodes; they may have changed, come or gone."""
        scope, again = self._scope, dict[str, None]()
        places, rows, verdict_of = self._places, self._rows, self.fitness.of
        for name in names:
            if scope is not None and name not in scope:
                continue
            place = places.get(name)
            row = rows.get(name)
            if place is None:
                if row is not None:
                    del rows[name]
                    self._leave(name, row, again)
                    self.fitness.forget(name)
                continue
            verdict = verdict_of(place)
            if (
                row is not None
                and row.drawer is not None
                and row.shape == place.shape
                and verdict.refusal is None
                and row.seen == [counts.get(name, 0) for counts in self._sources]
            ):
                row.verdict = verdict
                entry = (-verdict.score, len(place.tenants), place.tie, name)
                if entry != row.entry:
                    self._push(row, row.drawer, entry)
                continue
            self._count(place, row, verdict, again)
            again[name] = None
        for name in again:
            row = self._rows.get(name)
            if row is not None:
                self._file(self._places[name], row)

    def refusal(self, name: str) -> Refusal | None:
        """Why a node cannot take the pod, or None."""
        row = self._rows.get(name)
        if row is None:
            return decision.NOT_NAMED
        if row.drawer is None:
            return row.verdict.refusal
        return self._against(self._seen(row.drawer), self._least(), self._first())

    def refusals(self) -> dict[str, Refusal]:
        """Why each node that cannot take the pod cannot."""
        least, first = self._least(), self._first()
        said = {
            drawer.key: self._against(self._seen(drawer), least, first)
            for drawer in self._drawers.values()
        }
        found: dict[str, Refusal] = {}
        for name in self._places:
            row = self._rows.get(name)
            if row is None:
                refusal: Refusal | None = decision.NOT_NAMED
            elif row.drawer is None:
                refusal = row.verdict.refusal
            else:
                refusal = said[row.drawer.key]
            if refusal is not None:
                found[name] = refusal
        return found

    def best(self, excluded: Collection[str] = _NOBODY) -> tuple[str, int] | None:
        """The node the pod goes to, and its score; None if no node can take it."""
        least, first = self._least(), self._first()
        possible: list[tuple[_Drawer, Seen, Entry, int]] = []
        for drawer in tuple(self._drawers.values()):
            seen = self._seen(drawer)
            if self._against(seen, least, first) is None:
                top, size = self._top(drawer, excluded)
                if top is not None:
                    possible.append((drawer, seen, top, size))
        if not possible:
            return None
        winner: tuple[int, int, int, str] | None = None
        for (_, _, top, _), extra in zip(possible, self._extras(possible), strict=True):
            candidate = (top[0] - extra, top[1], top[2], top[3])
            if winner is None or candidate < winner:
                winner = candidate
        assert winner is not None
        return winner[3], -winner[0]

    def _count(
        self, place: Place, row: _Row | None, verdict: Verdict, again: dict[str, None]
    ) -> None:
        """Bring the counts of a node's domains up to date."""
        name = place.name
        if row is None or row.shape != place.shape:
            if row is not None:
                self._leave(name, row, again)
            row = self._rows[name] = self._join(place, verdict)
        row.verdict = verdict
        row.seen = [counts.get(name, 0) for counts in self._sources]
        counts = row.counts
        for number, factor in self._each:
            count = factor.counts.get(name, 0)
            change = count - counts[number]
            if change:
                counts[number] = count
                domain = row.domains[number]
                if domain is not None:
                    factor.sums[domain] += change
                    if factor.narrow:
                        again.update(dict.fromkeys(factor.nodes[domain]))

    def _join(self, place: Place, verdict: Verdict) -> _Row:
        labels = place.labels
        row = _Row(place.shape, tuple(labels.get(one.key) for one in self._factors), verdict)
        row.wide = tuple(labels.get(key) for key in self._wide_keys)
        whole = {
            Role.SPREAD: all(key in labels for key in self._spread_keys),
            Role.EVEN: not self.wish.strict or all(key in labels for key in self._even_keys),
        }
        for factor, label in zip(self._factors, row.labels, strict=True):
            counted = whole.get(factor.role, True) and factor.counted(verdict.standing)
            domain = label if counted else None
            row.domains.append(domain)
            factor.join(place.name, label, domain)
        return row

    def _leave(self, name: str, row: _Row, again: dict[str, None]) -> None:
        for number, factor in enumerate(self._factors):
            label = row.labels[number]
            factor.leave(name, label, row.domains[number], row.counts[number])
            if factor.narrow and label is not None:
                again.update(dict.fromkeys(factor.nodes.get(label, ())))
        if row.drawer is not None:
            self._take_out(row)

    def _file(self, place: Place, row: _Row) -> None:
        """Lay a node into its drawer."""
        verdict = row.verdict
        if verdict.refusal is not None:
            if row.drawer is not None:
                self._take_out(row)
            return
        states = tuple(
            [
                factor.state(row.labels[number], row.counts[number])
                for number, factor in enumerate(self._factors)
                if factor.narrow
            ]
        )
        standing = verdict.standing
        key = (row.wide, states, standing.disliked, standing.preferred)
        entry = (-verdict.score, len(place.tenants), place.tie, place.name)
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
        self._push(row, drawer, entry)

    def _push(self, row: _Row, drawer: _Drawer, entry: Entry) -> None:
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

    def _newest(self, drawer: _Drawer, entry: Entry) -> bool:
        row = self._rows.get(entry[3])
        return row is not None and row.drawer is drawer and row.entry == entry

    def _top(self, drawer: _Drawer, excluded: Collection[str]) -> tuple[Entry | None, int]:
        """The best of a drawer, and how many there are."""
        heap, size, aside = drawer.heap, drawer.size, list[Entry]()
        top = None
        while heap:
            entry = heap[0]
            if not self._newest(drawer, entry):
                heappop(heap)
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
        for factor in self._factors:
            if factor.narrow:
                seen.append(states[factor.slot])
            else:
                label = wide[factor.slot]
                seen.append(None if label is None else factor.sums.get(label, 0))
        return seen

    def _least(self) -> list[int]:
        return [factor.least() for _, factor in self._of[Role.SPREAD]]

    def _first(self) -> bool:
        """Whether the pod is the first of those it wants to be near to: then it may go anywhere."""
        near = self._of[Role.NEAR]
        return self._itself and not any(any(factor.sums.values()) for _, factor in near)

    def _against(self, seen: Seen, least: Sequence[int], first: bool) -> Refusal | None:
        """What other pods have against the nodes of a drawer."""
        if not self._factors:
            return None
        for smallest, (number, factor) in zip(least, self._of[Role.SPREAD], strict=True):
            count, constraint = seen[number], factor.constraint
            assert constraint is not None
            if count is None:
                return decision.NO_DOMAIN
            if count + constraint.itself - smallest > constraint.max_skew:
                return decision.UNEVEN
        near = self._of[Role.NEAR]
        if near:
            counts = [seen[number] for number, _ in near]
            if None in counts or (not first and not all(counts)):
                return decision.NOT_NEAR
        if any(seen[number] for number, _ in self._of[Role.AWAY]):
            return decision.TOO_NEAR
        if any(seen[number] for number, _ in self._of[Role.UNWELCOME]):
            return decision.UNWELCOME
        return None

    def _extras(self, possible: _Possible) -> Iterator[int]:
        """What each drawer gets beside the scores of its nodes, scaled over all drawers."""
        if len(possible) == 1:
            yield 0
            return
        dislike = max(drawer.disliked for drawer, *_ in possible)
        prefer = max(drawer.preferred for drawer, *_ in possible)
        even = self._evenness(possible)
        liked = self._liking(possible)
        for (drawer, *_), spread, like in zip(possible, even, liked, strict=True):
            extra = SPREADING * spread + NEIGHBOURS * like
            if dislike:
                extra += TAINTS * (TOP - TOP * drawer.disliked // dislike)
            if prefer:
                extra += PREFERENCES * (TOP * drawer.preferred // prefer)
            yield extra

    def _evenness(self, possible: _Possible) -> list[int]:
        factors = self._of[Role.EVEN]
        if not factors:
            return [0] * len(possible)
        strict = self.wish.strict
        judged = [
            not strict or all(seen[number] is not None for number, _ in factors)
            for _, seen, _, _ in possible
        ]
        weights: list[tuple[int, float, int]] = []
        for number, factor in factors:
            if factor.key == HOSTNAME:
                domains = sum(size for (*_, size), use in zip(possible, judged, strict=True) if use)
            else:
                domains = len(
                    {
                        drawer.wide[factor.slot] or ""
                        for (drawer, *_), use in zip(possible, judged, strict=True)
                        if use
                    }
                )
            assert factor.constraint is not None
            weights.append((number, log(domains + 2), factor.constraint.max_skew - 1))
        raw: list[int] = []
        for (_, seen, _, _), use in zip(possible, judged, strict=True):
            score = 0.0
            if use:
                for number, weight, slack in weights:
                    count = seen[number]
                    if count is not None:
                        score += count * weight + slack
            raw.append(int(score + 0.5) if use else -1)
        known = [score for score in raw if score >= 0]
        if not known:
            return [0] * len(possible)
        low, high = min(known), max(known)
        return [
            0 if score < 0 else TOP * (high + low - score) // high if high else TOP for score in raw
        ]

    def _liking(self, possible: _Possible) -> list[int]:
        factors = self._of[Role.LIKE]
        if not factors:
            return [0] * len(possible)
        raw = [
            sum(factor.weight * (seen[number] or 0) for number, factor in factors)
            for _, seen, _, _ in possible
        ]
        low, high = min(raw), max(raw)
        if low == high:
            return [0] * len(possible)
        return [int(TOP * ((score - low) / (high - low))) for score in raw]
