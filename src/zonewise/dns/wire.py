"""DNS messages as bytes: questions taken apart, answers put together.

Questions are untrusted, so ``read_question`` assumes nothing: every length is checked, names are
never followed through pointers (a question needs none), and what is wrong ends in ``Malformed``
with the code to answer. Answers of upstream servers are read by ``read_message``; there pointers
are followed, each only backwards, so there can be no loop, and few for each name, so that long
chains of them cannot take seconds.

``write`` compresses every name that may be (the target of an SRV record may not, RFC 2782), then
drops whole records from the end until the message fits, and says so with TC. The question is echoed
byte for byte: resolvers draw its case at random and compare (0x20).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct as Layout
from struct import error as layout_error

from zonewise.dns.names import LABEL_LIMIT, NAME_LIMIT, ROOT, suffixes


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
"""What we send in one packet at most, whatever the asker takes: a stream is for more."""

OUR_SIZE = 1232
"""What we take in one packet: with the headers it fits every IPv6 path."""

SUBNET = 8
"""EDNS Client Subnet, RFC 7871."""

_HEADER = Layout("!HHHHHH")
_QUESTION = Layout("!HH")
_RECORD = Layout("!HHIH")
_OPTION = Layout("!HH")
_POINTER = 0xC0
_POINTERS = 127
"""How many pointers a name may have: as many as labels, each of which may be shared."""

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

_COMPRESSED = frozenset(
    {RecordType.NS, RecordType.CNAME, RecordType.SOA, RecordType.PTR, RecordType.MX}
)
"""Types in whose data names may be compressed (RFC 3597, 4)."""


class Malformed(Exception):
    """Bytes that are no message."""


@dataclass(frozen=True, slots=True)
class Edns:
    """What the client says of itself; ``options`` by code, as received."""

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
    identity, flags, questions, answers, authority, additional = _HEADER.unpack_from(data)
    if questions != 1 or answers > 1 or authority > 1 or additional > 2:
        raise Malformed("not exactly one question")
    at = _skip_name(data, HEADER, pointers=False)
    name = data[HEADER:at]
    try:
        kind, cls = _QUESTION.unpack_from(data, at)
        at += _QUESTION.size
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


def read_message(data: bytes) -> tuple[Question, Message]:
    """An answer of another server, with the question it repeats."""
    try:
        identity, flags, questions, *counts = _HEADER.unpack_from(data)
        if questions != 1:
            raise Malformed("not exactly one question")
        name, at = _read_name(data, HEADER)
        kind, cls = _QUESTION.unpack_from(data, at)
        at += _QUESTION.size
        sections: list[tuple[ResourceRecord, ...]] = []
        edns, high = None, 0
        for count in counts:
            records = []
            for _ in range(count):
                record, at, extended = _read_record(data, at)
                if record.type == RecordType.OPT:
                    edns, high = Edns(record.cls), extended
                else:
                    records.append(record)
            sections.append(tuple(records))
    except (layout_error, IndexError):
        raise Malformed("cut off") from None
    answers, authority, additional = sections
    message = Message(
        (flags & 0xF) | high << 4,
        answers,
        authority,
        additional,
        aa=bool(flags & AA),
        tc=bool(flags & TC),
        ad=bool(flags & AD),
    )
    return Question(identity, flags, name, name.lower(), kind, cls, edns), message


def read_failure(data: bytes) -> tuple[int, int] | None:
    """Id and code of an answer without a question; None if it is no such answer."""
    if len(data) < HEADER:
        return None
    identity, flags, questions, *_ = _HEADER.unpack_from(data)
    return (identity, flags & 0xF) if flags & QR and not questions else None


def write(
    question: Question,
    message: Message,
    limit: int,
    *,
    option: bytes = b"",
    recursion: bool = True,
) -> bytes:
    """The answer to a question, at most ``limit`` bytes long; ``option`` goes into its OPT."""
    edns = _write_opt(question.edns, message.rcode, option) if question.edns else b""
    out = bytearray(HEADER)
    out += question.name
    out += _QUESTION.pack(question.type, question.cls)
    known: dict[bytes, int] = {}
    _remember(known, question.name, HEADER)
    room = limit - len(edns)
    counts = [0, 0, 0]
    whole = True
    sections = (message.answers, message.authority, message.additional)
    for section, record in ((at, one) for at, part in enumerate(sections) for one in part):
        start = len(out)
        _write_record(out, record, known)
        if len(out) > room:
            del out[start:]
            whole = False
            break
        counts[section] += 1
    out += edns
    flags = QR | (question.flags & (OPCODE | RD | CD)) | (message.rcode & 0xF)
    flags |= RA if recursion else 0
    flags |= AA if message.aa else 0
    flags |= 0 if whole and not message.tc else TC
    flags |= AD if message.ad else 0
    counts[2] += bool(edns)
    _HEADER.pack_into(out, 0, question.id, flags, 1, *counts)
    return bytes(out)


def write_refusal(data: bytes, rcode: int) -> bytes:
    """A header alone, for a packet whose question cannot be read or is not to be answered."""
    identity, flags = int.from_bytes(data[:2], "big"), int.from_bytes(data[2:4], "big")
    return _HEADER.pack(identity, QR | (flags & (OPCODE | RD)) | rcode, 0, 0, 0, 0)


def write_question(
    identity: int, name: bytes, kind: int, *, flags: int = RD, do: bool = False, edns: bool = True
) -> bytes:
    """A question to another server; of ``flags`` RD and CD are sent on."""
    flags &= RD | CD
    out = _HEADER.pack(identity, flags, 1, 0, 0, int(edns)) + name + _QUESTION.pack(kind, IN)
    if not edns:
        return out
    return out + ROOT + _RECORD.pack(RecordType.OPT, OUR_SIZE, DO if do else 0, 0)


def size_limit(question: Question) -> int:
    """How long an answer may be in a packet; less than 512 means 512."""
    if question.edns is None:
        return MIN_SIZE
    return min(max(MIN_SIZE, question.edns.size), PACKET_LIMIT)


def option_bytes(code: int, data: bytes) -> bytes:
    """An EDNS option."""
    return _OPTION.pack(code, len(data)) + data


def _write_opt(edns: Edns, rcode: int, option: bytes) -> bytes:
    ttl = (rcode >> 4) << 24 | (DO if edns.do else 0)
    return ROOT + _RECORD.pack(RecordType.OPT, OUR_SIZE, ttl, len(option)) + option


def _write_record(out: bytearray, record: ResourceRecord, known: dict[bytes, int]) -> None:
    _write_name(out, record.name, known)
    out += _RECORD.pack(record.type, record.cls, record.ttl, 0)
    start = len(out)
    out += record.head
    compress = record.type in _COMPRESSED
    for target in record.targets:
        if compress:
            _write_name(out, target, known)
        else:
            _remember(known, target, len(out))
            out += target
    out += record.tail
    out[start - 2 : start] = (len(out) - start).to_bytes(2, "big")


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
        place = at + len(name) - len(suffix)
        if place < 0x4000:
            known[suffix] = place
    out += name


def _remember(known: dict[bytes, int], name: bytes, at: int) -> None:
    for suffix in suffixes(name):
        place = at + len(name) - len(suffix)
        if suffix not in known and place < 0x4000:
            known[suffix] = place


def _skip_name(data: bytes, at: int, *, pointers: bool = True) -> int:
    start = at
    try:
        while length := data[at]:
            if length > LABEL_LIMIT:
                if pointers and length & _POINTER == _POINTER:
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
    kind, cls, ttl, length = _RECORD.unpack_from(data, at)
    start = at + _RECORD.size
    if start + length > len(data):
        raise Malformed("a record that is longer than its packet")
    return start + length, kind, cls, ttl, start


def _read_options(data: bytes) -> tuple[tuple[int, bytes], ...]:
    found = []
    at = 0
    while at < len(data):
        code, length = _OPTION.unpack_from(data, at)
        at += _OPTION.size
        if at + length > len(data):
            raise Malformed("an option that is longer than its record")
        found.append((code, data[at : at + length]))
        at += length
    return tuple(found)


def _read_name(data: bytes, at: int) -> tuple[bytes, int]:
    """A name without compression, and where it ends."""
    out = bytearray()
    end = 0
    lowest = at
    pointers = 0
    while length := data[at]:
        if length & _POINTER == _POINTER:
            target = (length & 0x3F) << 8 | data[at + 1]
            end = end or at + 2
            pointers += 1
            if target >= lowest or pointers > _POINTERS:
                raise Malformed("a pointer that does not lead backwards, or too many of them")
            at = lowest = target
            continue
        if length > LABEL_LIMIT:
            raise Malformed("an invalid label")
        out += data[at : at + 1 + length]
        at += 1 + length
        if len(out) >= NAME_LIMIT:
            raise Malformed("a name that is too long")
    out.append(0)
    return bytes(out), end or at + 1


def _read_record(data: bytes, at: int) -> tuple[ResourceRecord, int, int]:
    """A record, where it ends, and the upper bits of the code if it is an OPT."""
    name, at = _read_name(data, at)
    kind, cls, ttl, length = _RECORD.unpack_from(data, at)
    at += _RECORD.size
    end = at + length
    if end > len(data):
        raise Malformed("a record that is longer than its packet")
    if kind == RecordType.OPT:
        return ResourceRecord(name, kind, 0, cls=cls), end, ttl >> 24
    before, names = _NAMES_IN.get(kind, (length, 0))
    head = data[at : at + before]
    at += before
    targets: list[bytes] = []
    for _ in range(names):
        target, at = _read_name(data, at)
        targets.append(target)
    if at > end:
        raise Malformed("a name that is longer than its record")
    return ResourceRecord(name, kind, ttl, head, tuple(targets), data[at:end], cls), end, 0


def address_record(name: bytes, ttl: int, address: bytes) -> ResourceRecord:
    """An A or AAAA record, by how long the address is."""
    return ResourceRecord(
        name, RecordType.A if len(address) == 4 else RecordType.AAAA, ttl, address
    )
