"""Is a body what its kind says it is? Every unknown and every duplicate field is named, as a real
server does.

`decode` and `accept` first try the fast way (`pruning.tidy`). Only a body with something to say
about it is walked again here, member by member in the order of the document, because the order of
complaints is part of the contract:

* the first value of a wrong type refuses the body, in the words of Go's decoder; nothing else is
  reported then;
* unknown and duplicate fields are collected, at most `PROBLEM_LIMIT` of them, and dropped. What
  they mean is the caller's choice by `fieldValidation`: an error, warnings, or nothing.

A value of a type that reads itself (time, quantity) refuses at once, before an earlier wrong type
is told.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from zonewise.api import faults, quantity
from zonewise.api.errors import ParseError, StatusCause
from zonewise.api.gotime import time_complaint
from zonewise.api.jsontext import (
    Literal,
    NotJSON,
    Pairs,
    has_duplicates,
    plain,
    read,
    read_pairs,
    summary,
)
from zonewise.api.pruning import INT32, INT64, Surprise, tidy
from zonewise.api.schema import Type

PROBLEM_LIMIT = 100
QUANTITY_FORM = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)


class WrongType(ParseError):
    """A value is not of its field's type; the message is Go's."""


class Decoded(NamedTuple):
    """A tidy object, and what was wrong with its fields: `unknown field "spec.foo"`."""

    value: dict[str, Any]
    problems: tuple[str, ...] = ()


def decode(kind: Type, raw: bytes, *, strict: bool = True) -> Decoded:
    """A body as an object of a built-in kind: pruned, tidy, without defaults.

    Raises NotJSON or WrongType. With `strict=False` (fieldValidation=Ignore) problems are not
    looked for.
    """
    value = read(raw)
    if not isinstance(value, dict):
        if value is None:
            return Decoded({})
        raise WrongType(f"json: cannot unmarshal {_what(value)} into Go value of type {kind.go}")
    if strict and has_duplicates(raw, value):
        return _examined(kind, read_pairs(raw), strict)
    try:
        return Decoded(tidy(kind, value))
    except Surprise:
        return _examined(kind, read_pairs(raw), strict)


def accept(kind: Type, value: dict[str, Any], *, strict: bool = True) -> Decoded:
    """The same for an object that is decoded already: from YAML, or the result of a patch.

    The value is changed in place where it can be; use the one returned.
    """
    try:
        return Decoded(tidy(kind, value))
    except Surprise:
        return _examined(kind, value, strict)


def _examined(kind: Type, value: Any, strict: bool) -> Decoded:
    examination = Examination()
    cleaned = examination.run(kind, value)
    return Decoded(tidy(kind, cleaned), tuple(examination.problems) if strict else ())


def strict_error(problems: Sequence[str]) -> str:
    """What refuses a body under fieldValidation=Strict."""
    return "strict decoding error: " + ", ".join(problems)


def unhandled(kind: str, version: str, into: str, why: str) -> str:
    """The message of the 400 for a body whose kind is known and whose content is not."""
    return f'{kind} in version "{version}" cannot be handled as a {into}: {why}'


def unrecognized(into: str, raw: bytes, error: NotJSON) -> str:
    """The message of the 400 for a body that is not JSON."""
    return (
        f"the object provided is unrecognized (must be of type {into}): "
        f"couldn't get version/kind; json parse error: {error} ({summary(raw)})"
    )


class Examination:
    """One exact walk: what is wrong, in document order, and the value without it."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._known: set[str] = set()
        self._wrong: str | None = None

    def run(self, kind: Type, value: Any) -> Any:
        """The cleaned value; raises WrongType for the first value of a wrong type."""
        cleaned = self._value(kind, value, kind.go, _Place("", "", ""))
        if self._wrong is not None:
            raise WrongType(self._wrong)
        return cleaned

    def _problem(self, what: str, place: _Place, name: str) -> None:
        path = f"{place.path}.{name}" if place.path else name
        text = f"{what} field {_quote(path)}"
        if text not in self._known and len(self.problems) < PROBLEM_LIMIT:
            self._known.add(text)
            self.problems.append(text)

    def _mismatch(self, value: Any, go: str, place: _Place, *, shown: bool = False) -> None:
        if self._wrong is None:
            what = f"number {_digits(value)}" if shown else _what(value)
            self._wrong = f"json: cannot unmarshal {what} into {place.go}{go}"

    def _value(self, kind: Type, value: Any, go: str, place: _Place) -> Any:
        match kind.shape:
            case "object":
                return self._object(kind, value, go, place)
            case "map":
                return self._map(kind, value, go, place)
            case "list":
                return self._list(kind, value, go, place)
            case "any":
                return plain(value)
        if value is None:
            return None
        if kind.shape == "int-or-string":
            return self._int_or_string(value, place)
        if kind.format in ("date-time", "micro-time"):
            return self._time(kind, value, place)
        if kind.format == "quantity":
            return _quantity(value)
        return self._scalar(kind, value, go, place)

    def _object(self, kind: Type, value: Any, go: str, place: _Place) -> Any:
        if value is None:
            return {}
        if not isinstance(value, dict | Pairs):
            self._mismatch(value, go, place)
            return {}
        struct = (kind.go or go).rpartition(".")[2]
        cleaned: dict[str, Any] = {}
        for name, item in _members(value):
            field = kind.fields.get(name)
            if field is None:
                self._problem("unknown", place, name)
                continue
            if name in cleaned:
                self._problem("duplicate", place, name)
            below = place.field(struct, field.inline, name)
            made = None if item is None else self._value(field, item, field.go, below)
            if made is not None or name not in cleaned:
                cleaned[name] = made
        return cleaned

    def _map(self, kind: Type, value: Any, go: str, place: _Place) -> Any:
        if not isinstance(value, dict | Pairs):
            self._mismatch(value, go, place)
            return {}
        assert kind.values is not None
        inner = kind.values.go or go.partition("]")[2]
        cleaned: dict[str, Any] = {}
        for name, item in _members(value):
            if name in cleaned:
                self._problem("duplicate", place, name)
            made = self._value(kind.values, item, inner, place.key(name))
            cleaned[name] = _zero(kind.values) if made is None else made
        return cleaned

    def _list(self, kind: Type, value: Any, go: str, place: _Place) -> Any:
        if not isinstance(value, list) or isinstance(value, Pairs):
            self._mismatch(value, go, place)
            return []
        assert kind.items is not None
        inner = go[2:] if go.startswith("[]") else kind.items.go
        cleaned = []
        for index, item in enumerate(value):
            made = self._value(kind.items, item, inner, place.item(index))
            cleaned.append(_zero(kind.items) if made is None else made)
        return cleaned

    def _int_or_string(self, value: Any, place: _Place) -> Any:
        if isinstance(value, str):
            return value
        if isinstance(value, int) and not isinstance(value, bool) and value in INT32:
            return value
        number = isinstance(value, int | float) and not isinstance(value, bool)
        self._wrong = None
        self._mismatch(value, "int32", place, shown=number)
        raise WrongType(self._wrong)

    def _time(self, kind: Type, value: Any, place: _Place) -> Any:
        if not isinstance(value, str):
            self._wrong = None
            self._mismatch(value, "string", place)
            raise WrongType(self._wrong)
        why = time_complaint(value, micro=kind.format == "micro-time")
        if why is not None:
            raise WrongType(why)
        return value

    def _scalar(self, kind: Type, value: Any, go: str, place: _Place) -> Any:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        match kind.shape:
            case "string" if isinstance(value, str):
                return self._bytes(value) if kind.format == "byte" else value
            case "boolean" if isinstance(value, bool):
                return value
            case "number" if number:
                return float(value) if isinstance(value, float) else value
            case "integer" if number:
                fits = INT64 if kind.format == "int64" else INT32
                if isinstance(value, int) and value in fits:
                    return value
                self._mismatch(value, go, place, shown=True)
                return None
        self._mismatch(value, go, place)
        return None

    def _bytes(self, text: str) -> str | None:
        joined = text.replace("\r", "").replace("\n", "")
        try:
            binascii.a2b_base64(joined, strict_mode=True)
        except ValueError:
            if self._wrong is None:
                self._wrong = f"illegal base64 data at input byte {_first_bad_byte(text)}"
            return None
        return joined


class _Place(NamedTuple):
    """Where the walk is: the path of problems, and the struct and stack of Go's decoder."""

    path: str
    struct: str
    stack: str

    @property
    def go(self) -> str:
        if not self.struct and not self.stack:
            return "Go value of type "
        return f"Go struct field {self.struct}.{self.stack} of type "

    def field(self, struct: str, inline: str, name: str) -> _Place:
        step = f"{inline}.{name}" if inline else name
        return _Place(
            f"{self.path}.{name}" if self.path else name,
            struct,
            f"{self.stack}.{step}" if self.stack else step,
        )

    def key(self, name: str) -> _Place:
        return self._replace(path=f"{self.path}.{name}" if self.path else name)

    def item(self, index: int) -> _Place:
        return self._replace(path=f"{self.path}[{index}]")


def _members(value: dict[str, Any] | Pairs) -> Iterator[tuple[str, Any]]:
    return iter(value.items() if isinstance(value, dict) else value)


def _zero(kind: Type) -> Any:
    """What Go makes of null inside a list or a map."""
    zeros: dict[str, Any] = {"object": {}, "map": {}, "list": [], "string": "", "boolean": False}
    if kind.format == "quantity":
        return "0"
    return zeros.get(kind.shape, None if kind.shape == "any" else 0)


def _what(value: Any) -> str:
    if isinstance(value, dict | Pairs):
        return "object"
    if isinstance(value, list):
        return "array"
    if isinstance(value, str):
        return "string"
    return "bool" if isinstance(value, bool) else "number"


def _digits(value: Any) -> str:
    return value.text if isinstance(value, Literal) else str(value)


def _quantity(value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text = _digits(value) if number else value
    try:
        return quantity.canonical(text)
    except (ParseError, TypeError):
        raise WrongType(QUANTITY_FORM) from None


def _first_bad_byte(text: str) -> int:
    """Where Go's decoder gives up: at a foreign character, or where an unfinished group of four
    began.
    """
    start, inside = 0, 0
    for index, character in enumerate(text):
        if character in "\r\n":
            continue
        if not re.match(r"[A-Za-z0-9+/]", character):
            if character != "=" or inside < 2:
                return index
            if inside == 3:
                return index + 1
            rest = text[index + 1 :].replace("\r", "").replace("\n", "")
            return len(text) if not rest else index if rest[0] != "=" else index + 2
        if inside == 0:
            start = index
        inside = (inside + 1) % 4
    return start


def _quote(text: str) -> str:
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii")
        for c in text.replace("\\", "\\\\").replace('"', '\\"')
    )
    return f'"{shown}"'


def missing(kind: Type, value: Any, path: str = "") -> list[StatusCause]:
    """Required fields that are not there and values outside their enum, as far as the schema alone
    can tell.
    """
    found: list[StatusCause] = []
    if kind.shape == "object" and isinstance(value, dict):
        for name in kind.required:
            if value.get(name) is None:
                found.append(faults.required(f"{path}.{name}" if path else name))
        for name, item in value.items():
            field = kind.fields.get(name)
            if field is not None:
                found += missing(field, item, f"{path}.{name}" if path else name)
    elif kind.shape == "map" and isinstance(value, dict) and kind.values is not None:
        for name, item in value.items():
            found += missing(kind.values, item, f"{path}[{name}]")
    elif kind.shape == "list" and isinstance(value, list) and kind.items is not None:
        for index, item in enumerate(value):
            found += missing(kind.items, item, f"{path}[{index}]")
    elif kind.enum and value not in kind.enum:
        found.append(faults.unsupported(path, value, kind.enum))
    return found
