"""Schedules of CronJobs: five fields, or a word, as cron has understood them for decades."""

from __future__ import annotations

import re
import zoneinfo
from functools import lru_cache

MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec"
DAYS = "sun mon tue wed thu fri sat"
WORDS = frozenset({"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"})
FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of month", 1, 31, {}),
    ("month", 1, 12, {name: number for number, name in enumerate(MONTHS.split(), 1)}),
    ("day of week", 0, 6, {name: number for number, name in enumerate(DAYS.split())}),
)
_DURATION = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_ZONE = re.compile(r"(TZ|CRON_TZ)=([^ ]*) +(.*)\Z")
_ZONE_PART = re.compile(r"[A-Za-z.\-_0-9+]{1,14}\Z", re.ASCII)


def schedule_fault(text: str) -> str:
    """Why a text is no schedule; empty where it is one."""
    if text.startswith(("TZ=", "CRON_TZ=")):
        zoned = _ZONE.match(text)
        if zoned is None or not known_zone(zoned[2]):
            return "provided bad location"
        text = zoned[3]
    if text.startswith("@"):
        return _word_fault(text)
    parts = text.split()
    if not text:
        return "empty spec string"
    if len(parts) != len(FIELDS):
        return f"expected exactly 5 fields, found {len(parts)}: {parts}"
    for part, (name, low, high, words) in zip(parts, FIELDS, strict=True):
        for piece in part.split(","):
            why = _piece_fault(piece, low, high, words)
            if why and piece:
                return f"{why} in {name}: {part}"
    return ""


def _word_fault(text: str) -> str:
    if text in WORDS:
        return ""
    if text.startswith("@every "):
        rest = text.removeprefix("@every ")
        position = 0
        while position < len(rest):
            found = _DURATION.match(rest, position)
            if found is None or (position and rest[position] in "+-"):
                break
            position = found.end()
        if (rest and position == len(rest)) or rest in {"0", "+0", "-0"}:
            return ""
        return f"failed to parse duration {text}"
    return f"unrecognized descriptor: {text}"


def _piece_fault(piece: str, low: int, high: int, words: dict[str, int]) -> str:
    span, *steps = piece.split("/")
    if len(steps) > 1:
        return "too many slashes"
    start, *ends = span.split("-")
    if len(ends) > 1 and start not in {"*", "?"}:
        return "too many hyphens"
    if start in {"*", "?"}:
        begin, end = low, high
    else:
        first = _number(start, words)
        last = _number(ends[0], words) if ends else first
        if first is None or last is None:
            return "failed to parse a number"
        begin = first
        end = high if steps and not ends else last
    if steps:
        step = _number(steps[0], {})
        if step is None:
            return "failed to parse a step"
        if step == 0:
            return "step of range should be a positive number"
    if begin < low:
        return f"beginning of range ({begin}) below minimum ({low})"
    if end > high:
        return f"end of range ({end}) above maximum ({high})"
    if begin > end:
        return f"beginning of range ({begin}) beyond end of range ({end})"
    return ""


def _number(text: str, words: dict[str, int]) -> int | None:
    named = words.get(text.lower())
    if named is not None:
        return named
    return int(text) if re.match(r"\+?[0-9]+\Z", text, re.ASCII) else None


def zone_fault(name: str) -> str:
    """Why a text is no time zone; empty where it is one."""
    if not name:
        return "timeZone must be nil or non-empty string"
    for part in name.split("/"):
        if part in {".", ".."} or part.startswith("-") or not _ZONE_PART.match(part):
            return f"unknown time zone {name}"
    if name.lower() == "local":
        return "timeZone must be an explicit time zone as defined in the IANA database"
    return "" if known_zone(name) else f"unknown time zone {name}"


@lru_cache(maxsize=256)
def known_zone(name: str) -> bool:
    """Whether a name is in the time zone database; without a database every name is believed."""
    if name in {"", "UTC", "Local"}:
        return True
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return not _database()
    return True


@lru_cache(maxsize=1)
def _database() -> bool:
    return bool(zoneinfo.available_timezones())
