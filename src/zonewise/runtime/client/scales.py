"""How many replicas an object of any kind specifies.

Kinds that are not known beforehand, custom resources above all, are found by discovery. Their
``scale`` subresource counts; without one, ``spec.replicas`` of the object, if there is any.
``Scales`` requests the same object at most every ``AGAIN`` seconds, while it is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from zonewise.api.errors import Forbidden, NotFound
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct, field
from zonewise.api.unstructured import Unstructured, unstructured

if TYPE_CHECKING:
    from zonewise.runtime.client.client import Client

ObjectPath: TypeAlias = tuple[str, str, str, str]
"""Group, kind, namespace and name."""

AGAIN = 30.0


class _Version(Struct):
    version: str = ""


class _Group(Struct):
    name: str = ""
    versions: tuple[_Version, ...] = ()
    preferred_version: _Version = _Version()


class _Resource(Struct):
    name: str = ""
    kind: str = ""
    namespaced: bool = True


class _Resources(Struct):
    resources: tuple[_Resource, ...] = ()


class _ScaleSpec(Struct):
    replicas: int = 0


class _Scale(Struct):
    spec: _ScaleSpec = field(default=_ScaleSpec())


class Scales:
    """Reads again after a while, and never the same object twice at the same time."""

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._read_at: dict[ObjectPath, float] = {}

    async def refresh(
        self, namespace: str, requested: Iterable[ObjectPath]
    ) -> dict[ObjectPath, Unstructured | None]:
        """The requested objects of a namespace that were not read lately; None if there is none.

        An object that was requested before and is not now is None too, because nobody needs it.
        """
        paths = set(requested)
        objects: dict[ObjectPath, Unstructured | None] = {
            path: None for path in self._read_at if path[2] == namespace and path not in paths
        }
        for path in objects:
            del self._read_at[path]
        now = self._clock()
        for path in sorted(paths):
            if now - self._read_at.get(path, float("-inf")) >= AGAIN:
                self._read_at[path] = now
                objects[path] = await fetch(self._client, *path)
        return objects


async def fetch(
    client: Client, group: str, kind: str, namespace: str, name: str
) -> Unstructured | None:
    """An object with its replicas; None if it, or its kind, does not exist or is forbidden.

    One of a kind without namespaces, a Node for example, is returned as if it were in the namespace
    of the pods it owns: that is where owners are looked up.
    """
    try:
        version, known = await _resources(client, group)
        discovered = next(
            resource for resource in known if resource.kind == kind and "/" not in resource.name
        )
    except (NotFound, Forbidden, StopIteration):
        return None
    plural = discovered.name
    resource = Resource(group, version, kind, plural, namespaced=discovered.namespaced)
    try:
        answer = await client.raw("GET", resource.path(namespace, name))
        value: dict[str, Any] = msgspec.json.decode(answer.body)
        if any(subresource.name == f"{plural}/scale" for subresource in known):
            scaled = await client.raw("GET", resource.path(namespace, name, "scale"))
            replicas = msgspec.json.decode(scaled.body, type=_Scale).spec.replicas
            value = {**value, "spec": {**(value.get("spec") or {}), "replicas": replicas}}
    except (NotFound, Forbidden):
        return None
    if not discovered.namespaced:
        value = {**value, "metadata": {**value["metadata"], "namespace": namespace}}
    return unstructured(resource)(value)


async def _resources(client: Client, group: str) -> tuple[str, tuple[_Resource, ...]]:
    """The preferred version of a group and what is in it."""
    version, path = "v1", "/api/v1"
    if group:
        answer = await client.raw("GET", f"/apis/{group}")
        version = msgspec.json.decode(answer.body, type=_Group).preferred_version.version
        path = f"/apis/{group}/{version}"
    answer = await client.raw("GET", path)
    return version, msgspec.json.decode(answer.body, type=_Resources).resources
