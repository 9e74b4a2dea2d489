"""The kernel's conntrack table: its size and timeouts, if configured.

Nothing is changed that was not configured. A size is only ever raised: others may have reasons for
a larger one. A value that cannot be set, in a container without permission, is one warning and no
reason to stop: packets flow without it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from zonewise.api.errors import ConfigError
from zonewise.proxy.settings import Conntrack
from zonewise.runtime.process.logs import logger

_FOLDER = Path("/proc/sys/net/netfilter")
_UNITS = {"h": 3600, "m": 60, "s": 1}

_log = logger("sysctls")


def apply(conntrack: Conntrack, *, folder: Path = _FOLDER, cores: int | None = None) -> None:
    """Apply the configured values to the kernel."""
    for name, value in _values(conntrack, cores or os.cpu_count() or 1):
        file = folder / name
        try:
            now = int(file.read_text())
            if now == value or (name == "nf_conntrack_max" and now > value):
                continue
            file.write_text(str(value))
        except (OSError, ValueError) as error:
            _log.warning("a kernel setting was left alone", setting=name, error=str(error))


def _values(conntrack: Conntrack, cores: int) -> Iterator[tuple[str, int]]:
    most = max((conntrack.max_per_core or 0) * cores, conntrack.min or 0)
    if conntrack.max_per_core and most:
        yield "nf_conntrack_max", most
    if conntrack.tcp_be_liberal:
        yield "nf_conntrack_tcp_be_liberal", 1
    for name, text in (
        ("nf_conntrack_tcp_timeout_established", conntrack.tcp_established_timeout),
        ("nf_conntrack_tcp_timeout_close_wait", conntrack.tcp_close_wait_timeout),
        ("nf_conntrack_udp_timeout", conntrack.udp_timeout),
        ("nf_conntrack_udp_timeout_stream", conntrack.udp_stream_timeout),
    ):
        seconds = _seconds(text) if text else 0
        if seconds:
            yield name, seconds


def _seconds(text: str) -> int:
    """Whole seconds of a time as Go writes it: ``24h0m0s``."""
    total, digits = 0, ""
    for letter in text.strip():
        if letter.isdigit():
            digits += letter
        elif letter in _UNITS and digits:
            total += int(digits) * _UNITS[letter]
            digits = ""
        else:
            raise ConfigError(f"{text!r} is not a time such as 24h or 1h30m0s")
    if digits and digits.strip("0"):
        raise ConfigError(f"{text!r} has no unit; write it like 24h or 90s")
    return total
