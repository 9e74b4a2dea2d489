"""What a Job does next: a pure function of the Job and its pods.

A finished pod must be counted exactly once, whatever crashes in between. Three steps do that, each
of which may be the last one before a restart: the uid of a finished pod is written in the status as
*uncounted*; its tracking finalizer is removed, so that it can be deleted; the uid is removed from
the status and the counter grows. A pod that still has the finalizer and is not in the status was
never processed; a uid in the status whose pod has no finalizer has to be counted.
``JobPlan.status`` is the first step, ``JobPlan.release`` the second, ``settle_status`` the third.
Pods of an Indexed Job that succeed need no uid: their index is in the status.

A Job ends in two steps, too: with ``SuccessCriteriaMet`` or ``FailureTarget`` its result is decided
and its pods are deleted; ``Complete`` or ``Failed`` follows when none is left and all are counted.

After failures new pods wait: 10 s, then twice as long each time up to 10 minutes, from the last
failure; a success ends that. Only this backoff is in memory: after a restart it starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from zonewise.api.meta import Condition, find_condition
from zonewise.api.objects.apps import decode_pod_template
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_active, is_pod_ready
from zonewise.api.objects.pod_state import is_pod_finished as ended
from zonewise.api.struct import Struct
from zonewise.api.values import times
from zonewise.embedded.components.workloads.jobs.objects import Job, JobStatus, UncountedPods
from zonewise.embedded.components.workloads.jobs.pods import (
    FAILURE_COUNT,
    IGNORED_FAILURE_COUNT,
    Backoff,
    finished_at,
    format_indexes,
    index_of,
    index_order,
    is_later,
    is_tracked,
    parse_indexes,
    progress_key,
    read_count,
)
from zonewise.embedded.components.workloads.jobs.policies import (
    PodFailureVerdict,
    match_failure_policy,
    match_success_policy,
)

MAX_PER_SYNC = 500


@dataclass(frozen=True, slots=True)
class PlannedEvent:
    """An event to record about a Job or CronJob."""

    reason: str
    message: str
    type: Literal["Normal", "Warning"] = "Normal"


@dataclass(frozen=True, slots=True)
class PodCreation:
    """A pod to create; for an Indexed Job with its index, and annotations that count failures."""

    index: int | None = None
    annotations: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """What to do, in this order: delete or create pods, write the status, release, settle."""

    delete: tuple[Pod, ...] = ()
    """Running pods of a Job whose result is decided; they are deleted and then counted."""
    surplus: tuple[Pod, ...] = ()
    """Surplus running pods; they are released and deleted, and not counted."""
    evictable: tuple[Pod, ...] = ()
    """Where fewer pods should run at a time than do: all that may go, in their order. Those of them
    that are surplus are then evicted instead, or others in their place.
    """
    create: tuple[PodCreation, ...] = ()
    status: JobStatus
    release: tuple[Pod, ...] = ()
    final_condition: Condition | None = None
    """The last condition, once all pods are counted and deleted."""
    backoff: Backoff
    requeue_after: float | None = None
    events: tuple[PlannedEvent, ...] = ()


def finished_condition(job: Job) -> Condition | None:
    """The condition of a finished Job."""
    return _find_true(job.status.conditions, "Complete", "Failed")


def _find_true(conditions: Iterable[Condition], *types: str) -> Condition | None:
    """The condition of the first of these types whose status is True."""
    candidates = (find_condition(conditions, type) for type in types)
    return next((c for c in candidates if c is not None and c.status == "True"), None)


def plan_job(job: Job, pods: Iterable[Pod], *, backoff: Backoff, now: float) -> JobPlan:
    """Plan for a Job that has not finished; ``pods`` are all of its own."""
    return _Planner(job, pods, backoff, now).plan()


def settle_status(
    plan: JobPlan, status: JobStatus, tracked_pods: Iterable[Pod], *, now: str
) -> JobStatus:
    """The status after finalizers were removed; ``tracked_pods`` still have theirs."""
    status = _count_released(status, {pod.metadata.uid for pod in tracked_pods})
    uncounted = status.uncounted_terminated_pods or UncountedPods()
    final = plan.final_condition
    if final is None or uncounted.succeeded or uncounted.failed or status.terminating:
        return status
    final = msgspec.structs.replace(final, last_transition_time=now)
    others = (c for c in status.conditions if c.type != final.type)
    conditions = (*others, final)
    completion_time = now if final.type == "Complete" else status.completion_time
    return msgspec.structs.replace(status, conditions=conditions, completion_time=completion_time)


class _Planner:
    def __init__(self, job: Job, pods: Iterable[Pod], backoff: Backoff, now: float) -> None:
        self.job = job
        self.spec = job.spec
        self.now = now
        self.timestamp = times.format_time(times.from_epoch(now))
        self.indexed = job.spec.completion_mode == "Indexed"
        self.completions = job.spec.completions
        self.policy = job.spec.pod_failure_policy
        self.failed_only = self.policy is not None or job.spec.pod_replacement_policy == "Failed"
        self.suspended = bool(job.spec.suspend)
        self.pods = sorted(pods, key=lambda pod: (index_order(pod), pod.metadata.name))
        self.active = [pod for pod in self.pods if is_pod_active(pod)]
        self.terminating = [
            pod
            for pod in self.pods
            if not ended(pod) and pod.metadata.deletion_timestamp is not None
        ]
        # Pods that an earlier sync recorded and that have been released since are counted now.
        tracked_uids = {pod.metadata.uid for pod in self.pods if is_tracked(pod)}
        self.status = _count_released(job.status, tracked_uids)
        uncounted = self.status.uncounted_terminated_pods or UncountedPods()
        self.uncounted_succeeded = list(uncounted.succeeded)
        self.uncounted_failed = list(uncounted.failed)
        new_succeeded = self._select_new(
            self.uncounted_succeeded, lambda pod: pod.status.phase == "Succeeded"
        )
        new_failed = self._select_new(self.uncounted_failed, self._has_failed)
        self.succeeded = self.status.succeeded + len(new_succeeded) + len(self.uncounted_succeeded)
        counted = sum(self._verdict(pod).action != "Ignore" for pod in new_failed)
        self.failed = self.status.failed + counted + len(self.uncounted_failed)
        self.backoff = backoff.after(new_succeeded, new_failed)
        self.completed_before: frozenset[int] = frozenset()
        self.succeeded_indexes: frozenset[int] = frozenset()
        self.failed_indexes: frozenset[int] | None = None
        self.delayed: dict[int, Pod] = {}
        if self.indexed:
            self._count_indexes()
        self.start = self.status.start_time
        if self.start is None and not self.suspended:
            self.start = self.timestamp
        self.events: list[PlannedEvent] = []
        self.requeue_after: float | None = None
        self.evictable: tuple[Pod, ...] = ()

    def plan(self) -> JobPlan:
        target = self._find_target()
        conditions = self.status.conditions
        delete: tuple[Pod, ...] = ()
        surplus: tuple[Pod, ...] = ()
        create: tuple[PodCreation, ...] = ()
        if target is not None:
            delete = tuple(self.active)
        else:
            if self.job.metadata.deletion_timestamp is None:
                surplus, create = self._manage_pods()
            remaining = len(self.active) - len(surplus) + len(create)
            if remaining == 0 and self._is_complete():
                message = "Reached expected number of succeeded pods"
                target = self._condition("SuccessCriteriaMet", "CompletionsReached", message)
            elif self.job.metadata.deletion_timestamp is None:
                conditions = self._update_suspended(conditions)
        removed = {pod.metadata.uid for pod in (*delete, *surplus)}
        remaining_pods = [pod for pod in self.active if pod.metadata.uid not in removed]
        release = self._record_finished(target)
        if target is not None and all(condition.type != target.type for condition in conditions):
            conditions = (*conditions, target)
        status = msgspec.structs.replace(
            self.status,
            active=len(remaining_pods) + len(create),
            ready=sum(map(is_pod_ready, remaining_pods)),
            terminating=len(self.terminating) + len(removed),
            succeeded=len(self.succeeded_indexes) if self.indexed else self.status.succeeded,
            start_time=self.start,
            completed_indexes=format_indexes(self.succeeded_indexes),
            failed_indexes=(
                None if self.failed_indexes is None else format_indexes(self.failed_indexes)
            ),
            uncounted_terminated_pods=UncountedPods(
                succeeded=tuple(self.uncounted_succeeded), failed=tuple(self.uncounted_failed)
            ),
            conditions=conditions,
        )
        return JobPlan(
            delete=delete,
            surplus=surplus,
            evictable=self.evictable,
            create=create,
            status=status,
            release=tuple(release),
            final_condition=_final_condition(target) if target is not None else None,
            backoff=self.backoff,
            requeue_after=self.requeue_after,
            events=tuple(self.events),
        )

    def _find_target(self) -> Condition | None:
        """The condition with the result of the Job, if that is decided."""
        if target := _find_true(self.status.conditions, "SuccessCriteriaMet", "FailureTarget"):
            return target
        if self.policy is not None:
            for pod in self.pods:
                if self._has_failed(pod) and (message := self._verdict(pod).message):
                    return self._failure_target("PodFailurePolicy", message)
        limit = 6 if self.spec.backoff_limit is None else self.spec.backoff_limit
        if self.failed > limit or self._restarted_too_often(limit):
            return self._failure_target(
                "BackoffLimitExceeded", "Job has reached the specified backoff limit"
            )
        deadline = self.spec.active_deadline_seconds
        if deadline is not None and self.start is not None and not self.suspended:
            remaining = times.parse(self.start).timestamp() + deadline - self.now
            if remaining <= 0:
                message = "Job was active longer than specified deadline"
                return self._failure_target("DeadlineExceeded", message)
            self._requeue_within(remaining)
        if self.failed_indexes is not None:
            max_failed, failed = self.spec.max_failed_indexes, len(self.failed_indexes)
            if max_failed is not None and failed > max_failed:
                message = "Job has exceeded the specified maximal number of failed indexes"
                return self._failure_target("MaxFailedIndexesExceeded", message)
            if failed and failed + len(self.succeeded_indexes) >= (self.completions or 0):
                return self._failure_target("FailedIndexes", "Job has failed indexes")
        if self.indexed:
            rule = match_success_policy(
                self.spec.success_policy, self.completions or 0, self.succeeded_indexes
            )
            if rule is not None:
                return self._condition("SuccessCriteriaMet", "SuccessPolicy", rule)
        return None

    def _failure_target(self, reason: str, message: str) -> Condition:
        return self._condition("FailureTarget", reason, message)

    def _is_complete(self) -> bool:
        succeeded = len(self.succeeded_indexes) if self.indexed else self.succeeded
        return succeeded > 0 if self.completions is None else succeeded >= self.completions

    def _manage_pods(self) -> tuple[tuple[Pod, ...], tuple[PodCreation, ...]]:
        """Which pods are surplus, or else which have to be created."""
        active = len(self.active)
        parallelism = 1 if self.spec.parallelism is None else self.spec.parallelism
        succeeded = len(self.succeeded_indexes) if self.indexed else self.succeeded
        if self.suspended:
            desired = 0
        elif self.completions is None:
            desired = active if succeeded else parallelism
        else:
            desired = max(min(self.completions - succeeded, parallelism), 0)
        surplus = self._select_surplus(max(active - desired, 0))
        if surplus or self.suspended:
            return surplus[:MAX_PER_SYNC], ()
        missing = desired - active - (len(self.terminating) if self.failed_only else 0)
        if missing <= 0:
            return (), ()
        missing = min(missing, MAX_PER_SYNC)
        if self.failed_indexes is None and (delay := self.backoff.remaining(self.now)) > 0:
            self._requeue_within(delay)
            return (), ()
        if not self.indexed:
            return (), (PodCreation(),) * missing
        return (), self._plan_indexes(missing)

    def _select_surplus(self, count: int) -> tuple[Pod, ...]:
        """Pods to delete: those with an invalid or duplicate index, then those least far."""
        surplus: list[Pod] = []
        by_progress = sorted(self.active, key=progress_key)
        if self.indexed:
            indexes: set[int] = set()
            for pod in reversed(by_progress):
                index = index_of(pod)
                if index is None or index >= (self.completions or 0) or index in indexes:
                    surplus.append(pod)
                else:
                    indexes.add(index)
            by_progress = [pod for pod in by_progress if pod not in surplus]
        if count > len(surplus) and not self.suspended and not self._is_complete():
            self.evictable = tuple(by_progress)
        return (*surplus, *by_progress[: max(count - len(surplus), 0)])

    def _plan_indexes(self, count: int) -> tuple[PodCreation, ...]:
        """The first indexes without a pod; those that failed wait for their backoff."""
        busy = {index_of(pod) for pod in self.active} | self.succeeded_indexes
        if self.failed_only:
            busy |= {index_of(pod) for pod in self.terminating}
        busy |= self.failed_indexes or frozenset()
        free = [index for index in range(self.completions or 0) if index not in busy][:count]
        if self.failed_indexes is None:
            return tuple(PodCreation(index) for index in free)
        creations: list[PodCreation] = []
        delays: list[float] = []
        for index in free:
            last = self.delayed.get(index)
            delay = 0.0
            if last is not None:
                failures = read_count(last, FAILURE_COUNT) + read_count(last, IGNORED_FAILURE_COUNT)
                delay = Backoff(failures + 1, finished_at(last)).remaining(self.now)
            if delay > 0:
                delays.append(delay)
            else:
                creations.append(PodCreation(index, self._failure_counts(last)))
        if delays:
            self._requeue_within(min(delays))
        return tuple(creations)

    def _failure_counts(self, last: Pod | None) -> dict[str, str]:
        """How often an index failed, as annotations of the pod that replaces the last one."""
        if last is None:
            return {FAILURE_COUNT: "0"}
        ignored = self._verdict(last).action == "Ignore"
        counts = {FAILURE_COUNT: str(read_count(last, FAILURE_COUNT) + (not ignored))}
        if ignored_failures := read_count(last, IGNORED_FAILURE_COUNT) + ignored:
            counts[IGNORED_FAILURE_COUNT] = str(ignored_failures)
        return counts

    def _update_suspended(self, conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
        current = find_condition(conditions, "Suspended")
        if self.suspended:
            desired = self._condition("Suspended", "JobSuspended", "Job suspended")
        elif current is None:
            return conditions
        else:
            desired = msgspec.structs.replace(
                self._condition("Suspended", "JobResumed", "Job resumed"), status="False"
            )
        if current and (current.status, current.reason) == (desired.status, desired.reason):
            return conditions
        if self.suspended:
            self.start = None
            self.events.append(PlannedEvent("Suspended", "Job suspended"))
        else:
            self.start = self.timestamp
            self.events.append(PlannedEvent("Resumed", "Job resumed"))
        if current is None:
            return (*conditions, desired)
        return tuple(desired if condition is current else condition for condition in conditions)

    def _record_finished(self, target: Condition | None) -> list[Pod]:
        """Record finished pods; returns those that may be released once that is written."""
        release: list[Pod] = []
        final = target is not None or self.job.metadata.deletion_timestamp is not None
        new_indexes = 0
        for pod in self.pods:
            recorded = len(self.uncounted_succeeded) + len(self.uncounted_failed) + new_indexes
            if recorded >= MAX_PER_SYNC:
                break
            uid, index = pod.metadata.uid, index_of(pod)
            failed = self._has_failed(pod)
            if not is_tracked(pod) or not (final or pod.status.phase == "Succeeded" or failed):
                continue
            if not final and failed and index is not None and self.delayed.get(index) is pod:
                continue
            release.append(pod)
            if self.indexed and (index is None or index >= (self.completions or 0)):
                continue
            if pod.status.phase == "Succeeded" and uid not in self.uncounted_failed:
                if self.indexed:
                    new_indexes += index not in self.completed_before
                elif uid not in self.uncounted_succeeded:
                    self.uncounted_succeeded.append(uid)
            elif (
                (failed or (target is not None and target.type == "FailureTarget"))
                and uid not in self.uncounted_failed
                and self._verdict(pod).action != "Ignore"
            ):
                self.uncounted_failed.append(uid)
        return release

    def _count_indexes(self) -> None:
        completions = self.completions or 0
        self.completed_before = parse_indexes(self.status.completed_indexes, completions)
        succeeded = (pod for pod in self.pods if pod.status.phase == "Succeeded")
        new_indexes = {index_of(pod) for pod in succeeded if is_tracked(pod)}
        self.succeeded_indexes = self.completed_before | {
            index for index in new_indexes if index is not None and index < completions
        }
        limit = self.spec.backoff_limit_per_index
        if limit is None:
            return
        failed: set[int] = set()
        for pod in self.pods:
            index = index_of(pod)
            if index is None or index >= completions:
                continue
            if not (is_tracked(pod) and self._has_failed(pod)):
                continue
            action = self._verdict(pod).action
            at_limit = read_count(pod, FAILURE_COUNT) >= limit
            if action == "FailIndex" or (action != "Ignore" and at_limit):
                failed.add(index)
        failed_before = parse_indexes(self.status.failed_indexes, completions)
        self.failed_indexes = failed_before | failed
        # The last failed pod of an index is kept until the next pod has its count of failures.
        busy = {index_of(pod) for pod in self.active} | self.succeeded_indexes | self.failed_indexes
        for pod in self.pods:
            index = index_of(pod)
            if index is None or index >= completions or index in busy:
                continue
            if is_tracked(pod) and self._has_failed(pod):
                last = self.delayed.get(index)
                if last is None or is_later(pod, last):
                    self.delayed[index] = pod

    def _select_new(self, uncounted: Sequence[str], matches: Callable[[Pod], bool]) -> list[Pod]:
        """Finished pods that are not counted yet."""
        new = (pod for pod in self.pods if is_tracked(pod) and pod.metadata.uid not in uncounted)
        pods = [pod for pod in new if matches(pod)]
        if not self.indexed:
            return pods
        return [pod for pod in pods if index_order(pod) < (self.completions or 0)]

    def _has_failed(self, pod: Pod) -> bool:
        """Whether a pod failed, or was deleted before it could finish."""
        if pod.status.phase == "Failed":
            return True
        if self.failed_only:
            return False
        return pod.metadata.deletion_timestamp is not None and pod.status.phase != "Succeeded"

    def _verdict(self, pod: Pod) -> PodFailureVerdict:
        return match_failure_policy(self.policy, pod)

    def _restarted_too_often(self, limit: int) -> bool:
        restarts = sum(
            container.restart_count
            for pod in self.pods
            if pod.status.phase in {"Running", "Pending"}
            for container in (*pod.status.init_container_statuses, *pod.status.container_statuses)
        )
        if not restarts or _restart_policy(self.job) != "OnFailure":
            return False
        return restarts >= max(limit, 1)

    def _condition(self, kind: str, reason: str, message: str) -> Condition:
        return Condition(
            type=kind,
            status="True",
            reason=reason,
            message=message,
            last_transition_time=self.timestamp,
        )

    def _requeue_within(self, seconds: float) -> None:
        if self.requeue_after is None or seconds < self.requeue_after:
            self.requeue_after = seconds


class _PodSpec(Struct):
    restart_policy: str = ""


def _restart_policy(job: Job) -> str:
    spec = decode_pod_template(job.spec.template).spec
    return msgspec.json.decode(spec, type=_PodSpec).restart_policy


def _final_condition(target: Condition) -> Condition:
    """The condition that follows when all pods are counted."""
    kind = "Complete" if target.type == "SuccessCriteriaMet" else "Failed"
    return msgspec.structs.replace(target, type=kind)


def _count_released(status: JobStatus, tracked_uids: set[str]) -> JobStatus:
    """Count pods that were recorded as uncounted and have been released."""
    uncounted = status.uncounted_terminated_pods or UncountedPods()
    succeeded = tuple(uid for uid in uncounted.succeeded if uid in tracked_uids)
    failed = tuple(uid for uid in uncounted.failed if uid in tracked_uids)
    return msgspec.structs.replace(
        status,
        succeeded=status.succeeded + len(uncounted.succeeded) - len(succeeded),
        failed=status.failed + len(uncounted.failed) - len(failed),
        uncounted_terminated_pods=UncountedPods(succeeded=succeeded, failed=failed),
    )
