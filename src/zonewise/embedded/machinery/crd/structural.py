"""Structural schemas: the OpenAPI of a CustomResourceDefinition compiled to a ``Schema``.

Pruning, defaulting, apply, validation and CEL walk a ``Schema``, so a custom resource is
treated by the same code as a built-in kind. What is below a junctor (``allOf``, ``anyOf``,
``oneOf``, ``not``) constrains values only and becomes a schema of shape ``any`` with bounds.
``embedded.machinery.crd.schema_validation`` decides whether a schema is valid; compiling never
fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from zonewise.embedded.machinery.fields.comparison import equal_strictly
from zonewise.embedded.machinery.schema.schema import (
    UNSET,
    Bounds,
    ListType,
    Schema,
    Shape,
    ValidationRule,
)

Props = Mapping[str, Any]

TEXT = Schema(shape="string")
UNKNOWN = Schema(shape="any", nullable=True)  # any value without known fields
ANY_METADATA = Schema(shape="object", preserve_unknown_fields=True)
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


def compile_schema(props: Props | None, *, metadata: Schema = ANY_METADATA) -> Schema:
    """The schema of a custom resource whose ``metadata`` has this schema.

    Without ``props`` all fields are preserved.
    """
    preserve_all: Props = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    root = _compile_node(preserve_all if props is None else props, metadata)
    root.embedded_resource = True
    root.fields.setdefault("apiVersion", TEXT)
    root.fields.setdefault("kind", TEXT)
    root.fields["metadata"] = _compile_metadata(props or {}, metadata)
    if metadata is not ANY_METADATA:
        root.memo["metadata"] = metadata  # validated when an object is decoded
    return root


def compile_below(props: Props) -> Schema:
    """The schema of a part of a custom resource."""
    return compile_schema({"type": "object", "properties": {"x": props}}).fields["x"]


def _compile_metadata(props: Props, metadata: Schema) -> Schema:
    """The schema of metadata with the constraints on name and generateName."""
    metadata_props = (props.get("properties") or {}).get("metadata") or {}
    constrained = {
        name: _compile_node(sub, metadata)
        for name, sub in (metadata_props.get("properties") or {}).items()
        if name in ("name", "generateName")
    }
    return metadata.used_as(fields={**metadata.fields, **constrained}) if constrained else metadata


def _compile_node(props: Props, metadata: Schema) -> Schema:
    compiled = _compile_value_validation(props, metadata)
    compiled.shape = shape_of(props)
    compiled.nullable = bool(props.get("nullable"))
    compiled.preserve_unknown_fields = bool(props.get("x-kubernetes-preserve-unknown-fields"))
    compiled.embedded_resource = bool(props.get("x-kubernetes-embedded-resource"))
    compiled.atomic = props.get("x-kubernetes-map-type") == "atomic"
    compiled.default = props.get("default", UNSET)
    if compiled.default is None:
        compiled.default = UNSET
    if compiled.shape == "list":
        compiled.list_type = _list_type_of(props)
        compiled.keys = tuple(props.get("x-kubernetes-list-map-keys") or ())
        compiled.items = _compile_node(props.get("items") or {}, metadata)
    compiled.fields = {
        name: _compile_node(sub, metadata) for name, sub in (props.get("properties") or {}).items()
    }
    additional = props.get("additionalProperties")
    if compiled.shape == "map":
        compiled.values = (
            _compile_node(additional, metadata) if isinstance(additional, Mapping) else UNKNOWN
        )
    if compiled.embedded_resource:
        compiled.fields.setdefault("apiVersion", TEXT)
        compiled.fields.setdefault("kind", TEXT)
        compiled.fields["metadata"] = metadata
    compiled.rules = tuple(
        ValidationRule(
            rule=rule.get("rule") or "",
            message=rule.get("message") or "",
            message_expression=rule.get("messageExpression") or "",
            reason=rule.get("reason") or "FieldValueInvalid",
            field_path=rule.get("fieldPath") or "",
            optional_old_self=rule.get("optionalOldSelf"),
        )
        for rule in props.get("x-kubernetes-validations") or ()
    )
    return compiled


def shape_of(props: Props) -> Shape:
    """The shape of the values of a schema."""
    if props.get("x-kubernetes-int-or-string"):
        return "int-or-string"
    type_name = props.get("type") or ""
    if type_name == "object":
        additional = props.get("additionalProperties")
        return "map" if additional and not props.get("properties") else "object"
    return _SHAPES.get(type_name, "any")


def _list_type_of(props: Props) -> ListType:
    list_type = props.get("x-kubernetes-list-type")
    return list_type if list_type in ("set", "map") else "atomic"


def _compile_value_validation(props: Props, metadata: Schema) -> Schema:
    """A schema's constraints on values, in the main tree or below a junctor."""
    bounds = {
        _BOUNDS[name]: value
        for name, value in props.items()
        if name in _BOUNDS and value is not None
    }
    return Schema(
        shape="any",
        format=props.get("format") or "",
        required=tuple(props.get("required") or ()),
        enum=tuple(props.get("enum") or ()),
        bounds=Bounds(**bounds) if bounds else None,
        all_of=tuple(_compile_nested(sub, metadata) for sub in props.get("allOf") or ()),
        any_of=tuple(_compile_nested(sub, metadata) for sub in props.get("anyOf") or ()),
        one_of=tuple(_compile_nested(sub, metadata) for sub in props.get("oneOf") or ()),
        negated=_compile_nested(props["not"], metadata) if props.get("not") is not None else None,
    )


def _compile_nested(props: Props, metadata: Schema) -> Schema:
    compiled = _compile_value_validation(props, metadata)
    compiled.nullable = True
    if props.get("type") in _SHAPES and props.get("type") != "array":
        compiled.shape = _SHAPES[props["type"]]
    compiled.fields = {
        name: _compile_nested(sub, metadata)
        for name, sub in (props.get("properties") or {}).items()
    }
    if isinstance(props.get("items"), Mapping):
        compiled.items = _compile_nested(props["items"], metadata)
    return compiled


def is_int_or_string(junctor: Any) -> bool:
    """Whether an ``anyOf`` is the one that int-or-string allows."""
    return isinstance(junctor, list) and equal_strictly(junctor, INT_OR_STRING)


def subschemas(props: Props, path: str) -> Iterator[tuple[str, Props, bool]]:
    """The schemas right below one, with their paths and whether they describe structure."""
    items = props.get("items")
    if isinstance(items, Mapping):
        yield f"{path}.items", items, True
    for name, sub in (props.get("properties") or {}).items():
        yield f"{path}.properties[{name}]", sub, True
    additional = props.get("additionalProperties")
    if isinstance(additional, Mapping):
        yield f"{path}.additionalProperties", additional, True
    for junctor in ("allOf", "anyOf", "oneOf"):
        for n, sub in enumerate(props.get(junctor) or ()):
            yield f"{path}.{junctor}[{n}]", sub, False
    if isinstance(props.get("not"), Mapping):
        yield f"{path}.not", props["not"], False


def has_rules(schema: Schema) -> bool:
    """Whether a rule is anywhere in a schema."""
    return bool(schema.rules) or _holds_below(schema, "has rules", lambda below: bool(below.rules))


def has_embedded(schema: Schema) -> bool:
    """Whether an embedded resource is anywhere below a schema."""
    return _holds_below(schema, "has embedded", lambda below: below.embedded_resource)


def has_defaults(schema: Schema) -> bool:
    """Whether a default is anywhere below a schema."""
    return _holds_below(
        schema, "has defaults", lambda below: below.default is not UNSET, own_schema_only=True
    )


def has_unique_items(schema: Schema) -> bool:
    """Whether a keyed list or a set is anywhere below a schema."""
    return _holds_below(
        schema, "unique", lambda below: below.list_type in ("map", "set"), own_schema_only=True
    )


def _holds_below(
    schema: Schema, name: str, holds: Callable[[Schema], bool], *, own_schema_only: bool = False
) -> bool:
    """Whether a predicate holds anywhere below a schema; cached, as schemas do not change.

    ``own_schema_only`` excludes the metadata of objects. What the schema says of ``apiVersion`` and
    ``kind`` counts: an embedded resource may have defaults for both.
    """
    cached: bool | None = schema.memo.get(name)
    if cached is None:
        skipped = META_FIELDS if own_schema_only and schema.embedded_resource else ()
        fields = [child for field, child in schema.fields.items() if field not in skipped]
        below = [child for child in (*fields, schema.values, schema.items) if child is not None]
        cached = any(map(holds, (*schema.fields.values(), *below))) or any(
            _holds_below(child, name, holds, own_schema_only=own_schema_only) for child in below
        )
        schema.memo[name] = cached
    return cached


def resolve_field_path(schema: Schema, path: str) -> str | None:
    """A rule's ``fieldPath`` as a path below its part, None if there is no such field."""
    resolved, index = "", 0
    current: Schema = schema
    while index < len(path):
        if path[index] == ".":
            end = index + 1
            while end < len(path) and path[end] not in ".[":
                end += 1
            name, index = path[index + 1 : end], end
        elif path.startswith("['", index):
            end = path.find("']", index)
            if end < 0:
                return None
            name, index = path[index + 2 : end].replace("\\'", "'").replace("\\\\", "\\"), end + 2
        else:
            return None
        if current.fields:
            if name not in current.fields:
                return None
            current, resolved = current.fields[name], f"{resolved}.{name}" if resolved else name
        elif current.values is not None:
            current, resolved = current.values, f"{resolved}[{name}]"
        else:
            return None
    return resolved
