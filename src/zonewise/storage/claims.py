"""Which of the existing volumes suits a claim. Pure.

A volume suits if class, mode and selector agree, if it supports every requested access mode and is
large enough. Of those the one with the fewest other access modes is taken, then the smallest, so
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


def belongs(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether a volume names the claim: by name, and by uid if it has one."""
    ref = volume.spec.claim_ref
    return (
        ref is not None
        and (ref.namespace, ref.name) == claim.key
        and ref.uid in {"", claim.metadata.uid}
    )


def mismatch(volume: PersistentVolume, claim: PersistentVolumeClaim) -> str:
    """Why a volume that is requested by name does not suit; empty if it does."""
    wanted, spec = claim.spec, volume.spec
    if _size(volume.spec.capacity) < _size(wanted.resources.requests):
        return "requested PV is too small"
    if spec.storage_class_name != (claim.storage_class or ""):
        return "storageClassName does not match"
    if (wanted.volume_attributes_class_name or "") != (spec.volume_attributes_class_name or ""):
        return "volumeAttributesClassName does not match"
    if (wanted.volume_mode or "Filesystem") != (spec.volume_mode or "Filesystem"):
        return "incompatible volumeMode"
    if not set(wanted.access_modes) <= set(spec.access_modes):
        return "incompatible accessMode"
    return ""


def best(
    claim: PersistentVolumeClaim,
    volumes: Iterable[PersistentVolume],
    *,
    waits: bool,
    node: Node | None,
) -> PersistentVolume | None:
    """The volume for a claim; ``waits`` says whether its class waits for a consumer's node."""
    chosen = selector.from_object(claim.spec.selector) if claim.spec.selector else None
    fitting: list[PersistentVolume] = []
    for volume in volumes:
        if mismatch(volume, claim) or volume.metadata.deletion_timestamp is not None:
            continue
        if belongs(volume, claim):
            return volume
        if volume.spec.claim_ref is not None or volume.status.phase != "Available":
            continue
        if chosen is not None and not chosen.matches(volume.metadata.labels):
            continue
        if (node is None and waits) or (node is not None and not reachable(volume, node)):
            continue
        fitting.append(volume)
    return min(
        fitting,
        key=lambda one: (len(one.spec.access_modes), _size(one.spec.capacity), one.metadata.name),
        default=None,
    )


def reachable(volume: PersistentVolume, node: Node) -> bool:
    """Whether a volume can be used from a node."""
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return True
    terms = nodeselector.from_object(affinity.required)
    return terms.matches(node.metadata.labels, node.metadata.name)


def _size(resources: dict[str, str | int | float]) -> int:
    return quantity.parse(resources.get("storage", 0)).scaled()
