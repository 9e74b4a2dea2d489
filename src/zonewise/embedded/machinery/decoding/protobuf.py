"""Kubernetes' protobuf, read only: what typed Go clients (kubectl among them) send.

A body is the four bytes ``k8s\\0`` and an envelope that names its kind and contains the object. The
name of a field number is in the generated table; its type is in the same schema that JSON is
decoded with, so both encodings give the same value. Numbers that are not in the table are skipped,
as protobuf requires.

A structure that JSON shows inline is a message of its own here; its members are lifted one level.
Everything is bounded by the body's size, which the caller limits, and by ``DEPTH_LIMIT``.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import msgspec

from zonewise.api.errors import ParseError
from zonewise.api.text import jsontext
from zonewise.api.values.times import format_micro, format_time, from_epoch
from zonewise.embedded.machinery.schema.definitions import read_table
from zonewise.embedded.machinery.schema.schema import Schema

MAGIC = b"k8s\x00"
DEPTH_LIMIT = 100

FieldNumbers = dict[str, Any]


class Envelope(NamedTuple):
    """The apiVersion and kind of a body, and its message."""

    api_version: str
    kind: str
    message: bytes


class NotProtobuf(ParseError):
    """Bytes that are not Kubernetes protobuf, or not of the expected kind."""


class _Table(msgspec.Struct):
    generated: str
    version: str
    numbers: dict[str, FieldNumbers]


def open_envelope(body: bytes) -> Envelope:
    """Take a body out of its envelope."""
    if not body.startswith(MAGIC):
        raise NotProtobuf("the body does not start with the prefix of Kubernetes' protobuf")
    api_version = kind = ""
    message = b""
    for number, value in _iterate_fields(body[len(MAGIC) :]):
        if number == 1:
            for inner, text in _iterate_fields(_expect_bytes(value)):
                if inner == 1:
                    api_version = _expect_text(text)
                elif inner == 2:
                    kind = _expect_text(text)
        elif number == 2:
            message = _expect_bytes(value)
    return Envelope(api_version, kind, message)


def decode(schema: Schema, message: bytes) -> dict[str, Any]:
    """Decode a message to the same value as its JSON."""
    return _decode_object(schema, message, _field_numbers(schema.name), DEPTH_LIMIT)


def _field_numbers(name: str) -> FieldNumbers:
    numbers = _table().numbers.get(name)
    if numbers is None:
        raise NotProtobuf(f"{name or 'this kind'} has no protobuf form here")
    return numbers


@cache
def _table() -> _Table:
    return msgspec.json.decode(read_table("wire.json"), type=_Table)


def _decode_object(
    schema: Schema, message: bytes, numbers: FieldNumbers, depth: int
) -> dict[str, Any]:
    if not depth:
        raise NotProtobuf("the body is nested too deeply")
    result: dict[str, Any] = {}
    for number, value in _iterate_fields(message):
        name = numbers.get(str(number))
        if name is None:
            continue
        if not isinstance(name, str):
            result.update(_decode_object(schema, _expect_bytes(value), name, depth - 1))
            continue
        field = schema.fields.get(name)
        if field is None:
            continue
        if field.shape == "list":
            assert field.items is not None
            result.setdefault(name, []).extend(_decode_repeated(field.items, value, depth))
        elif field.shape == "map":
            key, entry = _decode_entry(field, _expect_bytes(value), depth)
            result.setdefault(name, {})[key] = entry
        else:
            result[name] = _decode_value(field, value, depth)
    return result


def _decode_repeated(schema: Schema, value: int | bytes, depth: int) -> list[Any]:
    if schema.shape == "integer" and isinstance(value, bytes):  # packed
        items, offset = [], 0
        while offset < len(value):
            number, offset = _read_varint(value, offset)
            items.append(_to_signed(number))
        return items
    return [_decode_value(schema, value, depth)]


def _decode_entry(field: Schema, message: bytes, depth: int) -> tuple[str, Any]:
    key = ""
    schema = field.values
    assert schema is not None
    value: Any = _zero_of(schema)
    for number, content in _iterate_fields(message):
        if number == 1:
            key = _expect_text(content)
        elif number == 2:
            # A list as a map's value is a message of its own with the items as field 1.
            if schema.shape == "list":
                assert schema.items is not None
                value = [
                    _decode_value(schema.items, item, depth)
                    for _, item in _iterate_fields(_expect_bytes(content))
                ]
            else:
                value = _decode_value(schema, content, depth)
    return key, value


def _zero_of(schema: Schema) -> Any:
    zeros = {"string": "", "boolean": False, "integer": 0, "number": 0.0, "list": []}
    return zeros.get(schema.shape, {})


def _decode_value(schema: Schema, value: int | bytes, depth: int) -> Any:
    match schema.shape:
        case "string":
            return _decode_string(schema, value)
        case "boolean":
            return bool(_expect_integer(value))
        case "integer":
            return _to_signed(_expect_integer(value))
        case "number":
            return float(struct.unpack("<d", _expect_bytes(value))[0])
        case "int-or-string":
            return _decode_int_or_string(_expect_bytes(value))
        case "object":
            numbers = _table().numbers.get(schema.name, {})  # absent: a message without fields
            return _decode_object(schema, _expect_bytes(value), numbers, depth - 1)
        case _:
            return _decode_special(schema, _expect_bytes(value), depth)


def _decode_string(schema: Schema, value: int | bytes) -> str | None:
    raw = _expect_bytes(value)
    match schema.format:
        case "byte":
            return base64.b64encode(raw).decode()
        case "quantity":
            return next(
                (_expect_text(content) for number, content in _iterate_fields(raw) if number == 1),
                "0",
            )
        case "date-time" | "micro-time":
            return _decode_time(raw, micro=schema.format == "micro-time")
    return _expect_text(raw)


def _decode_time(message: bytes, *, micro: bool) -> str | None:
    fields = _iterate_fields(message)
    parts = {number: _to_signed(_expect_integer(content)) for number, content in fields}
    seconds, nanos = parts.get(1, 0), parts.get(2, 0)
    if not parts or (seconds <= ZERO_TIME and not nanos):
        return None
    try:
        return (format_micro if micro else format_time)(from_epoch(seconds + nanos / 1e9))
    except (OverflowError, ValueError):
        raise NotProtobuf("the body has a time that is out of range") from None


ZERO_TIME = -62135596800  # year 1, which means "no time" in Go


def _decode_int_or_string(message: bytes) -> int | str:
    kind, number, text = 0, 0, ""
    for field, content in _iterate_fields(message):
        if field == 1:
            kind = _expect_integer(content)
        elif field == 2:
            number = _to_signed(_expect_integer(content))
        elif field == 3:
            text = _expect_text(content)
    return text if kind else number


def _decode_special(schema: Schema, message: bytes, depth: int) -> Any:
    parts = list(_iterate_fields(message))
    first = next((content for number, content in parts if number == 1), None)
    if schema.format.startswith("schema-or-") and schema.items is not None:
        repeated = [content for number, content in parts if number == 2]
        if schema.format == "schema-or-bool":
            if repeated:
                return _decode_value(schema.items, repeated[0], depth - 1)
            return first is not None and bool(_expect_integer(first))
        if first is not None:
            return _decode_value(schema.items, first, depth - 1)
        if schema.format == "schema-or-strings":
            return [_expect_text(content) for content in repeated]
        return [_decode_value(schema.items, content, depth - 1) for content in repeated]
    raw = b"null" if first is None else _expect_bytes(first)
    try:
        return jsontext.read(raw)
    except ParseError:
        raise NotProtobuf("the body contains invalid JSON") from None


def _iterate_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    offset, end = 0, len(message)
    while offset < end:
        tag, offset = _read_varint(message, offset)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            value, offset = _read_varint(message, offset)
            yield number, value
            continue
        if wire_type == 2:
            length, offset = _read_varint(message, offset)
        elif wire_type == 1:
            length = 8
        elif wire_type == 5:
            length = 4
        else:
            raise NotProtobuf(f"the body has a field of the unknown wire type {wire_type}")
        if offset + length > end:
            raise NotProtobuf("the body ends in the middle of a field")
        yield number, message[offset : offset + length]
        offset += length


def _read_varint(message: bytes, offset: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        if offset >= len(message) or shift > 63:
            raise NotProtobuf("the body ends in the middle of a number")
        byte = message[offset]
        offset += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, offset
        shift += 7


def _to_signed(number: int) -> int:
    number &= 0xFFFF_FFFF_FFFF_FFFF
    return number - (1 << 64) if number >> 63 else number


def _expect_integer(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise NotProtobuf("the body has bytes instead of a number")
    return value


def _expect_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise NotProtobuf("the body has a number instead of bytes")
    return value


def _expect_text(value: int | bytes) -> str:
    try:
        return _expect_bytes(value).decode()
    except UnicodeDecodeError:
        raise NotProtobuf("the body has text that is not UTF-8") from None
