"""Protobuf bodies are decoded to the same values as JSON bodies.

The writer here mirrors the reader, with the same table and types: recorded objects of a real server
must come back unchanged. That real clients write this form is shown by kubectl in `make e2e`.
"""

from __future__ import annotations

import base64
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.api.values.times import parse
from zonewise.embedded.machinery.decoding import protobuf
from zonewise.embedded.machinery.decoding.protobuf import MAGIC, NotProtobuf, decode, open_envelope
from zonewise.embedded.machinery.schema.kinds import served_kinds
from zonewise.embedded.machinery.schema.schema import Schema

ANSWERS = msgspec.json.decode((Path(__file__).parent / "answers.json").read_bytes())["answers"]
KINDS = {(kind.resource.api_version, kind.resource.kind): kind for kind in served_kinds()}
Obj = dict[str, Any]
KIND = ("apiVersion", "kind")


def varint(number: int) -> bytes:
    """A number of variable length."""
    number &= (1 << 64) - 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def block(number: int, data: bytes) -> bytes:
    """A field that has a length."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def scalar(number: int, value: int) -> bytes:
    """A field that is a number."""
    return varint(number << 3) + varint(value)


def wrapped(api_version: str, kind: str, message: bytes) -> bytes:
    """A body in its envelope."""
    names = block(1, api_version.encode()) + block(2, kind.encode())
    return MAGIC + block(1, names) + block(2, message)


def write(schema: Schema, value: Obj, numbers: Obj) -> bytes:
    """An object as a message."""
    out = b""
    for number, name in numbers.items():
        if not isinstance(name, str):
            out += block(int(number), write(schema, value, name))
        elif value.get(name) is not None and name in schema.fields:
            out += member(int(number), schema.fields[name], value[name])
    return out


def member(number: int, schema: Schema, value: Any) -> bytes:
    """A member of an object."""
    if schema.shape == "list":
        assert schema.items is not None
        return b"".join(member(number, schema.items, item) for item in value)
    if schema.shape == "map":
        assert schema.values is not None
        return b"".join(
            block(number, block(1, key.encode()) + entry(schema.values, item))
            for key, item in value.items()
        )
    if schema.shape == "boolean":
        return scalar(number, int(value))
    if schema.shape == "integer":
        return scalar(number, value)
    if schema.shape == "number":
        return varint(number << 3 | 1) + struct.pack("<d", value)
    return block(number, content(schema, value))


def entry(schema: Schema, value: Any) -> bytes:
    """The value of a map's entry."""
    if schema.shape == "list":
        assert schema.items is not None
        return block(2, b"".join(member(1, schema.items, item) for item in value))
    return member(2, schema, value)


def content(schema: Schema, value: Any) -> bytes:
    """The content of a field with a length."""
    if schema.shape == "object":
        return write(schema, value, protobuf._table().numbers.get(schema.name, {}))
    if schema.shape == "int-or-string":
        if isinstance(value, str):
            return scalar(1, 1) + block(3, value.encode())
        return scalar(1, 0) + scalar(2, value)
    if schema.shape == "string":
        match schema.format:
            case "byte":
                return base64.b64decode(value)
            case "quantity":
                return block(1, str(value).encode())
            case "date-time" | "micro-time":
                moment = parse(value)
                return scalar(1, int(moment.timestamp())) + scalar(2, moment.microsecond * 1000)
        return str(value).encode()
    if schema.format.startswith("schema-or-") and isinstance(value, dict):
        assert schema.items is not None
        return block(2 if schema.format == "schema-or-bool" else 1, content(schema.items, value))
    if schema.format == "schema-or-bool":
        return scalar(1, int(value))
    return block(1, msgspec.json.encode(value))


def without_nulls(value: Any) -> Any:
    """A value without what protobuf cannot express: nulls, empty lists and maps, kinds of
    templates.
    """
    if isinstance(value, dict):
        content = {
            key: item for key, item in value.items() if "spec" not in value or key not in KIND
        }
        cleaned = {key: without_nulls(item) for key, item in content.items()}
        return {key: item for key, item in cleaned.items() if item not in (None, [], {})}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def objects() -> list[tuple[str, Obj]]:
    """The recorded answers of a real server, of the kinds that have a protobuf form."""
    samples: list[tuple[str, Obj]] = []
    for answer in ANSWERS:
        obj = next(
            (part for part in answer.values() if isinstance(part, dict) and "kind" in part), None
        )
        if obj is not None and (obj.get("apiVersion"), obj["kind"]) in KINDS:
            samples.append((f"{obj['kind']}-{len(samples)}", obj))
    return samples


def test_many_kinds_are_compared() -> None:
    """The recorded answers cover many kinds."""
    assert len({obj["kind"] for _, obj in objects()}) > 40


@pytest.mark.parametrize("obj", [obj for _, obj in objects()], ids=[name for name, _ in objects()])
def test_objects_can_be_written_and_read(obj: Obj) -> None:
    """An object written as protobuf is read as its JSON."""
    kind = KINDS[obj["apiVersion"], obj["kind"]].schema
    body = wrapped(
        obj["apiVersion"], obj["kind"], write(kind, obj, protobuf._field_numbers(kind.name))
    )
    envelope = open_envelope(body)
    assert (envelope.api_version, envelope.kind) == (obj["apiVersion"], obj["kind"])
    expected = {key: item for key, item in obj.items() if key not in ("apiVersion", "kind")}
    assert without_nulls(decode(kind, envelope.message)) == without_nulls(expected)


def test_unknown_numbers_are_skipped() -> None:
    """An unknown field of a newer client is skipped."""
    kind = KINDS["v1", "ConfigMap"].schema
    data = block(2, block(1, b"k") + block(2, b"v"))
    assert decode(kind, scalar(999, 7) + data + block(998, b"x")) == {"data": {"k": "v"}}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"k8s",
        b"k8s\x01",
        b'{"kind":"Pod"}',
        MAGIC + b"\xff",
        MAGIC + b"\x0a\x7f",
        MAGIC + b"\x0b",
    ],
)
def test_what_is_not_protobuf_is_refused(body: bytes) -> None:
    """Bytes that are not Kubernetes protobuf are refused with a sentence."""
    with pytest.raises(NotProtobuf):
        open_envelope(body)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(message: bytes) -> None:
    """No bytes make the reader raise another exception."""
    kind = KINDS["v1", "Pod"].schema
    try:
        decode(kind, message)
    except NotProtobuf:
        return


def test_nesting_is_bounded() -> None:
    """Nested messages are refused at a limit, before the interpreter's own limit."""
    schema = KINDS["apiextensions.k8s.io/v1", "CustomResourceDefinition"].schema
    for name in ("spec", "versions"):
        schema = schema.fields[name]
    assert schema.items is not None
    validation = schema.items.fields["schema"].fields["openAPIV3Schema"]
    number = next(
        int(key) for key, name in protobuf._field_numbers(validation.name).items() if name == "not"
    )
    message = b""
    for _ in range(300):
        message = block(number, message)
    with pytest.raises(NotProtobuf, match="deeply"):
        decode(validation, message)
