"""Which pods of a DaemonSet are evicted because a budget holds others. Pure.

Kubernetes' DaemonSet controller draws as many outdated pods as its ``maxUnavailable`` leaves room
for, in no order, and deletes them. If one is refused it draws again after a pause that doubles up
to 1,000 seconds. Where most outdated pods are in closed domains it hardly ever draws one of the
open domain: the last of a hundred, beside two hundred held ones, after days. So while a budget
holds some of them, those that all budgets allow are evicted, within the same ``maxUnavailable``.
The controller creates them again, of the new revision.

Pods that are not available are left to the controller, which deletes all of them at once. Under
``OnDelete``, with a surge (which replaces nothing that is held), and while the controller has not
observed the latest change, nothing is chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from zonewise.api.objects.apps import DaemonSet
from zonewise.api.objects.pod import Pod
from zonewise.api.values.numbers import scale_int_or_percent
from zonewise.disruption.namespace_budgets import NamespaceBudgets
from zonewise.disruption.owners import reference_of
from zonewise.disruption.passing.passing_over import (
    PassingChoice,
    is_leaving,
    seconds_until_available,
)
from zonewise.disruption.verdict import DisruptionVerdict, VerdictRound


def choose_daemons(
    item: DaemonSet,
    pods: Sequence[Pod],
    budgets: NamespaceBudgets,
    now: float,
    *,
    evicted: Collection[str] = (),
) -> PassingChoice:
    """Choose pods to evict; ``evicted`` were evicted just now and may not look so yet."""
    if not _is_replacing(item):
        return PassingChoice()
    min_ready = item.spec.min_ready_seconds
    waits = [
        (pod, seconds_until_available(pod, min_ready, now))
        for pod in sorted(pods, key=lambda pod: pod.metadata.name)
        if not is_leaving(pod, budgets, now, evicted)
    ]
    available = [pod for pod, wait in waits if wait == 0.0]
    outdated = [pod for pod in available if _is_outdated(pod, budgets)]
    first_refusal = _find_held(outdated, budgets, now)
    if first_refusal is None:
        return PassingChoice()
    desired = item.status.desired_number_scheduled
    room = _find_limit(item, desired) - max(0, desired - len(available))
    chosen: list[Pod] = []
    verdict_round = VerdictRound(budgets, now, strict=True)
    for pod in outdated:
        if len(chosen) >= room:
            break
        verdict = verdict_round.judge(pod)
        if verdict.allowed:
            if verdict.charged:
                verdict_round.charge(pod)
            chosen.append(pod)
    wait = None if chosen else min((wait for _, wait in waits if wait), default=None)
    return PassingChoice(tuple(chosen), first_refusal, wait)


def _find_held(
    outdated: Sequence[Pod], budgets: NamespaceBudgets, now: float
) -> tuple[Pod, DisruptionVerdict] | None:
    """The first pod that the controller may not delete now."""
    verdict_round = VerdictRound(budgets, now, strict=True)
    for pod in outdated:
        verdict = verdict_round.judge(pod, evicting=False)
        if not verdict.allowed:
            return pod, verdict
    return None


def _is_replacing(item: DaemonSet) -> bool:
    """Whether its controller deletes outdated pods."""
    strategy = item.spec.update_strategy
    surge = None if strategy.rolling_update is None else strategy.rolling_update.max_surge
    return (
        item.metadata.deletion_timestamp is None
        and item.status.observed_generation >= item.metadata.generation
        and strategy.type != "OnDelete"
        and surge in (None, 0, "0%")
    )


def _find_limit(item: DaemonSet, desired: int) -> int:
    """How many pods may be unavailable, at least one."""
    rolling = item.spec.update_strategy.rolling_update
    limit = None if rolling is None else rolling.max_unavailable
    return 1 if limit is None else max(1, scale_int_or_percent(limit, desired, round_up=True))


def _is_outdated(pod: Pod, budgets: NamespaceBudgets) -> bool:
    reference = reference_of(pod)
    return reference is not None and budgets.owners.is_outdated(reference)
