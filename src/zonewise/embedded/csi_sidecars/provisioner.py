"""Creates the volumes that claims of a driver's classes request, and deletes them again.

A claim is the driver's when the binder has annotated it with the driver's name; with a
WaitForFirstConsumer class it also needs a selected node. Keys are claims and volumes; each is
worked on once at a time, ``WORKERS`` at once. Everything that fails is retried with growing pauses,
1 s to 5 minutes.

*No volume is leaked.* Before the first call a finalizer is added to the claim. A claim that is
deleted while a call may still succeed is kept by it until the driver's answer is final, also across
a restart: then the call is repeated, and the volume it returns is deleted. A volume that exists is
recorded in its PersistentVolume, whose own finalizer stays until the driver has deleted it.

*Leadership.* All writes go through a client that refuses them when the lease is lost. The driver
may then still be called twice; the volume's name is the claim's uid, so its journal creates one
volume.

A request whose result is open is repeated unchanged (``_attempts``): another preference could
create a second volume with drivers that are less careful than ours.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from zonewise.api.errors import AlreadyExists, NotFound, ZonewiseError
from zonewise.api.meta import Key
from zonewise.api.objects.core import Node
from zonewise.api.objects.storage import (
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    SecretReference,
    StorageClass,
    VolumeAttachment,
)
from zonewise.csi.errors import Code, CsiError
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport.methods import CREATE_VOLUME, DELETE_VOLUME
from zonewise.embedded.csi_sidecars import volumes
from zonewise.embedded.csi_sidecars.driver import (
    MAX_RETRY_SECONDS,
    RPC,
    ReachableDriver,
    read_secret,
)
from zonewise.embedded.csi_sidecars.sources import content_source, has_populator
from zonewise.embedded.csi_sidecars.volumes import FINALIZER, PROVISIONED_BY
from zonewise.runtime.controller.controller import Controller, own_key
from zonewise.runtime.controller.queue import Queue
from zonewise.runtime.controller.recorder import EventType
from zonewise.runtime.process.logs import logger
from zonewise.runtime.program.context import ControllerContext
from zonewise.storage.provisioning import (
    ProvisioningState,
    accessibility_requirement,
    provisioning_state_after,
)

SELECTED_NODE = "volume.kubernetes.io/selected-node"
PROVISIONERS = (
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
)
WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"
WORKERS = 16
INITIAL_RETRY_SECONDS = 1.0

_log = logger("provisioner")


@dataclass(frozen=True, slots=True)
class TopologyOptions:
    """The provisioner's flags ``--strict-topology`` and ``--immediate-topology``."""

    strict: bool = False
    immediate: bool = True


class AttemptFailed(ZonewiseError):
    """An attempt failed; the queue decides when the next one is."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The request for a claim's volume, and whether a node was selected."""

    request: csi.CreateVolumeRequest
    storage_class: StorageClass
    selected: bool


class VolumeProvisioner:
    """The claims and volumes of one driver."""

    def __init__(
        self,
        context: ControllerContext,
        options: TopologyOptions | None = None,
        *,
        driver: ReachableDriver,
        changed: asyncio.Event,
    ) -> None:
        self._context = context
        self._client = context.client
        self._driver = driver
        self._capacity_changed = changed
        """Set whenever the driver's free capacity may have changed."""
        self._options = options or TopologyOptions()
        self._finalizer = f"{driver.name}/provisioning"
        self._attempts: dict[str, _Attempt] = {}
        self._settled_uids: set[str] = set()
        """Uids of claims without an open request, according to an answer since our start."""
        self._written_volumes: set[str] = set()
        """Names of PersistentVolumes that were written, and that the store may not show yet."""
        self._controller: Controller[Key] = context.controller(
            "provisioner",
            self._sync,
            workers=WORKERS,
            queue=Queue(base=INITIAL_RETRY_SECONDS, cap=MAX_RETRY_SECONDS, rng=context.rng),
        )
        self.run = self._controller.run
        watches = self._controller.watches
        self._claims = watches(PersistentVolumeClaim, own_key, when=self._is_relevant)
        self._volumes = watches(PersistentVolume, own_key, when=self._is_own_volume)
        self._classes = watches(StorageClass, self._waiting_claims)
        self._nodes = watches(Node, lambda _: ())
        self._csi_nodes = watches(CSINode, lambda _: ())
        self._attachments = watches(VolumeAttachment, _attached_volume, when=_detached)

    # Which claims and volumes are of this driver

    def _is_relevant(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> bool:
        """Whether a change of a claim concerns this driver; that of our finalizer does not."""
        if new is None:
            return False
        if old is not None and _relevant_fields(old) == _relevant_fields(new):
            return False
        return self._needs_volume(new) or self._finalizer in new.metadata.finalizers

    def _needs_volume(self, claim: PersistentVolumeClaim) -> bool:
        annotations = claim.metadata.annotations
        return not claim.spec.volume_name and any(
            annotations.get(key) == self._driver.name for key in PROVISIONERS
        )

    def _is_own_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> bool:
        volume = new or old
        annotations = {} if volume is None else volume.metadata.annotations
        return annotations.get(PROVISIONED_BY) == self._driver.name

    def _waiting_claims(self, storage_class: StorageClass) -> tuple[Key, ...]:
        if storage_class.provisioner != self._driver.name:
            return ()
        return tuple(
            claim.key
            for claim in self._claims
            if claim.storage_class == storage_class.metadata.name and self._needs_volume(claim)
        )

    async def _sync(self, key: Key) -> float | None:
        if key[0]:
            return await self._sync_claim(key)
        return await self._sync_volume(key)

    # Claims

    async def _sync_claim(self, key: Key) -> float | None:
        claim = self._claims.get(key)
        if claim is None:
            return None
        uid, has_finalizer = claim.metadata.uid, self._finalizer in claim.metadata.finalizers
        name = volumes.volume_name(claim)
        if claim.spec.volume_name or name in self._written_volumes or ("", name) in self._volumes:
            if has_finalizer:
                await self._remove_finalizer(claim)
            self._forget(uid)
            return None
        if claim.metadata.deletion_timestamp is not None:
            if not has_finalizer:
                self._forget(uid)
                return None
            if uid in self._settled_uids:
                await self._remove_finalizer(claim)
                self._forget(uid)
                return None
            return await self._clean_up(claim)
        if not self._needs_volume(claim) or has_populator(claim):
            return None
        storage_class = self._classes.get(("", claim.storage_class or ""))
        if storage_class is None or storage_class.provisioner != self._driver.name:
            return None
        if (
            storage_class.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER
            and SELECTED_NODE not in claim.metadata.annotations
        ):
            return None
        return await self._provision(claim, storage_class, has_finalizer=has_finalizer)

    async def _provision(
        self, claim: PersistentVolumeClaim, storage_class: StorageClass, *, has_finalizer: bool
    ) -> float | None:
        uid = claim.metadata.uid
        attempt = self._attempts.get(uid)
        if attempt is None:
            note = "External provisioner is provisioning volume for claim"
            self._record_event(claim, "Normal", "Provisioning", f'{note} "{"/".join(claim.key)}"')
            selected_node = claim.metadata.annotations.get(SELECTED_NODE, "")
            if selected_node and ("", selected_node) not in self._nodes:
                await self._reschedule(claim, f'the selected node "{selected_node}" does not exist')
                return None
            try:
                attempt = await self._make_attempt(claim, storage_class, selected_node)
            except ZonewiseError as error:
                raise self._record_failure(claim, storage_class, str(error)) from error
        if not has_finalizer:
            await self._add_finalizer(claim)
        self._settled_uids.discard(uid)
        self._attempts[uid] = attempt
        try:
            volume = await self._create(claim, attempt)
        except CsiError as error:
            return await self._handle_refusal(claim, attempt, error)
        await self._write_volume(claim, attempt, volume)
        return None

    async def _make_attempt(
        self, claim: PersistentVolumeClaim, storage_class: StorageClass, selected_node: str
    ) -> _Attempt:
        """The request for a claim, from the current state of the cluster."""
        requirement = None
        if self._driver.topology:
            requirement = accessibility_requirement(
                claim.metadata.name,
                self._driver.name,
                {node.metadata.name: node.metadata.labels for node in self._nodes},
                self._csi_nodes,
                selected_node=selected_node,
                allowed=storage_class.allowed_topologies,
                strict=self._options.strict,
                immediate=self._options.immediate,
            )
        name = volumes.volume_name(claim)
        secret_ref = volumes.secret_reference(storage_class.parameters, "provisioner", name, claim)
        request = volumes.make_create_request(
            claim,
            storage_class,
            requirement,
            multi_writer=self._driver.can(RPC.SINGLE_NODE_MULTI_WRITER),
            source=await content_source(self._client, self._driver.name, claim),
            secrets=await read_secret(self._client, secret_ref),
        )
        return _Attempt(request, storage_class, bool(selected_node))

    async def _create(self, claim: PersistentVolumeClaim, attempt: _Attempt) -> csi.Volume:
        """Call CreateVolume; a volume that the claim cannot use is deleted at once."""
        request = attempt.request
        volume = (await self._driver.client.call(CREATE_VOLUME, request)).volume
        self._capacity_changed.set()
        try:
            volumes.check_answer(request, volume)
        except volumes.AnswerError as error:
            await self._delete(volume.volume_id, dict(request.secrets))
            self._settle(claim.metadata.uid)
            raise self._record_failure(claim, attempt.storage_class, str(error)) from error
        return volume

    async def _write_volume(
        self, claim: PersistentVolumeClaim, attempt: _Attempt, volume: csi.Volume
    ) -> None:
        persistent_volume = volumes.make_persistent_volume(
            self._driver.name, claim, attempt.storage_class, attempt.request, volume
        )
        with suppress(AlreadyExists):
            await self._client.create(persistent_volume)
        name = persistent_volume.metadata.name
        self._written_volumes.add(name)
        note = f"Successfully provisioned volume {name}"
        self._record_event(claim, "Normal", "ProvisioningSucceeded", note)
        await self._remove_finalizer(claim)
        self._forget(claim.metadata.uid)

    async def _handle_refusal(
        self, claim: PersistentVolumeClaim, attempt: _Attempt, error: CsiError
    ) -> float | None:
        uid, storage_class = claim.metadata.uid, attempt.storage_class
        selected = attempt.selected and self._driver.topology
        next_step = provisioning_state_after(error.code.name, node_selected=selected)
        if next_step is not ProvisioningState.BACKGROUND:
            self._settle(uid)
        failure = self._record_failure(claim, storage_class, str(error))
        if next_step is ProvisioningState.RESCHEDULE:
            await self._reschedule(claim, "the driver has no capacity there")
            return None
        if error.code is Code.INVALID_ARGUMENT:
            # Only a change of the class or of the driver can help.
            return MAX_RETRY_SECONDS
        raise failure

    def _record_failure(
        self, claim: PersistentVolumeClaim, storage_class: StorageClass, reason: str
    ) -> AttemptFailed:
        """Record an event that an attempt failed; raised, the result makes the queue retry."""
        name = storage_class.metadata.name
        note = f'failed to provision volume with StorageClass "{name}": {reason}'
        self._record_event(claim, "Warning", "ProvisioningFailed", note)
        return AttemptFailed(note)

    async def _reschedule(self, claim: PersistentVolumeClaim, reason: str) -> None:
        """Remove the selected node from a claim, unless another one was selected meanwhile."""
        meta = claim.metadata
        current = await self._client.get(PersistentVolumeClaim, meta.name, meta.namespace)
        selected_node = meta.annotations.get(SELECTED_NODE)
        if (
            current.metadata.uid != meta.uid
            or current.metadata.annotations.get(SELECTED_NODE) != selected_node
        ):
            return
        changed = {"annotations": {SELECTED_NODE: None}}
        body = {"metadata": {"resourceVersion": current.metadata.resource_version, **changed}}
        await self._client.patch(PersistentVolumeClaim, meta.name, meta.namespace, body)
        _log.info(
            "another node is selected", claim="/".join(claim.key), node=selected_node, why=reason
        )

    async def _clean_up(self, claim: PersistentVolumeClaim) -> float | None:
        """Repeat the open request of a deleted claim until its result is known, then delete it."""
        uid = claim.metadata.uid
        attempt = self._attempts.get(uid)
        if attempt is None:
            storage_class = self._classes.get(("", claim.storage_class or ""))
            if storage_class is None:
                raise AttemptFailed(
                    f'the class "{claim.storage_class}" of a deleted claim does not exist;'
                    " whether its driver has a volume is unknown without it"
                )
            selected_node = claim.metadata.annotations.get(SELECTED_NODE, "")
            try:
                attempt = await self._make_attempt(claim, storage_class, selected_node)
            except ZonewiseError as error:
                raise AttemptFailed(f"clearing up: {error}") from error
        try:
            response = await self._driver.client.call(CREATE_VOLUME, attempt.request)
        except CsiError as error:
            if (
                provisioning_state_after(error.code.name, node_selected=False)
                is ProvisioningState.BACKGROUND
            ):
                self._attempts[uid] = attempt
                raise AttemptFailed(f"clearing up: {error}") from error
        else:
            await self._delete(response.volume.volume_id, dict(attempt.request.secrets))
        await self._remove_finalizer(claim)
        self._forget(uid)
        return None

    async def _add_finalizer(self, claim: PersistentVolumeClaim) -> None:
        meta = claim.metadata
        finalizers = [*meta.finalizers, self._finalizer]
        body = {"metadata": {"resourceVersion": meta.resource_version, "finalizers": finalizers}}
        await self._client.patch(PersistentVolumeClaim, meta.name, meta.namespace, body)

    async def _remove_finalizer(self, claim: PersistentVolumeClaim) -> None:
        meta = claim.metadata
        try:
            current = await self._client.get(PersistentVolumeClaim, meta.name, meta.namespace)
        except NotFound:
            return
        if current.metadata.uid != meta.uid or self._finalizer not in current.metadata.finalizers:
            return
        version, finalizers = current.metadata.resource_version, current.metadata.finalizers
        remaining = [name for name in finalizers if name != self._finalizer]
        body = {"metadata": {"resourceVersion": version, "finalizers": remaining or None}}
        with suppress(NotFound):
            await self._client.patch(PersistentVolumeClaim, meta.name, meta.namespace, body)

    def _settle(self, uid: str) -> None:
        self._attempts.pop(uid, None)
        self._settled_uids.add(uid)

    def _forget(self, uid: str) -> None:
        self._attempts.pop(uid, None)
        self._settled_uids.discard(uid)

    # Volumes

    async def _sync_volume(self, key: Key) -> float | None:
        volume = self._volumes.get(key)
        self._written_volumes.discard(key[1])
        if volume is None or not self._is_own_volume(None, volume):
            return None
        spec, meta = volume.spec, volume.metadata
        terminating = meta.deletion_timestamp is not None
        if spec.persistent_volume_reclaim_policy != "Delete":
            if terminating and FINALIZER in meta.finalizers:
                await self._remove_volume_finalizer(volume)
            return None
        if volume.status.phase not in ("Released", "Failed"):
            return None
        if terminating and FINALIZER not in meta.finalizers:
            return None
        nodes = sorted(
            attachment.spec.node_name
            for attachment in self._attachments
            if attachment.spec.source.persistent_volume_name == meta.name
        )
        if nodes:
            self._record_delete_failure(
                volume, f"persistentvolume {meta.name} is still attached to {nodes}"
            )
            return None
        assert spec.csi is not None
        name = meta.annotations.get(volumes.SECRET_NAME, "")
        secret_ref = None
        if name:
            secret_ref = SecretReference(
                name=name, namespace=meta.annotations.get(volumes.SECRET_NAMESPACE, "")
            )
        try:
            await self._delete(spec.csi.volume_handle, await read_secret(self._client, secret_ref))
        except ZonewiseError as error:
            raise self._record_delete_failure(volume, str(error)) from error
        with suppress(NotFound):
            await self._client.delete(PersistentVolume, meta.name, uid=meta.uid)
        await self._remove_volume_finalizer(volume)
        return None

    async def _delete(self, volume_id: str, secrets: dict[str, str]) -> None:
        request = csi.DeleteVolumeRequest(volume_id=volume_id, secrets=secrets)
        await self._driver.client.call(DELETE_VOLUME, request)
        self._capacity_changed.set()

    async def _remove_volume_finalizer(self, volume: PersistentVolume) -> None:
        name = volume.metadata.name
        with suppress(NotFound):
            current = await self._client.get(PersistentVolume, name)
            if FINALIZER not in current.metadata.finalizers:
                return
            remaining = [name for name in current.metadata.finalizers if name != FINALIZER]
            body = {
                "metadata": {
                    "resourceVersion": current.metadata.resource_version,
                    "finalizers": remaining or None,
                }
            }
            await self._client.patch(PersistentVolume, name, None, body)

    def _record_delete_failure(self, volume: PersistentVolume, reason: str) -> AttemptFailed:
        self._context.recorder.event(volume, "VolumeFailedDelete", "Delete", reason, type="Warning")
        return AttemptFailed(reason)

    def _record_event(
        self, claim: PersistentVolumeClaim, kind: EventType, reason: str, note: str
    ) -> None:
        self._context.recorder.event(claim, reason, "Provision", note, type=kind)


def _relevant_fields(claim: PersistentVolumeClaim) -> tuple[object, ...]:
    meta = claim.metadata
    return meta.uid, meta.deletion_timestamp, meta.annotations, claim.spec


def _attached_volume(attachment: VolumeAttachment) -> tuple[Key, ...]:
    name = attachment.spec.source.persistent_volume_name
    return (("", name),) if name else ()


def _detached(_: VolumeAttachment | None, new: VolumeAttachment | None) -> bool:
    return new is None
