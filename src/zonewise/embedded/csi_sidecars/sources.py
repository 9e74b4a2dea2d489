"""What a claim is filled from: another claim's volume, or a snapshot, by the driver's ids."""

from __future__ import annotations

from zonewise.api.errors import ZonewiseError
from zonewise.api.objects.snapshots import GROUP, VolumeSnapshot, VolumeSnapshotContent
from zonewise.api.objects.storage import PersistentVolume, PersistentVolumeClaim, TypedReference
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.embedded.csi_sidecars.volumes import bytes_of
from zonewise.runtime.client.client import Client


class SourceError(ZonewiseError):
    """A source does not exist, is not ready, or is of another driver."""


def source_of(claim: PersistentVolumeClaim) -> TypedReference | None:
    """The object that a claim is filled from."""
    return claim.spec.data_source_ref or claim.spec.data_source


def has_populator(claim: PersistentVolumeClaim) -> bool:
    """Whether another controller fills the claim: a source that is neither claim nor snapshot."""
    ref = source_of(claim)
    if ref is None:
        return False
    known = {("", "PersistentVolumeClaim"), (GROUP, "VolumeSnapshot")}
    return (ref.api_group or "", ref.kind) not in known


async def content_source(
    client: Client, driver: str, claim: PersistentVolumeClaim
) -> csi.VolumeContentSource | None:
    """The source of a claim for the driver's request; None if the claim starts empty."""
    ref = source_of(claim)
    if ref is None:
        return None
    if ref.namespace not in (None, "", claim.metadata.namespace):
        raise SourceError("a claim can only be filled from its own namespace")
    if ref.kind == "PersistentVolumeClaim":
        return await _volume_source(client, driver, claim, ref.name)
    return await _snapshot_source(client, driver, claim, ref.name)


async def _volume_source(
    client: Client, driver: str, claim: PersistentVolumeClaim, name: str
) -> csi.VolumeContentSource:
    source = await client.get(PersistentVolumeClaim, name, claim.metadata.namespace)
    if source.status.phase != "Bound" or source.metadata.deletion_timestamp is not None:
        raise SourceError(f"the source claim {name} is not bound")
    volume = await client.get(PersistentVolume, source.spec.volume_name)
    csi_source = volume.spec.csi
    if csi_source is None or csi_source.driver != driver:
        raise SourceError(f"the volume of the source claim {name} is not of driver {driver}")
    if (source.spec.volume_mode or "Filesystem") != (claim.spec.volume_mode or "Filesystem"):
        raise SourceError(f"the source claim {name} has another volume mode")
    if bytes_of(volume.spec.capacity) > bytes_of(claim.spec.resources.requests):
        raise SourceError(f"the claim is smaller than its source claim {name}")
    content_source = csi.VolumeContentSource()
    content_source.volume.volume_id = csi_source.volume_handle
    return content_source


async def _snapshot_source(
    client: Client, driver: str, claim: PersistentVolumeClaim, name: str
) -> csi.VolumeContentSource:
    snapshot = await client.get(VolumeSnapshot, name, claim.metadata.namespace)
    status = snapshot.status
    if status is None or not status.bound_volume_snapshot_content_name or not status.ready_to_use:
        raise SourceError(f"the snapshot {name} is not ready")
    content = await client.get(VolumeSnapshotContent, status.bound_volume_snapshot_content_name)
    ref = content.spec.volume_snapshot_ref
    if (ref.namespace, ref.name, ref.uid) != (*snapshot.key, snapshot.metadata.uid):
        raise SourceError(f"the content of the snapshot {name} belongs to another snapshot")
    handle = content.status.snapshot_handle if content.status is not None else None
    if content.spec.driver != driver or not handle:
        raise SourceError(f"the snapshot {name} is not one of driver {driver}")
    size = bytes_of({"storage": status.restore_size or 0})
    if size > bytes_of(claim.spec.resources.requests):
        raise SourceError(f"the claim is smaller than the snapshot {name}")
    content_source = csi.VolumeContentSource()
    content_source.snapshot.snapshot_id = handle
    return content_source
