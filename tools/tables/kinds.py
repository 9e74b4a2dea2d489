"""The table of kinds: discovery says what is served, a Table answer which columns a list has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.tables.server import Server
from zonewise.embedded.machinery.schema.definitions import Definition
from zonewise.embedded.machinery.schema.kinds import Column, KindRow, SubresourceRow

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def group_versions(server: Server) -> list[tuple[str, str]]:
    """All groups with their versions, in the order of the server's preference; the core group
    first.
    """
    versions = [("", version) for version in server.get("/api")["versions"]]
    for group in server.get("/apis")["groups"]:
        versions += [(group["name"], version["version"]) for version in group["versions"]]
    return versions


def kinds(server: Server, definitions: Mapping[str, Definition]) -> list[KindRow]:
    """Every resource of every group and version, with its subresources."""
    types = {gvk: name for name, row in definitions.items() for gvk in row.gvk}
    rows = []
    for group, version in group_versions(server):
        root = f"/apis/{group}/{version}" if group else f"/api/{version}"
        resources = server.get(root)["resources"]
        below: dict[str, list[SubresourceRow]] = {}
        for resource in resources:
            plural, _, subresource = resource["name"].partition("/")
            if subresource:
                below.setdefault(plural, []).append(_subresource(subresource, resource))
        for resource in resources:
            if "/" in resource["name"]:
                continue
            kind = resource["kind"]
            rows.append(
                KindRow(
                    group=group,
                    version=version,
                    kind=kind,
                    plural=resource["name"],
                    namespaced=resource["namespaced"],
                    singular=resource["singularName"],
                    short=tuple(resource.get("shortNames", ())),
                    categories=tuple(resource.get("categories", ())),
                    verbs=tuple(resource["verbs"]),
                    hash=resource.get("storageVersionHash", ""),
                    type=types[group, version, kind],
                    subresources=tuple(below.get(resource["name"], ())),
                    columns=_columns(server, root, resource),
                )
            )
    return rows


def _subresource(name: str, resource: Mapping[str, Any]) -> SubresourceRow:
    return SubresourceRow(
        name=name,
        kind=resource["kind"],
        group=resource.get("group", ""),
        version=resource.get("version", ""),
        verbs=tuple(resource["verbs"]),
    )


def _columns(server: Server, root: str, resource: Mapping[str, Any]) -> tuple[Column, ...]:
    if "list" not in resource["verbs"]:
        return ()
    table = server.get(f"{root}/{resource['name']}?limit=1", TABLE)
    return tuple(
        Column(
            name=column["name"],
            type=column["type"],
            format=column["format"],
            priority=column["priority"],
        )
        for column in table["columnDefinitions"]
    )
