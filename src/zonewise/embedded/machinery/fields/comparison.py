"""Which fields a write added, changed or removed, and which fields a configuration sets.

Both answers are sets of fields (``embedded.machinery.fields.fieldset``) found by walking a value
along its type: objects and maps by key, keyed lists by their items' keys, set-like lists by value;
scalars, atomic lists and atomic objects are one field each. Values without a type (preserved
unknown fields) are walked as maps of maps with atomic lists.

Every ordinary write pays for a comparison, so it is built around Python's own equality: a subtree
that is equal costs one comparison in C, and only the path to a difference is walked. That equality
takes ``true`` for ``1``; where the type cannot rule such a change out (custom resources), the
caller requests a ``strict`` comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from zonewise.api.errors import ParseError
from zonewise.embedded.machinery.fields.fieldset import (
    SELF,
    FieldsV1,
    key_element,
    keyed,
    ordered,
    single_key,
    value_element,
)
from zonewise.embedded.machinery.schema.types import ANY, UNSET, Type

ABSENT: Any = UNSET
_ZEROS = {"string": "", "integer": 0, "boolean": False}
LEAF: FieldsV1 = {}  # one for all: sets are never changed in place

RAW = "io.k8s.apimachinery.pkg.runtime.RawExtension"  # untyped, and owned as one value
_MAPS = frozenset({"object", "map", "any"})
_CONTAINERS = frozenset({dict, list})


class Mistyped(ParseError):
    """A value that its type cannot describe: an item without its keys, an undeclared field."""


class Comparison(NamedTuple):
    """Three disjoint sets; all empty means the values are equal to every manager."""

    removed: FieldsV1
    modified: FieldsV1
    added: FieldsV1


def compare(kind: Type, old: Any, new: Any, *, strict: bool = False) -> Comparison:
    """What distinguishes ``new`` from ``old``, both objects of the type."""
    levels = Comparison({}, {}, {})
    _compare_fields(kind, old, new, levels, strict)
    return Comparison(*[ordered(level) if len(level) > 1 else level for level in levels])


def fields_of(kind: Type, value: Any, *, duplicates: bool = True) -> FieldsV1:
    """Every field a value mentions, as its applier would own them.

    Of duplicate items only the item is named; with ``duplicates=False`` they are refused.
    """
    return _fields_of(kind, value, duplicates) or {}


def is_granular(kind: Type) -> bool:
    """Whether fields below a value of this type can have owners of their own."""
    if kind.atomic:
        return False
    return kind.shape in ("object", "map") or (kind.shape == "list" and kind.list_type != "atomic")


def element_of(kind: Type, item: Any) -> str:
    """The path element of an item of a set-like or keyed list."""
    if kind.list_type == "set":
        if item is None or isinstance(item, dict | list):
            raise Mistyped("a list of type set may hold only plain values")
        return value_element(item)
    if isinstance(item, dict) and len(kind.keys) == 1:
        value = item.get(kind.keys[0])
        if isinstance(value, str):
            return single_key(kind.keys[0], value)
    if not isinstance(item, dict):
        what = "a null" if item is None else "non-map"
        raise Mistyped(f"associative list with keys may not have {what} element")
    values = [item[name] if name in item else _default(kind, name) for name in kind.keys]
    if ABSENT not in values:
        return keyed(kind.keys, *values)
    keys = [pair for pair in zip(kind.keys, values, strict=True) if pair[1] is not ABSENT]
    if not keys:
        names = " ".join(f'"{name}"' for name in kind.keys)
        raise Mistyped(
            f"associative list with keys has an element that omits all key fields [{names}] "
            "(and doesn't have default values for any key fields)"
        )
    return key_element(keys)


def _default(kind: Type, key: str) -> Any:
    """What an absent key of an item is: Kubernetes' own types publish a default for every key."""
    known = kind.items.fields.get(key) if kind.items is not None else None
    if known is None or kind.items is None:
        return ABSENT
    if known.default is UNSET and kind.items.name:
        return _ZEROS.get(known.shape, ABSENT)
    return known.default


def elements_of(kind: Type, items: Sequence[Any]) -> list[str]:
    """The path elements of a list's items, in order; an item that has none is named by position."""
    out = []
    for at, item in enumerate(items):
        try:
            out.append(element_of(kind, item))
        except Mistyped as error:
            raise Mistyped(f"element {at}: {error}") from None
    return out


def child_of(kind: Type, name: str) -> Type:
    """The type below a key, with undeclared fields taken as untyped."""
    return kind.fields.get(name) or kind.values or ANY


def with_named(kind: Type, fields: FieldsV1) -> FieldsV1:
    """The set with every declared field that leads to a member made a member too.

    Owning ``spec.replicas`` then includes ``spec``, but owning ``labels.app`` no key between.
    """
    out: FieldsV1 = {}
    for element, node in fields.items():
        if element == SELF or not node:
            out[element] = node
            continue
        name = element[2:] if element[0] == "f" else ""
        child = child_of(kind, name) if name else kind.items or ANY
        inner = with_named(child, node)
        out[element] = {SELF: {}, **inner} if name in kind.fields else inner
    return out


def reconciled(kind: Type, fields: FieldsV1) -> FieldsV1:
    """The set as it reads after a type became atomic: what was owned below is owned as a whole."""
    out: FieldsV1 | None = None
    for element, node in fields.items():
        if element == SELF or not node:
            continue
        named = element[0] == "f"
        child = kind.fields.get(element[2:], kind.values) if named else kind.items
        if child is None or child.shape == "any":
            continue
        one = child.atomic or (child.shape == "list" and child.list_type == "atomic")
        inner: FieldsV1 = {} if one else reconciled(child, node)
        if inner is node:
            continue
        if out is None:
            out = dict(fields)
        out[element] = inner
    return fields if out is None else out


def same(left: Any, right: Any) -> bool:
    """Equality that distinguishes true from 1."""
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and left.keys() == right.keys()
            and all(same(value, right[key]) for key, value in left.items())
        )
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


def _compare_fields(
    kind: Type, old: dict[str, Any], new: dict[str, Any], out: Comparison, strict: bool
) -> None:
    fields, values = kind.fields, kind.values or ANY
    for name, after in new.items():
        before = old.get(name, ABSENT)
        if before is after or (before == after and (not strict or same(before, after))):
            continue
        child = fields.get(name, values)
        if before is ABSENT:
            out.added["f:" + name] = _everything(child, after)
        else:
            _compare(child, "f:" + name, before, after, out, strict=strict)
    for name, before in old.items():
        if name not in new:
            out.removed["f:" + name] = _everything(fields.get(name, values), before)


def _compare(
    kind: Type, element: str, before: Any, after: Any, out: Comparison, *, strict: bool
) -> None:
    shape = "any" if kind.atomic else kind.shape
    if kind.shape == "any" and not kind.atomic and kind.name != RAW:
        shape = "map" if isinstance(before, dict) or isinstance(after, dict) else "any"
    if shape in ("object", "map"):
        inner = _compare_maps(kind, before, after, strict)
    elif shape == "list" and kind.list_type != "atomic":
        inner = _compare_lists(kind, before, after, strict)
    else:
        inner = None
    if inner is None:
        out.modified[element] = {}
        return
    for level, found in zip(out, inner, strict=True):
        if found:
            if len(found) > 1:
                level[element] = ordered(found)
            else:
                level[element] = LEAF if SELF in found else found


def _compare_maps(kind: Type, before: Any, after: Any, strict: bool) -> Comparison | None:
    """The inner differences, or None if the two are one changed field; null counts as empty."""
    if not before and not after:
        return None
    inner = Comparison({}, {}, {})
    if (before is None or isinstance(before, dict)) and (after is None or isinstance(after, dict)):
        _compare_fields(kind, before or {}, after or {}, inner, strict)
    else:  # an untyped value turned from a map into something else or back
        _compare_fields(
            kind,
            before if isinstance(before, dict) else {},
            after if isinstance(after, dict) else {},
            inner,
            strict,
        )
        inner.modified[SELF] = {}
    return inner


def _compare_lists(kind: Type, before: Any, after: Any, strict: bool) -> Comparison | None:
    if not before and not after:
        return None
    item = kind.items or ANY
    olds, news = _grouped(kind, before or ()), _grouped(kind, after or ())
    inner = Comparison({}, {}, {})
    for element in [*olds, *(element for element in news if element not in olds)]:
        old, new = olds.get(element, ()), news.get(element, ())
        if len(old) > 1 and len(new) > 1:
            if not same([*old], [*new]):
                inner.modified[element] = {}
        elif len(old) > 1:
            inner.removed[element] = {}
            if new:
                inner.added[element] = _everything(item, new[0])
        elif len(new) > 1:
            inner.added[element] = {}
            if old:
                inner.removed[element] = _everything(item, old[0])
        elif not old:
            inner.added[element] = _everything(item, new[0])
        elif not new:
            inner.removed[element] = _everything(item, old[0])
        elif old[0] != new[0] or (strict and not same(old[0], new[0])):
            _compare(item, element, old[0], new[0], inner, strict=strict)
    return inner


def _grouped(kind: Type, items: Sequence[Any]) -> dict[str, tuple[Any, ...]]:
    """Items by path element; more than one only where a list has duplicates."""
    groups: dict[str, tuple[Any, ...]] = {}
    for element, item in zip(elements_of(kind, items), items, strict=True):
        groups[element] = (*groups[element], item) if element in groups else (item,)
    return groups


def _everything(kind: Type, value: Any) -> FieldsV1:
    """The node of a value that is wholly new or wholly removed: itself and all below."""
    if not value or kind.atomic:
        return LEAF
    if type(value) is dict:
        if kind.shape not in _MAPS or kind.name == RAW:
            return LEAF
        fields, values = kind.fields, kind.values or ANY
        out: FieldsV1 = {SELF: LEAF}
        for name in sorted(value):
            sub = value[name]
            if type(sub) in _CONTAINERS:
                out["f:" + name] = _everything(fields.get(name, values), sub)
            else:
                out["f:" + name] = LEAF
        return out
    if type(value) is list and kind.shape == "list" and kind.list_type != "atomic":
        item = kind.items or ANY
        inner: FieldsV1 = {}
        for element, one in zip(elements_of(kind, value), value, strict=True):
            inner[element] = LEAF if element in inner else _everything(item, one)
        return {SELF: LEAF, **(ordered(inner) if len(inner) > 1 else inner)}
    return LEAF


def _fields_of(kind: Type, value: Any, duplicates: bool) -> FieldsV1 | None:
    """The node of a configured value: ``{}`` for one field, None where nothing is set."""
    if kind.atomic or kind.name == RAW:
        return {}
    if isinstance(value, dict) and kind.shape in ("object", "map", "any"):
        out: FieldsV1 = {}
        for name, sub in value.items():
            inner = _fields_of(child_of(kind, name), sub, duplicates)
            if sub is None or sub == {} or name not in kind.fields:
                inner = {SELF: {}, **inner} if inner else {}
            if inner is not None:
                out["f:" + name] = inner
        return ordered(out) or None
    if kind.shape == "list" and kind.list_type != "atomic":
        if not isinstance(value, list):
            return None
        return _fields_of_items(kind, value, duplicates)
    return None if kind.shape in ("object", "map") else {}


def _fields_of_items(kind: Type, items: list[Any], duplicates: bool) -> FieldsV1 | None:
    item = kind.items or ANY
    out: FieldsV1 = {}
    for element, group in _grouped(kind, items).items():
        if len(group) > 1:
            if not duplicates:
                raise Mistyped(f"duplicate entries for key {element}")
            out[element] = {}
            continue
        inner = _fields_of(item, group[0], duplicates)
        out[element] = {SELF: {}, **inner} if inner else {}
    return ordered(out) or None
