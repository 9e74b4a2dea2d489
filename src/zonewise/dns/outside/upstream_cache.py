"""A cache of the answers of other servers, each for its time to live.

An answer is kept as long as its shortest record, at most ``LONGEST``; a negative answer no longer
than its SOA record says, too (RFC 2308), and at most ``LONGEST_DENIAL``. An alias that leads to
nothing is a negative answer. Failures are not kept. Answers go out with their time to live counted
down, of the records that are sent.

*Stale* answers are kept for some more time if configured (RFC 8767): they are used, with a short
time to live, only when no upstream answers. *Bounded*: by number, and by the bytes that they take
in memory, because one answer can have thousands of records; the least recently used go first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from zonewise.dns.outside.received import Received, answers_of
from zonewise.dns.sections import Sections
from zonewise.dns.wire import CD, RD, TC, Question, Rcode, ResourceRecord

ENTRIES = 10_000
BYTES = 64 << 20
LONGEST = 3600
LONGEST_DENIAL = 300
STALE_TTL = 30

CacheKey: TypeAlias = tuple[bytes, int, bool, int]


@dataclass(frozen=True, slots=True)
class OutsideAnswer:
    """An answer of an upstream as it is now; see ``Sections.answer``."""

    sections: Sections
    age: int = 0
    longest: int | None = None

    @classmethod
    def failed(cls, question: Question, rcode: int) -> OutsideAnswer:
        """No records, and why."""
        return cls(Sections.empty(question.name, rcode))

    def answer(self, question: Question, limit: int, option: bytes) -> bytes:
        """The answer to a question, in so many bytes."""
        return self.sections.answer(
            question, limit, option=option, age=self.age, longest=self.longest
        )

    def records(self, name: bytes) -> Iterator[ResourceRecord]:
        """The answers to a question for a name."""
        for record in answers_of(self.sections, name):
            ttl = record.ttl
            if self.longest is not None:
                ttl = min(ttl, self.longest) or self.longest
            yield replace(record, ttl=max(0, ttl - self.age))


@dataclass(frozen=True, slots=True)
class _Entry:
    sections: Sections
    since: float
    until: float
    size: int


class UpstreamCache:
    """Answers by name, type and flags that are sent on; times are seconds of any steady clock."""

    def __init__(
        self, *, entries: int = ENTRIES, most_bytes: int = BYTES, stale: float = 0.0
    ) -> None:
        self.hits = 0
        self.denial_hits = 0
        self.misses = 0
        self.served_stale = 0
        self._stale = stale
        self._most = entries
        self._most_bytes = most_bytes
        self._bytes = 0
        self._entries: OrderedDict[CacheKey, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, question: Question, now: float) -> OutsideAnswer | None:
        """The cached answer, if it has not expired."""
        key = cache_key(question)
        entry = self._entries.get(key)
        if entry is None or now >= entry.until:
            self.misses += 1
            return None
        self._entries.move_to_end(key)
        if entry.sections.counts[0]:
            self.hits += 1
        else:
            self.denial_hits += 1
        return OutsideAnswer(entry.sections, int(now - entry.since))

    def get_stale(self, question: Question, now: float) -> OutsideAnswer | None:
        """An expired answer that is not too old, for when no upstream answers."""
        entry = self._entries.get(cache_key(question))
        if entry is None or now >= entry.until + self._stale:
            return None
        self.served_stale += 1
        return OutsideAnswer(entry.sections, longest=STALE_TTL)

    def put(self, question: Question, received: Received, now: float) -> None:
        """Keep an answer, if it may be kept."""
        life = _compute_ttl(received)
        if life <= 0:
            return
        key, sections = cache_key(question), received.sections
        before = self._entries.pop(key, None)
        if before is not None:
            self._bytes -= before.size
        size = sections.size + len(question.lower)
        self._entries[key] = _Entry(sections, now, now + life, size)
        self._bytes += size
        while len(self._entries) > self._most or self._bytes > self._most_bytes:
            _, oldest = self._entries.popitem(last=False)
            self._bytes -= oldest.size


def cache_key(question: Question) -> CacheKey:
    """What makes two questions the same for other servers."""
    do = question.edns is not None and question.edns.do
    return question.lower, question.type, do, question.flags & (RD | CD)


def _compute_ttl(received: Received) -> int:
    """How many seconds an answer may be kept."""
    sections = received.sections
    if sections.flags & TC or sections.rcode not in (Rcode.NOERROR, Rcode.NXDOMAIN):
        return 0
    if received.answered and sections.rcode == Rcode.NOERROR:
        return min(received.shortest, LONGEST)
    if received.denial is None:
        return 0
    return min(received.shortest, received.denial, LONGEST_DENIAL)
