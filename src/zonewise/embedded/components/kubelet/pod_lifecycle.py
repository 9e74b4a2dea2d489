"""The lifecycle of a pod as its kubelet sees it, without containers: pure functions of its status.

``read_progress`` reads from a pod's status how far it is (a ``PodProgress``). ``advance`` applies
every stage that is due, and returns when the next one is. All state is in the object, so a process
that restarts continues where the last one was.

Several stages that are due at once are written as one: from bound to ready a pod with no delays is
written once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import FINISHED_PHASES
from zonewise.api.values import times
from zonewise.embedded.components.kubelet.commands import MAX_DIGITS, predict_outcome
from zonewise.embedded.components.kubelet.stages import PodState, Stage, Stages

EXIT_CODE = "zonewise.io/exit-code"
MAX_STEPS = 16
BACKOFF_RESET_SECONDS = 600.0
SLACK = 0.001
"""Timers are not exact: what is due within this time is due now."""
SIGTERM_EXIT_CODE = 143
"""The exit code of a container that ends on SIGTERM."""
LOST_EXIT_CODE = 137
"""The exit code of a container that never started and cannot any more."""
DEADLINE_EXCEEDED = "DeadlineExceeded"


@dataclass(frozen=True, slots=True)
class PodProgress:
    """How far a pod is. Times are seconds since the epoch, 0 for "not yet".

    ``since`` is when this state began, ``started`` when the containers that run now started.
    ``exit_code``, ``last_started`` and ``last_ended`` are of the last run that ended. ``reason``
    says why a finished pod did not end by itself, ``deleted_at`` when it was deleted. A pod that
    was deleted before its containers ever started is finished with ``LOST_EXIT_CODE`` and has no
    ``last_started``.
    """

    state: PodState
    since: float
    started: float = 0.0
    restarts: int = 0
    exit_code: int | None = None
    last_started: float = 0.0
    last_ended: float = 0.0
    reason: str = ""
    deleted_at: float = 0.0


class LifecycleStep(NamedTuple):
    """A pod's progress, when the next stage is due (infinite: none), whether to remove it now."""

    progress: PodProgress
    next_at: float = inf
    remove: bool = False


def read_progress(pod: Pod, now: float) -> PodProgress:
    """How far a pod is, according to its status."""
    status = pod.status
    since = _parse_time(status.start_time, now)
    if not status.container_statuses:
        return PodProgress("finished" if status.phase in FINISHED_PHASES else "bound", since)
    first = status.container_statuses[0]
    running = first.state.running
    last = first.state.terminated or first.last_state.terminated
    progress = PodProgress(
        "bound",
        since,
        started=_parse_time(running.started_at, now) if running else 0.0,
        restarts=first.restart_count,
        exit_code=last.exit_code if last else None,
        last_started=_parse_time(last.started_at, now) if last else 0.0,
        last_ended=_parse_time(last.finished_at, now) if last else 0.0,
        reason=status.reason,
    )
    if status.phase in FINISHED_PHASES:
        return replace(progress, state="finished", since=progress.last_ended)
    if running:
        ready = all(container.ready for container in status.container_statuses)
        return replace(progress, state="ready" if ready else "running", since=progress.started)
    return replace(progress, state="ended", since=progress.last_ended) if last else progress


def advance(
    pod: Pod, progress: PodProgress, stages: Stages, *, now: float, seed: int
) -> LifecycleStep:
    """Apply the stages that are due."""
    progress = _clamp_to_now(progress, now)
    if pod.metadata.deletion_timestamp is not None:
        return _terminate(pod, progress, stages, now=now, seed=seed)
    deadline = pod.spec.active_deadline_seconds
    for _ in range(MAX_STEPS):
        if progress.state == "finished":
            return LifecycleStep(progress)
        stage, due = _next_stage(pod, progress, stages, seed=seed)
        limit = inf
        if deadline is not None and progress.started:
            limit = min(_parse_time(pod.status.start_time, now), progress.started) + deadline
        if min(due, limit) > now + SLACK:
            return LifecycleStep(progress, min(due, limit))
        if limit <= due or stage is None:
            progress = _finish(progress, SIGTERM_EXIT_CODE, now, reason=DEADLINE_EXCEEDED)
        else:
            progress = _apply_stage(pod, progress, stage, now)
    return LifecycleStep(progress, now + 1.0)


def _next_stage(
    pod: Pod, progress: PodProgress, stages: Stages, *, seed: int
) -> tuple[Stage | None, float]:
    next_stage, next_due = None, inf
    # A container that ran long enough has its backoff reset.
    ran = progress.last_ended - progress.last_started
    restarts = 0 if ran >= BACKOFF_RESET_SECONDS else progress.restarts
    for stage in stages[progress.state]:
        delay = stage.delay(pod, seed=seed, restarts=restarts)
        since = progress.since
        if stage.effect == "exit":
            # An exit is due a time after the start, however often readiness changed since.
            since = progress.started
            if stage.annotation not in pod.metadata.annotations and stage.applies(pod):
                seconds = predict_outcome(pod).seconds
                delay = delay if seconds is None else seconds
        if since + delay < next_due:
            next_stage, next_due = stage, since + delay
    return next_stage, next_due


def _apply_stage(pod: Pod, progress: PodProgress, stage: Stage, now: float) -> PodProgress:
    match stage.effect:
        case "start":
            restarts = progress.restarts + (progress.state == "ended")
            return replace(progress, state="running", since=now, started=now, restarts=restarts)
        case "ready":
            return replace(progress, state="ready", since=now)
        case "unready":
            return replace(progress, state="running", since=now)
        case "exit":
            code = _exit_code(pod)
            policy = pod.spec.restart_policy
            if policy == "Never" or (policy == "OnFailure" and code == 0):
                return _finish(progress, code, now)
            ended = replace(progress, state="ended", since=now, started=0.0)
            return replace(ended, exit_code=code, last_started=progress.started, last_ended=now)
        case "remove":
            raise AssertionError("only a terminating pod is removed")


def _terminate(
    pod: Pod, progress: PodProgress, stages: Stages, *, now: float, seed: int
) -> LifecycleStep:
    meta = pod.metadata
    grace = meta.deletion_grace_period_seconds or 0
    if not progress.deleted_at:
        requested = _parse_time(meta.deletion_timestamp, now) - grace
        # Times on the wire are truncated to seconds: a request within this second counts as now.
        progress = replace(progress, deleted_at=requested if requested < now - 1.0 else now)
    if progress.started and progress.state != "finished":
        restarts = progress.restarts
        delays = [s.delay(pod, seed=seed, restarts=restarts) for s in stages["terminating"]]
        due = progress.deleted_at + min([grace, *delays])
        if due > now + SLACK:
            return LifecycleStep(progress, due)
        progress = _finish(progress, SIGTERM_EXIT_CODE, now)
    elif progress.state == "ended":
        progress = replace(progress, state="finished", since=now)
    elif progress.state == "bound":
        progress = _finish(progress, LOST_EXIT_CODE, now)
    return LifecycleStep(progress, remove=True)


def _finish(progress: PodProgress, code: int, now: float, *, reason: str = "") -> PodProgress:
    finished = replace(progress, state="finished", since=now, started=0.0, exit_code=code)
    return replace(finished, last_started=progress.started, last_ended=now, reason=reason)


def _exit_code(pod: Pod) -> int:
    annotation = pod.metadata.annotations.get(EXIT_CODE, "")
    valid = annotation.isdecimal() and len(annotation) < MAX_DIGITS
    return int(annotation) % 256 if valid else predict_outcome(pod).code


def _clamp_to_now(progress: PodProgress, now: float) -> PodProgress:
    """The same progress without times in the future, which a clock that was set back causes."""
    if max(progress.since, progress.started, progress.deleted_at) <= now:
        return progress
    return replace(
        progress,
        since=min(progress.since, now),
        started=min(progress.started, now),
        deleted_at=min(progress.deleted_at, now),
    )


def _parse_time(text: str | None, default: float) -> float:
    return times.parse(text).timestamp() if text else default
