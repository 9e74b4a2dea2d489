"""Functions on lists, and lists as sets."""

from __future__ import annotations

from typing import Any

from zonewise.embedded.machinery.cel.library import declare
from zonewise.embedded.machinery.cel.values import (
    Duration,
    EvaluationError,
    Optional,
    UInt,
    check_int,
    check_uint,
    equal,
)


@declare("sets.contains(list(A), list(A)) -> bool")
def _(a: list[Any], b: list[Any]) -> bool:
    return all(any(equal(x, y) for x in a) for y in b)


@declare("sets.equivalent(list(A), list(A)) -> bool")
def _(a: list[Any], b: list[Any]) -> bool:
    return all(any(equal(x, y) for x in a) for y in b) and all(
        any(equal(x, y) for y in b) for x in a
    )


@declare("sets.intersects(list(A), list(A)) -> bool")
def _(a: list[Any], b: list[Any]) -> bool:
    return any(equal(x, y) for x in a for y in b)


_SORTABLE = ["int", "uint", "double", "bool", "string", "bytes", "timestamp", "duration"]
_SUMMABLE = ["int", "uint", "double", "duration"]


@declare(*[f"list({kind})::isSorted() -> bool" for kind in _SORTABLE])
def _(a: list[Any]) -> bool:
    return all(a[n] <= a[n + 1] for n in range(len(a) - 1))


@declare(*[f"list({kind})::sum() -> {kind}" for kind in _SUMMABLE])
def _(a: list[Any]) -> Any:
    if not a:
        return 0
    total: Any = a[0]
    for item in a[1:]:
        if isinstance(total, Duration):
            total = Duration(total.nanoseconds + item.nanoseconds)
        elif isinstance(total, UInt):
            total = check_uint(total + item)
        else:
            total = total + item if isinstance(total, float) else check_int(total + item)
    return total


@declare(*[f"list({kind})::min() -> {kind}" for kind in _SORTABLE])
def _(a: list[Any]) -> Any:
    if not a:
        raise EvaluationError("min called on empty list")
    return min(a)


@declare(*[f"list({kind})::max() -> {kind}" for kind in _SORTABLE])
def _(a: list[Any]) -> Any:
    if not a:
        raise EvaluationError("max called on empty list")
    return max(a)


@declare("list(A)::indexOf(A) -> int")
def _(a: list[Any], b: Any) -> int:
    return next((n for n, item in enumerate(a) if equal(item, b)), -1)


@declare("list(A)::lastIndexOf(A) -> int")
def _(a: list[Any], b: Any) -> int:
    return next((n for n in range(len(a) - 1, -1, -1) if equal(a[n], b)), -1)


@declare("list(A)::slice(int, int) -> list(A)")
def _(a: list[Any], start: int, end: int) -> list[Any]:
    if start < 0 or end < 0:
        raise EvaluationError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise EvaluationError(
            f"cannot slice({start}, {end}), start index must be less than or equal to end index"
        )
    if end > len(a):
        raise EvaluationError(f"cannot slice({start}, {end}), list is length {len(a)}")
    return a[start:end]


@declare("list(list(A))::flatten() -> list(A)", "list(dyn)::flatten() -> list(dyn)")
@declare("list(dyn)::flatten(int) -> list(dyn)")
def _(a: list[Any], depth: int = 1) -> list[Any]:
    if depth < 0:
        raise EvaluationError("level must be non-negative")
    out: list[Any] = []
    for item in a:
        if isinstance(item, list) and depth > 0:
            out += flatten(item, depth - 1)
        else:
            out.append(item)
    return out


def flatten(items: list[Any], depth: int) -> list[Any]:
    """Lists inside of lists taken apart, to a depth."""
    if depth <= 0:
        return list(items)
    out: list[Any] = []
    for item in items:
        out += flatten(item, depth - 1) if isinstance(item, list) else [item]
    return out


def sort_by_keys(items: list[Any], keys: list[Any]) -> list[Any]:
    """Items sorted by their keys, all of one kind."""
    try:
        if len({type(key) for key in keys}) > 1:
            raise TypeError
        order = sorted(range(len(items)), key=lambda n: keys[n])
    except TypeError:
        raise EvaluationError("list elements must have the same type") from None
    return [items[n] for n in order]


@declare(*[f"list({kind})::sort() -> list({kind})" for kind in _SORTABLE])
def _(a: list[Any]) -> list[Any]:
    return sort_by_keys(a, a)


@declare("list(A)::first() -> optional(A)")
def _(a: list[Any]) -> Optional:
    return Optional(*a[:1])


@declare("list(A)::last() -> optional(A)")
def _(a: list[Any]) -> Optional:
    return Optional(*a[-1:])


@declare("list(A)::reverse() -> list(A)")
def _(a: list[Any]) -> list[Any]:
    return a[::-1]


@declare("list(A)::distinct() -> list(A)")
def _(a: list[Any]) -> list[Any]:
    out: list[Any] = []
    for item in a:
        if not any(equal(item, seen) for seen in out):
            out.append(item)
    return out


@declare("lists.range(int) -> list(int)")
def _(a: int) -> list[int]:
    if a > 1_000_000:
        raise EvaluationError("range too large")
    return list(range(a))
