"""OpenAPI v3, as far as clients use it: `kubectl explain`, its check of parameters, generators.

One document per group and version has the schemas of its kinds, everything they refer to, and the
paths with their verbs. There are no descriptions: the tables have none. A document of built-in
kinds takes tens of milliseconds to build and never changes, so it is built at the first request and
cached for as long as the same kinds are served together, also across changes of custom resources.

The index has each document with a hash that changes with its content. Of built-in kinds the hash
covers their source data, so that the index does not have to build all documents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any

import msgspec

from zonewise.embedded.apiserver.discovery.operations import build_paths
from zonewise.embedded.apiserver.request.call import Answer, Call
from zonewise.embedded.machinery.schema.definitions import (
    LIST_META,
    OBJECT_META,
    Definitions,
    types_table,
)
from zonewise.embedded.machinery.schema.kinds import Kind
from zonewise.embedded.machinery.schema.schema import Schema

META = "io.k8s.apimachinery.pkg.apis.meta.v1."
SHARED = (META + "DeleteOptions", META + "Patch", META + "Status", LIST_META, OBJECT_META)
REF = "#/components/schemas/"
EMPTY_V2_DOCUMENT = b"\x0a\x032.0\x12\x10\x0a\x08Zonewise\x12\x04none"  # a version and a title

Obj = dict[str, Any]


class OpenApiDocuments:
    """The documents for one set of kinds."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._served: dict[str, tuple[Kind, ...]] = {}
        for kind in kinds:
            name = kind.resource.root.removeprefix("/")
            self._served[name] = (*self._served.get(name, ()), kind)

    def answer(self, path: str, call: Call) -> Answer | None:
        """The answer for a path below `/openapi`, or None if there is none."""
        if path == "/openapi/v2":
            # kubectl searches here for kinds that v3 does not have; there are none.
            return Answer(body=EMPTY_V2_DOCUMENT, content_type="application/octet-stream")
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
        return Answer(body=encode_document(kinds), headers=headers, verbatim=True)

    def _index(self) -> Obj:
        return {
            name: {"serverRelativeURL": f"/openapi/v3/{name}?hash={fingerprint(kinds)}"}
            for name, kinds in sorted(self._served.items())
        }


@lru_cache(maxsize=256)
def fingerprint(kinds: tuple[Kind, ...]) -> str:
    """A hash that changes with the document of these kinds."""
    digest = hashlib.sha512(types_table().version.encode())
    if any(kind.custom for kind in kinds):
        digest.update(encode_document(kinds))
    for kind in kinds:
        digest.update(f"{kind.resource} {kind.verbs} {kind.subresources}".encode())
    return digest.hexdigest().upper()


@lru_cache(maxsize=64)
def encode_document(kinds: tuple[Kind, ...]) -> bytes:
    """The document of the kinds of one group and version."""
    schemas: Obj = {}
    for kind in kinds:
        name = schema_name(kind)
        gvk = _gvk(kind.resource.group, kind.resource.version, kind.resource.kind)
        if kind.custom:
            schemas[name] = _publish_custom(kind)
        else:
            for definition in definitions_below(kind.schema):
                schemas.setdefault(definition.name, publish_definition(definition))
        schemas[name]["x-kubernetes-group-version-kind"] = [gvk]
        if "list" in kind.verbs:
            schemas[f"{name}List"] = _publish_list(kind, name)
    bodies = _subresource_types(kinds)
    for name in (*SHARED, *bodies.values()):
        for definition in definitions_below(_definitions().schema(name)):
            schemas.setdefault(definition.name, publish_definition(definition))
    for name, row in types_table().types.items():
        if row.gvk and name in schemas:
            gvks = [_gvk(*gvk) for gvk in row.gvk]
            schemas[name].setdefault("x-kubernetes-group-version-kind", gvks)
    return msgspec.json.encode(
        {
            "openapi": "3.0.0",
            "info": {"title": "Kubernetes", "version": types_table().version},
            "paths": build_paths(kinds, {kind: schema_name(kind) for kind in kinds}, bodies),
            "components": {"schemas": dict(sorted(schemas.items()))},
        }
    )


def schema_name(kind: Kind) -> str:
    """The name of a kind's schema: its definition's, or built from the group of a custom one."""
    if not kind.custom:
        return kind.schema.name
    reverse = ".".join(reversed(kind.resource.group.split(".")))
    return f"{reverse}.{kind.resource.version}.{kind.resource.kind}"


@cache
def _definitions() -> Definitions:
    return Definitions()


def _subresource_types(kinds: Iterable[Kind]) -> dict[tuple[str, str, str], str]:
    """Definitions of what is sent to subresources of other kinds: Scale, Eviction, TokenRequest."""
    subresource_gvks = {
        (s.group, s.version, s.kind) for kind in kinds for s in kind.subresources.values()
    }
    served_gvks = {(*kind.group_version, kind.resource.kind) for kind in kinds}
    return {
        gvk: name
        for name, row in types_table().types.items()
        for gvk in row.gvk
        if gvk in subresource_gvks - served_gvks
    }


def definitions_below(root: Schema) -> Iterator[Schema]:
    """A definition and all definitions below it, each once."""
    seen: set[str] = set()
    queue = [root]
    while queue:
        schema = queue.pop()
        if schema.name:
            if schema.name in seen:
                continue
            seen.add(schema.name)
            yield schema.definition
        queue += [*schema.fields.values(), *filter(None, (schema.items, schema.values))]


def publish_definition(kind: Schema) -> Obj:
    """The OpenAPI schema of a definition."""
    match kind.shape:
        case "int-or-string":
            return {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]}
        case "any":
            return {} if "JSON" in kind.name else {"type": "object"}
        case "string":
            if kind.format == "quantity":
                return {"oneOf": [{"type": "string"}, {"type": "number"}]}
            return {"type": "string", "format": "date-time"}
    document: Obj = {"type": "object"}
    if kind.fields:
        document["properties"] = {
            name: _publish_field(field) for name, field in sorted(kind.fields.items())
        }
    if kind.required:
        document["required"] = list(kind.required)
    if kind.atomic:
        document["x-kubernetes-map-type"] = "atomic"
    return document


def _publish_field(kind: Schema) -> Obj:
    """The OpenAPI schema of one use of a definition, with the facts about that use."""
    document = _publish_use(kind)
    if kind.shape == "list":
        document["x-kubernetes-list-type"] = kind.list_type
        if kind.keys:
            document["x-kubernetes-list-map-keys"] = list(kind.keys)
    if kind.merge_key:
        document["x-kubernetes-patch-merge-key"] = kind.merge_key
    flags = {"merge": kind.merge, "replace": kind.replace, "retainKeys": kind.retain_keys}
    strategies = [name for name, on in flags.items() if on]
    if strategies:
        document["x-kubernetes-patch-strategy"] = ",".join(strategies)
    default_atomic = kind.origin.atomic if kind.origin is not None else False
    if kind.shape in ("object", "map") and kind.atomic != default_atomic:
        document["x-kubernetes-map-type"] = "atomic" if kind.atomic else "granular"
    return document


def _publish_use(kind: Schema) -> Obj:
    if kind.name:
        return {"allOf": [{"$ref": REF + kind.name}]}
    match kind.shape:
        case "list":
            return {"type": "array", "items": _publish_use(kind.items) if kind.items else {}}
        case "map":
            return {
                "type": "object",
                "additionalProperties": _publish_use(kind.values) if kind.values else {},
            }
        case "any":
            return {}
        case "int-or-string":
            return publish_definition(kind)
        case "object":
            return publish_definition(kind)
    document: Obj = {"type": kind.shape}
    if kind.format:
        document["format"] = kind.format
    if kind.enum:
        document["enum"] = list(kind.enum)
    return document


def _publish_custom(kind: Kind) -> Obj:
    """A custom resource's schema from its definition, with the fields of every object."""
    schema = kind.openapi_schema
    if schema is None:
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return _add_meta(schema)


def _add_meta(schema: Mapping[str, Any], *, root: bool = True) -> Obj:
    result: Obj = {}
    for name, value in schema.items():
        if name == "properties":
            result[name] = {key: _add_meta(item, root=False) for key, item in value.items()}
        elif name in ("items", "additionalProperties") and isinstance(value, Mapping):
            result[name] = _add_meta(value, root=False)
        else:
            result[name] = value
    if root or schema.get("x-kubernetes-embedded-resource"):
        text = {"type": "string"}
        meta = {"allOf": [{"$ref": REF + OBJECT_META}]}
        properties = {**result.get("properties", {}), "metadata": meta}
        result["properties"] = {"apiVersion": text, "kind": text, **properties}
    return result


def _publish_list(kind: Kind, name: str) -> Obj:
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
