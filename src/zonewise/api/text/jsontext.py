"""JSON as a real API server reads it: what it tolerates, duplicate keys, and its error messages.

The fast decoder reports neither duplicate keys nor Go's error messages. Both matter only for the
few bodies that have something wrong with them, so they are found in a second reading. That a body
has duplicate keys is seen without one: the decoded value is encoded again, and a key that was
dropped on the way took at least two quotation marks with it.

Go replaces bytes that are not UTF-8 and lone surrogates by U+FFFD and reads on; so does this.
Nesting is bounded by `DEPTH_LIMIT`, so that no later walk of a value can run out of stack.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import msgspec

from zonewise.api.errors import ParseError

DEPTH_LIMIT = 200
SUMMARY = 30

_SURROGATES = re.compile("[\ud800-\udfff]")
_WITHIN = ("in literal", "in numeric", "in exponent", "after decimal", "in string escape", "in \\u")
_CLOSE = {"{": "}", "[": "]"}


class NotJSON(ParseError):
    """The text is not JSON; the message is Go's."""


class Pairs(list[tuple[str, Any]]):
    """An object with all its members in order, also those with duplicate keys."""


class Literal(float):
    """A number with the text it was written as, which error messages repeat."""

    text: str

    def __new__(cls, text: str) -> Literal:
        made = super().__new__(cls, text)
        made.text = text
        return made


def read(raw: bytes, *, finite: bool = False) -> Any:
    """The value that a body is; of duplicate keys the last one counts.

    A number that no float can hold is infinite, for a type to complain about; where there may be
    none, ``finite``, it is refused: encoded again it would be null.
    """
    pairs: Any = None
    try:
        try:
            value = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pairs = read_pairs(raw)
            value = plain(pairs)
    except RecursionError:
        raise NotJSON(complaint(raw)) from None
    if raw.count(b"{") + raw.count(b"[") > DEPTH_LIMIT and _depth(value) > DEPTH_LIMIT:
        raise NotJSON(complaint(raw))
    if finite and (number := _infinite(pairs)):
        raise NotJSON(f"json: cannot unmarshal number {number} into Go value of type float64")
    return value


def has_duplicates(raw: bytes, value: Any) -> bool:
    """Whether a body may have duplicate keys; never a false no.

    Only `\\u0022` could make up for the marks of a dropped key, so bodies with escapes by number
    are read again anyway.
    """
    return b"\\u" in raw or raw.count(b'"') != msgspec.json.encode(value).count(b'"')


def read_pairs(raw: bytes) -> Any:
    """The value with every object as `Pairs` and every fraction as `Literal`."""
    text = raw.decode("utf-8", "replace")
    try:
        value = json.loads(
            text, object_pairs_hook=Pairs, parse_float=Literal, parse_constant=_no_constant
        )
    except (RecursionError, ValueError):
        raise NotJSON(complaint(raw)) from None
    return _repaired(value) if b"\\ud" in raw.lower() else value


def _depth(value: Any) -> int:
    """How deep a value is nested; gives up above the limit."""
    level, depth = [value], 0
    while level and depth <= DEPTH_LIMIT:
        level = [
            item
            for outer in level
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, dict | list)
        ]
        depth += 1
    return depth


def _no_constant(_text: str) -> Any:
    raise ValueError


def plain(value: Any) -> Any:
    """The value with dictionaries and numbers again; of duplicate keys the last one counts."""
    if isinstance(value, Pairs):
        return {name: plain(item) for name, item in value}
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return float(value) if isinstance(value, Literal) else value


def _infinite(value: Any) -> str:
    """The first number that no float can hold, as it was written; empty if there is none."""
    if isinstance(value, Literal):
        return value.text if math.isinf(value) else ""
    items = (item for _, item in value) if isinstance(value, Pairs) else value
    return next(filter(None, map(_infinite, items)), "") if isinstance(value, list) else ""


def _repaired(value: Any) -> Any:
    if isinstance(value, Pairs):
        return Pairs((_repaired(name), _repaired(item)) for name, item in value)
    if isinstance(value, list):
        return [_repaired(item) for item in value]
    return _SURROGATES.sub("\ufffd", value) if isinstance(value, str) else value


def summary(raw: bytes) -> str:
    """The beginning of a body that could not be read, as a real server quotes it."""
    if not raw:
        return "<empty>"
    cut = raw[:SUMMARY]
    shown = cut.decode("utf-8", "replace") if raw[:1] == b"{" else cut.hex()
    return shown + " ..." if len(raw) > SUMMARY else shown


def complaint(raw: bytes) -> str:
    """The error of Go's scanner for a text that is not JSON."""
    return _Scanner(raw.decode("latin-1")).run()


class _Scanner:
    """Finds the first byte that JSON has no place for; Go shows it as if it were Latin-1."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def run(self) -> str:
        try:
            self._value(0)
            self._space()
            if self.at < len(self.text):
                self._stop("after top-level value")
        except _Stop as stop:
            return str(stop)
        return "invalid character"

    def _stop(self, where: str) -> None:
        if self.at >= len(self.text):
            if where.startswith(_WITHIN):  # Go ends a text with a blank before it looks again
                raise _Stop(f"invalid character ' ' {where}")
            raise _Stop("unexpected end of JSON input")
        raise _Stop(f"invalid character {_quoted(self.text[self.at])} {where}")

    def _space(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \t\r\n":
            self.at += 1

    def _next(self) -> str:
        self._space()
        return self.text[self.at] if self.at < len(self.text) else ""

    def _value(self, depth: int) -> None:
        first = self._next()
        if first in _CLOSE and first:
            if depth >= DEPTH_LIMIT:
                self._stop("exceeded max depth")
            self._compound(first, depth)
        elif first == '"':
            self._string()
        elif first == "-" or first.isdigit():
            self._number()
        elif first in "tfn" and first:
            self._word({"t": "true", "f": "false", "n": "null"}[first])
        else:
            self._stop("looking for beginning of value")

    def _compound(self, opening: str, depth: int) -> None:
        self.at += 1
        closing, is_object = _CLOSE[opening], opening == "{"
        after = "after object key:value pair" if is_object else "after array element"
        first = True
        while True:
            if self._next() == closing and first:
                break
            if is_object:
                if self._next() != '"':
                    self._stop("looking for beginning of object key string")
                self._string()
                if self._next() != ":":
                    self._stop("after object key")
                self.at += 1
            self._value(depth + 1)
            first = False
            if self._next() == closing:
                break
            if self._next() != ",":
                self._stop(after)
            self.at += 1
        self.at += 1

    def _string(self) -> None:
        self.at += 1
        while True:
            character = self.text[self.at] if self.at < len(self.text) else ""
            if not character or character < " ":
                self._stop("in string literal")
            self.at += 1
            if character == '"':
                return
            if character == "\\":
                self._escape()

    def _escape(self) -> None:
        kind = self.text[self.at] if self.at < len(self.text) else ""
        if not kind or kind not in '"\\/bfnrtu':
            self._stop("in string escape code")
        self.at += 1
        for _ in range(4 if kind == "u" else 0):
            if self.at >= len(self.text) or self.text[self.at] not in "0123456789abcdefABCDEF":
                self._stop("in \\u hexadecimal character escape")
            self.at += 1

    def _number(self) -> None:
        match = re.compile(r"-?(0|[1-9][0-9]*)?").match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        if match[1] is None:
            self._stop("in numeric literal")
        if self.text[self.at : self.at + 1] == ".":
            self.at += 1
            self._digits("after decimal point in numeric literal")
        if self.text[self.at : self.at + 1] in ("e", "E"):
            self.at += 1
            if self.text[self.at : self.at + 1] in ("+", "-"):
                self.at += 1
            self._digits("in exponent of numeric literal")

    def _digits(self, where: str) -> None:
        if not self.text[self.at : self.at + 1].isdigit():
            self._stop(where)
        while self.text[self.at : self.at + 1].isdigit():
            self.at += 1

    def _word(self, word: str) -> None:
        for wanted in word:
            if self.text[self.at : self.at + 1] != wanted:
                self._stop(f"in literal {word} (expecting {_quoted(wanted)})")
            self.at += 1


class _Stop(Exception):
    pass


def _quoted(character: str) -> str:
    if character in "'\\":
        return f"'\\{character}'"
    if character == '"':
        return "'\"'"
    return f"'{character}'" if character.isprintable() else repr(character)
