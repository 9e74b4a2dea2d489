"""Which of the existing volumes matches a claim. Pure.

A volume matches if class, mode and selector agree, if it supports every requested access mode and
is large enough. Of these the one with the fewest other access modes is taken, then the smallest, so
that no claim gets more than necessary. A volume whose claimRef names a claim is for that claim
only.

A claim of a WaitForFirstConsumer class is offered nothing before a node is selected; then only
volumes that can be used from that node.
"""

from __future__ import annotations

from collections.abc import Iterable

from zonewise.api.objects.core import Node
from zonewise.api.objects.storage import PersistentVolume, PersistentVolumeClaim
from zonewise.api.values import nodeselector, quantity, selector


def is_bound_to(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether a volume's claimRef names the claim: by name, and by uid if it has one."""
    ref = volume.spec.claim_ref
    return (
        ref is not None
        and (ref.namespace, ref.name) == claim.key
        and ref.uid in {"", claim.metadata.uid}
    )


def find_mismatch(volume: PersistentVolume, claim: PersistentVolumeClaim) -> str:
    """Why a volume does not match a claim; empty if it does."""
    requested, spec = claim.spec, volume.spec
    if _size(volume.spec.capacity) < _size(requested.resources.requests):
        return "requested PV is too small"
    if spec.storage_class_name != (claim.storage_class or ""):
        return "storageClassName does not match"
    if (requested.volume_attributes_class_name or "") != (spec.volume_attributes_class_name or ""):
        return "volumeAttributesClassName does not match"
    if (requested.volume_mode or "Filesystem") != (spec.volume_mode or "Filesystem"):
        return "incompatible volumeMode"
    if not set(requested.access_modes) <= set(spec.access_modes):
        return "incompatible accessMode"
    return ""


def find_matching_volume(
    claim: PersistentVolumeClaim,
    volumes: Iterable[PersistentVolume],
    *,
    delay_binding: bool,
    node: Node | None,
) -> PersistentVolume | None:
    """The volume for a claim; ``delay_binding``: its class waits for the first consumer's node."""
    claim_selector = selector.from_object(claim.spec.selector) if claim.spec.selector else None
    candidates: list[PersistentVolume] = []
    for volume in volumes:
        if find_mismatch(volume, claim) or volume.metadata.deletion_timestamp is not None:
            continue
        if is_bound_to(volume, claim):
            return volume
        if volume.spec.claim_ref is not None or volume.status.phase != "Available":
            continue
        if claim_selector is not None and not claim_selector.matches(volume.metadata.labels):
            continue
        if (node is None and delay_binding) or (
            node is not None and not is_reachable(volume, node)
        ):
            continue
        candidates.append(volume)
    return min(
        candidates,
        key=lambda volume: (
            len(volume.spec.access_modes),
            _size(volume.spec.capacity),
            volume.metadata.name,
        ),
        default=None,
    )


def is_reachable(volume: PersistentVolume, node: Node) -> bool:
    """Whether a volume can be used from a node."""
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return True
    terms = nodeselector.from_object(affinity.required)
    return terms.matches(node.metadata.labels, node.metadata.name)


def _size(resources: dict[str, str | int | float]) -> int:
    return quantity.parse(resources.get("storage", 0)).scaled()
