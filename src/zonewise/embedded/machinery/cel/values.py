"""The values of CEL: Python's own where they mean the same, otherwise classes.

bool, int, float, str, bytes, list, dict and None are themselves. An unsigned number is a subclass
of int. Times and durations count nanoseconds, as the real server's do. Arithmetic that leaves 64
bits is an error, never a bigger number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any
from zoneinfo import ZoneInfo

from zonewise.api.values.numbers import parse_natural

SECOND = 1_000_000_000
UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": SECOND,
    "m": 60 * SECOND,
    "h": 3600 * SECOND,
}
_DECIMAL_PLACES = 18
"""Decimal places of a duration that can change its nanoseconds."""

_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_INSTANT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9})\d*)?([Zz]|[+-]\d\d:\d\d)"
)
EARLIEST, LATEST = -62_135_596_800, 253_402_300_799
INT = range(-(2**63), 2**63)
UINT = range(2**64)


class EvaluationError(Exception):
    """An expression cannot be evaluated for these values."""


class UInt(int):
    """An unsigned integer."""

    __slots__ = ()


class TypeName(str):
    """A type as a value: the result of ``type(x)``."""

    __slots__ = ()


def check_int(value: int) -> int:
    """A result of signed arithmetic, if it fits in 64 bits."""
    if not -(2**63) <= value < 2**63:
        raise EvaluationError("integer overflow")
    return value


def check_uint(value: int) -> UInt:
    """A result of unsigned arithmetic, if it fits in 64 bits."""
    if not 0 <= value < 2**64:
        raise EvaluationError("unsigned integer overflow")
    return UInt(value)


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A length of time."""

    nanoseconds: int

    def __post_init__(self) -> None:
        check_int(self.nanoseconds)

    @classmethod
    def parse(cls, text: str) -> Duration:
        """Parse ``1h30m`` or ``-1.5s``; a missing unit is an error."""
        body = text[1:] if text[:1] in ("-", "+") else text
        total, end = Fraction(0), 0
        for match in _PART.finditer(body):
            if match.start() != end:
                break
            whole, _, part = match[1].partition(".")
            number = parse_natural(whole or "0")
            if number is None:
                break
            total += (number + Fraction(f"0.{part[:_DECIMAL_PLACES] or 0}")) * UNITS[match[2]]
            end = match.end()
        if body == "0":
            return cls(0)
        if end != len(body) or not body:
            raise EvaluationError(f'time: invalid duration "{text}"')
        return cls(int(-total if text[0] == "-" else total))

    def __str__(self) -> str:
        return f"{format_decimal(Fraction(self.nanoseconds, SECOND))}s"


def format_decimal(value: Fraction) -> str:
    """A decimal without trailing zeros."""
    sign = "-" if value < 0 else ""
    whole, part = divmod(abs(value.numerator) * SECOND // value.denominator, SECOND)
    return f"{sign}{whole}.{part:09}".rstrip("0").rstrip(".") if part else f"{sign}{whole}"


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """An instant, as nanoseconds since 1970."""

    nanoseconds: int

    @classmethod
    def parse(cls, text: str) -> Timestamp:
        """Parse a time of RFC 3339."""
        match = _INSTANT.fullmatch(text)
        try:
            if match is None:
                raise ValueError
            year, month, day, hour, minute, second = (int(match[n]) for n in range(1, 7))
            zone = parse_offset(match[8]) if match[8] not in "Zz" else UTC
            moment = datetime(year, month, day, hour, minute, second, tzinfo=zone)
        except ValueError:
            raise EvaluationError(f'parsing time "{text}" as RFC3339: cannot parse') from None
        fraction = int((match[7] or "0").ljust(9, "0"))
        return cls.of_seconds(_seconds(moment), fraction)

    @classmethod
    def of_seconds(cls, seconds: int, nanoseconds: int = 0) -> Timestamp:
        """The instant of a Unix time between year 1 and year 9999."""
        if not EARLIEST <= seconds <= LATEST:
            raise EvaluationError("timestamp overflow")
        return cls(seconds * SECOND + nanoseconds)

    def plus(self, duration: int) -> Timestamp:
        """This instant moved by nanoseconds."""
        moved = self.nanoseconds + duration
        return self.of_seconds(moved // SECOND, moved % SECOND)

    def in_zone(self, zone: str = "") -> datetime:
        """The wall clock in a time zone, UTC by default."""
        base = datetime(1970, 1, 1, tzinfo=UTC)
        moment = base + timedelta(seconds=self.nanoseconds // SECOND)
        try:
            return moment.astimezone(parse_time_zone(zone))
        except (OverflowError, ValueError):
            raise EvaluationError("timestamp overflow") from None

    def __str__(self) -> str:
        text = self.in_zone().strftime("%Y-%m-%dT%H:%M:%S")
        part = self.nanoseconds % SECOND
        return text.rjust(19, "0") + (f".{part:09}".rstrip("0") if part else "") + "Z"


def _seconds(moment: datetime) -> int:
    since_epoch = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return since_epoch.days * 86_400 + since_epoch.seconds


def parse_offset(text: str) -> timezone:
    """Parse ``+02:00``."""
    hours, minutes = text.lstrip("+-").split(":")
    difference = timedelta(hours=int(hours), minutes=int(minutes))
    return timezone(-difference if text.startswith("-") else difference)


def parse_time_zone(zone: str) -> tzinfo:
    """The time zone of a name or an offset."""
    if zone in ("", "UTC"):
        return UTC
    try:
        if re.fullmatch(r"[+-]?\d\d:\d\d", zone):
            return parse_offset(zone)
        return ZoneInfo(zone)
    except (ValueError, KeyError, OSError):
        raise EvaluationError(f"unknown time zone {zone}") from None


class Optional:
    """A value that may be absent."""

    __slots__ = ("items",)

    def __init__(self, *items: Any) -> None:
        self.items = items

    @property
    def value(self) -> Any:
        """The value; it is an error if it is absent."""
        if not self.items:
            raise EvaluationError("optional.none() dereference")
        return self.items[0]


@dataclass(frozen=True, slots=True)
class CelQuantity:
    """An exact quantity."""

    value: Fraction


@dataclass(frozen=True, slots=True)
class CelAddress:
    """An IP address."""

    value: IPv4Address | IPv6Address

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class CelCIDR:
    """An address and a length; the address may have bits beyond the length."""

    address: IPv4Address | IPv6Address
    length: int

    @property
    def network(self) -> IPv4Network | IPv6Network:
        """All addresses with these first bits."""
        if isinstance(self.address, IPv4Address):
            return IPv4Network((self.address, self.length), strict=False)
        return IPv6Network((self.address, self.length), strict=False)

    def __str__(self) -> str:
        return f"{self.address}/{self.length}"


@dataclass(frozen=True, slots=True)
class CelURL:
    """A URL that is absolute or begins with a slash."""

    text: str


@dataclass(frozen=True, slots=True)
class Semver:
    """A semantic version."""

    numbers: tuple[int, int, int]
    prerelease: tuple[tuple[int, int, str], ...]

    @property
    def rank(self) -> tuple[Any, ...]:
        """The sort key of versions: a release comes after its pre-releases."""
        return (self.numbers, not self.prerelease, self.prerelease)


@dataclass(frozen=True, slots=True)
class CelFormat:
    """A named format of text."""

    name: str


class UnorderedList(list[Any]):
    """A list without order: a set, or a list keyed by some fields of its items."""

    __slots__ = ("keys",)

    def __init__(self, items: Any, keys: tuple[str, ...]) -> None:
        super().__init__(items)
        self.keys = keys

    def key_of(self, item: Any) -> Any:
        """What identifies an item."""
        if not self.keys:
            return item
        return [item.get(name) for name in self.keys] if isinstance(item, dict) else item

    def merge(self, other: list[Any]) -> UnorderedList:
        """All items of both; of two with the same key, the other's."""
        items = list(self)
        for item in other:
            index = next(
                (
                    n
                    for n, existing in enumerate(items)
                    if equal(self.key_of(existing), self.key_of(item))
                ),
                -1,
            )
            if index < 0:
                items.append(item)
            elif self.keys:
                items[index] = item
        return UnorderedList(items, self.keys)


def equal(left: Any, right: Any) -> bool:
    """CEL's equality: numbers by value, containers by content, anything else by kind and value."""
    if isinstance(left, bool) or isinstance(right, bool):
        return isinstance(left, bool) and isinstance(right, bool) and left == right
    if isinstance(left, list):
        return isinstance(right, list) and _equal_lists(left, right)
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and len(left) == len(right)
            and all(key in right and equal(value, right[key]) for key, value in left.items())
        )
    if isinstance(left, Optional):
        return isinstance(right, Optional) and _equal_lists(list(left.items), list(right.items))
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left == right
    return type(left) is type(right) and bool(left == right)


def _equal_lists(left: list[Any], right: list[Any]) -> bool:
    if len(left) != len(right):
        return False
    if isinstance(left, UnorderedList):
        remaining = list(right)
        for item in left:
            index = next((n for n, other in enumerate(remaining) if equal(item, other)), -1)
            if index < 0:
                return False
            del remaining[index]
        return True
    return all(map(equal, left, right))
