"""The paths of an OpenAPI document: the requests of each kind, with their parameters.

Clients read two things here: whether a kind's PATCH has the parameter `fieldValidation` (kubectl
checks before it sends it), and `x-kubernetes-action` with `x-kubernetes-group-version-kind`, which
give a path's meaning without parsing it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from zonewise.embedded.machinery.schema.kinds import Kind, Subresource

Obj = dict[str, Any]

REF = "#/components/schemas/"
META = "io.k8s.apimachinery.pkg.apis.meta.v1."
LIST_PARAMETERS = {
    "allowWatchBookmarks": "boolean",
    "continue": "string",
    "fieldSelector": "string",
    "labelSelector": "string",
    "limit": "integer",
    "resourceVersion": "string",
    "resourceVersionMatch": "string",
    "sendInitialEvents": "boolean",
    "timeoutSeconds": "integer",
    "watch": "boolean",
}
WRITE_PARAMETERS = {"dryRun": "string", "fieldManager": "string", "fieldValidation": "string"}
DELETE_PARAMETERS = {
    "dryRun": "string",
    "gracePeriodSeconds": "integer",
    "orphanDependents": "boolean",
    "propagationPolicy": "string",
}
PATCHES = (
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)
# verb: (method, action, word in the operation's name, parameters)
COLLECTION = {
    "list": ("get", "list", "list", LIST_PARAMETERS),
    "create": ("post", "post", "create", WRITE_PARAMETERS),
    "deletecollection": ("delete", "deletecollection", "deleteCollection", DELETE_PARAMETERS),
}
ITEM: dict[str, tuple[str, str, str, dict[str, str]]] = {
    "get": ("get", "get", "read", {}),
    "update": ("put", "put", "replace", WRITE_PARAMETERS),
    "patch": ("patch", "patch", "patch", {**WRITE_PARAMETERS, "force": "boolean"}),
    "delete": ("delete", "delete", "delete", DELETE_PARAMETERS),
}
SUBRESOURCE = {**ITEM, "create": ("post", "post", "create", WRITE_PARAMETERS)}


def build_paths(
    kinds: Iterable[Kind], schemas: Mapping[Kind, str], bodies: Mapping[tuple[str, str, str], str]
) -> Obj:
    """All paths of some kinds, whose schemas have these names.

    `bodies` has the schemas of subresources' bodies that are not the kind itself.
    """
    paths: Obj = {}
    for kind in kinds:
        resource, schema = kind.resource, schemas[kind]
        namespace_part = "/namespaces/{namespace}" if resource.namespaced else ""
        collection = f"{resource.root}{namespace_part}/{resource.plural}"
        outer = ["namespace"] if resource.namespaced else []
        if resource.namespaced and "list" in kind.verbs:
            _add_path(
                paths, f"{resource.root}/{resource.plural}", [], _list_all_namespaces(kind, schema)
            )
        _add_path(paths, collection, outer, _build_operations(kind, COLLECTION, schema))
        item = [*outer, "name"]
        _add_path(paths, f"{collection}/{{name}}", item, _build_operations(kind, ITEM, schema))
        for sub in kind.subresources.values():
            path = f"{collection}/{{name}}/{sub.name}"
            body = bodies.get((sub.group, sub.version, sub.kind), schema)
            _add_path(paths, path, item, _build_operations(kind, SUBRESOURCE, body, sub))
    return dict(sorted(paths.items()))


def _add_path(paths: Obj, path: str, parameters: Iterable[str], operations: Obj) -> None:
    if operations:
        path_parameters = [
            {"name": name, "in": "path", "required": True, "schema": _scalar("string")}
            for name in parameters
        ]
        paths[path] = {**operations, **({"parameters": path_parameters} if path_parameters else {})}


def _list_all_namespaces(kind: Kind, schema: str) -> Obj:
    operations = _build_operations(kind, {"list": COLLECTION["list"]}, schema)
    operations["get"]["operationId"] += "ForAllNamespaces"
    return operations


def _build_operations(
    kind: Kind,
    table: Mapping[str, tuple[str, str, str, dict[str, str]]],
    schema: str,
    sub: Subresource | None = None,
) -> Obj:
    verbs = kind.verbs if sub is None else sub.verbs
    group, version = kind.group_version
    kind_name = kind.resource.kind
    if sub is not None:
        group, version, kind_name = sub.group, sub.version, sub.kind
    operations: Obj = {}
    for verb, (method, action, word, parameters) in table.items():
        if verb not in verbs:
            continue
        operation: Obj = {
            "operationId": word + _operation_name(kind) + (sub.name.title() if sub else ""),
            "responses": {"200": {"description": "OK", "content": _content(schema, action)}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": {
                "group": group,
                "version": version,
                "kind": kind_name,
            },
        }
        if parameters:
            operation["parameters"] = [
                {"name": name, "in": "query", "schema": _scalar(format_name)}
                for name, format_name in parameters.items()
            ]
        if method in ("post", "put"):
            operation["requestBody"] = {"required": True, "content": _content(schema, action)}
        elif method == "patch":
            patch = {"schema": {"$ref": f"{REF}{META}Patch"}}
            # kubectl patches with the best format listed here, and only built-in kinds support all.
            forms = [
                format_name
                for format_name in PATCHES
                if not (kind.custom and "strategic" in format_name)
            ]
            operation["requestBody"] = {"required": True, "content": dict.fromkeys(forms, patch)}
        operations[method] = operation
    return operations


def _operation_name(kind: Kind) -> str:
    group = (kind.resource.group.split(".")[0] or "core").title()
    namespaced = "Namespaced" if kind.resource.namespaced else ""
    return f"{group}{kind.resource.version.title()}{namespaced}{kind.resource.kind}"


def _content(schema: str, action: str) -> Obj:
    name = f"{schema}List" if action == "list" else schema
    if action == "deletecollection":
        name = META + "Status"
    return {"application/json": {"schema": {"$ref": REF + name}}}


def _scalar(type_name: str) -> Obj:
    return {"type": type_name, "uniqueItems": True}
