"""Decode a body that does not match its schema: every problem, in Go's words and order.

`normalizing.normalize` is fast because it builds no messages. When it finds a problem, the body is
walked again here, member by member in the order of the document, because the order of errors is
part of the contract:

* the first value of a wrong type refuses the body; nothing else is reported then;
* unknown and duplicate fields are collected, at most `PROBLEM_LIMIT` of them, and dropped.

A value of a type with a decoder of its own (time, quantity) refuses at once, before an earlier
wrong type is reported.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from zonewise.api.errors import ParseError
from zonewise.api.text.gotime import time_error_text
from zonewise.api.text.jsontext import NumberLiteral, Pairs, to_builtins
from zonewise.api.values import quantity
from zonewise.embedded.machinery.decoding.normalizing import INT32, INT64
from zonewise.embedded.machinery.schema.schema import Schema

PROBLEM_LIMIT = 100
QUANTITY_MESSAGE = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)


class WrongType(ParseError):
    """A value is not of its field's type; the message is Go's."""


class StrictDecoder:
    """One walk: the problems, in document order, and the value without them."""

    def __init__(self, path: str = "") -> None:
        self.problems: list[str] = []
        self._path = path
        self._reported: set[str] = set()
        self._type_error: str | None = None

    def decode(self, schema: Schema, value: Any) -> Any:
        """The cleaned value; raises WrongType for the first value of a wrong type."""
        cleaned = self._decode_value(schema, value, schema.go_type, _Position(self._path, "", ""))
        if self._type_error is not None:
            raise WrongType(self._type_error)
        return cleaned

    def _report(self, problem: str, position: _Position, name: str) -> None:
        path = f"{position.path}.{name}" if position.path else name
        text = f"{problem} field {quote_path(path)}"
        if text not in self._reported and len(self.problems) < PROBLEM_LIMIT:
            self._reported.add(text)
            self.problems.append(text)

    def _report_mismatch(
        self, value: Any, go: str, position: _Position, *, with_digits: bool = False
    ) -> None:
        if self._type_error is None:
            described = f"number {_digits_of(value)}" if with_digits else go_json_type(value)
            self._type_error = f"json: cannot unmarshal {described} into {position.go_target}{go}"

    def _decode_value(self, schema: Schema, value: Any, go: str, position: _Position) -> Any:
        match schema.shape:
            case "object":
                return self._decode_object(schema, value, go, position)
            case "map":
                return self._decode_map(schema, value, go, position)
            case "list":
                return self._decode_list(schema, value, go, position)
            case "any":
                return to_builtins(value)
        if value is None:
            return None
        if schema.shape == "int-or-string":
            return self._decode_int_or_string(value, position)
        if schema.format in ("date-time", "micro-time"):
            return self._decode_time(schema, value, position)
        if schema.format == "quantity":
            return _decode_quantity(value)
        return self._decode_scalar(schema, value, go, position)

    def _decode_object(self, schema: Schema, value: Any, go: str, position: _Position) -> Any:
        if value is None:
            return {}
        if not isinstance(value, dict | Pairs):
            self._report_mismatch(value, go, position)
            return {}
        struct = (schema.go_type or go).rpartition(".")[2]
        cleaned: dict[str, Any] = {}
        for name, item in _members(value):
            field = schema.fields.get(name)
            if field is None:
                self._report("unknown", position, name)
                continue
            if name in cleaned:
                self._report("duplicate", position, name)
            field_position = position.field(struct, field.inline_struct, name)
            decoded = (
                None
                if item is None
                else self._decode_value(field, item, field.go_type, field_position)
            )
            if decoded is not None or name not in cleaned:
                cleaned[name] = decoded
        return cleaned

    def _decode_map(self, schema: Schema, value: Any, go: str, position: _Position) -> Any:
        if not isinstance(value, dict | Pairs):
            self._report_mismatch(value, go, position)
            return {}
        assert schema.values is not None
        inner = schema.values.go_type or go.partition("]")[2]
        cleaned: dict[str, Any] = {}
        for name, item in _members(value):
            if name in cleaned:
                self._report("duplicate", position, name)
            decoded = self._decode_value(schema.values, item, inner, position.key(name))
            cleaned[name] = _zero_of(schema.values) if decoded is None else decoded
        return cleaned

    def _decode_list(self, schema: Schema, value: Any, go: str, position: _Position) -> Any:
        if not isinstance(value, list) or isinstance(value, Pairs):
            self._report_mismatch(value, go, position)
            return []
        assert schema.items is not None
        inner = go[2:] if go.startswith("[]") else schema.items.go_type
        cleaned = []
        for index, item in enumerate(value):
            decoded = self._decode_value(schema.items, item, inner, position.item(index))
            cleaned.append(_zero_of(schema.items) if decoded is None else decoded)
        return cleaned

    def _decode_int_or_string(self, value: Any, position: _Position) -> Any:
        if isinstance(value, str):
            return value
        if isinstance(value, int) and not isinstance(value, bool) and value in INT32:
            return value
        number = isinstance(value, int | float) and not isinstance(value, bool)
        self._type_error = None
        self._report_mismatch(value, "int32", position, with_digits=number)
        raise WrongType(self._type_error)

    def _decode_time(self, schema: Schema, value: Any, position: _Position) -> Any:
        if not isinstance(value, str):
            self._type_error = None
            self._report_mismatch(value, "string", position)
            raise WrongType(self._type_error)
        complaint = time_error_text(value, micro=schema.format == "micro-time")
        if complaint is not None:
            raise WrongType(complaint)
        return value

    def _decode_scalar(self, schema: Schema, value: Any, go: str, position: _Position) -> Any:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        match schema.shape:
            case "string" if isinstance(value, str):
                return self._decode_bytes(value) if schema.format == "byte" else value
            case "boolean" if isinstance(value, bool):
                return value
            case "number" if number:
                return float(value) if isinstance(value, float) else value
            case "integer" if number:
                fits = INT64 if schema.format == "int64" else INT32
                if isinstance(value, int) and value in fits:
                    return value
                self._report_mismatch(value, go, position, with_digits=True)
                return None
        self._report_mismatch(value, go, position)
        return None

    def _decode_bytes(self, text: str) -> str | None:
        joined = text.replace("\r", "").replace("\n", "")
        try:
            binascii.a2b_base64(joined, strict_mode=True)
        except ValueError:
            if self._type_error is None:
                self._type_error = f"illegal base64 data at input byte {_first_bad_byte(text)}"
            return None
        return joined


class _Position(NamedTuple):
    """The position of the walk: a path for problems, and the struct and stack of Go's decoder."""

    path: str
    struct: str
    stack: str

    @property
    def go_target(self) -> str:
        if not self.struct and not self.stack:
            return "Go value of type "
        return f"Go struct field {self.struct}.{self.stack} of type "

    def field(self, struct: str, inline: str, name: str) -> _Position:
        step = f"{inline}.{name}" if inline else name
        return _Position(
            f"{self.path}.{name}" if self.path else name,
            struct,
            f"{self.stack}.{step}" if self.stack else step,
        )

    def key(self, name: str) -> _Position:
        return self._replace(path=f"{self.path}.{name}" if self.path else name)

    def item(self, index: int) -> _Position:
        return self._replace(path=f"{self.path}[{index}]")


def _members(value: dict[str, Any] | Pairs) -> Iterator[tuple[str, Any]]:
    return iter(value.items() if isinstance(value, dict) else value)


def _zero_of(schema: Schema) -> Any:
    """What Go decodes a null inside a list or a map to."""
    zeros: dict[str, Any] = {"object": {}, "map": {}, "list": [], "string": "", "boolean": False}
    if schema.format == "quantity":
        return "0"
    return zeros.get(schema.shape, None if schema.shape == "any" else 0)


def go_json_type(value: Any) -> str:
    """The name of a JSON value's type in Go's decoder."""
    if isinstance(value, dict | Pairs):
        return "object"
    if isinstance(value, list):
        return "array"
    if isinstance(value, str):
        return "string"
    return "bool" if isinstance(value, bool) else "number"


def _digits_of(value: Any) -> str:
    return value.text if isinstance(value, NumberLiteral) else str(value)


def _decode_quantity(value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text = _digits_of(value) if number else value
    try:
        return quantity.canonical(text)
    except (ParseError, TypeError):
        raise WrongType(QUANTITY_MESSAGE) from None


def _first_bad_byte(text: str) -> int:
    """Where Go's decoder fails: at an illegal character, or at the start of an incomplete group."""
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


def quote_path(text: str) -> str:
    """A path in the form of problems."""
    escaped = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii")
        for c in text.replace("\\", "\\\\").replace('"', '\\"')
    )
    return f'"{escaped}"'
