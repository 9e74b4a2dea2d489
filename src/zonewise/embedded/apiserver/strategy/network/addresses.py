"""Addresses endpoints may have."""

from __future__ import annotations

import ipaddress

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_LOCAL_MULTICAST = (ipaddress.ip_network("224.0.0.0/24"), ipaddress.ip_network("ff02::/16"))
NOT_AN_ADDRESS = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"


def parse(text: str) -> IPAddress | None:
    """The address a text is, or None; zones and names are none."""
    if "%" in text:
        return None
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def canonical(address: IPAddress, text: str) -> bool:
    """Whether this is the one way to write the address, and it is of one family only."""
    mapped = isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None
    return not mapped and str(address) == text


def special(address: IPAddress) -> str:
    """Why traffic cannot be sent to an address; empty where it can."""
    for condition, why in (
        (address.is_unspecified, "may not be unspecified (0.0.0.0 or ::)"),
        (address.is_loopback, "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
        (address.is_link_local, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        (
            any(address in block for block in _LOCAL_MULTICAST),
            "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)",
        ),
    ):
        if condition:
            return why
    return ""
