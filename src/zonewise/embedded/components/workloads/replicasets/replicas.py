"""How many pods a ReplicaSet has, how many it should have, and its status.

A ReplicaSet's size is ``spec.replicas``, unless its Deployment requests that it shrink: see
``embedded.components.workloads.deployments.rollout`` for why that is requested by an annotation.
``aim`` is the size in either case. While the annotation exists, ``spec.replicas`` follows the pods
down (``lowered``): it is what the ReplicaSet still holds, never less.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from zonewise.api.meta import Condition
from zonewise.api.objects.apps import ReplicaSet, ReplicaSetStatus, ReplicationController, opened
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import active, finished
from zonewise.disruption.steering import HELD, reduce_to
from zonewise.embedded.components.workloads.availability import available_in

FAILURE = "ReplicaFailure"


@dataclass(frozen=True, slots=True)
class ReplicaCount:
    """The pods of a ReplicaSet, counted."""

    active: tuple[Pod, ...]
    labeled: int
    ready: int
    available: int
    terminating: int
    again: float | None
    """Seconds until one more pod becomes available by the mere passing of time."""


def aim(owner: ReplicaSet) -> int:
    """The size a ReplicaSet should have."""
    wanted = reduce_to(owner.metadata.annotations)
    replicas = owner.spec.replicas
    return replicas if wanted is None else min(replicas, wanted)


def lowered(owner: ReplicaSet, left: int) -> int:
    """``spec.replicas`` of a ReplicaSet that is to shrink and has so many pods left."""
    return max(aim(owner), min(owner.spec.replicas, left))


def counted(owner: ReplicaSet, pods: Iterable[Pod], now: float) -> ReplicaCount:
    """The pods by what they are."""
    labels = opened(owner.spec.template).metadata.labels.items()
    living: list[Pod] = []
    labeled = ready = available = terminating = 0
    again: float | None = None
    for pod in pods:
        if not active(pod):
            terminating += not finished(pod)
            continue
        living.append(pod)
        labeled += labels <= pod.metadata.labels.items()
        wait = available_in(pod, owner.spec.min_ready_seconds, now)
        if wait is None:
            continue
        ready += 1
        if wait == 0.0:
            available += 1
        elif again is None or wait < again:
            again = wait
    return ReplicaCount(tuple(living), labeled, ready, available, terminating, again)


def status_of(
    owner: ReplicaSet,
    count: ReplicaCount,
    *,
    failure: tuple[str, str] | None,
    held: tuple[str, str] | None,
    now: str,
) -> ReplicaSetStatus:
    """The status of a ReplicaSet.

    ``failure`` is the reason and message of what did not work, ``held`` of what a budget prevents.
    """
    conditions = owner.status.conditions
    known = next((one for one in conditions if one.type == FAILURE), None)
    if failure is None or known is None:
        conditions = _with(conditions, FAILURE, failure, now)
    conditions = _with(conditions, HELD, held, now)
    return ReplicaSetStatus(
        observed_generation=owner.metadata.generation,
        replicas=len(count.active),
        fully_labeled_replicas=count.labeled,
        ready_replicas=count.ready,
        available_replicas=count.available,
        terminating_replicas=None
        if isinstance(owner, ReplicationController)
        else count.terminating,
        conditions=conditions,
    )


def held_by(owner: ReplicaSet) -> tuple[str, str] | None:
    """What a budget prevented when pods were last to go."""
    known = next((one for one in owner.status.conditions if one.type == HELD), None)
    return None if known is None else (known.reason, known.message)


def _with(
    conditions: tuple[Condition, ...], type: str, words: tuple[str, str] | None, now: str
) -> tuple[Condition, ...]:
    """The conditions with this one saying these words, or without it."""
    others = tuple(one for one in conditions if one.type != type)
    if words is None:
        return others
    known = next((one for one in conditions if one.type == type), None)
    if known is not None and (known.reason, known.message) == words:
        return conditions
    since = now if known is None else known.last_transition_time
    reason, message = words
    condition = Condition(
        type=type, status="True", reason=reason, message=message, last_transition_time=since
    )
    return (*others, condition)


def patch_of(status: ReplicaSetStatus) -> dict[str, Any]:
    """A merge patch that makes the status this one; zeros are absent, as Kubernetes has it."""
    return {
        "observedGeneration": status.observed_generation or None,
        "replicas": status.replicas,
        "fullyLabeledReplicas": status.fully_labeled_replicas or None,
        "readyReplicas": status.ready_replicas or None,
        "availableReplicas": status.available_replicas or None,
        "terminatingReplicas": status.terminating_replicas,
        "conditions": list(status.conditions) or None,
    }
