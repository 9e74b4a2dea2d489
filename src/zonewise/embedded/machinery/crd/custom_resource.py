"""What happens to a custom resource between its body and its storage, as pure steps.

``prepare`` is applied to a decoded body: nulls that are not nullable are dropped, unless a default
replaces them; defaults are filled in; fields unknown to the schema are pruned and reported.
``validate_custom_resource`` checks it before it is stored: the schema's constraints, embedded
resources, keys of keyed lists and members of sets, and last the rules in CEL, which are not
evaluated while the object has an error that could make a rule fail.

``metadata`` at the root is not defined by the schema and is left to the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from zonewise.api.errors import StatusCause
from zonewise.api.field_errors import duplicate, invalid, required
from zonewise.embedded.machinery.crd import constraints
from zonewise.embedded.machinery.crd.structural import (
    META_FIELDS,
    UNKNOWN,
    has_defaults,
    has_embedded,
    has_rules,
    has_unique_items,
)
from zonewise.embedded.machinery.fields.comparison import ABSENT
from zonewise.embedded.machinery.schema.schema import UNSET, Schema, copy_json

BLOCKING_REASONS = {
    "FieldValueNotSupported",
    "FieldValueRequired",
    "FieldValueTooLong",
    "FieldValueTooMany",
    "FieldValueTypeInvalid",
}
NOT_CHECKED = (
    "some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation"
)


CONTAINERS = frozenset({dict, list})
_NONE: dict[str, Schema] = {}


class Pruned(NamedTuple):
    """A value without unknown fields, and the paths of those it had."""

    value: Any
    unknown: tuple[str, ...] = ()


def prepare(schema: Schema, value: dict[str, Any]) -> Pruned:
    """A custom resource's body, defaulted and pruned; the input is not changed."""
    without_nulls = _drop_nulls(schema, value)
    filled = apply_defaults(schema, without_nulls) if has_defaults(schema) else without_nulls
    return prune(schema, filled)


def coerce(schema: Schema, value: dict[str, Any]) -> dict[str, Any]:
    """An object converted to another version, without the fields unknown to it; no defaults."""
    result: dict[str, Any] = prune(schema, _drop_nulls(schema, value)).value
    return result


def apply_defaults(schema: Schema, value: Any) -> Any:
    """The value with the schema's defaults for absent fields and for nulls."""
    if isinstance(value, dict):
        result = dict(value)
        for name, child in schema.fields.items():
            if child.default is not UNSET and _is_missing(child, result.get(name, ABSENT)):
                result[name] = copy_json(child.default)
        for name, sub in result.items():
            below = schema.fields.get(name, schema.values)
            if below is None or (schema.embedded_resource and name in META_FIELDS):
                continue
            fill = sub is None and below.default is not UNSET and not below.nullable
            if fill or type(sub) in CONTAINERS:
                result[name] = apply_defaults(below, copy_json(below.default) if fill else sub)
        return result
    if isinstance(value, list) and schema.items is not None:
        item = schema.items
        fill = item.default is not UNSET and not item.nullable
        return [
            apply_defaults(item, copy_json(item.default) if sub is None and fill else sub)
            for sub in value
        ]
    return value


def lacks_defaults(schema: Schema, value: Any) -> bool:
    """Whether a prepared object lacks a default, because a field was removed since."""
    if isinstance(value, dict):
        for name, child in schema.fields.items():
            sub = value.get(name, ABSENT)
            if child.default is not UNSET and _is_missing(child, sub):
                return True
            if type(sub) not in CONTAINERS or (schema.embedded_resource and name in META_FIELDS):
                continue
            if has_defaults(child) and lacks_defaults(child, sub):
                return True
        below, items = schema.values, list(value.values())
    elif isinstance(value, list):
        below, items = schema.items, value
    else:
        return False
    if below is None or not has_defaults(below):
        return False
    return any(lacks_defaults(below, item) for item in items)


def _is_missing(schema: Schema, value: Any) -> bool:
    return value is ABSENT or (value is None and not schema.nullable)


def _drop_nulls(schema: Schema | None, value: Any) -> Any:
    """The value without the nulls that are not allowed and that no default will replace."""
    if isinstance(value, dict):
        fields, values = (schema.fields, schema.values) if schema is not None else (_NONE, None)
        result = {}
        for name, sub in value.items():
            child = fields.get(name) or values
            if sub is not None:
                result[name] = _drop_nulls(child, sub) if type(sub) in CONTAINERS else sub
            elif child is None or child.nullable or child.default is not UNSET:
                result[name] = None
        return result
    if isinstance(value, list):
        return [_drop_nulls(schema.items if schema is not None else None, sub) for sub in value]
    return value


def prune(schema: Schema, value: Any) -> Pruned:
    """The value without the fields unknown to its schema."""
    unknown: list[str] = []
    result = _prune(schema, value, "", unknown)
    return Pruned(result, tuple(sorted(unknown)))


def _prune(schema: Schema, value: Any, path: str, unknown: list[str]) -> Any:
    if isinstance(value, dict):
        result = {}
        for name, sub in value.items():
            if schema.embedded_resource and name in META_FIELDS:
                result[name] = sub
                continue
            child_path = f"{path}.{name}" if path else name
            child = schema.fields.get(name) or schema.values
            if child is not None:
                container = type(sub) in CONTAINERS
                result[name] = _prune(child, sub, child_path, unknown) if container else sub
            elif schema.preserve_unknown_fields:
                result[name] = sub
            else:
                unknown.append(child_path)
        return result
    if isinstance(value, list):
        if schema.items is None and schema.preserve_unknown_fields:
            return value
        item = schema.items or UNKNOWN
        return [_prune(item, sub, f"{path}[{n}]", unknown) for n, sub in enumerate(value)]
    return value


def validate_custom_resource(
    schema: Schema, new: dict[str, Any], old: dict[str, Any] | None = None
) -> list[StatusCause]:
    """The errors in a custom resource that is created, or that replaces ``old``.

    Errors in metadata are not included.
    """
    replaced = ABSENT if old is None else old
    errors = constraints.validate_value(
        schema, new, old=replaced, validated=schema.memo.get("metadata")
    )
    if has_embedded(schema):
        errors += validate_embedded_resources(schema, new, root=True)
    if has_unique_items(schema) and (old is None or not validate_list_items(schema, old)):
        errors += validate_list_items(schema, new)
    if not has_rules(schema):
        return errors
    if any(error.reason in BLOCKING_REASONS for error in errors):
        return [*errors, invalid(constraints.NIL_PATH, None, NOT_CHECKED)]
    from zonewise.embedded.machinery.crd.rules import (
        validate_rules,
    )  # imports CEL: only if there are rules

    return errors + validate_rules(schema, new, old)


def validate_list_items(schema: Schema, value: Any, path: str = "") -> list[StatusCause]:
    """Duplicate keys of keyed lists, and duplicate members of sets."""
    errors: list[StatusCause] = []
    if isinstance(value, dict):
        for name, sub in value.items():
            child = schema.fields.get(name)
            if child is not None and not (schema.embedded_resource and name in META_FIELDS):
                errors += validate_list_items(child, sub, f"{path}.{name}" if path else name)
            elif schema.values is not None:
                errors += validate_list_items(schema.values, sub, f"{path}[{name}]")
    elif isinstance(value, list) and schema.shape == "list":
        errors += _find_duplicates(schema, value, path)
        if schema.items is not None:
            for n, item in enumerate(value):
                errors += validate_list_items(schema.items, item, f"{path}[{n}]")
    return errors


def _find_duplicates(schema: Schema, items: list[Any], path: str) -> list[StatusCause]:
    identity_of: Callable[[Any], Any]
    if schema.list_type == "map":
        for n, item in enumerate(items):
            if item is not None and not isinstance(item, dict):
                message = "must be an object for an array of list-type map"
                return [invalid(f"{path}[{n}]", item, message)]

        def identity_of(item: Any) -> Any:
            return {key: item[key] for key in schema.keys if key in (item or {})}
    elif schema.list_type == "set":

        def identity_of(item: Any) -> Any:
            return item
    else:
        return []
    errors, counts = [], dict[bytes, int]()
    for n, item in enumerate(items):
        value = identity_of(item)
        key = msgspec.json.encode(value, order="sorted")
        counts[key] = counts.get(key, 0) + 1
        if counts[key] == 2:
            errors.append(duplicate(f"{path}[{n}]", value))
    return errors


def validate_embedded_resources(
    schema: Schema, value: Any, path: str = "", *, root: bool = False
) -> list[StatusCause]:
    """Missing or invalid ``apiVersion`` and ``kind`` of embedded resources."""
    errors: list[StatusCause] = []
    if isinstance(value, dict):
        if schema.embedded_resource and not root:
            for name in ("apiVersion", "kind"):
                field_path = f"{path}.{name}" if path else name
                if name not in value:
                    errors.append(required(field_path))
                elif not isinstance(value[name], str):
                    errors.append(invalid(field_path, value[name], "must be a string"))
                elif not value[name]:
                    errors.append(invalid(field_path, value[name], "must not be empty"))
        for name, sub in value.items():
            child = schema.fields.get(name)
            if child is not None and not (schema.embedded_resource and name in META_FIELDS):
                child_path = f"{path}.{name}" if path else name
                errors += validate_embedded_resources(child, sub, child_path)
            elif schema.values is not None:
                errors += validate_embedded_resources(schema.values, sub, f"{path}[{name}]")
    elif isinstance(value, list) and schema.items is not None:
        for n, item in enumerate(value):
            errors += validate_embedded_resources(schema.items, item, f"{path}[{n}]")
    return errors
