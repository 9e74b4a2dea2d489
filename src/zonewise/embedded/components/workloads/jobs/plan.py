"""What is to be done about a Job now. Pure.

A finished pod must be counted exactly once, whatever crashes in between. Three steps do that, each
of which may be the last one before a restart: the uid of a finished pod is written in the status as
*uncounted*; its tracking finalizer is removed, so that it can be deleted; the uid leaves the status
and the counter grows. A pod that still has the finalizer and is not in the status was never
processed; a uid in the status whose pod has no finalizer is to be counted. ``JobPlan.status`` is
the first step, ``JobPlan.release`` the second, ``settled`` the third. Pods of an Indexed Job that
succeed need no uid: their index in the status says the same.

A Job ends in two steps, too: ``SuccessCriteriaMet`` or ``FailureTarget`` says that it is decided,
and its pods are deleted; ``Complete`` or ``Failed`` follows when none is left and all are counted.

After failures new pods wait: 10 s, then twice as long each time up to 10 minutes, from the last
failure; a success ends that. Only that is in memory: after a restart the wait is shorter once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from zonewise.api.meta import Condition
from zonewise.api.objects.apps import opened
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import active, ready
from zonewise.api.objects.pod_state import finished as ended
from zonewise.api.struct import Struct
from zonewise.api.values import times
from zonewise.embedded.components.workloads.jobs import completion_indexes
from zonewise.embedded.components.workloads.jobs.completion_indexes import index_of
from zonewise.embedded.components.workloads.jobs.pods import (
    FAILURES,
    IGNORED,
    Backoff,
    finished_at,
    later,
    number,
    order,
    progress,
    tracked,
)
from zonewise.embedded.components.workloads.jobs.policies import (
    PodFailureVerdict,
    enough,
    judged,
)
from zonewise.embedded.components.workloads.jobs.views import Job, JobStatus, UncountedPods

MOST_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Told:
    """An event about the Job."""

    reason: str
    note: str
    type: Literal["Normal", "Warning"] = "Normal"


@dataclass(frozen=True, slots=True)
class Birth:
    """A pod to be made; for an Indexed Job, which, and what is known of its failures."""

    index: int | None = None
    annotations: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """What to do, in this order: take down or make pods, write the status, release, settle."""

    doom: tuple[Pod, ...] = ()
    """Running pods of a Job that is decided: delete them; they are still to be counted."""
    shed: tuple[Pod, ...] = ()
    """Surplus running pods: release, then delete them; they are not counted."""
    create: tuple[Birth, ...] = ()
    status: JobStatus
    release: tuple[Pod, ...] = ()
    ending: Condition | None = None
    """The last condition, once everything is counted and deleted."""
    backoff: Backoff
    again: float | None = None
    events: tuple[Told, ...] = ()


def finished(job: Job) -> Condition | None:
    """The condition of a finished Job."""
    return next(
        (
            one
            for one in job.status.conditions
            if one.type in {"Complete", "Failed"} and one.status == "True"
        ),
        None,
    )


def plan(job: Job, pods: Iterable[Pod], *, backoff: Backoff, now: float) -> JobPlan:
    """What to do about a Job that is not over yet; ``pods`` are all of its own."""
    return _Pass(job, pods, backoff, now).plan()


def settled(plan: JobPlan, status: JobStatus, held: Iterable[Pod], *, now: str) -> JobStatus:
    """The status after finalizers were removed; ``held`` are the pods that still have theirs."""
    status = _counted(status, {pod.metadata.uid for pod in held})
    uncounted = status.uncounted_terminated_pods or UncountedPods()
    end = plan.ending
    if end is None or uncounted.succeeded or uncounted.failed or status.terminating:
        return status
    end = msgspec.structs.replace(end, last_transition_time=now)
    conditions = (*(one for one in status.conditions if one.type != end.type), end)
    done = now if end.type == "Complete" else status.completion_time
    return msgspec.structs.replace(status, conditions=conditions, completion_time=done)


class _Pass:
    """One look at a Job."""

    def __init__(self, job: Job, pods: Iterable[Pod], backoff: Backoff, now: float) -> None:
        self.job = job
        self.spec = job.spec
        self.now = now
        self.text = times.format_time(times.from_epoch(now))
        self.indexed = job.spec.completion_mode == "Indexed"
        self.completions = job.spec.completions
        self.policy = job.spec.pod_failure_policy
        self.failed_only = self.policy is not None or job.spec.pod_replacement_policy == "Failed"
        self.suspended = bool(job.spec.suspend)
        self.pods = sorted(pods, key=lambda pod: (order(pod), pod.metadata.name))
        self.active = [pod for pod in self.pods if active(pod)]
        self.leaving = [
            pod
            for pod in self.pods
            if not ended(pod) and pod.metadata.deletion_timestamp is not None
        ]
        # What an earlier pass recorded and whose pods have been released since is counted now.
        held = {pod.metadata.uid for pod in self.pods if tracked(pod)}
        self.status = _counted(job.status, held)
        uncounted = self.status.uncounted_terminated_pods or UncountedPods()
        self.noted_good = list(uncounted.succeeded)
        self.noted_bad = list(uncounted.failed)
        new_good = self._new(self.noted_good, lambda pod: pod.status.phase == "Succeeded")
        new_bad = self._new(self.noted_bad, self._failed)
        self.good = self.status.succeeded + len(new_good) + len(self.noted_good)
        counting = sum(self._verdict(pod).action != "Ignore" for pod in new_bad)
        self.bad = self.status.failed + counting + len(self.noted_bad)
        self.backoff = backoff.after(new_good, new_bad)
        self.before: frozenset[int] = frozenset()
        self.good_indexes: frozenset[int] = frozenset()
        self.bad_indexes: frozenset[int] | None = None
        self.delayed: dict[int, Pod] = {}
        if self.indexed:
            self._count_indexes()
        self.start = self.status.start_time
        if self.start is None and not self.suspended:
            self.start = self.text
        self.events: list[Told] = []
        self.again: float | None = None

    def plan(self) -> JobPlan:
        """Decide."""
        target = self._decided()
        conditions = self.status.conditions
        doom: tuple[Pod, ...] = ()
        shed: tuple[Pod, ...] = ()
        create: tuple[Birth, ...] = ()
        if target is not None:
            doom = tuple(self.active)
        else:
            if self.job.metadata.deletion_timestamp is None:
                shed, create = self._manage()
            left = len(self.active) - len(shed) + len(create)
            if left == 0 and self._complete():
                note = "Reached expected number of succeeded pods"
                target = self._condition("SuccessCriteriaMet", "CompletionsReached", note)
            elif self.job.metadata.deletion_timestamp is None:
                conditions = self._suspension(conditions)
        gone = {pod.metadata.uid for pod in (*doom, *shed)}
        staying = [pod for pod in self.active if pod.metadata.uid not in gone]
        release = self._count(target)
        if target is not None and all(one.type != target.type for one in conditions):
            conditions = (*conditions, target)
        status = msgspec.structs.replace(
            self.status,
            active=len(staying) + len(create),
            ready=sum(map(ready, staying)),
            terminating=len(self.leaving) + len(gone),
            succeeded=len(self.good_indexes) if self.indexed else self.status.succeeded,
            start_time=self.start,
            completed_indexes=completion_indexes.text_of(self.good_indexes),
            failed_indexes=(
                None if self.bad_indexes is None else completion_indexes.text_of(self.bad_indexes)
            ),
            uncounted_terminated_pods=UncountedPods(
                succeeded=tuple(self.noted_good), failed=tuple(self.noted_bad)
            ),
            conditions=conditions,
        )
        return JobPlan(
            doom=doom,
            shed=shed,
            create=create,
            status=status,
            release=tuple(release),
            ending=_ending(target) if target is not None else None,
            backoff=self.backoff,
            again=self.again,
            events=tuple(self.events),
        )

    def _decided(self) -> Condition | None:
        """The condition that says how the Job ends, if that is decided."""
        for kind in ("SuccessCriteriaMet", "FailureTarget"):
            for one in self.status.conditions:
                if one.type == kind and one.status == "True":
                    return one
        if self.policy is not None:
            for pod in self.pods:
                if self._failed(pod) and (message := self._verdict(pod).message):
                    return self._failure("PodFailurePolicy", message)
        limit = 6 if self.spec.backoff_limit is None else self.spec.backoff_limit
        if self.bad > limit or self._restarted_too_often(limit):
            return self._failure(
                "BackoffLimitExceeded", "Job has reached the specified backoff limit"
            )
        deadline = self.spec.active_deadline_seconds
        if deadline is not None and self.start is not None and not self.suspended:
            left = times.parse(self.start).timestamp() + deadline - self.now
            if left <= 0:
                note = "Job was active longer than specified deadline"
                return self._failure("DeadlineExceeded", note)
            self._within(left)
        if self.bad_indexes is not None:
            most, wrong = self.spec.max_failed_indexes, len(self.bad_indexes)
            if most is not None and wrong > most:
                note = "Job has exceeded the specified maximal number of failed indexes"
                return self._failure("MaxFailedIndexesExceeded", note)
            if wrong and wrong + len(self.good_indexes) >= (self.completions or 0):
                return self._failure("FailedIndexes", "Job has failed indexes")
        if self.indexed:
            rule = enough(self.spec.success_policy, self.completions or 0, self.good_indexes)
            if rule is not None:
                return self._condition("SuccessCriteriaMet", "SuccessPolicy", rule)
        return None

    def _failure(self, reason: str, note: str) -> Condition:
        return self._condition("FailureTarget", reason, note)

    def _complete(self) -> bool:
        good = len(self.good_indexes) if self.indexed else self.good
        return good > 0 if self.completions is None else good >= self.completions

    def _manage(self) -> tuple[tuple[Pod, ...], tuple[Birth, ...]]:
        """Which pods are too many, or else which are missing."""
        active = len(self.active)
        parallelism = 1 if self.spec.parallelism is None else self.spec.parallelism
        good = len(self.good_indexes) if self.indexed else self.good
        if self.suspended:
            wanted = 0
        elif self.completions is None:
            wanted = active if good else parallelism
        else:
            wanted = max(min(self.completions - good, parallelism), 0)
        shed = self._surplus(max(active - wanted, 0))
        if shed or self.suspended:
            return shed[:MOST_AT_ONCE], ()
        missing = wanted - active - (len(self.leaving) if self.failed_only else 0)
        if missing <= 0:
            return (), ()
        missing = min(missing, MOST_AT_ONCE)
        if self.bad_indexes is None and (pause := self.backoff.remaining(self.now)) > 0:
            self._within(pause)
            return (), ()
        if not self.indexed:
            return (), (Birth(),) * missing
        return (), self._births(missing)

    def _surplus(self, least: int) -> tuple[Pod, ...]:
        """Pods to delete: whose index is wrong or duplicate, then those least far."""
        surplus: list[Pod] = []
        kept = sorted(self.active, key=progress)
        if self.indexed:
            seen: set[int] = set()
            for pod in reversed(kept):
                index = index_of(pod)
                if index is None or index >= (self.completions or 0) or index in seen:
                    surplus.append(pod)
                else:
                    seen.add(index)
            kept = [pod for pod in kept if pod not in surplus]
        return (*surplus, *kept[: max(least - len(surplus), 0)])

    def _births(self, count: int) -> tuple[Birth, ...]:
        """The first indexes without a pod; those that failed wait for their turn."""
        busy = {index_of(pod) for pod in self.active} | self.good_indexes
        if self.failed_only:
            busy |= {index_of(pod) for pod in self.leaving}
        busy |= self.bad_indexes or frozenset()
        free = [index for index in range(self.completions or 0) if index not in busy][:count]
        if self.bad_indexes is None:
            return tuple(Birth(index) for index in free)
        births: list[Birth] = []
        pauses: list[float] = []
        for index in free:
            last = self.delayed.get(index)
            pause = 0.0
            if last is not None:
                record = Backoff(number(last, FAILURES) + number(last, IGNORED) + 1)
                pause = Backoff(record.failures, finished_at(last)).remaining(self.now)
            if pause > 0:
                pauses.append(pause)
            else:
                births.append(Birth(index, self._failure_counts(last)))
        if pauses:
            self._within(min(pauses))
        return tuple(births)

    def _failure_counts(self, last: Pod | None) -> dict[str, str]:
        """How often an index failed, for the pod that takes over from the last one."""
        if last is None:
            return {FAILURES: "0"}
        ignored = self._verdict(last).action == "Ignore"
        counts = {FAILURES: str(number(last, FAILURES) + (not ignored))}
        if overlooked := number(last, IGNORED) + ignored:
            counts[IGNORED] = str(overlooked)
        return counts

    def _suspension(self, conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
        old = next((one for one in conditions if one.type == "Suspended"), None)
        if self.suspended:
            new = self._condition("Suspended", "JobSuspended", "Job suspended")
        elif old is None:
            return conditions
        else:
            new = msgspec.structs.replace(
                self._condition("Suspended", "JobResumed", "Job resumed"), status="False"
            )
        if old is not None and (old.status, old.reason) == (new.status, new.reason):
            return conditions
        if self.suspended:
            self.start = None
            self.events.append(Told("Suspended", "Job suspended"))
        else:
            self.start = self.text
            self.events.append(Told("Resumed", "Job resumed"))
        if old is None:
            return (*conditions, new)
        return tuple(new if one is old else one for one in conditions)

    def _count(self, target: Condition | None) -> list[Pod]:
        """Note finished pods; gives those that may be released once that is written."""
        release: list[Pod] = []
        over = target is not None or self.job.metadata.deletion_timestamp is not None
        fresh = 0
        for pod in self.pods:
            if len(self.noted_good) + len(self.noted_bad) + fresh >= MOST_AT_ONCE:
                break
            uid, index = pod.metadata.uid, index_of(pod)
            failed = self._failed(pod)
            if not tracked(pod) or not (over or pod.status.phase == "Succeeded" or failed):
                continue
            if not over and failed and index is not None and self.delayed.get(index) is pod:
                continue
            release.append(pod)
            if self.indexed and (index is None or index >= (self.completions or 0)):
                continue
            if pod.status.phase == "Succeeded" and uid not in self.noted_bad:
                if self.indexed:
                    fresh += index not in self.before
                elif uid not in self.noted_good:
                    self.noted_good.append(uid)
            elif (
                (failed or (target is not None and target.type == "FailureTarget"))
                and uid not in self.noted_bad
                and self._verdict(pod).action != "Ignore"
            ):
                self.noted_bad.append(uid)
        return release

    def _count_indexes(self) -> None:
        completions = self.completions or 0
        self.before = completion_indexes.parse(self.status.completed_indexes, completions)
        fresh = {
            index_of(pod) for pod in self.pods if pod.status.phase == "Succeeded" and tracked(pod)
        }
        self.good_indexes = self.before | {n for n in fresh if n is not None and n < completions}
        limit = self.spec.backoff_limit_per_index
        if limit is None:
            return
        failed: set[int] = set()
        for pod in self.pods:
            index = index_of(pod)
            if index is None or index >= completions or not tracked(pod) or not self._failed(pod):
                continue
            action = self._verdict(pod).action
            if action == "FailIndex" or (action != "Ignore" and number(pod, FAILURES) >= limit):
                failed.add(index)
        old = completion_indexes.parse(self.status.failed_indexes, completions)
        self.bad_indexes = old | failed
        # The last failure of an index keeps its pod until the next pod carries the count on.
        busy = {index_of(pod) for pod in self.active} | self.good_indexes | self.bad_indexes
        for pod in self.pods:
            index = index_of(pod)
            if index is None or index >= completions or index in busy:
                continue
            if tracked(pod) and self._failed(pod):
                last = self.delayed.get(index)
                if last is None or later(pod, last):
                    self.delayed[index] = pod

    def _new(self, noted: Sequence[str], fits: Callable[[Pod], bool]) -> list[Pod]:
        """Finished pods that are in no count yet."""
        found = [
            pod for pod in self.pods if tracked(pod) and pod.metadata.uid not in noted and fits(pod)
        ]
        if not self.indexed:
            return found
        return [pod for pod in found if order(pod) < (self.completions or 0)]

    def _failed(self, pod: Pod) -> bool:
        """Failed, or on its way out before it could finish."""
        if pod.status.phase == "Failed":
            return True
        if self.failed_only:
            return False
        return pod.metadata.deletion_timestamp is not None and pod.status.phase != "Succeeded"

    def _verdict(self, pod: Pod) -> PodFailureVerdict:
        return judged(self.policy, pod)

    def _restarted_too_often(self, limit: int) -> bool:
        restarts = sum(
            one.restart_count
            for pod in self.pods
            if pod.status.phase in {"Running", "Pending"}
            for one in (*pod.status.init_container_statuses, *pod.status.container_statuses)
        )
        if not restarts or _restart_policy(self.job) != "OnFailure":
            return False
        return restarts >= max(limit, 1)

    def _condition(self, kind: str, reason: str, note: str) -> Condition:
        return Condition(
            type=kind,
            status="True",
            reason=reason,
            message=note,
            last_transition_time=self.text,
        )

    def _within(self, seconds: float) -> None:
        self.again = seconds if self.again is None else min(self.again, seconds)


class _PodSpec(Struct):
    restart_policy: str = ""


def _restart_policy(job: Job) -> str:
    return msgspec.json.decode(opened(job.spec.template).spec, type=_PodSpec).restart_policy


def _ending(target: Condition) -> Condition:
    """The condition that follows when everything is counted."""
    kind = "Complete" if target.type == "SuccessCriteriaMet" else "Failed"
    return msgspec.structs.replace(target, type=kind)


def _counted(status: JobStatus, held: set[str]) -> JobStatus:
    """Count what was noted and is held no more."""
    noted = status.uncounted_terminated_pods or UncountedPods()
    good = tuple(uid for uid in noted.succeeded if uid in held)
    bad = tuple(uid for uid in noted.failed if uid in held)
    return msgspec.structs.replace(
        status,
        succeeded=status.succeeded + len(noted.succeeded) - len(good),
        failed=status.failed + len(noted.failed) - len(bad),
        uncounted_terminated_pods=UncountedPods(succeeded=good, failed=bad),
    )
