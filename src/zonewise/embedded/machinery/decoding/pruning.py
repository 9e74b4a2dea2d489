"""Bringing a decoded object into the form a real API server stores it in.

A real server decodes JSON into Go structs and prints them again; the result has no nulls, no empty
plain values, canonical quantities and times, and no field the structs lack. `tidy` gets there by
changing the value in place, in one pass, without building paths or messages: it assumes that the
object is fine and raises `Surprise` when it is not. Then `validation` walks once more, slowly, and
finds out everything there is to say. Most objects never need it.

Walkers are closures made from a `Type` when a value of it is first met and kept in the
definition's `memo`. A field that no object ever used costs nothing.

Custom resources are stored as the JSON they are; see `custom`.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from datetime import datetime
from fractions import Fraction
from typing import Any

from zonewise.api.errors import ParseError
from zonewise.api.values import quantity, times
from zonewise.embedded.machinery.schema.types import Type

Walk = Callable[[Any], Any]

INT32 = range(-(2**31), 2**31)
INT64 = range(-(2**63), 2**63)


class Surprise(Exception):
    """The value is not of its type; only a second, exact walk can say where and why."""


def tidy(kind: Type, value: Any) -> Any:
    """The value as its Go type would print it, without defaults; changed in place.

    Raises Surprise, with the value partly tidied, if anything in it is unknown or of a wrong type.
    """
    return walker(kind)(value)


def walker(kind: Type) -> Walk:
    """The function that tidies values of a type; made once."""
    memo = kind.definition.memo
    found: Walk | None = memo.get("tidy")
    if found is None:
        found = memo["tidy"] = _make(kind.definition)
    return found


def _make(kind: Type) -> Walk:
    match kind.shape:
        case "object":
            return _object(kind)
        case "map":
            return _map(kind)
        case "list":
            return _list(kind)
        case "integer":
            return _integer(INT64 if kind.format == "int64" else INT32)
        case "number":
            return _number
        case "boolean":
            return _boolean
        case "int-or-string":
            return _int_or_string
        case "string":
            return SCALARS.get(kind.format, _string)
    return _schema_or(kind) if kind.format.startswith("schema-or-") else _anything


def _object(kind: Type) -> Walk:
    plain: dict[str, type] = {}
    deep: dict[str, Walk] = {}
    fields = kind.fields
    keeps = {name for name, field in fields.items() if not field.forgets and not field.dropped}
    for name, field in fields.items():
        if field.dropped:
            deep[name] = _nothing
        elif field.shape == "string" and not field.format:
            plain[name] = str
        elif field.shape == "boolean":
            plain[name] = bool

    def first_use(name: str) -> Walk:
        field = fields.get(name)
        if field is None:
            raise Surprise
        made = deep[name] = walker(field)
        return made

    expected, below = plain.get, deep.get

    def walk(value: Any) -> Any:
        if value.__class__ is not dict:
            raise Surprise
        gone: list[str] | None = None
        for name, item in value.items():
            wanted = expected(name)
            if wanted is not None:
                if item.__class__ is wanted:
                    if item or name in keeps:
                        continue
                elif item is not None:
                    raise Surprise
            else:
                step = below(name) or first_use(name)
                if item is not None:
                    made = step(item)
                    if made or name in keeps:
                        if made is not item:
                            value[name] = made
                        continue
            if gone is None:
                gone = [name]
            else:
                gone.append(name)
        if gone is not None:
            for name in gone:
                del value[name]
        return value

    return walk


def _map(kind: Type) -> Walk:
    assert kind.values is not None
    if kind.values.shape == "string" and not kind.values.format:

        def walk_strings(value: Any) -> Any:
            if value.__class__ is not dict:
                raise Surprise
            for item in value.values():
                if item.__class__ is not str:
                    raise Surprise
            return value

        return walk_strings
    step = _resource if kind.go == "v1.ResourceList" else walker(kind.values)

    def walk(value: Any) -> Any:
        if value.__class__ is not dict:
            raise Surprise
        for name, item in value.items():
            made = step(item)
            if made is not item:
                value[name] = made
        return value

    return walk


def _list(kind: Type) -> Walk:
    assert kind.items is not None
    if kind.items.shape == "string" and not kind.items.format:

        def walk_strings(value: Any) -> Any:
            if value.__class__ is not list:
                raise Surprise
            for item in value:
                if item.__class__ is not str:
                    raise Surprise
            return value

        return walk_strings
    step = walker(kind.items)

    def walk(value: Any) -> Any:
        if value.__class__ is not list:
            raise Surprise
        for index, item in enumerate(value):
            made = step(item)
            if made is not item:
                value[index] = made
        return value

    return walk


def _integer(allowed: range) -> Walk:
    low, high = allowed.start, allowed.stop

    def walk(value: Any) -> Any:
        if value.__class__ is int and low <= value < high:
            return value
        raise Surprise

    return walk


def _number(value: Any) -> Any:
    if value.__class__ is int:
        return value
    if value.__class__ is float:
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    raise Surprise


def _boolean(value: Any) -> Any:
    if value.__class__ is bool:
        return value
    raise Surprise


def _string(value: Any) -> Any:
    if value.__class__ is str:
        return value
    raise Surprise


def _int_or_string(value: Any) -> Any:
    if value.__class__ is str or (value.__class__ is int and value in INT32):
        return value
    raise Surprise


def _quantity(value: Any) -> Any:
    try:
        return quantity.canonical(value)
    except ParseError as error:
        raise Surprise from error


def _resource(value: Any) -> Any:
    """Amounts of resources are kept in thousandths at the finest."""
    text = _quantity(value)
    return text if text[-1] not in "nu" and "e-" not in text else _rounded(text)


def _rounded(text: str) -> str:
    amount = quantity.parse(text)
    if (amount.value * 1000).denominator == 1:
        return text
    return str(quantity.Quantity(Fraction(amount.scaled(-3), 1000), amount.family))


def _time(value: Any) -> Any:
    if value.__class__ is not str:
        raise Surprise
    if len(value) == 20 and _is_clock(value) and value[19] == "Z":
        return value
    try:
        return times.format_time(times.parse(value))
    except ParseError as error:
        raise Surprise from error


def _micro_time(value: Any) -> Any:
    if value.__class__ is not str or not is_micro_time(value):
        raise Surprise
    if len(value) == 27 and _is_clock(value) and value[26] == "Z":
        return value
    try:
        return times.format_micro(times.parse(value))
    except ParseError as error:
        raise Surprise from error


def _is_clock(value: str) -> bool:
    """Whether a text starts with a time as every server prints it: nothing to change then."""
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


def _byte(value: Any) -> Any:
    if value.__class__ is not str:
        raise Surprise
    try:
        content = binascii.a2b_base64(value, strict_mode=True)
    except ValueError as error:
        raise Surprise from error
    return binascii.b2a_base64(content, newline=False).decode("ascii")


def _anything(value: Any) -> Any:
    return value


def _nothing(_value: Any) -> Any:
    return None


def _schema_or(kind: Type) -> Walk:
    assert kind.items is not None
    schema = kind.items

    def walk(value: Any) -> Any:
        if value.__class__ is dict:
            return quietly(schema, value)
        if value.__class__ is list:
            return [quietly(schema, item) if item.__class__ is dict else item for item in value]
        return value

    return walk


SCALARS: dict[str, Walk] = {
    "quantity": _quantity,
    "date-time": _time,
    "micro-time": _micro_time,
    "byte": _byte,
}


def quietly(kind: Type, value: dict[str, Any]) -> dict[str, Any]:
    """Tidy an object whose Go type reads itself: unknown fields in it are silently dropped."""
    known = {name: item for name, item in value.items() if name in kind.fields}
    tidied: dict[str, Any] = walker(kind)(known)
    return tidied
