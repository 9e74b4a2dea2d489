"""Strict parsing of JSON that people write: every error names the path of the value.

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

MESSAGE_LIMIT = 500
"""Characters of a message: a value in it may be as long as the file."""
_NUMBER = re.compile(r"-?\d{1,40}(?:\.\d{1,40})?(?:[eE][-+]?\d{1,2})?")


class ShapeError(ParseError):
    """A value of a wrong shape; the message begins with its path."""

    def __init__(self, path: str, message: str) -> None:
        text = f"{path}: {message}" if path else message
        super().__init__(text if len(text) <= MESSAGE_LIMIT else f"{text[:MESSAGE_LIMIT]}…")


class _Members(list[tuple[str, Any]]):
    """The members of an object as they were written, duplicates included."""


def parse(text: str, path: str) -> Any:
    """Parse a text; the value is to be examined with the functions below only."""
    try:
        return json.loads(
            text,
            object_pairs_hook=_Members,
            parse_float=_parse_number,
            parse_constant=_refuse_constant,
        )
    except json.JSONDecodeError as error:
        raise ShapeError(
            path, f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except ValueError as error:
        raise ShapeError(path, f"not JSON: {error}") from None
    except RecursionError:
        raise ShapeError(path, "nested too deeply") from None


def is_array(value: Any) -> bool:
    """Whether a parsed value is a JSON array."""
    return isinstance(value, list) and not isinstance(value, _Members)


def expect_object(
    value: Any, path: str, *, required: Collection[str] = (), optional: Collection[str] | None = ()
) -> dict[str, Any]:
    """The members of an object: all of ``required``, and others only if they are ``optional``.

    With ``optional`` None any member is allowed.
    """
    if not isinstance(value, _Members):
        raise ShapeError(path, f"must be an object, not {describe_type(value)}")
    members: dict[str, Any] = {}
    for name, member in value:
        if not name.isprintable():
            raise ShapeError(path, f"a key has characters that cannot be printed: {name!r}")
        if name in members:
            raise ShapeError(child(path, name), "is given twice")
        if optional is not None and name not in required and name not in optional:
            known = ", ".join(sorted({*required, *optional}))
            raise ShapeError(child(path, name), f"unknown key; known are {known}")
        members[name] = member
    for name in required:
        if name not in members:
            raise ShapeError(child(path, name), "is missing")
    return members


def expect_list(value: Any, path: str) -> list[tuple[str, Any]]:
    """The items of an array, each with its path."""
    if not is_array(value):
        raise ShapeError(path, f"must be a list, not {describe_type(value)}")
    return [(f"{path}[{index}]", item) for index, item in enumerate(value)]


def expect_text(value: Any, path: str) -> str:
    """A text that is not empty and can be printed."""
    if not isinstance(value, str):
        raise ShapeError(path, f"must be a text, not {describe_type(value)}")
    if not value:
        raise ShapeError(path, "is empty")
    if not value.isprintable():
        raise ShapeError(path, f"has characters that cannot be printed: {value!r}")
    return value


def describe_type(value: Any) -> str:
    """The type of a parsed value in words."""
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


def child(path: str, name: str) -> str:
    """The path of a member."""
    return f"{path}.{name}" if path else name


def _parse_number(number: str) -> Fraction:
    if not _NUMBER.fullmatch(number):
        raise ValueError(f"number {number[:40]} has too many digits")
    return Fraction(number)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")
