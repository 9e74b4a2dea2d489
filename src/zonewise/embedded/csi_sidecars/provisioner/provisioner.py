"""Makes the volumes that claims of a driver's classes request, and deletes them again.

A claim is the driver's when the binder has annotated it with the driver's name; with a
WaitForFirstConsumer class it also needs a selected node. Keys are claims and volumes; each is
worked on once at a time, ``WORKERS`` at once. Everything that fails is retried with growing pauses,
1 s to 5 minutes.

*Nothing is forgotten.* Before the first call a finalizer is put on the claim. A claim that is
deleted while a call may still succeed is kept by it until the driver's answer is final, also across
a restart: then the call is made once more, and the volume it returns is deleted. A volume that
exists is recorded in its PersistentVolume, whose own finalizer stays until the driver has deleted
it.

*Leadership.* All writes go through a client that refuses them when the lease is lost. Calls to the
driver may then still be made twice; the driver's journal makes them one, as the name of the volume
is the claim's uid.

A request whose outcome is open is repeated as it was (``_underway``): a changed preference could
make a second volume with drivers that are less careful than ours.
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
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.status import Code, CsiError
from zonewise.csi.transport.methods import CREATE_VOLUME, DELETE_VOLUME
from zonewise.embedded.csi_sidecars.provisioner import parameters, volumes
from zonewise.embedded.csi_sidecars.provisioner.driver import RPC, ReachableDriver, secrets
from zonewise.embedded.csi_sidecars.provisioner.options import LONGEST_PAUSE, TopologyOptions
from zonewise.embedded.csi_sidecars.provisioner.sources import content_source, populated
from zonewise.embedded.csi_sidecars.provisioner.volumes import FINALIZER, PROVISIONED_BY
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.controller.controller import Controller, own_key
from zonewise.runtime.controller.queue import Queue
from zonewise.runtime.controller.recorder import EventType
from zonewise.runtime.process.logs import logger
from zonewise.storage.provisioning import Afterwards, accessibility_requirement, afterwards

SELECTED_NODE = "volume.kubernetes.io/selected-node"
PROVISIONERS = (
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
)
WAIT = "WaitForFirstConsumer"
WORKERS = 16
FIRST_PAUSE = 1.0

_log = logger("provisioner")


class NotYet(ZonewiseError):
    """An attempt that failed; the queue decides when the next one is."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """What was requested, and whether it may still be made."""

    request: csi.CreateVolumeRequest
    made_by: StorageClass
    selected: bool


class VolumeProvisioner:
    """The claims and volumes of one driver."""

    def __init__(
        self,
        context: ComponentContext,
        driver: ReachableDriver,
        changed: asyncio.Event,
        options: TopologyOptions | None = None,
    ) -> None:
        self._context = context
        self._client = context.client
        self._driver = driver
        self._changed = changed
        """Set whenever the driver has more or less room than before."""
        self._options = options or TopologyOptions()
        self._finalizer = f"{driver.name}/provisioning"
        self._underway: dict[str, _Attempt] = {}
        self._settled: set[str] = set()
        """Uids of claims for which nothing is pending, as the driver answered since our start."""
        self._recorded: set[str] = set()
        """Names of volumes that were written, and that the store may not show yet."""
        self._controller: Controller[Key] = Controller(
            "provisioner",
            self._sync,
            cache=context.cache,
            workers=WORKERS,
            queue=Queue(base=FIRST_PAUSE, cap=LONGEST_PAUSE, rng=context.rng),
            rng=context.rng,
        )
        watches = self._controller.watches
        self._claims = watches(PersistentVolumeClaim, own_key, when=self._concerns)
        self._volumes = watches(PersistentVolume, own_key, when=self._ours)
        self._classes = watches(StorageClass, self._waiting)
        self._nodes = watches(Node, lambda _: ())
        self._csi_nodes = watches(CSINode, lambda _: ())
        self._attachments = watches(VolumeAttachment, _attached_volume, when=_detached)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._controller.run()

    # Which claims and volumes are ours

    def _concerns(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> bool:
        """Whether a claim is ours and means something new; our own finalizer does not."""
        if new is None:
            return False
        if old is not None and _context(old) == _context(new):
            return False
        return self._wanted(new) or self._finalizer in new.metadata.finalizers

    def _wanted(self, claim: PersistentVolumeClaim) -> bool:
        marks = claim.metadata.annotations
        return not claim.spec.volume_name and any(
            marks.get(key) == self._driver.name for key in PROVISIONERS
        )

    def _ours(self, old: PersistentVolume | None, new: PersistentVolume | None) -> bool:
        item = new or old
        return (
            item is not None and item.metadata.annotations.get(PROVISIONED_BY) == self._driver.name
        )

    def _waiting(self, made_by: StorageClass) -> tuple[Key, ...]:
        if made_by.provisioner != self._driver.name:
            return ()
        return tuple(
            claim.key
            for claim in self._claims
            if claim.storage_class == made_by.metadata.name and self._wanted(claim)
        )

    async def _sync(self, key: Key) -> float | None:
        if key[0]:
            return await self._claim(key)
        return await self._volume(key)

    # Claims

    async def _claim(self, key: Key) -> float | None:
        claim = self._claims.get(key)
        if claim is None:
            return None
        uid, held = claim.metadata.uid, self._finalizer in claim.metadata.finalizers
        name = volumes.volume_name(claim)
        if claim.spec.volume_name or name in self._recorded or ("", name) in self._volumes:
            if held:
                await self._let_go(claim)
            self._forget(uid)
            return None
        if claim.metadata.deletion_timestamp is not None:
            if not held:
                self._forget(uid)
                return None
            if uid in self._settled:
                await self._let_go(claim)
                self._forget(uid)
                return None
            return await self._clear_up(claim)
        if not self._wanted(claim) or populated(claim):
            return None
        made_by = self._classes.get(("", claim.storage_class or ""))
        if made_by is None or made_by.provisioner != self._driver.name:
            return None
        if made_by.volume_binding_mode == WAIT and SELECTED_NODE not in claim.metadata.annotations:
            return None
        return await self._provision(claim, made_by, held=held)

    async def _provision(
        self, claim: PersistentVolumeClaim, made_by: StorageClass, *, held: bool
    ) -> float | None:
        uid = claim.metadata.uid
        attempt = self._underway.get(uid)
        if attempt is None:
            note = "External provisioner is provisioning volume for claim"
            self._tell(claim, "Normal", "Provisioning", f'{note} "{"/".join(claim.key)}"')
            chosen = claim.metadata.annotations.get(SELECTED_NODE, "")
            if chosen and ("", chosen) not in self._nodes:
                await self._choose_again(claim, f'the selected node "{chosen}" is gone')
                return None
            try:
                attempt = await self._attempt(claim, made_by, chosen)
            except ZonewiseError as error:
                raise self._failed(claim, made_by, str(error)) from error
        if not held:
            await self._hold(claim)
        self._settled.discard(uid)
        self._underway[uid] = attempt
        try:
            volume = await self._create(claim, attempt)
        except CsiError as error:
            return await self._refused(claim, attempt, error)
        await self._record(claim, attempt, volume)
        return None

    async def _attempt(
        self, claim: PersistentVolumeClaim, made_by: StorageClass, chosen: str
    ) -> _Attempt:
        """The request for a claim, from what the cluster is now."""
        told = None
        if self._driver.topology:
            told = accessibility_requirement(
                claim.metadata.name,
                self._driver.name,
                {one.metadata.name: one.metadata.labels for one in self._nodes},
                self._csi_nodes,
                selected=chosen,
                allowed=made_by.allowed_topologies,
                strict=self._options.strict,
                immediate=self._options.immediate,
            )
        name = volumes.volume_name(claim)
        secret = parameters.secret(made_by.parameters, "provisioner", name, claim)
        request = volumes.create_request(
            claim,
            made_by,
            told,
            multi_writer=self._driver.can(RPC.SINGLE_NODE_MULTI_WRITER),
            source=await content_source(self._client, self._driver.name, claim),
            secrets=await secrets(self._client, secret),
        )
        return _Attempt(request, made_by, bool(chosen))

    async def _create(self, claim: PersistentVolumeClaim, attempt: _Attempt) -> csi.Volume:
        """Have the driver make the volume; one that is of no use is deleted at once."""
        request = attempt.request
        volume = (await self._driver.client.call(CREATE_VOLUME, request)).volume
        self._changed.set()
        try:
            volumes.checked(request, volume)
        except volumes.AnswerError as error:
            await self._delete(volume.volume_id, dict(request.secrets))
            self._settle(claim.metadata.uid)
            raise self._failed(claim, attempt.made_by, str(error)) from error
        return volume

    async def _record(
        self, claim: PersistentVolumeClaim, attempt: _Attempt, volume: csi.Volume
    ) -> None:
        made = volumes.persistent_volume(
            self._driver.name, claim, attempt.made_by, attempt.request, volume
        )
        with suppress(AlreadyExists):
            await self._client.create(made)
        name = made.metadata.name
        self._recorded.add(name)
        note = f"Successfully provisioned volume {name}"
        self._tell(claim, "Normal", "ProvisioningSucceeded", note)
        await self._let_go(claim)
        self._forget(claim.metadata.uid)

    async def _refused(
        self, claim: PersistentVolumeClaim, attempt: _Attempt, error: CsiError
    ) -> float | None:
        uid, made_by = claim.metadata.uid, attempt.made_by
        selected = attempt.selected and self._driver.topology
        follows = afterwards(error.code.name, selected=selected)
        if follows is not Afterwards.BACKGROUND:
            self._settle(uid)
        failed = self._failed(claim, made_by, str(error))
        if follows is Afterwards.RESCHEDULE:
            await self._choose_again(claim, "the driver has no room there")
            return None
        if error.code is Code.INVALID_ARGUMENT:
            # Only a change of the class or of the driver can help it.
            return LONGEST_PAUSE
        raise failed

    def _failed(self, claim: PersistentVolumeClaim, made_by: StorageClass, why: str) -> NotYet:
        """Say that an attempt failed; what is returned makes the queue try again."""
        note = f'failed to provision volume with StorageClass "{made_by.metadata.name}": {why}'
        self._tell(claim, "Warning", "ProvisioningFailed", note)
        return NotYet(note)

    async def _choose_again(self, claim: PersistentVolumeClaim, why: str) -> None:
        """Take the node off a claim; on the version that was seen, as a newer one may be chosen."""
        meta = claim.metadata
        now = await self._client.get(PersistentVolumeClaim, meta.name, meta.namespace)
        chosen = meta.annotations.get(SELECTED_NODE)
        if now.metadata.uid != meta.uid or now.metadata.annotations.get(SELECTED_NODE) != chosen:
            return
        body = {
            "metadata": {
                "resourceVersion": now.metadata.resource_version,
                "annotations": {SELECTED_NODE: None},
            }
        }
        await self._client.patch(PersistentVolumeClaim, meta.name, meta.namespace, body)
        _log.info("another node is to be chosen", claim="/".join(claim.key), node=chosen, why=why)

    async def _clear_up(self, claim: PersistentVolumeClaim) -> float | None:
        """A deleted claim's volume may still be made: retry until known, then delete it."""
        uid = claim.metadata.uid
        attempt = self._underway.get(uid)
        if attempt is None:
            made_by = self._classes.get(("", claim.storage_class or ""))
            if made_by is None:
                raise NotYet(
                    f'the class "{claim.storage_class}" of a deleted claim is gone;'
                    " whether its driver has a volume is unknown without it"
                )
            chosen = claim.metadata.annotations.get(SELECTED_NODE, "")
            try:
                attempt = await self._attempt(claim, made_by, chosen)
            except ZonewiseError as error:
                raise NotYet(f"clearing up: {error}") from error
        try:
            answer = await self._driver.client.call(CREATE_VOLUME, attempt.request)
        except CsiError as error:
            if afterwards(error.code.name, selected=False) is Afterwards.BACKGROUND:
                self._underway[uid] = attempt
                raise NotYet(f"clearing up: {error}") from error
        else:
            await self._delete(answer.volume.volume_id, dict(attempt.request.secrets))
        await self._let_go(claim)
        self._forget(uid)
        return None

    async def _hold(self, claim: PersistentVolumeClaim) -> None:
        meta = claim.metadata
        body = {
            "metadata": {
                "resourceVersion": meta.resource_version,
                "finalizers": [*meta.finalizers, self._finalizer],
            }
        }
        await self._client.patch(PersistentVolumeClaim, meta.name, meta.namespace, body)

    async def _let_go(self, claim: PersistentVolumeClaim) -> None:
        meta = claim.metadata
        try:
            now = await self._client.get(PersistentVolumeClaim, meta.name, meta.namespace)
        except NotFound:
            return
        if now.metadata.uid != meta.uid or self._finalizer not in now.metadata.finalizers:
            return
        kept = [one for one in now.metadata.finalizers if one != self._finalizer]
        body = {
            "metadata": {
                "resourceVersion": now.metadata.resource_version,
                "finalizers": kept or None,
            }
        }
        with suppress(NotFound):
            await self._client.patch(PersistentVolumeClaim, meta.name, meta.namespace, body)

    def _settle(self, uid: str) -> None:
        self._underway.pop(uid, None)
        self._settled.add(uid)

    def _forget(self, uid: str) -> None:
        self._underway.pop(uid, None)
        self._settled.discard(uid)

    # Volumes

    async def _volume(self, key: Key) -> float | None:
        volume = self._volumes.get(key)
        self._recorded.discard(key[1])
        if volume is None or not self._ours(None, volume):
            return None
        spec, meta = volume.spec, volume.metadata
        leaving = meta.deletion_timestamp is not None
        if spec.persistent_volume_reclaim_policy != "Delete":
            if leaving and FINALIZER in meta.finalizers:
                await self._unprotect(volume)
            return None
        if volume.status.phase not in ("Released", "Failed"):
            return None
        if leaving and FINALIZER not in meta.finalizers:
            return None
        nodes = sorted(
            one.spec.node_name
            for one in self._attachments
            if one.spec.source.persistent_volume_name == meta.name
        )
        if nodes:
            self._undeletable(volume, f"persistentvolume {meta.name} is still attached to {nodes}")
            return None
        assert spec.csi is not None
        name = meta.annotations.get(volumes.SECRET_NAME, "")
        ref = None
        if name:
            ref = SecretReference(
                name=name, namespace=meta.annotations.get(volumes.SECRET_NAMESPACE, "")
            )
        try:
            await self._delete(spec.csi.volume_handle, await secrets(self._client, ref))
        except ZonewiseError as error:
            raise self._undeletable(volume, str(error)) from error
        with suppress(NotFound):
            await self._client.delete(PersistentVolume, meta.name, uid=meta.uid)
        await self._unprotect(volume)
        return None

    async def _delete(self, volume_id: str, told: dict[str, str]) -> None:
        request = csi.DeleteVolumeRequest(volume_id=volume_id, secrets=told)
        await self._driver.client.call(DELETE_VOLUME, request)
        self._changed.set()

    async def _unprotect(self, volume: PersistentVolume) -> None:
        name = volume.metadata.name
        with suppress(NotFound):
            now = await self._client.get(PersistentVolume, name)
            if FINALIZER not in now.metadata.finalizers:
                return
            kept = [one for one in now.metadata.finalizers if one != FINALIZER]
            body = {
                "metadata": {
                    "resourceVersion": now.metadata.resource_version,
                    "finalizers": kept or None,
                }
            }
            await self._client.patch(PersistentVolume, name, None, body)

    def _undeletable(self, volume: PersistentVolume, why: str) -> NotYet:
        self._context.recorder.event(
            volume, type="Warning", reason="VolumeFailedDelete", action="Delete", note=why
        )
        return NotYet(why)

    def _tell(self, claim: PersistentVolumeClaim, kind: EventType, reason: str, note: str) -> None:
        self._context.recorder.event(claim, type=kind, reason=reason, action="Provision", note=note)


def _context(claim: PersistentVolumeClaim) -> tuple[object, ...]:
    meta = claim.metadata
    return meta.uid, meta.deletion_timestamp, meta.annotations, claim.spec


def _attached_volume(item: VolumeAttachment) -> tuple[Key, ...]:
    name = item.spec.source.persistent_volume_name
    return (("", name),) if name else ()


def _detached(_: VolumeAttachment | None, new: VolumeAttachment | None) -> bool:
    return new is None
