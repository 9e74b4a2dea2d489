"""A cache of answers about the cluster, in two forms.

*Sections* by name in lower case, type and whether they are for a stream: what an answer is made of,
for every spelling, option and size (``zonewise.dns.sections``), so varying those does not make an
answer again. *Packets* by the whole question without its id: most questions are repeated byte for
byte, so the value is the finished packet, and answering costs one look-up. Packets are made of
sections, for questions in lower case and without options, which can be expected to come again.

Several orders of the same records take turns, for clients that use the first one. An answer that
depends on the client's location is a small dictionary by the number of the location; locations with
the same records share bytes.

An answer is valid as long as nothing it was made from has changed, not for a time. Each entry has
its tokens (``zonewise.dns.zone``), and an index leads from a token to entries, so a change drops
exactly those that it concerns, before the next packet is read. *Bounded*: each form by number and
by bytes; the oldest go first. A client that varies its questions evicts packets, not sections.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from zonewise.dns.directory import ChangeToken
from zonewise.dns.sections import Sections

ENTRIES = 100_000
BYTES = 64 << 20
SIZES = (0, 100, 200, 300, 400, 511, 1023, 2047, 4095, 8291, 16_000, 32_000, 48_000, 65_535)
TYPES = {
    1: "A",
    2: "NS",
    5: "CNAME",
    6: "SOA",
    12: "PTR",
    15: "MX",
    16: "TXT",
    28: "AAAA",
    33: "SRV",
    35: "NAPTR",
    43: "DS",
    48: "DNSKEY",
    64: "SVCB",
    65: "HTTPS",
    251: "IXFR",
    252: "AXFR",
    255: "ANY",
}
_OVERHEAD = 1000
"""About what an entry costs besides its question and its answers: mostly its tokens."""

T = TypeVar("T")

SectionsKey: TypeAlias = tuple[bytes, int, bool]
"""A name in lower case, a type, and whether the answer goes over a stream."""

AnswerKey: TypeAlias = bytes | SectionsKey
"""The key of a packet, or of sections."""


class AnswerKind(NamedTuple):
    """The labels by which answers are counted.

    Few values each, so that odd questions cannot make many of them: the type is a name or
    ``other``, sizes are the upper bounds they are within.
    """

    stream: bool
    zone: str
    type: str
    rcode: int
    do: bool
    question_size: int
    answer_size: int


def kind_of(
    zone: str,
    type: int,
    rcode: int,
    *,
    stream: bool,
    do: bool,
    question_size: int,
    answer_size: int,
) -> AnswerKind:
    """The kind of an answer."""
    name = TYPES.get(type, "other")
    return AnswerKind(stream, zone, name, rcode, do, _bound(question_size), _bound(answer_size))


def _bound(size: int) -> int:
    return SIZES[bisect_left(SIZES, size)]


class Turns(Generic[T]):
    """The orders of one answer, in turn: the first, and those that ``write`` makes of a number.

    Each is written when its turn first comes: what changes often is seldom queried so often that
    all are needed, and no client has to wait until ten packets are written. ``size`` is about how
    many bytes one takes.
    """

    __slots__ = ("_orders", "_write", "many", "next", "size")

    def __init__(
        self, first: T, size: int, many: int = 1, write: Callable[[int], T] | None = None
    ) -> None:
        self.many = many if write is not None else 1
        self.size = size * self.many
        self._orders = [first]
        self._write = write
        self.next = self._turns().__next__

    def order(self, turn: int) -> T:
        """One of the orders, by its number."""
        orders = self._orders
        while len(orders) <= turn and self._write is not None:
            orders.append(self._write(len(orders)))
        return orders[turn]

    def _turns(self) -> Iterator[T]:
        for turn in range(self.many):
            yield self.order(turn)
        self._write = None  # with everything its closure refers to
        yield from cycle(self._orders)


class Tally:
    """How many answers of a kind were sent; shared by all questions that have it."""

    __slots__ = ("hits",)

    def __init__(self) -> None:
        self.hits = 0


class CachedAnswer:
    """One question: its turns, or its turns by location."""

    __slots__ = ("basis", "by_location", "shared", "size", "tally", "turns")

    def __init__(
        self, tally: Tally, basis: frozenset[ChangeToken], turns: Turns[Any] | None
    ) -> None:
        self.tally = tally
        self.basis = basis
        self.turns = turns
        self.by_location: dict[int, Turns[Any]] = {}
        self.shared: dict[object, Turns[Any]] = {}
        self.size = _OVERHEAD + (turns.size if turns else 0)


class CachedSections(NamedTuple):
    """The sections of an answer, what they are made from, and whether they are for a location."""

    turns: Turns[Sections]
    basis: frozenset[ChangeToken]
    near: bool


class ClusterCache:
    """All entries. ``table`` has packets and is read by the packet loop; ``get`` reads sections.

    ``entries`` and ``size`` are half for packets and half for sections.
    """

    def __init__(self, *, entries: int = ENTRIES, size: int = BYTES) -> None:
        self.table: dict[AnswerKey, CachedAnswer] = {}
        self.sections: dict[AnswerKey, CachedAnswer] = {}
        self.dropped = 0
        self.evicted = 0
        self._sizes = [0, 0]
        self._most = entries // 2
        self._room = size // 2
        self._begun = 1 << 16
        self._by_token: dict[ChangeToken, dict[AnswerKey, None]] = {}
        self._tallies: dict[AnswerKind, Tally] = {}

    @property
    def size(self) -> int:
        """About how many bytes all entries take."""
        return sum(self._sizes)

    def begin(self, basis: frozenset[ChangeToken]) -> SectionsKey:
        """Note that something is made from these over several turns of the event loop."""
        self._begun += 1
        key = (b"", self._begun, True)
        self._add(key, CachedAnswer(Tally(), basis, None))
        return key

    def end(self, key: SectionsKey) -> bool:
        """Whether nothing passed to ``begin`` has changed since."""
        unchanged = key in self.sections
        self._remove(key)
        return unchanged

    def get(self, key: SectionsKey, at: int) -> CachedSections | None:
        """The answer for a location, by its number."""
        entry = self.sections.get(key)
        if entry is None:
            return None
        turns = entry.turns or entry.by_location.get(at)
        near = entry.turns is None
        return None if turns is None else CachedSections(turns, entry.basis, near=near)

    def keep(
        self,
        key: AnswerKey,
        basis: frozenset[ChangeToken],
        turns: Turns[Any],
        kind: AnswerKind | None = None,
    ) -> None:
        """Keep an answer that is the same for all clients; packets are counted by their kind."""
        self._remove(key)
        self._add(key, CachedAnswer(self._tally(kind), basis, turns))

    def keep_near(
        self,
        key: AnswerKey,
        basis: frozenset[ChangeToken],
        turns: Turns[Any],
        kind: AnswerKind | None = None,
        *,
        at: int,
        same: object,
    ) -> None:
        """Keep an answer for one location; ``same`` is equal where the records are."""
        entry = self._find_table(key)[0].get(key)
        if entry is None or entry.turns is not None or entry.basis != basis:
            self._remove(key)
            entry = CachedAnswer(self._tally(kind), basis, None)
            self._add(key, entry)
        known = entry.shared.setdefault(same, turns)
        grown = 100 + (turns.size if known is turns else 0)
        entry.by_location[at] = known
        entry.size += grown
        self._grow(key, grown)

    def drop(self, tokens: Iterable[ChangeToken]) -> None:
        """Drop the answers that were made from any of these."""
        for token in tokens:
            for question in tuple(self._by_token.get(token, ())):
                self._remove(question)
                self.dropped += 1

    def clear(self) -> None:
        """Drop everything."""
        for question in (*self.table, *self.sections):
            self._remove(question)

    def counts(self) -> Counter[AnswerKind]:
        """How often each kind of answer was given out of this table."""
        return Counter({kind: tally.hits for kind, tally in self._tallies.items()})

    def _tally(self, kind: AnswerKind | None) -> Tally:
        if kind is None:
            return Tally()
        tally = self._tallies.get(kind)
        if tally is None:
            tally = self._tallies[kind] = Tally()
        return tally

    def _find_table(self, key: AnswerKey) -> tuple[dict[AnswerKey, CachedAnswer], int]:
        """The table that a key is in, and its number."""
        return (self.table, 0) if isinstance(key, bytes) else (self.sections, 1)

    def _add(self, key: AnswerKey, entry: CachedAnswer) -> None:
        self._find_table(key)[0][key] = entry
        entry.size += len(key[0] if isinstance(key, tuple) else key)
        for token in entry.basis:
            self._by_token.setdefault(token, {})[key] = None
        self._grow(key, entry.size)

    def _grow(self, key: AnswerKey, size: int) -> None:
        table, number = self._find_table(key)
        self._sizes[number] += size
        while len(table) > self._most or (self._sizes[number] > self._room and len(table) > 1):
            self._remove(next(iter(table)))
            self.evicted += 1

    def _remove(self, key: AnswerKey) -> None:
        table, number = self._find_table(key)
        entry = table.pop(key, None)
        if entry is None:
            return
        self._sizes[number] -= entry.size
        for token in entry.basis:
            users = self._by_token[token]
            users.pop(key, None)
            if not users:
                del self._by_token[token]
