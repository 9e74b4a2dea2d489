"""Validation of a custom resource's value against its structural schema.

One walk along the schema: JSON types and nulls, lengths, patterns, formats, ranges, counts, enums,
required fields, and the alternatives of ``allOf``, ``anyOf``, ``oneOf`` and ``not``. Every error
has the reason, the field path and nearly the message of a real server, in its order.

On an update an error in a part that did not change is ignored: a schema may be tightened without
locking existing objects (the real server calls it ratcheting). Parts of old and new are matched by
field name, by the keys of keyed lists, and not at all in other lists.

Alternatives multiply work, so the walk is bounded: beyond ``STEP_LIMIT`` values it ends with an
error that says so.

Most values are strings without further constraints. They are accepted by their class alone; paths
and old values are computed only for the others.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import msgspec

from zonewise.api.errors import StatusCause
from zonewise.api.field_errors import (
    invalid,
    render_value,
    required,
    too_long,
    too_many,
    wrong_type,
)
from zonewise.embedded.machinery.fields.comparison import (
    ABSENT,
    SchemaViolation,
    element_of,
    equal_strictly,
)
from zonewise.embedded.machinery.schema import formats, patterns
from zonewise.embedded.machinery.schema.schema import Bounds, Schema

STEP_LIMIT = 2_000_000
NIL_PATH = "<nil>"  # the path of an error without one, as in a real server

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


def validate_value(
    schema: Schema,
    value: Any,
    *,
    prefix: str = "",
    old: Any = ABSENT,
    validated: Schema | None = None,
) -> list[StatusCause]:
    """The errors in a value; ``old`` is what it replaces, ABSENT when it is created.

    ``prefix`` is put before the path of every error; messages do not contain it. Fields of the
    schema ``validated`` are known to be valid.
    """
    errors = _Validation(validated).check(_Field(schema, "", old), value)
    return [_prefix_path(prefix, error) for error in errors]


def _prefix_path(prefix: str, error: StatusCause) -> StatusCause:
    suffix = error.field if error.field != NIL_PATH else ""
    path = f"{prefix}.{suffix}" if prefix and suffix else prefix or suffix or NIL_PATH
    return error if path == error.field else msgspec.structs.replace(error, field=path)


class _Field(NamedTuple):
    """A schema, the path of the value, and the value before."""

    schema: Schema
    path: str
    old: Any

    @property
    def label(self) -> str:
        """How messages begin."""
        return f"{self.path} in body"

    def child(self, name: str, child: Schema) -> _Field:
        old = self.old.get(name, ABSENT) if isinstance(self.old, dict) else ABSENT
        if not self.path and name in ("apiVersion", "kind"):
            old = ABSENT
        return _Field(child, f"{self.path}.{name}" if self.path else name, old)


class _Validation:
    """One validation; counts its steps."""

    def __init__(self, validated: Schema | None) -> None:
        self.steps = 0
        self.validated = validated

    def check(self, field: _Field, value: Any) -> list[StatusCause]:
        self.steps += 1
        if self.steps > STEP_LIMIT:
            return [invalid(field.path or NIL_PATH, "", "too large to be validated")]
        errors = self._check(field, value)
        if errors and field.old is not ABSENT and equal_strictly(field.old, value):
            return []
        return errors

    def _check(self, field: _Field, value: Any) -> list[StatusCause]:
        schema = field.schema
        errors = _check_type(field, value)
        if value is None:
            return errors + _check_enum(field, value)
        if schema.any_of or schema.one_of or schema.all_of or schema.negated is not None:
            errors += self._check_alternatives(field, value)
        if isinstance(value, str):
            errors += _check_string(field, value)
        elif isinstance(value, bool):
            pass
        elif isinstance(value, int | float):
            errors += _check_number(field, value)
        elif isinstance(value, list):
            errors += self._check_list(field, value)
        errors += _check_enum(field, value)
        if isinstance(value, dict):
            errors += self._check_map(field, value)
        return errors

    def _check_list(self, field: _Field, items: list[Any]) -> list[StatusCause]:
        errors: list[StatusCause] = []
        child = field.schema.items
        if child is not None:
            old_items = items_by_key(field.schema, field.old)
            plain_class = _plain_class(child)
            for n, item in enumerate(items):
                if type(item) is plain_class:
                    self.steps += 1
                    continue
                old = old_items.get(key_of(field.schema, item), ABSENT) if old_items else ABSENT
                errors += self.check(_Field(child, f"{field.path}[{n}]", old), item)
        bounds = field.schema.bounds
        if bounds is None:
            return errors
        if bounds.min_items is not None and len(items) < bounds.min_items:
            message = f"{field.label} should have at least {bounds.min_items} items"
            errors.append(invalid(field.path, len(items), message))
        if bounds.max_items is not None and len(items) > bounds.max_items:
            errors.append(too_many(field.path, len(items), bounds.max_items))
        return errors

    def _check_map(self, field: _Field, value: dict[str, Any]) -> list[StatusCause]:
        schema, errors, size = field.schema, list[StatusCause](), len(value)
        bounds = schema.bounds
        if bounds is not None:
            if bounds.min_properties is not None and size < bounds.min_properties:
                message = f"{field.label} should have at least {bounds.min_properties} properties"
                errors.append(invalid(field.path, size, message))
            if bounds.max_properties is not None and size > bounds.max_properties:
                errors.append(too_many(field.path, size, bounds.max_properties))
        for name, item in value.items():
            child = schema.fields.get(name) or schema.values
            if child is None or child is self.validated:
                continue
            memo = child.memo
            if type(item) is (memo["plain"] if "plain" in memo else _plain_class(child)):
                self.steps += 1
                continue
            errors += self.check(field.child(name, child), item)
        errors += [
            required(f"{field.path}.{name}" if field.path else name)
            for name in schema.required
            if name not in value
        ]
        return errors

    def _check_alternatives(self, field: _Field, value: Any) -> list[StatusCause]:
        schema, errors = field.schema, list[StatusCause]()
        quoted_path = f'"{field.path}"'
        if schema.any_of:
            results = [
                self.check(field._replace(schema=alternative), value)
                for alternative in schema.any_of
            ]
            if all(results):
                message = f"{quoted_path} must validate at least one schema (anyOf)"
                errors += [_error_without_path(message), *min(results, key=len)]
        if schema.one_of:
            results = [
                self.check(field._replace(schema=alternative), value)
                for alternative in schema.one_of
            ]
            valid = sum(not result for result in results)
            if valid != 1:
                count = f"Found {valid} valid alternatives" if valid else "Found none valid"
                message = f"{quoted_path} must validate one and only one schema (oneOf). {count}"
                errors += [_error_without_path(message), *([] if valid else min(results, key=len))]
        if schema.all_of:
            results = [
                self.check(field._replace(schema=alternative), value)
                for alternative in schema.all_of
            ]
            errors += [error for result in results for error in result]
            if any(results):
                none = ". None validated" if all(results) else ""
                errors.append(
                    _error_without_path(
                        f"{quoted_path} must validate all the schemas (allOf){none}"
                    )
                )
        if schema.negated is not None and not self.check(
            field._replace(schema=schema.negated, old=ABSENT), value
        ):
            errors.append(_error_without_path(f"{quoted_path} must not validate the schema (not)"))
        return errors


def _plain_class(schema: Schema) -> type | None:
    """The class whose values all satisfy a schema; None if there is none.

    Numbers have limits even if the schema has none.
    """
    if "plain" not in schema.memo:
        constrained = (
            schema.bounds
            or schema.format
            or schema.enum
            or schema.any_of
            or schema.one_of
            or schema.all_of
        )
        plain_class = (
            None if constrained or schema.negated is not None else _PLAIN.get(schema.shape)
        )
        schema.memo["plain"] = plain_class
    result: type | None = schema.memo["plain"]
    return result


def _error_without_path(message: str) -> StatusCause:
    return invalid(NIL_PATH, "", message)


def json_type_of(value: Any) -> str:
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


def _check_type(field: _Field, value: Any) -> list[StatusCause]:
    schema = field.schema
    if schema.shape == "any" or type(value) in _CLASSES[schema.shape]:
        return []
    expected = _NAMES.get(schema.shape, schema.shape)
    actual = json_type_of(value)
    fits = actual in expected.split(",") or (actual == "integer" and expected == "number")
    if actual == "number" and "integer" in expected:
        fits = float(value).is_integer()
    if fits or (value is None and schema.nullable):
        return []
    message = f'{field.label} must be of type {expected}: "{actual}"'
    return [wrong_type(field.path, actual, message)]


def _check_enum(field: _Field, value: Any) -> list[StatusCause]:
    enum = field.schema.enum
    if not enum or any(equal_strictly(allowed, value) for allowed in enum):
        return []
    names = ", ".join(
        render_value(allowed if isinstance(allowed, str) else render_value(allowed))
        for allowed in enum
    )
    message = f"Unsupported value: {render_value(value)}: supported values: {names}"
    return [StatusCause(reason="FieldValueNotSupported", field=field.path, message=message)]


def _check_string(field: _Field, text: str) -> list[StatusCause]:
    bounds, errors = field.schema.bounds or Bounds(), list[StatusCause]()
    if bounds.max_length is not None and len(text) > bounds.max_length:
        errors.append(too_long(field.path, bounds.max_length))
    elif bounds.min_length is not None and len(text) < bounds.min_length:
        message = f"{field.label} should be at least {bounds.min_length} chars long"
        errors.append(invalid(field.path, text, message))
    elif bounds.pattern and not patterns.compile_pattern(bounds.pattern).matches(text):
        message = f"{field.label} should match '{bounds.pattern}'"
        errors.append(invalid(field.path, text, message))
    format_name = field.schema.format
    if (
        format_name
        and field.schema.shape in ("string", "any")
        and not formats.accepts(format_name, text)
    ):
        message = f"{field.label} must be of type {format_name}: {render_value(text)}"
        errors.append(wrong_type(field.path, text, message))
    return errors


def _check_number(field: _Field, value: float) -> list[StatusCause]:
    bounds, errors = field.schema.bounds or Bounds(), list[StatusCause]()
    format_name, shape = field.schema.format, field.schema.shape
    if shape == "integer":
        limits = _INT32 if format_name == "int32" else _INT64
        if not limits.start <= value < limits.stop:
            format_text = (
                f"with format {format_name}"
                if format_name in ("int32", "int64")
                else "(default format)"
            )
            message = f"Checked value must be of type integer {format_text} in {field.path}"
            errors.append(_error_without_path(message))
    step = bounds.multiple_of
    if step is not None and step <= 0:
        message = (
            f"factor MultipleOf declared for {field.path} must be positive: {_format_number(step)}"
        )
        errors.append(invalid(field.path, value, message))
    elif step is not None and not _is_multiple(value, step):
        message = f"{field.label} should be a multiple of {_format_number(step)}"
        errors.append(invalid(field.path, value, message))
    low, high = bounds.minimum, bounds.maximum
    if low is not None and (value < low or (bounds.exclusive_minimum and value == low)):
        relation = "greater than" if bounds.exclusive_minimum else "greater than or equal to"
        message = f"{field.label} should be {relation} {_format_number(low)}"
        errors.append(invalid(field.path, value, message))
    if high is not None and (value > high or (bounds.exclusive_maximum and value == high)):
        relation = "less than" if bounds.exclusive_maximum else "less than or equal to"
        message = f"{field.label} should be {relation} {_format_number(high)}"
        errors.append(invalid(field.path, value, message))
    return errors


def _is_multiple(value: float, step: float) -> bool:
    if isinstance(value, int) and float(step).is_integer():
        return value % int(step) == 0
    try:
        ratio = value / step
        return math.isclose(ratio, round(ratio), rel_tol=0, abs_tol=1e-12)
    except OverflowError:  # beyond what Go holds as well, where infinity is no multiple
        return False


def _format_number(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else repr(number)


def key_of(schema: Schema, item: Any) -> str:
    """The path element of an item of a keyed list, empty if it has none."""
    try:
        return element_of(schema, item) if schema.list_type == "map" else ""
    except SchemaViolation:
        return ""


def items_by_key(schema: Schema, items: Any) -> dict[str, Any]:
    """The items of a keyed list by path element; empty for anything else."""
    if schema.list_type != "map" or not isinstance(items, list):
        return {}
    return {key_of(schema, item): item for item in items}
