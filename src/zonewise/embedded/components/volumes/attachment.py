"""The attach/detach controller: requests that drivers attach volumes to nodes, and detach them.

Only for drivers whose CSIDriver has ``attachRequired``; for all others nothing happens here. The
request is a VolumeAttachment. The driver's own attacher does the work, writes its status, and keeps
the object with a finalizer until the volume is detached.

A key is a volume: which nodes need it follows from the pods that are bound to a node, use its claim
and have not ended. A volume that only one node may use is attached to the next only when it is
detached from the first. Kubelets unmount before a pod is deleted; a deleted node needs no volume.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256

from zonewise.api.errors import AlreadyExists, NotFound
from zonewise.api.meta import Key, ObjectMeta
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_finished
from zonewise.api.objects.storage import (
    CSIDriver,
    PersistentVolume,
    PersistentVolumeClaim,
    VolumeAttachment,
    VolumeAttachmentSource,
    VolumeAttachmentSpec,
)
from zonewise.embedded.components.volumes.pod_claims import BY_CLAIM, claims_of
from zonewise.runtime.controller.controller import own_key
from zonewise.runtime.program.context import ControllerContext

MANY_NODES = frozenset({"ReadWriteMany", "ReadOnlyMany"})
BY_VOLUME = "attachments/volume"


class AttachDetachController:
    """Creates and deletes the VolumeAttachments of all volumes."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._client = context.client
        self._controller = context.controller("attachdetach", self._sync)
        self.run = self._controller.run
        watches = self._controller.watches
        self._volumes = watches(PersistentVolume, own_key)
        self._claims = watches(PersistentVolumeClaim, _volume_of)
        self._pods = watches(Pod, self._volumes_of, indexes=BY_CLAIM)
        self._attachments = watches(
            VolumeAttachment, _volume_of_attachment, indexes={BY_VOLUME: _volume_of_attachment}
        )
        self._drivers = watches(CSIDriver, self._volumes_of_driver)
        self._nodes = watches(Node, self._volumes_attached_to, when=_is_deleted)

    def _volumes_of(self, pod: Pod) -> tuple[Key, ...]:
        claims = (self._claims.get(key) for key in claims_of(pod))
        volumes = (claim.spec.volume_name for claim in claims if claim)
        return tuple(("", volume) for volume in volumes if volume)

    def _volumes_of_driver(self, driver: CSIDriver) -> tuple[Key, ...]:
        name = driver.metadata.name
        return tuple(v.key for v in self._volumes if v.spec.csi and v.spec.csi.driver == name)

    def _volumes_attached_to(self, node: Node) -> tuple[Key, ...]:
        return tuple(
            key
            for attachment in self._attachments
            if attachment.spec.node_name == node.metadata.name
            for key in _volume_of_attachment(attachment)
        )

    async def _sync(self, key: Key) -> float | None:
        current = {
            attachment.spec.node_name: attachment
            for attachment in self._attachments.by(BY_VOLUME, key)
            if attachment.metadata.deletion_timestamp is None
        }
        detaching = any(
            attachment.metadata.deletion_timestamp is not None
            for attachment in self._attachments.by(BY_VOLUME, key)
        )
        volume = self._volumes.get(key)
        desired = self._nodes_of(volume) if volume is not None else set()
        for node in sorted(current.keys() - desired):
            detaching = True
            meta = current[node].metadata
            with suppress(NotFound):
                await self._client.delete(VolumeAttachment, meta.name, uid=meta.uid)
        if volume is None:
            return None
        missing = sorted(desired - current.keys())
        if missing and not MANY_NODES & set(volume.spec.access_modes):
            if detaching or current.keys() & desired:
                self._record_multi_attach(volume, missing)
                return None
            missing = missing[:1]
        for node in missing:
            await self._attach(volume, node)
        return None

    def _nodes_of(self, volume: PersistentVolume) -> set[str]:
        """The nodes that need a volume attached."""
        ref, source = volume.spec.claim_ref, volume.spec.csi
        if ref is None or source is None:
            return set()
        driver = self._drivers.get(("", source.driver))
        if driver is None or driver.spec.attach_required is False:
            return set()
        return {
            pod.spec.node_name
            for pod in self._pods.by("claims", (ref.namespace, ref.name))
            if pod.spec.node_name
            and not is_pod_finished(pod)
            and ("", pod.spec.node_name) in self._nodes
        }

    async def _attach(self, volume: PersistentVolume, node: str) -> None:
        source = volume.spec.csi
        assert source is not None
        attachment = VolumeAttachment(
            metadata=ObjectMeta(name=attachment_name(source.volume_handle, source.driver, node)),
            spec=VolumeAttachmentSpec(
                attacher=source.driver,
                node_name=node,
                source=VolumeAttachmentSource(persistent_volume_name=volume.metadata.name),
            ),
        )
        with suppress(AlreadyExists):
            await self._client.create(attachment)

    def _record_multi_attach(self, volume: PersistentVolume, nodes: list[str]) -> None:
        ref = volume.spec.claim_ref
        assert ref is not None
        name = volume.metadata.name
        for pod in self._pods.by("claims", (ref.namespace, ref.name)):
            if pod.spec.node_name in nodes and not is_pod_finished(pod):
                self._context.recorder.event(
                    pod,
                    "FailedAttachVolume",
                    "Attach",
                    f'Multi-Attach error for volume "{name}" Volume is already exclusively'
                    " attached to one node and can't be attached to another",
                    type="Warning",
                )


def attachment_name(handle: str, driver: str, node: str) -> str:
    """The name of the attachment of a volume to a node, as Kubernetes makes it."""
    return f"csi-{sha256(f'{handle}{driver}{node}'.encode()).hexdigest()}"


def _volume_of_attachment(attachment: VolumeAttachment) -> tuple[Key, ...]:
    name = attachment.spec.source.persistent_volume_name
    return (("", name),) if name else ()


def _volume_of(claim: PersistentVolumeClaim) -> tuple[Key, ...]:
    return (("", claim.spec.volume_name),) if claim.spec.volume_name else ()


def _is_deleted(_: Node | None, new: Node | None) -> bool:
    return new is None
