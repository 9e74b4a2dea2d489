"""The chain that draws an endpoint, over netlink.

``ruleset.slots`` says the same as text. nft 1.0.6 takes that text only together with the map's own
declaration: a map that it reads back from the kernel has lost what "th dport" means, and it refuses
("conflicting protocols specified"). So a chain that is added later is made of expressions here, the
very ones nft makes, in the same registers; it lists them as it lists its own.
"""

from __future__ import annotations

from zonewise.proxy.netlink import wire
from zonewise.proxy.netlink.nftables import IPV4, NetlinkFamily, NetlinkMessage

_NEWCHAIN = 10 << 8 | 3
_NEWRULE = 10 << 8 | 6
_APPEND = 0x800

_FIRST = 8
"""The first register of four bytes."""

_NETWORK, _TRANSPORT = 1, 2
_L4PROTO = 16
_RANDOM = 1
_DNAT = 1


def draw_chain(
    family: NetlinkFamily,
    table: str,
    chain: str,
    found: str,
    *,
    counts: tuple[int, ...],
    first: int,
    by_address: bool,
) -> list[NetlinkMessage]:
    """A chain with a rule per count: draw a slot, look it up with the way, go to what is found.

    Slots begin at ``first``. A way is an address, protocol and port, or without the address.
    """
    named = wire.text(1, table)
    messages: list[NetlinkMessage] = [
        (_NEWCHAIN, wire.NLM_F_CREATE, family, named + wire.text(3, chain))
    ]
    size, offset = (4, 16) if family == IPV4 else (16, 24)
    for count in counts:
        at = _FIRST
        parts = [_drawn(at, count, first)]
        at += 1
        if by_address:
            parts.append(_payload(at, _NETWORK, offset, size))
            at += size // 4
        parts.append(_expression("meta", wire.number(1, at), wire.number(2, _L4PROTO)))
        parts.append(_payload(at + 1, _TRANSPORT, 2, 2))
        parts.append(
            _expression(
                "lookup", wire.text(1, found), wire.number(2, _FIRST), wire.number(3, _FIRST)
            )
        )
        parts.append(
            _expression(
                "nat",
                wire.number(1, _DNAT),
                wire.number(2, family),
                wire.number(3, _FIRST),
                wire.number(4, _FIRST),
                wire.number(5, _FIRST + size // 4),
                wire.number(6, _FIRST + size // 4),
            )
        )
        body = named + wire.text(2, chain) + wire.nested(4, *parts)
        messages.append((_NEWRULE, wire.NLM_F_CREATE | _APPEND, family, body))
    return messages


def _drawn(register: int, count: int, first: int) -> bytes:
    offset = [wire.number(4, first)] if first else []
    return _expression(
        "numgen",
        wire.number(1, register),
        wire.number(2, count),
        wire.number(3, _RANDOM),
        *offset,
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
