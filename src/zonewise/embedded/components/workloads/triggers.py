"""Which changes of other objects enqueue a workload.

A pod or revision enqueues the workload that controls it; one without a controller those that might
adopt it. A budget that allows more enqueues the workloads whose evictions were refused, a pod that
becomes Ready those that a verdict holds. Changes that do not matter, such as an address or a
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
from zonewise.api.objects.pod_state import is_pod_ready, ready_condition
from zonewise.api.objects.policy import PodDisruptionBudget, PodDisruptionBudgetStatus
from zonewise.disruption.budgets_cache import BudgetsCache
from zonewise.embedded.components.workloads.adoption import selects
from zonewise.embedded.components.workloads.removal import Removal
from zonewise.runtime.cache.indexes import namespace_of
from zonewise.runtime.cache.store import Store
from zonewise.runtime.controller.controller import Controller

W = TypeVar("W", bound=DaemonSet | Deployment | ReplicaSet | StatefulSet)


def owner_keys(workloads: Store[W], kind: str) -> Callable[[Object], Iterable[Key]]:
    """To the keys of the workloads of one kind that control an object, or may adopt it."""
    workloads.add_index("namespace", namespace_of)

    def to_keys(item: Object) -> Iterable[Key]:
        meta = item.metadata
        if (owner := meta.controller) is not None:
            return ((meta.namespace, owner.name),) if owner.kind == kind else ()
        return [
            workload.key
            for workload in workloads.by("namespace", meta.namespace)
            if selects(workload.spec.selector, meta.labels)
        ]

    return to_keys


AnyBudget: TypeAlias = PodDisruptionBudget | TopologyDisruptionBudget


def watch_budgets(
    controller: Controller[Key], removal: Removal[Key], budgets_cache: BudgetsCache | None
) -> None:
    """Enqueue workloads whose evictions were refused when that may have changed."""

    def refused_keys(budget: AnyBudget) -> Iterable[Key]:
        namespace = budget.metadata.namespace
        paused = [key for key in removal.paused() if key[0] == namespace]
        return [key for key in paused if removal.end_pause(key)]

    def held_keys(pod: Pod) -> Iterable[Key]:
        namespace = pod.metadata.namespace
        return [key for key in removal.paused_by_verdict() if key[0] == namespace]

    if removal.mode == "evict":
        controller.watches(PodDisruptionBudget, refused_keys, when=_may_allow_more)
        if budgets_cache is not None:
            controller.watches(TopologyDisruptionBudget, refused_keys, when=_may_allow_more)
            controller.watches(Pod, held_keys, when=_became_ready)


def _became_ready(old: Pod | None, new: Pod | None) -> bool:
    return new is not None and is_pod_ready(new) and not (old is not None and is_pod_ready(old))


def _may_allow_more(old: AnyBudget | None, new: AnyBudget | None) -> bool:
    """Whether a budget may allow what it did not allow before, in any of its domains.

    Sums would hide a domain that opens while another one closes.
    """
    if old is None or new is None:
        return new is None
    if old.spec != new.spec:
        return True
    before, after = _allowed_by_domain(old), _allowed_by_domain(new)
    return any(count > before.get(name, 0) for name, count in after.items())


def _allowed_by_domain(budget: AnyBudget) -> dict[str, float]:
    """How many disruptions a budget allows by domain; infinite where it has no limit."""
    status = budget.status
    if isinstance(status, PodDisruptionBudgetStatus) and not status.domains:
        return {"": status.disruptions_allowed}
    return {
        row.domain: inf if row.disruptions_allowed is None else row.disruptions_allowed
        for row in status.domains
    }


def is_relevant(old: Pod | None, new: Pod | None) -> bool:
    """Whether a change of a pod may concern its workload."""
    return old is None or new is None or _relevant_fields(old) != _relevant_fields(new)


def _relevant_fields(pod: Pod) -> tuple[object, ...]:
    meta = pod.metadata
    condition = ready_condition(pod)
    since = condition and (condition.status, condition.last_transition_time)
    return meta.deletion_timestamp, pod.status.phase, since, meta.labels, meta.owner_references
