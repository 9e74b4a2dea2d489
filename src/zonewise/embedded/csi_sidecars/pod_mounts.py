"""The volumes of pods at their paths, on all nodes of this process: what a kubelet does with CSI.

::

    <folder>/<node>/kubelet/pods/<uid>/volumes/kubernetes.io~csi/<volume>/mount     a pod's volume
                                                          .../<volume>/vol_data.json  its record
    <folder>/<node>/kubelet/plugins/kubernetes.io/csi/<driver>/<hash>/globalmount   staged

Beside each target is a record of what is mounted. It is written before the driver is called and
removed after the driver has unmounted everything, so the next start after a kill finds all that is
left: volumes of deleted pods are unmounted, those of running pods mounted again where they are not.
Only the last pod of a node unstages a volume; a volume is worked on once at a time per node. A node
that has failed does nothing: what it had mounted stays until it is back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from zonewise.api.errors import NotFound, ZonewiseError
from zonewise.api.meta import Key, is_condition_true
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_finished
from zonewise.api.objects.storage import PersistentVolume, PersistentVolumeClaim
from zonewise.csi.errors import CsiError
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport.client import CsiClient
from zonewise.csi.transport.methods import (
    NODE_EXPAND_VOLUME,
    NODE_PUBLISH_VOLUME,
    NODE_STAGE_VOLUME,
    NODE_UNPUBLISH_VOLUME,
    NODE_UNSTAGE_VOLUME,
)
from zonewise.embedded.csi_sidecars.driver import read_secret
from zonewise.embedded.csi_sidecars.resizer import FS_RESIZE_PENDING
from zonewise.embedded.csi_sidecars.resizer import finished_status as resize_finished
from zonewise.embedded.csi_sidecars.volumes import bytes_of, format_size, volume_capabilities
from zonewise.runtime.controller.controller import own_key, run_all
from zonewise.runtime.process.logs import logger
from zonewise.runtime.program.context import ControllerContext

RECORD_FILE = "vol_data.json"
PLUGIN_FOLDER = "kubernetes.io~csi"
PROVISIONER = "volume.kubernetes.io/storage-provisioner"
RETRY_SECONDS = 2.0
BY_UID = "pods/uid"
BY_CLAIM = "pods/claim"

_log = logger("kubelets")


class PodMounts:
    """The volumes of one driver; ``clients`` returns the client of a node's driver.

    ``is_alive`` tells whether a node works at all.
    """

    def __init__(
        self,
        context: ControllerContext,
        *,
        folder: Path,
        driver: str,
        clients: Callable[[str], CsiClient],
        is_alive: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._context = context
        self._is_alive = is_alive
        self._folder = folder
        self._driver = driver
        self._clients = clients
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
        self._reported_errors: dict[Key, str] = {}
        self._controller = context.controller("volumes of pods", self._sync, workers=8)
        self._expand_controller = context.controller("growing volumes", self._sync_claim)
        self._pods = self._controller.watches(
            Pod, _mount_key, when=_is_relevant, indexes={BY_UID: _pod_uid, BY_CLAIM: _claim_keys}
        )
        self._claims = self._expand_controller.watches(
            PersistentVolumeClaim, own_key, when=_awaits_node_expansion
        )
        self._volumes = self._expand_controller.watches(PersistentVolume, lambda _: ())

    async def run(self) -> None:
        """Follow pods that end or are deleted, until cancelled."""
        for node, uid, _ in self._recorded_mounts():
            self._controller.enqueue((node, uid))
        await run_all(self._controller.run(), self._expand_controller.run())

    async def mount(self, pod: Pod) -> str:
        """Mount the volumes of a pod on its node; returns why not yet, empty if they are."""
        for name, read_only in _claims_of(pod):
            claim = self._claims.get((pod.metadata.namespace, name))
            if claim is None:
                continue
            volume = self._volumes.get(("", claim.spec.volume_name))
            if volume is None or claim.status.phase != "Bound":
                if claim.metadata.annotations.get(PROVISIONER) == self._driver:
                    return f'the claim "{name}" is not bound yet'
                continue
            if volume.spec.csi is None or volume.spec.csi.driver != self._driver:
                continue
            try:
                await self._mount(pod, volume, read_only=read_only)
            except (ZonewiseError, OSError) as error:
                return f'MountVolume.SetUp failed for volume "{volume.metadata.name}": {error}'
            if _awaits_node_expansion(None, claim):
                # A volume that cannot be expanded yet can be used as it is.
                self._expand_controller.enqueue(claim.key)
        return ""

    async def unmount(self, node: str, uid: str) -> None:
        """Unmount the volumes of a pod; raises if that is not possible yet."""
        root = self._pod_folder(node, uid)
        for folder in sorted((root / "volumes" / PLUGIN_FOLDER).glob("*")):
            async with self._lock(node, folder.name):
                await self._unmount(node, folder)
        _remove_empty(root / "volumes" / PLUGIN_FOLDER, root / "volumes", root)

    async def close(self) -> None:
        """Unmount everything; the next start mounts again what running pods need."""
        for node, uid in sorted({(node, uid) for node, uid, _ in self._recorded_mounts()}):
            try:
                await self.unmount(node, uid)
            except (ZonewiseError, OSError) as error:
                _log.warning("a volume stays mounted", node=node, pod=uid, why=str(error))

    async def _mount(self, pod: Pod, volume: PersistentVolume, *, read_only: bool) -> None:
        source = volume.spec.csi
        assert source is not None
        node, name = pod.spec.node_name, volume.metadata.name
        folder = self._pod_folder(node, pod.metadata.uid) / "volumes" / PLUGIN_FOLDER / name
        staging = self._staging(node, source.volume_handle)
        capability = volume_capabilities(
            volume.spec.access_modes[:1],
            block=volume.spec.volume_mode == "Block",
            fs_type=source.fs_type,
            mount_flags=volume.spec.mount_options,
            multi_writer=True,
        )[0]
        client = self._clients(node)
        async with self._lock(node, name):
            folder.mkdir(parents=True, exist_ok=True)
            record = {
                "driverName": source.driver,
                "volumeHandle": source.volume_handle,
                "specVolID": name,
                "nodeName": node,
            }
            (folder / RECORD_FILE).write_text(json.dumps(record))
            staging.parent.mkdir(parents=True, exist_ok=True)
            await client.call(
                NODE_STAGE_VOLUME,
                csi.NodeStageVolumeRequest(
                    volume_id=source.volume_handle,
                    staging_target_path=str(staging),
                    volume_capability=capability,
                    volume_context=source.volume_attributes,
                    secrets=await read_secret(self._context.client, source.node_stage_secret_ref),
                ),
            )
            await client.call(
                NODE_PUBLISH_VOLUME,
                csi.NodePublishVolumeRequest(
                    volume_id=source.volume_handle,
                    staging_target_path=str(staging),
                    target_path=str(folder / "mount"),
                    volume_capability=capability,
                    readonly=read_only or source.read_only,
                    volume_context=source.volume_attributes,
                    secrets=await read_secret(self._context.client, source.node_publish_secret_ref),
                ),
            )

    async def _unmount(self, node: str, folder: Path) -> None:
        record = folder / RECORD_FILE
        try:
            handle = json.loads(record.read_text())["volumeHandle"]
        except FileNotFoundError:
            _remove_empty(folder)
            return
        client = self._clients(node)
        await client.call(
            NODE_UNPUBLISH_VOLUME,
            csi.NodeUnpublishVolumeRequest(volume_id=handle, target_path=str(folder / "mount")),
        )
        if not any(
            other.name == folder.name and other != folder
            for other_node, _, other in self._recorded_mounts()
            if other_node == node
        ):
            staging = self._staging(node, handle)
            await client.call(
                NODE_UNSTAGE_VOLUME,
                csi.NodeUnstageVolumeRequest(volume_id=handle, staging_target_path=str(staging)),
            )
            _remove_empty(staging, staging.parent)
        record.unlink(missing_ok=True)
        _remove_empty(folder / "mount", folder)

    async def _sync(self, key: Key) -> float | None:
        node, uid = key
        if not self._is_alive(node):
            return RETRY_SECONDS
        pod = next(iter(self._pods.by(BY_UID, uid)), None)
        if pod is None or is_pod_finished(pod) or pod.spec.node_name != node:
            try:
                await self.unmount(node, uid)
            except (ZonewiseError, OSError) as error:
                if self._reported_errors.get(key) != str(error):
                    self._reported_errors[key] = str(error)
                    _log.warning("a volume is still mounted", node=node, pod=uid, why=str(error))
                return RETRY_SECONDS
            self._reported_errors.pop(key, None)
        elif pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None:
            message = await self.mount(pod)
            if message:
                self._context.recorder.event(
                    pod, "FailedMount", "StartingPod", message, type="Warning"
                )
                return RETRY_SECONDS
        return None

    async def _sync_claim(self, key: Key) -> float | None:
        """Expand the file system of a volume to its new size on a node where it is mounted."""
        claim = self._claims.get(key)
        if claim is None or not _awaits_node_expansion(None, claim):
            return None
        volume = self._volumes.get(("", claim.spec.volume_name))
        if volume is None or volume.spec.csi is None or volume.spec.csi.driver != self._driver:
            return None
        for pod in self._pods.by(BY_CLAIM, key):
            if self._mount_path(pod, volume).parent.exists() and not is_pod_finished(pod):
                try:
                    await self._expand(pod, claim, volume)
                except CsiError as error:
                    self._context.recorder.event(
                        claim,
                        "VolumeResizeFailed",
                        "Resize",
                        f"NodeExpandVolume failed for {volume.metadata.name}: {error}",
                        type="Warning",
                    )
                    raise
                return None
        return None

    async def _expand(
        self, pod: Pod, claim: PersistentVolumeClaim, volume: PersistentVolume
    ) -> None:
        source = volume.spec.csi
        assert source is not None
        node, size = pod.spec.node_name, bytes_of(volume.spec.capacity)
        request = csi.NodeExpandVolumeRequest(
            volume_id=source.volume_handle,
            volume_path=str(self._mount_path(pod, volume)),
            staging_target_path=str(self._staging(node, source.volume_handle)),
            capacity_range=csi.CapacityRange(required_bytes=size),
        )
        await self._clients(node).call(NODE_EXPAND_VOLUME, request)
        with suppress(NotFound):
            status = resize_finished(claim, format_size(size))
            await self._context.client.patch_status(claim, status)
        self._context.recorder.event(
            claim,
            "FileSystemResizeSuccessful",
            "Resize",
            f'MountVolume.NodeExpandVolume succeeded for volume "{volume.metadata.name}" {node}',
        )

    def _mount_path(self, pod: Pod, volume: PersistentVolume) -> Path:
        root = self._pod_folder(pod.spec.node_name or "-", pod.metadata.uid)
        return root / "volumes" / PLUGIN_FOLDER / volume.metadata.name / "mount"

    def _recorded_mounts(self) -> Iterator[tuple[str, str, Path]]:
        """Node, pod and folder of every volume that is, or may be, mounted."""
        records = f"*/kubelet/pods/*/volumes/{PLUGIN_FOLDER}/*/{RECORD_FILE}"
        for record in self._folder.glob(records):
            folder = record.parent
            pod = folder.parents[2]
            yield pod.parents[2].name, pod.name, folder

    def _pod_folder(self, node: str, uid: str) -> Path:
        return self._folder / node / "kubelet" / "pods" / uid

    def _staging(self, node: str, handle: str) -> Path:
        name = sha256(handle.encode()).hexdigest()
        plugins = self._folder / node / "kubelet" / "plugins" / "kubernetes.io" / "csi"
        return plugins / self._driver / name / "globalmount"

    def _lock(self, node: str, volume: str) -> asyncio.Lock:
        return self._locks.setdefault((node, volume), asyncio.Lock())


def _remove_empty(*folders: Path) -> None:
    """Remove folders that are empty."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _claims_of(pod: Pod) -> Iterator[tuple[str, bool]]:
    """The names of a pod's claims, and whether it only reads them."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            claim = volume.persistent_volume_claim
            yield claim.claim_name, bool(claim.read_only)
        elif volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}", False


def _claim_keys(pod: Pod) -> tuple[Key, ...]:
    return tuple((pod.metadata.namespace, name) for name, _ in _claims_of(pod))


def _mount_key(pod: Pod) -> tuple[Key, ...]:
    if not pod.spec.node_name or not any(_claims_of(pod)):
        return ()
    return ((pod.spec.node_name, pod.metadata.uid),)


def _pod_uid(pod: Pod) -> tuple[str, ...]:
    return (pod.metadata.uid,)


def _is_relevant(old: Pod | None, new: Pod | None) -> bool:
    return old is None or new is None or (is_pod_finished(new) and not is_pod_finished(old))


def _awaits_node_expansion(
    _: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
) -> bool:
    return new is not None and is_condition_true(new.status.conditions, FS_RESIZE_PENDING)
