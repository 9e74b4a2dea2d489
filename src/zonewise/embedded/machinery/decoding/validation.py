"""Is a body what its kind says it is? Every unknown and every duplicate field is named.

`decode` and `accept` first try the fast way (`pruning.tidy`); only a body with a problem is
examined. What its problems mean is the caller's choice by `fieldValidation`: an error
(`strict_error`), warnings, or nothing. `unhandled` and `unrecognized` are the sentences a real
server wraps around a refusal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from zonewise.api import field_errors
from zonewise.api.errors import StatusCause
from zonewise.api.text import yamltext
from zonewise.api.text.jsontext import (
    NotJSON,
    Pairs,
    has_duplicates,
    read,
    read_pairs,
    summary,
)
from zonewise.api.text.yamltext import NotYAML
from zonewise.embedded.machinery.crd.custom import prepared
from zonewise.embedded.machinery.crd.structural import has_embedded
from zonewise.embedded.machinery.decoding.pruning import Surprise, tidy
from zonewise.embedded.machinery.decoding.strict_decode import (
    PROBLEM_LIMIT,
    Examination,
    WrongType,
    quoted,
    what_is,
)
from zonewise.embedded.machinery.schema.types import Type

__all__ = [
    "Decoded",
    "NotJSON",
    "NotYAML",
    "WrongType",
    "accept",
    "accept_custom",
    "decode",
    "decode_custom",
    "decode_yaml",
    "duplicates",
    "read_yaml",
    "schema_faults",
    "strict_error",
    "unhandled",
    "unrecognized",
]

HEAD = (
    'struct { APIVersion string "json:\\"apiVersion,omitempty\\""; '
    'Kind string "json:\\"kind,omitempty\\"" }'
)


class Decoded(NamedTuple):
    """A tidy object, and what was wrong with its fields: `unknown field "spec.foo"`."""

    value: dict[str, Any]
    problems: tuple[str, ...] = ()


def decode(kind: Type, raw: bytes, *, strict: bool = True) -> Decoded:
    """A body as an object of a built-in kind: pruned, tidy, without defaults.

    Raises NotJSON or WrongType. With `strict=False` (fieldValidation=Ignore) problems are not
    looked for.
    """
    value = read(raw)
    if not isinstance(value, dict):
        if value is None:
            return Decoded({})
        raise NotJSON(f"json: cannot unmarshal {what_is(value)} into Go value of type {HEAD}")
    if strict and has_duplicates(raw, value):
        return _examined(kind, read_pairs(raw), strict)
    try:
        return Decoded(tidy(kind, value))
    except Surprise:
        return _examined(kind, read_pairs(raw), strict)


def accept(
    kind: Type,
    value: dict[str, Any],
    *,
    strict: bool = True,
    tidy_already: dict[str, Any] | None = None,
) -> Decoded:
    """The same for an object that is decoded already: from YAML, or the result of a patch.

    The value is changed in place where it can be; use the one returned. Fields that are the very
    objects they are in ``tidy_already``, a tidy object, are left alone.
    """
    if tidy_already is not None:
        names = [
            name
            for name, item in value.items()
            if name not in tidy_already or tidy_already[name] is not item
        ]
        try:
            tidied = tidy(kind, {name: value[name] for name in names})
        except Surprise:
            return _examined(kind, value, strict)
        for name in names:
            if name in tidied:
                value[name] = tidied[name]
            else:
                del value[name]
        return Decoded(value)
    try:
        return Decoded(tidy(kind, value))
    except Surprise:
        return _examined(kind, value, strict)


def decode_yaml(kind: Type, raw: bytes, *, strict: bool = True) -> Decoded:
    """A body in YAML; raises NotYAML or WrongType."""
    value, repeated = read_yaml(raw)
    decoded = accept(kind, value, strict=strict)
    return Decoded(decoded.value, (*repeated, *decoded.problems) if strict else ())


def read_yaml(raw: bytes) -> yamltext.Read:
    """The object in a YAML body, of no type yet, and its duplicate keys."""
    found = yamltext.read(raw)
    if found.value is None:
        return found._replace(value={})
    if not isinstance(found.value, dict):
        raise yamltext.NotYAML(
            f"json: cannot unmarshal {what_is(found.value)} into Go value of type {HEAD}"
        )
    return found


def _examined(kind: Type, value: Any, strict: bool) -> Decoded:
    examination = Examination()
    cleaned = examination.run(kind, value)
    try:
        tidied = tidy(kind, cleaned)
    except Surprise:  # a time before the year 1, which Go supports and Python does not
        raise WrongType("a value is beyond what this server can keep") from None
    return Decoded(tidied, tuple(examination.problems) if strict else ())


def decode_custom(kind: Type, meta: Type, raw: bytes, *, strict: bool = True) -> Decoded:
    """A body as a custom resource: pruned by its schema and defaulted, otherwise as it is.

    `meta` is the type of ObjectMeta: the metadata of the object and of embedded ones is not the
    schema's affair, it is read as that of every kind is. Raises NotJSON or WrongType.
    """
    value = read(raw, finite=True)
    if not isinstance(value, dict):
        raise NotJSON(f"json: cannot unmarshal {what_is(value)} into Go value of type {HEAD}")
    repeated = duplicates(raw) if strict and has_duplicates(raw, value) else ()
    decoded = accept_custom(kind, meta, value, strict=strict)
    return Decoded(decoded.value, (*repeated, *decoded.problems)[:PROBLEM_LIMIT])


def accept_custom(kind: Type, meta: Type, value: dict[str, Any], *, strict: bool = True) -> Decoded:
    """The same for an object that is decoded already; use the one returned."""
    problems: list[str] = []
    if value.get("metadata") is not None:
        value["metadata"] = _metadata(meta, value["metadata"], "metadata", problems)
    value, unknown = prepared(kind, value)
    problems += [f"unknown field {quoted(path)}" for path in sorted(unknown)]
    for holder, path in _embedded(kind, value, "") if has_embedded(kind) else ():
        try:
            holder["metadata"] = _metadata(meta, holder["metadata"], f"{path}.metadata", problems)
        except WrongType as error:
            shown = field_errors.shown(holder["metadata"])
            raise WrongType(f"{path}.metadata: Invalid value: {shown}: {error}") from None
    return Decoded(value, tuple(problems) if strict else ())


def duplicates(raw: bytes) -> tuple[str, ...]:
    """The duplicate fields of a body of which no type is known, in the order of the document."""
    found: dict[str, None] = {}

    def visit(value: Any, path: str) -> None:
        if isinstance(value, Pairs):
            seen: set[str] = set()
            for name, item in value:
                at = f"{path}.{name}" if path else name
                if name in seen:
                    found[f"duplicate field {quoted(at)}"] = None
                seen.add(name)
                visit(item, at)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                visit(item, f"{path}[{index}]")

    visit(read_pairs(raw), "")
    return tuple(found)[:PROBLEM_LIMIT]


def _metadata(meta: Type, value: Any, path: str, problems: list[str]) -> Any:
    try:
        return tidy(meta, value)
    except Surprise:
        examination = Examination(path)
        cleaned = examination.run(meta, value)
        problems += examination.problems
        return tidy(meta, cleaned)


def _embedded(kind: Type, value: Any, path: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Objects with metadata of their own inside a custom resource."""
    if isinstance(value, dict):
        if kind.embedded and path and value.get("metadata") is not None:
            yield value, path
        for name, item in value.items():
            field = kind.child(name)
            if field is not None:
                yield from _embedded(field, item, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and kind.items is not None:
        for index, item in enumerate(value):
            yield from _embedded(kind.items, item, f"{path}[{index}]")


def strict_error(problems: Sequence[str]) -> str:
    """What refuses a body under fieldValidation=Strict; YAML's duplicate keys are one complaint."""
    lines = [problem for problem in problems if problem.startswith("line ")]
    rest = [problem for problem in problems if not problem.startswith("line ")]
    first = ["\n  ".join(["yaml: unmarshal errors:", *lines])] if lines else []
    return "strict decoding error: " + ", ".join(first + rest)


def unhandled(kind: str, version: str, into: str, why: str) -> str:
    """The message of the 400 for a body whose kind is known and whose content is not."""
    return f'{kind} in version "{version}" cannot be handled as a {into}: {why}'


def unrecognized(into: str, raw: bytes, error: NotJSON | NotYAML) -> str:
    """The message of the 400 for a body that is not JSON, or not YAML."""
    why = "couldn't get version/kind; json parse error: " if isinstance(error, NotJSON) else ""
    return (
        f"the object provided is unrecognized (must be of type {into}): {why}{error} "
        f"({summary(raw)})"
    )


def schema_faults(kind: Type, value: Any, path: str = "") -> list[StatusCause]:
    """Fields that are not there and must be, and words that are none of their enum.

    Only what a real server was seen to refuse in just this way: what OpenAPI claims beyond that is
    not true of every object. Kinds with rules by hand need none of this.
    """
    found: list[StatusCause] = []
    if kind.shape == "object" and isinstance(value, dict):
        for name, field in kind.fields.items():
            at = f"{path}.{name}" if path else name
            item = value.get(name)
            if field.demanded and not item and item is not False:
                found.append(field_errors.required(at))
            elif field.closed and item and item not in field.enum:
                found.append(field_errors.unsupported(at, item, field.enum))
            elif item:
                found += schema_faults(field, item, at)
    elif kind.shape == "map" and isinstance(value, dict) and kind.values is not None:
        for name, item in value.items():
            found += schema_faults(kind.values, item, f"{path}[{name}]")
    elif kind.shape == "list" and isinstance(value, list) and kind.items is not None:
        for index, item in enumerate(value):
            found += schema_faults(kind.items, item, f"{path}[{index}]")
    return found
