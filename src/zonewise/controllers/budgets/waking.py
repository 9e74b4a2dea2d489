"""Triggers workloads whose deletions were refused, when a budget allows more.

Kubernetes' controllers try a refused deletion again after a pause that doubles up to 1,000 seconds.
Any change of a pod of theirs makes them retry at once. So when a domain opens, or a budget is
widened or deleted, one pod of each workload that has pods left to delete gets an annotation with
the time: exactly one per workload and opening, because an attempt that fails again lengthens the
pause.

Held Deployments are triggered by their ReplicaSet (``marking``). Workloads with pods left: a
ReplicaSet or ReplicationController with more pods than it specifies, a StatefulSet with more or
outdated pods, a DaemonSet with outdated ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zonewise.api.errors import NotFound
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_active
from zonewise.api.values import times
from zonewise.disruption.namespace_budgets import NamespaceBudgets
from zonewise.disruption.owners import (
    DAEMON_SET,
    REPLICA_SET,
    REPLICATION_CONTROLLER,
    STATEFUL_SET,
    ControllerReference,
    OwnerKey,
    reference_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zonewise.disruption.budget import Budget
    from zonewise.disruption.budget_state import BudgetState
    from zonewise.runtime.client.client import Client

WOKEN = "zonewise.io/woken"
SIZED = (REPLICA_SET, REPLICATION_CONTROLLER, STATEFUL_SET)
"""Kinds whose controllers delete surplus pods."""


def opened(before: Mapping[str, int | None], now: Mapping[str, int | None]) -> bool:
    """Whether a domain allows something that allowed nothing before; no domain is all of them."""
    if "" in now:
        return 0 in before.values()
    return any(
        (count is None or count > 0) and before.get(name, 0) == 0 for name, count in now.items()
    )


def allowances(standing: BudgetState) -> dict[str, int | None]:
    """What a budget allows by domain."""
    return {domain.name: standing.allowed(domain.name) for domain in standing.named_domains}


def waiting(budgets: NamespaceBudgets, budget: Budget) -> list[Pod]:
    """One pod of each workload under a budget that has something left to take down."""
    pods: dict[OwnerKey, list[tuple[Pod, ControllerReference]]] = {}
    for pod in budgets.pods.values():
        if not is_pod_active(pod) or not budget.selector.matches(pod.metadata.labels):
            continue
        reference = reference_of(pod)
        if reference is not None:
            pods.setdefault(reference.key, []).append((pod, reference))
    chosen = []
    for owner_key, several in sorted(pods.items()):
        owner = budgets.owners.get(owner_key, several[0][1].uid)
        if owner is None:
            continue
        kind = owner_key[1]
        many = kind in SIZED and len(several) > (owner.replicas or 0)
        stale = kind in (STATEFUL_SET, DAEMON_SET) and any(
            budgets.owners.is_outdated(reference) for _, reference in several
        )
        if many or stale:
            chosen.append(min((pod for pod, _ in several), key=lambda pod: pod.metadata.name))
    return chosen


async def wake(client: Client, pods: list[Pod], now: float) -> None:
    """Change each pod a little."""
    text = times.format_time(times.from_epoch(now))
    for pod in pods:
        meta = pod.metadata
        body = {"metadata": {"uid": meta.uid, "annotations": {WOKEN: text}}}
        try:
            await client.patch(Pod, meta.name, meta.namespace, body)
        except NotFound:
            continue
