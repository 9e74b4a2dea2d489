"""Snapshots of volumes: VolumeSnapshot, VolumeSnapshotContent, VolumeSnapshotClass.

A snapshot is to its content what a claim is to a volume: the first is requested in a namespace, the
second is what a driver has. They are custom resources, installed with a snapshot controller.
"""

from __future__ import annotations

from typing import ClassVar

from zonewise.api.meta import Object, ObjectReference, QuantityText
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct, field

GROUP = "snapshot.storage.k8s.io"


class VolumeSnapshotSource(Struct):
    """What a snapshot is made of: a claim, or an existing content."""

    persistent_volume_claim_name: str | None = None
    volume_snapshot_content_name: str | None = None


class VolumeSnapshotSpec(Struct):
    """What is requested."""

    source: VolumeSnapshotSource = VolumeSnapshotSource()
    volume_snapshot_class_name: str | None = None


class VolumeSnapshotError(Struct):
    """What went wrong, and when."""

    time: str | None = None
    message: str | None = None


class VolumeSnapshotStatus(Struct):
    """The content a snapshot is bound to, and its state."""

    bound_volume_snapshot_content_name: str | None = None
    creation_time: str | None = None
    ready_to_use: bool | None = None
    restore_size: QuantityText | None = None
    error: VolumeSnapshotError | None = None


class VolumeSnapshot(Object):
    """A request for a snapshot of a claim's volume."""

    resource: ClassVar = Resource(GROUP, "v1", "VolumeSnapshot", "volumesnapshots")

    spec: VolumeSnapshotSpec = VolumeSnapshotSpec()
    status: VolumeSnapshotStatus | None = None


class VolumeSnapshotContentSource(Struct):
    """What a content is made of: a volume, or a snapshot the driver has, by their handles."""

    volume_handle: str | None = None
    snapshot_handle: str | None = None


class VolumeSnapshotContentSpec(Struct):
    """The VolumeSnapshot it belongs to, and the deletion policy."""

    volume_snapshot_ref: ObjectReference = ObjectReference()
    deletion_policy: str = ""
    driver: str = ""
    volume_snapshot_class_name: str | None = None
    source: VolumeSnapshotContentSource = VolumeSnapshotContentSource()
    source_volume_mode: str | None = None


class VolumeSnapshotContentStatus(Struct):
    """What the driver has; ``creation_time`` is in nanoseconds since the epoch."""

    snapshot_handle: str | None = None
    creation_time: int | None = None
    restore_size: int | None = None
    ready_to_use: bool | None = None
    error: VolumeSnapshotError | None = None


class VolumeSnapshotContent(Object):
    """A snapshot that a driver has, or is to make."""

    resource: ClassVar = Resource(
        GROUP, "v1", "VolumeSnapshotContent", "volumesnapshotcontents", namespaced=False
    )

    spec: VolumeSnapshotContentSpec = VolumeSnapshotContentSpec()
    status: VolumeSnapshotContentStatus | None = None


class VolumeSnapshotClass(Object):
    """How snapshots of a class are made."""

    resource: ClassVar = Resource(
        GROUP, "v1", "VolumeSnapshotClass", "volumesnapshotclasses", namespaced=False
    )

    driver: str = ""
    deletion_policy: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
