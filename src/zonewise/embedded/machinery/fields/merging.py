"""Typed merging: a partial configuration is merged into an object, or fields are removed from it.

``merge`` keeps everything the configuration does not mention and takes its values where it does.
Keyed and set-like lists are merged item by item: items that both have are in the configuration's
order, items only the object has keep their position between them. ``remove`` takes a set of fields
out of an object. ``validate`` checks a configuration first: declared fields only, values of the
right JSON type, no item twice. All three are pure and share unchanged parts with their input.
"""

from __future__ import annotations

from typing import Any

from zonewise.embedded.machinery.fields.comparison import (
    ABSENT,
    RAW_EXTENSION,
    SchemaViolation,
    child_of,
    element_of,
    elements_of,
    is_granular,
)
from zonewise.embedded.machinery.fields.fieldset import (
    FieldsV1,
    children_of,
    format_path,
    is_member,
)
from zonewise.embedded.machinery.schema.schema import ANY, Schema

_NUMBERS = ("integer", "number")


def merge(schema: Schema, live: Any, config: Any) -> Any:
    """The live value with the configuration's fields in it; either may be ABSENT."""
    if config is ABSENT:
        return live
    if live is ABSENT:
        return config
    if schema.shape == "any" and not schema.atomic and schema.name != RAW_EXTENSION:
        granular = isinstance(live, dict) and isinstance(config, dict)
    else:
        granular = is_granular(schema)
    if not granular:
        return config
    if isinstance(config, dict) or isinstance(live, dict):
        old = live if isinstance(live, dict) else {}
        new = config if isinstance(config, dict) else {}
        if not old and not new:
            return config
        return _merge_maps(schema, old, new)
    if isinstance(config, list) or isinstance(live, list):
        old_items = live if isinstance(live, list) else []
        new_items = config if isinstance(config, list) else []
        if not old_items and not new_items:
            return config
        return _merge_lists(schema, old_items, new_items)
    return config


def _merge_maps(schema: Schema, live: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    out = dict(live)
    for name, value in config.items():
        out[name] = merge(child_of(schema, name), live.get(name, ABSENT), value)
    return out


def _merge_lists(schema: Schema, live: list[Any], config: list[Any]) -> list[Any]:
    """Shared items in the configuration's order, the others at their position among them."""
    item = schema.items or ANY
    config_elements, live_elements = elements_of(schema, config), elements_of(schema, live)
    configured = dict(zip(config_elements, config, strict=True))
    live_by_element: dict[str, Any] = {}
    for element, value in zip(live_elements, live, strict=True):
        # a duplicate item cannot be merged with: the configured one replaces both
        live_by_element[element] = None if element in live_by_element else value
    shared = [element for element in config_elements if element in live_by_element]
    out: list[Any] = []
    taken: set[str] = set()

    def take(element: str) -> None:
        taken.add(element)
        old = live_by_element.get(element, ABSENT)
        out.append(merge(item, ABSENT if old is None else old, configured[element]))
        if shared and shared[0] == element:
            shared.pop(0)

    live_index = config_index = 0
    while live_index < len(live_elements) or config_index < len(config_elements):
        if live_index < len(live_elements) and config_index < len(config_elements):
            if live_elements[live_index] == config_elements[config_index]:
                take(config_elements[config_index])
                live_index, config_index = live_index + 1, config_index + 1
                continue
            if (
                live_elements[live_index] in configured
                and shared
                and shared[0] != live_elements[live_index]
            ):
                live_index += 1
                continue
        if live_index < len(live_elements):
            if live_elements[live_index] not in configured:
                out.append(live[live_index])
                live_index += 1
                continue
            if live_elements[live_index] in taken:
                live_index += 1
        if config_index < len(config_elements):
            take(config_elements[config_index])
            config_index += 1
    return out


def remove(schema: Schema, value: Any, fields: FieldsV1) -> Any:
    """The value without these fields and all below them; None if nothing remains."""
    if not fields:
        return value
    if isinstance(value, dict):
        if not value or schema.atomic:
            return None
        remaining = _remove_from_map(schema, value, fields)
        return remaining or None
    if isinstance(value, list):
        if not value or schema.shape != "list" or schema.list_type == "atomic":
            return None
        return _remove_from_list(schema, value, fields) or None
    return value


def _remove_from_map(schema: Schema, value: dict[str, Any], fields: FieldsV1) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, sub in value.items():
        node = fields.get("f:" + name)
        if node is None:
            out[name] = sub
        elif not is_member(node):
            out[name] = remove(child_of(schema, name), sub, node)
    return out


def _remove_from_list(schema: Schema, items: list[Any], fields: FieldsV1) -> list[Any]:
    out = []
    for item in items:
        element = element_of(schema, item)
        node = fields.get(element)
        if node is None:
            out.append(item)
        elif not is_member(node):
            out.append(remove(schema.items or ANY, item, children_of(fields, element)))
    return out


def validate(schema: Schema, config: Any) -> None:
    """Refuse a configuration that violates its schema; the message has every error."""
    errors = _find_errors(schema, config, "", False)
    if errors:
        text = errors[0] if len(errors) == 1 else "errors:\n  " + "\n  ".join(errors)
        raise SchemaViolation(text)


def _find_errors(schema: Schema, value: Any, path: str, preserves_unknown: bool) -> list[str]:
    """The errors; a schema that preserves unknown fields does so for everything below it."""
    preserves_unknown = preserves_unknown or schema.preserve_unknown_fields
    if value is None:
        return []
    if schema.shape == "any":
        return []
    if schema.shape in ("object", "map"):
        if not isinstance(value, dict):
            return [f"{path}: expected map, got {value!r}"]
        return _find_errors_in_map(schema, value, path, preserves_unknown)
    if schema.shape == "list":
        if not isinstance(value, list):
            return [f"{path}: expected list, got {value!r}"]
        return _find_errors_in_list(schema, value, path, preserves_unknown)
    return _find_errors_in_scalar(schema, value, path)


def _find_errors_in_map(
    schema: Schema, value: dict[str, Any], path: str, preserves_unknown: bool
) -> list[str]:
    accepts_any = preserves_unknown or (schema.shape == "object" and not schema.fields)
    errors: list[str] = []
    for name in sorted(value):
        sub, child = value[name], schema.child(name)
        if child is not None:
            errors += _find_errors(child, sub, f"{path}.{name}", preserves_unknown)
        elif not accepts_any:
            errors.append(f"{path}.{name}: field not declared in schema")
    return errors


def _find_errors_in_list(
    schema: Schema, items: list[Any], path: str, preserves_unknown: bool
) -> list[str]:
    child = schema.items or ANY
    if schema.list_type == "atomic":
        return [
            error
            for n, item in enumerate(items)
            for error in _find_errors(child, item, f"{path}[{n}]", preserves_unknown)
        ]
    errors: list[str] = []
    seen: set[str] = set()
    for n, item in enumerate(items):
        try:
            element = element_of(schema, item)
        except SchemaViolation as error:
            return [*errors, f"{path}: element {n}: {error}"]
        name = format_path((element,))
        if element in seen:
            errors.append(f"{path}: duplicate entries for key {name}")
        seen.add(element)
        errors += _find_errors(child, item, f"{path}{name}", preserves_unknown)
    return errors


def _find_errors_in_scalar(schema: Schema, value: Any, path: str) -> list[str]:
    if isinstance(value, dict | list):
        return [f"{path}: expected any scalar, got {value!r}"]
    if schema.shape in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return [f"{path}: expected numeric (int or float), got {type(value).__name__}"]
    elif schema.shape == "boolean":
        if not isinstance(value, bool):
            return [f"{path}: expected boolean, got {value!r}"]
    elif schema.shape == "string" and schema.format in ("", "byte") and not isinstance(value, str):
        return [f"{path}: expected string, got {value!r}"]
    return []
