"""Which proxy, if any, the environment puts between us and a URL.

The rules are those of the Go programs next to us, so that ``kubectl`` and we take the same way:
``HTTPS_PROXY`` or ``HTTP_PROXY`` by the URL's scheme, upper case first, never for the loopback;
``NO_PROXY`` lists hosts (with their subdomains), ``.suffixes``, addresses, CIDR blocks, or ``*``;
a host may have a port.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit


def proxy_for(url: str, environ: Mapping[str, str]) -> str | None:
    """The URL of the proxy for a URL, or None for the direct way."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".").lower()
    name = f"{parts.scheme}_proxy"
    proxy = environ.get(name.upper()) or environ.get(name) or ""
    if not proxy or is_loopback(host):
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    exempt = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    if any(_covers(entry.strip().lower(), host, port) for entry in exempt.split(",")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _covers(entry: str, host: str, port: int) -> bool:
    if not entry:
        return False
    if entry == "*":
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        pass
    name, _, number = entry.rpartition(":")
    if number.isdigit() and (name.endswith("]") or ":" not in name):
        if int(number) != port:
            return False
        entry = name.strip("[]")
    entry = entry.removeprefix("*")
    return host == entry or host.endswith(entry if entry.startswith(".") else f".{entry}")
