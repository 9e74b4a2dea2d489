"""Which pods of the open domain are evicted now.

Broken pods are evicted at once: they serve no traffic. Ready ones as long as fewer than
``maxUnavailable`` pods of the domain are missing, and only those that every other budget allows:
what would be refused is not requested. StatefulSets start with their highest ordinals, a rollback
with the newest pods. Pods on deleted nodes are left alone: no kubelet could report when they have
ended.

A Deployment's own controller removes its pods; here only a budget that keeps it from doing so is
found, for the status.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zonewise.api.objects.pod import Pod
from zonewise.api.reason import Reason
from zonewise.api.values.numbers import scale_int_or_percent
from zonewise.disruption.namespace_budgets import NamespaceBudgets
from zonewise.disruption.rollouts.derived_budget import derived_budget_name, limit_budget_name
from zonewise.disruption.rollouts.plan import DomainPlan, RolloutView
from zonewise.disruption.rollouts.replacements import is_held
from zonewise.disruption.rollouts.workload import RolledPod
from zonewise.disruption.verdict import DisruptionVerdict, VerdictRound

BLOCKED = "EvictionsBlocked"


@dataclass(frozen=True, slots=True)
class Victims:
    """The pods to evict; without any, the first verdict that refused."""

    pods: tuple[Pod, ...] = ()
    refusal: DisruptionVerdict | None = None


def choose_victims(view: RolloutView, plan: DomainPlan, budgets: NamespaceBudgets) -> Victims:
    """Choose pods to evict that the budgets of the namespace allow."""
    name = plan.open_domain
    if name is None or view.workload is None or not view.workload.needs_evictions:
        return Victims()
    domain_pods = [rolled for rolled in view.pods if rolled.domain == name]
    desired_ready = view.desired_ready[name]
    limit = view.rollout.spec.max_unavailable
    max_unavailable = scale_int_or_percent(limit, desired_ready, round_up=True)
    room = (
        0
        if plan.repairing
        else max_unavailable - (desired_ready - sum(rolled.ready for rolled in domain_pods))
    )
    verdict_round = VerdictRound(budgets, view.now, strict=True)
    pods: list[Pod] = []
    refusal: DisruptionVerdict | None = None
    for rolled in sorted(
        domain_pods, key=lambda rolled: _eviction_rank(rolled, rolling_back=plan.rolling_back)
    ):
        if (
            not rolled.outdated
            or (rolled.ready and room <= 0)
            or not (rolled.ready or rolled.repairable)
        ):
            continue
        verdict = verdict_round.judge(rolled.pod)
        if not verdict.allowed:
            refusal = refusal or verdict
            continue
        if verdict.charged:
            verdict_round.charge(rolled.pod)
        room -= rolled.ready
        pods.append(rolled.pod)
    return Victims(tuple(pods), None if pods else refusal)


def find_refusal(
    view: RolloutView, plan: DomainPlan, budgets: NamespaceBudgets
) -> DisruptionVerdict | None:
    """The refusal of another budget that keeps a Deployment from taking any old pod of the open
    domain; None while pods are on their way, after which it may be granted.
    """
    if plan.open_domain is None or view.workload is None or view.workload.needs_evictions:
        return None
    if not all(rolled.ready for rolled in view.pods):
        return None
    if not all(is_held(rolled.pod) for rolled in view.unscheduled):
        return None
    own = {derived_budget_name(view.rollout), limit_budget_name(view.rollout)}
    verdict_round = VerdictRound(budgets, view.now, strict=True)
    refusal: DisruptionVerdict | None = None
    for rolled in view.pods:
        if not rolled.outdated or rolled.domain != plan.open_domain:
            continue
        verdict = verdict_round.judge(rolled.pod, evicting=False)
        if verdict.allowed:
            return None
        if refusal is None and any(blocker.budget not in own for blocker in verdict.blockers):
            refusal = verdict
    return refusal


def blocked_reason(view: RolloutView, message: str) -> Reason:
    """Why no pod is evicted although some should be."""
    assert view.workload is not None
    workload = view.workload
    return Reason(
        code=BLOCKED,
        message=f"{workload.kind} {workload.name}: {message}",
        object=workload.object,
        fix="It continues when the budget allows it.",
    )


def _eviction_rank(rolled: RolledPod, *, rolling_back: bool) -> tuple[Any, ...]:
    """Broken pods first; then the newest in a rollback; then the highest ordinals, then by name."""
    name = rolled.pod.metadata.name
    number = name.rpartition("-")[2]
    ordinal = -int(number) if number.isascii() and number.isdigit() else 0
    age = tuple(-ord(letter) for letter in rolled.created) if rolling_back else ()
    return (rolled.ready, age, ordinal, name)
