"""Cron schedules: five fields, a word or an interval, and when each is due next.

One parser serves validation and the CronJob controller: what parses is valid, and an error has
Kubernetes' words. Days are counted in the schedule's time zone: an hour that a clock change skips
is skipped, and one that it repeats is repeated. If both the day of the month and the day of the
week are limited, either is enough. A schedule may name a day that never comes; after five years
without one the answer is None.
"""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache

MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec"
DAYS = "sun mon tue wed thu fri sat"
FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of month", 1, 31, {}),
    ("month", 1, 12, {name: number for number, name in enumerate(MONTHS.split(), 1)}),
    ("day of week", 0, 6, {name: number for number, name in enumerate(DAYS.split())}),
)
DESCRIPTORS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}
_DURATION_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_DURATION = re.compile(rf"(?P<sign>[-+]?)(?:0|(?:{_DURATION_PART.pattern})+)", re.ASCII)
_ZONED = re.compile(r"(?:CRON_)?TZ=([^ ]*) +(.*)", re.DOTALL)
_ZONE_PART = re.compile(r"[A-Za-z.\-_0-9+]{1,14}", re.ASCII)
_MAX_LOOKAHEAD = timedelta(days=5 * 366)


class InvalidSchedule(ValueError):
    """A text that is not a schedule; the message says why."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A schedule that is due every so many seconds."""

    seconds: int

    def next(self, start: datetime) -> datetime | None:
        """The first time that is due after ``start``."""
        return start.replace(microsecond=0) + timedelta(seconds=self.seconds)


@dataclass(frozen=True, slots=True)
class CalendarSchedule:
    """A schedule of certain minutes of certain days."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day_match: bool
    """Whether a matching day of the month or of the week is enough."""
    zone: tzinfo

    def next(self, start: datetime) -> datetime | None:
        """The first time that is due after ``start``."""
        local = start.astimezone(self.zone)
        day, last = local.date(), local.date() + _MAX_LOOKAHEAD
        while day <= last:
            if self._is_due_on(day):
                for time in self._times_on(day, local.hour if day == local.date() else 0):
                    if time > start:
                        return time
            day += timedelta(days=1)
        return None

    def _is_due_on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return (of_month or of_week) if self.any_day_match else (of_month and of_week)

    def _times_on(self, day: date, first_hour: int) -> Iterator[datetime]:
        for hour in self.hours:
            if hour < first_hour:
                continue
            hour_start = datetime(day.year, day.month, day.day, hour, tzinfo=self.zone)
            repeated = hour_start.utcoffset() != hour_start.replace(fold=1).utcoffset()
            for fold in (0, 1) if repeated else (0,):
                for minute in self.minutes:
                    local_time = hour_start.replace(minute=minute, fold=fold)
                    time = local_time.astimezone(UTC)
                    if time.astimezone(self.zone).replace(fold=fold) == local_time:
                        yield time


Schedule = Interval | CalendarSchedule


@lru_cache(maxsize=1024)
def parse_schedule(text: str, zone: str = "") -> Schedule:
    """Parse a schedule; ``zone`` counts where the text names none.

    Raises ``InvalidSchedule`` for a text that is not a schedule, ``ZoneInfoNotFoundError`` for an
    unknown ``zone``.
    """
    if text.startswith(("TZ=", "CRON_TZ=")):
        match = _ZONED.fullmatch(text)
        if match is None or not is_known_zone(match[1]):
            raise InvalidSchedule("provided bad location")
        zone, text = match[1], match[2]
    if text.startswith("@every "):
        return _parse_interval(text)
    if text.startswith("@") and text not in DESCRIPTORS:
        raise InvalidSchedule(f"unrecognized descriptor: {text}")
    fields = DESCRIPTORS.get(text, text).split()
    if not text:
        raise InvalidSchedule("empty spec string")
    if len(fields) != len(FIELDS):
        raise InvalidSchedule(f"expected exactly 5 fields, found {len(fields)}: {fields}")
    minutes, hours, days, months, weekdays = (
        _parse_field(field, *limits) for field, limits in zip(fields, FIELDS, strict=True)
    )
    return CalendarSchedule(
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=days,
        months=months,
        weekdays=weekdays,
        any_day_match=not (_is_unlimited(fields[2]) or _is_unlimited(fields[4])),
        zone=zoneinfo.ZoneInfo(zone) if zone not in ("", "UTC", "Local") else UTC,
    )


def _parse_interval(text: str) -> Interval:
    spans = _DURATION.fullmatch(text.removeprefix("@every "))
    if spans is None:
        raise InvalidSchedule(f"failed to parse duration {text}")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in _DURATION_PART.findall(spans[0]))
    if spans["sign"] == "-":
        seconds = 0
    return Interval(int(min(max(seconds, 1), _MAX_LOOKAHEAD.total_seconds())))


def _is_unlimited(field: str) -> bool:
    return any(part in ("*", "?", "*/1", "?/1") for part in field.split(","))


def _parse_field(
    field: str, name: str, low: int, high: int, words: dict[str, int]
) -> frozenset[int]:
    values: set[int] = set()
    for part in filter(None, field.split(",")):
        try:
            values.update(_parse_range(part, low, high, words))
        except InvalidSchedule as error:
            raise InvalidSchedule(f"{error} in {name}: {field}") from None
    return frozenset(values)


def _parse_range(part: str, low: int, high: int, words: dict[str, int]) -> range:
    span, *steps = part.split("/")
    if len(steps) > 1:
        raise InvalidSchedule("too many slashes")
    start, *ends = span.split("-")
    if len(ends) > 1 and start not in {"*", "?"}:
        raise InvalidSchedule("too many hyphens")
    if start in {"*", "?"}:
        begin, end = low, high
    else:
        begin = _parse_number(start, words, "number")
        last = _parse_number(ends[0], words, "number") if ends else begin
        end = high if steps and not ends else last
    step = _parse_number(steps[0], {}, "step") if steps else 1
    if step == 0:
        raise InvalidSchedule("step of range should be a positive number")
    if begin < low:
        raise InvalidSchedule(f"beginning of range ({begin}) below minimum ({low})")
    if end > high:
        raise InvalidSchedule(f"end of range ({end}) above maximum ({high})")
    if begin > end:
        raise InvalidSchedule(f"beginning of range ({begin}) beyond end of range ({end})")
    return range(begin, end + 1, step)


def _parse_number(text: str, words: dict[str, int], label: str) -> int:
    value = words.get(text.lower())
    if value is not None:
        return value
    # Dates need few digits, and int() refuses thousands of them.
    if re.fullmatch(r"\+?[0-9]{1,18}", text, re.ASCII) is None:
        raise InvalidSchedule(f"failed to parse a {label}")
    return int(text)


def schedule_error(text: str) -> str:
    """Why a text is not a schedule; empty if it is one."""
    try:
        parse_schedule(text)
    except InvalidSchedule as error:
        return str(error)
    except zoneinfo.ZoneInfoNotFoundError:
        return ""  # without a database of zones every name is accepted
    return ""


def time_zone_error(name: str) -> str:
    """Why a text is not a time zone; empty if it is one."""
    if not name:
        return "timeZone must be nil or non-empty string"
    for part in name.split("/"):
        if part in {".", ".."} or part.startswith("-") or not _ZONE_PART.fullmatch(part):
            return f"unknown time zone {name}"
    if name.lower() == "local":
        return "timeZone must be an explicit time zone as defined in the IANA database"
    return "" if is_known_zone(name) else f"unknown time zone {name}"


@lru_cache(maxsize=256)
def is_known_zone(name: str) -> bool:
    """Whether a name is in the time zone database; without one every name is accepted."""
    if name in {"", "UTC", "Local"}:
        return True
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return not _has_zone_database()
    return True


@lru_cache(maxsize=1)
def _has_zone_database() -> bool:
    return bool(zoneinfo.available_timezones())
