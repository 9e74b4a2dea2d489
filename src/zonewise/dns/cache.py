"""Answers of other servers, kept for their time to live.

An answer is kept as long as its shortest record, at most ``LONGEST``; a negative answer no longer
than its SOA record says, too (RFC 2308), and at most ``LONGEST_DENIAL``. An alias that leads to
nothing is a negative answer. Failures are not kept. Answers go out with their time to live counted
down.

*Stale* answers are kept for some more time if configured (RFC 8767): they are used, with a short
time to live, only when no upstream answers. *Bounded*: by number, and by the bytes that they take
in memory, because one answer can have thousands of records; the least recently used go first. Times
to live are counted down once a second and not for each client.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from zonewise.dns.wire import CD, RD, Message, Question, Rcode, RecordType, ResourceRecord

ENTRIES = 10_000
BYTES = 64 << 20
LONGEST = 3600
LONGEST_DENIAL = 300
STALE_TTL = 30
RECORD_BYTES = 300
"""What a record takes beside its name and data."""

CacheKey: TypeAlias = tuple[bytes, int, bool, int]


@dataclass(slots=True)
class _Entry:
    message: Message
    since: float
    until: float
    size: int
    aged: Message
    age: int = 0


class AnswerCache:
    """Answers by name, type and the flags that are sent on; times are seconds of any steady clock."""

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

    def get(self, question: Question, now: float) -> Message | None:
        """What is known and still true."""
        entry = self._entries.get(cache_key(question))
        if entry is None or now >= entry.until:
            self.misses += 1
            return None
        self._entries.move_to_end(cache_key(question))
        if entry.message.answers:
            self.hits += 1
        else:
            self.denial_hits += 1
        age = int(now - entry.since)
        if age != entry.age:
            entry.aged, entry.age = _aged(entry.message, age), age
        return entry.aged

    def get_stale(self, question: Question, now: float) -> Message | None:
        """An expired answer that is not too old, for when no upstream answers."""
        entry = self._entries.get(cache_key(question))
        if entry is None or now >= entry.until + self._stale:
            return None
        self.served_stale += 1
        return _limited(entry.message, STALE_TTL)

    def put(self, question: Question, message: Message, now: float) -> None:
        """Keep an answer, if it may be kept."""
        life = _life(question.type, message)
        if life <= 0:
            return
        key = cache_key(question)
        before = self._entries.pop(key, None)
        if before is not None:
            self._bytes -= before.size
        size = _size(message)
        self._entries[key] = _Entry(message, now, now + life, size, message)
        self._bytes += size
        while len(self._entries) > self._most or self._bytes > self._most_bytes:
            _, oldest = self._entries.popitem(last=False)
            self._bytes -= oldest.size


def cache_key(question: Question) -> CacheKey:
    """What makes two questions the same for other servers."""
    do = question.edns is not None and question.edns.do
    return question.lower, question.type, do, question.flags & (RD | CD)


def _life(kind: int, message: Message) -> int:
    """How many seconds an answer to a question of a type may be kept."""
    if message.tc or message.rcode not in (Rcode.NOERROR, Rcode.NXDOMAIN):
        return 0
    records = (*message.answers, *message.authority, *message.additional)
    shortest = min((record.ttl for record in records), default=0)
    wanted = any(kind in (record.type, RecordType.ANY) for record in message.answers)
    if wanted and message.rcode == Rcode.NOERROR:
        return min(shortest, LONGEST)
    soa = next((one for one in message.authority if one.type == RecordType.SOA), None)
    if soa is None:
        return 0
    return min(shortest, int.from_bytes(soa.tail[-4:], "big"), LONGEST_DENIAL)


def _size(message: Message) -> int:
    """About how many bytes an answer takes in memory, with its copy that is counted down."""
    records = (*message.answers, *message.authority, *message.additional)
    return sum(
        RECORD_BYTES
        + len(record.name)
        + len(record.head)
        + sum(map(len, record.targets))
        + len(record.tail)
        for record in records
    )


def _aged(message: Message, seconds: int) -> Message:
    return _each(message, lambda record: max(0, record.ttl - seconds)) if seconds else message


def _limited(message: Message, ttl: int) -> Message:
    return _each(message, lambda record: min(record.ttl, ttl) or ttl)


def _each(message: Message, ttl: Callable[[ResourceRecord], int]) -> Message:
    def changed(records: tuple[ResourceRecord, ...]) -> tuple[ResourceRecord, ...]:
        return tuple(replace(record, ttl=ttl(record)) for record in records)

    return replace(
        message,
        answers=changed(message.answers),
        authority=changed(message.authority),
        additional=changed(message.additional),
    )
