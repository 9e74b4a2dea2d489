"""Pods created from templates, and the batches they are created in.

A ``PodDraft`` is a pod to be created: metadata in full, and the template's spec as its original
JSON text. All pods of one ReplicaSet are the same draft, which is parsed once however many there
are.

*Concurrent*: the creations of one batch. Batches grow 1, 2, 4, … as long as every creation of the
one before succeeded, so that a quota or a webhook that refuses is tried a few times rather than
once per missing pod; and the server can commit together what arrives together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import ClassVar, TypeVar

import msgspec

from zonewise.api.errors import Forbidden, ZonewiseError
from zonewise.api.meta import Object, ObjectMeta, OwnerReference
from zonewise.api.objects.apps import EMPTY_OBJECT, decode_pod_template
from zonewise.api.objects.pod import Pod

T = TypeVar("T")
R = TypeVar("R")

FIRST_BATCH = 1


class PodDraft(Object):
    """A pod to be created; the server's answer is decoded as one, too."""

    resource: ClassVar = Pod.resource

    spec: msgspec.Raw = EMPTY_OBJECT


def owner_reference(owner: Object) -> OwnerReference:
    """The owner reference of an object that a controller creates or adopts."""
    return OwnerReference(
        api_version=owner.resource.api_version,
        kind=owner.resource.kind,
        name=owner.metadata.name,
        uid=owner.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )


def draft_pod(
    template: msgspec.Raw,
    owner: Object,
    *,
    name: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    finalizers: Sequence[str] = (),
    spec: msgspec.Raw | None = None,
) -> PodDraft:
    """Draft a pod of a workload; without a ``name`` it gets a generated one.

    ``labels``, ``annotations`` and ``finalizers`` are added to the template's; ``spec`` replaces
    the template's.
    """
    pod_template = decode_pod_template(template)
    meta = pod_template.metadata
    return PodDraft(
        metadata=ObjectMeta(
            name=name,
            generate_name="" if name else f"{owner.metadata.name}-",
            namespace=owner.metadata.namespace,
            labels={**meta.labels, **(labels or {})},
            annotations={**meta.annotations, **(annotations or {})},
            owner_references=(owner_reference(owner),),
            finalizers=(*meta.finalizers, *finalizers),
        ),
        spec=pod_template.spec if spec is None else spec,
    )


async def run_in_batches(
    items: Sequence[T], work: Callable[[T], Awaitable[R]]
) -> list[R | BaseException]:
    """Work on items in growing batches, up to the first batch in which one fails.

    A result is what ``work`` returned or raised, in order; fewer results than items mean that the
    last items were not tried.
    """
    results: list[R | BaseException] = []
    size = FIRST_BATCH
    while len(results) < len(items):
        batch = items[len(results) : len(results) + size]
        batch_results = await asyncio.gather(*map(work, batch), return_exceptions=True)
        results += batch_results
        if any(isinstance(result, BaseException) for result in batch_results):
            break
        size *= 2
    return results


def is_namespace_terminating(error: ZonewiseError) -> bool:
    """Whether nothing can be created because the namespace is being deleted."""
    return isinstance(error, Forbidden) and error.namespace_terminating
