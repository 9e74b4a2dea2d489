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

from zonewise.api.errors import ParseError, StatusCause
from zonewise.api.field_errors import forbidden, invalid, required, unsupported
from zonewise.embedded.machinery.crd import constraints
from zonewise.embedded.machinery.crd.custom_resource import prune, validate_embedded_resources
from zonewise.embedded.machinery.crd.structural import (
    META_FIELDS,
    Props,
    compile_schema,
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


def validate_versions(spec: Mapping[str, Any]) -> list[StatusCause]:
    """The errors in the schemas of a CustomResourceDefinition's versions.

    Those of one schema for all versions have the real server's path, ``spec.validation``.
    """
    versions = spec.get("versions") or []
    schemas = [(version.get("schema") or {}).get("openAPIV3Schema") for version in versions]
    has_status = ["status" in (version.get("subresources") or {}) for version in versions]
    if schemas and all(equal_strictly(schema, schemas[0]) for schema in schemas[1:]):
        path = "spec.validation.openAPIV3Schema"
        if schemas[0] is None:
            return []
        return validate_schema(schemas[0], path, has_status=any(has_status))
    return [
        error
        for n, schema in enumerate(schemas)
        if schema is not None
        for error in validate_schema(
            schema, f"spec.versions[{n}].schema.openAPIV3Schema", has_status=has_status[n]
        )
    ]


def validate_schema(props: Props, path: str, *, has_status: bool = False) -> list[StatusCause]:
    """The errors in an ``openAPIV3Schema`` at this path."""
    if _depth_of(props) > DEPTH_LIMIT:
        return [invalid(path, "", f"must not nest deeper than {DEPTH_LIMIT}")]
    errors = list(_validate_root(props, path, has_status))
    structural = [
        *_validate_structure(props, path, "root"),
        *_validate_completeness(props, props, path, path),
    ]
    structural.sort(key=lambda error: (error.field, error.message))
    if not structural:
        structural = list(_validate_defaults(props, path, root=True))
    errors += structural
    object_errors = list(_validate_object(props, path, _Scope(root=True)))
    errors += object_errors
    if not structural and _props_have_rules(props):
        errors += _validate_rules(props, path, [error.field for error in object_errors])
    return errors


def _depth_of(props: Props) -> int:
    level, depth = [props], 0
    while level and depth <= DEPTH_LIMIT:
        level = [sub for node in level for _, sub, _ in subschemas(node, "")]
        depth += 1
    return depth


def _validate_root(props: Props, path: str, has_status: bool) -> Iterator[StatusCause]:
    if has_status:
        type_name = props.get("type") or ""
        if type_name and type_name != "object":
            message = (
                'only "object" is allowed as the type at the root of the schema '
                "if the status subresource is enabled"
            )
            yield invalid(f"{path}.type", type_name, message)
        elif any(props[name] not in _ZERO and name not in ROOT_FIELDS for name in props):
            message = (
                "only a few fields are allowed at the root of the schema "
                "if the status subresource is enabled"
            )
            yield invalid(path, props, message)
    if props.get("nullable"):
        yield forbidden(f"{path}.nullable", "nullable cannot be true at the root")


# --------------------------------------------------------------------------- what is structural


def _validate_structure(props: Props, path: str, level: str) -> Iterator[StatusCause]:
    type_name = props.get("type") or ""
    embedded = bool(props.get("x-kubernetes-embedded-resource"))
    preserve = bool(props.get("x-kubernetes-preserve-unknown-fields"))
    int_or_string = bool(props.get("x-kubernetes-int-or-string"))
    properties = props.get("properties") or {}
    additional = props.get("additionalProperties")
    if type_name == "array" and props.get("items") is None:
        yield required(f"{path}.items", "must be specified")
    if isinstance(props.get("items"), Mapping):
        yield from _validate_structure(props["items"], f"{path}.items", "item")
    for name, sub in properties.items():
        yield from _validate_structure(sub, f"{path}.properties[{name}]", "field")
    if additional is not None:
        if level == "root":
            yield forbidden(f"{path}.additionalProperties", "must not be used at the root")
        if isinstance(additional, Mapping):
            yield from _validate_structure(additional, f"{path}.additionalProperties", "field")
    message = "must be false if x-kubernetes-int-or-string is true"
    if int_or_string and preserve:
        yield invalid(f"{path}.x-kubernetes-preserve-unknown-fields", True, message)
    if int_or_string and embedded:
        yield invalid(f"{path}.x-kubernetes-embedded-resource", True, message)
    first = (props.get("allOf") or [{}])[0]
    yield from _validate_values(
        props,
        path,
        skip_any=is_int_or_string(props.get("anyOf")),
        skip_first=is_int_or_string(first.get("anyOf")),
    )
    if embedded and type_name != "object":
        message = "must be object if x-kubernetes-embedded-resource is true"
        yield _invalid_or_required(f"{path}.type", type_name, message)
    elif not type_name and not int_or_string and not preserve:
        yield required(f"{path}.type", EMPTY_TYPE[level])
    if embedded and additional is not None:
        message = "must not be used if x-kubernetes-embedded-resource is set"
        yield forbidden(f"{path}.additionalProperties", message)
    if level == "root" and type_name and type_name != "object":
        yield invalid(f"{path}.type", type_name, "must be object at the root")
    yield from _validate_metadata(properties, path, level == "root", embedded)
    if embedded and not preserve and not properties:
        message = (
            "must not be empty if x-kubernetes-embedded-resource is true "
            "without x-kubernetes-preserve-unknown-fields"
        )
        yield required(f"{path}.properties", message)


def _invalid_or_required(path: str, value: Any, message: str) -> StatusCause:
    if value:
        return invalid(path, value, message)
    return required(path, message)


def _validate_metadata(
    properties: Props, path: str, root: bool, embedded: bool
) -> Iterator[StatusCause]:
    if not root and not embedded:
        return
    for name in ("kind", "apiVersion"):
        type_name = (properties.get(name) or {}).get("type") or ""
        if name in properties and type_name != "string":
            yield invalid(f"{path}.properties[{name}].type", type_name, "must be string")
    metadata = properties.get("metadata")
    if metadata is None:
        return
    type_name = metadata.get("type") or ""
    if type_name != "object":
        yield invalid(f"{path}.properties[metadata].type", type_name, "must be object")
    names = set(metadata.get("properties") or {})
    others = metadata.keys() - {"type", "default"}
    other_keys = {key for key in others if metadata[key]}
    if root and (not names <= {"name", "generateName"} or other_keys - {"properties"}):
        message = (
            "must not specify anything other than name and generateName, "
            "but metadata is implicitly specified"
        )
        yield forbidden(f"{path}.properties[metadata]", message)


def _validate_values(
    props: Props, path: str, *, skip_any: bool = False, skip_first: bool = False
) -> Iterator[StatusCause]:
    if not skip_any:
        for n, sub in enumerate(props.get("anyOf") or ()):
            yield from _validate_nested_values(sub, f"{path}.anyOf[{n}]")
    for n, sub in enumerate(props.get("allOf") or ()):
        skip = skip_first and n == 0
        yield from _validate_nested_values(sub, f"{path}.allOf[{n}]", skip_any=skip)
    for n, sub in enumerate(props.get("oneOf") or ()):
        yield from _validate_nested_values(sub, f"{path}.oneOf[{n}]")
    if props.get("not") is not None:
        yield from _validate_nested_values(props["not"], f"{path}.not")
    if pattern := props.get("pattern"):
        try:
            patterns.compile_pattern(pattern)
        except ParseError as error:
            message = f"must be a valid regular expression, but isn't: {error}"
            yield invalid(f"{path}.pattern", pattern, message)


def _validate_nested_values(
    props: Props, path: str, *, skip_any: bool = False
) -> Iterator[StatusCause]:
    yield from _validate_values(props, path, skip_any=skip_any)
    if isinstance(props.get("items"), Mapping):
        yield from _validate_nested_values(props["items"], f"{path}.items")
    for name, sub in (props.get("properties") or {}).items():
        yield from _validate_nested_values(sub, f"{path}.properties[{name}]")
    for name, message in FORBIDDEN_BELOW_JUNCTORS.items():
        if props.get(name) or (name in ("additionalProperties",) and name in props):
            yield forbidden(f"{path}.{name}", message)
    if "metadata" in (props.get("properties") or {}):
        message = "must not be specified in a nested context"
        yield forbidden(f"{path}.properties[metadata]", message)


def _validate_completeness(
    values: Props, props: Props, path: str, junctor_path: str
) -> Iterator[StatusCause]:
    """Fields that a junctor constrains and the structure does not have."""
    alternatives = [("not", values["not"])] if values.get("not") is not None else []
    for junctor in ("allOf", "anyOf", "oneOf"):
        numbered = enumerate(values.get(junctor) or ())
        alternatives += [(f"{junctor}[{n}]", sub) for n, sub in numbered]
    for name, sub in alternatives:
        inner_path = f"{junctor_path}.{name}"
        yield from _validate_completeness(sub, props, path, inner_path)
        items = sub.get("items")
        if isinstance(items, Mapping):
            yield from _require_in_structure(
                items, props.get("items"), f"{path}.items", f"{inner_path}.items"
            )
        for key, value in (sub.get("properties") or {}).items():
            property_props = (props.get("properties") or {}).get(key)
            property_path = f"properties[{key}]"
            yield from _require_in_structure(
                value, property_props, f"{path}.{property_path}", f"{inner_path}.{property_path}"
            )


def _require_in_structure(
    values: Props, props: Props | None, path: str, junctor_path: str
) -> Iterator[StatusCause]:
    if props is None:
        yield required(path, f"because it is defined in {junctor_path}")
    else:
        yield from _validate_completeness(
            {"allOf": [values]}, props, path, junctor_path.removesuffix(".allOf[0]")
        )


# ------------------------------------------------------------------------------------- defaults


def _validate_defaults(props: Props, path: str, *, root: bool = False) -> Iterator[StatusCause]:
    default = props.get("default")
    if default is not None:
        yield from _validate_default(props, default, f"{path}.default", root)
    if isinstance(props.get("items"), Mapping):
        yield from _validate_defaults(props["items"], f"{path}.items")
    for name, sub in (props.get("properties") or {}).items():
        yield from _validate_defaults(sub, f"{path}.properties[{name}]")


def _validate_default(props: Props, default: Any, path: str, root: bool) -> Iterator[StatusCause]:
    schema = compile_schema({"type": "object", "properties": {"default": props}}).fields["default"]
    schema.embedded_resource = schema.embedded_resource or root
    if not equal_strictly(prune(schema, default).value, default):
        yield invalid(path, default, "must not have unknown fields")
    errors = validate_embedded_resources(schema, default, path) or constraints.validate_value(
        schema, default, prefix=path
    )
    if not errors and has_rules(schema):
        from zonewise.embedded.machinery.crd.rules import (
            validate_rules,  # imports CEL: only if there are rules
        )

        errors = validate_rules(schema, default, default, path=path)
        errors = errors or validate_rules(schema, default, path=path)
    yield from errors


# ------------------------------------------------------------------------- every schema object


@dataclass(frozen=True)
class _Scope:
    """What a schema may contain at its position."""

    root: bool = False
    meta: bool = False
    no_defaults: str = ""


def _validate_object(props: Props, path: str, scope: _Scope) -> Iterator[StatusCause]:
    yield from _validate_supported(props, path, scope)
    if props.get("uniqueItems"):
        message = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        yield forbidden(f"{path}.uniqueItems", message)
    additional, properties = props.get("additionalProperties"), props.get("properties") or {}
    if additional is not None and properties and additional is not True:
        message = "additionalProperties and properties are mutual exclusive"
        yield forbidden(f"{path}.additionalProperties", message)
    inner = replace(scope, root=False)
    if isinstance(additional, Mapping):
        reason = "inside additionalProperties applying to object metadata" if scope.meta else ""
        inner_scope = replace(inner, no_defaults=reason or inner.no_defaults)
        yield from _validate_object(additional, f"{path}.additionalProperties", inner_scope)
    for name, sub in properties.items():
        inner_scope = inner
        if name in META_FIELDS and (scope.root or props.get("x-kubernetes-embedded-resource")):
            reason = f"in top-level {name}" if scope.root else inner.no_defaults
            inner_scope = replace(inner, meta=True, no_defaults=reason)
        yield from _validate_object(sub, f"{path}.properties[{name}]", inner_scope)
    for inner_path, sub, structure in subschemas(props, path):
        if not structure or inner_path == f"{path}.items":
            yield from _validate_object(sub, inner_path, inner)
    yield from _validate_extensions(props, path)
    yield from _validate_list_keys(props, path)
    for n, rule in enumerate(props.get("x-kubernetes-validations") or ()):
        yield from _validate_rule(rule, props, f"{path}.x-kubernetes-validations[{n}]")


def _validate_supported(props: Props, path: str, scope: _Scope) -> Iterator[StatusCause]:
    type_name = props.get("type") or ""
    if type_name and type_name not in TYPES:
        yield unsupported(f"{path}.type", type_name, TYPES)
    if props.get("default") is not None and scope.no_defaults:
        yield forbidden(f"{path}.default", f"must not be set {scope.no_defaults}")
    for name in UNSUPPORTED_FIELDS:
        if props.get(name):
            yield forbidden(f"{path}.{name}", f"{name} is not supported")
    if type_name == "null":
        message = "type cannot be set to null, use nullable as an alternative"
        yield forbidden(f"{path}.type", message)
    if isinstance(props.get("items"), list):
        message = "items must be a schema object and not an array"
        yield forbidden(f"{path}.items", message)
    if scope.meta and props.get("x-kubernetes-embedded-resource"):
        message = "must not be used inside of resource meta"
        yield forbidden(f"{path}.x-kubernetes-embedded-resource", message)


def _validate_extensions(props: Props, path: str) -> Iterator[StatusCause]:
    type_name = props.get("type") or ""
    if props.get("x-kubernetes-preserve-unknown-fields") is False:
        error_path = f"{path}.x-kubernetes-preserve-unknown-fields"
        yield invalid(error_path, False, "must be true or undefined")
    for name, required_type, allowed in (
        ("x-kubernetes-map-type", "object", ("atomic", "granular")),
        ("x-kubernetes-list-type", "array", ("atomic", "set", "map")),
    ):
        value = props.get(name)
        if value is None:
            continue
        if type_name != required_type:
            message = f"must be {required_type} if {name} is specified"
            yield _invalid_or_required(f"{path}.type", type_name, message)
        if value not in allowed:
            yield unsupported(f"{path}.{name}", value, allowed)
    items = props.get("items")
    if props.get("x-kubernetes-list-type") == "set" and isinstance(items, Mapping):
        message = "must be atomic as item of a list with x-kubernetes-list-type=set"
        types = {"array": "x-kubernetes-list-type", "object": "x-kubernetes-map-type"}
        for item_type, name in types.items():
            wrong = items.get(name) not in ("atomic",) and (item_type == "object" or name in items)
            if items.get("type") == item_type and wrong:
                yield invalid(f"{path}.items.{name}", items.get(name), message)


def _validate_list_keys(props: Props, path: str) -> Iterator[StatusCause]:
    keys = props.get("x-kubernetes-list-map-keys") or []
    list_type = props.get("x-kubernetes-list-type")
    if keys and list_type != "map":
        message = "must be map if x-kubernetes-list-map-keys is non-empty"
        error_path = f"{path}.x-kubernetes-list-type"
        yield (
            invalid(error_path, list_type, message) if list_type else required(error_path, message)
        )
    items = props.get("items")
    if list_type not in ("map", "set"):
        return
    if isinstance(items, Mapping) and items.get("nullable"):
        message = f"cannot be nullable when x-kubernetes-list-type is {list_type}"
        yield forbidden(f"{path}.items.nullable", message)
    if list_type == "set":
        return
    error_path = f"{path}.x-kubernetes-list-map-keys"
    if not keys:
        yield required(error_path, "must not be empty if x-kubernetes-list-type is map")
    if items is None:
        message = "must have a schema if x-kubernetes-list-type is map"
        yield required(f"{path}.items", message)
    if not isinstance(items, Mapping):
        return
    if items.get("type") != "object":
        message = "must be object if parent array's x-kubernetes-list-type is map"
        yield invalid(f"{path}.items.type", items.get("type") or "", message)
        return
    properties, required_keys = items.get("properties") or {}, items.get("required") or []
    for n, key in enumerate(keys):
        sub, key_path = properties.get(key), f"{path}.items.properties[{key}]"
        if sub is None:
            yield invalid(error_path, keys, "entries must all be names of item properties")
        elif sub.get("type") in ("array", "object"):
            message = "must be a scalar type if parent array's x-kubernetes-list-type is map"
            yield invalid(f"{key_path}.type", items["type"], message)
        if key in keys[:n]:
            yield invalid(error_path, keys, "must not contain duplicate entries")
        if sub is None:
            continue
        message = "this property is in x-kubernetes-list-map-keys, so it "
        if key not in required_keys and sub.get("default") is None:
            detail = "must have a default or be a required property"
            yield required(f"{key_path}.default", message + detail)
        if sub.get("nullable"):
            yield forbidden(f"{key_path}.nullable", message + "cannot be nullable")


def _validate_rule(rule: Mapping[str, Any], props: Props, at: str) -> Iterator[StatusCause]:
    text, message = rule.get("rule") or "", rule.get("message") or ""
    expression = rule.get("messageExpression") or ""
    if not text.strip():
        yield required(f"{at}.rule", "rule is not specified")
    elif message and not message.strip():
        yield invalid(f"{at}.message", message, "must be non-empty if specified")
    elif "\n" in message.strip():
        yield invalid(f"{at}.message", message, "must not contain line breaks")
    elif "\n" in text.strip() and not message.strip():
        detail = "message must be specified if rule contains line breaks"
        yield required(f"{at}.message", detail)
    if expression and not expression.strip():
        detail = "messageExpression must be non-empty if specified"
        yield required(f"{at}.messageExpression", detail)
    reason = rule.get("reason")
    if reason is not None and reason not in REASONS:
        yield unsupported(f"{at}.reason", reason, REASONS)
    field_path = rule.get("fieldPath") or ""
    if not field_path:
        return
    if not field_path.strip():
        yield invalid(f"{at}.fieldPath", field_path, "must be non-empty if specified")
    if "\n" in field_path:
        yield invalid(f"{at}.fieldPath", field_path, "must not contain line breaks")
    if (
        resolve_field_path(
            compile_schema({"type": "object", "properties": {"x": props}}).fields["x"], field_path
        )
        is None
    ):
        yield invalid(f"{at}.fieldPath", field_path, "must be a valid path")


def _validate_rules(props: Props, path: str, invalid_paths: list[str]) -> list[StatusCause]:
    from zonewise.embedded.machinery.crd.rule_validation import (
        validate_rules,  # imports CEL, see above
    )

    return validate_rules(props, path, invalid_paths)


def _props_have_rules(props: Props) -> bool:
    return bool(props.get("x-kubernetes-validations")) or any(
        _props_have_rules(sub) for _, sub, structure in subschemas(props, "") if structure
    )
