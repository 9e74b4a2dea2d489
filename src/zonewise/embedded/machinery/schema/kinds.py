"""What an API server serves: kinds with their names, verbs, subresources and schemas.

The built-in ones come from the generated table, those of custom resources from their
CustomResourceDefinition; whatever handles requests treats both alike. `Kind` only describes: the
behaviour of single kinds is in the server's strategies.

Several kinds may share one storage: `events` is served in two groups, `horizontalpodautoscalers`
and `poddisruptionbudgets` in two versions. `storage` names the resource they are stored as.

*Added* to the generated table are fields that a real server does not have, or has switched off. The
embedded server always has those of the source documents, as a real server has the fields of its
disabled features; the strategy of the kind drops what its feature gate does not allow. It also
stores ``maxUnavailable`` of StatefulSets, which Kubernetes 1.36 has behind a gate that is off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import msgspec

from zonewise.api.resource import Resource
from zonewise.embedded.machinery.schema.definitions import (
    Definition,
    Definitions,
    Extension,
    FieldRow,
    read_table,
)
from zonewise.embedded.machinery.schema.schema import Schema

SERVICE_SPEC = "io.k8s.api.core.v1.ServiceSpec"
BUDGET_SPEC = "io.k8s.api.policy.v1.PodDisruptionBudgetSpec"
BUDGET_STATUS = "io.k8s.api.policy.v1.PodDisruptionBudgetStatus"
DOMAIN_STATUS = "io.zonewise.v1alpha1.DomainStatus"
STATEFUL_UPDATE = "io.k8s.api.apps.v1.RollingUpdateStatefulSetStrategy"

SOURCE_TYPES = {
    DOMAIN_STATUS: Definition(
        fields={
            "domain": FieldRow(of="string", always=True),
            "expectedPods": FieldRow(of="int32", always=True),
            "desiredHealthy": FieldRow(of="int32", always=True),
            "currentHealthy": FieldRow(of="int32", always=True),
            "disruptionsAllowed": FieldRow(of="int32", pointer=True),
        }
    )
}

SOURCE_FIELDS = (
    Extension(BUDGET_STATUS, "fingerprint", FieldRow(of="string")),
    Extension(
        BUDGET_STATUS,
        "domains",
        FieldRow(of=f"[]{DOMAIN_STATUS}", list="map", keys=("domain",), merge="domain"),
    ),
    Extension(
        STATEFUL_UPDATE,
        "maxUnavailable",
        FieldRow(of="io.k8s.apimachinery.pkg.util.intstr.IntOrString", pointer=True),
    ),
    Extension(SERVICE_SPEC, "topologyKeys", FieldRow(of="[]string")),
    Extension(
        SERVICE_SPEC,
        "trafficPolicy",
        FieldRow(
            of="string",
            pointer=True,
            enum=("Cluster", "Local", "PreferZone"),
            go="v1.ServiceTrafficPolicy",
        ),
    ),
    Extension(
        BUDGET_SPEC,
        "nodeSelectorTerm",
        FieldRow(of="io.k8s.api.core.v1.NodeSelectorTerm", pointer=True),
    ),
    Extension(
        BUDGET_SPEC,
        "expectedPods",
        FieldRow(
            of="string",
            pointer=True,
            enum=("Remembered", "ReplicasPerDomain"),
            go="v1.ExpectedPodsPolicy",
        ),
    ),
)


class SubresourceRow(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A subresource in the table; group and version are given where they are not the kind's."""

    name: str
    kind: str
    verbs: tuple[str, ...]
    group: str = ""
    version: str = ""


class Column(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A column of a Table answer."""

    name: str
    type: str = "string"
    format: str = ""
    priority: int = 0
    path: str = ""  # of a custom resource: JSONPath of the value


class KindRow(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A kind in the table."""

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    verbs: tuple[str, ...]
    type: str
    namespaced: bool = False
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    hash: str = ""
    subresources: tuple[SubresourceRow, ...] = ()
    columns: tuple[Column, ...] = ()


class KindTable(msgspec.Struct, frozen=True, gc=False):
    """The generated file."""

    generated: str
    version: str
    kinds: tuple[KindRow, ...]


@dataclass(frozen=True, slots=True)
class Subresource:
    """Something below an object: `status`, `scale`, `eviction`. `kind` is what is sent to it."""

    name: str
    group: str
    version: str
    kind: str
    verbs: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Kind:
    """One served resource of one version.

    `schema` is built when it is first used. `storage` is `group/plural` of the resource it is
    stored as, the same for kinds that share a storage.
    """

    resource: Resource
    singular: str
    list_kind: str
    verbs: tuple[str, ...]
    build_schema: Callable[[], Schema] = field(repr=False)
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: dict[str, Subresource] = field(default_factory=dict)
    storage: str = ""
    storage_hash: str = ""
    columns: tuple[Column, ...] = ()
    custom: bool = False
    openapi_schema: Mapping[str, Any] | None = None  # of a custom resource, as in its definition

    @cached_property
    def schema(self) -> Schema:
        """The graph of its fields, built once."""
        return self.build_schema()

    @property
    def group_version(self) -> tuple[str, str]:
        """What groups kinds in discovery."""
        return self.resource.group, self.resource.version


@cache
def kind_table() -> KindTable:
    """The generated kinds, decoded once per process."""
    return msgspec.json.decode(read_table("kinds.json"), type=KindTable)


def builtin_kinds(definitions: Definitions) -> tuple[Kind, ...]:
    """Every kind a real server of this version serves, in its order of groups."""
    rows = kind_table().kinds
    first_by_hash: dict[str, KindRow] = {}
    for row in rows:
        if row.hash:
            first_by_hash.setdefault(row.hash, row)
    return tuple(_build_kind(row, first_by_hash.get(row.hash, row), definitions) for row in rows)


def served_kinds() -> tuple[Kind, ...]:
    """What the embedded server serves: the built-in kinds with the fields of the source documents,
    and budgets in one more version, which those documents use.
    """
    kinds = builtin_kinds(Definitions(SOURCE_FIELDS, own_definitions=SOURCE_TYPES))
    (budget,) = (kind for kind in kinds if kind.resource.kind == "PodDisruptionBudget")
    return (*kinds, with_version(budget, "v1beta1"))


def _build_kind(row: KindRow, stored: KindRow, definitions: Definitions) -> Kind:
    return Kind(
        resource=Resource(row.group, row.version, row.kind, row.plural, row.namespaced),
        singular=row.singular,
        list_kind=f"{row.kind}List",
        verbs=row.verbs,
        build_schema=lambda: definitions.schema(row.type),
        short_names=row.short,
        categories=row.categories,
        subresources={
            sub.name: Subresource(
                name=sub.name,
                group=sub.group or ("" if sub.version else row.group),
                version=sub.version or row.version,
                kind=sub.kind,
                verbs=sub.verbs,
            )
            for sub in row.subresources
        },
        storage=f"{stored.group}/{stored.plural}",
        storage_hash=row.hash,
        columns=row.columns,
    )


def with_version(kind: Kind, version: str) -> Kind:
    """A kind served in one more version that is the same in every field."""
    resource = replace(kind.resource, version=version)
    group = kind.resource.group
    return replace(
        kind,
        resource=resource,
        build_schema=lambda: _copy_at_version(kind.schema, group, kind.resource.version, version),
        subresources={
            name: replace(sub, version=version) if sub.group == group else sub
            for name, sub in kind.subresources.items()
        },
    )


def _copy_at_version(root: Schema, group: str, old: str, new: str) -> Schema:
    """A copy of a schema in which the definitions of its own group have the new version."""
    copies: dict[int, Schema] = {}
    package = f"io.k8s.api.{group}.{old}."
    renamed = f"io.k8s.api.{group}.{new}."

    def copy(node: Schema) -> Schema:
        copied = copies.get(id(node))
        if copied is not None:
            return copied
        if node.name and not node.name.startswith(package):
            return node
        result = copies[id(node)] = replace(
            node,
            name=node.name.replace(package, renamed),
            go_type=node.go_type.replace(f"{old}.", f"{new}.") if node.name else node.go_type,
            fields={},
            origin=None,
        )
        if node.origin is not None:
            result.origin = copy(node.origin)
            result.fields = result.origin.fields
        else:
            result.fields.update({name: copy(child) for name, child in node.fields.items()})
        result.items = copy(node.items) if node.items is not None else None
        result.values = copy(node.values) if node.values is not None else None
        return result

    return copy(root)
