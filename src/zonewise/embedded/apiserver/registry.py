"""Which kinds this server serves, each with its schema, its rules and where it is stored.

Built-in kinds are served from the start; custom ones are added and removed with their definitions.
Several served kinds may share one storage (versions of a custom resource, the two faces of Events);
``Served.conversion`` and ``Served.versions`` distinguish them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import msgspec

from zonewise.api.errors import StatusCause
from zonewise.embedded.apiserver.conversion.versions import Versions
from zonewise.embedded.apiserver.store.entry import prefix
from zonewise.embedded.apiserver.strategy.base import Rules
from zonewise.embedded.machinery.schema.kinds import Kind

Obj = dict[str, Any]

_VERSION = re.compile(r"v([1-9][0-9]*)(?:(alpha|beta)([1-9][0-9]*))?")


class Structure(Protocol):
    """What a structural schema says of a custom resource beyond its field types."""

    def faults(self, obj: Obj, old: Obj | None) -> list[StatusCause]:
        """What is wrong with an object, or with its change from ``old``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """How a served version differs from the stored one; both ways change the object in place."""

    stored_as: str  # the apiVersion objects are kept in
    to_storage: Callable[[Obj], None]
    from_storage: Callable[[Obj], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Served:
    """One kind in one version, with its rules."""

    kind: Kind
    rules: Rules
    conversion: Conversion | None = None
    versions: Versions | None = None  # of a custom resource that has several
    structure: Structure | None = None
    deprecation: str = ""  # the warning for its users
    table: Mapping[str, Any] | None = None  # a custom version, whose columns are JSON paths

    @property
    def storage(self) -> str:
        """Where its objects are kept: "group/plural", shared by all versions."""
        return self.kind.storage

    @property
    def custom(self) -> bool:
        """Whether a CustomResourceDefinition made it."""
        return self.kind.custom

    @cached_property
    def refills(self) -> bool:
        """Whether what is stored may lack a default that its definition has got since."""
        return self.custom and b'"default":' in msgspec.json.encode(self.kind.schema)

    @cached_property
    def prefix(self) -> bytes:
        """How every encoded object of this kind begins."""
        resource = self.kind.resource
        return prefix(resource.kind, resource.api_version)

    @property
    def stored(self) -> bool:
        """Whether its objects are written in just this version."""
        if self.versions is not None:
            return self.versions.stored_as == self.kind.resource.api_version
        return self.conversion is None


class Registry:
    """The served kinds by path and by kind."""

    def __init__(self, served: Iterable[Served]) -> None:
        self._paths: dict[tuple[str, str, str], Served] = {}
        self._kinds: dict[tuple[str, str, str], Served] = {}
        self._listeners: list[Callable[[], None]] = []
        for one in served:
            self._put(one)

    def __iter__(self) -> Iterator[Served]:
        return iter(self._paths.values())

    def at(self, group: str, version: str, plural: str) -> Served | None:
        """The kind a path names."""
        return self._paths.get((group, version, plural))

    def of(self, api_version: str, kind: str) -> Served | None:
        """The kind an object or a reference names."""
        group, _, version = api_version.rpartition("/")
        return self._kinds.get((group, version, kind))

    def storages(self) -> dict[str, Served]:
        """One served kind for each storage."""
        found: dict[str, Served] = {}
        for one in self._paths.values():
            if one.stored or one.storage not in found:
                found[one.storage] = one
        return found

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after kinds were added or removed."""
        self._listeners.append(listener)

    def replace(self, gone: Iterable[Served], come: Iterable[Served]) -> None:
        """Take kinds away and add others in one step."""
        for one in gone:
            resource = one.kind.resource
            self._paths.pop((resource.group, resource.version, resource.plural), None)
            self._kinds.pop((resource.group, resource.version, resource.kind), None)
        for one in come:
            self._put(one)
        for listener in self._listeners:
            listener()

    def _put(self, one: Served) -> None:
        resource = one.kind.resource
        self._paths[resource.group, resource.version, resource.plural] = one
        self._kinds[resource.group, resource.version, resource.kind] = one


def version_rank(version: str) -> tuple[int, int, int, str]:
    """Sorts versions best first; what does not look like one is last, by name."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return 3, 0, 0, version
    stability = {None: 0, "beta": 1, "alpha": 2}[match[2]]
    return stability, -int(match[1]), -int(match[3] or 0), ""
