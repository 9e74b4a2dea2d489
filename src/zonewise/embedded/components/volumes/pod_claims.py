"""Which claims a pod uses."""

from __future__ import annotations

from collections.abc import Mapping

from zonewise.api.meta import Key
from zonewise.api.objects.pod import Pod, Volume
from zonewise.runtime.cache.store import IndexFunction


def claim_of(pod: Pod, volume: Volume) -> str:
    """The name of the claim of a pod's volume; empty if the volume is not a claim."""
    if volume.persistent_volume_claim is not None:
        return volume.persistent_volume_claim.claim_name
    return f"{pod.metadata.name}-{volume.name}" if volume.ephemeral is not None else ""


def claims_of(pod: Pod) -> tuple[Key, ...]:
    """The keys of all claims of a pod."""
    return tuple(
        (pod.metadata.namespace, name)
        for volume in pod.spec.volumes
        if (name := claim_of(pod, volume))
    )


BY_CLAIM: Mapping[str, IndexFunction[Pod]] = {"claims": claims_of}
"""Pods under the keys of their claims: ``store.by("claims", key)``."""
