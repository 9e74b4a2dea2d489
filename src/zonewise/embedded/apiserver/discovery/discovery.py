"""Discovery: which groups, versions and kinds there are, in both of the forms that clients request.

The plain form is one document per group and version; the aggregated one (`apidiscovery.k8s.io/v2`)
has everything in two. Both are made from the list of kinds when they are first requested and kept
as bytes: the list changes only when a custom resource definition does, and then a new `Discovery`
replaces the old one.

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
    clauses,
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
        self._groups = _grouped(tuple(kinds))
        self._made: dict[str, bytes] = {}

    def page(self, path: str, call: Call) -> Answer | None:
        """The answer for a path, or None where discovery has nothing."""
        if path in ("/api", "/apis") and any(map(_is_aggregated, clauses(_accept(call)))):
            return self._aggregated(path, call)
        make = self._maker(path)
        if make is None:
            return None
        form = _plain_form(_accept(call))
        body = self._body(path, make)
        if form == "yaml":
            text: str = yaml.dump(msgspec.json.decode(body), Dumper=yaml.CSafeDumper)
            return Answer(body=text.encode(), content_type="application/yaml")
        return Answer(body=body)

    def _maker(self, path: str) -> Callable[[], Obj] | None:
        match path.split("/")[1:]:
            case ["api"]:
                return self._versions
            case ["apis"]:
                return self._group_list
            case ["apis", group] if group in self._groups and group:
                return lambda: {"kind": "APIGroup", "apiVersion": "v1"} | self._group(group)
            case ["api", version] if version in self._groups.get("", {}):
                return lambda: self._resources("", version)
            case ["apis", group, version] if version in self._groups.get(group, {}) and group:
                return lambda: self._resources(group, version)
        return None

    def _body(self, name: str, make: Callable[[], Obj]) -> bytes:
        found = self._made.get(name)
        if found is None:
            found = self._made[name] = msgspec.json.encode(make())
        return found

    def _versions(self) -> Obj:
        address = {"clientCIDR": "0.0.0.0/0", "serverAddress": self._address}
        return {
            "kind": "APIVersions",
            "versions": list(self._groups.get("", {})),
            "serverAddressByClientCIDRs": [address],
        }

    def _group_list(self) -> Obj:
        groups = [self._group(name) for name in self._groups if name]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}

    def _group(self, name: str) -> Obj:
        versions = [
            {"groupVersion": f"{name}/{version}", "version": version}
            for version in self._groups[name]
        ]
        return {"name": name, "versions": versions, "preferredVersion": versions[0]}

    def _resources(self, group: str, version: str) -> Obj:
        named = {"apiVersion": "v1"} if group else {}
        resources = []
        for kind in self._groups[group][version]:
            resources.append(_resource(kind))
            resources += [_subresource(kind, sub) for sub in kind.subresources.values()]
        return {
            "kind": "APIResourceList",
            **named,
            "groupVersion": f"{group}/{version}" if group else version,
            "resources": resources,
        }

    def _aggregated(self, path: str, call: Call) -> Answer:
        names = [name for name in self._groups if (name == "") == (path == "/api")]
        body = self._body(f"{path} aggregated", lambda: self._discovery_list(names))
        tag = f'"{hashlib.sha512(body).hexdigest().upper()}"'
        headers = {"ETag": tag, "Vary": "Accept", "Cache-Control": "public"}
        if tag in call.headers.get("if-none-match", ""):
            # Caches put the headers of a 304 over those they have: the type must stay what it is.
            return Answer(status=304, content_type=AGGREGATED, headers=headers)
        return Answer(body=body, content_type=AGGREGATED, headers=headers)

    def _discovery_list(self, names: Iterable[str]) -> Obj:
        items = []
        for name in names:
            versions = [
                {
                    "version": version,
                    "resources": [_discovered(kind) for kind in kinds],
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


def _plain_form(accept: str) -> str:
    for clause in clauses(accept):
        if clause.media in PLAIN and not clause.get("as"):
            return "json"
        if clause.media in YAML and not clause.get("as"):
            return "yaml"
    raise status_errors.not_acceptable(
        ANSWER_TYPES[:2], PROTOBUF_HINT if PROTOBUF in accept else ""
    )


def _grouped(kinds: tuple[Kind, ...]) -> dict[str, dict[str, list[Kind]]]:
    """Kinds by group and version, both in the order they are shown in."""
    custom = sorted({kind.resource.group for kind in kinds if kind.custom})
    order = {kind.resource.group: None for kind in kinds if not kind.custom}
    groups: dict[str, dict[str, list[Kind]]] = {name: {} for name in (*order, *custom)}
    for kind in sorted(kinds, key=lambda kind: version_rank(kind.resource.version)):
        groups[kind.resource.group].setdefault(kind.resource.version, []).append(kind)
    return groups


def _resource(kind: Kind) -> Obj:
    shown: Obj = {
        "name": kind.resource.plural,
        "singularName": kind.singular,
        "namespaced": kind.resource.namespaced,
        "kind": kind.resource.kind,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        shown["shortNames"] = list(kind.short_names)
    if kind.categories:
        shown["categories"] = list(kind.categories)
    if kind.storage_hash:
        shown["storageVersionHash"] = kind.storage_hash
    return shown


def _subresource(kind: Kind, sub: Subresource) -> Obj:
    shown: Obj = {
        "name": f"{kind.resource.plural}/{sub.name}",
        "singularName": "",
        "namespaced": kind.resource.namespaced,
    }
    if (sub.group, sub.version) != kind.group_version:
        shown |= {"group": sub.group, "version": sub.version} if sub.group else {}
    return shown | {"kind": sub.kind, "verbs": list(sub.verbs)}


def _discovered(kind: Kind) -> Obj:
    shown: Obj = {
        "resource": kind.resource.plural,
        "responseKind": _response_kind(kind, *kind.group_version, kind.resource.kind),
        "scope": "Namespaced" if kind.resource.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        shown["shortNames"] = list(kind.short_names)
    if kind.categories:
        shown["categories"] = list(kind.categories)
    if kind.subresources:
        shown["subresources"] = [
            {
                "subresource": sub.name,
                "responseKind": _response_kind(kind, sub.group, sub.version, sub.kind),
                "verbs": list(sub.verbs),
            }
            for sub in kind.subresources.values()
        ]
    return shown


def _response_kind(kind: Kind, group: str, version: str, name: str) -> Obj:
    """What a request answers with; built-in kinds leave out a group and version that are theirs."""
    if not kind.custom and (group, version) == kind.group_version:
        group = version = ""
    return {"group": group, "version": version, "kind": name}
