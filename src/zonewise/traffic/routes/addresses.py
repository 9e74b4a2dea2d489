"""Addresses and networks as Kubernetes reads them, in the one form that is compared and written.

Kubernetes has always read numbers with leading zeros as decimal (``010.0.0.1`` is ``10.0.0.1``) and
an IPv4-mapped IPv6 address (``::ffff:10.0.0.1``) as IPv4. So does this module, and the result is
canonical: equal addresses are equal texts.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Network, IPv6Address, IPv6Network
from typing import Literal, NamedTuple

_V4 = re.compile(r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(\.(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)){3}", re.A)
_V4_SPECIAL = re.compile(r"0\.0\.0\.0\Z|127\.|169\.254\.|224\.0\.0\.")
_V6_LOCAL_MULTICAST = ("ff01", "ff02")
_DIGITS = re.compile(r"[0-9]+")
_V4_BITS, _V6_BITS = 32, 128


class Address(NamedTuple):
    """An address and its family; ``special``: not reachable over a network."""

    family: Literal["IPv4", "IPv6"]
    text: str
    special: bool = False


class Network(NamedTuple):
    """A network, its family, and how many bits of an address it fixes."""

    family: Literal["IPv4", "IPv6"]
    text: str
    prefix: int


@lru_cache(maxsize=1 << 16)
def parse_address(text: str) -> Address | None:
    """The address that a text is, None if it is not one."""
    if _V4.fullmatch(text):
        return Address("IPv4", text, bool(_V4_SPECIAL.match(text)))
    if ":" not in text:
        parts = text.split(".")
        if len(parts) != 4 or not all(map(_DIGITS.fullmatch, parts)):
            return None
        decimal = ".".join(part.lstrip("0") or "0" for part in parts)
        return parse_address(decimal) if _V4.fullmatch(decimal) else None
    if "%" in text:
        return None
    head, colon, tail = text.rpartition(":")
    if "." in tail:
        ipv4 = parse_address(tail)
        if ipv4 is None:
            return None
        text = head + colon + ipv4.text
    try:
        address = IPv6Address(text)
    except AddressValueError:
        return None
    if address.ipv4_mapped is not None:
        return parse_address(str(address.ipv4_mapped))
    special = address.is_unspecified or address.is_loopback or address.is_link_local
    return Address("IPv6", str(address), special or text[:4].lower() in _V6_LOCAL_MULTICAST)


def parse_network(text: str) -> Network | None:
    """The network that a text is, None if it is not one; host bits are ignored."""
    host, slash, length = text.partition("/")
    address = parse_address(host)
    if address is None or not slash or not _DIGITS.fullmatch(length) or len(length) > 3:
        return None
    prefix, is_ipv6 = int(length), ":" in host
    if is_ipv6 is not (address.family == "IPv6") or prefix > (_V6_BITS if is_ipv6 else _V4_BITS):
        return None
    network_class = IPv6Network if is_ipv6 else IPv4Network
    return Network(address.family, str(network_class((address.text, prefix), strict=False)), prefix)


def network_contains(network: str, address: str) -> bool:
    """Whether an address is in a network, both canonical and of one family."""
    network_class = IPv6Network if ":" in network else IPv4Network
    host, _, length = network.partition("/")
    return network_class((address, int(length)), strict=False) == network_class((host, int(length)))
