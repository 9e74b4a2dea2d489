"""Answers of other servers: checked, and passed on as the bytes they came in.

To pass an answer on it is enough to know where its records end, where their times to live are, and
that its names are valid: pointers lead backwards, so there is no loop, and not into the header,
which will be another one. Each byte of a name is looked at once, however many names point to it, so
the work is in proportion to the message, and ``reading`` can be done in slices.

An OPT record concerns only that server and us, so it is left out, with what may follow it: pointers
count from the beginning of a message, and nothing in it can be moved.

Records are taken apart only where an alias of the cluster leads to them, as many as are sent.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from struct import error as layout_error

from zonewise.dns.names import LABEL_LIMIT, NAME_LIMIT
from zonewise.dns.sections import ADDITIONAL, ANSWER, AUTHORITY, SLICE, Sections
from zonewise.dns.slices import Steps
from zonewise.dns.wire import (
    AD,
    HEADER,
    HEADER_LAYOUT,
    POINTER,
    QR,
    QUESTION_LAYOUT,
    RECORD_LAYOUT,
    TC,
    Malformed,
    Question,
    RecordType,
    ResourceRecord,
)

POINTERS = 127
"""How many pointers a name may have: as many as labels, each of which may be shared."""

ALL_POINTERS = 50_000
"""How many pointers the names of a message may have together."""

_NAMES_IN = {
    RecordType.NS: (0, 1),
    RecordType.CNAME: (0, 1),
    RecordType.SOA: (0, 2),
    RecordType.PTR: (0, 1),
    14: (0, 2),  # MINFO
    RecordType.MX: (2, 1),
    17: (0, 2),  # RP
    18: (2, 1),  # AFSDB
    RecordType.SRV: (6, 1),
    36: (2, 1),  # KX
    39: (0, 1),  # DNAME
}
"""Types whose data has names in it: how many bytes come before them, and how many names."""


@dataclass(frozen=True, slots=True)
class Received:
    """An answer, and how long it is valid."""

    sections: Sections
    shortest: int = 0
    """The shortest time to live of its records."""

    answered: bool = False
    """Whether there is a record of the requested type."""

    denial: int | None = None
    """For how long its SOA record allows a denial to be cached."""

    @property
    def rcode(self) -> int:
        """How the question ended."""
        return self.sections.rcode


def is_answer(data: bytes, question: Question, identity: int) -> bool:
    """Whether a message repeats a question, with its id."""
    end = HEADER + len(question.name)
    try:
        ours = HEADER_LAYOUT.unpack_from(data)
        repeated = QUESTION_LAYOUT.unpack_from(data, end)
    except layout_error:
        return False
    return (
        ours[0] == identity
        and bool(ours[1] & QR)
        and ours[2] == 1
        and data[HEADER:end].lower() == question.lower
        and repeated == (question.type, question.cls)
    )


def read_failure(data: bytes) -> tuple[int, int] | None:
    """Id and code of an answer without a question; None for any other message."""
    if len(data) < HEADER:
        return None
    identity, flags, questions, *_ = HEADER_LAYOUT.unpack_from(data)
    return (identity, flags & 0xF) if flags & QR and not questions else None


def reading(data: bytes, question: Question) -> Steps[Received]:
    """An answer that repeats a question; ``Malformed`` if its records are invalid."""
    start = at = HEADER + len(question.name) + QUESTION_LAYOUT.size
    _, flags, _, *counts = HEADER_LAYOUT.unpack_from(data)
    names = _Names(data)
    names.end(HEADER)
    ends, ttls = array("H"), array("H")
    taken = [0, 0, 0]
    shortest, answered, denial, high = 1 << 32, False, None, 0
    try:
        for section in (ANSWER, AUTHORITY, ADDITIONAL):
            for _ in range(counts[section]):
                fields = names.end(at)
                kind, _, ttl, length = RECORD_LAYOUT.unpack_from(data, fields)
                if kind == RecordType.OPT:
                    if section != ADDITIONAL:
                        raise Malformed("an OPT among answers")
                    high = ttl >> 24
                    break
                body = fields + RECORD_LAYOUT.size
                at = body + length
                names.check(kind, body, at)
                shortest = min(shortest, ttl)
                if section == ANSWER:
                    answered = answered or question.type in (kind, RecordType.ANY)
                elif section == AUTHORITY and kind == RecordType.SOA and denial is None:
                    denial = int.from_bytes(data[at - 4 : at], "big")
                taken[section] += 1
                ends.append(at)
                ttls.append(fields + 4)
                if not len(ends) % SLICE:
                    yield
    except (layout_error, IndexError):
        raise Malformed("cut off") from None
    sections = Sections(
        start,
        data[start:at],
        ends,
        ttls,
        (taken[ANSWER], taken[AUTHORITY]),
        rcode=flags & 0xF | high << 4,
        flags=flags & (TC | AD),
    )
    return Received(sections, shortest if ends else 0, answered, denial)


def answers_of(sections: Sections, name: bytes) -> Iterator[ResourceRecord]:
    """The answers behind a question for a name, record by record."""
    data = bytes(HEADER) + name + bytes(QUESTION_LAYOUT.size) + sections.data
    at = sections.start
    for end in sections.ends[: sections.counts[0]]:
        owner, at = _read_name(data, at)
        kind, cls, ttl, length = RECORD_LAYOUT.unpack_from(data, at)
        at += RECORD_LAYOUT.size
        before, names = _NAMES_IN.get(kind, (length, 0))
        head = data[at : at + before]
        at += before
        targets: list[bytes] = []
        for _ in range(names):
            target, at = _read_name(data, at)
            targets.append(target)
        yield ResourceRecord(owner, kind, ttl, head, tuple(targets), data[at:end], cls)
        at = end


class _Names:
    """The names of a message; each place where one begins or goes on is looked at once."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._pointers = 0
        self._known: dict[int, tuple[int, int, int]] = {}
        """For each place: how many pointers and bytes the name has from there, where it ends."""

    def end(self, at: int) -> int:
        """Where a name ends; ``Malformed`` if it is invalid."""
        data, known = self._data, self._known
        path: list[tuple[int, int]] = []
        begin, lowest = at, at
        while at not in known:
            length = data[at]
            if not length:
                known[at] = (0, 1, at + 1)
            elif length <= LABEL_LIMIT:
                path.append((at, 1 + length))
                at += 1 + length
                if at - lowest >= NAME_LIMIT:
                    raise Malformed("a name that is too long")
            elif length & POINTER == POINTER:
                path.append((at, 0))
                target = (length & 0x3F) << 8 | data[at + 1]
                if not HEADER <= target < lowest or len(path) > NAME_LIMIT:
                    raise Malformed("a pointer that does not lead backwards, or too many of them")
                at = lowest = target
            else:
                raise Malformed("an invalid label")
        pointers, size, end = known[at]
        for offset, label in reversed(path):
            size += label
            if not label:
                pointers += 1
                end = offset + 2
            known[offset] = (pointers, size, end)
        self._pointers += pointers
        if size > NAME_LIMIT or pointers > POINTERS or self._pointers > ALL_POINTERS:
            raise Malformed("a name that is too long, or has too many pointers")
        return known[begin][2]

    def check(self, kind: int, at: int, end: int) -> None:
        """Check the data of a record."""
        if end > len(self._data):
            raise Malformed("a record that is longer than its packet")
        before, names = _NAMES_IN.get(kind, (0, 0))
        if names:
            at += before
            for _ in range(names):
                at = self.end(at)
            if at > end:
                raise Malformed("a name that is longer than its record")


def _read_name(data: bytes, at: int) -> tuple[bytes, int]:
    """A name that was checked, without compression, and where it ends."""
    out = bytearray()
    end = 0
    while length := data[at]:
        if length & POINTER == POINTER:
            end = end or at + 2
            at = (length & 0x3F) << 8 | data[at + 1]
        else:
            out += data[at : at + 1 + length]
            at += 1 + length
    out.append(0)
    return bytes(out), end or at + 1
