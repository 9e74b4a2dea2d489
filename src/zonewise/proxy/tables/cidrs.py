"""Networks of one family, merged: sets of ranges in the kernel refuse those that overlap."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network
from typing import Any

from zonewise.proxy.tables.ruleset import FamilyName
from zonewise.traffic.routes.addresses import parse_address, parse_network

_LOOPBACK = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))


def merged(family: FamilyName, texts: Iterable[str]) -> tuple[IPv4Network | IPv6Network, ...]:
    """The networks and addresses of a family, as few as possible; invalid ones are left out.

    These become text for ``nft``. Python's own networks would let an address carry a zone
    (``fe80::1%`` and then any text), so texts are read as strictly as all addresses here are.
    """
    make = IPv4Network if family == "IPv4" else IPv6Network
    networks: list[Any] = []
    for text in map(str.strip, texts):
        parsed = parse_network(text) if "/" in text else parse_address(text)
        if parsed is not None and parsed.family == family:
            networks.append(make(parsed.text))
    return tuple(collapse_addresses(networks))


def loops_back(text: str) -> bool:
    """Whether a network has loopback addresses, which no Service can have."""
    parsed = parse_network(text.strip())
    if parsed is None:
        return False
    network: Any = ip_network(parsed.text)
    return any(network.version == own.version and network.overlaps(own) for own in _LOOPBACK)
