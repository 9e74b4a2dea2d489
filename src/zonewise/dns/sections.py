"""The records of an answer as bytes, once for all who ask that name and type.

What differs between two questions of one name and type is little: the id, flags, how the name is
spelled (resolvers draw its case at random, 0x20), whether there is an OPT record, and how long the
answer may be. So records are written once, as they come behind the question, and
``Sections.answer`` puts a header, the question as it was sent and an OPT record around them.

*Spelling.* Owner names point to the question, so they follow it. A name that may not be compressed
(the target of an SRV record, RFC 2782) can end in the question's domain; where it does is noted,
and the question's spelling is put there, as CoreDNS does it.

*Length.* Pointers lead backwards, so any first records are an answer. What is too long for one
client is cut there behind the last record that fits, and TC says so.

*Bounded.* ``packing`` takes records one by one and stops at the first that does not fit: of 20,000
records those are made that are sent. It is a generator, so that a long answer can be written in
slices (``zonewise.dns.slices``).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from struct import Struct as Layout

from zonewise.dns.names import ROOT, suffixes
from zonewise.dns.slices import Steps, finished
from zonewise.dns.wire import (
    AA,
    AD,
    CD,
    DO,
    HEADER,
    HEADER_LAYOUT,
    MAX_SIZE,
    OPCODE,
    OUR_SIZE,
    QR,
    QUESTION_LAYOUT,
    RA,
    RD,
    RECORD_LAYOUT,
    TC,
    Edns,
    Message,
    Question,
    RecordType,
    ResourceRecord,
)

ANSWER, AUTHORITY, ADDITIONAL = range(3)
SLICE = 128
"""How many records are written in one slice."""

Placed = tuple[int, ResourceRecord]
"""A record and its section; sections come in order."""

_TTL = Layout("!I")
_BEFORE_TTL = 4
_COMPRESSED = frozenset(
    {RecordType.NS, RecordType.CNAME, RecordType.SOA, RecordType.PTR, RecordType.MX}
)
"""Types in whose data names may be compressed (RFC 3597, 4)."""


@dataclass(frozen=True, slots=True)
class Sections:
    """Records behind a question that ends at ``start``; places are counted from the header."""

    start: int
    data: bytes = b""
    ends: Sequence[int] = ()
    """Where each record ends."""

    ttls: Sequence[int] = ()
    """Where each record has its time to live."""

    counts: tuple[int, int] = (0, 0)
    """How many records are answers, and how many authority."""

    rcode: int = 0
    flags: int = 0
    spelled: Sequence[int] = ()
    """Where the domain of the question is written out, and ``domain`` how long it is."""

    domain: int = 0

    @classmethod
    def empty(cls, name: bytes, rcode: int) -> Sections:
        """No records behind a question for a name."""
        return cls(HEADER + len(name) + QUESTION_LAYOUT.size, rcode=rcode)

    @property
    def size(self) -> int:
        """About how many bytes it takes in memory."""
        return 400 + len(self.data) + 2 * (len(self.ends) + len(self.ttls) + len(self.spelled))

    def answer(
        self,
        question: Question,
        limit: int,
        *,
        option: bytes = b"",
        age: int = 0,
        longest: int | None = None,
    ) -> bytes:
        """The answer to a question, at most ``limit`` bytes long; ``option`` goes into its OPT.

        Times to live are counted down by ``age`` seconds, or are at most ``longest``.
        """
        edns = _opt(question.edns, self.rcode, option) if question.edns else b""
        flags = QR | RA | self.flags | self.rcode & 0xF | question.flags & (OPCODE | RD | CD)
        room = limit - len(edns)
        data: bytes | bytearray = self.data
        count = len(self.ends)
        if self.start + len(data) > room:
            count = bisect_right(self.ends, room)
            data = data[: self.ends[count - 1] - self.start if count else 0]
            flags |= TC
        if self.spelled or age or longest is not None:
            data = bytearray(data)
            self._write_domain(data, question.name)
            if age or longest is not None:
                self._count_down(data, count, age, longest)
        answers = min(count, self.counts[0])
        authority = min(count - answers, self.counts[1])
        additional = count - answers - authority + bool(edns)
        head = HEADER_LAYOUT.pack(question.id, flags, 1, answers, authority, additional)
        type_and_class = QUESTION_LAYOUT.pack(question.type, question.cls)
        return b"".join((head, question.name, type_and_class, data, edns))

    def _write_domain(self, data: bytearray, name: bytes) -> None:
        domain = name[len(name) - self.domain :]
        end = bisect_left(self.spelled, self.start + len(data))
        for offset in self.spelled[:end]:
            at = offset - self.start
            data[at : at + self.domain] = domain

    def _count_down(self, data: bytearray, count: int, age: int, longest: int | None) -> None:
        for offset in self.ttls[:count]:
            at = offset - self.start
            ttl = _TTL.unpack_from(data, at)[0]
            if longest is not None:
                ttl = min(ttl, longest) or longest
            _TTL.pack_into(data, at, max(0, ttl - age))


def packing(
    name: bytes,
    records: Iterable[Placed],
    limit: int,
    *,
    rcode: int = 0,
    flags: int = 0,
    domain: bytes = b"",
) -> Steps[Sections]:
    """Write records behind a question for a name, as long as they fit.

    Where a name that is not compressed ends in ``domain``, the question's spelling is kept.
    """
    out = bytearray(HEADER) + name + bytes(QUESTION_LAYOUT.size)
    start = len(out)
    known: dict[bytes, int] = {}
    _remember(known, name, HEADER)
    ends, ttls, spelled = array("H"), array("H"), array("H")
    counts = [0, 0, 0]
    for number, (section, record) in enumerate(records, 1):
        before = len(out)
        ttl, marks = _write_record(out, record, known, domain)
        if len(out) > limit:
            del out[before:]
            flags |= TC
            break
        counts[section] += 1
        ends.append(len(out))
        ttls.append(ttl)
        spelled.extend(marks)
        if not number % SLICE:
            yield
    data = bytes(out[start:])
    totals = (counts[ANSWER], counts[AUTHORITY])
    return Sections(start, data, ends, ttls, totals, rcode, flags, spelled, len(domain))


def placed(message: Message) -> Iterator[Placed]:
    """The records of a message."""
    return chain(
        zip(repeat(ANSWER), message.answers),
        zip(repeat(AUTHORITY), message.authority),
        zip(repeat(ADDITIONAL), message.additional),
    )


def flags_of(message: Message) -> int:
    """The flags of a message, without its code."""
    return (AA if message.aa else 0) | (TC if message.tc else 0) | (AD if message.ad else 0)


def pack(name: bytes, message: Message, limit: int = MAX_SIZE) -> Sections:
    """A message of few records behind a question for a name."""
    return finished(
        packing(name, placed(message), limit, rcode=message.rcode, flags=flags_of(message))
    )


def _opt(edns: Edns, rcode: int, option: bytes) -> bytes:
    ttl = (rcode >> 4) << 24 | (DO if edns.do else 0)
    return ROOT + RECORD_LAYOUT.pack(RecordType.OPT, OUR_SIZE, ttl, len(option)) + option


def _write_record(
    out: bytearray, record: ResourceRecord, known: dict[bytes, int], domain: bytes
) -> tuple[int, list[int]]:
    """Write a record; gives where its time to live is, and where ``domain`` is written out."""
    _write_name(out, record.name, known)
    ttl = len(out) + _BEFORE_TTL
    out += RECORD_LAYOUT.pack(record.type, record.cls, record.ttl, 0)
    start = len(out)
    out += record.head
    compress = record.type in _COMPRESSED
    marks = []
    for target in record.targets:
        if compress:
            _write_name(out, target, known)
        else:
            _remember(known, target, len(out))
            out += target
            if domain and target.endswith(domain):
                marks.append(len(out) - len(domain))
    out += record.tail
    out[start - 2 : start] = (len(out) - start).to_bytes(2, "big")
    return ttl, marks


def _write_name(out: bytearray, name: bytes, known: dict[bytes, int]) -> None:
    at = len(out)
    pointer = known.get(name)
    if pointer is not None:
        out += (0xC000 | pointer).to_bytes(2, "big")
        return
    for suffix in suffixes(name):
        pointer = known.get(suffix)
        if pointer is not None:
            out += name[: len(name) - len(suffix)]
            out += (0xC000 | pointer).to_bytes(2, "big")
            return
        offset = at + len(name) - len(suffix)
        if offset < 0x4000:
            known[suffix] = offset
    out += name


def _remember(known: dict[bytes, int], name: bytes, at: int) -> None:
    for suffix in suffixes(name):
        offset = at + len(name) - len(suffix)
        if suffix not in known and offset < 0x4000:
            known[suffix] = offset
