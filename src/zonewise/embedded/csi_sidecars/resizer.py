"""Expands volumes when their claims request more.

This is the controller's part: the driver is called, the PersistentVolume gets the new size, and the
claim's status the progress. If the node must act too (a file system must grow), the claim gets the
condition ``FileSystemResizePending`` for the kubelet of a node that uses the volume. What fails is
reported on the claim and retried with growing pauses, 1 s to 5 minutes.

The size that is allocated is recorded first (``status.allocatedResources``), so a smaller request
meanwhile cannot hide it.
"""

from __future__ import annotations

from typing import Any

from zonewise.api.errors import ZonewiseError
from zonewise.api.meta import Key
from zonewise.api.objects.storage import PersistentVolume, PersistentVolumeClaim
from zonewise.api.values import times
from zonewise.csi.errors import Code, CsiError
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport.methods import CONTROLLER_EXPAND_VOLUME
from zonewise.embedded.csi_sidecars.driver import MAX_RETRY_SECONDS, ReachableDriver, read_secret
from zonewise.embedded.csi_sidecars.volumes import bytes_of, format_size, volume_capabilities
from zonewise.runtime.controller.controller import Controller, own_key
from zonewise.runtime.controller.queue import Queue
from zonewise.runtime.program.context import ControllerContext

FS_RESIZE_PENDING = "FileSystemResizePending"
RESIZING = "Resizing"
NODE_PENDING = "NodeResizePending"
INFEASIBLE = frozenset(
    {Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE, Code.NOT_FOUND, Code.UNIMPLEMENTED}
)
WORKERS = 4


class ResizeFailed(ZonewiseError):
    """The driver did not expand a volume."""


class Resizer:
    """Expands the volumes of one driver."""

    def __init__(self, context: ControllerContext, *, driver: ReachableDriver) -> None:
        self._context = context
        self._client = context.client
        self._driver = driver
        self._controller: Controller[Key] = context.controller(
            "resizer",
            self._sync,
            workers=WORKERS,
            queue=Queue(base=1.0, cap=MAX_RETRY_SECONDS, rng=context.rng),
        )
        self.run = self._controller.run
        self._claims = self._controller.watches(
            PersistentVolumeClaim, own_key, when=_needs_expansion
        )
        self._volumes = self._controller.watches(PersistentVolume, _claim_of)

    async def _sync(self, key: Key) -> float | None:
        claim = self._claims.get(key)
        if claim is None or not _needs_expansion(None, claim):
            return None
        volume = self._volumes.get(("", claim.spec.volume_name))
        if volume is None or volume.spec.csi is None:
            return None
        ref = volume.spec.claim_ref
        bound_elsewhere = ref is None or ref.uid != claim.metadata.uid
        if bound_elsewhere or volume.spec.csi.driver != self._driver.name:
            return None
        size = bytes_of(claim.spec.resources.requests)
        if bytes_of(volume.spec.capacity) >= size:
            return None
        name = volume.metadata.name
        note = f"External resizer is resizing volume {name}"
        self._context.recorder.event(claim, RESIZING, "Resize", note)
        await self._write_status(claim, RESIZING, format_size(size), "ControllerResizeInProgress")
        try:
            response = await self._expand(volume, size)
        except ZonewiseError as error:
            message = f'resize volume "{name}" by resizer "{self._driver.name}" failed: {error}'
            self._context.recorder.event(
                claim, "VolumeResizeFailed", "Resize", message, type="Warning"
            )
            if isinstance(error, CsiError) and error.code in INFEASIBLE:
                return MAX_RETRY_SECONDS
            raise ResizeFailed(message) from error
        new_size = format_size(max(size, response.capacity_bytes))
        meta = {"uid": volume.metadata.uid}
        body: dict[str, Any] = {"metadata": meta, "spec": {"capacity": {"storage": new_size}}}
        await self._client.patch(PersistentVolume, name, None, body)
        if response.node_expansion_required:
            await self._write_status(claim, FS_RESIZE_PENDING, format_size(size), NODE_PENDING)
            note = "Require file system resize of volume on node"
            self._context.recorder.event(claim, "FileSystemResizeRequired", "Resize", note)
        else:
            await self._client.patch_status(claim, finished_status(claim, new_size))
            self._context.recorder.event(
                claim, "VolumeResizeSuccessful", "Resize", "Resize volume succeeded"
            )
        return None

    async def _expand(
        self, volume: PersistentVolume, size: int
    ) -> csi.ControllerExpandVolumeResponse:
        source = volume.spec.csi
        assert source is not None
        request = csi.ControllerExpandVolumeRequest(
            volume_id=source.volume_handle,
            capacity_range=csi.CapacityRange(required_bytes=size),
            secrets=await read_secret(self._client, source.controller_expand_secret_ref),
            volume_capability=volume_capabilities(
                volume.spec.access_modes[:1],
                block=volume.spec.volume_mode == "Block",
                fs_type=source.fs_type,
                mount_flags=volume.spec.mount_options,
                multi_writer=False,
            )[0],
        )
        return await self._driver.client.call(CONTROLLER_EXPAND_VOLUME, request)

    async def _write_status(
        self, claim: PersistentVolumeClaim, kind: str, size: str, state: str
    ) -> None:
        """Write the progress of a resize into the claim's status."""
        now = times.format_time(times.from_epoch(self._context.clock()))
        others = [
            condition
            for condition in claim.status.conditions
            if condition.type not in (FS_RESIZE_PENDING, RESIZING)
        ]
        conditions = [
            *({"type": condition.type, "status": condition.status} for condition in others),
            {"type": kind, "status": "True", "lastTransitionTime": now},
        ]
        status = {
            "conditions": conditions,
            "allocatedResources": {"storage": size},
            "allocatedResourceStatuses": {"storage": state},
        }
        await self._client.patch_status(claim, status)


def finished_status(claim: PersistentVolumeClaim, size: str) -> dict[str, Any]:
    """The patch of a claim's status when it has this size and no resize is in progress."""
    others = [
        {"type": condition.type, "status": condition.status}
        for condition in claim.status.conditions
        if condition.type not in (FS_RESIZE_PENDING, RESIZING)
    ]
    return {
        "capacity": {"storage": size},
        "conditions": others or None,
        "allocatedResources": {"storage": size},
        "allocatedResourceStatuses": None,
    }


def _needs_expansion(_: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> bool:
    """Whether a bound claim requests more than it has."""
    return (
        new is not None
        and new.status.phase == "Bound"
        and new.metadata.deletion_timestamp is None
        and bytes_of(new.spec.resources.requests) > bytes_of(new.status.capacity)
    )


def _claim_of(volume: PersistentVolume) -> tuple[Key, ...]:
    ref = volume.spec.claim_ref
    return ((ref.namespace, ref.name),) if ref is not None else ()
