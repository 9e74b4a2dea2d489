"""Functions on strings, with regular expressions."""

from __future__ import annotations

from typing import Any

from zonewise.api.errors import ParseError
from zonewise.embedded.machinery.cel.formatting import format_template, quote
from zonewise.embedded.machinery.cel.library import declare
from zonewise.embedded.machinery.cel.values import EvaluationError
from zonewise.embedded.machinery.schema import patterns


@declare("string::contains(string) -> bool")
def _(a: str, b: str) -> bool:
    return b in a


@declare("string::startsWith(string) -> bool")
def _(a: str, b: str) -> bool:
    return a.startswith(b)


@declare("string::endsWith(string) -> bool")
def _(a: str, b: str) -> bool:
    return a.endswith(b)


def compile_pattern(text: str) -> patterns.Pattern:
    """Compile a pattern; EvaluationError if it is invalid."""
    try:
        return patterns.compile_pattern(text)
    except ParseError as error:
        raise EvaluationError(str(error)) from None


@declare("string::matches(string) -> bool", "matches(string, string) -> bool")
def _(a: str, b: str) -> bool:
    return compile_pattern(b).matches(a)


@declare("string::find(string) -> string")
def _(a: str, b: str) -> str:
    return compile_pattern(b).find_first(a)


@declare("string::findAll(string) -> list(string)", "string::findAll(string, int) -> list(string)")
def _(a: str, b: str, limit: int = -1) -> list[str]:
    return compile_pattern(b).find_all(a, limit)


def _check_index(index: int, size: int) -> None:
    if not 0 <= index <= size:
        raise EvaluationError(f"index out of range: {index}")


@declare("string::charAt(int) -> string")
def _(a: str, at: int) -> str:
    _check_index(at, len(a))
    return a[at : at + 1]


@declare("string::indexOf(string) -> int", "string::indexOf(string, int) -> int")
def _(a: str, b: str, start: int = 0) -> int:
    _check_index(start, len(a))
    return a.find(b, start)


@declare("string::lastIndexOf(string) -> int", "string::lastIndexOf(string, int) -> int")
def _(a: str, b: str, start: int | None = None) -> int:
    if start is None:
        return a.rfind(b)
    _check_index(start, len(a))
    return a.rfind(b, 0, start + len(b))


@declare("string::lowerAscii() -> string")
def _(a: str) -> str:
    return "".join(c.lower() if c.isascii() else c for c in a)


@declare("string::upperAscii() -> string")
def _(a: str) -> str:
    return "".join(c.upper() if c.isascii() else c for c in a)


@declare("string::replace(string, string) -> string")
@declare("string::replace(string, string, int) -> string")
def _(a: str, old: str, new: str, count: int = -1) -> str:
    return a.replace(old, new, count)


@declare("string::split(string) -> list(string)", "string::split(string, int) -> list(string)")
def _(a: str, separator: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    if limit == 1:
        return [a]
    if separator:
        return a.split(separator, limit - 1 if limit > 0 else -1)
    if 0 < limit < len(a):
        return [*a[: limit - 1], a[limit - 1 :]]
    return list(a)


@declare("string::substring(int) -> string", "string::substring(int, int) -> string")
def _(a: str, start: int, end: int | None = None) -> str:
    stop = len(a) if end is None else end
    _check_index(start, len(a))
    _check_index(stop, len(a))
    if start > stop:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {stop}")
    return a[start:stop]


@declare("string::trim() -> string")
def _(a: str) -> str:
    return a.strip()


@declare("list(string)::join() -> string", "list(string)::join(string) -> string")
def _(a: list[str], separator: str = "") -> str:
    if not all(isinstance(item, str) for item in a):
        raise EvaluationError("no such overload")
    return separator.join(a)


@declare("strings.quote(string) -> string")
def _(a: str) -> str:
    return quote(a)


@declare("string::format(list(dyn)) -> string")
def _(a: str, values: list[Any]) -> str:
    return format_template(a, values)
