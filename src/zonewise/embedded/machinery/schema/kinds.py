"""What an API server serves: kinds with their names, verbs, subresources and types.

The built-in ones come from the generated table; custom resources make theirs from a
CustomResourceDefinition and are the same thing to everything that handles requests. `Kind` is a
fact sheet, not a behaviour: rules of single kinds are in the server.

Several kinds may be one storage: `events` is served in two groups, `horizontalpodautoscalers` and
`poddisruptionbudgets` in two versions. `storage` names the resource they are kept under.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import msgspec

from zonewise.api.resource import Resource
from zonewise.embedded.machinery.schema.added_fields import SOURCE_FIELDS, SOURCE_TYPES
from zonewise.embedded.machinery.schema.definitions import Definitions, read_table
from zonewise.embedded.machinery.schema.types import Type


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
    path: str = ""  # where a custom resource has what is shown


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

    `type` is made when it is first used. `storage` is `group/plural` of what it is kept as, the
    same for kinds that show one storage.
    """

    resource: Resource
    singular: str
    list_kind: str
    verbs: tuple[str, ...]
    make_type: Callable[[], Type] = field(repr=False)
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: dict[str, Subresource] = field(default_factory=dict)
    storage: str = ""
    storage_hash: str = ""
    columns: tuple[Column, ...] = ()
    custom: bool = False
    schema: Mapping[str, Any] | None = None  # of a custom resource, as its definition has it

    @cached_property
    def type(self) -> Type:
        """The graph of its fields."""
        return self.make_type()

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
    first: dict[str, KindRow] = {}
    for row in rows:
        if row.hash:
            first.setdefault(row.hash, row)
    return tuple(_kind(row, first.get(row.hash, row), definitions) for row in rows)


def served_kinds() -> tuple[Kind, ...]:
    """What the embedded server serves: the built-in kinds with the fields of the source documents,
    and budgets in one more version, which those documents use.
    """
    kinds = builtin_kinds(Definitions(SOURCE_FIELDS, own=SOURCE_TYPES))
    (budget,) = (kind for kind in kinds if kind.resource.kind == "PodDisruptionBudget")
    return (*kinds, with_version(budget, "v1beta1"))


def _kind(row: KindRow, stored: KindRow, definitions: Definitions) -> Kind:
    return Kind(
        resource=Resource(row.group, row.version, row.kind, row.plural, row.namespaced),
        singular=row.singular,
        list_kind=f"{row.kind}List",
        verbs=row.verbs,
        make_type=lambda: definitions.type(row.type),
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
        make_type=lambda: _versioned(kind.type, group, kind.resource.version, version),
        subresources={
            name: replace(sub, version=version) if sub.group == group else sub
            for name, sub in kind.subresources.items()
        },
    )


def _versioned(root: Type, group: str, old: str, new: str) -> Type:
    """A copy of a type in which the definitions of its own group and version have the new name."""
    made: dict[int, Type] = {}
    package = f"io.k8s.api.{group}.{old}."
    renamed = f"io.k8s.api.{group}.{new}."

    def copy(kind: Type) -> Type:
        known = made.get(id(kind))
        if known is not None:
            return known
        if kind.name and not kind.name.startswith(package):
            return kind
        twin = made[id(kind)] = replace(
            kind,
            name=kind.name.replace(package, renamed),
            go=kind.go.replace(f"{old}.", f"{new}.") if kind.name else kind.go,
            fields={},
            origin=None,
        )
        if kind.origin is not None:
            twin.origin = copy(kind.origin)
            twin.fields = twin.origin.fields
        else:
            twin.fields.update({name: copy(below) for name, below in kind.fields.items()})
        twin.items = copy(kind.items) if kind.items is not None else None
        twin.values = copy(kind.values) if kind.values is not None else None
        return twin

    return copy(root)
