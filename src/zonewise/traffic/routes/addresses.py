"""Addresses and networks as Kubernetes reads them, in the one form that is compared and written.

Kubernetes has always taken numbers with leading zeros as decimal (``010.0.0.1`` is ``10.0.0.1``)
and an IPv4 address in IPv6 clothes (``::ffff:10.0.0.1``) as IPv4. Both are read alike here, and the
result is canonical: equal addresses are equal texts.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Network, IPv6Address, IPv6Network
from typing import Literal, NamedTuple

_V4 = re.compile(r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(\.(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)){3}", re.A)
_V4_SPECIAL = re.compile(r"0\.0\.0\.0\Z|127\.|169\.254\.|224\.0\.0\.")
_V6_LINK_GROUPS = ("ff01", "ff02")
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
    """What a text means as an address, None if it is none."""
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
        four = parse_address(tail)
        if four is None:
            return None
        text = head + colon + four.text
    try:
        address = IPv6Address(text)
    except AddressValueError:
        return None
    if address.ipv4_mapped is not None:
        return parse_address(str(address.ipv4_mapped))
    special = address.is_unspecified or address.is_loopback or address.is_link_local
    return Address("IPv6", str(address), special or text[:4].lower() in _V6_LINK_GROUPS)


def parse_network(text: str) -> Network | None:
    """What a text means as a network, None if it is none; bits of a host in it do not count."""
    front, slash, length = text.partition("/")
    address = parse_address(front)
    if address is None or not slash or not _DIGITS.fullmatch(length) or len(length) > 3:
        return None
    prefix, six = int(length), ":" in front
    if six is not (address.family == "IPv6") or prefix > (_V6_BITS if six else _V4_BITS):
        return None
    kind = IPv6Network if six else IPv4Network
    return Network(address.family, str(kind((address.text, prefix), strict=False)), prefix)


def contains(network: str, address: str) -> bool:
    """Whether an address is in a network, both canonical and of one family."""
    kind = IPv6Network if ":" in network else IPv4Network
    front, _, length = network.partition("/")
    return kind((address, int(length)), strict=False) == kind((front, int(length)))
