"""What happens to a custom resource between its body and its storage, as pure steps.

``prepared`` is what a decoded body goes through: nulls that are not nullable are dropped, unless a
default replaces them; defaults are filled in; fields unknown to the schema are pruned and named.
``resource_faults`` is what is checked before it is stored: the schema's constraints, embedded
objects, keys of keyed lists and members of sets, and last the rules in CEL, which are not evaluated
while the object breaks something that a rule could fail on.

``metadata`` at the root is not defined by the schema and is left to the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from zonewise.api import field_errors
from zonewise.api.errors import StatusCause
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
from zonewise.embedded.machinery.schema.types import UNSET, Type

BLOCKING = {
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


class Pruned(NamedTuple):
    """A value without unknown fields, and the paths of those it had."""

    value: Any
    unknown: tuple[str, ...] = ()


def prepared(kind: Type, value: dict[str, Any]) -> Pruned:
    """A custom resource's body, defaulted and pruned; the input is not changed."""
    made = _without_nulls(kind, value)
    return pruned(kind, defaulted(kind, made) if has_defaults(kind) else made)


def coerced(kind: Type, value: dict[str, Any]) -> dict[str, Any]:
    """An object converted to a kind, without fields unknown to that kind; no defaults."""
    made: dict[str, Any] = pruned(kind, _without_nulls(kind, value)).value
    return made


def defaulted(kind: Type, value: Any) -> Any:
    """The value with defaults where the schema has one and the value has nothing, or a null."""
    if isinstance(value, dict):
        out = dict(value)
        for name, child in kind.fields.items():
            if child.default is not UNSET and _is_missing(child, out.get(name, ABSENT)):
                out[name] = _copied(child.default)
        for name, sub in out.items():
            below = kind.fields.get(name, kind.values)
            if below is None or (kind.embedded and name in META_FIELDS):
                continue
            fill = sub is None and below.default is not UNSET and not below.nullable
            out[name] = defaulted(below, _copied(below.default) if fill else sub)
        return out
    if isinstance(value, list) and kind.items is not None:
        item = kind.items
        fill = item.default is not UNSET and not item.nullable
        return [
            defaulted(item, _copied(item.default) if sub is None and fill else sub) for sub in value
        ]
    return value


def _is_missing(kind: Type, value: Any) -> bool:
    return value is ABSENT or (value is None and not kind.nullable)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copied(sub) for name, sub in value.items()}
    return [_copied(sub) for sub in value] if isinstance(value, list) else value


def _without_nulls(kind: Type | None, value: Any) -> Any:
    """The value less the nulls that may not be and that no default will replace."""
    if isinstance(value, dict):
        out = {}
        for name, sub in value.items():
            child = (kind.fields.get(name) or kind.values) if kind is not None else None
            gone = sub is None and child is not None and not child.nullable
            if not gone or (child is not None and child.default is not UNSET):
                out[name] = _without_nulls(child, sub)
        return out
    if isinstance(value, list):
        return [_without_nulls(kind.items if kind is not None else None, sub) for sub in value]
    return value


def pruned(kind: Type, value: Any) -> Pruned:
    """The value without the fields unknown to its schema."""
    unknown: list[str] = []
    made = _pruned(kind, value, "", unknown)
    return Pruned(made, tuple(sorted(unknown)))


def _pruned(kind: Type, value: Any, at: str, unknown: list[str]) -> Any:
    if isinstance(value, dict):
        out = {}
        for name, sub in value.items():
            if kind.embedded and name in META_FIELDS:
                out[name] = sub
                continue
            path = f"{at}.{name}" if at else name
            child = kind.fields.get(name) or kind.values
            if child is not None:
                out[name] = _pruned(child, sub, path, unknown)
            elif kind.preserve:
                out[name] = sub
            else:
                unknown.append(path)
        return out
    if isinstance(value, list):
        if kind.items is None and kind.preserve:
            return value
        item = kind.items or UNKNOWN
        return [_pruned(item, sub, f"{at}[{n}]", unknown) for n, sub in enumerate(value)]
    return value


def resource_faults(
    kind: Type, new: dict[str, Any], old: dict[str, Any] | None = None
) -> list[StatusCause]:
    """Everything wrong with a custom resource that is created, or that replaces ``old``.

    The faults of metadata are not here.
    """
    before = ABSENT if old is None else old
    found = constraints.faults_of(kind, new, old=before)
    if has_embedded(kind):
        found += embedded_faults(kind, new, root=True)
    if has_unique_items(kind) and (old is None or not list_faults(kind, old)):
        found += list_faults(kind, new)
    if not has_rules(kind):
        return found
    if any(fault.reason in BLOCKING for fault in found):
        return [*found, field_errors.invalid(constraints.NOWHERE, None, NOT_CHECKED)]
    from zonewise.embedded.machinery.crd.rules import (
        rule_faults,
    )  # brings CEL: only where there are rules

    return found + rule_faults(kind, new, old)


def list_faults(kind: Type, value: Any, at: str = "") -> list[StatusCause]:
    """Duplicate keys of keyed lists, and duplicate members of sets."""
    found: list[StatusCause] = []
    if isinstance(value, dict):
        for name, sub in value.items():
            child = kind.fields.get(name)
            if child is not None and not (kind.embedded and name in META_FIELDS):
                found += list_faults(child, sub, f"{at}.{name}" if at else name)
            elif kind.values is not None:
                found += list_faults(kind.values, sub, f"{at}[{name}]")
    elif isinstance(value, list) and kind.shape == "list":
        found += _twice(kind, value, at)
        if kind.items is not None:
            for n, item in enumerate(value):
                found += list_faults(kind.items, item, f"{at}[{n}]")
    return found


def _twice(kind: Type, items: list[Any], at: str) -> list[StatusCause]:
    seen: Callable[[Any], Any]
    if kind.list_type == "map":
        for n, item in enumerate(items):
            if item is not None and not isinstance(item, dict):
                words = "must be an object for an array of list-type map"
                return [field_errors.invalid(f"{at}[{n}]", item, words)]

        def seen(item: Any) -> Any:
            return {key: item[key] for key in kind.keys if key in (item or {})}
    elif kind.list_type == "set":

        def seen(item: Any) -> Any:
            return item
    else:
        return []
    found, count = [], dict[bytes, int]()
    for n, item in enumerate(items):
        value = seen(item)
        key = msgspec.json.encode(value, order="sorted")
        count[key] = count.get(key, 0) + 1
        if count[key] == 2:
            found.append(field_errors.duplicate(f"{at}[{n}]", value))
    return found


def embedded_faults(
    kind: Type, value: Any, at: str = "", *, root: bool = False
) -> list[StatusCause]:
    """What embedded objects lack to be objects."""
    found: list[StatusCause] = []
    if isinstance(value, dict):
        if kind.embedded and not root:
            for name in ("apiVersion", "kind"):
                path = f"{at}.{name}" if at else name
                if name not in value:
                    found.append(field_errors.required(path))
                elif not isinstance(value[name], str):
                    found.append(field_errors.invalid(path, value[name], "must be a string"))
                elif not value[name]:
                    found.append(field_errors.invalid(path, value[name], "must not be empty"))
        for name, sub in value.items():
            child = kind.fields.get(name)
            if child is not None and not (kind.embedded and name in META_FIELDS):
                found += embedded_faults(child, sub, f"{at}.{name}" if at else name)
            elif kind.values is not None:
                found += embedded_faults(kind.values, sub, f"{at}[{name}]")
    elif isinstance(value, list) and kind.items is not None:
        for n, item in enumerate(value):
            found += embedded_faults(kind.items, item, f"{at}[{n}]")
    return found
