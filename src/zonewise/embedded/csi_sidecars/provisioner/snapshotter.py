"""Snapshots of a driver's volumes: a VolumeSnapshot requests, a VolumeSnapshotContent records.

A snapshot of a claim gets a content whose name follows from the snapshot's uid, then the driver is
called, then both get their status. A snapshot that names a content is bound to it, if that names it
too. Finalizers hold a content until the driver has deleted its snapshot (policy ``Delete``) or need
not (``Retain``), and a snapshot until its content is settled; so nothing is lost by a restart at
any line, and no snapshot is left with the driver without an object.

Keys are snapshots and contents. What fails is reported on the snapshot (``status.error``) and
retried with growing pauses, 1 s to 5 minutes.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from zonewise.api.errors import AlreadyExists, NotFound, ZonewiseError
from zonewise.api.meta import Key, ObjectMeta, ObjectReference
from zonewise.api.objects.snapshots import (
    VolumeSnapshot,
    VolumeSnapshotClass,
    VolumeSnapshotContent,
    VolumeSnapshotContentSource,
    VolumeSnapshotContentSpec,
)
from zonewise.api.objects.storage import PersistentVolume, PersistentVolumeClaim
from zonewise.api.values import times
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport.methods import CREATE_SNAPSHOT, DELETE_SNAPSHOT, LIST_SNAPSHOTS
from zonewise.embedded.csi_sidecars.provisioner.driver import ReachableDriver
from zonewise.embedded.csi_sidecars.provisioner.options import LONGEST_PAUSE
from zonewise.embedded.csi_sidecars.provisioner.volumes import size_text
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.controller.controller import Controller, own_key
from zonewise.runtime.controller.queue import Queue

HELD = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"
CONTENT_HELD = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
DEFAULT_CLASS = "snapshot.storage.kubernetes.io/is-default-class"
LOOK = 2.0
"""How long a snapshot that is not ready is left alone."""


class SnapshotFailed(ZonewiseError):
    """A snapshot that cannot be made now."""


class Snapshotter:
    """The snapshots of one driver."""

    def __init__(self, context: ComponentContext, driver: ReachableDriver) -> None:
        self._context = context
        self._client = context.client
        self._driver = driver
        self._controller: Controller[Key] = Controller(
            "snapshotter",
            self._sync,
            cache=context.cache,
            workers=4,
            queue=Queue(base=1.0, cap=LONGEST_PAUSE, rng=context.rng),
            rng=context.rng,
        )
        watches = self._controller.watches
        self._snapshots = watches(VolumeSnapshot, own_key)
        self._contents = watches(VolumeSnapshotContent, _both)
        self._classes = watches(VolumeSnapshotClass, lambda _: ())
        self._claims = watches(PersistentVolumeClaim, lambda _: ())
        self._volumes = watches(PersistentVolume, lambda _: ())

    async def run(self) -> None:
        """Work until cancelled."""
        await self._controller.run()

    async def _sync(self, key: Key) -> float | None:
        if key[0]:
            return await self._snapshot(key)
        return await self._content(key)

    # Snapshots

    async def _snapshot(self, key: Key) -> float | None:
        snapshot = self._snapshots.get(key)
        if snapshot is None:
            return None
        if snapshot.metadata.deletion_timestamp is not None:
            await self._leave(snapshot)
            return None
        try:
            content = await self._content_of(snapshot)
        except ZonewiseError as error:
            await self._fail(snapshot, str(error))
            raise
        if content is None:
            return None
        if HELD not in snapshot.metadata.finalizers:
            await self._finalize(snapshot, [*snapshot.metadata.finalizers, HELD])
        await self._tell(snapshot, content)
        return None

    async def _content_of(self, snapshot: VolumeSnapshot) -> VolumeSnapshotContent | None:
        """The content of a snapshot, made if it must be; None if it is not this driver's."""
        meta, source = snapshot.metadata, snapshot.spec.source
        named = source.volume_snapshot_content_name
        if named:
            content = self._contents.get(("", named))
            if content is None:
                raise SnapshotFailed(f"VolumeSnapshotContent {named} is not there")
            if content.spec.driver != self._driver.name:
                return None
            ref = content.spec.volume_snapshot_ref
            if (ref.namespace, ref.name) != snapshot.key or ref.uid not in ("", meta.uid):
                raise SnapshotFailed(f"VolumeSnapshotContent {named} is of another snapshot")
            if not ref.uid:
                body = {"spec": {"volumeSnapshotRef": {"uid": meta.uid}}}
                content = await self._client.patch(VolumeSnapshotContent, named, None, body)
            return content
        name = f"snapcontent-{meta.uid}"
        content = self._contents.get(("", name))
        if content is not None:
            return content if content.spec.driver == self._driver.name else None
        made_by = self._class(snapshot)
        if made_by is None or made_by.driver != self._driver.name:
            return None
        handle = self._handle(snapshot)
        draft = VolumeSnapshotContent(
            metadata=ObjectMeta(name=name, finalizers=(CONTENT_HELD,)),
            spec=VolumeSnapshotContentSpec(
                volume_snapshot_ref=ObjectReference.to(snapshot),
                deletion_policy=made_by.deletion_policy or "Delete",
                driver=self._driver.name,
                volume_snapshot_class_name=made_by.metadata.name,
                source=VolumeSnapshotContentSource(volume_handle=handle),
            ),
        )
        try:
            return await self._client.create(draft)
        except AlreadyExists:
            return await self._client.get(VolumeSnapshotContent, name)

    def _class(self, snapshot: VolumeSnapshot) -> VolumeSnapshotClass | None:
        name = snapshot.spec.volume_snapshot_class_name
        if name:
            made_by = self._classes.get(("", name))
            if made_by is None:
                raise SnapshotFailed(f'VolumeSnapshotClass "{name}" is not there')
            return made_by
        usual = [
            one
            for one in self._classes
            if one.metadata.annotations.get(DEFAULT_CLASS) == "true"
            and one.driver == self._driver.name
        ]
        return min(usual, key=lambda one: one.metadata.name, default=None)

    def _handle(self, snapshot: VolumeSnapshot) -> str:
        """The driver's name for the volume of the claim."""
        name = snapshot.spec.source.persistent_volume_claim_name or ""
        claim = self._claims.get((snapshot.metadata.namespace, name))
        if claim is None or not claim.spec.volume_name:
            raise SnapshotFailed(f'the claim "{name}" is not bound to a volume')
        volume = self._volumes.get(("", claim.spec.volume_name))
        source = volume.spec.csi if volume is not None else None
        if source is None or source.driver != self._driver.name:
            raise SnapshotFailed(f'the volume of claim "{name}" is not of {self._driver.name}')
        return source.volume_handle

    async def _tell(self, snapshot: VolumeSnapshot, content: VolumeSnapshotContent) -> None:
        """Copy the content's status to the snapshot."""
        has = content.status
        status: dict[str, Any] = {"boundVolumeSnapshotContentName": content.metadata.name}
        if has is not None:
            status["readyToUse"] = bool(has.ready_to_use)
            if has.creation_time is not None:
                when = times.from_epoch(has.creation_time / 1e9)
                status["creationTime"] = times.format_time(when)
            if has.restore_size is not None:
                status["restoreSize"] = size_text(has.restore_size)
            if has.ready_to_use:
                status["error"] = None
        old = snapshot.status
        same = old is not None and (
            old.bound_volume_snapshot_content_name,
            bool(old.ready_to_use),
            old.error,
        ) == (content.metadata.name, bool(status.get("readyToUse")), None)
        if not same:
            await self._patch_status(snapshot, status)

    async def _fail(self, snapshot: VolumeSnapshot, why: str) -> None:
        old = snapshot.status.error if snapshot.status is not None else None
        self._context.recorder.event(
            snapshot,
            type="Warning",
            reason="SnapshotContentCreationFailed",
            action="Snapshot",
            note=why,
        )
        if old is None or old.message != why:
            now = times.format_time(times.from_epoch(self._context.clock()))
            error = {"error": {"message": why, "time": now}, "readyToUse": False}
            await self._patch_status(snapshot, error)

    async def _leave(self, snapshot: VolumeSnapshot) -> None:
        """A snapshot is deleted, and its content with it, unless that is to be kept."""
        meta = snapshot.metadata
        if HELD not in meta.finalizers:
            return
        bound = snapshot.status.bound_volume_snapshot_content_name if snapshot.status else None
        name = bound or f"snapcontent-{meta.uid}"
        content = self._contents.get(("", name))
        if content is not None and content.spec.deletion_policy == "Delete":
            if content.metadata.deletion_timestamp is None:
                with suppress(NotFound):
                    await self._client.delete(VolumeSnapshotContent, name)
            return
        await self._finalize(snapshot, [one for one in meta.finalizers if one != HELD])

    # Contents

    async def _content(self, key: Key) -> float | None:
        content = self._contents.get(key)
        if content is None or content.spec.driver != self._driver.name:
            return None
        if content.metadata.deletion_timestamp is not None:
            await self._delete(content)
            return None
        has = content.status
        if has is not None and has.ready_to_use:
            return None
        if CONTENT_HELD not in content.metadata.finalizers:
            await self._finalize(content, [*content.metadata.finalizers, CONTENT_HELD])
        made = await self._ask(content)
        status = {
            "snapshotHandle": made.snapshot_id,
            "creationTime": made.creation_time.ToNanoseconds(),
            "restoreSize": made.size_bytes,
            "readyToUse": made.ready_to_use,
        }
        await self._client.patch_status(content, status)
        return None if made.ready_to_use else LOOK

    async def _ask(self, content: VolumeSnapshotContent) -> csi.Snapshot:
        """The driver's snapshot: made, or looked up where it existed before the content."""
        source = content.spec.source
        if source.snapshot_handle:
            request = csi.ListSnapshotsRequest(snapshot_id=source.snapshot_handle)
            found = (await self._driver.client.call(LIST_SNAPSHOTS, request)).entries
            if not found:
                raise SnapshotFailed(f"the driver has no snapshot {source.snapshot_handle}")
            return found[0].snapshot
        made_by = self._classes.get(("", content.spec.volume_snapshot_class_name or ""))
        name = content.metadata.name.removeprefix("snapcontent-")
        asked = csi.CreateSnapshotRequest(
            name=f"snapshot-{name}",
            source_volume_id=source.volume_handle or "",
            parameters=made_by.parameters if made_by is not None else {},
        )
        try:
            return (await self._driver.client.call(CREATE_SNAPSHOT, asked)).snapshot
        except ZonewiseError as error:
            ref = content.spec.volume_snapshot_ref
            snapshot = self._snapshots.get((ref.namespace, ref.name))
            if snapshot is not None:
                await self._fail(snapshot, f"Failed to create snapshot: {error}")
            raise

    async def _delete(self, content: VolumeSnapshotContent) -> None:
        meta, has = content.metadata, content.status
        if CONTENT_HELD not in meta.finalizers:
            return
        if content.spec.deletion_policy == "Delete":
            handle = has.snapshot_handle if has is not None else None
            if not handle:
                # The call may have been made and its answer lost: call once more, then delete.
                handle = (await self._ask(content)).snapshot_id
            request = csi.DeleteSnapshotRequest(snapshot_id=handle)
            await self._driver.client.call(DELETE_SNAPSHOT, request)
        await self._finalize(content, [one for one in meta.finalizers if one != CONTENT_HELD])

    async def _finalize(
        self, item: VolumeSnapshot | VolumeSnapshotContent, finalizers: list[str]
    ) -> None:
        meta = item.metadata
        body = {
            "metadata": {
                "resourceVersion": meta.resource_version,
                "finalizers": finalizers or None,
            }
        }
        with suppress(NotFound):
            await self._client.patch(type(item), meta.name, meta.namespace or None, body)

    async def _patch_status(self, snapshot: VolumeSnapshot, status: dict[str, Any]) -> None:
        with suppress(NotFound):
            await self._client.patch_status(snapshot, status)


def _both(content: VolumeSnapshotContent) -> tuple[Key, ...]:
    """A content and its snapshot."""
    ref = content.spec.volume_snapshot_ref
    return (content.key, (ref.namespace, ref.name))
