"""Which pods of a StatefulSet are evicted because a budget holds the one that comes first. Pure.

Kubernetes' StatefulSet controller deletes its highest outdated ordinal and, if that is refused,
tries it again: an ordinal in a closed domain keeps those of the open one from being updated. The
same is true of a scale-down. So while the first pod in that order is held, the highest ones that
all budgets allow to be evicted go before it. The StatefulSet's controller creates them again, of
the new revision, in its own order.

The limits are the StatefulSet's own. OrderedReady: one pod, and only while all others are
available. Parallel: updates leave at most ``maxUnavailable`` pods unavailable (without it one);
outdated pods that are not Ready anyway may always go. Condemned pods come before outdated ones, as
there; but when those are held, outdated ones do not wait for them. Under ``OnDelete``, and while
the controller has not observed the latest change, nothing is chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from zonewise.api.errors import ParseError
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import ready_since
from zonewise.api.values import times
from zonewise.api.values.numbers import scale_int_or_percent
from zonewise.disruption.domain_counts import identity
from zonewise.disruption.namespace_budgets import NamespaceBudgets
from zonewise.disruption.owner_views import StatefulSetScale
from zonewise.disruption.owners import REVISION_LABEL
from zonewise.disruption.verdict import DisruptionVerdict, VerdictRound

PARALLEL = "Parallel"
LAST_ORDINAL = 2**31 - 1
"""A pod with a greater number in its name has no ordinal for Kubernetes."""


@dataclass(frozen=True, slots=True)
class PassingChoice:
    """The pods to evict, and the pod that is held, with its verdict."""

    pods: tuple[Pod, ...] = ()
    first_refusal: tuple[Pod, DisruptionVerdict] | None = None
    retry_after: float | None = None
    """Seconds until a Ready pod is available, if that is waited for."""


@dataclass(frozen=True, slots=True)
class _Ordinals:
    """The pods of a set by what is to be done with them, the highest ordinals first."""

    condemned: tuple[Pod, ...]
    outdated: tuple[Pod, ...]
    down: int
    """How many desired pods are missing, leaving or not available."""
    waits: tuple[float, ...]
    """Seconds until Ready pods are available."""


def choose_ordinals(
    item: StatefulSetScale,
    pods: Sequence[Pod],
    budgets: NamespaceBudgets,
    now: float,
    *,
    evicted: Collection[str] = (),
) -> PassingChoice:
    """Choose pods to evict; ``evicted`` were evicted just now and may not look so yet."""
    if item.metadata.deletion_timestamp is not None or not _is_observed(item):
        return PassingChoice()
    staying = {}
    for pod in pods:
        if (ordinal := _ordinal_of(pod, item)) is not None:
            staying[ordinal] = None if is_leaving(pod, budgets, now, evicted) else pod
    ordinals = _sort_out(item, staying, now)
    queue = (*ordinals.condemned, *ordinals.outdated)
    if not queue:
        return PassingChoice()
    verdict_round = VerdictRound(budgets, now, strict=True)
    verdict = verdict_round.judge(queue[0], evicting=False)
    if verdict.allowed:
        return PassingChoice()
    if item.spec.pod_management_policy == PARALLEL:
        most, room = len(queue), _updates_limit(item) - ordinals.down
    else:
        ending = any(ordinal not in _desired(item) and not pod for ordinal, pod in staying.items())
        most = room = 0 if ordinals.down or ending else 1
    chosen: list[Pod] = []
    for number, pod in enumerate(queue[1:], 1):
        is_ready = ready_since(pod) is not None
        costs = number >= len(ordinals.condemned) and is_ready
        if len(chosen) >= most or (costs and room <= 0):
            continue
        answer = verdict_round.judge(pod)
        if not answer.allowed:
            continue
        if answer.charged:
            verdict_round.charge(pod)
        room -= costs
        chosen.append(pod)
    wait = None if chosen else min(ordinals.waits, default=None)
    return PassingChoice(tuple(chosen), (queue[0], verdict), wait)


def _is_observed(item: StatefulSetScale) -> bool:
    return item.status.observed_generation >= item.metadata.generation


def _sort_out(item: StatefulSetScale, staying: dict[int, Pod | None], now: float) -> _Ordinals:
    desired = _desired(item)
    rolling = item.spec.update_strategy.rolling_update
    partition = (rolling.partition or 0) if rolling is not None else 0
    updates = item.spec.update_strategy.type != "OnDelete" and item.status.update_revision
    waits = {
        ordinal: seconds_until_available(pod, item.spec.min_ready_seconds, now)
        for ordinal, pod in staying.items()
        if pod is not None
    }
    outdated = [
        ordinal
        for ordinal in reversed(desired[partition:])
        if updates
        and (pod := staying.get(ordinal)) is not None
        and pod.metadata.labels.get(REVISION_LABEL, "") != item.status.update_revision
    ]
    outdated_ordinals = set(outdated)
    limited = rolling is not None and rolling.max_unavailable is not None
    down = [
        ordinal
        for ordinal in desired
        if waits.get(ordinal) != 0.0
        # Such a pod is itself to go; only maxUnavailable counts it.
        and (
            limited
            or ordinal not in outdated_ordinals
            or item.spec.pod_management_policy != PARALLEL
        )
    ]
    condemned = sorted((ordinal for ordinal in staying if ordinal not in desired), reverse=True)
    return _Ordinals(
        condemned=tuple(pod for ordinal in condemned if (pod := staying[ordinal]) is not None),
        outdated=tuple(pod for ordinal in outdated if (pod := staying[ordinal]) is not None),
        down=len(down),
        waits=tuple(wait for ordinal in desired if (wait := waits.get(ordinal))),
    )


def _desired(item: StatefulSetScale) -> range:
    start = item.spec.ordinals.start if item.spec.ordinals is not None else 0
    replicas = 1 if item.spec.replicas is None else item.spec.replicas
    return range(start, start + replicas)


def _updates_limit(item: StatefulSetScale) -> int:
    rolling = item.spec.update_strategy.rolling_update
    if rolling is None or rolling.max_unavailable is None:
        return 1
    replicas = len(_desired(item))
    return max(scale_int_or_percent(rolling.max_unavailable, replicas, round_up=False), 1)


def is_leaving(pod: Pod, budgets: NamespaceBudgets, now: float, evicted: Collection[str]) -> bool:
    """Whether a pod is being deleted, was ``evicted`` just now, or has a grant."""
    return (
        pod.metadata.deletion_timestamp is not None
        or identity(pod) in evicted
        or budgets.ledger.has_live_grant(pod, now)
    )


def _ordinal_of(pod: Pod, item: StatefulSetScale) -> int | None:
    name, _, ordinal = pod.metadata.name.rpartition("-")
    if name != item.metadata.name or not (ordinal.isascii() and ordinal.isdigit()):
        return None
    number = int(ordinal)
    return number if number <= LAST_ORDINAL else None


def seconds_until_available(pod: Pod, min_ready: int, now: float) -> float | None:
    """0 for an available pod, None for one that is not Ready."""
    since = ready_since(pod)
    if since is None:
        return None
    if not min_ready:
        return 0.0
    try:
        return max(times.parse(since).timestamp() + min_ready - now, 0.0)
    except ParseError:
        return 0.0
