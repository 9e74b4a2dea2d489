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
from zonewise.embedded.components.volumes.pod_claims import BY_CLAIM, claims_of
from zonewise.embedded.components.volumes.well_known import CLAIM_PROTECTION, VOLUME_PROTECTION
from zonewise.runtime.controller.controller import own_key
from zonewise.runtime.program.context import ControllerContext


class VolumeProtectionController:
    """Removes the finalizers of claims and volumes that are terminating and unused."""

    def __init__(self, context: ControllerContext) -> None:
        self._client = context.client
        self._claim_controller = context.controller("claim-protection", self._sync_claim)
        self._claims = self._claim_controller.watches(
            PersistentVolumeClaim, own_key, when=_is_terminating
        )
        self._pods = self._claim_controller.watches(
            Pod, claims_of, indexes=BY_CLAIM, when=_is_deleted
        )
        self._volume_controller = context.controller("volume-protection", self._sync_volume)
        self._volumes = self._volume_controller.watches(
            PersistentVolume, own_key, when=_is_terminating
        )

    async def run(self) -> None:
        """Protect until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._claim_controller.run())
            tasks.create_task(self._volume_controller.run())

    async def _sync_claim(self, key: Key) -> float | None:
        claim = self._claims.get(key)
        if claim is None or not _is_terminating(None, claim):
            return None
        if CLAIM_PROTECTION not in claim.metadata.finalizers or self._is_used(key):
            return None
        pods = await self._client.list(Pod, key[0])
        if not any(pod.spec.node_name and key in claims_of(pod) for pod in pods):
            await self._remove_finalizer(claim, CLAIM_PROTECTION)
        return None

    def _is_used(self, key: Key) -> bool:
        return any(pod.spec.node_name for pod in self._pods.by("claims", key))

    async def _sync_volume(self, key: Key) -> float | None:
        volume = self._volumes.get(key)
        if volume is not None and _is_terminating(None, volume) and volume.status.phase != "Bound":
            await self._remove_finalizer(volume, VOLUME_PROTECTION)
        return None

    async def _remove_finalizer(
        self, item: PersistentVolumeClaim | PersistentVolume, finalizer: str
    ) -> None:
        meta = item.metadata
        if finalizer not in meta.finalizers:
            return
        remaining = [name for name in meta.finalizers if name != finalizer]
        body = {
            "metadata": {"resourceVersion": meta.resource_version, "finalizers": remaining or None}
        }
        with suppress(NotFound):
            await self._client.patch(type(item), meta.name, meta.namespace or None, body)


def _is_terminating(
    _: PersistentVolumeClaim | PersistentVolume | None,
    new: PersistentVolumeClaim | PersistentVolume | None,
) -> bool:
    return new is not None and new.metadata.deletion_timestamp is not None


def _is_deleted(_: Pod | None, new: Pod | None) -> bool:
    return new is None
