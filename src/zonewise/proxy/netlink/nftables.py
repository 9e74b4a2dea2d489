"""nf_tables over netlink: elements of sets and maps, and what is needed to clean up after them.

Messages for ``NetlinkSocket.transaction`` are made here, and dumps are read. An element is a key
and its data, both as bytes, just as the kernel has them in its registers; the data of a verdict map
is the verdict as ``nft`` writes it (``goto slots-3``, ``drop``). A set of ranges has its two ends
as one key, the first half and the second.

Elements are most of what is ever sent, so their attributes are put together from pieces that depend
on lengths alone. A message holds as many as fit in the 64 KB that an attribute's length can say.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from zonewise.proxy.netlink import wire
from zonewise.proxy.netlink.socket import NetlinkSocket

NetlinkFamily = Literal[2, 10]
IPV4: NetlinkFamily = 2
IPV6: NetlinkFamily = 10

NetlinkMessage = tuple[int, int, int, bytes]

_DUMPS = 10
_MOVED = 1000
"""From so many elements on a set grows in the background."""

GROUP = 7
"""The multicast group that announces every commit."""

_SUBSYSTEM = 10 << 8
_GETTABLE = _SUBSYSTEM | 1
_DELTABLE = _SUBSYSTEM | 2
_GETCHAIN = _SUBSYSTEM | 4
_DELCHAIN = _SUBSYSTEM | 5
_GETRULE = _SUBSYSTEM | 7
_DELRULE = _SUBSYSTEM | 8
_GETSET = _SUBSYSTEM | 10
_DELSET = _SUBSYSTEM | 11
_NEWSETELEM = _SUBSYSTEM | 12
_GETSETELEM = _SUBSYSTEM | 13
_DELSETELEM = _SUBSYSTEM | 14

ELEMENT_MESSAGES = frozenset((_NEWSETELEM, _DELSETELEM))

_TABLE, _NAME, _CHAIN_NAME = 1, 2, 3
_LIST_TABLE, _LIST_SET, _LIST_ELEMENTS = 1, 2, 3
_ELEM, _KEY, _DATA, _KEY_END = 1, 1, 2, 10
_VALUE, _VERDICT = 1, 2
_VERDICT_CODE, _VERDICT_CHAIN = 1, 2

_CODES = {"drop": 0, "accept": 1, "jump": -3, "goto": -4, "return": -5}
_WORDS = {code: word for word, code in _CODES.items()}

_ROOM = 60_000


@dataclass(frozen=True, slots=True)
class SetForm:
    """How elements of a set look on the wire: whether they are ranges, and what they lead to."""

    data: Literal["none", "value", "verdict"] = "none"
    ranges: bool = False


def put(
    family: NetlinkFamily,
    table: str,
    name: str,
    shape: SetForm,
    elements: Iterable[tuple[bytes, bytes]],
) -> Iterator[NetlinkMessage]:
    """Add elements that do not exist."""
    return _messages(
        _NEWSETELEM,
        wire.NLM_F_CREATE,
        family,
        table,
        name,
        (_element(shape, *element) for element in elements),
    )


def remove(
    family: NetlinkFamily, table: str, name: str, shape: SetForm, keys: Iterable[bytes]
) -> Iterator[NetlinkMessage]:
    """Remove existing elements."""
    bare = SetForm(ranges=shape.ranges)
    elements = (_element(bare, key, b"") for key in keys)
    return _messages(_DELSETELEM, 0, family, table, name, elements)


def delete_table(family: NetlinkFamily, table: str) -> NetlinkMessage:
    """A table with all that is in it."""
    return (_DELTABLE, 0, family, wire.text(_TABLE, table))


def delete_chain(
    family: NetlinkFamily, table: str, chain: str
) -> tuple[NetlinkMessage, NetlinkMessage]:
    """A chain and its rules; nothing may lead to it any more."""
    flush = wire.text(_TABLE, table) + wire.text(_NAME, chain)
    return (
        (_DELRULE, 0, family, flush),
        (_DELCHAIN, 0, family, wire.text(_TABLE, table) + wire.text(_CHAIN_NAME, chain)),
    )


def delete_set(family: NetlinkFamily, table: str, name: str) -> NetlinkMessage:
    """A set; no rule may use it any more."""
    return (_DELSET, 0, family, wire.text(_TABLE, table) + wire.text(_NAME, name))


def has_table(socket: NetlinkSocket, family: NetlinkFamily, table: str) -> bool:
    """Whether there is such a table."""
    names = (wire.attributes(body).get(_TABLE) for body in socket.dump(_GETTABLE, family))
    return any(wire.read_text(name) == table for name in names if name is not None)


def chains(socket: NetlinkSocket, family: NetlinkFamily, table: str) -> dict[str, int]:
    """The names of a table's chains, and how many rules each has."""
    counts = dict.fromkeys(_names(socket.dump(_GETCHAIN, family), table, _CHAIN_NAME), 0)
    for body in socket.dump(_GETRULE, family, wire.text(_TABLE, table)):
        fields = wire.attributes(body)
        if wire.read_text(fields[_TABLE]) == table:
            name = wire.read_text(fields[_NAME])
            counts[name] = counts.get(name, 0) + 1
    return counts


def sets(socket: NetlinkSocket, family: NetlinkFamily, table: str) -> set[str]:
    """The names of a table's sets and maps."""
    return _names(socket.dump(_GETSET, family, wire.text(_TABLE, table)), table, _NAME)


def elements(
    socket: NetlinkSocket, family: NetlinkFamily, table: str, name: str, shape: SetForm
) -> dict[bytes, bytes]:
    """Everything a set holds.

    The kernel moves the elements of a large set about for a while after they were added, and a dump
    meanwhile leaves some out without a word. So it is read again until two dumps say the same.
    """
    body = wire.text(_LIST_TABLE, table) + wire.text(_LIST_SET, name)
    before: dict[bytes, bytes] | None = None
    for _ in range(_DUMPS):
        read: dict[bytes, bytes] = {}
        for part in socket.dump(_GETSETELEM, family, body):
            listed = wire.attributes(part).get(_LIST_ELEMENTS)
            if listed is not None:
                _read_all(shape, bytes(listed), read)
        if read == before or len(read) < _MOVED:
            return read
        before = read
    return read


def _read_all(shape: SetForm, listed: bytes, into: dict[bytes, bytes]) -> None:
    """Read a list of elements.

    Elements of equal length have their parts at equal places, so all but the first of a length are
    cut up without looking at their attributes; that is ten times as fast.
    """
    at = 4
    end = len(listed)
    size = 0
    cut = (0, 0, 0, 0)
    while at < end:
        here = int.from_bytes(listed[at - 4 : at - 2], sys.byteorder) - 4
        if shape.data != "value" or shape.ranges:
            key, data = _read(shape, wire.attributes(memoryview(listed)[at : at + here]))
        elif here != size:
            element = listed[at : at + here]
            key, data = _read(shape, wire.attributes(memoryview(element)))
            first, second = element.index(key), len(key) + 16
            if here == second + len(data) and first == 8 and element[second:] == data:
                size, cut = here, (8, 8 + len(key), second, second + len(data))
        else:
            key = listed[at + cut[0] : at + cut[1]]
            data = listed[at + cut[2] : at + cut[3]]
        into[key] = data
        at += ((here + 3) & ~3) + 4


def _names(bodies: Iterable[memoryview], table: str, kind: int) -> set[str]:
    names = set()
    for body in bodies:
        fields = wire.attributes(body)
        if wire.read_text(fields[_TABLE]) == table:
            names.add(wire.read_text(fields[kind]))
    return names


def _messages(
    kind: int, flags: int, family: NetlinkFamily, table: str, name: str, parts: Iterable[bytes]
) -> Iterator[NetlinkMessage]:
    head = wire.text(_LIST_TABLE, table) + wire.text(_LIST_SET, name)
    batch: list[bytes] = []
    size = 0
    for part in parts:
        if size + len(part) > _ROOM:
            yield kind, flags, family, head + wire.nested(_LIST_ELEMENTS, *batch)
            batch, size = [], 0
        batch.append(part)
        size += len(part)
    if batch:
        yield kind, flags, family, head + wire.nested(_LIST_ELEMENTS, *batch)


def _element(shape: SetForm, key: bytes, data: bytes) -> bytes:
    if shape.data == "verdict":
        tail = verdict(data)
    elif shape.data == "value":
        tail = _opening(_DATA, len(data)) + data
    else:
        tail = b""
    if shape.ranges:
        half = len(key) // 2
        inner = _opening(_KEY, half) + key[:half] + _opening(_KEY_END, half) + key[half:] + tail
    else:
        inner = _opening(_KEY, len(key)) + key + tail
    return _outer(len(inner)) + inner


@lru_cache(maxsize=256)
def _opening(kind: int, size: int) -> bytes:
    """The header of a value of that size; sizes are multiples of four, so nothing follows."""
    return wire.nested(kind, wire.attribute(_VALUE, b"\0" * size))[:8]


@lru_cache(maxsize=1024)
def _outer(size: int) -> bytes:
    return wire.nested(_ELEM, b"\0" * size)[:4]


@lru_cache(maxsize=4096)
def verdict(words: bytes) -> bytes:
    """The data of a verdict map's element."""
    word, _, chain = words.decode().partition(" ")
    code = struct.pack(">i", _CODES[word])
    parts = [wire.attribute(_VERDICT_CODE, code)]
    if chain:
        parts.append(wire.text(_VERDICT_CHAIN, chain))
    return wire.nested(_DATA, wire.nested(_VERDICT, *parts))


def _read(shape: SetForm, fields: wire.NetlinkAttributes) -> tuple[bytes, bytes]:
    key = bytes(wire.attributes(fields[_KEY])[_VALUE])
    if shape.ranges:
        key += bytes(wire.attributes(fields[_KEY_END])[_VALUE])
    if shape.data == "none":
        return key, b""
    data = wire.attributes(fields[_DATA])
    if shape.data == "value":
        return key, bytes(data[_VALUE])
    verdict_fields = wire.attributes(data[_VERDICT])
    word = _WORDS.get(struct.unpack(">i", verdict_fields[_VERDICT_CODE])[0], "unknown")
    chain = verdict_fields.get(_VERDICT_CHAIN)
    return key, (word if chain is None else f"{word} {wire.read_text(chain)}").encode()
