"""Protects claims and volumes in use: their finalizers are removed when nothing uses them.

A claim is used by every pod that is bound to a node, until that pod is deleted. Before a claim
counts as unused its pods are listed from the server, as a store may be behind. A volume is used as
long as it is bound to a claim.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from zonewise.api.errors import NotFound
from zonewise.api.meta import Key
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.storage import PersistentVolume, PersistentVolumeClaim
from zonewise.embedded.components.volumes.uses import BY_CLAIM, claims_of
from zonewise.embedded.components.volumes.well_known import CLAIM_PROTECTION, VOLUME_PROTECTION
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.controller.controller import Controller, own_key


class Protection:
    """Takes protection from what is deleted and unused."""

    def __init__(self, context: ComponentContext) -> None:
        self._client = context.client
        self._claiming = Controller("claim-protection", self._claim, cache=context.cache)
        self._claims = self._claiming.watches(PersistentVolumeClaim, own_key, when=_leaving)
        self._pods = self._claiming.watches(Pod, claims_of, indexes=BY_CLAIM, when=_gone)
        self._storing = Controller("volume-protection", self._volume, cache=context.cache)
        self._volumes = self._storing.watches(PersistentVolume, own_key, when=_leaving)

    async def run(self) -> None:
        """Protect until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._claiming.run())
            tasks.create_task(self._storing.run())

    async def _claim(self, key: Key) -> float | None:
        claim = self._claims.get(key)
        if claim is None or not _leaving(None, claim):
            return None
        if CLAIM_PROTECTION not in claim.metadata.finalizers or self._used(key):
            return None
        fresh = await self._client.list(Pod, key[0])
        if not any(pod.spec.node_name and key in claims_of(pod) for pod in fresh):
            await self._release(claim, CLAIM_PROTECTION)
        return None

    def _used(self, key: Key) -> bool:
        return any(pod.spec.node_name for pod in self._pods.by("claims", key))

    async def _volume(self, key: Key) -> float | None:
        volume = self._volumes.get(key)
        if volume is not None and _leaving(None, volume) and volume.status.phase != "Bound":
            await self._release(volume, VOLUME_PROTECTION)
        return None

    async def _release(
        self, item: PersistentVolumeClaim | PersistentVolume, finalizer: str
    ) -> None:
        meta = item.metadata
        if finalizer not in meta.finalizers:
            return
        kept = [one for one in meta.finalizers if one != finalizer]
        body = {"metadata": {"resourceVersion": meta.resource_version, "finalizers": kept or None}}
        with suppress(NotFound):
            await self._client.patch(type(item), meta.name, meta.namespace or None, body)


def _leaving(
    _: PersistentVolumeClaim | PersistentVolume | None,
    new: PersistentVolumeClaim | PersistentVolume | None,
) -> bool:
    return new is not None and new.metadata.deletion_timestamp is not None


def _gone(_: Pod | None, new: Pod | None) -> bool:
    return new is None
