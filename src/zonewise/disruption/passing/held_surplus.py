"""Which surplus pods of a ReplicaSet are evicted because a budget holds the first ones. Pure.

Kubernetes' ReplicaSet controller, which also looks after ReplicationControllers, deletes as many
pods as there are too many, in an order of its own (``deletion_order``). What is refused it tries
again, always the same pods: if the last pod of a zone comes first, and may not go, nothing goes,
however many others might. So while all pods that it would delete now are held, those that all
budgets allow are evicted in their place, from the fullest domain first.

ReplicaSets of Deployments are left out: their controller is steered by deletion costs before it
begins (``steering``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_active
from zonewise.disruption.namespace_budgets import NamespaceBudgets
from zonewise.disruption.owner_views import ReplicaSetScale, ReplicationControllerScale
from zonewise.disruption.owners import owner_key
from zonewise.disruption.passing.deletion_order import rank_for_deletion
from zonewise.disruption.passing.passing_over import PassingChoice, is_leaving
from zonewise.disruption.rollouts.workload import DEPLOYMENT
from zonewise.disruption.steering import choose_pods
from zonewise.disruption.verdict import VerdictRound


def choose_surplus(
    item: ReplicaSetScale | ReplicationControllerScale,
    pods: Sequence[Pod],
    budgets: NamespaceBudgets,
    now: float,
    *,
    evicted: Collection[str] = (),
) -> PassingChoice:
    """Choose pods to evict; ``evicted`` were evicted just now and may not look so yet."""
    controller = item.metadata.controller
    if item.metadata.deletion_timestamp is not None:
        return PassingChoice()
    if controller is not None and controller.kind == DEPLOYMENT:
        return PassingChoice()
    staying = [
        pod for pod in pods if is_pod_active(pod) and not is_leaving(pod, budgets, now, evicted)
    ]
    surplus = len(staying) - (1 if item.spec.replicas is None else item.spec.replicas)
    if surplus <= 0:
        return PassingChoice()
    ranked = rank_for_deletion(staying, related=_find_related(item, budgets), now=now)
    verdict_round = VerdictRound(budgets, now, strict=True)
    verdicts = [verdict_round.judge(pod, evicting=False) for pod in ranked[:surplus]]
    if any(verdict.allowed for verdict in verdicts):
        return PassingChoice()
    chosen: list[Pod] = []
    for pod in choose_pods(budgets, ranked, surplus, now).pods:
        verdict = verdict_round.judge(pod)
        if verdict.allowed:
            if verdict.charged:
                verdict_round.charge(pod)
            chosen.append(pod)
    return PassingChoice(tuple(chosen), (ranked[0], verdicts[0]))


def _find_related(
    item: ReplicaSetScale | ReplicationControllerScale, budgets: NamespaceBudgets
) -> list[Pod]:
    """The pods that count on a node: those of all ReplicaSets of the same controller."""
    controller = item.metadata.controller
    if controller is None:
        return []
    siblings = budgets.owners.replica_sets_of(owner_key(controller, item.metadata.namespace))
    return [pod for sibling in siblings for pod in budgets.pods_owned_by(sibling.uid)]
