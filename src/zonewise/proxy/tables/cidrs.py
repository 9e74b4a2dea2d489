"""Networks of one family, merged: sets of ranges in the kernel refuse those that overlap."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, collapse_addresses
from typing import Any

from zonewise.proxy.tables.ruleset import FamilyName


def merged(family: FamilyName, texts: Iterable[str]) -> tuple[IPv4Network | IPv6Network, ...]:
    """The networks and addresses of a family, as few as possible; what is none is left out."""
    make = IPv4Network if family == "IPv4" else IPv6Network
    found: list[Any] = []
    for text in texts:
        try:
            found.append(make(text.strip(), strict=False))
        except ValueError:
            continue
    return tuple(collapse_addresses(found))
