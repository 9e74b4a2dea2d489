"""Does a custom resource's value conform to its structural schema?

One walk along the type: JSON types and nulls, lengths, patterns, formats, ranges, counts, enums,
required fields, and the alternatives of ``allOf``, ``anyOf``, ``oneOf`` and ``not``. Every fault
has the reason, the field path and nearly the message of a real server, in its order.

On an update a fault in a part that did not change is ignored: a schema may be tightened without
locking existing objects (the real server calls it ratcheting). Parts of old and new are matched by
field name, by the keys of keyed lists, and not at all in other lists.

Alternatives multiply work, so the walk is bounded: beyond ``STEP_LIMIT`` values it gives up with a
fault that says so.

Most values are strings of which nothing more is asked than to be strings. Those are right at the
first look; paths and old values are for what has to be looked at twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from zonewise.api import field_errors
from zonewise.api.errors import StatusCause
from zonewise.embedded.machinery.fields.comparison import ABSENT, Mistyped, element_of, same
from zonewise.embedded.machinery.schema import formats, patterns
from zonewise.embedded.machinery.schema.types import Bounds, Type

STEP_LIMIT = 2_000_000
NOWHERE = "<nil>"  # what a real server puts where a fault has no path

_NAMES = {"object": "object", "map": "object", "list": "array", "int-or-string": "integer,string"}
_CLASSES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "map": (dict,),
    "list": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (float, int),
    "int-or-string": (int, str),
}
_PLAIN: dict[str, type] = {"string": str, "boolean": bool}
_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)


def faults_of(kind: Type, value: Any, *, at: str = "", old: Any = ABSENT) -> list[StatusCause]:
    """Everything wrong with a value; ``old`` is what it replaces, ABSENT when it is created.

    ``at`` is put before the path of every fault, while messages are about the value alone.
    """
    return [_below(at, fault) for fault in _Walk().check(_Place(kind, "", old), value)]


def _below(at: str, fault: StatusCause) -> StatusCause:
    inside = fault.field if fault.field != NOWHERE else ""
    path = f"{at}.{inside}" if at and inside else at or inside or NOWHERE
    return fault if path == fault.field else msgspec.structs.replace(fault, field=path)


class _Place(NamedTuple):
    """A type, where it is used, and the value before."""

    kind: Type
    at: str
    old: Any

    @property
    def name(self) -> str:
        """The path as messages begin with it."""
        return f"{self.at} in body"

    def field(self, name: str, child: Type) -> _Place:
        old = self.old.get(name, ABSENT) if isinstance(self.old, dict) else ABSENT
        if not self.at and name in ("apiVersion", "kind"):
            old = ABSENT
        return _Place(child, f"{self.at}.{name}" if self.at else name, old)


class _Walk:
    """One validation; counts its steps."""

    def __init__(self) -> None:
        self.steps = 0

    def check(self, place: _Place, value: Any) -> list[StatusCause]:
        self.steps += 1
        if self.steps > STEP_LIMIT:
            return [field_errors.invalid(place.at or NOWHERE, "", "too large to be validated")]
        found = self._check(place, value)
        if found and place.old is not ABSENT and same(place.old, value):
            return []
        return found

    def _check(self, place: _Place, value: Any) -> list[StatusCause]:
        kind = place.kind
        found = _wrong_type(place, value)
        if value is None:
            return found + _not_in_enum(place, value)
        if kind.any_of or kind.one_of or kind.all_of or kind.negated is not None:
            found += self._alternatives(place, value)
        if isinstance(value, str):
            found += _faults_of_text(place, value)
        elif isinstance(value, bool):
            pass
        elif isinstance(value, int | float):
            found += _faults_of_number(place, value)
        elif isinstance(value, list):
            found += self._faults_of_list(place, value)
        found += _not_in_enum(place, value)
        if isinstance(value, dict):
            found += self._faults_of_map(place, value)
        return found

    def _faults_of_list(self, place: _Place, items: list[Any]) -> list[StatusCause]:
        found: list[StatusCause] = []
        child = place.kind.items
        if child is not None:
            olds = _items_by_key(place)
            plain = _plain_class(child)
            for n, item in enumerate(items):
                if type(item) is plain:
                    self.steps += 1
                    continue
                old = olds.get(_key(place.kind, item), ABSENT) if olds else ABSENT
                found += self.check(_Place(child, f"{place.at}[{n}]", old), item)
        bounds = place.kind.bounds
        if bounds is None:
            return found
        if bounds.min_items is not None and len(items) < bounds.min_items:
            words = f"{place.name} should have at least {bounds.min_items} items"
            found.append(field_errors.invalid(place.at, len(items), words))
        if bounds.max_items is not None and len(items) > bounds.max_items:
            found.append(field_errors.too_many(place.at, len(items), bounds.max_items))
        return found

    def _faults_of_map(self, place: _Place, value: dict[str, Any]) -> list[StatusCause]:
        kind, found, size = place.kind, list[StatusCause](), len(value)
        bounds = kind.bounds
        if bounds is not None:
            if bounds.min_properties is not None and size < bounds.min_properties:
                words = f"{place.name} should have at least {bounds.min_properties} properties"
                found.append(field_errors.invalid(place.at, size, words))
            if bounds.max_properties is not None and size > bounds.max_properties:
                found.append(field_errors.too_many(place.at, size, bounds.max_properties))
        for name, item in value.items():
            child = kind.fields.get(name) or kind.values
            if child is None:
                continue
            if type(item) is _plain_class(child):
                self.steps += 1
                continue
            found += self.check(place.field(name, child), item)
        found += [
            field_errors.required(f"{place.at}.{name}" if place.at else name)
            for name in kind.required
            if name not in value
        ]
        return found

    def _alternatives(self, place: _Place, value: Any) -> list[StatusCause]:
        kind, found = place.kind, list[StatusCause]()
        at = f'"{place.at}"'
        if kind.any_of:
            tried = [self.check(place._replace(kind=one), value) for one in kind.any_of]
            if all(tried):
                words = f"{at} must validate at least one schema (anyOf)"
                found += [_nowhere(words), *min(tried, key=len)]
        if kind.one_of:
            tried = [self.check(place._replace(kind=one), value) for one in kind.one_of]
            valid = sum(not one for one in tried)
            if valid != 1:
                count = f"Found {valid} valid alternatives" if valid else "Found none valid"
                words = f"{at} must validate one and only one schema (oneOf). {count}"
                found += [_nowhere(words), *([] if valid else min(tried, key=len))]
        if kind.all_of:
            tried = [self.check(place._replace(kind=one), value) for one in kind.all_of]
            found += [fault for one in tried for fault in one]
            if any(tried):
                none = ". None validated" if all(tried) else ""
                found.append(_nowhere(f"{at} must validate all the schemas (allOf){none}"))
        if kind.negated is not None and not self.check(
            place._replace(kind=kind.negated, old=ABSENT), value
        ):
            found.append(_nowhere(f"{at} must not validate the schema (not)"))
        return found


def _plain_class(kind: Type) -> type | None:
    """The class all of whose values a type takes without another question; None if there is none.

    Numbers have limits even where the schema names none.
    """
    if "plain" not in kind.memo:
        asks = kind.bounds or kind.format or kind.enum or kind.any_of or kind.one_of or kind.all_of
        plain = None if asks or kind.negated is not None else _PLAIN.get(kind.shape)
        kind.memo["plain"] = plain
    found: type | None = kind.memo["plain"]
    return found


def _nowhere(words: str) -> StatusCause:
    return field_errors.invalid(NOWHERE, "", words)


def json_type(value: Any) -> str:
    """The JSON type of a value, as messages name it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _wrong_type(place: _Place, value: Any) -> list[StatusCause]:
    kind = place.kind
    if kind.shape == "any" or type(value) in _CLASSES[kind.shape]:
        return []
    wanted = _NAMES.get(kind.shape, kind.shape)
    got = json_type(value)
    fits = got in wanted.split(",") or (got == "integer" and wanted == "number")
    if got == "number" and "integer" in wanted:
        fits = float(value).is_integer()
    if fits or (value is None and kind.nullable):
        return []
    words = f'{place.name} must be of type {wanted}: "{got}"'
    return [field_errors.wrong_type(place.at, got, words)]


def _not_in_enum(place: _Place, value: Any) -> list[StatusCause]:
    enum = place.kind.enum
    if not enum or any(same(one, value) for one in enum):
        return []
    names = ", ".join(
        field_errors.shown(one if isinstance(one, str) else field_errors.shown(one)) for one in enum
    )
    message = f"Unsupported value: {field_errors.shown(value)}: supported values: {names}"
    return [StatusCause(reason="FieldValueNotSupported", field=place.at, message=message)]


def _faults_of_text(place: _Place, text: str) -> list[StatusCause]:
    bounds, found = place.kind.bounds or Bounds(), list[StatusCause]()
    if bounds.max_length is not None and len(text) > bounds.max_length:
        found.append(field_errors.too_long(place.at, bounds.max_length))
    elif bounds.min_length is not None and len(text) < bounds.min_length:
        words = f"{place.name} should be at least {bounds.min_length} chars long"
        found.append(field_errors.invalid(place.at, text, words))
    elif bounds.pattern and not patterns.compiled(bounds.pattern).matches(text):
        words = f"{place.name} should match '{bounds.pattern}'"
        found.append(field_errors.invalid(place.at, text, words))
    form = place.kind.format
    if form and place.kind.shape in ("string", "any") and not formats.accepts(form, text):
        words = f"{place.name} must be of type {form}: {field_errors.shown(text)}"
        found.append(field_errors.wrong_type(place.at, text, words))
    return found


def _faults_of_number(place: _Place, value: float) -> list[StatusCause]:
    bounds, found = place.kind.bounds or Bounds(), list[StatusCause]()
    form, shape = place.kind.format, place.kind.shape
    if shape == "integer":
        limits = _INT32 if form == "int32" else _INT64
        if not limits.start <= value < limits.stop:
            named = f"with format {form}" if form in ("int32", "int64") else "(default format)"
            words = f"Checked value must be of type integer {named} in {place.at}"
            found.append(_nowhere(words))
    step = bounds.multiple_of
    if step is not None and step <= 0:
        words = f"factor MultipleOf declared for {place.at} must be positive: {_shown(step)}"
        found.append(field_errors.invalid(place.at, value, words))
    elif step is not None and not _is_multiple(value, step):
        words = f"{place.name} should be a multiple of {_shown(step)}"
        found.append(field_errors.invalid(place.at, value, words))
    low, high = bounds.minimum, bounds.maximum
    if low is not None and (value < low or (bounds.exclusive_minimum and value == low)):
        how = "greater than" if bounds.exclusive_minimum else "greater than or equal to"
        words = f"{place.name} should be {how} {_shown(low)}"
        found.append(field_errors.invalid(place.at, value, words))
    if high is not None and (value > high or (bounds.exclusive_maximum and value == high)):
        how = "less than" if bounds.exclusive_maximum else "less than or equal to"
        words = f"{place.name} should be {how} {_shown(high)}"
        found.append(field_errors.invalid(place.at, value, words))
    return found


def _is_multiple(value: float, step: float) -> bool:
    if isinstance(value, int) and float(step).is_integer():
        return value % int(step) == 0
    try:
        ratio = value / step
        return math.isclose(ratio, round(ratio), rel_tol=0, abs_tol=1e-12)
    except OverflowError:  # beyond what Go holds as well, where infinity is no multiple
        return False


def _shown(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else repr(number)


def _key(kind: Type, item: Any) -> str:
    try:
        return element_of(kind, item)
    except Mistyped:
        return ""


def _items_by_key(place: _Place) -> Mapping[str, Any]:
    if place.kind.list_type != "map" or not isinstance(place.old, list):
        return {}
    return {_key(place.kind, item): item for item in place.old}
