"""The life of a pod as its kubelet sees it, without containers: pure functions of its status.

``read`` takes from a pod's status how far it is (a ``Life``). ``advance`` lets everything happen
that the stages say is due, and tells when the next thing is. All that matters is in the object, so
a process that starts anew goes on where the last one was.

Several stages that are due at once are one step to the outside: from bound to ready a pod with no
delays is written once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from zonewise.api import times
from zonewise.api.pod import Pod
from zonewise.api.podstate import FINISHED
from zonewise.embedded.kubelets.commands import DIGITS, outcome
from zonewise.embedded.kubelets.stages import Stage, Stages, State

EXIT_CODE = "zonewise.io/exit-code"
STEPS = 16
FORGIVEN = 600.0
SLACK = 0.001
"""Timers are not exact: what is due within this time is due now."""
TERMINATED = 143
"""What a container returns that ends on SIGTERM."""
DEADLINE = "DeadlineExceeded"


@dataclass(frozen=True, slots=True)
class Life:
    """How far a pod is. Times are seconds since the epoch, 0 for "not yet".

    ``since`` is when this state began, ``started`` when the containers last did, ``code``,
    ``previous`` and ``ended`` how and when the run before that ended, if there was one. ``reason``
    says why a finished pod did not end by itself, ``leaving`` when it was told to.
    """

    state: State
    since: float
    started: float = 0.0
    restarts: int = 0
    code: int | None = None
    previous: float = 0.0
    ended: float = 0.0
    reason: str = ""
    leaving: float = 0.0


class Step(NamedTuple):
    """Where a pod is, when to look again (infinite: when it changes), whether it is to go now."""

    life: Life
    again: float = inf
    remove: bool = False


def read(pod: Pod, now: float) -> Life:
    """How far a pod is, by what its status says."""
    status = pod.status
    since = _moment(status.start_time, now)
    if not status.container_statuses:
        return Life("finished" if status.phase in FINISHED else "bound", since)
    first = status.container_statuses[0]
    running = first.state.running
    last = first.state.terminated or first.last_state.terminated
    life = Life(
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
        return replace(life, state="finished", since=life.ended)
    if running:
        ready = all(one.ready for one in status.container_statuses)
        return replace(life, state="ready" if ready else "running", since=life.started)
    return replace(life, state="ended", since=life.ended) if last else life


def advance(pod: Pod, life: Life, stages: Stages, *, now: float, seed: int) -> Step:
    """Let happen what is due."""
    if pod.metadata.deletion_timestamp is not None:
        return _leave(pod, life, stages, now=now, seed=seed)
    deadline = pod.spec.active_deadline_seconds
    for _ in range(STEPS):
        if life.state == "finished":
            return Step(life)
        stage, due = _next(pod, life, stages, seed=seed)
        limit = inf
        if deadline is not None and life.started:
            limit = _moment(pod.status.start_time, life.started) + deadline
        if min(due, limit) > now + SLACK:
            return Step(life, min(due, limit))
        if limit <= due or stage is None:
            life = _finish(life, TERMINATED, now, reason=DEADLINE)
        else:
            life = _effect(pod, life, stage, now)
    return Step(life, now + 1.0)


def _next(pod: Pod, life: Life, stages: Stages, *, seed: int) -> tuple[Stage | None, float]:
    best, first = None, inf
    # Who ran long enough is forgiven how often it crashed before.
    restarts = 0 if life.ended - life.previous >= FORGIVEN else life.restarts
    for stage in stages[life.state]:
        delay = stage.delay(pod, seed=seed, restarts=restarts)
        since = life.since
        if stage.effect == "exit":
            # An end is counted from the beginning of the run, however often readiness changed.
            since = life.started
            if stage.annotation not in pod.metadata.annotations and stage.applies(pod):
                known = outcome(pod).seconds
                delay = delay if known is None else known
        if since + delay < first:
            best, first = stage, since + delay
    return best, first


def _effect(pod: Pod, life: Life, stage: Stage, now: float) -> Life:
    match stage.effect:
        case "start":
            restarts = life.restarts + (life.state == "ended")
            return replace(life, state="running", since=now, started=now, restarts=restarts)
        case "ready":
            return replace(life, state="ready", since=now)
        case "unready":
            return replace(life, state="running", since=now)
        case "exit":
            code = _exit_code(pod)
            policy = pod.spec.restart_policy
            if policy == "Never" or (policy == "OnFailure" and code == 0):
                return _finish(life, code, now)
            over = replace(life, state="ended", since=now, started=0.0)
            return replace(over, code=code, previous=life.started, ended=now)
        case "remove":
            raise AssertionError("only who leaves is removed")


def _leave(pod: Pod, life: Life, stages: Stages, *, now: float, seed: int) -> Step:
    meta = pod.metadata
    grace = meta.deletion_grace_period_seconds or 0
    if not life.leaving:
        asked = _moment(meta.deletion_timestamp, now) - grace
        # Times on the wire are cut to seconds: what was asked within this one was asked now.
        life = replace(life, leaving=asked if asked < now - 1.0 else now)
    if life.started and life.state != "finished":
        delays = [
            stage.delay(pod, seed=seed, restarts=life.restarts) for stage in stages["terminating"]
        ]
        due = life.leaving + min([grace, *delays])
        if due > now + SLACK:
            return Step(life, due)
        life = _finish(life, TERMINATED, now)
    return Step(life, remove=True)


def _finish(life: Life, code: int, now: float, *, reason: str = "") -> Life:
    over = replace(life, state="finished", since=now, started=0.0, code=code)
    return replace(over, previous=life.started, ended=now, reason=reason)


def _exit_code(pod: Pod) -> int:
    given = pod.metadata.annotations.get(EXIT_CODE, "")
    readable = given.isdecimal() and len(given) < DIGITS
    return int(given) % 256 if readable else outcome(pod).code


def _moment(text: str | None, otherwise: float) -> float:
    return times.parse(text).timestamp() if text else otherwise
