"""Snapshots of a driver's volumes: a VolumeSnapshot requests, a VolumeSnapshotContent records.

A snapshot of a claim gets a content whose name follows from the snapshot's uid, then the driver is
called, then both get their status. A snapshot that names a content is bound to it, if that names
the snapshot too. Finalizers keep a content until the driver has deleted its snapshot (policy
``Delete``) or need not (``Retain``), and a snapshot until its content is deleted or released; so
nothing is lost by a restart at any line, and the driver has no snapshot without an object.

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
from zonewise.embedded.csi_sidecars.driver import MAX_RETRY_SECONDS, ReachableDriver
from zonewise.embedded.csi_sidecars.volumes import format_size
from zonewise.runtime.controller.controller import Controller, own_key
from zonewise.runtime.controller.queue import Queue
from zonewise.runtime.program.context import ControllerContext

SNAPSHOT_FINALIZER = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"
CONTENT_FINALIZER = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
DEFAULT_CLASS = "snapshot.storage.kubernetes.io/is-default-class"
POLL_SECONDS = 2.0
"""How long to wait before a snapshot that is not ready is checked again."""


class SnapshotFailed(ZonewiseError):
    """A snapshot cannot be created now."""


class Snapshotter:
    """The snapshots of one driver."""

    def __init__(self, context: ControllerContext, *, driver: ReachableDriver) -> None:
        self._context = context
        self._client = context.client
        self._driver = driver
        self._controller: Controller[Key] = context.controller(
            "snapshotter",
            self._sync,
            workers=4,
            queue=Queue(base=1.0, cap=MAX_RETRY_SECONDS, rng=context.rng),
        )
        self.run = self._controller.run
        watches = self._controller.watches
        self._snapshots = watches(VolumeSnapshot, own_key)
        self._contents = watches(VolumeSnapshotContent, _content_and_snapshot)
        self._classes = watches(VolumeSnapshotClass, lambda _: ())
        self._claims = watches(PersistentVolumeClaim, lambda _: ())
        self._volumes = watches(PersistentVolume, lambda _: ())

    async def _sync(self, key: Key) -> float | None:
        if key[0]:
            return await self._sync_snapshot(key)
        return await self._sync_content(key)

    # Snapshots

    async def _sync_snapshot(self, key: Key) -> float | None:
        snapshot = self._snapshots.get(key)
        if snapshot is None:
            return None
        if snapshot.metadata.deletion_timestamp is not None:
            await self._delete_snapshot(snapshot)
            return None
        try:
            content = await self._ensure_content(snapshot)
        except ZonewiseError as error:
            await self._report_error(snapshot, str(error))
            raise
        if content is None:
            return None
        if SNAPSHOT_FINALIZER not in snapshot.metadata.finalizers:
            finalizers = [*snapshot.metadata.finalizers, SNAPSHOT_FINALIZER]
            await self._write_finalizers(snapshot, finalizers)
        await self._copy_status(snapshot, content)
        return None

    async def _ensure_content(self, snapshot: VolumeSnapshot) -> VolumeSnapshotContent | None:
        """Get or create the content of a snapshot; None if it is not of this driver."""
        meta, source = snapshot.metadata, snapshot.spec.source
        content_name = source.volume_snapshot_content_name
        if content_name:
            content = self._contents.get(("", content_name))
            if content is None:
                raise SnapshotFailed(f"VolumeSnapshotContent {content_name} does not exist")
            if content.spec.driver != self._driver.name:
                return None
            ref = content.spec.volume_snapshot_ref
            if (ref.namespace, ref.name) != snapshot.key or ref.uid not in ("", meta.uid):
                raise SnapshotFailed(f"VolumeSnapshotContent {content_name} is of another snapshot")
            if not ref.uid:
                body = {"spec": {"volumeSnapshotRef": {"uid": meta.uid}}}
                content = await self._client.patch(VolumeSnapshotContent, content_name, None, body)
            return content
        name = f"snapcontent-{meta.uid}"
        content = self._contents.get(("", name))
        if content is not None:
            return content if content.spec.driver == self._driver.name else None
        snapshot_class = self._get_class(snapshot)
        if snapshot_class is None or snapshot_class.driver != self._driver.name:
            return None
        handle = self._get_volume_handle(snapshot)
        draft = VolumeSnapshotContent(
            metadata=ObjectMeta(name=name, finalizers=(CONTENT_FINALIZER,)),
            spec=VolumeSnapshotContentSpec(
                volume_snapshot_ref=ObjectReference.to(snapshot),
                deletion_policy=snapshot_class.deletion_policy or "Delete",
                driver=self._driver.name,
                volume_snapshot_class_name=snapshot_class.metadata.name,
                source=VolumeSnapshotContentSource(volume_handle=handle),
            ),
        )
        try:
            return await self._client.create(draft)
        except AlreadyExists:
            return await self._client.get(VolumeSnapshotContent, name)

    def _get_class(self, snapshot: VolumeSnapshot) -> VolumeSnapshotClass | None:
        name = snapshot.spec.volume_snapshot_class_name
        if name:
            snapshot_class = self._classes.get(("", name))
            if snapshot_class is None:
                raise SnapshotFailed(f'VolumeSnapshotClass "{name}" does not exist')
            return snapshot_class
        defaults = [
            snapshot_class
            for snapshot_class in self._classes
            if snapshot_class.metadata.annotations.get(DEFAULT_CLASS) == "true"
            and snapshot_class.driver == self._driver.name
        ]
        return min(defaults, key=lambda snapshot_class: snapshot_class.metadata.name, default=None)

    def _get_volume_handle(self, snapshot: VolumeSnapshot) -> str:
        """The driver's id of the volume of the claim."""
        name = snapshot.spec.source.persistent_volume_claim_name or ""
        claim = self._claims.get((snapshot.metadata.namespace, name))
        if claim is None or not claim.spec.volume_name:
            raise SnapshotFailed(f'the claim "{name}" is not bound to a volume')
        volume = self._volumes.get(("", claim.spec.volume_name))
        source = volume.spec.csi if volume is not None else None
        if source is None or source.driver != self._driver.name:
            raise SnapshotFailed(f'the volume of claim "{name}" is not of {self._driver.name}')
        return source.volume_handle

    async def _copy_status(self, snapshot: VolumeSnapshot, content: VolumeSnapshotContent) -> None:
        """Copy the content's status to the snapshot."""
        content_status = content.status
        status: dict[str, Any] = {"boundVolumeSnapshotContentName": content.metadata.name}
        if content_status is not None:
            status["readyToUse"] = bool(content_status.ready_to_use)
            if content_status.creation_time is not None:
                created = times.from_epoch(content_status.creation_time / 1e9)
                status["creationTime"] = times.format_time(created)
            if content_status.restore_size is not None:
                status["restoreSize"] = format_size(content_status.restore_size)
            if content_status.ready_to_use:
                status["error"] = None
        current = snapshot.status
        unchanged = current is not None and (
            current.bound_volume_snapshot_content_name,
            bool(current.ready_to_use),
            current.error,
        ) == (content.metadata.name, bool(status.get("readyToUse")), None)
        if not unchanged:
            await self._patch_status(snapshot, status)

    async def _report_error(self, snapshot: VolumeSnapshot, message: str) -> None:
        current = snapshot.status.error if snapshot.status is not None else None
        self._context.recorder.event(
            snapshot, "SnapshotContentCreationFailed", "Snapshot", message, type="Warning"
        )
        if current is None or current.message != message:
            now = times.format_time(times.from_epoch(self._context.clock()))
            error = {"error": {"message": message, "time": now}, "readyToUse": False}
            await self._patch_status(snapshot, error)

    async def _delete_snapshot(self, snapshot: VolumeSnapshot) -> None:
        """Delete the content of a terminating snapshot by its policy, then let the snapshot go."""
        meta = snapshot.metadata
        if SNAPSHOT_FINALIZER not in meta.finalizers:
            return
        bound_name = snapshot.status.bound_volume_snapshot_content_name if snapshot.status else None
        name = bound_name or f"snapcontent-{meta.uid}"
        content = self._contents.get(("", name))
        if content is not None and content.spec.deletion_policy == "Delete":
            if content.metadata.deletion_timestamp is None:
                with suppress(NotFound):
                    await self._client.delete(VolumeSnapshotContent, name)
            return
        remaining = [name for name in meta.finalizers if name != SNAPSHOT_FINALIZER]
        await self._write_finalizers(snapshot, remaining)

    # Contents

    async def _sync_content(self, key: Key) -> float | None:
        content = self._contents.get(key)
        if content is None or content.spec.driver != self._driver.name:
            return None
        if content.metadata.deletion_timestamp is not None:
            await self._delete_content(content)
            return None
        content_status = content.status
        if content_status is not None and content_status.ready_to_use:
            return None
        if CONTENT_FINALIZER not in content.metadata.finalizers:
            await self._write_finalizers(content, [*content.metadata.finalizers, CONTENT_FINALIZER])
        snapshot = await self._get_driver_snapshot(content)
        status = {
            "snapshotHandle": snapshot.snapshot_id,
            "creationTime": snapshot.creation_time.ToNanoseconds(),
            "restoreSize": snapshot.size_bytes,
            "readyToUse": snapshot.ready_to_use,
        }
        await self._client.patch_status(content, status)
        return None if snapshot.ready_to_use else POLL_SECONDS

    async def _get_driver_snapshot(self, content: VolumeSnapshotContent) -> csi.Snapshot:
        """The driver's snapshot: created, or looked up if the content names an existing one."""
        source = content.spec.source
        if source.snapshot_handle:
            request = csi.ListSnapshotsRequest(snapshot_id=source.snapshot_handle)
            entries = (await self._driver.client.call(LIST_SNAPSHOTS, request)).entries
            if not entries:
                raise SnapshotFailed(f"the driver has no snapshot {source.snapshot_handle}")
            return entries[0].snapshot
        snapshot_class = self._classes.get(("", content.spec.volume_snapshot_class_name or ""))
        name = content.metadata.name.removeprefix("snapcontent-")
        create_request = csi.CreateSnapshotRequest(
            name=f"snapshot-{name}",
            source_volume_id=source.volume_handle or "",
            parameters=snapshot_class.parameters if snapshot_class is not None else {},
        )
        try:
            return (await self._driver.client.call(CREATE_SNAPSHOT, create_request)).snapshot
        except ZonewiseError as error:
            ref = content.spec.volume_snapshot_ref
            snapshot = self._snapshots.get((ref.namespace, ref.name))
            if snapshot is not None:
                await self._report_error(snapshot, f"Failed to create snapshot: {error}")
            raise

    async def _delete_content(self, content: VolumeSnapshotContent) -> None:
        meta, content_status = content.metadata, content.status
        if CONTENT_FINALIZER not in meta.finalizers:
            return
        if content.spec.deletion_policy == "Delete":
            handle = content_status.snapshot_handle if content_status is not None else None
            if not handle:
                # The driver may have created it and the answer was lost: repeat, then delete.
                handle = (await self._get_driver_snapshot(content)).snapshot_id
            request = csi.DeleteSnapshotRequest(snapshot_id=handle)
            await self._driver.client.call(DELETE_SNAPSHOT, request)
        await self._write_finalizers(
            content, [finalizer for finalizer in meta.finalizers if finalizer != CONTENT_FINALIZER]
        )

    async def _write_finalizers(
        self, obj: VolumeSnapshot | VolumeSnapshotContent, finalizers: list[str]
    ) -> None:
        meta = obj.metadata
        version = meta.resource_version
        body = {"metadata": {"resourceVersion": version, "finalizers": finalizers or None}}
        with suppress(NotFound):
            await self._client.patch(type(obj), meta.name, meta.namespace or None, body)

    async def _patch_status(self, snapshot: VolumeSnapshot, status: dict[str, Any]) -> None:
        with suppress(NotFound):
            await self._client.patch_status(snapshot, status)


def _content_and_snapshot(content: VolumeSnapshotContent) -> tuple[Key, ...]:
    """A content and its snapshot."""
    ref = content.spec.volume_snapshot_ref
    return (content.key, (ref.namespace, ref.name))
