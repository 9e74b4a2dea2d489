"""The standard functions: sizes, conversions, times and durations, optionals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from zonewise.api.values.numbers import parse_integer, parse_natural
from zonewise.embedded.machinery.cel.formatting import format_double
from zonewise.embedded.machinery.cel.kinds import name_of
from zonewise.embedded.machinery.cel.library import declare
from zonewise.embedded.machinery.cel.values import (
    INT,
    SECOND,
    UINT,
    Duration,
    EvaluationError,
    Optional,
    Timestamp,
    TypeName,
    UInt,
)


@declare(
    "size(string) -> int", "size(bytes) -> int", "size(list(A)) -> int", "size(map(A, B)) -> int"
)
@declare("string::size() -> int", "bytes::size() -> int", "list(A)::size() -> int")
@declare("map(A, B)::size() -> int")
def _(a: Any) -> int:
    return len(a)


@declare("type(A) -> type")
def _(a: Any) -> TypeName:
    return TypeName(name_of(a))


@declare("dyn(A) -> dyn")
@declare("int(int) -> int", "uint(uint) -> uint", "double(double) -> double")
@declare("string(string) -> string", "bytes(bytes) -> bytes", "bool(bool) -> bool")
@declare("timestamp(timestamp) -> timestamp", "duration(duration) -> duration")
def _(a: Any) -> Any:
    return a


@declare("int(uint) -> int", "int(double) -> int")
def _(a: float) -> int:
    if math.isnan(a) or not INT.start <= a < INT.stop:
        raise EvaluationError("integer overflow")
    return int(a)


@declare("int(string) -> int")
def _parse_int(a: str) -> int:
    number = parse_integer(a, 64)
    if number is None:
        raise EvaluationError("type conversion error from 'string' to 'int'")
    return number


@declare("int(timestamp) -> int")
def _(a: Timestamp) -> int:
    return a.nanoseconds // SECOND


@declare("int(duration) -> int")
def _(a: Duration) -> int:
    return a.nanoseconds


@declare("uint(int) -> uint", "uint(double) -> uint")
def _(a: float) -> UInt:
    if math.isnan(a) or not 0 <= a < UINT.stop:
        raise EvaluationError("unsigned integer overflow")
    return UInt(a)


@declare("uint(string) -> uint")
def _parse_uint(a: str) -> UInt:
    number = parse_natural(a)
    if number is None:
        raise EvaluationError("type conversion error from 'string' to 'uint'")
    return UInt(number)


@declare("double(int) -> double", "double(uint) -> double")
def _(a: int) -> float:
    return float(a)


@declare("double(string) -> double")
def _parse_double(a: str) -> float:
    try:
        if a != a.strip() or "_" in a:
            raise ValueError
        return float(a)
    except ValueError:
        raise EvaluationError("type conversion error from 'string' to 'double'") from None


@declare("string(int) -> string", "string(uint) -> string", "string(timestamp) -> string")
@declare("string(duration) -> string", "string(ip) -> string", "string(cidr) -> string")
def _(a: Any) -> str:
    return str(a)


@declare("string(bool) -> string")
def _(a: bool) -> str:
    return "true" if a else "false"


@declare("string(double) -> string")
def _(a: float) -> str:
    return format_double(a)


@declare("string(bytes) -> string")
def _(a: bytes) -> str:
    try:
        return a.decode()
    except UnicodeDecodeError:
        raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from None


@declare("bytes(string) -> bytes")
def _(a: str) -> bytes:
    return a.encode()


@declare("bool(string) -> bool")
def _parse_bool(a: str) -> bool:
    if a in ("1", "t", "true", "TRUE", "True", "T"):
        return True
    if a in ("0", "f", "false", "FALSE", "False", "F"):
        return False
    raise EvaluationError("type conversion error from 'string' to 'bool'")


@declare("timestamp(string) -> timestamp")
def _(a: str) -> Timestamp:
    return Timestamp.parse(a)


@declare("timestamp(int) -> timestamp")
def _(a: int) -> Timestamp:
    return Timestamp.of_seconds(a)


@declare("duration(string) -> duration")
def _(a: str) -> Duration:
    return Duration.parse(a)


@declare("duration(int) -> duration")
def _(a: int) -> Duration:
    return Duration(a)


def _declare_clock_method(name: str, read: Callable[[Any], int]) -> None:
    def run(a: Timestamp, zone: str = "") -> int:
        return read(a.in_zone(zone))

    declare(f"timestamp::{name}() -> int", f"timestamp::{name}(string) -> int")(run)


_declare_clock_method("getFullYear", lambda t: int(t.year))
_declare_clock_method("getMonth", lambda t: int(t.month) - 1)
_declare_clock_method("getDate", lambda t: int(t.day))
_declare_clock_method("getDayOfMonth", lambda t: int(t.day) - 1)
_declare_clock_method("getDayOfWeek", lambda t: int(t.isoweekday()) % 7)
_declare_clock_method("getDayOfYear", lambda t: int(t.timetuple().tm_yday) - 1)
_declare_clock_method("getHours", lambda t: int(t.hour))
_declare_clock_method("getMinutes", lambda t: int(t.minute))
_declare_clock_method("getSeconds", lambda t: int(t.second))


@declare("timestamp::getMilliseconds() -> int", "timestamp::getMilliseconds(string) -> int")
def _(a: Timestamp, zone: str = "") -> int:
    a.in_zone(zone)
    return a.nanoseconds % SECOND // 1_000_000


def _declare_length_method(name: str, unit: int) -> None:
    def run(a: Duration) -> int:
        whole = abs(a.nanoseconds) // unit
        return whole if a.nanoseconds >= 0 else -whole

    declare(f"duration::{name}() -> int")(run)


_declare_length_method("getHours", 3600 * SECOND)
_declare_length_method("getMinutes", 60 * SECOND)
_declare_length_method("getSeconds", SECOND)
_declare_length_method("getMilliseconds", 1_000_000)


@declare("optional.of(A) -> optional(A)")
def _(a: Any) -> Optional:
    return Optional(a)


@declare("optional.none() -> optional(A)")
def _() -> Optional:
    return Optional()


@declare("optional.ofNonZeroValue(A) -> optional(A)")
def _(a: Any) -> Optional:
    return Optional(a) if a or isinstance(a, Duration | Timestamp) else Optional()


@declare("optional(A)::hasValue() -> bool")
def _(a: Optional) -> bool:
    return bool(a.items)


@declare("optional(A)::value() -> A")
def _(a: Optional) -> Any:
    return a.value


STRING_CONVERSIONS = {
    "int": _parse_int,
    "uint": _parse_uint,
    "double": _parse_double,
    "bool": _parse_bool,
}
