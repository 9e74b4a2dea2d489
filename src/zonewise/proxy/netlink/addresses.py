"""The addresses that interfaces have, asked of the kernel over netlink."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address

from zonewise.proxy.netlink import wire
from zonewise.proxy.netlink.nftables import IPV4, IPV6
from zonewise.proxy.netlink.socket import NETLINK_ROUTE, NetlinkSocket

_GET = 22
_ADDRESS, _LOCAL = 1, 2
_REST = struct.Struct("=I")
"""The part of an address' header that the header of all netlink families lacks: the interface."""


def interface_addresses() -> list[IPv4Address | IPv6Address]:
    """All of this thread's namespace, also the loopback's; link-local ones name their interface.

    Where the kernel was started without IPv6 it answers a question for it with all addresses
    there are, so a family is known by the length.
    """
    addresses: dict[IPv4Address | IPv6Address, None] = {}
    with NetlinkSocket(protocol=NETLINK_ROUTE) as link:
        for family in (IPV4, IPV6):
            for body in link.dump(_GET, family, bytes(_REST.size)):
                fields = wire.attributes(body[_REST.size :])
                packed = bytes(fields.get(_LOCAL, fields.get(_ADDRESS, b"")))
                if len(packed) == 4:
                    addresses[IPv4Address(packed)] = None
                elif len(packed) == 16:
                    address = IPv6Address(packed)
                    if address.is_link_local:
                        address = IPv6Address(f"{address}%{_REST.unpack_from(body)[0]}")
                    addresses[address] = None
    return list(addresses)
