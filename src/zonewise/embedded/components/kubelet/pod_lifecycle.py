"""The life of a pod as its kubelet sees it, without containers: pure functions of its status.

``read`` takes from a pod's status how far it is (a ``PodProgress``). ``advance`` applies every
stage that is due, and returns when the next one is. All state is in the object, so a process that
restarts continues where the last one was.

Several stages that are due at once are one step to the outside: from bound to ready a pod with no
delays is written once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import FINISHED
from zonewise.api.values import times
from zonewise.embedded.components.kubelet.commands import DIGITS, outcome
from zonewise.embedded.components.kubelet.stages import PodState, Stage, Stages

EXIT_CODE = "zonewise.io/exit-code"
STEPS = 16
FORGIVEN = 600.0
SLACK = 0.001
"""Timers are not exact: what is due within this time is due now."""
TERMINATED = 143
"""What a container returns that ends on SIGTERM."""
LOST = 137
"""The exit code of a container that never started and cannot any more."""
DEADLINE = "DeadlineExceeded"


@dataclass(frozen=True, slots=True)
class PodProgress:
    """How far a pod is. Times are seconds since the epoch, 0 for "not yet".

    ``since`` is when this state began, ``started`` when the containers last did, ``code``,
    ``previous`` and ``ended`` how and when the run before that ended, if there was one. ``reason``
    says why a finished pod did not end by itself, ``leaving`` when it was deleted. A pod that was
    deleted before its containers ever started is finished with ``LOST`` and no ``previous``.
    """

    state: PodState
    since: float
    started: float = 0.0
    restarts: int = 0
    code: int | None = None
    previous: float = 0.0
    ended: float = 0.0
    reason: str = ""
    leaving: float = 0.0


class LifecycleStep(NamedTuple):
    """Where a pod is, when to look again (infinite: when it changes), whether it is to go now."""

    progress: PodProgress
    again: float = inf
    remove: bool = False


def read(pod: Pod, now: float) -> PodProgress:
    """How far a pod is, by what its status says."""
    status = pod.status
    since = _moment(status.start_time, now)
    if not status.container_statuses:
        return PodProgress("finished" if status.phase in FINISHED else "bound", since)
    first = status.container_statuses[0]
    running = first.state.running
    last = first.state.terminated or first.last_state.terminated
    progress = PodProgress(
        "bound",
        since,
        started=_moment(running.started_at, now) if running else 0.0,
        restarts=first.restart_count,
        code=last.exit_code if last else None,
        previous=_moment(last.started_at, now) if last else 0.0,
        ended=_moment(last.finished_at, now) if last else 0.0,
        reason=status.reason,
    )
    if status.phase in FINISHED:
        return replace(progress, state="finished", since=progress.ended)
    if running:
        ready = all(one.ready for one in status.container_statuses)
        return replace(progress, state="ready" if ready else "running", since=progress.started)
    return replace(progress, state="ended", since=progress.ended) if last else progress


def advance(
    pod: Pod, progress: PodProgress, stages: Stages, *, now: float, seed: int
) -> LifecycleStep:
    """Let happen what is due."""
    progress = _not_ahead(progress, now)
    if pod.metadata.deletion_timestamp is not None:
        return _leave(pod, progress, stages, now=now, seed=seed)
    deadline = pod.spec.active_deadline_seconds
    for _ in range(STEPS):
        if progress.state == "finished":
            return LifecycleStep(progress)
        stage, due = _next(pod, progress, stages, seed=seed)
        limit = inf
        if deadline is not None and progress.started:
            limit = min(_moment(pod.status.start_time, now), progress.started) + deadline
        if min(due, limit) > now + SLACK:
            return LifecycleStep(progress, min(due, limit))
        if limit <= due or stage is None:
            progress = _finish(progress, TERMINATED, now, reason=DEADLINE)
        else:
            progress = _effect(pod, progress, stage, now)
    return LifecycleStep(progress, now + 1.0)


def _next(
    pod: Pod, progress: PodProgress, stages: Stages, *, seed: int
) -> tuple[Stage | None, float]:
    best, first = None, inf
    # A container that ran long enough has its backoff reset.
    restarts = 0 if progress.ended - progress.previous >= FORGIVEN else progress.restarts
    for stage in stages[progress.state]:
        delay = stage.delay(pod, seed=seed, restarts=restarts)
        since = progress.since
        if stage.effect == "exit":
            # An end is counted from the beginning of the run, however often readiness changed.
            since = progress.started
            if stage.annotation not in pod.metadata.annotations and stage.applies(pod):
                known = outcome(pod).seconds
                delay = delay if known is None else known
        if since + delay < first:
            best, first = stage, since + delay
    return best, first


def _effect(pod: Pod, progress: PodProgress, stage: Stage, now: float) -> PodProgress:
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
            over = replace(progress, state="ended", since=now, started=0.0)
            return replace(over, code=code, previous=progress.started, ended=now)
        case "remove":
            raise AssertionError("only a terminating pod is removed")


def _leave(
    pod: Pod, progress: PodProgress, stages: Stages, *, now: float, seed: int
) -> LifecycleStep:
    meta = pod.metadata
    grace = meta.deletion_grace_period_seconds or 0
    if not progress.leaving:
        asked = _moment(meta.deletion_timestamp, now) - grace
        # Times on the wire are cut to seconds: a request within this one counts as now.
        progress = replace(progress, leaving=asked if asked < now - 1.0 else now)
    if progress.started and progress.state != "finished":
        delays = [
            stage.delay(pod, seed=seed, restarts=progress.restarts)
            for stage in stages["terminating"]
        ]
        due = progress.leaving + min([grace, *delays])
        if due > now + SLACK:
            return LifecycleStep(progress, due)
        progress = _finish(progress, TERMINATED, now)
    elif progress.state == "ended":
        progress = replace(progress, state="finished", since=now)
    elif progress.state == "bound":
        progress = _finish(progress, LOST, now)
    return LifecycleStep(progress, remove=True)


def _finish(progress: PodProgress, code: int, now: float, *, reason: str = "") -> PodProgress:
    over = replace(progress, state="finished", since=now, started=0.0, code=code)
    return replace(over, previous=progress.started, ended=now, reason=reason)


def _exit_code(pod: Pod) -> int:
    given = pod.metadata.annotations.get(EXIT_CODE, "")
    readable = given.isdecimal() and len(given) < DIGITS
    return int(given) % 256 if readable else outcome(pod).code


def _not_ahead(progress: PodProgress, now: float) -> PodProgress:
    """A life in which nothing began later than now, as a clock that was set back would have it."""
    if max(progress.since, progress.started, progress.leaving) <= now:
        return progress
    return replace(
        progress,
        since=min(progress.since, now),
        started=min(progress.started, now),
        leaving=min(progress.leaving, now),
    )


def _moment(text: str | None, otherwise: float) -> float:
    return times.parse(text).timestamp() if text else otherwise
