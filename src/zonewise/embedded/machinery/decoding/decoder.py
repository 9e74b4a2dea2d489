"""Decode a body as an object of its kind; every unknown and every duplicate field is reported.

`decode` and `decode_value` first try the fast path (`normalizing.normalize`); only a body with a
problem is decoded again by `strict_decoder`. The caller decides by `fieldValidation` what problems
lead to: an error (`strict_error_message`), warnings, or nothing. `cannot_handle_message` and
`unrecognized_message` are the messages of a real server's refusals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from zonewise.api.errors import StatusCause
from zonewise.api.field_errors import render_value, required, unsupported
from zonewise.api.text import yamltext
from zonewise.api.text.jsontext import (
    NotJSON,
    Pairs,
    has_duplicates,
    read,
    read_pairs,
    summarize_body,
)
from zonewise.api.text.yamltext import NotYAML
from zonewise.embedded.machinery.crd.custom_resource import prepare
from zonewise.embedded.machinery.crd.structural import has_embedded
from zonewise.embedded.machinery.decoding.normalizing import SchemaMismatch, normalize
from zonewise.embedded.machinery.decoding.strict_decoder import (
    PROBLEM_LIMIT,
    StrictDecoder,
    WrongType,
    go_json_type,
    quote_path,
)
from zonewise.embedded.machinery.schema.schema import Schema

__all__ = [
    "Decoded",
    "NotJSON",
    "NotYAML",
    "WrongType",
    "cannot_handle_message",
    "decode",
    "decode_custom",
    "decode_custom_value",
    "decode_value",
    "decode_yaml",
    "find_duplicates",
    "read_yaml",
    "strict_error_message",
    "unrecognized_message",
    "validate_required_and_enums",
]

TYPE_META_STRUCT = (
    'struct { APIVersion string "json:\\"apiVersion,omitempty\\""; '
    'Kind string "json:\\"kind,omitempty\\"" }'
)


class Decoded(NamedTuple):
    """A normalized object, and the problems of the body: `unknown field "spec.foo"`."""

    value: dict[str, Any]
    problems: tuple[str, ...] = ()


def decode(schema: Schema, raw: bytes, *, strict: bool = True) -> Decoded:
    """A body as an object of a built-in kind: pruned, normalized, without defaults.

    Raises NotJSON or WrongType. With `strict=False` (fieldValidation=Ignore) problems are not
    reported.
    """
    value = read(raw)
    if not isinstance(value, dict):
        if value is None:
            return Decoded({})
        raise NotJSON(_not_an_object(value))
    if strict and has_duplicates(raw, value):
        return _decode_strictly(schema, read_pairs(raw), strict)
    try:
        return Decoded(normalize(schema, value))
    except SchemaMismatch:
        return _decode_strictly(schema, read_pairs(raw), strict)


def decode_value(
    schema: Schema,
    value: dict[str, Any],
    *,
    strict: bool = True,
    normalized: dict[str, Any] | None = None,
) -> Decoded:
    """The same for an object that is parsed already: from YAML, or the result of a patch.

    The value is changed in place where possible; use the one returned. Fields that are identical
    with those of ``normalized``, a normalized object, are not walked.
    """
    if normalized is not None:
        names = [
            name
            for name, item in value.items()
            if name not in normalized or normalized[name] is not item
        ]
        try:
            result = normalize(schema, {name: value[name] for name in names})
        except SchemaMismatch:
            return _decode_strictly(schema, value, strict)
        for name in names:
            if name in result:
                value[name] = result[name]
            else:
                del value[name]
        return Decoded(value)
    try:
        return Decoded(normalize(schema, value))
    except SchemaMismatch:
        return _decode_strictly(schema, value, strict)


def decode_yaml(schema: Schema, raw: bytes, *, strict: bool = True) -> Decoded:
    """A body in YAML; raises NotYAML or WrongType."""
    value, repeated = read_yaml(raw)
    decoded = decode_value(schema, value, strict=strict)
    return Decoded(decoded.value, (*repeated, *decoded.problems) if strict else ())


def read_yaml(raw: bytes) -> yamltext.YamlDocument:
    """The object in a YAML body, not yet decoded, and its duplicate keys."""
    document = yamltext.read(raw)
    if document.value is None:
        return document._replace(value={})
    if not isinstance(document.value, dict):
        raise NotYAML(_not_an_object(document.value))
    return document


def _not_an_object(value: Any) -> str:
    return f"json: cannot unmarshal {go_json_type(value)} into Go value of type {TYPE_META_STRUCT}"


def _decode_strictly(schema: Schema, value: Any, strict: bool) -> Decoded:
    decoder = StrictDecoder()
    cleaned = decoder.decode(schema, value)
    try:
        normalized = normalize(schema, cleaned)
    except SchemaMismatch:  # a time before the year 1, which Go supports and Python does not
        raise WrongType("a value is beyond what this server can store") from None
    return Decoded(normalized, tuple(decoder.problems) if strict else ())


def decode_custom(schema: Schema, meta: Schema, raw: bytes, *, strict: bool = True) -> Decoded:
    """A body as a custom resource: pruned by its schema and defaulted, otherwise as it is.

    `meta` is the schema of ObjectMeta: the metadata of the object and of embedded ones is decoded
    as that of every kind, whatever the schema. Raises NotJSON or WrongType.
    """
    value = read(raw, finite=True)
    if not isinstance(value, dict):
        raise NotJSON(_not_an_object(value))
    repeated = find_duplicates(raw) if strict and has_duplicates(raw, value) else ()
    decoded = decode_custom_value(schema, meta, value, strict=strict)
    return Decoded(decoded.value, (*repeated, *decoded.problems)[:PROBLEM_LIMIT])


def decode_custom_value(
    schema: Schema, meta: Schema, value: dict[str, Any], *, strict: bool = True
) -> Decoded:
    """The same for an object that is parsed already; use the one returned."""
    problems: list[str] = []
    if value.get("metadata") is not None:
        value["metadata"] = _normalize_metadata(meta, value["metadata"], "metadata", problems)
    value, unknown = prepare(schema, value)
    problems += [f"unknown field {quote_path(path)}" for path in sorted(unknown)]
    for holder, path in _embedded_objects(schema, value, "") if has_embedded(schema) else ():
        try:
            metadata = _normalize_metadata(meta, holder["metadata"], f"{path}.metadata", problems)
            holder["metadata"] = metadata
        except WrongType as error:
            metadata_text = render_value(holder["metadata"])
            raise WrongType(f"{path}.metadata: Invalid value: {metadata_text}: {error}") from None
    return Decoded(value, tuple(problems) if strict else ())


def find_duplicates(raw: bytes) -> tuple[str, ...]:
    """The duplicate fields of a body whose schema is unknown, in the order of the document."""
    problems: dict[str, None] = {}

    def visit(value: Any, path: str) -> None:
        if isinstance(value, Pairs):
            names: set[str] = set()
            for name, item in value:
                member_path = f"{path}.{name}" if path else name
                if name in names:
                    problems[f"duplicate field {quote_path(member_path)}"] = None
                names.add(name)
                visit(item, member_path)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                visit(item, f"{path}[{index}]")

    visit(read_pairs(raw), "")
    return tuple(problems)[:PROBLEM_LIMIT]


def _normalize_metadata(meta: Schema, value: Any, path: str, problems: list[str]) -> Any:
    try:
        return normalize(meta, value)
    except SchemaMismatch:
        decoder = StrictDecoder(path)
        cleaned = decoder.decode(meta, value)
        problems += decoder.problems
        return normalize(meta, cleaned)


def _embedded_objects(
    schema: Schema, value: Any, path: str
) -> Iterator[tuple[dict[str, Any], str]]:
    """Objects with metadata of their own inside a custom resource."""
    if isinstance(value, dict):
        if schema.embedded_resource and path and value.get("metadata") is not None:
            yield value, path
        for name, item in value.items():
            field = schema.child(name)
            if field is not None:
                yield from _embedded_objects(field, item, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and schema.items is not None:
        for index, item in enumerate(value):
            yield from _embedded_objects(schema.items, item, f"{path}[{index}]")


def strict_error_message(problems: Sequence[str]) -> str:
    """The error under fieldValidation=Strict; YAML's duplicate keys are one problem."""
    lines = [problem for problem in problems if problem.startswith("line ")]
    others = [problem for problem in problems if not problem.startswith("line ")]
    first = ["\n  ".join(["yaml: unmarshal errors:", *lines])] if lines else []
    return "strict decoding error: " + ", ".join(first + others)


def cannot_handle_message(kind: str, version: str, into: str, reason: str) -> str:
    """The message of the 400 for a body whose kind is known and whose content is not."""
    return f'{kind} in version "{version}" cannot be handled as a {into}: {reason}'


def unrecognized_message(into: str, raw: bytes, error: NotJSON | NotYAML) -> str:
    """The message of the 400 for a body that is not JSON, or not YAML."""
    reason = "couldn't get version/kind; json parse error: " if isinstance(error, NotJSON) else ""
    return (
        f"the object provided is unrecognized (must be of type {into}): {reason}{error} "
        f"({summarize_body(raw)})"
    )


def validate_required_and_enums(schema: Schema, value: Any, path: str = "") -> list[StatusCause]:
    """Missing required fields, and values that are not in their enum.

    Only what a real server was observed to refuse in just this way: what OpenAPI claims beyond that
    is not true of every object. Kinds with a strategy of their own do not use this.
    """
    errors: list[StatusCause] = []
    if schema.shape == "object" and isinstance(value, dict):
        for name, field in schema.fields.items():
            field_path = f"{path}.{name}" if path else name
            item = value.get(name)
            if field.enforce_required and not item and item is not False:
                errors.append(required(field_path))
            elif field.enforce_enum and item and item not in field.enum:
                errors.append(unsupported(field_path, item, field.enum))
            elif item:
                errors += validate_required_and_enums(field, item, field_path)
    elif schema.shape == "map" and isinstance(value, dict) and schema.values is not None:
        for name, item in value.items():
            errors += validate_required_and_enums(schema.values, item, f"{path}[{name}]")
    elif schema.shape == "list" and isinstance(value, list) and schema.items is not None:
        for index, item in enumerate(value):
            errors += validate_required_and_enums(schema.items, item, f"{path}[{index}]")
    return errors
