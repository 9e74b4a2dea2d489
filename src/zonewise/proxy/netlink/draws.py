"""The chains that draw an endpoint, over netlink.

``ruleset`` says the same as text. nft 1.0.6 takes that text only together with the map's own
declaration: a map that it reads back from the kernel has lost what "th dport" means, and it refuses
("conflicting protocols specified"). So a chain that is added later is made of expressions here, the
very ones nft makes, in the same registers; it lists them as it lists its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zonewise.proxy.netlink import wire
from zonewise.proxy.netlink.nftables import IPV4, NetlinkFamily, NetlinkMessage

_NEWCHAIN = 10 << 8 | 3
_NEWRULE = 10 << 8 | 6
_NEWSET = 10 << 8 | 9
_APPEND = 0x800

_FIRST = 8
"""The first register of four bytes."""

_NETWORK, _TRANSPORT = 1, 2
_PRIORITY, _L4PROTO = 2, 16
_RANDOM = 1
_DNAT = 1
_TO_NETWORK = 1
_LESS = 2
_UPDATE, _DELETE = 1, 2

_MAP, _TIMEOUT, _DYNAMIC = 0x8, 0x10, 0x20
_TYPES = {4: 7, 16: 8}
_PRIORITY_TYPE = 23


@dataclass(frozen=True, slots=True)
class Draw:
    """One of ``count`` slots from ``first`` on; only ``below`` times of ``of``, if it says so."""

    count: int
    first: int
    below: int = 0
    of: int = 0


@dataclass(frozen=True, slots=True)
class ClientMemory:
    """Where clients are remembered, where slots lead to ids, and ids to endpoints."""

    clients: str
    drawn: str
    members: str


def new_clients(
    family: NetlinkFamily, table: str, name: str, seconds: int, most: int
) -> NetlinkMessage:
    """Make a map from clients to endpoints that forgets them after so many seconds."""
    size = 4 if family == IPV4 else 16
    body = (
        wire.text(1, table),
        wire.text(2, name),
        wire.number(3, _MAP | _TIMEOUT | _DYNAMIC),
        wire.number(4, _TYPES[size]),
        wire.number(5, size),
        wire.number(6, _PRIORITY_TYPE),
        wire.number(7, 4),
        wire.nested(9, wire.number(1, most)),
        wire.number(10, 1),
        wire.attribute(11, (seconds * 1000).to_bytes(8, "big")),
    )
    return _NEWSET, wire.NLM_F_CREATE, family, b"".join(body)


def draw_chain(
    family: NetlinkFamily,
    table: str,
    chain: str,
    endpoints: str,
    *,
    draws: Sequence[Draw],
    by_address: bool,
    memory: ClientMemory | None = None,
) -> list[NetlinkMessage]:
    """A chain with a rule per draw: draw a slot, look it up with the way, go to what is found.

    A way is an address, protocol and port, or without the address. With a memory a client goes
    where it went before, if that is still a member; else it is drawn and remembered. A client for
    which there is no room goes where it is drawn.
    """
    named = wire.text(1, table)
    if memory is None:
        rules = [_draw(family, endpoints, draw, by_address) for draw in draws]
    else:
        rules = [
            _recall(family, memory, by_address),
            _forget(family, memory),
            *(_remember(family, memory, draw, by_address) for draw in draws),
            *(_draw_member(family, memory, draw, by_address) for draw in draws),
        ]
    messages: list[NetlinkMessage] = [
        (_NEWCHAIN, wire.NLM_F_CREATE, family, named + wire.text(3, chain))
    ]
    for rule in rules:
        body = named + wire.text(2, chain) + wire.nested(4, *rule)
        messages.append((_NEWRULE, wire.NLM_F_CREATE | _APPEND, family, body))
    return messages


def _draw(family: NetlinkFamily, endpoints: str, draw: Draw, by_address: bool) -> list[bytes]:
    return [*_slot(family, endpoints, draw, by_address), _translate_address(family)]


def _draw_member(
    family: NetlinkFamily, memory: ClientMemory, draw: Draw, by_address: bool
) -> list[bytes]:
    return [
        *_slot(family, memory.drawn, draw, by_address),
        _set_priority(),
        *_to_member(family, memory, by_address),
    ]


def _remember(
    family: NetlinkFamily, memory: ClientMemory, draw: Draw, by_address: bool
) -> list[bytes]:
    return [
        *_slot(family, memory.drawn, draw, by_address),
        _set_priority(),
        *_store(family, memory.clients, _UPDATE),
        *_look_up_client(family, memory),
        *_to_member(family, memory, by_address),
    ]


def _recall(family: NetlinkFamily, memory: ClientMemory, by_address: bool) -> list[bytes]:
    return [
        *_look_up_client(family, memory),
        *_store(family, memory.clients, _UPDATE),
        *_to_member(family, memory, by_address),
    ]


def _forget(family: NetlinkFamily, memory: ClientMemory) -> list[bytes]:
    return _store(family, memory.clients, _DELETE)


def _look_up_client(family: NetlinkFamily, memory: ClientMemory) -> list[bytes]:
    return [_source(family, _FIRST), _lookup(memory.clients), _set_priority()]


def _slot(family: NetlinkFamily, name: str, draw: Draw, by_address: bool) -> list[bytes]:
    parts = []
    if draw.of:
        parts += [_draw_number(_FIRST, draw.of, 0), _compare_less(_FIRST, draw.below)]
    parts.append(_draw_number(_FIRST, draw.count, draw.first))
    return [*parts, *_load_way(family, _FIRST + 1, by_address), _lookup(name)]


def _to_member(family: NetlinkFamily, memory: ClientMemory, by_address: bool) -> list[bytes]:
    return [
        _priority(_FIRST),
        *_load_way(family, _FIRST + 1, by_address),
        _lookup(memory.members),
        _translate_address(family),
    ]


def _store(family: NetlinkFamily, clients: str, operation: int) -> list[bytes]:
    # To delete, too: the kernel requires the data of a map's element.
    priority = _FIRST + 4
    stored = _expression(
        "dynset",
        wire.text(1, clients),
        wire.number(3, operation),
        wire.number(4, _FIRST),
        wire.number(5, priority),
    )
    return [_source(family, _FIRST), _priority(priority), stored]


def _priority(register: int) -> bytes:
    return _expression("meta", wire.number(1, register), wire.number(2, _PRIORITY))


def _set_priority() -> bytes:
    return _expression("meta", wire.number(2, _PRIORITY), wire.number(3, _FIRST))


def _words(family: NetlinkFamily) -> int:
    """How many registers an address takes."""
    return 1 if family == IPV4 else 4


def _load_way(family: NetlinkFamily, at: int, by_address: bool) -> list[bytes]:
    parts = []
    if by_address:
        size, offset = (4, 16) if family == IPV4 else (16, 24)
        parts.append(_payload(at, _NETWORK, offset, size))
        at += size // 4
    parts.append(_expression("meta", wire.number(1, at), wire.number(2, _L4PROTO)))
    parts.append(_payload(at + 1, _TRANSPORT, 2, 2))
    return parts


def _source(family: NetlinkFamily, register: int) -> bytes:
    size, offset = (4, 12) if family == IPV4 else (16, 8)
    return _payload(register, _NETWORK, offset, size)


def _lookup(name: str) -> bytes:
    return _expression("lookup", wire.text(1, name), wire.number(2, _FIRST), wire.number(3, _FIRST))


def _translate_address(family: NetlinkFamily) -> bytes:
    port = _FIRST + _words(family)
    return _expression(
        "nat",
        wire.number(1, _DNAT),
        wire.number(2, family),
        wire.number(3, _FIRST),
        wire.number(4, _FIRST),
        wire.number(5, port),
        wire.number(6, port),
    )


def _compare_less(register: int, bound: int) -> bytes:
    """Compare what was drawn, which is in the host's order."""
    swapped = _expression(
        "byteorder",
        wire.number(1, register),
        wire.number(2, register),
        wire.number(3, _TO_NETWORK),
        wire.number(4, 4),
        wire.number(5, 4),
    )
    value = wire.nested(3, wire.number(1, bound))
    return swapped + _expression("cmp", wire.number(1, register), wire.number(2, _LESS), value)


def _draw_number(register: int, count: int, first: int) -> bytes:
    offset = [wire.number(4, first)] if first else []
    return _expression(
        "numgen", wire.number(1, register), wire.number(2, count), wire.number(3, _RANDOM), *offset
    )


def _payload(register: int, base: int, offset: int, size: int) -> bytes:
    return _expression(
        "payload",
        wire.number(1, register),
        wire.number(2, base),
        wire.number(3, offset),
        wire.number(4, size),
    )


def _expression(name: str, *parts: bytes) -> bytes:
    return wire.nested(1, wire.text(1, name), wire.nested(2, *parts))
