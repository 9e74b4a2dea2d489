"""The kernel's table of connections over netlink: UDP flows, found and removed.

Flows are requested by original destination, and the kernel filters (Linux 5.8): by protocol, by
port and, for IPv4, by address. Not by IPv6 addresses: the kernel compares those the wrong way round
(``ctnetlink_filter_match_tuple``, up to 6.18 at least) and leaves out just the requested flows. For
those all flows to the port are requested; an older kernel ignores the filter and sends every flow.
So the answer is filtered again here.
"""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from zonewise.proxy.netlink import wire
from zonewise.proxy.netlink.nftables import IPV4, NetlinkFamily
from zonewise.proxy.netlink.socket import NetlinkError, NetlinkSocket

UDP = 17

_GET = 1 << 8 | 1
_DELETE = 1 << 8 | 2

_ORIGINAL, _REPLY, _STATUS, _ID, _FILTER = 1, 2, 3, 12, 25
_IP, _PROTOCOL = 1, 2
_IPV4_SOURCE, _IPV4_TARGET, _IPV6_SOURCE, _IPV6_TARGET = 1, 2, 3, 4
_NUMBER, _SOURCE_PORT, _TARGET_PORT = 1, 2, 3
_FILTER_ORIGINAL = 1
_BY_TARGET, _BY_NUMBER, _BY_TARGET_PORT = 1 << 1, 1 << 3, 1 << 5
_REWRITTEN = 1 << 5
_ORDER: Literal["little", "big"] = sys.byteorder


@dataclass(frozen=True, slots=True)
class UdpFlow:
    """A UDP flow: where its packets were sent to, and which address answers them.

    ``rewritten`` says that the destination was changed by NAT. ``handle`` identifies it for
    removal.
    """

    target: str
    target_port: int
    answered_by: str
    answered_from: int
    rewritten: bool
    handle: bytes


def flows(
    link: NetlinkSocket,
    family: NetlinkFamily,
    *,
    target: str | None = None,
    port: int | None = None,
) -> Iterator[UdpFlow]:
    """The UDP flows to an address and a port; None is any."""
    protocol = [wire.attribute(_NUMBER, bytes((UDP,)))]
    flags = _BY_NUMBER
    parts = []
    if target is not None and family == IPV4:
        parts.append(
            wire.nested(_IP, wire.attribute(_IPV4_TARGET, socket.inet_pton(socket.AF_INET, target)))
        )
        flags |= _BY_TARGET
    if port is not None:
        protocol.append(wire.attribute(_TARGET_PORT, port.to_bytes(2, "big")))
        flags |= _BY_TARGET_PORT
    parts.append(wire.nested(_PROTOCOL, *protocol))
    criteria = wire.attribute(_FILTER_ORIGINAL, flags.to_bytes(4, _ORDER))
    body = wire.nested(_ORIGINAL, *parts) + wire.nested(_FILTER, criteria)
    for entry in link.dump(_GET, family, body):
        flow = _read(family, entry)
        if flow is None or target not in (None, flow.target):
            continue
        if port in (None, flow.target_port):
            yield flow


def remove(link: NetlinkSocket, family: NetlinkFamily, flow: UdpFlow) -> bool:
    """Remove a flow; False if it no longer existed."""
    try:
        link.request(_DELETE, 0, family, flow.handle)
    except NetlinkError as error:
        if error.code == errno.ENOENT:
            return False
        raise
    return True


def _read(family: NetlinkFamily, body: memoryview) -> UdpFlow | None:
    fields = wire.attributes(body)
    original, reply = (wire.attributes(fields[kind]) for kind in (_ORIGINAL, _REPLY))
    protocol = wire.attributes(original[_PROTOCOL])
    if protocol[_NUMBER][0] != UDP:
        return None
    four = family == IPV4
    source, target = (_IPV4_SOURCE, _IPV4_TARGET) if four else (_IPV6_SOURCE, _IPV6_TARGET)
    kind = socket.AF_INET if four else socket.AF_INET6
    answering = wire.attributes(reply[_PROTOCOL])
    status = wire.read_number(fields[_STATUS]) if _STATUS in fields else 0
    return UdpFlow(
        target=socket.inet_ntop(kind, wire.attributes(original[_IP])[target]),
        target_port=wire.read_number(protocol[_TARGET_PORT]),
        answered_by=socket.inet_ntop(kind, wire.attributes(reply[_IP])[source]),
        answered_from=wire.read_number(answering[_SOURCE_PORT]),
        rewritten=bool(status & _REWRITTEN),
        handle=_handle(fields),
    )


def _handle(fields: wire.NetlinkAttributes) -> bytes:
    """The flow by its packets and its number: one that took its place meanwhile is another."""
    packets = wire.attribute(_ORIGINAL | 0x8000, bytes(fields[_ORIGINAL]))
    return packets + wire.attribute(_ID, bytes(fields[_ID]))
