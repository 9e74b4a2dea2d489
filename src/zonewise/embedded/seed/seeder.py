"""Objects created in a cluster, each once.

Kinds are created in waves, so that what others need exists first: definitions, namespaces, what
pods are made with, nodes, Services and budgets, pods, and last workloads, which adopt their pods
and make only those that are missing. Within a wave up to ``PARALLEL`` objects are written at the
same time. An object that exists already is left as it is: after a kill half way it starts over and
duplicates nothing. One that is refused is reported, with the server's words, and does not block
others. One without a namespace that needs one is created in ``default``, as with kubectl.

What is needed may exist a moment after its wave: a definition is served shortly after it was
written. Such refusals (403, 404) are tried again until a wave is ``PATIENCE`` seconds old, however
many of its objects meet them. A namespace counts as written when it has its service account,
without which no pod is accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from zonewise.api.errors import AlreadyExists, Forbidden, NotFound, ZonewiseError
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.embedded.apiserver.registry import Registry
from zonewise.runtime.client.client import Client

Obj = dict[str, Any]

PARALLEL = 100
PATIENCE = 5.0
PAUSE = 0.01

_FIRST = (
    ("CustomResourceDefinition",),
    ("Namespace", "PriorityClass", "StorageClass", "RuntimeClass", "IngressClass"),
    ("ServiceAccount", "ConfigMap", "Secret", "PersistentVolume", "ClusterRole", "Role"),
    ("ClusterRoleBinding", "RoleBinding", "PersistentVolumeClaim", "Node"),
    ("Service", "PodDisruptionBudget"),
    ("Pod",),
    ("ControllerRevision", "ReplicaSet"),
)
_WAVES = {kind: number for number, kinds in enumerate(_FIRST) for kind in kinds}
_ServiceAccount = unstructured(Resource("", "v1", "ServiceAccount", "serviceaccounts"))


@dataclass(frozen=True, slots=True)
class SeedRefused:
    """An object that could not be written, and why."""

    kind: str
    name: str
    why: str


class Seeder:
    """Puts objects into the cluster behind a client."""

    def __init__(self, client: Client, registry: Registry) -> None:
        self._client = client
        self._registry = registry

    async def plant(
        self, objects: Iterable[Obj], *, written: Callable[[Obj], None] | None = None
    ) -> list[SeedRefused]:
        """Create the objects that do not exist; returns those that were refused, in order."""
        waves: dict[int, list[Obj]] = {}
        for obj in objects:
            waves.setdefault(_wave(obj), []).append(obj)
        refused: list[SeedRefused] = []
        turn = asyncio.Semaphore(PARALLEL)
        for number in sorted(waves):
            deadline = asyncio.get_running_loop().time() + PATIENCE

            async def one(obj: Obj, deadline: float = deadline) -> SeedRefused | None:
                async with turn:
                    why = await self._write(obj, deadline)
                if why is None and written is not None:
                    written(obj)
                return why

            answers = await asyncio.gather(*map(one, waves[number]))
            refused += [why for why in answers if why is not None]
        return refused

    async def _write(self, obj: Obj, deadline: float) -> SeedRefused | None:
        loop = asyncio.get_running_loop()
        while True:
            served = self._registry.of(obj["apiVersion"], obj["kind"])
            passing = True
            if served is None:
                why = f"{obj['apiVersion']} has no {obj['kind']} here"
            else:
                resource = served.kind.resource
                meta = obj.get("metadata") or {}
                if resource.namespaced and not meta.get("namespace"):
                    obj = {**obj, "metadata": {**meta, "namespace": "default"}}
                try:
                    await self._client.create(unstructured(resource)(obj))
                except AlreadyExists:
                    return None
                except ZonewiseError as error:
                    passing, why = isinstance(error, Forbidden | NotFound), str(error)
                else:
                    if obj["kind"] == "Namespace":
                        await self._settled(obj["metadata"]["name"], loop.time() + PATIENCE)
                    return None
            if not passing or loop.time() > deadline:
                return SeedRefused(obj["kind"], full_name(obj), why)
            await asyncio.sleep(PAUSE)

    async def _settled(self, namespace: str, deadline: float) -> None:
        while asyncio.get_running_loop().time() < deadline:
            try:
                await self._client.get(_ServiceAccount, "default", namespace)
            except NotFound:
                await asyncio.sleep(PAUSE)
            else:
                return


def full_name(obj: Obj) -> str:
    """Namespace and name."""
    meta = obj.get("metadata") or {}
    return "/".join(filter(None, (meta.get("namespace"), meta.get("name"))))


def _wave(obj: Obj) -> int:
    return _WAVES.get(obj["kind"], len(_FIRST))
