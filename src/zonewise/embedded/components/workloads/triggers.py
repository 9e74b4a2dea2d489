"""Which changes of other objects enqueue a workload.

A pod or revision enqueues the workload that controls it; one without a controller those that might
adopt it. A budget that allows more enqueues the workloads that were refused something, a pod that
becomes Ready those that wait for a verdict. Changes that do not matter, such as an address or a
restart count, enqueue nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import TypeAlias, TypeVar

from zonewise.api.meta import Key, Object
from zonewise.api.objects.apps import DaemonSet, Deployment, ReplicaSet, StatefulSet
from zonewise.api.objects.budgets import TopologyDisruptionBudget
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import readiness, ready
from zonewise.api.objects.policy import PodDisruptionBudget, PodDisruptionBudgetStatus
from zonewise.embedded.components.workloads.adoption import selects
from zonewise.embedded.components.workloads.removal import Removal
from zonewise.runtime.cache.indexes import namespace_of
from zonewise.runtime.cache.store import Store

W = TypeVar("W", bound=DaemonSet | Deployment | ReplicaSet | StatefulSet)


def members(workloads: Store[W], kind: str) -> Callable[[Object], Iterable[Key]]:
    """The workloads of one kind that an object enqueues."""
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


AnyBudget: TypeAlias = PodDisruptionBudget | TopologyDisruptionBudget


def refused(removal: Removal[Key]) -> Callable[[AnyBudget], Iterable[Key]]:
    """The workloads that a budget enqueues."""

    def woken(budget: AnyBudget) -> Iterable[Key]:
        namespace = budget.metadata.namespace
        resting = [key for key in removal.resting() if key[0] == namespace]
        return [key for key in resting if removal.reconsider(key)]

    return woken


def held(removal: Removal[Key]) -> Callable[[Pod], Iterable[Key]]:
    """The workloads that a pod that becomes Ready enqueues: those that wait for a verdict."""

    def woken(pod: Pod) -> Iterable[Key]:
        namespace = pod.metadata.namespace
        return [key for key in removal.judged() if key[0] == namespace]

    return woken


def gets_ready(old: Pod | None, new: Pod | None) -> bool:
    """Whether there is one Ready pod more."""
    return new is not None and ready(new) and not (old is not None and ready(old))


def gives(old: AnyBudget | None, new: AnyBudget | None) -> bool:
    """Whether a budget may allow what it did not allow before, in any of its domains.

    Sums would hide a domain that opens while another one closes.
    """
    if old is None or new is None:
        return new is None
    if old.spec != new.spec:
        return True
    before, after = _allowed(old), _allowed(new)
    return any(count > before.get(name, 0) for name, count in after.items())


def _allowed(budget: AnyBudget) -> dict[str, float]:
    """What a budget allows by domain; where it guards nothing, everything."""
    status = budget.status
    if isinstance(status, PodDisruptionBudgetStatus) and not status.domains:
        return {"": status.disruptions_allowed}
    return {
        row.domain: inf if row.disruptions_allowed is None else row.disruptions_allowed
        for row in status.domains
    }


def matters(old: Pod | None, new: Pod | None) -> bool:
    """Whether a workload may have to do or say something because of a change of a pod."""
    return old is None or new is None or _relevant(old) != _relevant(new)


def _relevant(pod: Pod) -> tuple[object, ...]:
    meta = pod.metadata
    condition = readiness(pod)
    since = condition and (condition.status, condition.last_transition_time)
    return meta.deletion_timestamp, pod.status.phase, since, meta.labels, meta.owner_references
