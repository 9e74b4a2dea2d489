"""Objects of kinds without a Struct: custom resources, Secrets, anything else in a dump.

``unstructured(resource)`` gives a class that has the same surface as a typed one (``resource``,
``metadata``, ``key``), so client, store and reflector handle both alike. Nothing is dropped:
``raw`` is the whole object as decoded, and it may be sent back. It is shared by all readers and
must not be changed; patches and ``copy.deepcopy`` make changed copies.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

import msgspec

from zonewise.api.errors import ParseError
from zonewise.api.meta import Key, ObjectMeta
from zonewise.api.resource import Resource


class Unstructured:
    """A whole object as plain dictionaries and lists."""

    __slots__ = ("_metadata", "raw")

    resource: ClassVar[Resource]
    metadata_only: ClassVar[bool] = False

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self._metadata: ObjectMeta | None = None

    @property
    def metadata(self) -> ObjectMeta:
        """The typed metadata, made when first used."""
        if self._metadata is None:
            raw = self.raw.get("metadata") or {}
            try:
                present = {name: value for name, value in raw.items() if value is not None}
                self._metadata = msgspec.convert(present, ObjectMeta)
            except (AttributeError, msgspec.ValidationError) as error:
                raise ParseError(f"{self.resource.kind}: bad metadata: {error}") from error
        return self._metadata

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.metadata.key

    def get(self, *path: str | int, default: Any = None) -> Any:
        """The value below a path of names and indexes, or ``default`` where there is none."""
        value: Any = self.raw
        for step in path:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return default
        return default if value is None else value

    def manifest(self) -> dict[str, Any]:
        """The object with apiVersion and kind, which items of a list do not carry."""
        names = {"apiVersion": self.resource.api_version, "kind": self.resource.kind}
        return {**names, **self.raw, **names}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Unstructured):
            return NotImplemented
        return self.resource == other.resource and self.raw == other.raw

    def __hash__(self) -> int:
        return hash((self.resource, self.key))

    def __repr__(self) -> str:
        return f"{self.resource.kind}({'/'.join(filter(None, self.key))})"


@cache
def unstructured(resource: Resource) -> type[Unstructured]:
    """The class for objects of a resource; the same class for the same resource."""
    return type(resource.kind, (Unstructured,), {"__slots__": (), "resource": resource})
