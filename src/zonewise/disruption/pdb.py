"""What a PodDisruptionBudget allows, counted as Kubernetes counts.

A budget counts *expected* pods, those that must be *healthy*, and those that are. What is expected
depends on how it was written: a whole number for ``minAvailable`` is compared with the pods that
exist; a percentage, and any ``maxUnavailable``, with the sum of the replicas of the pods'
controllers. So pods that do not exist yet count as missing, and a rollout that has begun is counted
from its end. Percentages round up on both sides.

A pod is healthy if it is Ready, not terminating, and not promised to an eviction. A promise
(``disruptedPods``, by name) is written by the eviction handler, before the pod is deleted; it ends
with the pod's deletion or, if nothing happened, after two minutes. Otherwise one lost eviction
would block the budget forever. A pod that is younger than the promise is another one of the same
name, as StatefulSets create them: if the deletion in between was missed, the budget must not wait
for it. One created in the second of the promise may be either; the budget waits a few seconds.

What cannot be counted allows nothing: the status keeps its last numbers and says ``SyncFailed``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from msgspec import structs

from zonewise.api.meta import Condition, find_condition
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import (
    DISRUPTION_TARGET,
    is_pod_active,
    is_pod_finished,
    is_pod_ready,
)
from zonewise.api.objects.policy import (
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from zonewise.api.values import times
from zonewise.api.values.numbers import scale_int_or_percent

Obj: TypeAlias = dict[str, Any]

DELETION_SECONDS = 120.0
"""How long an eviction may take to delete its pod."""
UNCERTAIN_SECONDS = 5.0
"""The same, where it is not certain that the promise was for this pod."""

DISRUPTED_LIMIT = 2000
"""More pending evictions than this are refused."""

DISRUPTION_ALLOWED = "DisruptionAllowed"
BY_KUBELET = "TerminationByKubelet"


class EvictionAnswer(Enum):
    """A budget's answer to an eviction, judged by its status alone."""

    FREE = "the pod is not Ready and costs nothing"
    COSTS = "one disruption is spent"
    UNPROCESSED = "its latest spec was not counted yet"
    NEGATIVE = "its disruptionsAllowed is negative"
    CROWDED = "too many evictions are not confirmed"
    EXHAUSTED = "no disruption is left"


def needs_no_budget(pod: Pod) -> bool:
    """Whether no budget applies: the pod has finished, is terminating, or does not run yet."""
    return not is_pod_active(pod) or pod.status.phase == "Pending"


def judge_eviction(budget: PodDisruptionBudget, *, is_ready: bool) -> EvictionAnswer:
    """Whether a pod may be evicted.

    One that is not Ready may be if the budget always allows that, or if enough others are healthy.
    """
    status = budget.status
    if not is_ready and (
        budget.spec.unhealthy_pod_eviction_policy == "AlwaysAllow"
        or status.current_healthy >= status.desired_healthy > 0
    ):
        return EvictionAnswer.FREE
    if status.observed_generation < budget.metadata.generation:
        return EvictionAnswer.UNPROCESSED
    if status.disruptions_allowed < 0:
        return EvictionAnswer.NEGATIVE
    if len(status.disrupted_pods) > DISRUPTED_LIMIT:
        return EvictionAnswer.CROWDED
    return EvictionAnswer.COSTS if status.disruptions_allowed else EvictionAnswer.EXHAUSTED


def find_sync_failure(budget: PodDisruptionBudget) -> str:
    """Why a budget could not be counted; "" if it was, or that is not known."""
    condition = find_condition(budget.status.conditions, DISRUPTION_ALLOWED) or Condition()
    failed = condition.status == "False" and condition.reason == "SyncFailed"
    return condition.message if failed else ""


def explain_exhausted(budget: PodDisruptionBudget) -> str:
    """Why a budget allows nothing; its numbers mean nothing if it could not be counted."""
    status = budget.status
    condition = find_condition(status.conditions, DISRUPTION_ALLOWED) or Condition()
    message = condition.message if condition.status == "False" else ""
    name = budget.metadata.name
    begin = f"The disruption budget {name} does not allow evicting pods currently"
    if failure := find_sync_failure(budget):
        return f"{begin} because it failed sync: {failure}"
    desired, healthy = status.desired_healthy, status.current_healthy
    if healthy <= desired:
        return (
            f"The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
        )
    return f"{begin} ({condition.reason}): {message}" if message else begin


def disruption_target_condition(reason: str, message: str, *, now: str, generation: int = 0) -> Obj:
    """The condition of a pod that is about to be disrupted."""
    condition: Obj = {
        "type": DISRUPTION_TARGET,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": now,
    }
    return condition | ({"observedGeneration": generation} if generation else {})


def withdrawn_disruption_target(*, now: str) -> Obj:
    """The condition of a pod that was to be disrupted and was not, as a strategic patch."""
    return {
        "type": DISRUPTION_TARGET,
        "status": "False",
        "reason": None,
        "message": None,
        "lastTransitionTime": now,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetCount:
    """The numbers of a budget."""

    expected: int
    desired: int
    healthy: int
    disrupted: Mapping[str, str]
    """Promised pods that still exist, and since when."""
    overdue: tuple[str, ...]
    """Pods whose promised deletion did not happen."""
    recheck_after: float | None
    """Seconds until the next promise ends."""

    @property
    def allowed(self) -> int:
        """How many more pods may be disrupted; 0 while none are expected."""
        return max(self.healthy - self.desired, 0) if self.expected > 0 else 0

    @classmethod
    def count(
        cls, budget: PodDisruptionBudget, pods: Iterable[Pod], scale: int, *, now: float
    ) -> BudgetCount:
        """Count the selected pods; ``scale`` is the sum of their controllers' replicas."""
        pods = sorted(pods, key=lambda pod: pod.metadata.name)
        expected, desired = _expected_and_desired(budget.spec, len(pods), scale)
        promised = budget.status.disrupted_pods
        healthy = 0
        disrupted: dict[str, str] = {}
        overdue: list[str] = []
        remaining: list[float] = []
        for pod in pods:
            name = pod.metadata.name
            if pod.metadata.deletion_timestamp is not None:
                continue
            if name in promised and (patience := _deletion_timeout(pod, promised[name])):
                until_overdue = times.parse(promised[name]).timestamp() + patience - now
                if until_overdue >= 0:
                    disrupted[name] = promised[name]
                    remaining.append(until_overdue)
                    continue
                overdue.append(name)
            healthy += is_pod_ready(pod)
        return cls(
            expected=expected,
            desired=desired,
            healthy=healthy,
            disrupted=disrupted,
            overdue=tuple(overdue),
            recheck_after=min(remaining, default=None),
        )


def _deletion_timeout(pod: Pod, promised: str) -> float:
    """Seconds from a promise until its pod must be deleted; 0 if this is another pod."""
    created = pod.metadata.creation_timestamp
    age = times.parse(promised) - times.parse(created) if created else None
    if age is None or age.total_seconds() > 0:
        return DELETION_SECONDS
    return UNCERTAIN_SECONDS if not age else 0.0


def needs_scale(spec: PodDisruptionBudgetSpec) -> bool:
    """Whether the controllers' scales are needed to count; else the existing pods are enough."""
    return spec.max_unavailable is not None or isinstance(spec.min_available, str)


def status_of_count(
    budget: PodDisruptionBudget, count: BudgetCount, *, now: str
) -> PodDisruptionBudgetStatus:
    """The status of a count; equal to the current one if nothing changed."""
    generation = budget.metadata.generation
    enough = count.allowed > 0
    condition = Condition(
        type=DISRUPTION_ALLOWED,
        status="True" if enough else "False",
        reason="SufficientPods" if enough else "InsufficientPods",
        observed_generation=generation,
    )
    return PodDisruptionBudgetStatus(
        observed_generation=generation,
        disrupted_pods=dict(count.disrupted),
        disruptions_allowed=count.allowed,
        current_healthy=count.healthy,
        desired_healthy=count.desired,
        expected_pods=count.expected,
        conditions=set_condition(budget.status.conditions, condition, now),
    )


def failed_status(
    budget: PodDisruptionBudget, message: str, *, now: str
) -> PodDisruptionBudgetStatus:
    """The status of a budget that could not be counted: nothing is allowed."""
    old = budget.status
    condition = Condition(
        type=DISRUPTION_ALLOWED,
        status="False",
        reason="SyncFailed",
        message=message,
        observed_generation=old.observed_generation,
    )
    return PodDisruptionBudgetStatus(
        observed_generation=old.observed_generation,
        disrupted_pods=old.disrupted_pods,
        disruptions_allowed=0,
        current_healthy=old.current_healthy,
        desired_healthy=old.desired_healthy,
        expected_pods=old.expected_pods,
        conditions=set_condition(old.conditions, condition, now),
    )


def seconds_until_stale(pod: Pod, *, now: float) -> float | None:
    """Seconds until a DisruptionTarget condition is stale; None if the pod has none.

    A condition that the kubelet set stays, however long it takes; so does that of a finished pod.
    """
    if pod.metadata.deletion_timestamp is not None or is_pod_finished(pod):
        return None
    condition = find_condition(pod.status.conditions, DISRUPTION_TARGET)
    if condition is None or condition.status != "True" or condition.reason == BY_KUBELET:
        return None
    changed = condition.last_transition_time
    since = times.parse(changed).timestamp() if changed else 0.0
    return max(since + DELETION_SECONDS - now, 0.0)


def _expected_and_desired(
    spec: PodDisruptionBudgetSpec, present: int, scale: int
) -> tuple[int, int]:
    """How many pods are expected, and how many of them must be healthy."""
    if spec.max_unavailable is not None:
        return scale, max(
            scale - scale_int_or_percent(spec.max_unavailable, scale, round_up=True), 0
        )
    if isinstance(spec.min_available, int):
        return present, spec.min_available
    if spec.min_available is not None:
        return scale, scale_int_or_percent(spec.min_available, scale, round_up=True)
    return 0, 0


def set_condition(
    conditions: tuple[Condition, ...], condition: Condition, now: str
) -> tuple[Condition, ...]:
    """The conditions with one of them set; its time changes only if its status does."""
    old = find_condition(conditions, condition.type)
    since = old.last_transition_time if old and old.status == condition.status else now
    changed = structs.replace(condition, last_transition_time=since)
    if old is None:
        return (*conditions, changed)
    return tuple(changed if existing is old else existing for existing in conditions)
