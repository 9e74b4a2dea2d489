"""OpenAPI v3, as far as clients use it: `kubectl explain`, its check of parameters, generators.

One document per group and version holds the schemas of its kinds, everything they refer to, and the
paths with their verbs. There are no descriptions: the tables have none. A document of built-in
kinds takes tens of milliseconds to make and never changes, so it is made when it is first requested
and kept for as long as the same kinds are served together, also across changes of custom resources.

The index names each document with a hash that changes with its content. Of built-in kinds the hash
is over what they are made from, so that the index does not have to make them all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any

import msgspec

from zonewise.embedded.apiserver.discovery.operations import paths
from zonewise.embedded.apiserver.request.call import Answer, Call
from zonewise.embedded.machinery.schema.definitions import (
    LIST_META,
    OBJECT_META,
    Definitions,
    types_table,
)
from zonewise.embedded.machinery.schema.kinds import Kind
from zonewise.embedded.machinery.schema.types import Type

META = "io.k8s.apimachinery.pkg.apis.meta.v1."
SHARED = (META + "DeleteOptions", META + "Patch", META + "Status", LIST_META, OBJECT_META)
REF = "#/components/schemas/"
NOTHING_IN_V2 = b"\x0a\x032.0\x12\x10\x0a\x08Zonewise\x12\x04none"  # a version and a title

Obj = dict[str, Any]


class Documents:
    """The documents for one set of kinds."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._served: dict[str, tuple[Kind, ...]] = {}
        for kind in kinds:
            name = kind.resource.root.removeprefix("/")
            self._served[name] = (*self._served.get(name, ()), kind)

    def page(self, path: str, call: Call) -> Answer | None:
        """The answer for a path below `/openapi`, or None where there is nothing."""
        if path == "/openapi/v2":
            # kubectl looks here for kinds that v3 does not have; it must find that there are none.
            return Answer(body=NOTHING_IN_V2, content_type="application/octet-stream")
        if path == "/openapi/v3":
            return Answer(body=msgspec.json.encode({"paths": self._index()}), verbatim=True)
        name = path.removeprefix("/openapi/v3/")
        if name == path or name not in self._served:
            return None
        kinds = self._served[name]
        tag = f'"{fingerprint(kinds)}"'
        headers = {"ETag": tag, "Vary": "Accept"}
        if call.query.get("hash") == tag.strip('"'):
            headers["Cache-Control"] = "public, immutable"
        if tag in call.headers.get("if-none-match", ""):
            return Answer(status=304, headers=headers)
        return Answer(body=document(kinds), headers=headers, verbatim=True)

    def _index(self) -> Obj:
        return {
            name: {"serverRelativeURL": f"/openapi/v3/{name}?hash={fingerprint(kinds)}"}
            for name, kinds in sorted(self._served.items())
        }


@lru_cache(maxsize=256)
def fingerprint(kinds: tuple[Kind, ...]) -> str:
    """A text that changes with the document of these kinds."""
    digest = hashlib.sha512(types_table().version.encode())
    if any(kind.custom for kind in kinds):
        digest.update(document(kinds))
    for kind in kinds:
        digest.update(f"{kind.resource} {kind.verbs} {kind.subresources}".encode())
    return digest.hexdigest().upper()


@lru_cache(maxsize=64)
def document(kinds: tuple[Kind, ...]) -> bytes:
    """The document of the kinds of one group and version."""
    schemas: Obj = {}
    for kind in kinds:
        name = schema_name(kind)
        gvk = _gvk(kind.resource.group, kind.resource.version, kind.resource.kind)
        if kind.custom:
            schemas[name] = _custom(kind)
        else:
            for definition in named(kind.type):
                schemas.setdefault(definition.name, published(definition))
        schemas[name]["x-kubernetes-group-version-kind"] = [gvk]
        if "list" in kind.verbs:
            schemas[f"{name}List"] = _list(kind, name)
    bodies = _subresource_types(kinds)
    for name in (*SHARED, *bodies.values()):
        for definition in named(_definitions().type(name)):
            schemas.setdefault(definition.name, published(definition))
    for name, row in types_table().types.items():
        if row.gvk and name in schemas:
            known = [_gvk(*gvk) for gvk in row.gvk]
            schemas[name].setdefault("x-kubernetes-group-version-kind", known)
    return msgspec.json.encode(
        {
            "openapi": "3.0.0",
            "info": {"title": "Kubernetes", "version": types_table().version},
            "paths": paths(kinds, {kind: schema_name(kind) for kind in kinds}, bodies),
            "components": {"schemas": dict(sorted(schemas.items()))},
        }
    )


def schema_name(kind: Kind) -> str:
    """The name of a kind's schema: its definition's, or made from its group for a custom one."""
    if not kind.custom:
        return kind.type.name
    reverse = ".".join(reversed(kind.resource.group.split(".")))
    return f"{reverse}.{kind.resource.version}.{kind.resource.kind}"


@cache
def _definitions() -> Definitions:
    return Definitions()


def _subresource_types(kinds: Iterable[Kind]) -> dict[tuple[str, str, str], str]:
    """Definitions of what is sent to subresources of other kinds: Scale, Eviction, TokenRequest."""
    wanted = {(s.group, s.version, s.kind) for kind in kinds for s in kind.subresources.values()}
    served = {(*kind.group_version, kind.resource.kind) for kind in kinds}
    return {
        gvk: name
        for name, row in types_table().types.items()
        for gvk in row.gvk
        if gvk in wanted - served
    }


def named(root: Type) -> Iterator[Type]:
    """A definition and all definitions below it, each once."""
    seen: set[str] = set()
    todo = [root]
    while todo:
        kind = todo.pop()
        if kind.name:
            if kind.name in seen:
                continue
            seen.add(kind.name)
            yield kind.definition
        todo += [*kind.fields.values(), *filter(None, (kind.items, kind.values))]


def published(kind: Type) -> Obj:
    """The schema of a definition."""
    match kind.shape:
        case "int-or-string":
            return {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]}
        case "any":
            return {} if "JSON" in kind.name else {"type": "object"}
        case "string":
            if kind.format == "quantity":
                return {"oneOf": [{"type": "string"}, {"type": "number"}]}
            return {"type": "string", "format": "date-time"}
    schema: Obj = {"type": "object"}
    if kind.fields:
        schema["properties"] = {name: _field(field) for name, field in sorted(kind.fields.items())}
    if kind.required:
        schema["required"] = list(kind.required)
    if kind.atomic:
        schema["x-kubernetes-map-type"] = "atomic"
    return schema


def _field(kind: Type) -> Obj:
    """The schema of one use of a type, with the facts of that place."""
    schema = _use(kind)
    if kind.shape == "list":
        schema["x-kubernetes-list-type"] = kind.list_type
        if kind.keys:
            schema["x-kubernetes-list-map-keys"] = list(kind.keys)
    if kind.merge_key:
        schema["x-kubernetes-patch-merge-key"] = kind.merge_key
    flags = {"merge": kind.merge, "replace": kind.replace, "retainKeys": kind.retain_keys}
    strategies = [name for name, on in flags.items() if on]
    if strategies:
        schema["x-kubernetes-patch-strategy"] = ",".join(strategies)
    usual = kind.origin.atomic if kind.origin is not None else False
    if kind.shape in ("object", "map") and kind.atomic != usual:
        schema["x-kubernetes-map-type"] = "atomic" if kind.atomic else "granular"
    return schema


def _use(kind: Type) -> Obj:
    if kind.name:
        return {"allOf": [{"$ref": REF + kind.name}]}
    match kind.shape:
        case "list":
            return {"type": "array", "items": _use(kind.items) if kind.items else {}}
        case "map":
            return {
                "type": "object",
                "additionalProperties": _use(kind.values) if kind.values else {},
            }
        case "any":
            return {}
        case "int-or-string":
            return published(kind)
        case "object":
            return published(kind)
    schema: Obj = {"type": kind.shape}
    if kind.format:
        schema["format"] = kind.format
    if kind.enum:
        schema["enum"] = list(kind.enum)
    return schema


def _custom(kind: Kind) -> Obj:
    """A custom resource's schema as its definition has it, with what every object has."""
    schema = kind.schema
    if schema is None:
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return _with_meta(schema)


def _with_meta(schema: Mapping[str, Any], *, root: bool = True) -> Obj:
    made: Obj = {}
    for name, value in schema.items():
        if name == "properties":
            made[name] = {key: _with_meta(item, root=False) for key, item in value.items()}
        elif name in ("items", "additionalProperties") and isinstance(value, Mapping):
            made[name] = _with_meta(value, root=False)
        else:
            made[name] = value
    if root or schema.get("x-kubernetes-embedded-resource"):
        text = {"type": "string"}
        meta = {"allOf": [{"$ref": REF + OBJECT_META}]}
        known = {**made.get("properties", {}), "metadata": meta}
        made["properties"] = {"apiVersion": text, "kind": text, **known}
    return made


def _list(kind: Kind, name: str) -> Obj:
    gvk = _gvk(kind.resource.group, kind.resource.version, kind.list_kind)
    return {
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "items": {"type": "array", "items": {"allOf": [{"$ref": REF + name}]}},
            "kind": {"type": "string"},
            "metadata": {"allOf": [{"$ref": REF + LIST_META}]},
        },
        "x-kubernetes-group-version-kind": [gvk],
    }


def _gvk(group: str, version: str, kind: str) -> Obj:
    return {"group": group, "version": version, "kind": kind}
