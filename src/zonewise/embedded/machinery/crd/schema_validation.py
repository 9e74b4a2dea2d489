"""Validation of the schemas in a CustomResourceDefinition.

Three parts, in the real server's order: what makes a schema structural (every field has a type
outside of junctors, and junctors do not define structure), whether defaults are pruned and valid,
and what any schema object may contain. Each error has the real server's reason and field path.
Rules in CEL are compiled only if the rest is valid: an invalid type makes rules about it invalid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from zonewise.api.errors import ParseError
from zonewise.api.field_cursor import Field, FieldErrors
from zonewise.embedded.machinery.crd import constraints
from zonewise.embedded.machinery.crd.custom_resource import prune, validate_embedded_resources
from zonewise.embedded.machinery.crd.structural import (
    META_FIELDS,
    Props,
    compile_below,
    has_rules,
    is_int_or_string,
    resolve_field_path,
    subschemas,
)
from zonewise.embedded.machinery.fields.comparison import equal_strictly
from zonewise.embedded.machinery.schema import patterns

TYPES = ("array", "boolean", "integer", "number", "object", "string")
REASONS = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")
ROOT_FIELDS = {"description", "type", "format", "title", "maximum", "exclusiveMaximum", "minimum"}
ROOT_FIELDS |= {"exclusiveMinimum", "maxLength", "minLength", "pattern", "maxItems", "minItems"}
ROOT_FIELDS |= {"uniqueItems", "multipleOf", "required", "items", "properties", "externalDocs"}
ROOT_FIELDS |= {"example", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations"}
_ZERO: tuple[Any, ...] = (None, False, "", 0)
DEPTH_LIMIT = 100
UNSUPPORTED_FIELDS = (
    "id",
    "additionalItems",
    "patternProperties",
    "definitions",
    "dependencies",
    "$ref",
)
FORBIDDEN_BELOW_JUNCTORS = {
    "type": "must be empty to be structural",
    "additionalProperties": "must be undefined to be structural",
    "default": "must be undefined to be structural",
    "title": "must be empty to be structural",
    "description": "must be empty to be structural",
    "nullable": "must be false to be structural",
    "x-kubernetes-preserve-unknown-fields": "must be false to be structural",
    "x-kubernetes-embedded-resource": "must be false to be structural",
    "x-kubernetes-int-or-string": "must be false to be structural",
    "x-kubernetes-list-map-keys": "must be empty to be structural",
    "x-kubernetes-list-type": "must be undefined to be structural",
    "x-kubernetes-map-type": "must be undefined to be structural",
    "x-kubernetes-validations": "must be empty to be structural",
}
EMPTY_TYPE = {
    "root": "must not be empty at the root",
    "item": "must not be empty for specified array items",
    "field": "must not be empty for specified object fields",
}


JUNCTORS = ("allOf", "anyOf", "oneOf")


def validate_versions(spec: Mapping[str, Any]) -> FieldErrors:
    """The errors in the schemas of a CustomResourceDefinition's versions.

    Those of one schema for all versions have the real server's path, ``spec.validation``.
    """
    versions = spec.get("versions") or []
    schemas = [(version.get("schema") or {}).get("openAPIV3Schema") for version in versions]
    has_status = ["status" in (version.get("subresources") or {}) for version in versions]
    if schemas and all(equal_strictly(schema, schemas[0]) for schema in schemas[1:]):
        if schemas[0] is None:
            return []
        path = "spec.validation.openAPIV3Schema"
        return validate_schema(schemas[0], path, has_status=any(has_status))
    return [
        error
        for n, schema in enumerate(schemas)
        if schema is not None
        for error in validate_schema(
            schema, f"spec.versions[{n}].schema.openAPIV3Schema", has_status=has_status[n]
        )
    ]


def validate_schema(props: Props, path: str, *, has_status: bool = False) -> FieldErrors:
    """The errors in an ``openAPIV3Schema`` at this path."""
    errors: FieldErrors = []
    structural: FieldErrors = []
    schema, structure = Field(props, errors, path), Field(props, structural, path)
    if _depth_of(props) > DEPTH_LIMIT:
        schema.invalid(f"must not nest deeper than {DEPTH_LIMIT}", "")
        return errors
    _validate_root(schema, has_status)
    _validate_structure(structure, "root")
    _validate_completeness(structure, structure)
    structural.sort(key=lambda error: (error.field, error.message))
    if not structural:
        _validate_defaults(structure, root=True)
    errors += structural
    count = len(errors)
    _validate_object(schema, _Scope(root=True))
    if not structural and _has_rules(schema):
        from zonewise.embedded.machinery.crd.rule_validation import (
            validate_rules,  # imports CEL: only if there are rules
        )

        errors += validate_rules(props, path, [error.field for error in errors[count:]])
    return errors


def _depth_of(props: Props) -> int:
    level, depth = [props], 0
    while level and depth <= DEPTH_LIMIT:
        level = [sub for node in level for _, sub, _ in subschemas(node, "")]
        depth += 1
    return depth


def _structural_parts(schema: Field) -> Iterator[Field]:
    """The schemas of the items and the properties of what a schema is about."""
    if isinstance(schema["items"].value, Mapping):
        yield schema["items"]
    for _, sub in schema["properties"].entries():
        yield sub


def _alternatives(schema: Field) -> Iterator[Field]:
    for junctor in JUNCTORS:
        yield from schema[junctor].each()
    if schema["not"].value is not None:
        yield schema["not"]


def _validate_root(schema: Field, has_status: bool) -> None:
    kind = schema["type"]
    if has_status:
        if kind.value and kind.value != "object":
            kind.invalid(
                'only "object" is allowed as the type at the root of the schema '
                "if the status subresource is enabled"
            )
        elif any(
            value not in _ZERO and name not in ROOT_FIELDS for name, value in schema.value.items()
        ):
            schema.invalid(
                "only a few fields are allowed at the root of the schema "
                "if the status subresource is enabled"
            )
    schema["nullable"].forbid_filled("nullable cannot be true at the root")


# --------------------------------------------------------------------------- what is structural


def _validate_structure(schema: Field, level: str) -> None:
    kind, additional = schema["type"], schema["additionalProperties"]
    embedded = schema["x-kubernetes-embedded-resource"]
    preserve = schema["x-kubernetes-preserve-unknown-fields"]
    int_or_string = bool(schema["x-kubernetes-int-or-string"].value)
    if kind.value == "array":
        schema["items"].present("must be specified")
    for sub in _structural_parts(schema):
        _validate_structure(sub, "item" if sub.key == "items" else "field")
    if additional.value is not None:
        if level == "root":
            additional.forbid("must not be used at the root")
        if isinstance(additional.value, Mapping):
            _validate_structure(additional, "field")
    for flag in (preserve, embedded):
        if int_or_string and flag.value:
            flag.invalid("must be false if x-kubernetes-int-or-string is true")
    first = (schema["allOf"].value or [{}])[0]
    _validate_values(
        schema,
        skip_any=is_int_or_string(schema["anyOf"].value),
        skip_first=is_int_or_string(first.get("anyOf")),
    )
    if embedded.value and kind.value != "object":
        _reject_or_require(kind, "must be object if x-kubernetes-embedded-resource is true")
    elif not int_or_string and not preserve.value:
        kind.required(EMPTY_TYPE[level])
    if embedded.value:
        additional.forbid_set("must not be used if x-kubernetes-embedded-resource is set")
    if level == "root" and kind.value and kind.value != "object":
        kind.invalid("must be object at the root")
    if level == "root" or embedded.value:
        _validate_metadata(schema["properties"], root=level == "root")
    if embedded.value and not preserve.value:
        schema["properties"].required(
            "must not be empty if x-kubernetes-embedded-resource is true "
            "without x-kubernetes-preserve-unknown-fields"
        )


def _reject_or_require(field: Field, detail: str) -> None:
    if field.required(detail):
        field.invalid(detail)


def _validate_metadata(properties: Field, *, root: bool) -> None:
    for name, expected in (("kind", "string"), ("apiVersion", "string"), ("metadata", "object")):
        kind = properties.entry(name).get("type", "")
        if name in (properties.value or ()) and kind.value != expected:
            kind.invalid(f"must be {expected}")
    metadata = properties.entry("metadata")
    if metadata.value is None or not root:
        return
    other_keys = {key for key, value in metadata.value.items() if value} - {"type", "default"}
    names = set(metadata["properties"].value or ())
    if not names <= {"name", "generateName"} or other_keys - {"properties"}:
        metadata.forbid(
            "must not specify anything other than name and generateName, "
            "but metadata is implicitly specified"
        )


def _validate_values(schema: Field, *, skip_any: bool = False, skip_first: bool = False) -> None:
    if not skip_any:
        for sub in schema["anyOf"].each():
            _validate_nested_values(sub)
    for sub in schema["allOf"].each():
        _validate_nested_values(sub, skip_any=skip_first and sub.key == 0)
    for sub in schema["oneOf"].each():
        _validate_nested_values(sub)
    if schema["not"].value is not None:
        _validate_nested_values(schema["not"])
    if pattern := schema["pattern"].value:
        try:
            patterns.compile_pattern(pattern)
        except ParseError as error:
            schema["pattern"].invalid(f"must be a valid regular expression, but isn't: {error}")


def _validate_nested_values(schema: Field, *, skip_any: bool = False) -> None:
    _validate_values(schema, skip_any=skip_any)
    for sub in _structural_parts(schema):
        _validate_nested_values(sub)
    for name, detail in FORBIDDEN_BELOW_JUNCTORS.items():
        if schema[name].value or (name == "additionalProperties" and name in schema.value):
            schema[name].forbid(detail)
    if "metadata" in (schema["properties"].value or ()):
        metadata = schema["properties"].entry("metadata")
        metadata.forbid("must not be specified in a nested context")


def _validate_completeness(values: Field, structure: Field) -> None:
    """Fields that a junctor constrains and the structure does not have."""
    for alternative in _alternatives(values):
        _validate_completeness(alternative, structure)
        for sub in _structural_parts(alternative):
            part = structure["items"]
            if isinstance(sub.key, tuple):
                part = structure["properties"].entry(sub.key[0])
            if part.present(f"because it is defined in {sub.path}"):
                nested = Field({"allOf": [sub.value]}, [], sub.path.removesuffix(".allOf[0]"))
                _validate_completeness(nested, part)


# ------------------------------------------------------------------------------------- defaults


def _validate_defaults(schema: Field, *, root: bool = False) -> None:
    if schema["default"].value is not None:
        _validate_default(schema, root)
    for sub in _structural_parts(schema):
        _validate_defaults(sub)


def _validate_default(props: Field, root: bool) -> None:
    schema, default = compile_below(props.value), props["default"]
    schema.embedded_resource = schema.embedded_resource or root
    value, path = default.value, default.path
    if not equal_strictly(prune(schema, value).value, value):
        default.invalid("must not have unknown fields")
    errors = validate_embedded_resources(schema, value, path) or constraints.validate_value(
        schema, value, prefix=path
    )
    if not errors and has_rules(schema):
        from zonewise.embedded.machinery.crd.rules import (
            validate_rules,  # imports CEL: only if there are rules
        )

        errors = validate_rules(schema, value, value, path=path)
        errors = errors or validate_rules(schema, value, path=path)
    default.errors.extend(errors)


# ------------------------------------------------------------------------- every schema object


@dataclass(frozen=True)
class _Scope:
    """What a schema may contain at its position."""

    root: bool = False
    meta: bool = False
    no_defaults: str = ""


def _validate_object(schema: Field, scope: _Scope) -> None:
    _validate_supported(schema, scope)
    schema["uniqueItems"].forbid_filled(
        "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
    )
    additional, properties = schema["additionalProperties"], schema["properties"]
    if properties.value and additional.value is not True:
        additional.forbid_set("additionalProperties and properties are mutual exclusive")
    inner = replace(scope, root=False)
    if isinstance(additional.value, Mapping):
        reason = "inside additionalProperties applying to object metadata" if scope.meta else ""
        inner_scope = replace(inner, no_defaults=reason or inner.no_defaults)
        _validate_object(additional, inner_scope)
    is_resource = scope.root or schema["x-kubernetes-embedded-resource"].value
    for name, sub in properties.entries():
        inner_scope = inner
        if name in META_FIELDS and is_resource:
            reason = f"in top-level {name}" if scope.root else inner.no_defaults
            inner_scope = replace(inner, meta=True, no_defaults=reason)
        _validate_object(sub, inner_scope)
    if isinstance(schema["items"].value, Mapping):
        _validate_object(schema["items"], inner)
    for alternative in _alternatives(schema):
        _validate_object(alternative, inner)
    _validate_extensions(schema)
    _validate_list_keys(schema)
    for rule in schema["x-kubernetes-validations"].each():
        _validate_rule(rule, schema.value)


def _validate_supported(schema: Field, scope: _Scope) -> None:
    kind = schema["type"]
    kind.optional().enum(TYPES)
    if scope.no_defaults:
        schema["default"].forbid_set(f"must not be set {scope.no_defaults}")
    for name in UNSUPPORTED_FIELDS:
        schema[name].forbid_filled(f"{name} is not supported")
    if kind.value == "null":
        kind.forbid("type cannot be set to null, use nullable as an alternative")
    if isinstance(schema["items"].value, list):
        schema["items"].forbid("items must be a schema object and not an array")
    if scope.meta:
        embedded = schema["x-kubernetes-embedded-resource"]
        embedded.forbid_filled("must not be used inside of resource meta")


def _validate_extensions(schema: Field) -> None:
    preserve = schema["x-kubernetes-preserve-unknown-fields"]
    if preserve.value is False:
        preserve.invalid("must be true or undefined")
    for name, expected, allowed in (
        ("x-kubernetes-map-type", "object", ("atomic", "granular")),
        ("x-kubernetes-list-type", "array", ("atomic", "set", "map")),
    ):
        if schema[name].value is not None and schema["type"].value != expected:
            _reject_or_require(schema["type"], f"must be {expected} if {name} is specified")
        schema[name].enum(allowed)
    items = schema["items"]
    if schema["x-kubernetes-list-type"].value == "set" and isinstance(items.value, Mapping):
        detail = "must be atomic as item of a list with x-kubernetes-list-type=set"
        match items["type"].value:
            case "array":
                list_type = items["x-kubernetes-list-type"]
                if list_type.value != "atomic" and list_type.key in items.value:
                    list_type.invalid(detail)
            case "object" if items["x-kubernetes-map-type"].value != "atomic":
                items["x-kubernetes-map-type"].invalid(detail)


def _validate_list_keys(schema: Field) -> None:
    keys, list_type = schema["x-kubernetes-list-map-keys"], schema["x-kubernetes-list-type"]
    items = schema["items"]
    if keys.value and list_type.value != "map":
        _reject_or_require(list_type, "must be map if x-kubernetes-list-map-keys is non-empty")
    if list_type.value not in ("map", "set"):
        return
    if isinstance(items.value, Mapping):
        detail = f"cannot be nullable when x-kubernetes-list-type is {list_type.value}"
        items["nullable"].forbid_filled(detail)
    if list_type.value == "set":
        return
    keys.required("must not be empty if x-kubernetes-list-type is map")
    items.present("must have a schema if x-kubernetes-list-type is map")
    if not isinstance(items.value, Mapping):
        return
    kind = items.get("type", "")
    if kind.value != "object":
        kind.invalid("must be object if parent array's x-kubernetes-list-type is map")
        return
    for n, key in enumerate(keys.value or ()):
        sub = items["properties"].entry(key)
        if sub.value is None:
            keys.invalid("entries must all be names of item properties")
        elif sub["type"].value in ("array", "object"):
            detail = "must be a scalar type if parent array's x-kubernetes-list-type is map"
            sub["type"].invalid(detail, kind.value)
        if key in keys.value[:n]:
            keys.invalid("must not contain duplicate entries")
        if sub.value is None:
            continue
        detail = "this property is in x-kubernetes-list-map-keys, so it "
        if key not in (items["required"].value or ()):
            sub["default"].present(detail + "must have a default or be a required property")
        sub["nullable"].forbid_filled(detail + "cannot be nullable")


def _validate_rule(rule: Field, props: Props) -> None:
    text, message = rule["rule"].value or "", rule["message"]
    sentence, field_path = message.value or "", rule["fieldPath"]
    if not text.strip():
        rule["rule"].missing("rule is not specified")
    elif sentence and not sentence.strip():
        message.invalid("must be non-empty if specified")
    elif "\n" in sentence.strip():
        message.invalid("must not contain line breaks")
    elif "\n" in text.strip() and not sentence:
        message.missing("message must be specified if rule contains line breaks")
    expression = rule["messageExpression"]
    if expression.value and not expression.value.strip():
        expression.missing("messageExpression must be non-empty if specified")
    rule["reason"].enum(REASONS)
    if not field_path.value:
        return
    if not field_path.value.strip():
        field_path.invalid("must be non-empty if specified")
    if "\n" in field_path.value:
        field_path.invalid("must not contain line breaks")
    if resolve_field_path(compile_below(props), field_path.value) is None:
        field_path.invalid("must be a valid path")


def _has_rules(schema: Field) -> bool:
    if schema["x-kubernetes-validations"].value:
        return True
    return any(_has_rules(sub) for sub in _structural_parts(schema)) or (
        isinstance(schema["additionalProperties"].value, Mapping)
        and _has_rules(schema["additionalProperties"])
    )
