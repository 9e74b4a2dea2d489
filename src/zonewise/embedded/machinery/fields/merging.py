"""Typed merging: a partial configuration into a whole object, and fields out of one again.

``merge`` keeps everything the configuration does not mention and takes its values where it does.
Keyed and set-like lists are merged item by item: items that both have are in the configuration's
order, items only the object has keep their place between them. ``remove`` takes a set of fields out
of an object. ``check`` is what a configuration has to pass before: declared fields only, values of
the right JSON type, no item twice. All three are pure and share unchanged parts with their input.
"""

from __future__ import annotations

from typing import Any

from zonewise.embedded.machinery.fields.comparison import (
    ABSENT,
    RAW,
    Mistyped,
    child_of,
    element_of,
    elements_of,
    is_granular,
)
from zonewise.embedded.machinery.fields.fieldset import FieldsV1, below, is_member, text
from zonewise.embedded.machinery.schema.types import ANY, Type

_NUMBERS = ("integer", "number")


def merge(kind: Type, live: Any, config: Any) -> Any:
    """The live value with the configuration's fields in it; either may be ABSENT."""
    if config is ABSENT:
        return live
    if live is ABSENT:
        return config
    if kind.shape == "any" and not kind.atomic and kind.name != RAW:
        granular = isinstance(live, dict) and isinstance(config, dict)
    else:
        granular = is_granular(kind)
    if not granular:
        return config
    if isinstance(config, dict) or isinstance(live, dict):
        old = live if isinstance(live, dict) else {}
        new = config if isinstance(config, dict) else {}
        if not old and not new:
            return config
        return _merge_maps(kind, old, new)
    if isinstance(config, list) or isinstance(live, list):
        items = live if isinstance(live, list) else []
        news = config if isinstance(config, list) else []
        if not items and not news:
            return config
        return _merge_lists(kind, items, news)
    return config


def _merge_maps(kind: Type, live: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    out = dict(live)
    for name, value in config.items():
        out[name] = merge(child_of(kind, name), live.get(name, ABSENT), value)
    return out


def _merge_lists(kind: Type, live: list[Any], config: list[Any]) -> list[Any]:
    """Shared items in the configuration's order, the rest where they were among them."""
    item = kind.items or ANY
    mine, theirs = elements_of(kind, config), elements_of(kind, live)
    wanted = dict(zip(mine, config, strict=True))
    present: dict[str, Any] = {}
    for element, value in zip(theirs, live, strict=True):
        # a duplicate item cannot be merged with: the configured one replaces both
        present[element] = None if element in present else value
    shared = [element for element in mine if element in present]
    out: list[Any] = []
    done: set[str] = set()

    def take(element: str) -> None:
        done.add(element)
        old = present.get(element, ABSENT)
        out.append(merge(item, ABSENT if old is None else old, wanted[element]))
        if shared and shared[0] == element:
            shared.pop(0)

    left = right = 0
    while left < len(theirs) or right < len(mine):
        if left < len(theirs) and right < len(mine):
            if theirs[left] == mine[right]:
                take(mine[right])
                left, right = left + 1, right + 1
                continue
            if theirs[left] in wanted and shared and shared[0] != theirs[left]:
                left += 1
                continue
        if left < len(theirs):
            if theirs[left] not in wanted:
                out.append(live[left])
                left += 1
                continue
            if theirs[left] in done:
                left += 1
        if right < len(mine):
            take(mine[right])
            right += 1
    return out


def remove(kind: Type, value: Any, fields: FieldsV1) -> Any:
    """The value without these fields and all below them; None when nothing of it is left."""
    if not fields:
        return value
    if isinstance(value, dict):
        if not value or kind.atomic:
            return None
        kept = _remove_from_map(kind, value, fields)
        return kept or None
    if isinstance(value, list):
        if not value or kind.shape != "list" or kind.list_type == "atomic":
            return None
        return _remove_from_list(kind, value, fields) or None
    return value


def _remove_from_map(kind: Type, value: dict[str, Any], fields: FieldsV1) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, sub in value.items():
        node = fields.get("f:" + name)
        if node is None:
            out[name] = sub
        elif not is_member(node):
            out[name] = remove(child_of(kind, name), sub, node)
    return out


def _remove_from_list(kind: Type, items: list[Any], fields: FieldsV1) -> list[Any]:
    out = []
    for item in items:
        element = element_of(kind, item)
        node = fields.get(element)
        if node is None:
            out.append(item)
        elif not is_member(node):
            out.append(remove(kind.items or ANY, item, below(fields, element)))
    return out


def check(kind: Type, config: Any) -> None:
    """Refuse a configuration that its type cannot describe, naming every fault found."""
    faults = _faults(kind, config, "", False)
    if faults:
        raise Mistyped(faults[0] if len(faults) == 1 else "errors:\n  " + "\n  ".join(faults))


def _faults(kind: Type, value: Any, at: str, is_open: bool) -> list[str]:
    """What is wrong; what preserves unknown fields does so for all that is below it."""
    is_open = is_open or kind.preserve
    if value is None:
        return []
    if kind.shape == "any":
        return []
    if kind.shape in ("object", "map"):
        if not isinstance(value, dict):
            return [f"{at}: expected map, got {value!r}"]
        return _faults_in_map(kind, value, at, is_open)
    if kind.shape == "list":
        if not isinstance(value, list):
            return [f"{at}: expected list, got {value!r}"]
        return _faults_in_list(kind, value, at, is_open)
    return _faults_in_scalar(kind, value, at)


def _faults_in_map(kind: Type, value: dict[str, Any], at: str, is_open: bool) -> list[str]:
    free = is_open or (kind.shape == "object" and not kind.fields)
    faults: list[str] = []
    for name in sorted(value):
        sub, child = value[name], kind.child(name)
        if child is not None:
            faults += _faults(child, sub, f"{at}.{name}", is_open)
        elif not free:
            faults.append(f"{at}.{name}: field not declared in schema")
    return faults


def _faults_in_list(kind: Type, items: list[Any], at: str, is_open: bool) -> list[str]:
    child = kind.items or ANY
    if kind.list_type == "atomic":
        return [
            fault
            for n, item in enumerate(items)
            for fault in _faults(child, item, f"{at}[{n}]", is_open)
        ]
    faults: list[str] = []
    seen: set[str] = set()
    for n, item in enumerate(items):
        try:
            element = element_of(kind, item)
        except Mistyped as error:
            return [*faults, f"{at}: element {n}: {error}"]
        name = text((element,))
        if element in seen:
            faults.append(f"{at}: duplicate entries for key {name}")
        seen.add(element)
        faults += _faults(child, item, f"{at}{name}", is_open)
    return faults


def _faults_in_scalar(kind: Type, value: Any, at: str) -> list[str]:
    if isinstance(value, dict | list):
        return [f"{at}: expected any scalar, got {value!r}"]
    if kind.shape in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return [f"{at}: expected numeric (int or float), got {type(value).__name__}"]
    elif kind.shape == "boolean":
        if not isinstance(value, bool):
            return [f"{at}: expected boolean, got {value!r}"]
    elif kind.shape == "string" and kind.format in ("", "byte") and not isinstance(value, str):
        return [f"{at}: expected string, got {value!r}"]
    return []
