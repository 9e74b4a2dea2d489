"""The claims of a StatefulSet's pods: their names, templates and owners.

A pod's claims are named after template, set and number, so the pod that takes a number takes its
volumes, too. They are not deleted here; they *get an owner reference* instead, and the garbage
collector does the rest:

==============  ===============  =====================================
when scaled     when deleted     owner
==============  ===============  =====================================
Retain          Retain           none
Retain          Delete           the set
Delete          Retain           the pod, once its number is condemned
Delete          Delete           the same, and the set before that
==============  ===============  =====================================

A claim that names a set or pod of that name with another uid belongs to a predecessor: it is about
to be collected, and left alone. Where another controller manages a claim, the policy is ignored.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from zonewise.api.meta import Object, ObjectMeta, OwnerReference
from zonewise.api.objects.apps import EMPTY, StatefulSet
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.storage import PersistentVolumeClaim
from zonewise.api.struct import Struct
from zonewise.embedded.components.workloads.creation import owner_reference

RETAIN = "Retain"
DELETE = "Delete"


class ClaimDraft(Object):
    """A claim to be created."""

    resource: ClassVar = PersistentVolumeClaim.resource

    spec: msgspec.Raw = EMPTY


class _Template(Struct):
    metadata: ObjectMeta = ObjectMeta()
    spec: msgspec.Raw = EMPTY


_TEMPLATES = msgspec.json.Decoder(_Template)


def drafts(group: StatefulSet, number: int) -> dict[str, ClaimDraft]:
    """The claims a number needs, by the names of the volumes they are."""
    found: dict[str, ClaimDraft] = {}
    for raw in group.spec.volume_claim_templates:
        template = _TEMPLATES.decode(raw)
        meta = template.metadata
        found[meta.name] = ClaimDraft(
            metadata=ObjectMeta(
                name=f"{meta.name}-{group.metadata.name}-{number}",
                namespace=group.metadata.namespace,
                labels={**meta.labels, **group.spec.selector.match_labels},
                annotations=meta.annotations,
                finalizers=meta.finalizers,
            ),
            spec=template.spec,
        )
    return found


def stale(claim: PersistentVolumeClaim, pod: str) -> bool:
    """Whether a claim still belongs to a former pod of this name; it will go, so wait."""
    named = (one for one in claim.metadata.owner_references if _context(one, Pod, pod))
    return next(named, None) is not None


def scaled_policy(group: StatefulSet) -> str:
    """What becomes of the claims of condemned numbers."""
    policy = group.spec.persistent_volume_claim_retention_policy
    return RETAIN if policy is None else policy.when_scaled


def conflicting(claim: PersistentVolumeClaim, group: StatefulSet, pod: Pod) -> bool:
    """Whether another controller manages a claim that the policy would give an owner."""
    if scaled_policy(group) == RETAIN and _deleted_policy(group) == RETAIN:
        return False
    _, others = _sorted(claim, group, pod)
    return any(one.controller for one in others)


def owners(
    claim: PersistentVolumeClaim, group: StatefulSet, pod: Pod, *, condemned: bool
) -> tuple[OwnerReference, ...] | None:
    """The owner references a claim should have; None if they are as they should be."""
    ours, others = _sorted(claim, group, pod)
    if any(one.uid not in (group.metadata.uid, pod.metadata.uid) for one in ours):
        return None
    if conflicting(claim, group, pod):
        return tuple(others) if ours else None
    wanted: tuple[OwnerReference, ...] = ()
    if condemned and scaled_policy(group) == DELETE:
        wanted = (owner_reference(pod),)
    elif _deleted_policy(group) == DELETE:
        wanted = (owner_reference(group),)
    if [(one.uid, one.controller) for one in ours] == [(one.uid, True) for one in wanted]:
        return None
    return (*others, *wanted)


def _deleted_policy(group: StatefulSet) -> str:
    policy = group.spec.persistent_volume_claim_retention_policy
    return RETAIN if policy is None else policy.when_deleted


def _sorted(
    claim: PersistentVolumeClaim, group: StatefulSet, pod: Pod
) -> tuple[list[OwnerReference], list[OwnerReference]]:
    ours: list[OwnerReference] = []
    others: list[OwnerReference] = []
    for one in claim.metadata.owner_references:
        our = _context(one, StatefulSet, group.metadata.name) or _context(
            one, Pod, pod.metadata.name
        )
        (ours if our else others).append(one)
    return ours, others


def _context(reference: OwnerReference, cls: type[Object], name: str) -> bool:
    resource = cls.resource
    meant = (reference.api_version, reference.kind, reference.name)
    return meant == (resource.api_version, resource.kind, name)
