"""Why a real server would refuse a schema of a CustomResourceDefinition.

Three parts, in its order: what makes a schema structural (every field has a type outside of
junctors, and junctors say nothing about structure), whether defaults are pruned and valid, and what
any schema object may say at all. Each fault has the real reason and field path. Rules in CEL are
compiled only when the rest is sound: a bad type would make every rule about it wrong too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from zonewise.api import field_errors
from zonewise.api.errors import ParseError, StatusCause
from zonewise.embedded.machinery.crd import constraints
from zonewise.embedded.machinery.crd.custom import embedded_faults, pruned
from zonewise.embedded.machinery.crd.structural import (
    META_FIELDS,
    Schema,
    field_path,
    has_rules,
    is_int_or_string,
    subschemas,
    type_of,
)
from zonewise.embedded.machinery.fields.comparison import same
from zonewise.embedded.machinery.schema import patterns

TYPES = ("array", "boolean", "integer", "number", "object", "string")
REASONS = (
    "FieldValueDuplicate",
    "FieldValueForbidden",
    "FieldValueInvalid",
    "FieldValueRequired",
)
ROOT_FIELDS = {"description", "type", "format", "title", "maximum", "exclusiveMaximum", "minimum"}
ROOT_FIELDS |= {"exclusiveMinimum", "maxLength", "minLength", "pattern", "maxItems", "minItems"}
ROOT_FIELDS |= {"uniqueItems", "multipleOf", "required", "items", "properties", "externalDocs"}
ROOT_FIELDS |= {"example", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations"}
_ZERO: tuple[Any, ...] = (None, False, "", 0)
DEPTH_LIMIT = 100
UNSUPPORTED = ("id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref")
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


def version_faults(spec: Mapping[str, Any]) -> list[StatusCause]:
    """What is wrong with the schemas of a CustomResourceDefinition's versions.

    One schema for all versions is reported where the real server keeps it, at ``spec.validation``.
    """
    versions = spec.get("versions") or []
    schemas = [(version.get("schema") or {}).get("openAPIV3Schema") for version in versions]
    has_status = ["status" in (version.get("subresources") or {}) for version in versions]
    if schemas and all(same(schema, schemas[0]) for schema in schemas[1:]):
        at = "spec.validation.openAPIV3Schema"
        return (
            [] if schemas[0] is None else schema_faults(schemas[0], at, has_status=any(has_status))
        )
    return [
        fault
        for n, schema in enumerate(schemas)
        if schema is not None
        for fault in schema_faults(
            schema, f"spec.versions[{n}].schema.openAPIV3Schema", has_status=has_status[n]
        )
    ]


def schema_faults(schema: Schema, at: str, *, has_status: bool = False) -> list[StatusCause]:
    """Everything wrong with ``openAPIV3Schema``, whose path is ``at``."""
    if _depth(schema) > DEPTH_LIMIT:
        return [field_errors.invalid(at, "", f"must not nest deeper than {DEPTH_LIMIT}")]
    found = list(_faults_at_root(schema, at, has_status))
    structural = [*_structural(schema, at, "root"), *_incomplete(schema, schema, at, at)]
    structural.sort(key=lambda fault: (fault.field, fault.message))
    if not structural:
        structural = list(_faulty_defaults(schema, at, root=True))
    found += structural
    each = list(_object_faults(schema, at, _Scope(root=True)))
    found += each
    if not structural and _has_rules(schema):
        found += _compile_faults(schema, at, [fault.field for fault in each])
    return found


def _depth(schema: Schema) -> int:
    level, depth = [schema], 0
    while level and depth <= DEPTH_LIMIT:
        level = [sub for one in level for _, sub, _ in subschemas(one, "")]
        depth += 1
    return depth


def _faults_at_root(schema: Schema, at: str, has_status: bool) -> Iterator[StatusCause]:
    if has_status:
        kind = schema.get("type") or ""
        if kind and kind != "object":
            words = (
                'only "object" is allowed as the type at the root of the schema '
                "if the status subresource is enabled"
            )
            yield field_errors.invalid(f"{at}.type", kind, words)
        elif any(schema[name] not in _ZERO and name not in ROOT_FIELDS for name in schema):
            words = (
                "only a few fields are allowed at the root of the schema "
                "if the status subresource is enabled"
            )
            yield field_errors.invalid(at, schema, words)
    if schema.get("nullable"):
        yield field_errors.forbidden(f"{at}.nullable", "nullable cannot be true at the root")


# --------------------------------------------------------------------------- what is structural


def _structural(schema: Schema, at: str, level: str) -> Iterator[StatusCause]:
    kind = schema.get("type") or ""
    embedded = bool(schema.get("x-kubernetes-embedded-resource"))
    preserve = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    int_or_string = bool(schema.get("x-kubernetes-int-or-string"))
    properties = schema.get("properties") or {}
    more = schema.get("additionalProperties")
    if kind == "array" and schema.get("items") is None:
        yield field_errors.required(f"{at}.items", "must be specified")
    if isinstance(schema.get("items"), Mapping):
        yield from _structural(schema["items"], f"{at}.items", "item")
    for name, sub in properties.items():
        yield from _structural(sub, f"{at}.properties[{name}]", "field")
    if more is not None:
        if level == "root":
            yield field_errors.forbidden(
                f"{at}.additionalProperties", "must not be used at the root"
            )
        if isinstance(more, Mapping):
            yield from _structural(more, f"{at}.additionalProperties", "field")
    words = "must be false if x-kubernetes-int-or-string is true"
    if int_or_string and preserve:
        yield field_errors.invalid(f"{at}.x-kubernetes-preserve-unknown-fields", True, words)
    if int_or_string and embedded:
        yield field_errors.invalid(f"{at}.x-kubernetes-embedded-resource", True, words)
    first = (schema.get("allOf") or [{}])[0]
    yield from _values(
        schema,
        at,
        skip_any=is_int_or_string(schema.get("anyOf")),
        skip_first=is_int_or_string(first.get("anyOf")),
    )
    if embedded and kind != "object":
        words = "must be object if x-kubernetes-embedded-resource is true"
        where = f"{at}.type"
        yield (
            field_errors.invalid(where, kind, words)
            if kind
            else field_errors.required(where, words)
        )
    elif not kind and not int_or_string and not preserve:
        yield field_errors.required(f"{at}.type", EMPTY_TYPE[level])
    if embedded and more is not None:
        words = "must not be used if x-kubernetes-embedded-resource is set"
        yield field_errors.forbidden(f"{at}.additionalProperties", words)
    if level == "root" and kind and kind != "object":
        yield field_errors.invalid(f"{at}.type", kind, "must be object at the root")
    yield from _meta(properties, at, level == "root", embedded)
    if embedded and not preserve and not properties:
        words = (
            "must not be empty if x-kubernetes-embedded-resource is true "
            "without x-kubernetes-preserve-unknown-fields"
        )
        yield field_errors.required(f"{at}.properties", words)


def _meta(properties: Schema, at: str, root: bool, embedded: bool) -> Iterator[StatusCause]:
    if not root and not embedded:
        return
    for name in ("kind", "apiVersion"):
        kind = (properties.get(name) or {}).get("type") or ""
        if name in properties and kind != "string":
            yield field_errors.invalid(f"{at}.properties[{name}].type", kind, "must be string")
    metadata = properties.get("metadata")
    if metadata is None:
        return
    kind = metadata.get("type") or ""
    if kind != "object":
        yield field_errors.invalid(f"{at}.properties[metadata].type", kind, "must be object")
    names = set(metadata.get("properties") or {})
    rest = {key for key, value in metadata.items() if value and key not in ("type", "default")}
    if root and (not names <= {"name", "generateName"} or rest - {"properties"}):
        words = (
            "must not specify anything other than name and generateName, "
            "but metadata is implicitly specified"
        )
        yield field_errors.forbidden(f"{at}.properties[metadata]", words)


def _values(
    schema: Schema, at: str, *, skip_any: bool = False, skip_first: bool = False
) -> Iterator[StatusCause]:
    if not skip_any:
        for n, sub in enumerate(schema.get("anyOf") or ()):
            yield from _below_junctor(sub, f"{at}.anyOf[{n}]")
    for n, sub in enumerate(schema.get("allOf") or ()):
        yield from _below_junctor(sub, f"{at}.allOf[{n}]", skip_any=skip_first and n == 0)
    for n, sub in enumerate(schema.get("oneOf") or ()):
        yield from _below_junctor(sub, f"{at}.oneOf[{n}]")
    if schema.get("not") is not None:
        yield from _below_junctor(schema["not"], f"{at}.not")
    if pattern := schema.get("pattern"):
        try:
            patterns.compiled(pattern)
        except ParseError as error:
            words = f"must be a valid regular expression, but isn't: {error}"
            yield field_errors.invalid(f"{at}.pattern", pattern, words)


def _below_junctor(schema: Schema, at: str, *, skip_any: bool = False) -> Iterator[StatusCause]:
    yield from _values(schema, at, skip_any=skip_any)
    if isinstance(schema.get("items"), Mapping):
        yield from _below_junctor(schema["items"], f"{at}.items")
    for name, sub in (schema.get("properties") or {}).items():
        yield from _below_junctor(sub, f"{at}.properties[{name}]")
    for name, words in FORBIDDEN_BELOW_JUNCTORS.items():
        if schema.get(name) or (name in ("additionalProperties",) and name in schema):
            yield field_errors.forbidden(f"{at}.{name}", words)
    if "metadata" in (schema.get("properties") or {}):
        words = "must not be specified in a nested context"
        yield field_errors.forbidden(f"{at}.properties[metadata]", words)


def _incomplete(values: Schema, schema: Schema, at: str, where: str) -> Iterator[StatusCause]:
    """Fields that a junctor constrains and the structure does not have."""
    below = [("not", values["not"])] if values.get("not") is not None else []
    for junctor in ("allOf", "anyOf", "oneOf"):
        below += [(f"{junctor}[{n}]", sub) for n, sub in enumerate(values.get(junctor) or ())]
    for name, sub in below:
        inside = f"{where}.{name}"
        yield from _incomplete(sub, schema, at, inside)
        items = sub.get("items")
        if isinstance(items, Mapping):
            yield from _missing(items, schema.get("items"), f"{at}.items", f"{inside}.items")
        for key, value in (sub.get("properties") or {}).items():
            there = (schema.get("properties") or {}).get(key)
            path = f"properties[{key}]"
            yield from _missing(value, there, f"{at}.{path}", f"{inside}.{path}")


def _missing(values: Schema, schema: Schema | None, at: str, where: str) -> Iterator[StatusCause]:
    if schema is None:
        yield field_errors.required(at, f"because it is defined in {where}")
    else:
        yield from _incomplete({"allOf": [values]}, schema, at, where.removesuffix(".allOf[0]"))


# ------------------------------------------------------------------------------------- defaults


def _faulty_defaults(schema: Schema, at: str, *, root: bool = False) -> Iterator[StatusCause]:
    default = schema.get("default")
    if default is not None:
        yield from _faults_of_default(schema, default, f"{at}.default", root)
    if isinstance(schema.get("items"), Mapping):
        yield from _faulty_defaults(schema["items"], f"{at}.items")
    for name, sub in (schema.get("properties") or {}).items():
        yield from _faulty_defaults(sub, f"{at}.properties[{name}]")


def _faults_of_default(
    schema: Schema, default: Any, where: str, root: bool
) -> Iterator[StatusCause]:
    kind = type_of({"type": "object", "properties": {"default": schema}}).fields["default"]
    kind.embedded = kind.embedded or root
    if not same(pruned(kind, default).value, default):
        yield field_errors.invalid(where, default, "must not have unknown fields")
    found = embedded_faults(kind, default, where) or constraints.faults_of(kind, default, at=where)
    if not found and has_rules(kind):
        from zonewise.embedded.machinery.crd.rules import (
            rule_faults,  # brings CEL: only where there are rules
        )

        found = rule_faults(kind, default, default, at=where)
        found = found or rule_faults(kind, default, at=where)
    yield from found


# ------------------------------------------------------------------------- every schema object


@dataclass(frozen=True)
class _Scope:
    """What the place of a schema allows it."""

    root: bool = False
    meta: bool = False
    no_defaults: str = ""


def _object_faults(schema: Schema, at: str, scope: _Scope) -> Iterator[StatusCause]:
    yield from _unsupported(schema, at, scope)
    if schema.get("uniqueItems"):
        words = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        yield field_errors.forbidden(f"{at}.uniqueItems", words)
    more, properties = schema.get("additionalProperties"), schema.get("properties") or {}
    if more is not None and properties and more is not True:
        words = "additionalProperties and properties are mutual exclusive"
        yield field_errors.forbidden(f"{at}.additionalProperties", words)
    inner = replace(scope, root=False)
    if isinstance(more, Mapping):
        reason = "inside additionalProperties applying to object metadata" if scope.meta else ""
        below = replace(inner, no_defaults=reason or inner.no_defaults)
        yield from _object_faults(more, f"{at}.additionalProperties", below)
    for name, sub in properties.items():
        below = inner
        if name in META_FIELDS and (scope.root or schema.get("x-kubernetes-embedded-resource")):
            reason = f"in top-level {name}" if scope.root else inner.no_defaults
            below = replace(inner, meta=True, no_defaults=reason)
        yield from _object_faults(sub, f"{at}.properties[{name}]", below)
    for path, sub, structure in subschemas(schema, at):
        if not structure or path == f"{at}.items":
            yield from _object_faults(sub, path, inner)
    yield from _extensions(schema, at)
    yield from _list_keys(schema, at)
    for n, rule in enumerate(schema.get("x-kubernetes-validations") or ()):
        yield from _rule_shape(rule, schema, f"{at}.x-kubernetes-validations[{n}]")


def _unsupported(schema: Schema, at: str, scope: _Scope) -> Iterator[StatusCause]:
    kind = schema.get("type") or ""
    if kind and kind not in TYPES:
        yield field_errors.unsupported(f"{at}.type", kind, TYPES)
    if schema.get("default") is not None and scope.no_defaults:
        yield field_errors.forbidden(f"{at}.default", f"must not be set {scope.no_defaults}")
    for name in UNSUPPORTED:
        if schema.get(name):
            yield field_errors.forbidden(f"{at}.{name}", f"{name} is not supported")
    if kind == "null":
        words = "type cannot be set to null, use nullable as an alternative"
        yield field_errors.forbidden(f"{at}.type", words)
    if isinstance(schema.get("items"), list):
        words = "items must be a schema object and not an array"
        yield field_errors.forbidden(f"{at}.items", words)
    if scope.meta and schema.get("x-kubernetes-embedded-resource"):
        words = "must not be used inside of resource meta"
        yield field_errors.forbidden(f"{at}.x-kubernetes-embedded-resource", words)


def _extensions(schema: Schema, at: str) -> Iterator[StatusCause]:
    kind = schema.get("type") or ""
    if schema.get("x-kubernetes-preserve-unknown-fields") is False:
        where = f"{at}.x-kubernetes-preserve-unknown-fields"
        yield field_errors.invalid(where, False, "must be true or undefined")
    for name, wanted, allowed in (
        ("x-kubernetes-map-type", "object", ("atomic", "granular")),
        ("x-kubernetes-list-type", "array", ("atomic", "set", "map")),
    ):
        asked = schema.get(name)
        if asked is None:
            continue
        if kind != wanted:
            words = f"must be {wanted} if {name} is specified"
            where = f"{at}.type"
            yield (
                field_errors.invalid(where, kind, words)
                if kind
                else field_errors.required(where, words)
            )
        if asked not in allowed:
            yield field_errors.unsupported(f"{at}.{name}", asked, allowed)
    items = schema.get("items")
    if schema.get("x-kubernetes-list-type") == "set" and isinstance(items, Mapping):
        words = "must be atomic as item of a list with x-kubernetes-list-type=set"
        for inner, name in (
            ("array", "x-kubernetes-list-type"),
            ("object", "x-kubernetes-map-type"),
        ):
            wrong = items.get(name) not in ("atomic",) and (inner == "object" or name in items)
            if items.get("type") == inner and wrong:
                yield field_errors.invalid(f"{at}.items.{name}", items.get(name), words)


def _list_keys(schema: Schema, at: str) -> Iterator[StatusCause]:
    keys, asked = (
        schema.get("x-kubernetes-list-map-keys") or [],
        schema.get("x-kubernetes-list-type"),
    )
    if keys and asked != "map":
        words, where = (
            "must be map if x-kubernetes-list-map-keys is non-empty",
            (f"{at}.x-kubernetes-list-type"),
        )
        yield (
            field_errors.invalid(where, asked, words)
            if asked
            else field_errors.required(where, words)
        )
    items = schema.get("items")
    if asked not in ("map", "set"):
        return
    if isinstance(items, Mapping) and items.get("nullable"):
        words = f"cannot be nullable when x-kubernetes-list-type is {asked}"
        yield field_errors.forbidden(f"{at}.items.nullable", words)
    if asked == "set":
        return
    where = f"{at}.x-kubernetes-list-map-keys"
    if not keys:
        yield field_errors.required(where, "must not be empty if x-kubernetes-list-type is map")
    if items is None:
        words = "must have a schema if x-kubernetes-list-type is map"
        yield field_errors.required(f"{at}.items", words)
    if not isinstance(items, Mapping):
        return
    if items.get("type") != "object":
        words = "must be object if parent array's x-kubernetes-list-type is map"
        yield field_errors.invalid(f"{at}.items.type", items.get("type") or "", words)
        return
    properties, required = items.get("properties") or {}, items.get("required") or []
    for n, key in enumerate(keys):
        sub, path = properties.get(key), f"{at}.items.properties[{key}]"
        if sub is None:
            yield field_errors.invalid(where, keys, "entries must all be names of item properties")
        elif sub.get("type") in ("array", "object"):
            words = "must be a scalar type if parent array's x-kubernetes-list-type is map"
            yield field_errors.invalid(f"{path}.type", items["type"], words)
        if key in keys[:n]:
            yield field_errors.invalid(where, keys, "must not contain duplicate entries")
        if sub is None:
            continue
        words = "this property is in x-kubernetes-list-map-keys, so it "
        if key not in required and sub.get("default") is None:
            rest = "must have a default or be a required property"
            yield field_errors.required(f"{path}.default", words + rest)
        if sub.get("nullable"):
            yield field_errors.forbidden(f"{path}.nullable", words + "cannot be nullable")


def _rule_shape(rule: Mapping[str, Any], schema: Schema, at: str) -> Iterator[StatusCause]:
    text, message = rule.get("rule") or "", rule.get("message") or ""
    expression = rule.get("messageExpression") or ""
    if not text.strip():
        yield field_errors.required(f"{at}.rule", "rule is not specified")
    elif message and not message.strip():
        yield field_errors.invalid(f"{at}.message", message, "must be non-empty if specified")
    elif "\n" in message.strip():
        yield field_errors.invalid(f"{at}.message", message, "must not contain line breaks")
    elif "\n" in text.strip() and not message.strip():
        words = "message must be specified if rule contains line breaks"
        yield field_errors.required(f"{at}.message", words)
    if expression and not expression.strip():
        words = "messageExpression must be non-empty if specified"
        yield field_errors.required(f"{at}.messageExpression", words)
    reason = rule.get("reason")
    if reason is not None and reason not in REASONS:
        yield field_errors.unsupported(f"{at}.reason", reason, REASONS)
    path = rule.get("fieldPath") or ""
    if not path:
        return
    if not path.strip():
        yield field_errors.invalid(f"{at}.fieldPath", path, "must be non-empty if specified")
    if "\n" in path:
        yield field_errors.invalid(f"{at}.fieldPath", path, "must not contain line breaks")
    if (
        field_path(type_of({"type": "object", "properties": {"x": schema}}).fields["x"], path)
        is None
    ):
        yield field_errors.invalid(f"{at}.fieldPath", path, "must be a valid path")


def _compile_faults(schema: Schema, at: str, faulty: list[str]) -> list[StatusCause]:
    from zonewise.embedded.machinery.crd.rule_errors import compile_faults  # brings CEL, see above

    return compile_faults(schema, at, faulty)


def _has_rules(schema: Schema) -> bool:
    return bool(schema.get("x-kubernetes-validations")) or any(
        _has_rules(sub) for _, sub, structure in subschemas(schema, "") if structure
    )
