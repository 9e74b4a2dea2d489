"""Which pods of the open domain are evicted now.

Broken pods are evicted at once: they serve no traffic. Ready ones as long as fewer than
``maxUnavailable`` pods of the domain are missing, and only those that every other budget allows:
what would be refused is not requested. StatefulSets start with their highest ordinals, a rollback
with the newest pods. Pods on deleted nodes are left alone: no kubelet could report when they have
ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zonewise.api.objects.pod import Pod
from zonewise.api.reason import Reason
from zonewise.api.values.int_or_percent import portion
from zonewise.disruption.namespace_budgets import NamespaceBudgets
from zonewise.disruption.rollouts.plan import DomainPlan, RolloutView
from zonewise.disruption.rollouts.workload import RolledPod
from zonewise.disruption.verdict import DisruptionVerdict, Round

BLOCKED = "EvictionsBlocked"


@dataclass(frozen=True, slots=True)
class Victims:
    """The pods to evict; if there are none, the verdict that prevented it, if any."""

    pods: tuple[Pod, ...] = ()
    against: DisruptionVerdict | None = None


def victims(view: RolloutView, plan: DomainPlan, namespace_budgets: NamespaceBudgets) -> Victims:
    """Choose, asking the budgets of the namespace."""
    name = plan.opened
    if name is None or view.workload is None or not view.workload.evicted:
        return Victims()
    here = [one for one in view.pods if one.domain == name]
    need = view.needs[name]
    most = portion(view.item.spec.max_unavailable, need, up=True)
    room = 0 if plan.repairing else most - (need - sum(one.ready for one in here))
    asked = Round(namespace_budgets, view.now, strict=True)
    chosen: list[Pod] = []
    against: DisruptionVerdict | None = None
    for one in sorted(here, key=lambda one: _rank(one, back=plan.rolling_back)):
        if not one.outdated or (one.ready and room <= 0) or not (one.ready or one.repairable):
            continue
        verdict = asked.judge(one.pod)
        if not verdict.allowed:
            against = against or verdict
            continue
        if verdict.charged:
            asked.charge(one.pod)
        room -= one.ready
        chosen.append(one.pod)
    return Victims(tuple(chosen), None if chosen else against)


def blocked(view: RolloutView, why: str) -> Reason:
    """Why no pod is evicted although some should be."""
    assert view.workload is not None
    workload = view.workload
    return Reason(
        code=BLOCKED,
        message=f"{workload.kind} {workload.name}: {why}",
        object=workload.object,
        fix="It goes on when the budget allows it.",
    )


def _rank(one: RolledPod, *, back: bool) -> tuple[Any, ...]:
    """Broken ones first; then the newest if that is requested; then the highest ordinals first.

    Names decide where there are no ordinals.
    """
    name = one.pod.metadata.name
    number = name.rpartition("-")[2]
    ordinal = -int(number) if number.isascii() and number.isdigit() else 0
    age = tuple(-ord(letter) for letter in one.created) if back else ()
    return (one.ready, age, ordinal, name)
