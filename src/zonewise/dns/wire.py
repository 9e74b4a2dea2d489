"""DNS messages as bytes: what they are made of, and questions taken apart.

Questions are untrusted, so ``read_question`` assumes nothing: every length is checked, names are
never followed through pointers (a question needs none), and what is wrong ends in ``Malformed``
with the code to answer. Answers are written by ``zonewise.dns.sections``, and those of other
servers are read by ``zonewise.dns.outside.received``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct as Layout
from struct import error as layout_error

from zonewise.dns.names import LABEL_LIMIT, NAME_LIMIT, ROOT


class RecordType(IntEnum):
    """Types of records that mean something here."""

    A = 1
    NS = 2
    CNAME = 5
    SOA = 6
    PTR = 12
    MX = 15
    TXT = 16
    AAAA = 28
    SRV = 33
    OPT = 41
    IXFR = 251
    AXFR = 252
    ANY = 255


class Rcode(IntEnum):
    """How a question ended."""

    NOERROR = 0
    FORMERR = 1
    SERVFAIL = 2
    NXDOMAIN = 3
    NOTIMP = 4
    REFUSED = 5
    BADVERS = 16


IN = 1
QR, AA, TC, RD, RA, AD, CD = 0x8000, 0x0400, 0x0200, 0x0100, 0x0080, 0x0020, 0x0010
OPCODE = 0x7800
DO = 0x8000
HEADER = 12
MIN_SIZE, MAX_SIZE = 512, 65_535
PACKET_LIMIT = 4096
"""The longest packet we send, whatever the client accepts: a stream is for more."""

OUR_SIZE = 1232
"""The longest packet we accept: with the headers it fits every IPv6 path."""

SUBNET = 8
"""EDNS Client Subnet, RFC 7871."""

HEADER_LAYOUT = Layout("!HHHHHH")
QUESTION_LAYOUT = Layout("!HH")
RECORD_LAYOUT = Layout("!HHIH")
_OPTION = Layout("!HH")
POINTER = 0xC0


class Malformed(Exception):
    """Bytes that are not a DNS message."""


@dataclass(frozen=True, slots=True)
class Edns:
    """The OPT record of the client; ``options`` by code, as received."""

    size: int
    version: int = 0
    do: bool = False
    options: tuple[tuple[int, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """A question as received: its name in the client's case and in lower case."""

    id: int
    flags: int
    name: bytes
    lower: bytes
    type: int
    cls: int
    edns: Edns | None = None


@dataclass(frozen=True, slots=True)
class ResourceRecord:
    """A record; its data is ``head``, then names, then ``tail``."""

    name: bytes
    type: int
    ttl: int
    head: bytes = b""
    targets: tuple[bytes, ...] = ()
    tail: bytes = b""
    cls: int = IN


@dataclass(frozen=True, slots=True)
class Message:
    """An answer as records."""

    rcode: int
    answers: tuple[ResourceRecord, ...] = ()
    authority: tuple[ResourceRecord, ...] = ()
    additional: tuple[ResourceRecord, ...] = ()
    aa: bool = False
    tc: bool = False
    ad: bool = False


def read_question(data: bytes) -> Question:
    """The question in a packet that is at least a header long."""
    identity, flags, questions, answers, authority, additional = HEADER_LAYOUT.unpack_from(data)
    if questions != 1 or answers > 1 or authority > 1 or additional > 2:
        raise Malformed("not exactly one question")
    at = _skip_name(data, HEADER, pointers=False)
    name = data[HEADER:at]
    try:
        kind, cls = QUESTION_LAYOUT.unpack_from(data, at)
        at += QUESTION_LAYOUT.size
        edns = None
        for _ in range(answers + authority):
            at, _, _, _, _ = _skip_record(data, at)
        for _ in range(additional):
            owner = at
            at, record, size, ttl, start = _skip_record(data, at)
            if record != RecordType.OPT:
                continue
            if edns is not None or data[owner] != 0:
                raise Malformed("a second OPT, or one with a name")
            options = _read_options(data[start:at])
            edns = Edns(size, (ttl >> 16) & 0xFF, bool(ttl & DO), options)
    except layout_error:
        raise Malformed("cut off") from None
    return Question(identity, flags, name, name.lower(), kind, cls, edns)


def write_refusal(data: bytes, rcode: int) -> bytes:
    """A header alone, for a packet whose question cannot be read or is not to be answered."""
    identity, flags = int.from_bytes(data[:2], "big"), int.from_bytes(data[2:4], "big")
    return HEADER_LAYOUT.pack(identity, QR | (flags & (OPCODE | RD)) | rcode, 0, 0, 0, 0)


def write_question(
    identity: int, name: bytes, kind: int, *, flags: int = RD, do: bool = False, edns: bool = True
) -> bytes:
    """A question to another server; of ``flags`` RD and CD are sent on."""
    flags &= RD | CD
    header = HEADER_LAYOUT.pack(identity, flags, 1, 0, 0, int(edns))
    out = header + name + QUESTION_LAYOUT.pack(kind, IN)
    if not edns:
        return out
    return out + ROOT + RECORD_LAYOUT.pack(RecordType.OPT, OUR_SIZE, DO if do else 0, 0)


def size_limit(question: Question) -> int:
    """How long an answer may be in a packet; less than 512 means 512."""
    if question.edns is None:
        return MIN_SIZE
    return min(max(MIN_SIZE, question.edns.size), PACKET_LIMIT)


def option_bytes(code: int, data: bytes) -> bytes:
    """An EDNS option."""
    return _OPTION.pack(code, len(data)) + data


def _skip_name(data: bytes, at: int, *, pointers: bool = True) -> int:
    start = at
    try:
        while length := data[at]:
            if length > LABEL_LIMIT:
                if pointers and length & POINTER == POINTER:
                    return at + 2
                raise Malformed("an invalid label")
            at += 1 + length
            if at - start >= NAME_LIMIT:
                raise Malformed("a name that is too long")
    except IndexError:
        raise Malformed("cut off inside a name") from None
    return at + 1


def _skip_record(data: bytes, at: int) -> tuple[int, int, int, int, int]:
    """Where a record ends, its type, class and ttl, and where its data starts."""
    at = _skip_name(data, at)
    kind, cls, ttl, length = RECORD_LAYOUT.unpack_from(data, at)
    start = at + RECORD_LAYOUT.size
    if start + length > len(data):
        raise Malformed("a record that is longer than its packet")
    return start + length, kind, cls, ttl, start


def _read_options(data: bytes) -> tuple[tuple[int, bytes], ...]:
    options = []
    at = 0
    while at < len(data):
        code, length = _OPTION.unpack_from(data, at)
        at += _OPTION.size
        if at + length > len(data):
            raise Malformed("an option that is longer than its record")
        options.append((code, data[at : at + length]))
        at += length
    return tuple(options)


def address_record(name: bytes, ttl: int, address: bytes) -> ResourceRecord:
    """An A or AAAA record, by how long the address is."""
    kind = RecordType.A if len(address) == 4 else RecordType.AAAA
    return ResourceRecord(name, kind, ttl, address)
