"""The volumes of pods at their paths, on all nodes of this process: what a kubelet does with CSI.

::

    <folder>/<node>/kubelet/pods/<uid>/volumes/kubernetes.io~csi/<volume>/mount     a pod's volume
                                                          .../<volume>/vol_data.json  whose it is
    <folder>/<node>/kubelet/plugins/kubernetes.io/csi/<driver>/<hash>/globalmount   staged

Beside each target is a record of what is mounted. It is written before the driver is called and
removed after the driver has unmounted everything, so the next start after a kill finds all that is
left: volumes of deleted pods are unmounted, those of running pods mounted again where they are not.
Only the last pod of a node unstages a volume; a volume is worked on once at a time per node. A node
that has failed does nothing: what it had mounted stays until it is back, or another is let in.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from zonewise.api.errors import NotFound, ZonewiseError
from zonewise.api.meta import Key
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import finished
from zonewise.api.objects.storage import PersistentVolume, PersistentVolumeClaim
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.status import CsiError
from zonewise.csi.transport.client import CsiClient
from zonewise.csi.transport.methods import (
    NODE_EXPAND_VOLUME,
    NODE_PUBLISH_VOLUME,
    NODE_STAGE_VOLUME,
    NODE_UNPUBLISH_VOLUME,
    NODE_UNSTAGE_VOLUME,
)
from zonewise.embedded.csi_sidecars.provisioner.driver import secrets
from zonewise.embedded.csi_sidecars.provisioner.resizer import PENDING
from zonewise.embedded.csi_sidecars.provisioner.resizer import finished as resize_finished
from zonewise.embedded.csi_sidecars.provisioner.volumes import bytes_of, capabilities, size_text
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.controller.controller import Controller, own_key, run_all
from zonewise.runtime.process.logs import logger

NOTE = "vol_data.json"
PLUGIN = "kubernetes.io~csi"
PROVISIONER = "volume.kubernetes.io/storage-provisioner"
AGAIN = 2.0
BY_UID = "pods/uid"
BY_CLAIM = "pods/claim"

_log = logger("kubelets")


class PodMounts:
    """The volumes of one driver; ``clients`` gives the driver as it is on a node.

    ``alive`` says whether a node works at all.
    """

    def __init__(
        self,
        context: ComponentContext,
        folder: Path,
        driver: str,
        clients: Callable[[str], CsiClient],
        alive: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._context = context
        self._alive = alive
        self._folder = folder
        self._driver = driver
        self._clients = clients
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
        self._stuck: dict[Key, str] = {}
        self._controller: Controller[Key] = Controller(
            "volumes of pods", self._sync, cache=context.cache, workers=8, rng=context.rng
        )
        self._growing: Controller[Key] = Controller(
            "growing volumes", self._grow, cache=context.cache, rng=context.rng
        )
        self._pods = self._controller.watches(
            Pod, _place, when=_matters, indexes={BY_UID: _uid, BY_CLAIM: _claim_keys}
        )
        self._claims = self._growing.watches(PersistentVolumeClaim, own_key, when=_pending)
        self._volumes = self._growing.watches(PersistentVolume, lambda _: ())

    async def run(self) -> None:
        """Follow pods that end or vanish, until cancelled."""
        for node, uid, _ in self._noted():
            self._controller.enqueue((node, uid))
        await run_all(self._controller.run(), self._growing.run())

    async def mount(self, pod: Pod) -> str:
        """Mount the volumes of a pod on its node; says why not yet, empty if they are mounted."""
        for name, read_only in _claims(pod):
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
            if _pending(None, claim):
                # A volume that cannot grow yet is of use as it is.
                self._growing.enqueue(claim.key)
        return ""

    async def unmount(self, node: str, uid: str) -> None:
        """Unmount what a pod had; raises if that is not possible yet."""
        root = self._pod(node, uid)
        for folder in sorted((root / "volumes" / PLUGIN).glob("*")):
            async with self._lock(node, folder.name):
                await self._unmount(node, folder)
        _drop(root / "volumes" / PLUGIN, root / "volumes", root)

    async def close(self) -> None:
        """Unmount everything; the next start mounts again what running pods need."""
        for node, uid in sorted({(node, uid) for node, uid, _ in self._noted()}):
            try:
                await self.unmount(node, uid)
            except (ZonewiseError, OSError) as error:
                _log.warning("a volume stays mounted", node=node, pod=uid, why=str(error))

    async def _mount(self, pod: Pod, volume: PersistentVolume, *, read_only: bool) -> None:
        source = volume.spec.csi
        assert source is not None
        node, name = pod.spec.node_name, volume.metadata.name
        folder = self._pod(node, pod.metadata.uid) / "volumes" / PLUGIN / name
        staging = self._staging(node, source.volume_handle)
        capability = capabilities(
            volume.spec.access_modes[:1],
            block=volume.spec.volume_mode == "Block",
            fs_type=source.fs_type,
            mount_flags=volume.spec.mount_options,
            multi_writer=True,
        )[0]
        client = self._clients(node)
        async with self._lock(node, name):
            folder.mkdir(parents=True, exist_ok=True)
            note = {
                "driverName": source.driver,
                "volumeHandle": source.volume_handle,
                "specVolID": name,
                "nodeName": node,
            }
            (folder / NOTE).write_text(json.dumps(note))
            staging.parent.mkdir(parents=True, exist_ok=True)
            await client.call(
                NODE_STAGE_VOLUME,
                csi.NodeStageVolumeRequest(
                    volume_id=source.volume_handle,
                    staging_target_path=str(staging),
                    volume_capability=capability,
                    volume_context=source.volume_attributes,
                    secrets=await secrets(self._context.client, source.node_stage_secret_ref),
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
                    secrets=await secrets(self._context.client, source.node_publish_secret_ref),
                ),
            )

    async def _unmount(self, node: str, folder: Path) -> None:
        note = folder / NOTE
        try:
            handle = json.loads(note.read_text())["volumeHandle"]
        except FileNotFoundError:
            _drop(folder)
            return
        client = self._clients(node)
        await client.call(
            NODE_UNPUBLISH_VOLUME,
            csi.NodeUnpublishVolumeRequest(volume_id=handle, target_path=str(folder / "mount")),
        )
        if not any(
            other.name == folder.name and other != folder
            for there, _, other in self._noted()
            if there == node
        ):
            staging = self._staging(node, handle)
            await client.call(
                NODE_UNSTAGE_VOLUME,
                csi.NodeUnstageVolumeRequest(volume_id=handle, staging_target_path=str(staging)),
            )
            _drop(staging, staging.parent)
        note.unlink(missing_ok=True)
        _drop(folder / "mount", folder)

    async def _sync(self, key: Key) -> float | None:
        node, uid = key
        if not self._alive(node):
            return AGAIN
        pod = next(iter(self._pods.by(BY_UID, uid)), None)
        if pod is None or finished(pod) or pod.spec.node_name != node:
            try:
                await self.unmount(node, uid)
            except (ZonewiseError, OSError) as error:
                if self._stuck.get(key) != str(error):
                    self._stuck[key] = str(error)
                    _log.warning("a volume stays mounted yet", node=node, pod=uid, why=str(error))
                return AGAIN
            self._stuck.pop(key, None)
        elif pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None:
            why = await self.mount(pod)
            if why:
                self._context.recorder.event(
                    pod, type="Warning", reason="FailedMount", action="StartingPod", note=why
                )
                return AGAIN
        return None

    async def _grow(self, key: Key) -> float | None:
        """Let the file system of a volume follow its new size where it is mounted."""
        claim = self._claims.get(key)
        if claim is None or not _pending(None, claim):
            return None
        volume = self._volumes.get(("", claim.spec.volume_name))
        if volume is None or volume.spec.csi is None or volume.spec.csi.driver != self._driver:
            return None
        for pod in self._pods.by(BY_CLAIM, key):
            if self._target(pod, volume).parent.exists() and not finished(pod):
                try:
                    await self._expand(pod, claim, volume)
                except CsiError as error:
                    self._context.recorder.event(
                        claim,
                        type="Warning",
                        reason="VolumeResizeFailed",
                        action="Resize",
                        note=f"NodeExpandVolume failed for {volume.metadata.name}: {error}",
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
            volume_path=str(self._target(pod, volume)),
            staging_target_path=str(self._staging(node, source.volume_handle)),
            capacity_range=csi.CapacityRange(required_bytes=size),
        )
        await self._clients(node).call(NODE_EXPAND_VOLUME, request)
        with suppress(NotFound):
            status = resize_finished(claim, size_text(size))
            await self._context.client.patch_status(claim, status)
        self._context.recorder.event(
            claim,
            reason="FileSystemResizeSuccessful",
            action="Resize",
            note="MountVolume.NodeExpandVolume succeeded for volume"
            f' "{volume.metadata.name}" {node}',
        )

    def _target(self, pod: Pod, volume: PersistentVolume) -> Path:
        root = self._pod(pod.spec.node_name or "-", pod.metadata.uid)
        return root / "volumes" / PLUGIN / volume.metadata.name / "mount"

    def _noted(self) -> Iterator[tuple[str, str, Path]]:
        """Node, pod and folder of everything that is, or may be, mounted."""
        for note in self._folder.glob(f"*/kubelet/pods/*/volumes/{PLUGIN}/*/{NOTE}"):
            folder = note.parent
            pod = folder.parents[2]
            yield pod.parents[2].name, pod.name, folder

    def _pod(self, node: str, uid: str) -> Path:
        return self._folder / node / "kubelet" / "pods" / uid

    def _staging(self, node: str, handle: str) -> Path:
        name = sha256(handle.encode()).hexdigest()
        plugins = self._folder / node / "kubelet" / "plugins" / "kubernetes.io" / "csi"
        return plugins / self._driver / name / "globalmount"

    def _lock(self, node: str, volume: str) -> asyncio.Lock:
        return self._locks.setdefault((node, volume), asyncio.Lock())


def _drop(*folders: Path) -> None:
    """Remove folders that are empty."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _claims(pod: Pod) -> Iterator[tuple[str, bool]]:
    """The names of a pod's claims, and whether it only reads them."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            claim = volume.persistent_volume_claim
            yield claim.claim_name, bool(claim.read_only)
        elif volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}", False


def _claim_keys(pod: Pod) -> tuple[Key, ...]:
    return tuple((pod.metadata.namespace, name) for name, _ in _claims(pod))


def _place(pod: Pod) -> tuple[Key, ...]:
    if not pod.spec.node_name or not any(_claims(pod)):
        return ()
    return ((pod.spec.node_name, pod.metadata.uid),)


def _uid(pod: Pod) -> tuple[str, ...]:
    return (pod.metadata.uid,)


def _matters(old: Pod | None, new: Pod | None) -> bool:
    return old is None or new is None or (finished(new) and not finished(old))


def _pending(_: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> bool:
    return new is not None and any(
        one.type == PENDING and one.status == "True" for one in new.status.conditions
    )
