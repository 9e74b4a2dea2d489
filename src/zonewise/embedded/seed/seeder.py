"""Objects created in a cluster, each once.

Kinds are created in waves, so that what others need exists first: definitions, namespaces, what
pods refer to, nodes, Services and budgets, pods, and last workloads, which adopt their pods and
create only those that are missing. Within a wave up to ``PARALLEL`` objects are written at the same
time. An object that exists already is left as it is: after a kill half way, seeding starts over and
duplicates nothing. One that is refused is reported, with the server's message, and does not block
others. One without a namespace that needs one is created in ``default``, as with kubectl.

What an object needs may exist a moment after its wave: a definition is served shortly after it was
written. Such refusals (403, 404) are retried until a wave is ``RETRY_SECONDS`` old, however many of
its objects meet them. A namespace counts as written when it has its service account, without which
no pod is accepted.
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
RETRY_SECONDS = 5.0
RETRY_INTERVAL = 0.01

_ORDER = (
    ("CustomResourceDefinition",),
    ("Namespace", "PriorityClass", "StorageClass", "RuntimeClass", "IngressClass"),
    ("ServiceAccount", "ConfigMap", "Secret", "PersistentVolume", "ClusterRole", "Role"),
    ("ClusterRoleBinding", "RoleBinding", "PersistentVolumeClaim", "Node"),
    ("Service", "PodDisruptionBudget"),
    ("Pod",),
    ("ControllerRevision", "ReplicaSet"),
)
_WAVES = {kind: number for number, kinds in enumerate(_ORDER) for kind in kinds}
_ServiceAccount = unstructured(Resource("", "v1", "ServiceAccount", "serviceaccounts"))


@dataclass(frozen=True, slots=True)
class SeedRefused:
    """An object that could not be written, and why."""

    kind: str
    name: str
    reason: str


class Seeder:
    """Creates the objects that a cluster starts with."""

    def __init__(self, client: Client, registry: Registry) -> None:
        self._client = client
        self._registry = registry

    async def create(
        self, objects: Iterable[Obj], *, on_created: Callable[[Obj], None] | None = None
    ) -> list[SeedRefused]:
        """Create the objects that do not exist; returns those that were refused, in order."""
        waves: dict[int, list[Obj]] = {}
        for obj in objects:
            waves.setdefault(_creation_order(obj), []).append(obj)
        refused: list[SeedRefused] = []
        slots = asyncio.Semaphore(PARALLEL)
        for number in sorted(waves):
            deadline = asyncio.get_running_loop().time() + RETRY_SECONDS

            async def create_object(obj: Obj, deadline: float = deadline) -> SeedRefused | None:
                async with slots:
                    refusal = await self._create_object(obj, deadline)
                if refusal is None and on_created is not None:
                    on_created(obj)
                return refusal

            refusals = await asyncio.gather(*map(create_object, waves[number]))
            refused += [refusal for refusal in refusals if refusal is not None]
        return refused

    async def _create_object(self, obj: Obj, deadline: float) -> SeedRefused | None:
        loop = asyncio.get_running_loop()
        while True:
            served = self._registry.by_kind(obj["apiVersion"], obj["kind"])
            is_transient = True
            if served is None:
                reason = f"{obj['apiVersion']} has no {obj['kind']} here"
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
                    is_transient, reason = isinstance(error, Forbidden | NotFound), str(error)
                else:
                    if obj["kind"] == "Namespace":
                        await self._wait_for_service_account(
                            obj["metadata"]["name"], loop.time() + RETRY_SECONDS
                        )
                    return None
            if not is_transient or loop.time() > deadline:
                return SeedRefused(obj["kind"], full_name(obj), reason)
            await asyncio.sleep(RETRY_INTERVAL)

    async def _wait_for_service_account(self, namespace: str, deadline: float) -> None:
        while asyncio.get_running_loop().time() < deadline:
            try:
                await self._client.get(_ServiceAccount, "default", namespace)
            except NotFound:
                await asyncio.sleep(RETRY_INTERVAL)
            else:
                return


def full_name(obj: Obj) -> str:
    """Namespace and name."""
    meta = obj.get("metadata") or {}
    return "/".join(filter(None, (meta.get("namespace"), meta.get("name"))))


def _creation_order(obj: Obj) -> int:
    return _WAVES.get(obj["kind"], len(_ORDER))
