"""IP addresses and networks in objects."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from functools import lru_cache

from zonewise.api.field_cursor import NOTHING, Field

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

NOT_AN_ADDRESS = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
NOT_A_NETWORK = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
LONGEST_ADDRESS = 45
_LOCAL_MULTICAST = (ipaddress.ip_network("224.0.0.0/24"), ipaddress.ip_network("ff02::/16"))


def parse_address(text: str) -> IPAddress | None:
    """The address a text is; None for names and for addresses with a zone."""
    if "%" in text:
        return None
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def validate_network(network: Field) -> IPNetwork | None:
    """A network, whatever is behind its prefix; None if it is not valid."""
    text = network.value
    if "/" in text:
        with suppress(ValueError):
            return ipaddress.ip_network(text, strict=False)
    network.invalid(NOT_A_NETWORK)
    return None


def is_mapped(address: IPAddress) -> bool:
    """Whether an address of IPv6 stands for one of IPv4."""
    return isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None


def is_canonical(address: IPAddress, text: str) -> bool:
    """Whether a text is the canonical form of the address, and the address of one family only."""
    return not is_mapped(address) and str(address) == text


def special_use(address: IPAddress) -> str:
    """Why traffic cannot be sent to an address; empty where it can."""
    if address.is_unspecified:
        return "may not be unspecified (0.0.0.0 or ::)"
    if address.is_loopback:
        return "may not be in the loopback range (127.0.0.0/8, ::1/128)"
    if address.is_link_local:
        return "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
    if address.is_multicast and any(address in block for block in _LOCAL_MULTICAST):
        return "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"
    return ""


def validate_ip(address: Field) -> Field:
    """An IP address; an IPv4 address in IPv6 notation is not valid."""
    if is_ip(address.value):
        return address
    address.invalid(NOT_AN_ADDRESS)
    return NOTHING


def is_ip(text: str) -> bool:
    """Whether a text is an IP address; an IPv4 address in IPv6 notation is not valid."""
    return len(text) <= LONGEST_ADDRESS and _is_ip(text)


@lru_cache(maxsize=4096)
def _is_ip(text: str) -> bool:
    try:
        if ":" in text:
            return "%" not in text and ipaddress.IPv6Address(text).ipv4_mapped is None
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True
