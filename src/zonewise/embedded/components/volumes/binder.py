"""Binds claims to volumes, and keeps the phases of both.

A claim and a volume are bound when each names the other. The volume is written first, with the
claim's uid, on the version that was seen: two claims that try one volume conflict there, and the
loser looks for another. Then the claim. A restart between the two finds a volume that names the
claim, and writes the rest.

Keys of two kinds are worked on independently: claims (find, bind, or request provisioning) and
volumes (available, bound, released, reclaimed). A claim that found nothing is tried again when a
volume of its class is free or its class changes.

For WaitForFirstConsumer classes the scheduler chooses a node and writes it on the claim. An
existing volume that can be used from that node is taken; else one is provisioned.
"""

from __future__ import annotations

import asyncio
from typing import Any

from zonewise.api.errors import NotFound
from zonewise.api.meta import Key
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.storage import (
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    is_default_class,
    newest_default,
)
from zonewise.embedded.components.volumes.uses import BY_CLAIM
from zonewise.embedded.components.volumes.well_known import (
    BETA_PROVISIONER,
    BOUND_BY_CONTROLLER,
    NO_PROVISIONER,
    PROVISIONED_BY,
    PROVISIONER,
    WAIT,
    YES,
)
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.controller.controller import Controller, own_key
from zonewise.runtime.controller.recorder import EventType
from zonewise.scheduling.volumes import BIND_COMPLETED, SELECTED_NODE
from zonewise.storage import claims

BY_CLASS = "volumes/class"
PENDING = "claims/pending"
WAITING = (
    "Waiting for a volume to be created either by the external provisioner '{}' or manually by the"
    " system administrator. If volume creation is delayed, please verify that the provisioner is"
    " running and correctly registered."
)


class Binder:
    """The controller of claims and volumes."""

    def __init__(self, context: ComponentContext) -> None:
        self._context = context
        self._client = context.client
        self._nodes = context.cache.store(Node)
        self._binding = Controller("claims", self._claim, cache=context.cache, rng=context.rng)
        self._keeping = Controller("volumes", self._volume, cache=context.cache, rng=context.rng)
        self._claims = self._binding.watches(
            PersistentVolumeClaim, own_key, indexes={PENDING: _pending_class}
        )
        self._volumes = self._binding.watches(
            PersistentVolume, self._concerned, indexes={BY_CLASS: _class_of}
        )
        self._classes = self._binding.watches(StorageClass, self._interested)
        self._pods = self._binding.reads(Pod, indexes=BY_CLAIM)
        self._binding.reads(Node)
        self._keeping.watches(PersistentVolume, own_key)
        self._keeping.watches(PersistentVolumeClaim, _named_volume)

    async def run(self) -> None:
        """Bind until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._binding.run())
            tasks.create_task(self._keeping.run())

    def _concerned(self, volume: PersistentVolume) -> tuple[Key, ...]:
        """The claim a volume names; all that wait for one of its class if it names none."""
        ref = volume.spec.claim_ref
        if ref is not None:
            return ((ref.namespace, ref.name),)
        if volume.status.phase != "Available":
            return ()
        return self._claims.keys_by(PENDING, volume.spec.storage_class_name)

    def _interested(self, made_by: StorageClass) -> tuple[Key, ...]:
        """The claims that wait for a class, or for any."""
        named = self._claims.keys_by(PENDING, made_by.metadata.name)
        return named + self._claims.keys_by(PENDING, "")

    async def _claim(self, key: Key) -> float | None:
        claim = self._claims.get(key)
        if claim is None:
            return None
        if BIND_COMPLETED in claim.metadata.annotations:
            await self._check_bound(claim)
        elif claim.spec.volume_name:
            await self._bind_named(claim)
        else:
            await self._find(claim)
        return None

    async def _find(self, claim: PersistentVolumeClaim) -> None:
        """Bind a claim to an existing volume, or request a new one."""
        name = claim.storage_class or ""
        made_by = self._classes.get(("", name))
        waits = made_by is not None and made_by.volume_binding_mode == WAIT
        chosen = claim.metadata.annotations.get(SELECTED_NODE)
        node = self._nodes.get(("", chosen)) if chosen and waits else None
        volumes = self._volumes.by(BY_CLASS, name)
        found = claims.best(claim, volumes, waits=waits, node=node)
        if found is not None:
            await self._bind(found, claim)
            return
        if claim.storage_class is None and (usual := self._default_class()):
            # It was made before there was a default; the change brings it here again.
            body = {
                "metadata": {"resourceVersion": claim.metadata.resource_version},
                "spec": {"storageClassName": usual},
            }
            await self._client.patch(PersistentVolumeClaim, *_place(claim), body)
            return
        if waits and not chosen:
            self._tell_waiting(claim)
        elif made_by is not None:
            await self._ask(claim, made_by)
        elif name:
            note = f'storageclass.storage.k8s.io "{name}" not found'
            self._tell(claim, "Warning", "ProvisioningFailed", note)
        else:
            note = "no persistent volumes available for this claim and no storage class is set"
            self._tell(claim, "Normal", "FailedBinding", note)
        await self._claim_status(claim, "Pending")

    def _default_class(self) -> str:
        """The class that claims without one get: the newest default."""
        return newest_default(
            (one.metadata.creation_timestamp or "", one.metadata.name)
            for one in self._classes
            if is_default_class(one.metadata.annotations)
        )

    async def _bind_named(self, claim: PersistentVolumeClaim) -> None:
        volume = self._volumes.get(("", claim.spec.volume_name))
        if volume is None:
            await self._claim_status(claim, "Pending")
        elif volume.spec.claim_ref is None:
            why = claims.mismatch(volume, claim)
            if not why:
                await self._bind(volume, claim)
                return
            note = f'Cannot bind to requested volume "{volume.metadata.name}": {why}'
            self._tell(claim, "Warning", "VolumeMismatch", note)
            await self._claim_status(claim, "Pending")
        elif claims.belongs(volume, claim):
            await self._bind(volume, claim)
        else:
            note = f'volume "{volume.metadata.name}" already bound to a different claim.'
            self._tell(claim, "Warning", "FailedBinding", note)
            await self._claim_status(claim, "Pending")

    async def _check_bound(self, claim: PersistentVolumeClaim) -> None:
        """A claim that was bound once is bound, or has lost its data."""
        volume = self._volumes.get(("", claim.spec.volume_name))
        if not claim.spec.volume_name:
            lost = "ClaimLost", "Bound claim has lost reference to PersistentVolume."
        elif volume is None:
            lost = "ClaimLost", "Bound claim has lost its PersistentVolume."
        elif volume.spec.claim_ref is None or volume.spec.claim_ref.uid == claim.metadata.uid:
            await self._bind(volume, claim)
            return
        else:
            note = "Two claims are bound to the same volume, this one is bound incorrectly"
            lost = "ClaimMisbound", note
        if claim.status.phase != "Lost":
            reason, note = lost
            if reason == "ClaimLost":
                note = f"{note} Data on the volume is lost!"
            await self._claim_status(claim, "Lost")
            self._tell(claim, "Warning", reason, note)

    async def _bind(self, volume: PersistentVolume, claim: PersistentVolumeClaim) -> None:
        """Make the two name each other, as far as they do not yet."""
        ref = volume.spec.claim_ref
        if ref is None or ref.uid != claim.metadata.uid:
            body: dict[str, Any] = {
                "metadata": {"resourceVersion": volume.metadata.resource_version},
                "spec": {
                    "claimRef": {
                        "apiVersion": "v1",
                        "kind": "PersistentVolumeClaim",
                        "namespace": claim.metadata.namespace,
                        "name": claim.metadata.name,
                        "uid": claim.metadata.uid,
                        "resourceVersion": claim.metadata.resource_version,
                    }
                },
            }
            if ref is None:
                body["metadata"]["annotations"] = {BOUND_BY_CONTROLLER: YES}
            await self._client.patch(PersistentVolume, volume.metadata.name, None, body)
        await self._volume_phase(volume, "Bound")
        marks = {BIND_COMPLETED: YES}
        if not claim.spec.volume_name:
            marks[BOUND_BY_CONTROLLER] = YES
        if claim.spec.volume_name != volume.metadata.name or (
            BIND_COMPLETED not in claim.metadata.annotations
        ):
            body = {
                "metadata": {"uid": claim.metadata.uid, "annotations": marks},
                "spec": {"volumeName": volume.metadata.name},
            }
            await self._client.patch(PersistentVolumeClaim, *_place(claim), body)
        await self._claim_status(claim, "Bound", volume)

    async def _ask(self, claim: PersistentVolumeClaim, made_by: StorageClass) -> None:
        """Leave the claim to the provisioner of its class."""
        name = made_by.provisioner
        if name == NO_PROVISIONER:
            return
        annotations = claim.metadata.annotations
        if annotations.get(PROVISIONER) != name or annotations.get(BETA_PROVISIONER) != name:
            marks = {PROVISIONER: name, BETA_PROVISIONER: name}
            body = {"metadata": {"uid": claim.metadata.uid, "annotations": marks}}
            await self._client.patch(PersistentVolumeClaim, *_place(claim), body)
        self._tell(claim, "Normal", "ExternalProvisioning", WAITING.format(name))

    async def _volume(self, key: Key) -> float | None:
        volume = self._volumes.get(key)
        if volume is None:
            return None
        ref = volume.spec.claim_ref
        if ref is None or not ref.uid:
            await self._volume_phase(volume, "Available")
            return None
        claim = await self._claim_now((ref.namespace, ref.name), ref.uid)
        if claim is None:
            if volume.status.phase not in {"Released", "Failed"}:
                await self._volume_phase(volume, "Released")
        elif claim.spec.volume_name == volume.metadata.name:
            await self._volume_phase(volume, "Bound")
        elif not claim.spec.volume_name:
            self._binding.enqueue(claim.key)
        elif PROVISIONED_BY in volume.metadata.annotations:
            await self._volume_phase(volume, "Released")
        else:
            await self._let_go(volume)
        return None

    async def _claim_now(self, key: Key, uid: str) -> PersistentVolumeClaim | None:
        """A claim, if it still is the one with this uid.

        The server is asked before it counts as deleted: a volume released by mistake loses its
        data.
        """
        claim = self._claims.get(key)
        if claim is None or claim.metadata.uid != uid:
            try:
                claim = await self._client.get(PersistentVolumeClaim, key[1], key[0])
            except NotFound:
                return None
        return claim if claim.metadata.uid == uid else None

    async def _let_go(self, volume: PersistentVolume) -> None:
        """The claim has another volume; this one is free, or waits for its claim by name again."""
        ours = BOUND_BY_CONTROLLER in volume.metadata.annotations
        meta: dict[str, Any] = {"resourceVersion": volume.metadata.resource_version}
        if ours:
            meta["annotations"] = {BOUND_BY_CONTROLLER: None}
        spec = {"claimRef": None if ours else {"uid": None}}
        await self._client.patch(
            PersistentVolume, volume.metadata.name, None, {"metadata": meta, "spec": spec}
        )

    async def _claim_status(
        self, claim: PersistentVolumeClaim, phase: str, volume: PersistentVolume | None = None
    ) -> None:
        status: dict[str, Any] = {"phase": phase}
        if volume is not None:
            status |= {
                "accessModes": volume.spec.access_modes,
                "capacity": claim.status.capacity or volume.spec.capacity,
            }
            same = claim.status.access_modes == volume.spec.access_modes
        else:
            status |= {"accessModes": None, "capacity": None}
            same = not claim.status.access_modes
        if claim.status.phase != phase or not same:
            await self._client.patch_status(claim, status)

    async def _volume_phase(self, volume: PersistentVolume, phase: str) -> None:
        if volume.status.phase != phase:
            await self._client.patch_status(volume, {"phase": phase})

    def _tell_waiting(self, claim: PersistentVolumeClaim) -> None:
        users = [pod for pod in self._pods.by("claims", claim.key) if not pod.spec.node_name]
        names = sorted(pod.metadata.name for pod in users)
        if not names:
            note = "waiting for first consumer to be created before binding"
            self._tell(claim, "Normal", WAIT, note)
        else:
            what = "pod" if len(names) == 1 else "pods"
            note = f"waiting for {what} {','.join(names)} to be scheduled"
            self._tell(claim, "Normal", "WaitForPodScheduled", note)

    def _tell(self, claim: PersistentVolumeClaim, kind: EventType, reason: str, note: str) -> None:
        self._context.recorder.event(claim, type=kind, reason=reason, action="Bind", note=note)


def _place(claim: PersistentVolumeClaim) -> tuple[str, str]:
    return claim.metadata.name, claim.metadata.namespace


def _pending_class(claim: PersistentVolumeClaim) -> tuple[str, ...]:
    """The class of a claim that has no volume yet."""
    return () if claim.spec.volume_name else (claim.storage_class or "",)


def _class_of(volume: PersistentVolume) -> tuple[str]:
    return (volume.spec.storage_class_name,)


def _named_volume(claim: PersistentVolumeClaim) -> tuple[Key, ...]:
    return (("", claim.spec.volume_name),) if claim.spec.volume_name else ()
