"""The persistent volume controller: binds claims to volumes and writes the phases of both.

A claim and a volume are bound when each names the other. The volume is written first, with the
claim's uid, on the version that was seen: two claims that try one volume conflict there, and the
loser chooses another. Then the claim. A restart between the two finds a volume that names the
claim, and writes the rest.

Keys of two kinds are worked on independently: claims (find, bind, or request provisioning) and
volumes (available, bound, released, reclaimed). A claim without a match is tried again when a
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
    newest_default_class,
)
from zonewise.embedded.components.volumes.pod_claims import BY_CLAIM
from zonewise.embedded.components.volumes.well_known import (
    BETA_PROVISIONER,
    BOUND_BY_CONTROLLER,
    NO_PROVISIONER,
    PROVISIONED_BY,
    PROVISIONER,
    WAIT_FOR_FIRST_CONSUMER,
    YES,
)
from zonewise.runtime.controller.controller import own_key
from zonewise.runtime.controller.recorder import EventType
from zonewise.runtime.program.context import ControllerContext
from zonewise.scheduling.volumes import BIND_COMPLETED, SELECTED_NODE
from zonewise.storage import claims

BY_CLASS = "volumes/class"
PENDING = "claims/pending"
EXTERNAL_PROVISIONING_MESSAGE = (
    "Waiting for a volume to be created either by the external provisioner '{}' or manually by the"
    " system administrator. If volume creation is delayed, please verify that the provisioner is"
    " running and correctly registered."
)


class PersistentVolumeController:
    """Binds claims to volumes."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._client = context.client
        self._nodes = context.cache.store(Node)
        self._claim_controller = context.controller("claims", self._sync_claim)
        self._volume_controller = context.controller("volumes", self._sync_volume)
        self._claims = self._claim_controller.watches(
            PersistentVolumeClaim, own_key, indexes={PENDING: _pending_class}
        )
        self._volumes = self._claim_controller.watches(
            PersistentVolume, self._claims_for_volume, indexes={BY_CLASS: _class_of}
        )
        self._classes = self._claim_controller.watches(StorageClass, self._claims_for_class)
        self._pods = self._claim_controller.reads(Pod, indexes=BY_CLAIM)
        self._claim_controller.reads(Node)
        self._volume_controller.watches(PersistentVolume, own_key)
        self._volume_controller.watches(PersistentVolumeClaim, _named_volume)

    async def run(self) -> None:
        """Bind until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._claim_controller.run())
            tasks.create_task(self._volume_controller.run())

    def _claims_for_volume(self, volume: PersistentVolume) -> tuple[Key, ...]:
        """The claim a volume names; without one, all that wait for a volume of its class."""
        ref = volume.spec.claim_ref
        if ref is not None:
            return ((ref.namespace, ref.name),)
        if volume.status.phase != "Available":
            return ()
        return self._claims.keys_by(PENDING, volume.spec.storage_class_name)

    def _claims_for_class(self, storage_class: StorageClass) -> tuple[Key, ...]:
        """The claims that wait for a volume of a class, or for the default class."""
        named = self._claims.keys_by(PENDING, storage_class.metadata.name)
        return named + self._claims.keys_by(PENDING, "")

    async def _sync_claim(self, key: Key) -> float | None:
        claim = self._claims.get(key)
        if claim is None:
            return None
        if BIND_COMPLETED in claim.metadata.annotations:
            await self._check_bound(claim)
        elif claim.spec.volume_name:
            await self._bind_named(claim)
        else:
            await self._bind_or_provision(claim)
        return None

    async def _bind_or_provision(self, claim: PersistentVolumeClaim) -> None:
        """Bind a claim to an existing volume, or request a new one."""
        name = claim.storage_class or ""
        storage_class = self._classes.get(("", name))
        mode = "" if storage_class is None else storage_class.volume_binding_mode
        waits = mode == WAIT_FOR_FIRST_CONSUMER
        selected_node = claim.metadata.annotations.get(SELECTED_NODE)
        node = self._nodes.get(("", selected_node)) if selected_node and waits else None
        volumes = self._volumes.by(BY_CLASS, name)
        volume = claims.find_matching_volume(claim, volumes, delay_binding=waits, node=node)
        if volume is not None:
            await self._bind(volume, claim)
            return
        if claim.storage_class is None and (default_class := self._default_class()):
            # It was created before there was a default; this write enqueues it again.
            body = {
                "metadata": {"resourceVersion": claim.metadata.resource_version},
                "spec": {"storageClassName": default_class},
            }
            await self._client.patch(PersistentVolumeClaim, *_name_and_namespace(claim), body)
            return
        if waits and not selected_node:
            self._record_waiting(claim)
        elif storage_class is not None:
            await self._request_provisioning(claim, storage_class)
        elif name:
            note = f'storageclass.storage.k8s.io "{name}" not found'
            self._record_event(claim, "Warning", "ProvisioningFailed", note)
        else:
            note = "no persistent volumes available for this claim and no storage class is set"
            self._record_event(claim, "Normal", "FailedBinding", note)
        await self._update_claim_status(claim, "Pending")

    def _default_class(self) -> str:
        """The class that claims without one get: the newest default."""
        return newest_default_class(
            (storage_class.metadata.creation_timestamp or "", storage_class.metadata.name)
            for storage_class in self._classes
            if is_default_class(storage_class.metadata.annotations)
        )

    async def _bind_named(self, claim: PersistentVolumeClaim) -> None:
        volume = self._volumes.get(("", claim.spec.volume_name))
        if volume is None:
            await self._update_claim_status(claim, "Pending")
        elif volume.spec.claim_ref is None:
            reason = claims.find_mismatch(volume, claim)
            if not reason:
                await self._bind(volume, claim)
                return
            note = f'Cannot bind to requested volume "{volume.metadata.name}": {reason}'
            self._record_event(claim, "Warning", "VolumeMismatch", note)
            await self._update_claim_status(claim, "Pending")
        elif claims.is_bound_to(volume, claim):
            await self._bind(volume, claim)
        else:
            note = f'volume "{volume.metadata.name}" already bound to a different claim.'
            self._record_event(claim, "Warning", "FailedBinding", note)
            await self._update_claim_status(claim, "Pending")

    async def _check_bound(self, claim: PersistentVolumeClaim) -> None:
        """Check that a claim that was bound still is; otherwise it has lost its data."""
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
            await self._update_claim_status(claim, "Lost")
            self._record_event(claim, "Warning", reason, note)

    async def _bind(self, volume: PersistentVolume, claim: PersistentVolumeClaim) -> None:
        """Write into volume and claim that each names the other, where it does not yet."""
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
        await self._update_volume_phase(volume, "Bound")
        annotations = {BIND_COMPLETED: YES}
        if not claim.spec.volume_name:
            annotations[BOUND_BY_CONTROLLER] = YES
        if claim.spec.volume_name != volume.metadata.name or (
            BIND_COMPLETED not in claim.metadata.annotations
        ):
            body = {
                "metadata": {"uid": claim.metadata.uid, "annotations": annotations},
                "spec": {"volumeName": volume.metadata.name},
            }
            await self._client.patch(PersistentVolumeClaim, *_name_and_namespace(claim), body)
        await self._update_claim_status(claim, "Bound", volume)

    async def _request_provisioning(
        self, claim: PersistentVolumeClaim, storage_class: StorageClass
    ) -> None:
        """Request a volume from the provisioner of a claim's class."""
        name = storage_class.provisioner
        if name == NO_PROVISIONER:
            return
        annotations = claim.metadata.annotations
        if annotations.get(PROVISIONER) != name or annotations.get(BETA_PROVISIONER) != name:
            provisioner = {PROVISIONER: name, BETA_PROVISIONER: name}
            body = {"metadata": {"uid": claim.metadata.uid, "annotations": provisioner}}
            await self._client.patch(PersistentVolumeClaim, *_name_and_namespace(claim), body)
        self._record_event(
            claim, "Normal", "ExternalProvisioning", EXTERNAL_PROVISIONING_MESSAGE.format(name)
        )

    async def _sync_volume(self, key: Key) -> float | None:
        volume = self._volumes.get(key)
        if volume is None:
            return None
        ref = volume.spec.claim_ref
        if ref is None or not ref.uid:
            await self._update_volume_phase(volume, "Available")
            return None
        claim = await self._get_claim((ref.namespace, ref.name), ref.uid)
        if claim is None:
            if volume.status.phase not in {"Released", "Failed"}:
                await self._update_volume_phase(volume, "Released")
        elif claim.spec.volume_name == volume.metadata.name:
            await self._update_volume_phase(volume, "Bound")
        elif not claim.spec.volume_name:
            self._claim_controller.enqueue(claim.key)
        elif PROVISIONED_BY in volume.metadata.annotations:
            await self._update_volume_phase(volume, "Released")
        else:
            await self._unbind_volume(volume)
        return None

    async def _get_claim(self, key: Key, uid: str) -> PersistentVolumeClaim | None:
        """The claim with this uid, or None.

        It is read from the server before it counts as deleted: a volume released by mistake loses
        its data.
        """
        claim = self._claims.get(key)
        if claim is None or claim.metadata.uid != uid:
            try:
                claim = await self._client.get(PersistentVolumeClaim, key[1], key[0])
            except NotFound:
                return None
        return claim if claim.metadata.uid == uid else None

    async def _unbind_volume(self, volume: PersistentVolume) -> None:
        """Unbind a volume whose claim has another one; it is free, or waits for a claim by name."""
        bound_by_controller = BOUND_BY_CONTROLLER in volume.metadata.annotations
        meta: dict[str, Any] = {"resourceVersion": volume.metadata.resource_version}
        if bound_by_controller:
            meta["annotations"] = {BOUND_BY_CONTROLLER: None}
        spec = {"claimRef": None if bound_by_controller else {"uid": None}}
        await self._client.patch(
            PersistentVolume, volume.metadata.name, None, {"metadata": meta, "spec": spec}
        )

    async def _update_claim_status(
        self, claim: PersistentVolumeClaim, phase: str, volume: PersistentVolume | None = None
    ) -> None:
        status: dict[str, Any] = {"phase": phase}
        if volume is not None:
            status |= {
                "accessModes": volume.spec.access_modes,
                "capacity": claim.status.capacity or volume.spec.capacity,
            }
            unchanged = claim.status.access_modes == volume.spec.access_modes
        else:
            status |= {"accessModes": None, "capacity": None}
            unchanged = not claim.status.access_modes
        if claim.status.phase != phase or not unchanged:
            await self._client.patch_status(claim, status)

    async def _update_volume_phase(self, volume: PersistentVolume, phase: str) -> None:
        if volume.status.phase != phase:
            await self._client.patch_status(volume, {"phase": phase})

    def _record_waiting(self, claim: PersistentVolumeClaim) -> None:
        users = [pod for pod in self._pods.by("claims", claim.key) if not pod.spec.node_name]
        names = sorted(pod.metadata.name for pod in users)
        if not names:
            note = "waiting for first consumer to be created before binding"
            self._record_event(claim, "Normal", WAIT_FOR_FIRST_CONSUMER, note)
        else:
            noun = "pod" if len(names) == 1 else "pods"
            note = f"waiting for {noun} {','.join(names)} to be scheduled"
            self._record_event(claim, "Normal", "WaitForPodScheduled", note)

    def _record_event(
        self, claim: PersistentVolumeClaim, kind: EventType, reason: str, note: str
    ) -> None:
        self._context.recorder.event(claim, reason, "Bind", note, type=kind)


def _name_and_namespace(claim: PersistentVolumeClaim) -> tuple[str, str]:
    return claim.metadata.name, claim.metadata.namespace


def _pending_class(claim: PersistentVolumeClaim) -> tuple[str, ...]:
    """The class of a claim that has no volume yet."""
    return () if claim.spec.volume_name else (claim.storage_class or "",)


def _class_of(volume: PersistentVolume) -> tuple[str]:
    return (volume.spec.storage_class_name,)


def _named_volume(claim: PersistentVolumeClaim) -> tuple[Key, ...]:
    return (("", claim.spec.volume_name),) if claim.spec.volume_name else ()
