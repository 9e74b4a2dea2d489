"""The claims of a StatefulSet's pods: their names, templates and owners.

A pod's claims are named after template, set and ordinal, so a new pod of an ordinal gets the
volumes of the last one. They are not deleted here; they *get an owner reference* instead, and the
garbage collector does the rest:

==============  ===============  =====================================
when scaled     when deleted     owner
==============  ===============  =====================================
Retain          Retain           none
Retain          Delete           the set
Delete          Retain           the pod, once its ordinal is condemned
Delete          Delete           the same, and the set before that
==============  ===============  =====================================

A claim whose owner is a set or pod of that name with another uid belongs to a deleted one: it will
be garbage collected, and is not changed. Where another controller manages a claim, the policy is
ignored.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from zonewise.api.meta import Object, ObjectMeta, OwnerReference
from zonewise.api.objects.apps import EMPTY_OBJECT, StatefulSet
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.storage import PersistentVolumeClaim
from zonewise.api.struct import Struct
from zonewise.embedded.components.workloads.creation import owner_reference

RETAIN = "Retain"
DELETE = "Delete"


class ClaimDraft(Object):
    """A claim to be created."""

    resource: ClassVar = PersistentVolumeClaim.resource

    spec: msgspec.Raw = EMPTY_OBJECT


class _Template(Struct):
    metadata: ObjectMeta = ObjectMeta()
    spec: msgspec.Raw = EMPTY_OBJECT


_TEMPLATES = msgspec.json.Decoder(_Template)


def draft_claims(stateful_set: StatefulSet, ordinal: int) -> dict[str, ClaimDraft]:
    """The claims that an ordinal needs, by the names of their volumes."""
    claims: dict[str, ClaimDraft] = {}
    for raw in stateful_set.spec.volume_claim_templates:
        template = _TEMPLATES.decode(raw)
        meta = template.metadata
        claims[meta.name] = ClaimDraft(
            metadata=ObjectMeta(
                name=f"{meta.name}-{stateful_set.metadata.name}-{ordinal}",
                namespace=stateful_set.metadata.namespace,
                labels={**meta.labels, **stateful_set.spec.selector.match_labels},
                annotations=meta.annotations,
                finalizers=meta.finalizers,
            ),
            spec=template.spec,
        )
    return claims


def is_stale(claim: PersistentVolumeClaim, pod: str) -> bool:
    """Whether a claim still belongs to a deleted pod of this name, and will be deleted."""
    return any(_refers_to(reference, Pod, pod) for reference in claim.metadata.owner_references)


def scaled_policy(stateful_set: StatefulSet) -> str:
    """The retention policy for claims of condemned ordinals."""
    policy = stateful_set.spec.persistent_volume_claim_retention_policy
    return RETAIN if policy is None else policy.when_scaled


def has_conflicting_controller(
    claim: PersistentVolumeClaim, stateful_set: StatefulSet, pod: Pod
) -> bool:
    """Whether another controller manages a claim that should get an owner by the policy."""
    if scaled_policy(stateful_set) == RETAIN and _deleted_policy(stateful_set) == RETAIN:
        return False
    _, others = _split_owners(claim, stateful_set, pod)
    return any(reference.controller for reference in others)


def desired_owners(
    claim: PersistentVolumeClaim, stateful_set: StatefulSet, pod: Pod, *, condemned: bool
) -> tuple[OwnerReference, ...] | None:
    """The owner references that a claim should have; None if it has them."""
    own, others = _split_owners(claim, stateful_set, pod)
    if any(reference.uid not in (stateful_set.metadata.uid, pod.metadata.uid) for reference in own):
        return None
    if has_conflicting_controller(claim, stateful_set, pod):
        return tuple(others) if own else None
    desired: tuple[OwnerReference, ...] = ()
    if condemned and scaled_policy(stateful_set) == DELETE:
        desired = (owner_reference(pod),)
    elif _deleted_policy(stateful_set) == DELETE:
        desired = (owner_reference(stateful_set),)
    current = [(reference.uid, reference.controller) for reference in own]
    if current == [(reference.uid, True) for reference in desired]:
        return None
    return (*others, *desired)


def _deleted_policy(stateful_set: StatefulSet) -> str:
    policy = stateful_set.spec.persistent_volume_claim_retention_policy
    return RETAIN if policy is None else policy.when_deleted


def _split_owners(
    claim: PersistentVolumeClaim, stateful_set: StatefulSet, pod: Pod
) -> tuple[list[OwnerReference], list[OwnerReference]]:
    own: list[OwnerReference] = []
    others: list[OwnerReference] = []
    for reference in claim.metadata.owner_references:
        to_set = _refers_to(reference, StatefulSet, stateful_set.metadata.name)
        to_pod = _refers_to(reference, Pod, pod.metadata.name)
        (own if to_set or to_pod else others).append(reference)
    return own, others


def _refers_to(reference: OwnerReference, cls: type[Object], name: str) -> bool:
    resource = cls.resource
    referent = (reference.api_version, reference.kind, reference.name)
    return referent == (resource.api_version, resource.kind, name)
