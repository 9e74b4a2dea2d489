"""JSON as a real API server reads it: what it tolerates, duplicate keys, and its error messages.

The fast decoder reports neither duplicate keys nor Go's error messages. Both matter only for the
few bodies with errors, so they are determined in a second reading. Whether a body has duplicate
keys is known without one: the decoded value is encoded again, and each key that was dropped makes
at least two quotation marks less.

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
SUMMARY_LENGTH = 30

_SURROGATES = re.compile("[\ud800-\udfff]")
_WITHIN = ("in literal", "in numeric", "in exponent", "after decimal", "in string escape", "in \\u")
_CLOSE = {"{": "}", "[": "]"}


class NotJSON(ParseError):
    """The text is not JSON; the message is Go's."""


class Pairs(list[tuple[str, Any]]):
    """An object with all its members in order, also those with duplicate keys."""


class NumberLiteral(float):
    """A number with the text it was written as, which error messages repeat."""

    text: str

    def __new__(cls, text: str) -> NumberLiteral:
        number = super().__new__(cls, text)
        number.text = text
        return number


def read(raw: bytes, *, finite: bool = False) -> Any:
    """Decode a body; of duplicate keys the last one counts.

    A number too large for a float is infinite, which the check of types refuses. With ``finite`` it
    is refused here: encoded again it would be null.
    """
    pairs: Any = None
    try:
        try:
            value = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pairs = read_pairs(raw)
            value = to_builtins(pairs)
    except RecursionError:
        raise NotJSON(syntax_error_text(raw)) from None
    if raw.count(b"{") + raw.count(b"[") > DEPTH_LIMIT and _depth(value) > DEPTH_LIMIT:
        raise NotJSON(syntax_error_text(raw))
    if finite and (number := _first_infinite(pairs)):
        raise NotJSON(f"json: cannot unmarshal number {number} into Go value of type float64")
    return value


def has_duplicates(raw: bytes, value: Any) -> bool:
    """Whether a body may have duplicate keys; never a false no.

    Only `\\u0022` could replace the marks of a dropped key, so bodies with numeric escapes count as
    having duplicates.
    """
    return b"\\u" in raw or raw.count(b'"') != msgspec.json.encode(value).count(b'"')


def read_pairs(raw: bytes) -> Any:
    """The value with every object as `Pairs` and every fraction as `Literal`."""
    text = raw.decode("utf-8", "replace")
    try:
        value = json.loads(
            text,
            object_pairs_hook=Pairs,
            parse_float=NumberLiteral,
            parse_constant=_reject_constant,
        )
    except (RecursionError, ValueError):
        raise NotJSON(syntax_error_text(raw)) from None
    return _replace_surrogates(value) if b"\\ud" in raw.lower() else value


def _depth(value: Any) -> int:
    """How deep a value is nested; stops above the limit."""
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


def _reject_constant(_text: str) -> Any:
    raise ValueError


def to_builtins(value: Any) -> Any:
    """The value with plain dictionaries and numbers; of duplicate keys the last one counts."""
    if isinstance(value, Pairs):
        return {name: to_builtins(item) for name, item in value}
    if isinstance(value, dict):
        return {name: to_builtins(item) for name, item in value.items()}
    if isinstance(value, list):
        return [to_builtins(item) for item in value]
    return float(value) if isinstance(value, NumberLiteral) else value


def _first_infinite(value: Any) -> str:
    """The first number too large for a float, as it was written; empty if there is none."""
    if isinstance(value, NumberLiteral):
        return value.text if math.isinf(value) else ""
    items = (item for _, item in value) if isinstance(value, Pairs) else value
    return next(filter(None, map(_first_infinite, items)), "") if isinstance(value, list) else ""


def _replace_surrogates(value: Any) -> Any:
    if isinstance(value, Pairs):
        return Pairs((_replace_surrogates(name), _replace_surrogates(item)) for name, item in value)
    if isinstance(value, list):
        return [_replace_surrogates(item) for item in value]
    return _SURROGATES.sub("\ufffd", value) if isinstance(value, str) else value


def summarize_body(raw: bytes) -> str:
    """The beginning of a body that could not be read, as a real server quotes it."""
    if not raw:
        return "<empty>"
    cut = raw[:SUMMARY_LENGTH]
    text = cut.decode("utf-8", "replace") if raw[:1] == b"{" else cut.hex()
    return text + " ..." if len(raw) > SUMMARY_LENGTH else text


def syntax_error_text(raw: bytes) -> str:
    """The error of Go's scanner for a text that is not JSON."""
    return _Scanner(raw.decode("latin-1")).run()


class _Scanner:
    """Finds the first byte that is not valid JSON; Go prints it as if it were Latin-1."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def run(self) -> str:
        try:
            self._scan_value(0)
            self._skip_space()
            if self.position < len(self.text):
                self._fail("after top-level value")
        except _ScanError as stop:
            return str(stop)
        return "invalid character"

    def _fail(self, context: str) -> None:
        if self.position >= len(self.text):
            if context.startswith(_WITHIN):  # Go appends a space before its last check
                raise _ScanError(f"invalid character ' ' {context}")
            raise _ScanError("unexpected end of JSON input")
        raise _ScanError(f"invalid character {_quote(self.text[self.position])} {context}")

    def _skip_space(self) -> None:
        while self.position < len(self.text) and self.text[self.position] in " \t\r\n":
            self.position += 1

    def _peek(self) -> str:
        self._skip_space()
        return self.text[self.position] if self.position < len(self.text) else ""

    def _scan_value(self, depth: int) -> None:
        first = self._peek()
        if first in _CLOSE and first:
            if depth >= DEPTH_LIMIT:
                self._fail("exceeded max depth")
            self._scan_compound(first, depth)
        elif first == '"':
            self._scan_string()
        elif first == "-" or first.isdigit():
            self._scan_number()
        elif first in "tfn" and first:
            self._scan_word({"t": "true", "f": "false", "n": "null"}[first])
        else:
            self._fail("looking for beginning of value")

    def _scan_compound(self, opening: str, depth: int) -> None:
        self.position += 1
        closing, is_object = _CLOSE[opening], opening == "{"
        error_after = "after object key:value pair" if is_object else "after array element"
        first = True
        while True:
            if self._peek() == closing and first:
                break
            if is_object:
                if self._peek() != '"':
                    self._fail("looking for beginning of object key string")
                self._scan_string()
                if self._peek() != ":":
                    self._fail("after object key")
                self.position += 1
            self._scan_value(depth + 1)
            first = False
            if self._peek() == closing:
                break
            if self._peek() != ",":
                self._fail(error_after)
            self.position += 1
        self.position += 1

    def _scan_string(self) -> None:
        self.position += 1
        while True:
            character = self.text[self.position] if self.position < len(self.text) else ""
            if not character or character < " ":
                self._fail("in string literal")
            self.position += 1
            if character == '"':
                return
            if character == "\\":
                self._scan_escape()

    def _scan_escape(self) -> None:
        kind = self.text[self.position] if self.position < len(self.text) else ""
        if not kind or kind not in '"\\/bfnrtu':
            self._fail("in string escape code")
        self.position += 1
        for _ in range(4 if kind == "u" else 0):
            if (
                self.position >= len(self.text)
                or self.text[self.position] not in "0123456789abcdefABCDEF"
            ):
                self._fail("in \\u hexadecimal character escape")
            self.position += 1

    def _scan_number(self) -> None:
        match = re.compile(r"-?(0|[1-9][0-9]*)?").match(self.text, self.position)
        assert match is not None
        self.position = match.end()
        if match[1] is None:
            self._fail("in numeric literal")
        if self.text[self.position : self.position + 1] == ".":
            self.position += 1
            self._scan_digits("after decimal point in numeric literal")
        if self.text[self.position : self.position + 1] in ("e", "E"):
            self.position += 1
            if self.text[self.position : self.position + 1] in ("+", "-"):
                self.position += 1
            self._scan_digits("in exponent of numeric literal")

    def _scan_digits(self, context: str) -> None:
        if not self.text[self.position : self.position + 1].isdigit():
            self._fail(context)
        while self.text[self.position : self.position + 1].isdigit():
            self.position += 1

    def _scan_word(self, word: str) -> None:
        for expected in word:
            if self.text[self.position : self.position + 1] != expected:
                self._fail(f"in literal {word} (expecting {_quote(expected)})")
            self.position += 1


class _ScanError(Exception):
    pass


def _quote(character: str) -> str:
    if character in "'\\":
        return f"'\\{character}'"
    if character == '"':
        return "'\"'"
    return f"'{character}'" if character.isprintable() else repr(character)
