"""Netlink on the wire: messages and attributes, packed and read.

A message is a header (length, type, flags, sequence, port), for netfilter a small second header
(family, version, resource), then attributes. An attribute is a length, a type and a payload, padded
to four bytes; a nested one carries attributes as its payload. Numbers of headers are in the host's
order, numbers in netfilter's attributes in the network's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

NLMSG_ERROR = 2
NLMSG_DONE = 3

NLM_F_REQUEST = 0x001
NLM_F_ACK = 0x004
NLM_F_DUMP_INTR = 0x010
NLM_F_CAPPED = 0x100
NLM_F_ACK_TLVS = 0x200
NLM_F_DUMP = 0x300
NLM_F_CREATE = 0x400

_NESTED = 0x8000
_TYPE = 0x3FFF

HEADER = struct.Struct("=IHHII")
FAMILY = struct.Struct("=BBH")
_ATTRIBUTE = struct.Struct("=HH")
_PADDING = (b"", b"\0\0\0", b"\0\0", b"\0")

NetlinkAttributes = dict[int, memoryview]


def attribute(kind: int, payload: bytes) -> bytes:
    """One attribute."""
    size = len(payload)
    return _ATTRIBUTE.pack(size + 4, kind) + payload + _PADDING[size & 3]


def nested(kind: int, *parts: bytes) -> bytes:
    """An attribute that holds attributes."""
    payload = b"".join(parts)
    return _ATTRIBUTE.pack(len(payload) + 4, kind | _NESTED) + payload


def text(kind: int, value: str) -> bytes:
    """An attribute that is a name; the kernel requires a final zero byte."""
    return attribute(kind, value.encode() + b"\0")


def number(kind: int, value: int) -> bytes:
    """An attribute that is a number of 32 bits."""
    return attribute(kind, value.to_bytes(4, "big"))


def message(
    kind: int, flags: int, *, family: int = 0, resource: int = 0, body: bytes = b"", sequence: int
) -> bytes:
    """A whole netfilter message."""
    size = HEADER.size + FAMILY.size + len(body)
    second = struct.pack(">H", resource)
    return b"".join(
        (
            HEADER.pack(size, kind, flags | NLM_F_REQUEST, sequence, 0),
            bytes((family, 0)),
            second,
            body,
        )
    )


def each_message(data: memoryview) -> Iterator[tuple[int, int, int, memoryview]]:
    """The messages of a datagram: type, flags, sequence and what follows the header."""
    at = 0
    while at + HEADER.size <= len(data):
        size, kind, flags, sequence, _ = HEADER.unpack_from(data, at)
        if size < HEADER.size or at + size > len(data):
            return
        yield kind, flags, sequence, data[at + HEADER.size : at + size]
        at += (size + 3) & ~3


def each_attribute(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Attributes in order; the same type may be repeated."""
    at = 0
    end = len(data)
    while at + 4 <= end:
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        if size < 4:
            return
        yield kind & _TYPE, data[at + 4 : at + size]
        at += (size + 3) & ~3


def attributes(data: memoryview) -> NetlinkAttributes:
    """Attributes by type."""
    return dict(each_attribute(data))


def read_text(value: memoryview) -> str:
    """A name."""
    return bytes(value).rstrip(b"\0").decode(errors="replace")


def read_number(value: memoryview) -> int:
    """A number of any width."""
    return int.from_bytes(value, "big")
