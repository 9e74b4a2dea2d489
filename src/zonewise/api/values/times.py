"""Times on the wire.

Kubernetes has two: Time, whole seconds (``2026-01-02T03:04:05Z``), and MicroTime, which Leases and
Events use and which API servers accept only with exactly six fractional digits. Reading is liberal,
as RFC 3339 is: any number of fractional digits (beyond a microsecond they are cut off) and any
offset. Writing is UTC and exact. No function here reads the clock.

Users write durations as ``90s``, ``1m30s`` or ``500ms``; ``parse_duration`` reads them.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

from zonewise.api.errors import ParseError

_RFC3339 = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt](\d{2}:\d{2}:\d{2})(?:\.(\d+))?(?:([Zz])|([+-])(\d{2}):(\d{2}))",
    re.ASCII,
)

_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse(text: str) -> datetime:
    """Parse a time, into UTC."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ParseError(f"not an RFC 3339 time: {text[:64]!r}")
    day, clock, fraction, _, sign, hours, minutes = match.groups()
    zone: timezone = UTC
    try:
        if sign is not None:
            offset = timedelta(hours=int(hours), minutes=int(minutes))
            if int(hours) > 23 or int(minutes) > 59:
                raise ValueError("the offset is beyond 23:59")
            zone = timezone(offset if sign == "+" else -offset)
        moment = datetime.fromisoformat(f"{day}T{clock}")
        micros = int((fraction or "0")[:6].ljust(6, "0"))
        return moment.replace(microsecond=micros, tzinfo=zone).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ParseError(f"not a time: {text[:64]!r}: {error}") from error


def format_time(moment: datetime) -> str:
    """Time as Kubernetes writes it: whole seconds, cut off, UTC."""
    return _utc(moment).isoformat(timespec="seconds") + "Z"


def format_micro(moment: datetime) -> str:
    """MicroTime as Kubernetes writes and demands it: exactly six digits, UTC."""
    return _utc(moment).isoformat(timespec="microseconds") + "Z"


def from_epoch(seconds: float) -> datetime:
    """The moment that is ``seconds`` after 1970, to the microsecond."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


def parse_duration(text: str) -> float:
    """Parse a duration as people write it, into seconds."""
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ParseError(f'"{text[:64]}" is not a time; write it like 10s, 1m30s or 500ms')
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ParseError(f"a time without a zone is ambiguous: {moment.isoformat()}")
    return moment.astimezone(UTC).replace(tzinfo=None)
