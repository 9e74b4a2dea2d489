"""The kinds that this server serves, each with its schema, its strategy and its storage.

Built-in kinds are served from the start; custom ones are added and removed with their definitions.
Several served kinds may share one storage (versions of a custom resource, the two groups of
Events); ``ServedKind.conversion`` and ``ServedKind.versions`` distinguish them.
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
from zonewise.embedded.apiserver.store.entry import encoded_prefix
from zonewise.embedded.apiserver.strategy.base import Rules
from zonewise.embedded.machinery.schema.kinds import Kind

Obj = dict[str, Any]

_VERSION = re.compile(r"v([1-9][0-9]*)(?:(alpha|beta)([1-9][0-9]*))?")


class CustomValidation(Protocol):
    """Validation of a custom resource by its structural schema, beyond field types."""

    def validate(self, obj: Obj, old: Obj | None) -> list[StatusCause]:
        """The errors in an object, or in its change from ``old``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """Conversion between a served version and the stored one; both change the object in place."""

    stored_as: str  # apiVersion of stored objects
    to_storage: Callable[[Obj], None]
    from_storage: Callable[[Obj], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedKind:
    """One kind in one version, with its rules."""

    kind: Kind
    rules: Rules
    conversion: Conversion | None = None
    versions: Versions | None = None  # of a custom resource that has several
    custom_validation: CustomValidation | None = None
    deprecation: str = ""  # the warning for its users
    definition_version: Mapping[str, Any] | None = (
        None  # of a custom kind: the version in its definition
    )

    @cached_property
    def storage(self) -> str:
        """The storage of its objects: "group/plural", shared by all versions."""
        return self.kind.storage

    @cached_property
    def custom(self) -> bool:
        """Whether it comes from a CustomResourceDefinition."""
        return self.kind.custom

    @cached_property
    def fills_defaults_on_read(self) -> bool:
        """Whether stored objects may lack a default that was added to the definition later."""
        return self.custom and b'"default":' in msgspec.json.encode(self.kind.openapi_schema)

    @cached_property
    def prefix(self) -> bytes:
        """How every encoded object of this kind begins."""
        resource = self.kind.resource
        return encoded_prefix(resource.kind, resource.api_version)

    @property
    def is_storage_version(self) -> bool:
        """Whether its objects are stored in this version."""
        if self.versions is not None:
            return self.versions.stored_as == self.kind.resource.api_version
        return self.conversion is None


class Registry:
    """The served kinds by path and by kind."""

    def __init__(self, served: Iterable[ServedKind]) -> None:
        self._paths: dict[tuple[str, str, str], ServedKind] = {}
        self._kinds: dict[tuple[str, str, str], ServedKind] = {}
        self._listeners: list[Callable[[], None]] = []
        for served_kind in served:
            self._add(served_kind)

    def __iter__(self) -> Iterator[ServedKind]:
        return iter(self._paths.values())

    def by_path(self, group: str, version: str, plural: str) -> ServedKind | None:
        """The kind of a path."""
        return self._paths.get((group, version, plural))

    def by_kind(self, api_version: str, kind: str) -> ServedKind | None:
        """The kind of an object or a reference."""
        group, _, version = api_version.rpartition("/")
        return self._kinds.get((group, version, kind))

    def storages(self) -> dict[str, ServedKind]:
        """One served kind for each storage."""
        by_storage: dict[str, ServedKind] = {}
        for served in self._paths.values():
            if served.is_storage_version or served.storage not in by_storage:
                by_storage[served.storage] = served
        return by_storage

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after kinds were added or removed."""
        self._listeners.append(listener)

    def replace(self, removed: Iterable[ServedKind], added: Iterable[ServedKind]) -> None:
        """Remove kinds and add others in one step."""
        for served in removed:
            resource = served.kind.resource
            self._paths.pop((resource.group, resource.version, resource.plural), None)
            self._kinds.pop((resource.group, resource.version, resource.kind), None)
        for served in added:
            self._add(served)
        for listener in self._listeners:
            listener()

    def _add(self, served: ServedKind) -> None:
        resource = served.kind.resource
        self._paths[resource.group, resource.version, resource.plural] = served
        self._kinds[resource.group, resource.version, resource.kind] = served


def version_rank(version: str) -> tuple[int, int, int, str]:
    """The sort key of versions, best first; names of another form are last."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return 3, 0, 0, version
    stability = {None: 0, "beta": 1, "alpha": 2}[match[2]]
    return stability, -int(match[1]), -int(match[3] or 0), ""
