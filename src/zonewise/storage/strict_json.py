"""JSON that people write, read strictly: every fault is named with its place.

Duplicate members, unknown and missing ones, values of another type: each is one sentence that
begins with the path (``pools[1].domainSegments[0].value``). Numbers stay exact.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from fractions import Fraction
from typing import Any

from zonewise.api.errors import ParseError

LONGEST = 500
"""What a fault says of a text that may be as long as the file."""
_NUMBER = re.compile(r"-?\d{1,40}(?:\.\d{1,40})?(?:[eE][-+]?\d{1,2})?")


class ShapeFault(ParseError):
    """A value that is not what it should be; the text begins with where it is."""

    def __init__(self, where: str, what: str) -> None:
        said = f"{where}: {what}" if where else what
        super().__init__(said if len(said) <= LONGEST else f"{said[:LONGEST]}…")


class _Members(list[tuple[str, Any]]):
    """An object as it was written, with duplicate members."""


def read(text: str, where: str) -> Any:
    """The value that a text is; look into it with the functions below only."""
    try:
        return json.loads(
            text, object_pairs_hook=_Members, parse_float=_exact, parse_constant=_no_constant
        )
    except json.JSONDecodeError as error:
        raise ShapeFault(
            where, f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except ValueError as error:
        raise ShapeFault(where, f"not JSON: {error}") from None
    except RecursionError:
        raise ShapeFault(where, "nested too deeply") from None


def is_array(value: Any) -> bool:
    """Whether it is written in brackets."""
    return isinstance(value, list) and not isinstance(value, _Members)


def members(
    value: Any, where: str, *, required: Collection[str] = (), optional: Collection[str] | None = ()
) -> dict[str, Any]:
    """The members of an object: all that are required, and no other than optional ones.

    ``optional`` None allows any.
    """
    if not isinstance(value, _Members):
        raise ShapeFault(where, f"must be an object, not {sort(value)}")
    found: dict[str, Any] = {}
    for name, member in value:
        if not name.isprintable():
            raise ShapeFault(where, f"a key has characters that cannot be printed: {name!r}")
        if name in found:
            raise ShapeFault(at(where, name), "is given twice")
        if optional is not None and name not in required and name not in optional:
            known = ", ".join(sorted({*required, *optional}))
            raise ShapeFault(at(where, name), f"unknown key; known are {known}")
        found[name] = member
    for name in required:
        if name not in found:
            raise ShapeFault(at(where, name), "is missing")
    return found


def items(value: Any, where: str) -> list[tuple[str, Any]]:
    """The items of an array, each with its place."""
    if not is_array(value):
        raise ShapeFault(where, f"must be a list, not {sort(value)}")
    return [(f"{where}[{place}]", item) for place, item in enumerate(value)]


def text(value: Any, where: str) -> str:
    """A text that is not empty."""
    if not isinstance(value, str):
        raise ShapeFault(where, f"must be a text, not {sort(value)}")
    if not value:
        raise ShapeFault(where, "is empty")
    if not value.isprintable():
        raise ShapeFault(where, f"has characters that cannot be printed: {value!r}")
    return value


def sort(value: Any) -> str:
    """What kind of value it is, in words."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case _Members():
            return "an object"
        case list():
            return "a list"
        case str():
            return "a text"
        case _:
            return "a number"


def at(where: str, name: str) -> str:
    """The place of a member."""
    return f"{where}.{name}" if where else name


def _exact(number: str) -> Fraction:
    if not _NUMBER.fullmatch(number):
        raise ValueError(f"number {number[:40]} has too many digits")
    return Fraction(number)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")
