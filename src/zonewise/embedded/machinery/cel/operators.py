"""Arithmetic, comparison and membership."""

from __future__ import annotations

import math
from typing import Any

from zonewise.embedded.machinery.cel.library import declare
from zonewise.embedded.machinery.cel.values import (
    Duration,
    EvaluationError,
    Timestamp,
    UInt,
    UnorderedList,
    check_int,
    check_uint,
    equal,
)


@declare("_+_(int, int) -> int")
def _(a: int, b: int) -> int:
    return check_int(a + b)


@declare("_-_(int, int) -> int")
def _(a: int, b: int) -> int:
    return check_int(a - b)


@declare("_*_(int, int) -> int")
def _(a: int, b: int) -> int:
    return check_int(a * b)


@declare("_/_(int, int) -> int")
def _(a: int, b: int) -> int:
    if b == 0:
        raise EvaluationError("division by zero")
    return check_int(abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1))


@declare("_%_(int, int) -> int")
def _(a: int, b: int) -> int:
    if b == 0:
        raise EvaluationError("modulus by zero")
    return check_int(abs(a) % abs(b) * (1 if a >= 0 else -1))


@declare("_+_(uint, uint) -> uint")
def _(a: int, b: int) -> UInt:
    return check_uint(a + b)


@declare("_-_(uint, uint) -> uint")
def _(a: int, b: int) -> UInt:
    return check_uint(a - b)


@declare("_*_(uint, uint) -> uint")
def _(a: int, b: int) -> UInt:
    return check_uint(a * b)


@declare("_/_(uint, uint) -> uint")
def _(a: int, b: int) -> UInt:
    if b == 0:
        raise EvaluationError("division by zero")
    return UInt(a // b)


@declare("_%_(uint, uint) -> uint")
def _(a: int, b: int) -> UInt:
    if b == 0:
        raise EvaluationError("modulus by zero")
    return UInt(a % b)


@declare("_+_(double, double) -> double", "_+_(string, string) -> string")
@declare("_+_(bytes, bytes) -> bytes")
def _(a: Any, b: Any) -> Any:
    return a + b


@declare("_+_(list(A), list(A)) -> list(A)")
def _(a: list[Any], b: list[Any]) -> list[Any]:
    return a.merge(b) if isinstance(a, UnorderedList) else [*a, *b]


@declare("_-_(double, double) -> double")
def _(a: float, b: float) -> float:
    return a - b


@declare("_*_(double, double) -> double")
def _(a: float, b: float) -> float:
    return a * b


@declare("_/_(double, double) -> double")
def _(a: float, b: float) -> float:
    if b == 0:
        infinity = math.copysign(math.inf, a) * math.copysign(1, b)
        return math.nan if a == 0 or math.isnan(a) else infinity
    return a / b


@declare("_+_(duration, duration) -> duration")
def _(a: Duration, b: Duration) -> Duration:
    return Duration(a.nanoseconds + b.nanoseconds)


@declare("_+_(timestamp, duration) -> timestamp")
def _(a: Timestamp, b: Duration) -> Timestamp:
    return a.plus(b.nanoseconds)


@declare("_+_(duration, timestamp) -> timestamp")
def _(a: Duration, b: Timestamp) -> Timestamp:
    return b.plus(a.nanoseconds)


@declare("_-_(timestamp, timestamp) -> duration")
@declare("_-_(duration, duration) -> duration")
def _(a: Any, b: Any) -> Duration:
    return Duration(a.nanoseconds - b.nanoseconds)


@declare("_-_(timestamp, duration) -> timestamp")
def _(a: Timestamp, b: Duration) -> Timestamp:
    return a.plus(-b.nanoseconds)


@declare("-_(int) -> int")
def _(a: int) -> int:
    return check_int(-a)


@declare("-_(double) -> double")
def _(a: float) -> float:
    return -a


@declare("!_(bool) -> bool")
def _(a: bool) -> bool:
    return not a


@declare("_==_(A, A) -> bool")
def _(a: Any, b: Any) -> bool:
    return equal(a, b)


@declare("_!=_(A, A) -> bool")
def _(a: Any, b: Any) -> bool:
    return not equal(a, b)


_ORDERED = ["bool", "string", "bytes", "timestamp", "duration"]
_PAIRS = [f"{kind}, {kind}" for kind in _ORDERED] + [
    f"{a}, {b}" for a in ("int", "uint", "double") for b in ("int", "uint", "double")
]


@declare(*[f"_<_({pair}) -> bool" for pair in _PAIRS])
def _(a: Any, b: Any) -> bool:
    return bool(a < b)


@declare(*[f"_<=_({pair}) -> bool" for pair in _PAIRS])
def _(a: Any, b: Any) -> bool:
    return bool(a <= b)


@declare(*[f"_>_({pair}) -> bool" for pair in _PAIRS])
def _(a: Any, b: Any) -> bool:
    return bool(a > b)


@declare(*[f"_>=_({pair}) -> bool" for pair in _PAIRS])
def _(a: Any, b: Any) -> bool:
    return bool(a >= b)


@declare("@in(A, list(A)) -> bool")
def _(a: Any, b: list[Any]) -> bool:
    return any(equal(a, item) for item in b)


@declare("@in(A, map(A, B)) -> bool")
def _(a: Any, b: dict[Any, Any]) -> bool:
    return not isinstance(a, list | dict) and a in b
