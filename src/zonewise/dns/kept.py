"""Encoded answers: bytes by the whole question without its id.

Most questions are repeated, so the value is the finished packet. Several orders of the same records
take turns, for clients that use the first one. An answer that depends on the client's place is a
small dictionary by the number of the place; places with the same records share bytes.

An answer is valid as long as nothing it was made from has changed, not for a time. Each entry has
its tokens (``zonewise.dns.zone``), and an index leads from a token to entries, so a change drops
exactly those that it concerns, before the next packet is read. *Bounded*: by number and by bytes;
the oldest go first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, repeat
from typing import NamedTuple, TypeAlias

from zonewise.dns.directory import ChangeToken

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
"""About what an entry costs besides its question, packets and records: mostly its tokens."""

_RECORD = 200
"""About what a record costs that is held until all packets are written."""


class AnswerKind(NamedTuple):
    """By what answers are counted.

    Few values each, so that odd questions cannot make many of them: the type is a name or
    ``other``, sizes are the upper bounds they are within.
    """

    stream: bool
    zone: str
    type: str
    rcode: int
    do: bool
    asked: int
    told: int


AnswerWriter: TypeAlias = Callable[[int], bytes]


def kind_of(
    zone: str, type: int, rcode: int, *, stream: bool, do: bool, asked: int, told: int
) -> AnswerKind:
    """The kind of an answer."""
    name = TYPES.get(type, "other")
    return AnswerKind(stream, zone, name, rcode, do, _bound(asked), _bound(told))


def _bound(size: int) -> int:
    return SIZES[bisect_left(SIZES, size)]


class Turns:
    """The packets of one answer, in turn: the first, and those that ``write`` makes of a number.

    Each is written when its turn first comes: what changes often is seldom queried so often that
    all are needed, and no client has to wait until ten packets are written. ``records`` is how many
    records are held for that.
    """

    __slots__ = ("next", "size")

    def __init__(
        self, first: bytes, many: int = 1, write: AnswerWriter | None = None, records: int = 0
    ) -> None:
        bodies: Iterator[bytes] = repeat(first)
        self.size = len(first)
        if write is not None and many > 1:
            bodies = _written(first, many, write)
            self.size = len(first) * many + _RECORD * records
        self.next = bodies.__next__


def _written(first: bytes, many: int, write: AnswerWriter) -> Iterator[bytes]:
    packets = [first]
    yield first
    while len(packets) < many:
        packets.append(write(len(packets)))
        yield packets[-1]
    del write
    yield from cycle(packets)


class Tally:
    """How many answers of a kind were sent; shared by all questions that have it."""

    __slots__ = ("hits",)

    def __init__(self) -> None:
        self.hits = 0


class Kept:
    """One question: its turns, or its turns by place."""

    __slots__ = ("basis", "places", "shared", "size", "tally", "turns")

    def __init__(self, tally: Tally, basis: frozenset[ChangeToken], turns: Turns | None) -> None:
        self.tally = tally
        self.basis = basis
        self.turns = turns
        self.places: dict[int, Turns] = {}
        self.shared: dict[object, Turns] = {}
        self.size = _OVERHEAD + (turns.size if turns else 0)


class KeptAnswers:
    """All entries. ``table`` is read by the packet loop; everything else changes it."""

    def __init__(self, *, entries: int = ENTRIES, size: int = BYTES) -> None:
        self.table: dict[bytes, Kept] = {}
        self.dropped = 0
        self.evicted = 0
        self.size = 0
        self._most = entries
        self._room = size
        self._by_token: dict[ChangeToken, dict[bytes, None]] = {}
        self._tallies: dict[AnswerKind, Tally] = {}

    def keep(
        self, question: bytes, kind: AnswerKind, basis: frozenset[ChangeToken], turns: Turns
    ) -> None:
        """Keep an answer that is the same for all clients."""
        self._remove(question)
        self._add(question, Kept(self._tally(kind), basis, turns))

    def keep_near(
        self,
        question: bytes,
        kind: AnswerKind,
        basis: frozenset[ChangeToken],
        place: int,
        same: object,
        turns: Turns,
    ) -> None:
        """Keep an answer for a place; ``same`` is equal where the records are."""
        entry = self.table.get(question)
        if entry is None or entry.turns is not None or entry.basis != basis:
            self._remove(question)
            entry = Kept(self._tally(kind), basis, None)
            self._add(question, entry)
        known = entry.shared.setdefault(same, turns)
        grown = 100 + (turns.size if known is turns else 0)
        entry.places[place] = known
        entry.size += grown
        self.size += grown
        self._fit()

    def drop(self, tokens: Iterable[ChangeToken]) -> None:
        """Drop what was made from any of these."""
        for token in tokens:
            for question in tuple(self._by_token.get(token, ())):
                self._remove(question)
                self.dropped += 1

    def clear(self) -> None:
        """Drop everything."""
        for question in tuple(self.table):
            self._remove(question)

    def counts(self) -> Counter[AnswerKind]:
        """How often each kind of answer was given out of this table."""
        return Counter({kind: tally.hits for kind, tally in self._tallies.items()})

    def _tally(self, kind: AnswerKind) -> Tally:
        found = self._tallies.get(kind)
        if found is None:
            found = self._tallies[kind] = Tally()
        return found

    def _add(self, question: bytes, entry: Kept) -> None:
        self.table[question] = entry
        entry.size += len(question)
        self.size += entry.size
        for token in entry.basis:
            self._by_token.setdefault(token, {})[question] = None
        self._fit()

    def _fit(self) -> None:
        while len(self.table) > self._most or (self.size > self._room and len(self.table) > 1):
            self._remove(next(iter(self.table)))
            self.evicted += 1

    def _remove(self, question: bytes) -> None:
        entry = self.table.pop(question, None)
        if entry is None:
            return
        self.size -= entry.size
        for token in entry.basis:
            users = self._by_token[token]
            users.pop(question, None)
            if not users:
                del self._by_token[token]
