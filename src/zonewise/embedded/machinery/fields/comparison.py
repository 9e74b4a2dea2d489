"""Which fields a write added, changed or removed, and which fields a configuration sets.

Both results are sets of fields (``embedded.machinery.fields.fieldset``). A value is walked along
its schema: objects and maps by key, keyed lists by their items' keys, set-like lists by value;
scalars, atomic lists and atomic objects are one field each. Values without a schema (preserved
unknown fields) are walked as maps of maps with atomic lists.

Every ordinary write compares, so this is built around Python's own equality: a subtree that is
equal costs one comparison in C, and only the path to a difference is walked. That equality takes
``true`` for ``1``; where the schema cannot rule such a change out (custom resources), the caller
requests a ``strict`` comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from zonewise.api.errors import ParseError
from zonewise.embedded.machinery.fields.fieldset import (
    SELF,
    FieldsV1,
    key_element,
    keys_element,
    single_key_element,
    sort_level,
    value_element,
)
from zonewise.embedded.machinery.schema.schema import ANY, UNSET, Schema

ABSENT: Any = UNSET
_ZERO_VALUES = {"string": "", "integer": 0, "boolean": False}
LEAF: FieldsV1 = {}  # one for all: sets are never changed in place

RAW_EXTENSION = "io.k8s.apimachinery.pkg.runtime.RawExtension"  # untyped, and owned as one value
_MAPS = frozenset({"object", "map", "any"})
_CONTAINERS = frozenset({dict, list})


class SchemaViolation(ParseError):
    """A value violates its schema: an item without its keys, an undeclared field."""


class Comparison(NamedTuple):
    """Three disjoint sets; all empty means the values are equal to every manager."""

    removed: FieldsV1
    modified: FieldsV1
    added: FieldsV1


def compare(schema: Schema, old: Any, new: Any, *, strict: bool = False) -> Comparison:
    """What distinguishes ``new`` from ``old``, both objects of the schema."""
    levels = Comparison({}, {}, {})
    _compare_fields(schema, old, new, levels, strict)
    return Comparison(*[sort_level(level) if len(level) > 1 else level for level in levels])


def fields_of(schema: Schema, value: Any, *, duplicates: bool = True) -> FieldsV1:
    """Every field a value mentions, as its applier would own them.

    Of duplicate items only the item is named; with ``duplicates=False`` they are refused.
    """
    return _fields_of(schema, value, duplicates) or {}


def is_granular(schema: Schema) -> bool:
    """Whether fields below a value of this schema can have owners of their own."""
    if schema.atomic:
        return False
    return schema.shape in ("object", "map") or (
        schema.shape == "list" and schema.list_type != "atomic"
    )


def element_of(schema: Schema, item: Any) -> str:
    """The path element of an item of a set-like or keyed list."""
    if schema.list_type == "set":
        if item is None or isinstance(item, dict | list):
            raise SchemaViolation("a list of type set may hold only plain values")
        return value_element(item)
    if isinstance(item, dict) and len(schema.keys) == 1:
        value = item.get(schema.keys[0])
        if isinstance(value, str):
            return single_key_element(schema.keys[0], value)
    if not isinstance(item, dict):
        item_kind = "a null" if item is None else "non-map"
        raise SchemaViolation(f"associative list with keys may not have {item_kind} element")
    values = [item[name] if name in item else _default_of_key(schema, name) for name in schema.keys]
    if ABSENT not in values:
        return keys_element(schema.keys, *values)
    keys = [pair for pair in zip(schema.keys, values, strict=True) if pair[1] is not ABSENT]
    if not keys:
        names = " ".join(f'"{name}"' for name in schema.keys)
        raise SchemaViolation(
            f"associative list with keys has an element that omits all key fields [{names}] "
            "(and doesn't have default values for any key fields)"
        )
    return key_element(keys)


def _default_of_key(schema: Schema, key: str) -> Any:
    """The value of an absent key of an item: built-in types publish a default for every key."""
    key_field = schema.items.fields.get(key) if schema.items is not None else None
    if key_field is None or schema.items is None:
        return ABSENT
    if key_field.default is UNSET and schema.items.name:
        return _ZERO_VALUES.get(key_field.shape, ABSENT)
    return key_field.default


def elements_of(schema: Schema, items: Sequence[Any]) -> list[str]:
    """The path elements of a list's items, in order; errors name the item by its index."""
    elements = []
    for index, item in enumerate(items):
        try:
            elements.append(element_of(schema, item))
        except SchemaViolation as error:
            raise SchemaViolation(f"element {index}: {error}") from None
    return elements


def child_of(schema: Schema, name: str) -> Schema:
    """The schema below a key; an undeclared field may be anything."""
    return schema.fields.get(name) or schema.values or ANY


def with_named_members(schema: Schema, fields: FieldsV1) -> FieldsV1:
    """The set in which every declared field that leads to a member is a member too.

    Owning ``spec.replicas`` then includes ``spec``, but owning ``labels.app`` no key between.
    """
    result: FieldsV1 = {}
    for element, node in fields.items():
        if element == SELF or not node:
            result[element] = node
            continue
        name = element[2:] if element[0] == "f" else ""
        child = child_of(schema, name) if name else schema.items or ANY
        inner = with_named_members(child, node)
        result[element] = {SELF: {}, **inner} if name in schema.fields else inner
    return result


def reconcile_with_schema(schema: Schema, fields: FieldsV1) -> FieldsV1:
    """The set after a schema became atomic: what was owned below it is owned as a whole."""
    result: FieldsV1 | None = None
    for element, node in fields.items():
        if element == SELF or not node:
            continue
        is_field = element[0] == "f"
        child = schema.fields.get(element[2:], schema.values) if is_field else schema.items
        if child is None or child.shape == "any":
            continue
        is_atomic = child.atomic or (child.shape == "list" and child.list_type == "atomic")
        inner: FieldsV1 = {} if is_atomic else reconcile_with_schema(child, node)
        if inner is node:
            continue
        if result is None:
            result = dict(fields)
        result[element] = inner
    return fields if result is None else result


def equal_strictly(left: Any, right: Any) -> bool:
    """Equality that distinguishes true from 1."""
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and left.keys() == right.keys()
            and all(equal_strictly(value, right[key]) for key, value in left.items())
        )
    if isinstance(left, list):
        return (
            isinstance(right, list)
            and len(left) == len(right)
            and all(map(equal_strictly, left, right))
        )
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


def _compare_fields(
    schema: Schema, old: dict[str, Any], new: dict[str, Any], out: Comparison, strict: bool
) -> None:
    fields, values = schema.fields, schema.values or ANY
    for name, new_value in new.items():
        old_value = old[name] if name in old else ABSENT  # noqa: SIM401 - a third of the price
        if old_value is new_value or (
            old_value == new_value and (not strict or equal_strictly(old_value, new_value))
        ):
            continue
        child = fields.get(name, values)
        if old_value is ABSENT:
            out.added["f:" + name] = _all_fields_of(child, new_value)
        else:
            _compare(child, "f:" + name, old_value, new_value, out, strict=strict)
    for name, old_value in old.items():
        if name not in new:
            out.removed["f:" + name] = _all_fields_of(fields.get(name, values), old_value)


def _compare(
    schema: Schema, element: str, old: Any, new: Any, out: Comparison, *, strict: bool
) -> None:
    shape = "any" if schema.atomic else schema.shape
    if schema.shape == "any" and not schema.atomic and schema.name != RAW_EXTENSION:
        shape = "map" if isinstance(old, dict) or isinstance(new, dict) else "any"
    if shape in ("object", "map"):
        inner = _compare_maps(schema, old, new, strict)
    elif shape == "list" and schema.list_type != "atomic":
        inner = _compare_lists(schema, old, new, strict)
    else:
        inner = None
    if inner is None:
        out.modified[element] = {}
        return
    for level, fields in zip(out, inner, strict=True):
        if fields:
            if len(fields) > 1:
                level[element] = sort_level(fields)
            else:
                level[element] = LEAF if SELF in fields else fields


def _compare_maps(schema: Schema, old: Any, new: Any, strict: bool) -> Comparison | None:
    """The differences below, or None if the whole is one changed field; null counts as empty."""
    if not old and not new:
        return None
    inner = Comparison({}, {}, {})
    if (old is None or isinstance(old, dict)) and (new is None or isinstance(new, dict)):
        _compare_fields(schema, old or {}, new or {}, inner, strict)
    else:  # an untyped value turned from a map into something else or back
        _compare_fields(
            schema,
            old if isinstance(old, dict) else {},
            new if isinstance(new, dict) else {},
            inner,
            strict,
        )
        inner.modified[SELF] = {}
    return inner


def _compare_lists(schema: Schema, old: Any, new: Any, strict: bool) -> Comparison | None:
    if not old and not new:
        return None
    item = schema.items or ANY
    old_groups, new_groups = _group_items(schema, old or ()), _group_items(schema, new or ())
    inner = Comparison({}, {}, {})
    for element in [*old_groups, *(element for element in new_groups if element not in old_groups)]:
        old_items, new_items = old_groups.get(element, ()), new_groups.get(element, ())
        if len(old_items) > 1 and len(new_items) > 1:
            if not equal_strictly([*old_items], [*new_items]):
                inner.modified[element] = {}
        elif len(old_items) > 1:
            inner.removed[element] = {}
            if new_items:
                inner.added[element] = _all_fields_of(item, new_items[0])
        elif len(new_items) > 1:
            inner.added[element] = {}
            if old_items:
                inner.removed[element] = _all_fields_of(item, old_items[0])
        elif not old_items:
            inner.added[element] = _all_fields_of(item, new_items[0])
        elif not new_items:
            inner.removed[element] = _all_fields_of(item, old_items[0])
        elif old_items[0] != new_items[0] or (
            strict and not equal_strictly(old_items[0], new_items[0])
        ):
            _compare(item, element, old_items[0], new_items[0], inner, strict=strict)
    return inner


def _group_items(schema: Schema, items: Sequence[Any]) -> dict[str, tuple[Any, ...]]:
    """Items by path element; more than one only where a list has duplicates."""
    groups: dict[str, tuple[Any, ...]] = {}
    for element, item in zip(elements_of(schema, items), items, strict=True):
        groups[element] = (*groups[element], item) if element in groups else (item,)
    return groups


def _all_fields_of(schema: Schema, value: Any) -> FieldsV1:
    """The node of a value that was added or removed as a whole: itself and all below."""
    if not value or schema.atomic:
        return LEAF
    if type(value) is dict:
        if schema.shape not in _MAPS or schema.name == RAW_EXTENSION:
            return LEAF
        fields, values = schema.fields, schema.values or ANY
        out: FieldsV1 = {SELF: LEAF}
        for name in sorted(value):
            sub = value[name]
            if type(sub) in _CONTAINERS:
                out["f:" + name] = _all_fields_of(fields.get(name, values), sub)
            else:
                out["f:" + name] = LEAF
        return out
    if type(value) is list and schema.shape == "list" and schema.list_type != "atomic":
        item = schema.items or ANY
        inner: FieldsV1 = {}
        for element, item_value in zip(elements_of(schema, value), value, strict=True):
            inner[element] = LEAF if element in inner else _all_fields_of(item, item_value)
        return {SELF: LEAF, **(sort_level(inner) if len(inner) > 1 else inner)}
    return LEAF


def _fields_of(schema: Schema, value: Any, duplicates: bool) -> FieldsV1 | None:
    """The node of a configured value: ``{}`` for one field, None where nothing is set."""
    if schema.atomic or schema.name == RAW_EXTENSION:
        return {}
    if isinstance(value, dict) and schema.shape in ("object", "map", "any"):
        out: FieldsV1 = {}
        for name, sub in value.items():
            inner = _fields_of(child_of(schema, name), sub, duplicates)
            if sub is None or sub == {} or name not in schema.fields:
                inner = {SELF: {}, **inner} if inner else {}
            if inner is not None:
                out["f:" + name] = inner
        return sort_level(out) or None
    if schema.shape == "list" and schema.list_type != "atomic":
        if not isinstance(value, list):
            return None
        return _fields_of_items(schema, value, duplicates)
    return None if schema.shape in ("object", "map") else {}


def _fields_of_items(schema: Schema, items: list[Any], duplicates: bool) -> FieldsV1 | None:
    item = schema.items or ANY
    out: FieldsV1 = {}
    for element, group in _group_items(schema, items).items():
        if len(group) > 1:
            if not duplicates:
                raise SchemaViolation(f"duplicate entries for key {element}")
            out[element] = {}
            continue
        inner = _fields_of(item, group[0], duplicates)
        out[element] = {SELF: {}, **inner} if inner else {}
    return sort_level(out) or None
