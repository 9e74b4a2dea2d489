"""The exact walk of a body that is not what its kind says: what is wrong, in Go's words and order.

`pruning.tidy` is fast because it makes no messages. When it found a problem, the body is walked
again here, member by member in the order of the document, because the order of errors is part of
the contract:

* the first value of a wrong type refuses the body; nothing else is reported then;
* unknown and duplicate fields are collected, at most `PROBLEM_LIMIT` of them, and dropped.

A value of a type that reads itself (time, quantity) refuses at once, before an earlier wrong type
is reported.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from zonewise.api.errors import ParseError
from zonewise.api.text.gotime import time_complaint
from zonewise.api.text.jsontext import Literal, Pairs, plain
from zonewise.api.values import quantity
from zonewise.embedded.machinery.decoding.pruning import INT32, INT64
from zonewise.embedded.machinery.schema.types import Type

PROBLEM_LIMIT = 100
QUANTITY_FORM = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)


class WrongType(ParseError):
    """A value is not of its field's type; the message is Go's."""


class Examination:
    """One exact walk: what is wrong, in document order, and the value without it."""

    def __init__(self, path: str = "") -> None:
        self.problems: list[str] = []
        self._path = path
        self._known: set[str] = set()
        self._wrong: str | None = None

    def run(self, kind: Type, value: Any) -> Any:
        """The cleaned value; raises WrongType for the first value of a wrong type."""
        cleaned = self._value(kind, value, kind.go, _Place(self._path, "", ""))
        if self._wrong is not None:
            raise WrongType(self._wrong)
        return cleaned

    def _problem(self, what: str, place: _Place, name: str) -> None:
        path = f"{place.path}.{name}" if place.path else name
        text = f"{what} field {quoted(path)}"
        if text not in self._known and len(self.problems) < PROBLEM_LIMIT:
            self._known.add(text)
            self.problems.append(text)

    def _mismatch(self, value: Any, go: str, place: _Place, *, shown: bool = False) -> None:
        if self._wrong is None:
            what = f"number {_digits(value)}" if shown else what_is(value)
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


def what_is(value: Any) -> str:
    """What Go's decoder calls a JSON value."""
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


def quoted(text: str) -> str:
    """A path as a problem names it."""
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii")
        for c in text.replace("\\", "\\\\").replace('"', '\\"')
    )
    return f'"{shown}"'
