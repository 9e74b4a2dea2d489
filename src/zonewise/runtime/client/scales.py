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

Place: TypeAlias = tuple[str, str, str, str]
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
        self._asked: dict[Place, float] = {}

    async def refresh(
        self, namespace: str, wanted: Iterable[Place]
    ) -> dict[Place, Unstructured | None]:
        """The wanted objects of a namespace that were not read lately; None if there is none.

        None, too, is what was wanted before: nothing reads it any more.
        """
        places = set(wanted)
        found: dict[Place, Unstructured | None] = {
            place: None for place in self._asked if place[2] == namespace and place not in places
        }
        for place in found:
            del self._asked[place]
        now = self._clock()
        for place in sorted(places):
            if now - self._asked.get(place, float("-inf")) >= AGAIN:
                self._asked[place] = now
                found[place] = await fetch(self._client, *place)
        return found


async def fetch(
    client: Client, group: str, kind: str, namespace: str, name: str
) -> Unstructured | None:
    """An object with its replicas; None if it, or its kind, does not exist or is forbidden.

    One of a kind without namespaces, a Node for example, is returned as if it were in the namespace
    of the pods it owns: that is where owners are looked up.
    """
    try:
        version, known = await _resources(client, group)
        found = next(one for one in known if one.kind == kind and "/" not in one.name)
    except (NotFound, Forbidden, StopIteration):
        return None
    plural = found.name
    resource = Resource(group, version, kind, plural, namespaced=found.namespaced)
    try:
        answer = await client.raw("GET", resource.path(namespace, name))
        value: dict[str, Any] = msgspec.json.decode(answer.body)
        if any(one.name == f"{plural}/scale" for one in known):
            scaled = await client.raw("GET", resource.path(namespace, name, "scale"))
            replicas = msgspec.json.decode(scaled.body, type=_Scale).spec.replicas
            value = {**value, "spec": {**(value.get("spec") or {}), "replicas": replicas}}
    except (NotFound, Forbidden):
        return None
    if not found.namespaced:
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
