"""Which pods of the open domain are evicted now.

Broken pods go at once: they serve nobody. Ready ones go as long as fewer than ``maxUnavailable``
pods of the domain are missing, and only those that every other budget lets go: what would be
refused is not asked for. StatefulSets give their highest ordinals first, a rollback the newest pods
first. Pods on nodes that are gone are left alone: nobody could tell when they have ended.
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
    """Who is to be evicted; without anybody, the verdict that was in the way, if one was."""

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
    """Why nobody is evicted although there is somebody to."""
    assert view.workload is not None
    workload = view.workload
    return Reason(
        code=BLOCKED,
        message=f"{workload.kind} {workload.name}: {why}",
        object=workload.object,
        fix="It goes on when the budget allows it.",
    )


def _rank(one: RolledPod, *, back: bool) -> tuple[Any, ...]:
    """Broken ones first; then the newest if that is asked for; then by number, the highest first;
    names decide where there are no numbers.
    """
    name = one.pod.metadata.name
    number = name.rpartition("-")[2]
    ordinal = -int(number) if number.isascii() and number.isdigit() else 0
    age = tuple(-ord(letter) for letter in one.created) if back else ()
    return (one.ready, age, ordinal, name)
