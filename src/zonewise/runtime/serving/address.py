"""Addresses to listen on: parsing them, and why one cannot be bound."""

from __future__ import annotations

import os
import socket
from ipaddress import ip_address

from zonewise.api.errors import ConfigError
from zonewise.api.values.numbers import parse_natural

LISTEN = "127.0.0.1:9464"


def parse_listen(text: str, flag: str = "", example: str = LISTEN) -> tuple[str, int]:
    """Host and port of ``127.0.0.1:9464``, ``[::1]:9464``, ``host:9464`` or ``:9464`` (all).

    An error names the flag, and gives the example.
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        valid = is_address(host)
    else:
        valid = ":" not in host
    number = parse_natural(port)
    if not colon or not valid or number is None or number > 65535:
        quoted = f"{flag} {text[:100]!r}" if flag else repr(text[:100])
        raise ConfigError(f"{quoted} is not an address with a port; write it like {example}")
    return host, number


def is_address(text: str) -> bool:
    """Whether it is an address of either family, and nothing else."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def why_not(error: OSError) -> str:
    """Why an address cannot be bound, in the system's words; asyncio adds its own."""
    if error.errno is None or isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)
