"""Structural schemas: from the OpenAPI of a CustomResourceDefinition to a type.

The type is what pruning, defaulting, apply, validation and CEL walk, so a custom resource is
treated by the same code as a built-in kind. What is below a junctor (``allOf``, ``anyOf``,
``oneOf``, ``not``) constrains values only and becomes a type of shape ``any`` with bounds. Whether
a schema is fit to be compiled is for ``embedded.machinery.crd.schema_errors`` to say; compiling
never fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from zonewise.embedded.machinery.fields.comparison import same
from zonewise.embedded.machinery.schema.types import (
    UNSET,
    Bounds,
    ListType,
    Shape,
    Type,
    ValidationRule,
)

Schema = Mapping[str, Any]

TEXT = Type(shape="string")
UNKNOWN = Type(shape="any", nullable=True)  # any value, of which no field is known
FREE_METADATA = Type(shape="object", preserve=True)
META_FIELDS = ("apiVersion", "kind", "metadata")
INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]

_SHAPES: dict[str, Shape] = {
    "string": "string",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "array": "list",
}
_BOUNDS = {
    "minimum": "minimum",
    "maximum": "maximum",
    "exclusiveMinimum": "exclusive_minimum",
    "exclusiveMaximum": "exclusive_maximum",
    "multipleOf": "multiple_of",
    "minLength": "min_length",
    "maxLength": "max_length",
    "pattern": "pattern",
    "minItems": "min_items",
    "maxItems": "max_items",
    "uniqueItems": "unique_items",
    "minProperties": "min_properties",
    "maxProperties": "max_properties",
}


def type_of(schema: Schema | None, *, metadata: Type = FREE_METADATA) -> Type:
    """The type of a custom resource, whose ``metadata`` has this type.

    Without a schema everything is kept as it is.
    """
    free: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    root = _compile(free if schema is None else schema, metadata)
    root.embedded = True
    root.fields.setdefault("apiVersion", TEXT)
    root.fields.setdefault("kind", TEXT)
    root.fields["metadata"] = _metadata(schema or {}, metadata)
    return root


def _metadata(schema: Schema, metadata: Type) -> Type:
    """The type of metadata with a schema's constraints on name and generateName."""
    asked = (schema.get("properties") or {}).get("metadata") or {}
    limits = {
        name: _compile(sub, metadata)
        for name, sub in (asked.get("properties") or {}).items()
        if name in ("name", "generateName")
    }
    return metadata.used_as(fields={**metadata.fields, **limits}) if limits else metadata


def _compile(schema: Schema, metadata: Type) -> Type:
    made = _values(schema, metadata)
    made.shape = shape_of(schema)
    made.nullable = bool(schema.get("nullable"))
    made.preserve = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    made.embedded = bool(schema.get("x-kubernetes-embedded-resource"))
    made.atomic = schema.get("x-kubernetes-map-type") == "atomic"
    made.default = schema.get("default", UNSET)
    if made.default is None:
        made.default = UNSET
    if made.shape == "list":
        made.list_type = _list_type(schema)
        made.keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())
        made.items = _compile(schema.get("items") or {}, metadata)
    made.fields = {
        name: _compile(sub, metadata) for name, sub in (schema.get("properties") or {}).items()
    }
    more = schema.get("additionalProperties")
    if made.shape == "map":
        made.values = _compile(more, metadata) if isinstance(more, Mapping) else UNKNOWN
    if made.embedded:
        made.fields.setdefault("apiVersion", TEXT)
        made.fields.setdefault("kind", TEXT)
        made.fields["metadata"] = metadata
    made.rules = tuple(
        ValidationRule(
            rule=rule.get("rule") or "",
            message=rule.get("message") or "",
            message_expression=rule.get("messageExpression") or "",
            reason=rule.get("reason") or "FieldValueInvalid",
            field_path=rule.get("fieldPath") or "",
            optional_old_self=rule.get("optionalOldSelf"),
        )
        for rule in schema.get("x-kubernetes-validations") or ()
    )
    return made


def shape_of(schema: Schema) -> Shape:
    """What kind of value a schema describes."""
    if schema.get("x-kubernetes-int-or-string"):
        return "int-or-string"
    name = schema.get("type") or ""
    if name == "object":
        more = schema.get("additionalProperties")
        return "map" if more and not schema.get("properties") else "object"
    return _SHAPES.get(name, "any")


def _list_type(schema: Schema) -> ListType:
    asked = schema.get("x-kubernetes-list-type")
    return asked if asked in ("set", "map") else "atomic"


def _values(schema: Schema, metadata: Type) -> Type:
    """A schema's constraints on values, in the main tree or below a junctor."""
    bounds = {
        _BOUNDS[name]: value
        for name, value in schema.items()
        if name in _BOUNDS and value is not None
    }
    return Type(
        shape="any",
        format=schema.get("format") or "",
        required=tuple(schema.get("required") or ()),
        enum=tuple(schema.get("enum") or ()),
        bounds=Bounds(**bounds) if bounds else None,
        all_of=tuple(_nested(sub, metadata) for sub in schema.get("allOf") or ()),
        any_of=tuple(_nested(sub, metadata) for sub in schema.get("anyOf") or ()),
        one_of=tuple(_nested(sub, metadata) for sub in schema.get("oneOf") or ()),
        negated=_nested(schema["not"], metadata) if schema.get("not") is not None else None,
    )


def _nested(schema: Schema, metadata: Type) -> Type:
    made = _values(schema, metadata)
    made.nullable = True
    if schema.get("type") in _SHAPES and schema.get("type") != "array":
        made.shape = _SHAPES[schema["type"]]
    made.fields = {
        name: _nested(sub, metadata) for name, sub in (schema.get("properties") or {}).items()
    }
    if isinstance(schema.get("items"), Mapping):
        made.items = _nested(schema["items"], metadata)
    return made


def is_int_or_string(junctor: Any) -> bool:
    """Whether an ``anyOf`` is the one that int-or-string allows."""
    return isinstance(junctor, list) and same(junctor, INT_OR_STRING)


def subschemas(schema: Schema, at: str) -> Iterator[tuple[str, Schema, bool]]:
    """The schemas right below one, with their paths and whether they describe structure."""
    items = schema.get("items")
    if isinstance(items, Mapping):
        yield f"{at}.items", items, True
    for name, sub in (schema.get("properties") or {}).items():
        yield f"{at}.properties[{name}]", sub, True
    more = schema.get("additionalProperties")
    if isinstance(more, Mapping):
        yield f"{at}.additionalProperties", more, True
    for junctor in ("allOf", "anyOf", "oneOf"):
        for n, sub in enumerate(schema.get(junctor) or ()):
            yield f"{at}.{junctor}[{n}]", sub, False
    if isinstance(schema.get("not"), Mapping):
        yield f"{at}.not", schema["not"], False


def has_rules(kind: Type) -> bool:
    """Whether a rule is anywhere in a type."""
    return bool(kind.rules) or _somewhere(kind, "has rules", lambda one: bool(one.rules))


def has_embedded(kind: Type) -> bool:
    """Whether an object with metadata of its own is anywhere below a type."""
    return _somewhere(kind, "has embedded", lambda one: one.embedded)


def has_defaults(kind: Type) -> bool:
    """Whether a default is anywhere below a type."""
    return _somewhere(kind, "has defaults", lambda one: one.default is not UNSET, own=True)


def has_unique_items(kind: Type) -> bool:
    """Whether a list whose items may not be there twice is anywhere below a type."""
    return _somewhere(kind, "unique", lambda one: one.list_type in ("map", "set"), own=True)


def _somewhere(kind: Type, name: str, holds: Callable[[Type], bool], *, own: bool = False) -> bool:
    """Whether something holds of a type below a type; remembered, as types do not change.

    ``own``: only what the schema itself says, thus not in the metadata of objects. What it says of
    ``apiVersion`` and ``kind`` counts: an embedded object may have defaults for both.
    """
    known: bool | None = kind.memo.get(name)
    if known is None:
        skipped = META_FIELDS if own and kind.embedded else ()
        fields = [child for field, child in kind.fields.items() if field not in skipped]
        below = [child for child in (*fields, kind.values, kind.items) if child is not None]
        known = any(map(holds, (*kind.fields.values(), *below))) or any(
            _somewhere(child, name, holds, own=own) for child in below
        )
        kind.memo[name] = known
    return known


def field_path(kind: Type, path: str) -> str | None:
    """A rule's ``fieldPath`` as a path below its part, None if it leads nowhere."""
    out, at = "", 0
    here: Type = kind
    while at < len(path):
        if path[at] == ".":
            end = at + 1
            while end < len(path) and path[end] not in ".[":
                end += 1
            name, at = path[at + 1 : end], end
        elif path.startswith("['", at):
            end = path.find("']", at)
            if end < 0:
                return None
            name, at = path[at + 2 : end].replace("\\'", "'").replace("\\\\", "\\"), end + 2
        else:
            return None
        if here.fields:
            if name not in here.fields:
                return None
            here, out = here.fields[name], f"{out}.{name}" if out else name
        elif here.values is not None:
            here, out = here.values, f"{out}[{name}]"
        else:
            return None
    return out
