"""Claims of ephemeral volumes: created from the template in a pod, and owned by the pod."""

from __future__ import annotations

from contextlib import suppress

from zonewise.api.errors import AlreadyExists
from zonewise.api.meta import Key, ObjectMeta
from zonewise.api.objects.pod import Pod, Volume
from zonewise.api.objects.storage import PersistentVolumeClaim
from zonewise.embedded.components.volumes.pod_claims import claim_of
from zonewise.embedded.components.workloads.creation import owner_reference
from zonewise.runtime.controller.controller import own_key
from zonewise.runtime.program.context import ControllerContext


class EphemeralVolumeController:
    """Creates the claims of ephemeral volumes."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._controller = context.controller("ephemeral", self._sync)
        self.run = self._controller.run
        self._claims = self._controller.watches(
            PersistentVolumeClaim, _owning_pod, when=_is_deleted
        )
        self._pods = self._controller.watches(Pod, own_key, when=_has_ephemeral_volumes)

    async def _sync(self, key: Key) -> float | None:
        pod = self._pods.get(key)
        if pod is None or pod.metadata.deletion_timestamp is not None:
            return None
        for volume in pod.spec.volumes:
            if volume.ephemeral is not None:
                await self._ensure_claim(pod, volume)
        return None

    async def _ensure_claim(self, pod: Pod, volume: Volume) -> None:
        name = claim_of(pod, volume)
        claim = self._claims.get((pod.metadata.namespace, name))
        template = volume.ephemeral.volume_claim_template if volume.ephemeral else None
        if claim is not None:
            owner = claim.metadata.controller
            if owner is None or owner.uid != pod.metadata.uid:
                note = (
                    f"ephemeral volume {volume.name}: PVC {pod.metadata.namespace}/{name} was not"
                    f" created for pod {pod.metadata.namespace}/{pod.metadata.name} (pod is not"
                    " owner)"
                )
                self._context.recorder.event(pod, "FailedBinding", "Bind", note, type="Warning")
        elif template is not None:
            draft = PersistentVolumeClaim(
                metadata=ObjectMeta(
                    name=name,
                    namespace=pod.metadata.namespace,
                    labels=template.metadata.labels,
                    annotations=template.metadata.annotations,
                    owner_references=(owner_reference(pod),),
                ),
                spec=template.spec,
            )
            with suppress(AlreadyExists):
                await self._context.client.create(draft)


def _owning_pod(claim: PersistentVolumeClaim) -> tuple[Key, ...]:
    owner = claim.metadata.controller
    if owner is None or owner.kind != "Pod":
        return ()
    return ((claim.metadata.namespace, owner.name),)


def _is_deleted(_: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> bool:
    return new is None


def _has_ephemeral_volumes(old: Pod | None, new: Pod | None) -> bool:
    return (
        old is None
        and new is not None
        and any(volume.ephemeral is not None for volume in new.spec.volumes)
    )
