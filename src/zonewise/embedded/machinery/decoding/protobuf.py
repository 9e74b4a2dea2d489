"""Kubernetes' protobuf, read only: what typed Go clients (kubectl among them) send.

A body is the four bytes ``k8s\\0`` and an envelope that names its kind and holds the object. Which
field a number is comes from the generated table; what the field is comes from the same graph of
types that JSON is checked against, so both ways of sending an object end in the same value. Numbers
that are not in the table are skipped, as protobuf requires.

A structure that JSON shows inline is a message of its own here; its members are lifted one level.
Everything is bounded by the body's size, which the caller has bounded, and by ``DEPTH``.
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
from zonewise.embedded.machinery.schema.types import Type

MAGIC = b"k8s\x00"
DEPTH = 100

Numbers = dict[str, Any]


class Envelope(NamedTuple):
    """What a body says it is, and the message it holds."""

    api_version: str
    kind: str
    message: bytes


class NotProtobuf(ParseError):
    """Bytes that are no Kubernetes protobuf, or not of the expected kind."""


class _Table(msgspec.Struct):
    generated: str
    version: str
    numbers: dict[str, Numbers]


def envelope(body: bytes) -> Envelope:
    """Take a body out of its envelope."""
    if not body.startswith(MAGIC):
        raise NotProtobuf("the body does not begin as Kubernetes' protobuf does")
    api_version = kind = ""
    message = b""
    for number, value in _fields(body[len(MAGIC) :]):
        if number == 1:
            for inner, text in _fields(_bytes(value)):
                if inner == 1:
                    api_version = _text(text)
                elif inner == 2:
                    kind = _text(text)
        elif number == 2:
            message = _bytes(value)
    return Envelope(api_version, kind, message)


def decode(kind: Type, message: bytes) -> dict[str, Any]:
    """A message as the value its JSON would be."""
    return _object(kind, message, _numbers(kind.name), DEPTH)


def _numbers(name: str) -> Numbers:
    found = _table().numbers.get(name)
    if found is None:
        raise NotProtobuf(f"{name or 'this kind'} has no protobuf form here")
    return found


@cache
def _table() -> _Table:
    return msgspec.json.decode(read_table("wire.json"), type=_Table)


def _object(kind: Type, message: bytes, numbers: Numbers, depth: int) -> dict[str, Any]:
    if not depth:
        raise NotProtobuf("the body is nested too deeply")
    out: dict[str, Any] = {}
    for number, value in _fields(message):
        name = numbers.get(str(number))
        if name is None:
            continue
        if not isinstance(name, str):
            out.update(_object(kind, _bytes(value), name, depth - 1))
            continue
        field = kind.fields.get(name)
        if field is None:
            continue
        if field.shape == "list":
            assert field.items is not None
            out.setdefault(name, []).extend(_repeated(field.items, value, depth))
        elif field.shape == "map":
            key, entry = _entry(field, _bytes(value), depth)
            out.setdefault(name, {})[key] = entry
        else:
            out[name] = _value(field, value, depth)
    return out


def _repeated(kind: Type, value: int | bytes, depth: int) -> list[Any]:
    if kind.shape == "integer" and isinstance(value, bytes):  # packed
        found, at = [], 0
        while at < len(value):
            number, at = _varint(value, at)
            found.append(_signed(number))
        return found
    return [_value(kind, value, depth)]


def _entry(field: Type, message: bytes, depth: int) -> tuple[str, Any]:
    key = ""
    kind = field.values
    assert kind is not None
    value: Any = _zero(kind)
    for number, found in _fields(message):
        if number == 1:
            key = _text(found)
        elif number == 2:
            # A list as a map's value is a message of its own with the items as field 1.
            if kind.shape == "list":
                assert kind.items is not None
                value = [_value(kind.items, item, depth) for _, item in _fields(_bytes(found))]
            else:
                value = _value(kind, found, depth)
    return key, value


def _zero(kind: Type) -> Any:
    return {"string": "", "boolean": False, "integer": 0, "number": 0.0, "list": []}.get(
        kind.shape, {}
    )


def _value(kind: Type, value: int | bytes, depth: int) -> Any:
    match kind.shape:
        case "string":
            return _string(kind, value)
        case "boolean":
            return bool(_integer(value))
        case "integer":
            return _signed(_integer(value))
        case "number":
            return float(struct.unpack("<d", _bytes(value))[0])
        case "int-or-string":
            return _int_or_string(_bytes(value))
        case "object":
            numbers = _table().numbers.get(kind.name, {})  # none: a message without fields
            return _object(kind, _bytes(value), numbers, depth - 1)
        case _:
            return _special(kind, _bytes(value), depth)


def _string(kind: Type, value: int | bytes) -> str | None:
    raw = _bytes(value)
    match kind.format:
        case "byte":
            return base64.b64encode(raw).decode()
        case "quantity":
            return next((_text(found) for number, found in _fields(raw) if number == 1), "0")
        case "date-time" | "micro-time":
            return _moment(raw, micro=kind.format == "micro-time")
    return _text(raw)


def _moment(message: bytes, *, micro: bool) -> str | None:
    parts = {number: _signed(_integer(found)) for number, found in _fields(message)}
    seconds, nanos = parts.get(1, 0), parts.get(2, 0)
    if not parts or (seconds <= ZERO_TIME and not nanos):
        return None
    try:
        return (format_micro if micro else format_time)(from_epoch(seconds + nanos / 1e9))
    except (OverflowError, ValueError):
        raise NotProtobuf("the body has a time that cannot be") from None


ZERO_TIME = -62135596800  # year 1, which Go takes for "no time"


def _int_or_string(message: bytes) -> int | str:
    kind, number, text = 0, 0, ""
    for field, found in _fields(message):
        if field == 1:
            kind = _integer(found)
        elif field == 2:
            number = _signed(_integer(found))
        elif field == 3:
            text = _text(found)
    return text if kind else number


def _special(kind: Type, message: bytes, depth: int) -> Any:
    parts = list(_fields(message))
    if kind.format.startswith("schema-or-") and kind.items is not None:
        many = [found for number, found in parts if number == 2]
        if kind.format == "schema-or-bool":
            schema = next((found for number, found in parts if number == 2), None)
            if schema is not None:
                return _value(kind.items, schema, depth - 1)
            return bool(next((_integer(found) for number, found in parts if number == 1), 0))
        one = next((found for number, found in parts if number == 1), None)
        if one is not None:
            return _value(kind.items, one, depth - 1)
        if kind.format == "schema-or-strings":
            return [_text(found) for found in many]
        return [_value(kind.items, found, depth - 1) for found in many]
    raw = next((_bytes(found) for number, found in parts if number == 1), b"null")
    try:
        return jsontext.read(raw)
    except ParseError:
        raise NotProtobuf("the body holds JSON that is none") from None


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == 2:
            length, at = _varint(message, at)
        elif kind == 1:
            length = 8
        elif kind == 5:
            length = 4
        else:
            raise NotProtobuf(f"the body has a field of the unknown wire type {kind}")
        if at + length > end:
            raise NotProtobuf("the body ends in the middle of a field")
        yield number, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise NotProtobuf("the body ends in the middle of a number")
        byte = message[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7


def _signed(number: int) -> int:
    number &= 0xFFFF_FFFF_FFFF_FFFF
    return number - (1 << 64) if number >> 63 else number


def _integer(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise NotProtobuf("the body has text where a number belongs")
    return value


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise NotProtobuf("the body has a number where text belongs")
    return value


def _text(value: int | bytes) -> str:
    try:
        return _bytes(value).decode()
    except UnicodeDecodeError:
        raise NotProtobuf("the body has text that is not UTF-8") from None
