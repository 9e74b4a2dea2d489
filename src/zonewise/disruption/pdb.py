"""What a PodDisruptionBudget allows, counted as Kubernetes counts.

A budget counts *expected* pods, those that must be *healthy*, and those that are. What is expected
depends on how it was written: a whole number for ``minAvailable`` is compared with the pods that
exist; a percentage, and any ``maxUnavailable``, with the sum of the replicas of the pods'
controllers. So pods that do not exist yet count as missing, and a rollout that has begun is counted
from its end. Percentages round up on both sides.

Healthy is a pod that is Ready, not terminating, and not promised to an eviction. A promise
(``disruptedPods``, by name) is written by the eviction handler, before the pod is deleted; it ends
with the pod's deletion or, if nothing happened, after two minutes. Otherwise one lost eviction
would block the budget forever. A pod that is younger than the promise is another one of the same
name, as StatefulSets make them: if the deletion in between was missed, it must not be waited for.
One made in the very second of the promise may be either; it is waited for a few seconds.

What cannot be counted allows nothing: the status keeps its last numbers and says ``SyncFailed``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from zonewise.api.meta import Condition
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import DISRUPTION_TARGET, active, finished, ready
from zonewise.api.objects.policy import (
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from zonewise.api.values import times
from zonewise.api.values.int_or_percent import portion

Obj: TypeAlias = dict[str, Any]

DELETION_SECONDS = 120.0
"""How long an eviction may take to delete its pod."""
SAME_SECOND = 5.0
"""The same, where it is not certain that it is its pod."""

DISRUPTED_LIMIT = 2000
"""More evictions under way than this are too many to keep track of."""

ALLOWED = "DisruptionAllowed"
BY_KUBELET = "TerminationByKubelet"


class Asked(Enum):
    """A budget's answer to an eviction, judged by its status alone."""

    FREE = "the pod is not Ready and costs nothing"
    COSTS = "one disruption is spent"
    UNPROCESSED = "its latest spec was not counted yet"
    NEGATIVE = "its disruptionsAllowed is negative"
    CROWDED = "too many evictions are not confirmed"
    EXHAUSTED = "no disruption is left"


def goes_freely(pod: Pod) -> bool:
    """Whether no budget applies: the pod has ended, is terminating, or does not run yet."""
    return not active(pod) or pod.status.phase == "Pending"


def asked(budget: PodDisruptionBudget, *, is_ready: bool) -> Asked:
    """Whether a pod may be evicted: an unready one may be if the budget always allows that, or if
    enough others are healthy anyway.
    """
    status = budget.status
    if not is_ready and (
        budget.spec.unhealthy_pod_eviction_policy == "AlwaysAllow"
        or status.current_healthy >= status.desired_healthy > 0
    ):
        return Asked.FREE
    if status.observed_generation < budget.metadata.generation:
        return Asked.UNPROCESSED
    if status.disruptions_allowed < 0:
        return Asked.NEGATIVE
    if len(status.disrupted_pods) > DISRUPTED_LIMIT:
        return Asked.CROWDED
    return Asked.COSTS if status.disruptions_allowed else Asked.EXHAUSTED


def why_none(budget: PodDisruptionBudget) -> str:
    """Why a budget has nothing left; its numbers mean nothing if it could not be counted."""
    status = budget.status
    told = next((one for one in status.conditions if one.type == ALLOWED), Condition())
    message = told.message if told.status == "False" else ""
    name = budget.metadata.name
    begin = f"The disruption budget {name} does not allow evicting pods currently"
    if message and told.reason == "SyncFailed":
        return f"{begin} because it failed sync: {message}"
    wants, has = status.desired_healthy, status.current_healthy
    if has <= wants:
        return f"The disruption budget {name} needs {wants} healthy pods and has {has} currently"
    return f"{begin} ({told.reason}): {message}" if message else begin


def disruption_target(reason: str, message: str, *, now: str, generation: int = 0) -> Obj:
    """The condition of a pod that is about to be taken down."""
    made: Obj = {
        "type": DISRUPTION_TARGET,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": now,
    }
    return made | ({"observedGeneration": generation} if generation else {})


def disruption_target_withdrawn(*, now: str) -> Obj:
    """The condition of a pod that was to be taken down and was not, as a strategic patch."""
    return {
        "type": DISRUPTION_TARGET,
        "status": "False",
        "reason": None,
        "message": None,
        "lastTransitionTime": now,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetCount:
    """What was counted."""

    expected: int
    desired: int
    healthy: int
    disrupted: Mapping[str, str]
    """Promised pods that still exist, and since when."""
    overdue: tuple[str, ...]
    """Pods whose promised deletion did not happen."""
    recheck: float | None
    """Seconds until the next promise ends."""

    @property
    def allowed(self) -> int:
        """How many more pods may be disrupted; 0 where none are expected: nothing is known yet."""
        return max(self.healthy - self.desired, 0) if self.expected > 0 else 0

    @classmethod
    def of(
        cls, budget: PodDisruptionBudget, pods: Iterable[Pod], scale: int, *, now: float
    ) -> BudgetCount:
        """Count the selected pods; ``scale`` is the sum of their controllers' replicas."""
        pods = sorted(pods, key=lambda pod: pod.metadata.name)
        expected, desired = _wanted(budget.spec, len(pods), scale)
        promised = budget.status.disrupted_pods
        healthy = 0
        disrupted: dict[str, str] = {}
        overdue: list[str] = []
        left: list[float] = []
        for pod in pods:
            name = pod.metadata.name
            if pod.metadata.deletion_timestamp is not None:
                continue
            if name in promised and (patience := _patience(pod, promised[name])):
                due = times.parse(promised[name]).timestamp() + patience - now
                if due >= 0:
                    disrupted[name] = promised[name]
                    left.append(due)
                    continue
                overdue.append(name)
            healthy += ready(pod)
        return cls(
            expected=expected,
            desired=desired,
            healthy=healthy,
            disrupted=disrupted,
            overdue=tuple(overdue),
            recheck=min(left, default=None),
        )


def _patience(pod: Pod, promised: str) -> float:
    """How long after a promise its pod's deletion is waited for; not at all for another pod."""
    made = pod.metadata.creation_timestamp
    age = times.parse(promised) - times.parse(made) if made else None
    if age is None or age.total_seconds() > 0:
        return DELETION_SECONDS
    return SAME_SECOND if not age else 0.0


def counted_by_scale(spec: PodDisruptionBudgetSpec) -> bool:
    """Whether the controllers' scales are needed; else the existing pods are enough."""
    return spec.max_unavailable is not None or isinstance(spec.min_available, str)


def counted_status(
    budget: PodDisruptionBudget, count: BudgetCount, *, now: str
) -> PodDisruptionBudgetStatus:
    """The status of a count; equal to the present one if nothing changed."""
    generation = budget.metadata.generation
    enough = count.allowed > 0
    condition = Condition(
        type=ALLOWED,
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
        conditions=_with(budget.status.conditions, condition, now),
    )


def failed_status(budget: PodDisruptionBudget, why: str, *, now: str) -> PodDisruptionBudgetStatus:
    """The status of a budget that could not be counted: nothing is allowed."""
    old = budget.status
    condition = Condition(
        type=ALLOWED,
        status="False",
        reason="SyncFailed",
        message=why,
        observed_generation=old.observed_generation,
    )
    return PodDisruptionBudgetStatus(
        observed_generation=old.observed_generation,
        disrupted_pods=old.disrupted_pods,
        disruptions_allowed=0,
        current_healthy=old.current_healthy,
        desired_healthy=old.desired_healthy,
        expected_pods=old.expected_pods,
        conditions=_with(old.conditions, condition, now),
    )


def stale_after(pod: Pod, *, now: float) -> float | None:
    """Seconds until a pod that was to be disturbed counts as left alone; None if it was not.

    What a kubelet announced stays, however long it takes; so does what finished.
    """
    if pod.metadata.deletion_timestamp is not None or finished(pod):
        return None
    for one in pod.status.conditions:
        if one.type == DISRUPTION_TARGET and one.status == "True" and one.reason != BY_KUBELET:
            since = (
                times.parse(one.last_transition_time).timestamp()
                if (one.last_transition_time)
                else 0.0
            )
            return max(since + DELETION_SECONDS - now, 0.0)
    return None


def _wanted(spec: PodDisruptionBudgetSpec, present: int, scale: int) -> tuple[int, int]:
    """How many pods are expected, and how many of them must be healthy."""
    if spec.max_unavailable is not None:
        return scale, max(scale - portion(spec.max_unavailable, scale, up=True), 0)
    if isinstance(spec.min_available, int):
        return present, spec.min_available
    if spec.min_available is not None:
        return scale, portion(spec.min_available, scale, up=True)
    return 0, 0


def _with(conditions: tuple[Condition, ...], wanted: Condition, now: str) -> tuple[Condition, ...]:
    """The conditions with one of them set; the time moves only if its status does."""
    old = next((one for one in conditions if one.type == wanted.type), None)
    since = old.last_transition_time if old and old.status == wanted.status else now
    changed = Condition(
        type=wanted.type,
        status=wanted.status,
        reason=wanted.reason,
        message=wanted.message,
        observed_generation=wanted.observed_generation,
        last_transition_time=since,
    )
    if old is None:
        return (*conditions, changed)
    return tuple(changed if one is old else one for one in conditions)
