"""Discovery: the served groups, versions and kinds, in both of the forms that clients request.

The plain form is one document per group and version; the aggregated one (`apidiscovery.k8s.io/v2`)
has everything in two. Both are built from the list of kinds at the first request and cached as
bytes: the list changes only with a custom resource definition, and then a new `Discovery` replaces
the old one.

Groups are in the order of a real server, those of custom resources last and by name; versions are
best first: stable before beta before alpha, higher before lower.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import yaml

from zonewise.embedded.apiserver.registry import version_rank
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.request.call import Answer, Call
from zonewise.embedded.apiserver.request.negotiation import (
    ANSWER_TYPES,
    PROTOBUF,
    PROTOBUF_HINT,
    Clause,
    parse_accept,
)
from zonewise.embedded.machinery.schema.kinds import Kind, Subresource

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
PLAIN = frozenset({"application/json", "application/*", "*/*"})
YAML = frozenset({"application/yaml", "text/yaml"})

Obj = dict[str, Any]


class Discovery:
    """The documents for one set of kinds."""

    def __init__(self, kinds: Iterable[Kind], *, address: str = "") -> None:
        self._address = address
        self._groups = _group_kinds(tuple(kinds))
        self._documents: dict[str, bytes] = {}

    def answer(self, path: str, call: Call) -> Answer | None:
        """The answer for a path, or None if it is not of discovery."""
        if path in ("/api", "/apis") and any(map(_is_aggregated, parse_accept(_accept(call)))):
            return self._answer_aggregated(path, call)
        build = self._find_builder(path)
        if build is None:
            return None
        format_name = _negotiate_plain(_accept(call))
        body = self._encode_once(path, build)
        if format_name == "yaml":
            text: str = yaml.dump(msgspec.json.decode(body), Dumper=yaml.CSafeDumper)
            return Answer(body=text.encode(), content_type="application/yaml")
        return Answer(body=body)

    def _find_builder(self, path: str) -> Callable[[], Obj] | None:
        match path.split("/")[1:]:
            case ["api"]:
                return self._build_versions
            case ["apis"]:
                return self._build_group_list
            case ["apis", group] if group in self._groups and group:
                return lambda: {"kind": "APIGroup", "apiVersion": "v1"} | self._build_group(group)
            case ["api", version] if version in self._groups.get("", {}):
                return lambda: self._build_resources("", version)
            case ["apis", group, version] if version in self._groups.get(group, {}) and group:
                return lambda: self._build_resources(group, version)
        return None

    def _encode_once(self, name: str, build: Callable[[], Obj]) -> bytes:
        document = self._documents.get(name)
        if document is None:
            document = self._documents[name] = msgspec.json.encode(build())
        return document

    def _build_versions(self) -> Obj:
        address = {"clientCIDR": "0.0.0.0/0", "serverAddress": self._address}
        return {
            "kind": "APIVersions",
            "versions": list(self._groups.get("", {})),
            "serverAddressByClientCIDRs": [address],
        }

    def _build_group_list(self) -> Obj:
        groups = [self._build_group(name) for name in self._groups if name]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}

    def _build_group(self, name: str) -> Obj:
        versions = [
            {"groupVersion": f"{name}/{version}", "version": version}
            for version in self._groups[name]
        ]
        return {"name": name, "versions": versions, "preferredVersion": versions[0]}

    def _build_resources(self, group: str, version: str) -> Obj:
        type_meta = {"apiVersion": "v1"} if group else {}
        resources = []
        for kind in self._groups[group][version]:
            resources.append(_build_resource(kind))
            resources += [_build_subresource(kind, sub) for sub in kind.subresources.values()]
        return {
            "kind": "APIResourceList",
            **type_meta,
            "groupVersion": f"{group}/{version}" if group else version,
            "resources": resources,
        }

    def _answer_aggregated(self, path: str, call: Call) -> Answer:
        names = [name for name in self._groups if (name == "") == (path == "/api")]
        body = self._encode_once(f"{path} aggregated", lambda: self._build_discovery_list(names))
        tag = f'"{hashlib.sha512(body).hexdigest().upper()}"'
        headers = {"ETag": tag, "Vary": "Accept", "Cache-Control": "public"}
        if tag in call.headers.get("if-none-match", ""):
            # Caches replace their headers by those of a 304: the content type must be the same.
            return Answer(status=304, content_type=AGGREGATED, headers=headers)
        return Answer(body=body, content_type=AGGREGATED, headers=headers)

    def _build_discovery_list(self, names: Iterable[str]) -> Obj:
        items = []
        for name in names:
            versions = [
                {
                    "version": version,
                    "resources": [_build_discovered(kind) for kind in kinds],
                    "freshness": "Current",
                }
                for version, kinds in self._groups[name].items()
            ]
            items.append({"metadata": {"name": name} if name else {}, "versions": versions})
        return {
            "kind": "APIGroupDiscoveryList",
            "apiVersion": "apidiscovery.k8s.io/v2",
            "metadata": {},
            "items": items,
        }


def _accept(call: Call) -> str:
    return call.headers.get("accept", "") or "application/json"


def _is_aggregated(clause: Clause) -> bool:
    return (
        clause.media == "application/json"
        and clause.get("g") == "apidiscovery.k8s.io"
        and clause.get("v") == "v2"
        and clause.get("as") == "APIGroupDiscoveryList"
    )


def _negotiate_plain(accept: str) -> str:
    for clause in parse_accept(accept):
        if clause.media in PLAIN and not clause.get("as"):
            return "json"
        if clause.media in YAML and not clause.get("as"):
            return "yaml"
    raise status_errors.not_acceptable(
        ANSWER_TYPES[:2], PROTOBUF_HINT if PROTOBUF in accept else ""
    )


def _group_kinds(kinds: tuple[Kind, ...]) -> dict[str, dict[str, list[Kind]]]:
    """Kinds by group and version, both in the order of the documents."""
    custom = sorted({kind.resource.group for kind in kinds if kind.custom})
    order = {kind.resource.group: None for kind in kinds if not kind.custom}
    groups: dict[str, dict[str, list[Kind]]] = {name: {} for name in (*order, *custom)}
    for kind in sorted(kinds, key=lambda kind: version_rank(kind.resource.version)):
        groups[kind.resource.group].setdefault(kind.resource.version, []).append(kind)
    return groups


def _build_resource(kind: Kind) -> Obj:
    document: Obj = {
        "name": kind.resource.plural,
        "singularName": kind.singular,
        "namespaced": kind.resource.namespaced,
        "kind": kind.resource.kind,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        document["shortNames"] = list(kind.short_names)
    if kind.categories:
        document["categories"] = list(kind.categories)
    if kind.storage_hash:
        document["storageVersionHash"] = kind.storage_hash
    return document


def _build_subresource(kind: Kind, sub: Subresource) -> Obj:
    document: Obj = {
        "name": f"{kind.resource.plural}/{sub.name}",
        "singularName": "",
        "namespaced": kind.resource.namespaced,
    }
    if (sub.group, sub.version) != kind.group_version:
        document |= {"group": sub.group, "version": sub.version} if sub.group else {}
    return document | {"kind": sub.kind, "verbs": list(sub.verbs)}


def _build_discovered(kind: Kind) -> Obj:
    document: Obj = {
        "resource": kind.resource.plural,
        "responseKind": _response_kind(kind, *kind.group_version, kind.resource.kind),
        "scope": "Namespaced" if kind.resource.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        document["shortNames"] = list(kind.short_names)
    if kind.categories:
        document["categories"] = list(kind.categories)
    if kind.subresources:
        document["subresources"] = [
            {
                "subresource": sub.name,
                "responseKind": _response_kind(kind, sub.group, sub.version, sub.kind),
                "verbs": list(sub.verbs),
            }
            for sub in kind.subresources.values()
        ]
    return document


def _response_kind(kind: Kind, group: str, version: str, name: str) -> Obj:
    """The kind of an answer; built-in kinds omit a group and version that equal their own."""
    if not kind.custom and (group, version) == kind.group_version:
        group = version = ""
    return {"group": group, "version": version, "kind": name}
