"""How many pods a ReplicaSet has, how many it should have, and its status.

A ReplicaSet's size is ``spec.replicas``, unless its Deployment requests that it shrink: see
``embedded.components.workloads.deployments.rollout`` for why that is requested by an annotation.
``target_replicas`` is the size in either case. While the annotation exists, ``spec.replicas``
follows the pods down (``lower_replicas``): it is what the ReplicaSet still has, never less.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from zonewise.api.meta import Condition, find_condition
from zonewise.api.objects.apps import (
    ReplicaSet,
    ReplicaSetStatus,
    ReplicationController,
    decode_pod_template,
)
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_active, is_pod_finished
from zonewise.disruption.steering import HELD_BY_BUDGET, parse_reduce_to
from zonewise.embedded.components.workloads.availability import available_in

REPLICA_FAILURE = "ReplicaFailure"


@dataclass(frozen=True, slots=True)
class ReplicaCount:
    """The pods of a ReplicaSet, counted."""

    active: tuple[Pod, ...]
    labeled: int
    ready: int
    available: int
    terminating: int
    next_available: float | None
    """Seconds until the next Ready pod has been Ready for long enough."""


def target_replicas(replica_set: ReplicaSet) -> int:
    """The size a ReplicaSet should have."""
    reduced = parse_reduce_to(replica_set.metadata.annotations)
    replicas = replica_set.spec.replicas
    return replicas if reduced is None else min(replicas, reduced)


def lower_replicas(replica_set: ReplicaSet, remaining: int) -> int:
    """``spec.replicas`` of a ReplicaSet that shrinks and has so many pods remaining."""
    return max(target_replicas(replica_set), min(replica_set.spec.replicas, remaining))


def count_replicas(replica_set: ReplicaSet, pods: Iterable[Pod], now: float) -> ReplicaCount:
    """Count the pods of a ReplicaSet by their state."""
    labels = decode_pod_template(replica_set.spec.template).metadata.labels.items()
    living: list[Pod] = []
    labeled = ready = available = terminating = 0
    next_available: float | None = None
    for pod in pods:
        if not is_pod_active(pod):
            terminating += not is_pod_finished(pod)
            continue
        living.append(pod)
        labeled += labels <= pod.metadata.labels.items()
        wait = available_in(pod, replica_set.spec.min_ready_seconds, now)
        if wait is None:
            continue
        ready += 1
        if wait == 0.0:
            available += 1
        elif next_available is None or wait < next_available:
            next_available = wait
    return ReplicaCount(tuple(living), labeled, ready, available, terminating, next_available)


def compute_status(
    replica_set: ReplicaSet,
    count: ReplicaCount,
    *,
    failure: tuple[str, str] | None,
    held_by_budget: tuple[str, str] | None,
    now: str,
) -> ReplicaSetStatus:
    """The status of a ReplicaSet.

    ``failure`` is the reason and message of what did not work, ``held_by_budget`` of what a budget
    prevents.
    """
    conditions = replica_set.status.conditions
    if failure is None or find_condition(conditions, REPLICA_FAILURE) is None:
        conditions = _set_condition(conditions, REPLICA_FAILURE, failure, now)
    conditions = _set_condition(conditions, HELD_BY_BUDGET, held_by_budget, now)
    return ReplicaSetStatus(
        observed_generation=replica_set.metadata.generation,
        replicas=len(count.active),
        fully_labeled_replicas=count.labeled,
        ready_replicas=count.ready,
        available_replicas=count.available,
        terminating_replicas=None
        if isinstance(replica_set, ReplicationController)
        else count.terminating,
        conditions=conditions,
    )


def read_held_by_budget(replica_set: ReplicaSet) -> tuple[str, str] | None:
    """Reason and message of the condition that a budget holds pods."""
    condition = find_condition(replica_set.status.conditions, HELD_BY_BUDGET)
    return None if condition is None else (condition.reason, condition.message)


def _set_condition(
    conditions: tuple[Condition, ...],
    type: str,
    reason_and_message: tuple[str, str] | None,
    now: str,
) -> tuple[Condition, ...]:
    """The conditions with this one set to reason and message, or without it."""
    others = tuple(condition for condition in conditions if condition.type != type)
    if reason_and_message is None:
        return others
    current = find_condition(conditions, type)
    if current is not None and (current.reason, current.message) == reason_and_message:
        return conditions
    since = now if current is None else current.last_transition_time
    reason, message = reason_and_message
    condition = Condition(
        type=type, status="True", reason=reason, message=message, last_transition_time=since
    )
    return (*others, condition)


def status_patch(status: ReplicaSetStatus) -> dict[str, Any]:
    """The merge patch that writes a status; zeros are absent, as in Kubernetes."""
    return {
        "observedGeneration": status.observed_generation or None,
        "replicas": status.replicas,
        "fullyLabeledReplicas": status.fully_labeled_replicas or None,
        "readyReplicas": status.ready_replicas or None,
        "availableReplicas": status.available_replicas or None,
        "terminatingReplicas": status.terminating_replicas,
        "conditions": list(status.conditions) or None,
    }
