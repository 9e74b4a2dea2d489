"""The client of a question: the packet's source, or the client that a trusted front end names.

EDNS Client Subnet (RFC 7871) counts only from configured networks. A front end that passes the full
address of a pod gets the same answers as the pod itself; a shorter prefix names no client, which is
an unknown location. The option is repeated with the scope of its own prefix, so that no cache gives
the answer to another client.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from zonewise.dns.wire import SUBNET, Malformed, Question, option_bytes

IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_BITS = {1: 32, 2: 128}


@dataclass(frozen=True, slots=True)
class Asker:
    """A client by its address, "" if unknown, and the option that goes into the answer."""

    address: str
    option: bytes = b""


def read_asker(question: Question, source: str, trusted: Sequence[IPNetwork]) -> Asker:
    """The client; an invalid option from a trusted front end is ``Malformed``."""
    if question.edns is None or not question.edns.options or not trusted:
        return Asker(source)
    data = next((data for code, data in question.edns.options if code == SUBNET), None)
    if data is None or not _within(source, trusted):
        return Asker(source)
    if len(data) < 4:
        raise Malformed("a subnet that is cut off")
    family, prefix, scope = int.from_bytes(data[:2], "big"), data[2], data[3]
    bits = _BITS.get(family, 0)
    if prefix > bits or scope or len(data) != 4 + (prefix + 7) // 8:
        raise Malformed("an invalid subnet")
    packed = data[4:].ljust(bits // 8, b"\0")
    number = int.from_bytes(packed, "big")
    if bits and number & ((1 << (bits - prefix)) - 1):
        raise Malformed("a subnet with bits outside of its prefix")
    option = option_bytes(SUBNET, data[:3] + bytes([prefix]) + data[4:])
    if not bits or prefix < bits:
        return Asker("", option)
    return Asker(plain(str(ipaddress.ip_address(packed))), option)


def plain(source: str) -> str:
    """A source address as locators have it: IPv4 inside of IPv6 is IPv4, no interface."""
    if ":" not in source:
        return source
    address = ipaddress.IPv6Address(source.partition("%")[0])
    return str(address.ipv4_mapped or address)


def _within(source: str, networks: Sequence[IPNetwork]) -> bool:
    address = ipaddress.ip_address(plain(source))
    return any(address in network for network in networks)
