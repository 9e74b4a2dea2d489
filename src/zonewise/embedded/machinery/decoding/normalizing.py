"""Bringing a decoded object into the form a real API server stores it in.

A real server decodes JSON into Go structs and prints them again; the result has no nulls, no empty
plain values, canonical quantities and times, and no field that the structs lack. `normalize` gets
there by changing the value in place, in one pass, without building paths or messages: it assumes
that the object is valid and raises `SchemaMismatch` if it is not. Then `strict_decoder` walks it
again and reports every problem. Most objects never need it.

Normalizers are closures, built from a `Schema` at the first value and stored in the definition's
`memo`. A field that no object ever used costs nothing.

Custom resources are stored as the JSON they are; see `crd.custom_resource`.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from datetime import datetime
from fractions import Fraction
from typing import Any

from zonewise.api.errors import ParseError
from zonewise.api.values import quantity, times
from zonewise.embedded.machinery.schema.schema import Schema

Normalizer = Callable[[Any], Any]

INT32 = range(-(2**31), 2**31)
INT64 = range(-(2**63), 2**63)


class SchemaMismatch(Exception):
    """The value does not match its schema; `strict_decoder` finds out where and why."""


def normalize(schema: Schema, value: Any) -> Any:
    """The value as its Go type would print it, without defaults; changed in place.

    Raises SchemaMismatch, with the value partly changed, if anything in it is unknown or of a wrong
    type.
    """
    return normalizer(schema)(value)


def normalizer(schema: Schema) -> Normalizer:
    """The function that normalizes values of a schema; built once."""
    memo = schema.definition.memo
    result: Normalizer | None = memo.get("tidy")
    if result is None:
        result = memo["tidy"] = _build_normalizer(schema.definition)
    return result


def _build_normalizer(schema: Schema) -> Normalizer:
    match schema.shape:
        case "object":
            return _object_normalizer(schema)
        case "map":
            return _map_normalizer(schema)
        case "list":
            return _list_normalizer(schema)
        case "integer":
            return _integer_normalizer(INT64 if schema.format == "int64" else INT32)
        case "number":
            return _normalize_number
        case "boolean":
            return _check_boolean
        case "int-or-string":
            return _check_int_or_string
        case "string":
            return STRING_NORMALIZERS.get(schema.format, _check_string)
    return _schema_or_normalizer(schema) if schema.format.startswith("schema-or-") else _accept


def _object_normalizer(schema: Schema) -> Normalizer:
    classes: dict[str, type] = {}
    normalizers: dict[str, Normalizer] = {}
    fields = schema.fields
    always_stored = {
        name for name, field in fields.items() if not field.omit_empty and not field.dropped
    }
    for name, field in fields.items():
        if field.dropped:
            normalizers[name] = _drop
        elif field.shape == "string" and not field.format:
            classes[name] = str
        elif field.shape == "boolean":
            classes[name] = bool

    def first_use(name: str) -> Normalizer:
        field = fields.get(name)
        if field is None:
            raise SchemaMismatch
        result = normalizers[name] = normalizer(field)
        return result

    def normalize_object(value: Any) -> Any:
        if value.__class__ is not dict:
            raise SchemaMismatch
        dropped: list[str] | None = None
        for name, item in value.items():
            if name in classes:
                if item.__class__ is classes[name]:
                    if item or name in always_stored:
                        continue
                elif item is not None:
                    raise SchemaMismatch
            else:
                step = normalizers[name] if name in normalizers else first_use(name)
                if item is not None:
                    normalized = step(item)
                    if normalized or name in always_stored:
                        if normalized is not item:
                            value[name] = normalized
                        continue
            if dropped is None:
                dropped = [name]
            else:
                dropped.append(name)
        if dropped is not None:
            for name in dropped:
                del value[name]
        return value

    return normalize_object


def _map_normalizer(schema: Schema) -> Normalizer:
    assert schema.values is not None
    if schema.values.shape == "string" and not schema.values.format:

        def check_strings(value: Any) -> Any:
            if value.__class__ is not dict:
                raise SchemaMismatch
            for item in value.values():
                if item.__class__ is not str:
                    raise SchemaMismatch
            return value

        return check_strings
    step = _normalize_resource if schema.go_type == "v1.ResourceList" else normalizer(schema.values)

    def normalize_map(value: Any) -> Any:
        if value.__class__ is not dict:
            raise SchemaMismatch
        for name, item in value.items():
            normalized = step(item)
            if normalized is not item:
                value[name] = normalized
        return value

    return normalize_map


def _list_normalizer(schema: Schema) -> Normalizer:
    assert schema.items is not None
    if schema.items.shape == "string" and not schema.items.format:

        def check_strings(value: Any) -> Any:
            if value.__class__ is not list:
                raise SchemaMismatch
            for item in value:
                if item.__class__ is not str:
                    raise SchemaMismatch
            return value

        return check_strings
    step = normalizer(schema.items)

    def normalize_list(value: Any) -> Any:
        if value.__class__ is not list:
            raise SchemaMismatch
        for index, item in enumerate(value):
            normalized = step(item)
            if normalized is not item:
                value[index] = normalized
        return value

    return normalize_list


def _integer_normalizer(allowed: range) -> Normalizer:
    low, high = allowed.start, allowed.stop

    def check_integer(value: Any) -> Any:
        if value.__class__ is int and low <= value < high:
            return value
        raise SchemaMismatch

    return check_integer


def _normalize_number(value: Any) -> Any:
    if value.__class__ is int:
        return value
    if value.__class__ is float:
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    raise SchemaMismatch


def _check_boolean(value: Any) -> Any:
    if value.__class__ is bool:
        return value
    raise SchemaMismatch


def _check_string(value: Any) -> Any:
    if value.__class__ is str:
        return value
    raise SchemaMismatch


def _check_int_or_string(value: Any) -> Any:
    if value.__class__ is str or (value.__class__ is int and value in INT32):
        return value
    raise SchemaMismatch


def _normalize_quantity(value: Any) -> Any:
    try:
        return quantity.canonical(value)
    except ParseError as error:
        raise SchemaMismatch from error


def _normalize_resource(value: Any) -> Any:
    """Amounts of resources are stored in thousandths at the finest."""
    text = _normalize_quantity(value)
    return text if text[-1] not in "nu" and "e-" not in text else _round_to_thousandths(text)


def _round_to_thousandths(text: str) -> str:
    amount = quantity.parse(text)
    if (amount.value * 1000).denominator == 1:
        return text
    return str(quantity.Quantity(Fraction(amount.scaled(-3), 1000), amount.family))


def _normalize_time(value: Any) -> Any:
    if value.__class__ is not str:
        raise SchemaMismatch
    if len(value) == 20 and _is_clock(value) and value[19] == "Z":
        return value
    try:
        return times.format_time(times.parse(value))
    except ParseError as error:
        raise SchemaMismatch from error


def _normalize_micro_time(value: Any) -> Any:
    if value.__class__ is not str or not is_micro_time(value):
        raise SchemaMismatch
    if len(value) == 27 and _is_clock(value) and value[26] == "Z":
        return value
    try:
        return times.format_micro(times.parse(value))
    except ParseError as error:
        raise SchemaMismatch from error


def _is_clock(value: str) -> bool:
    """Whether a text starts with a canonical time, which needs no change."""
    if value[10] != "T" or value[13] != ":" or value[16] != ":" or not value.isascii():
        return False
    try:
        datetime.fromisoformat(value[:19])
    except ValueError:
        return False
    return True


def is_micro_time(text: str) -> bool:
    """Whether a time has the exactly six fractional digits that a real server insists on."""
    return len(text) > 26 and text[19] == "." and text[20:26].isdigit() and text[26] in "Z+-"


def _normalize_bytes(value: Any) -> Any:
    if value.__class__ is not str:
        raise SchemaMismatch
    try:
        content = binascii.a2b_base64(value, strict_mode=True)
    except ValueError as error:
        raise SchemaMismatch from error
    return binascii.b2a_base64(content, newline=False).decode("ascii")


def _accept(value: Any) -> Any:
    return value


def _drop(_value: Any) -> Any:
    return None


def _schema_or_normalizer(schema: Schema) -> Normalizer:
    assert schema.items is not None
    item_schema = schema.items

    def normalize_schema_or(value: Any) -> Any:
        if value.__class__ is dict:
            return normalize_dropping_unknown(item_schema, value)
        if value.__class__ is list:
            return [
                normalize_dropping_unknown(item_schema, item) if item.__class__ is dict else item
                for item in value
            ]
        return value

    return normalize_schema_or


STRING_NORMALIZERS: dict[str, Normalizer] = {
    "quantity": _normalize_quantity,
    "date-time": _normalize_time,
    "micro-time": _normalize_micro_time,
    "byte": _normalize_bytes,
}


def normalize_dropping_unknown(schema: Schema, value: dict[str, Any]) -> dict[str, Any]:
    """Normalize an object with a decoder of its own in Go: unknown fields are dropped silently."""
    declared = {name: item for name, item in value.items() if name in schema.fields}
    tidied: dict[str, Any] = normalizer(schema)(declared)
    return tidied
