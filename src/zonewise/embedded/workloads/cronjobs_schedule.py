"""When a CronJob is due: schedules as sets of minutes, hours, days and months.

A schedule is read once (``rules.schedules`` says what may be written) and then asked for the next
moment after another. Days are counted in the schedule's time zone: an hour that a clock change
leaves out is left out, and one that it repeats is repeated. If both the day of the month and the
day of the week are limited, either is enough. A schedule may name a day that never comes; after
five years without one the answer is None.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from zonewise.embedded.rules.schedules import FIELDS

_WORDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}
_SPAN = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_ZONED = re.compile(r"(?:CRON_)?TZ=(\S*) +(.*)", re.DOTALL)
_HORIZON = timedelta(days=5 * 366)


@dataclass(frozen=True, slots=True)
class Every:
    """Again and again after so many seconds."""

    seconds: int

    def next(self, after: datetime) -> datetime | None:
        """The first moment that is due after another."""
        return after.replace(microsecond=0) + timedelta(seconds=self.seconds)


@dataclass(frozen=True, slots=True)
class Calendar:
    """At certain minutes of certain days."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either: bool
    """Whether a fitting day of the month or of the week is enough."""
    zone: tzinfo

    def next(self, after: datetime) -> datetime | None:
        """The first moment that is due after another."""
        local = after.astimezone(self.zone)
        day, last = local.date(), local.date() + _HORIZON
        while day <= last:
            if self._fits(day):
                for moment in self._moments(day, local.hour if day == local.date() else 0):
                    if moment > after:
                        return moment
            day += timedelta(days=1)
        return None

    def _fits(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return (of_month or of_week) if self.either else (of_month and of_week)

    def _moments(self, day: date, first: int) -> Iterator[datetime]:
        for hour in self.hours:
            if hour < first:
                continue
            begin = datetime(day.year, day.month, day.day, hour, tzinfo=self.zone)
            repeated = begin.utcoffset() != begin.replace(fold=1).utcoffset()
            for fold in (0, 1) if repeated else (0,):
                for minute in self.minutes:
                    wall = begin.replace(minute=minute, fold=fold)
                    moment = wall.astimezone(UTC)
                    if moment.astimezone(self.zone).replace(fold=fold) == wall:
                        yield moment


Schedule = Every | Calendar


@lru_cache(maxsize=1024)
def read(text: str, zone: str) -> Schedule:
    """The schedule a valid text is; ``zone`` counts where the text names none.

    Raises ``ZoneInfoNotFoundError`` for a zone nobody knows.
    """
    if (zoned := _ZONED.fullmatch(text)) is not None:
        zone, text = zoned[1], zoned[2]
    if text.startswith("@every "):
        parts = _SPAN.findall(text)
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
        return Every(int(min(max(seconds, 1), _HORIZON.total_seconds())))
    fields = _WORDS.get(text, text).split()
    sets = [
        _values(field, low, high, words)
        for field, (_, low, high, words) in zip(fields, FIELDS, strict=True)
    ]
    return Calendar(
        minutes=tuple(sorted(sets[0])),
        hours=tuple(sorted(sets[1])),
        days=sets[2],
        months=sets[3],
        weekdays=sets[4],
        either=not (_unlimited(fields[2]) or _unlimited(fields[4])),
        zone=ZoneInfo(zone) if zone not in ("", "UTC", "Local") else UTC,
    )


def _unlimited(field: str) -> bool:
    return any(piece in ("*", "?", "*/1", "?/1") for piece in field.split(","))


def _values(field: str, low: int, high: int, words: dict[str, int]) -> frozenset[int]:
    found: set[int] = set()
    for piece in filter(None, field.split(",")):
        span, _, step = piece.partition("/")
        first, dash, last = span.partition("-")
        if first in ("*", "?"):
            begin, end = low, high
        else:
            begin = _number(first, words)
            end = _number(last, words) if dash else high if step else begin
        found.update(range(begin, end + 1, int(step or 1)))
    return frozenset(found)


def _number(text: str, words: dict[str, int]) -> int:
    return words[text.lower()] if text.lower() in words else int(text)
