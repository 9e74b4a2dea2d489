"""Pods made from templates, and the batches they are created in.

A ``Draft`` is a pod before the API server has seen it: metadata we write in full, and the
template's spec as its original JSON text. All pods of one ReplicaSet are the same draft, which is
opened once however many there are.

*Concurrent*: the creations of one batch. Batches grow 1, 2, 4, … as long as every creation of the
one before went well, so that a quota or a webhook that refuses is tried a few times rather than
once per missing pod; and the server can commit what arrives together at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import ClassVar, TypeVar

import msgspec

from zonewise.api.errors import Forbidden, ZonewiseError
from zonewise.api.meta import Object, ObjectMeta, OwnerReference
from zonewise.api.objects.apps import EMPTY, opened
from zonewise.api.objects.pod import Pod

T = TypeVar("T")
R = TypeVar("R")

FIRST_BATCH = 1


class Draft(Object):
    """A pod to be created; the server's answer is one, too."""

    resource: ClassVar = Pod.resource

    spec: msgspec.Raw = EMPTY


def owner_reference(owner: Object) -> OwnerReference:
    """The reference by which an object belongs to its controller."""
    return OwnerReference(
        api_version=owner.resource.api_version,
        kind=owner.resource.kind,
        name=owner.metadata.name,
        uid=owner.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )


def draft(
    template: msgspec.Raw,
    owner: Object,
    *,
    name: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    finalizers: Sequence[str] = (),
    spec: msgspec.Raw | None = None,
) -> Draft:
    """A pod of a workload; without a name of its own it gets a generated one.

    ``labels``, ``annotations`` and ``finalizers`` are added to the template's; ``spec`` takes the
    place of the template's spec.
    """
    inside = opened(template)
    meta = inside.metadata
    return Draft(
        metadata=ObjectMeta(
            name=name,
            generate_name="" if name else f"{owner.metadata.name}-",
            namespace=owner.metadata.namespace,
            labels={**meta.labels, **(labels or {})},
            annotations={**meta.annotations, **(annotations or {})},
            owner_references=(owner_reference(owner),),
            finalizers=(*meta.finalizers, *finalizers),
        ),
        spec=inside.spec if spec is None else spec,
    )


async def in_batches(
    items: Sequence[T], work: Callable[[T], Awaitable[R]]
) -> list[R | BaseException]:
    """Work on items in growing batches; results in order, none after the first bad batch.

    A result is what ``work`` gave or raised. The caller finds out from the length how many were
    not tried.
    """
    results: list[R | BaseException] = []
    size = FIRST_BATCH
    while len(results) < len(items):
        batch = items[len(results) : len(results) + size]
        outcome = await asyncio.gather(*map(work, batch), return_exceptions=True)
        results += outcome
        if any(isinstance(one, BaseException) for one in outcome):
            break
        size *= 2
    return results


def namespace_ends(error: ZonewiseError) -> bool:
    """Whether nothing can be created because the namespace is being deleted."""
    return isinstance(error, Forbidden) and error.namespace_ends
