"""Answers that are ready: bytes under the whole question without its id.

Most questions are asked again and again, so the value is the finished packet. Several orders of the
same records take turns, for clients that use the first one. An answer that depends on the asker's
place is a small dictionary by the number of the place; places with the same records share bytes.

An answer is valid as long as nothing it was made from has changed, not for a time. Each entry has
its tokens (``zonewise.dns.zone``), and an index leads from a token to entries, so a change drops
exactly those that it concerns, before the next packet is read. *Bounded*: by number and by bytes;
the oldest go first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import cycle, repeat
from typing import NamedTuple

from zonewise.dns.directory import Token

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
_OVERHEAD = 500
"""About what an entry costs besides its packets."""


class AnswerKind(NamedTuple):
    """By what answers are counted.

    Few values each, so that nobody can make many of them by asking odd questions: the type is a
    name or ``other``, sizes are the upper bounds they are within.
    """

    stream: bool
    zone: str
    type: str
    rcode: int
    do: bool
    asked: int
    told: int


def kind_of(
    zone: str, type: int, rcode: int, *, stream: bool, do: bool, asked: int, told: int
) -> AnswerKind:
    """The kind of an answer."""
    name = TYPES.get(type, "other")
    return AnswerKind(stream, zone, name, rcode, do, _bound(asked), _bound(told))


def _bound(size: int) -> int:
    return SIZES[bisect_left(SIZES, size)]


class Turns:
    """The packets of one answer, in turn."""

    __slots__ = ("next", "size")

    def __init__(self, packets: tuple[bytes, ...]) -> None:
        bodies: Iterator[bytes] = repeat(packets[0]) if len(packets) == 1 else cycle(packets)
        self.next = bodies.__next__
        self.size = sum(map(len, packets))


class Kept:
    """One question: its turns, or its turns by place."""

    __slots__ = ("basis", "hits", "kind", "places", "shared", "size", "turns")

    def __init__(self, kind: AnswerKind, basis: frozenset[Token], turns: Turns | None) -> None:
        self.kind = kind
        self.basis = basis
        self.turns = turns
        self.places: dict[int, Turns] = {}
        self.shared: dict[object, Turns] = {}
        self.hits = 0
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
        self._by_token: dict[Token, dict[bytes, None]] = {}
        self._past: Counter[AnswerKind] = Counter()

    def keep(
        self, question: bytes, kind: AnswerKind, basis: frozenset[Token], turns: Turns
    ) -> None:
        """Keep an answer that is the same for everybody."""
        self._remove(question)
        self._add(question, Kept(kind, basis, turns))

    def keep_near(
        self,
        question: bytes,
        kind: AnswerKind,
        basis: frozenset[Token],
        place: int,
        same: object,
        turns: Turns,
    ) -> None:
        """Keep an answer for a place; ``same`` is equal where the records are."""
        entry = self.table.get(question)
        if entry is None or entry.turns is not None or entry.basis != basis:
            self._remove(question)
            entry = Kept(kind, basis, None)
            self._add(question, entry)
        known = entry.shared.setdefault(same, turns)
        grown = 100 + (turns.size if known is turns else 0)
        entry.places[place] = known
        entry.size += grown
        self.size += grown
        self._fit()

    def drop(self, tokens: Iterable[Token]) -> None:
        """Forget what was made from any of these."""
        for token in tokens:
            for question in tuple(self._by_token.get(token, ())):
                self._remove(question)
                self.dropped += 1

    def clear(self) -> None:
        """Forget everything."""
        for question in tuple(self.table):
            self._remove(question)

    def counts(self) -> Counter[AnswerKind]:
        """How often each kind of answer was given out of this table."""
        found = self._past.copy()
        for entry in self.table.values():
            found[entry.kind] += entry.hits
        return found

    def _add(self, question: bytes, entry: Kept) -> None:
        self.table[question] = entry
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
        if entry.hits:
            self._past[entry.kind] += entry.hits
        for token in entry.basis:
            users = self._by_token[token]
            users.pop(question, None)
            if not users:
                del self._by_token[token]
