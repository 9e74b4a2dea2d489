"""Which changes of other objects wake up a workload.

A pod or revision wakes up the workload that controls it; one that nobody controls wakes up those
that might adopt it. A budget that gives more wakes up the workloads that were refused something.
Changes nobody acts on, such as an address or a restart count, wake up nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from zonewise.api.meta import Key, Object
from zonewise.api.pod import Pod
from zonewise.api.podstate import readiness
from zonewise.api.policy import PodDisruptionBudget
from zonewise.embedded.indexes import namespace_of
from zonewise.embedded.workloads.claims import selects
from zonewise.embedded.workloads.removal import Removal
from zonewise.embedded.workloads.views import DaemonSet, Deployment, ReplicaSet, StatefulSet
from zonewise.runtime.store import Store

W = TypeVar("W", bound=DaemonSet | Deployment | ReplicaSet | StatefulSet)


def members(workloads: Store[W], kind: str) -> Callable[[Object], Iterable[Key]]:
    """Whom an object wakes up, among workloads of one kind."""
    workloads.add_index("namespace", namespace_of)

    def woken(item: Object) -> Iterable[Key]:
        meta = item.metadata
        if (owner := meta.controller) is not None:
            return ((meta.namespace, owner.name),) if owner.kind == kind else ()
        return [
            one.key
            for one in workloads.by("namespace", meta.namespace)
            if selects(one.spec.selector, meta.labels)
        ]

    return woken


def refused(removal: Removal[Key]) -> Callable[[PodDisruptionBudget], Iterable[Key]]:
    """Whom a budget wakes up."""

    def woken(budget: PodDisruptionBudget) -> Iterable[Key]:
        namespace = budget.metadata.namespace
        resting = [key for key in removal.resting() if key[0] == namespace]
        return [key for key in resting if removal.reconsider(key)]

    return woken


def gives(old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> bool:
    """Whether a budget may allow what it did not allow before."""
    if old is None or new is None:
        return new is None
    return new.status.disruptions_allowed > old.status.disruptions_allowed


def matters(old: Pod | None, new: Pod | None) -> bool:
    """Whether a workload may have to do or say something because of a change of a pod."""
    return old is None or new is None or _relevant(old) != _relevant(new)


def _relevant(pod: Pod) -> tuple[object, ...]:
    meta = pod.metadata
    condition = readiness(pod)
    ready = condition and (condition.status, condition.last_transition_time)
    return meta.deletion_timestamp, pod.status.phase, ready, meta.labels, meta.owner_references
