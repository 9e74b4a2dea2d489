"""What a Job reads off its pods: whether they are counted, when they ended, how far they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import readiness, ready_since
from zonewise.api.values import times
from zonewise.api.values.numbers import natural
from zonewise.embedded.components.workloads.jobs.completion_indexes import index_of

TRACKING = "batch.kubernetes.io/job-tracking"
FAILURES = "batch.kubernetes.io/job-index-failure-count"
IGNORED = "batch.kubernetes.io/job-index-ignored-failure-count"
FIRST_PAUSE = 10.0
LONGEST_PAUSE = 600.0
PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}


@dataclass(frozen=True, slots=True)
class Backoff:
    """Failures since the last success, and when the last of them was."""

    failures: int = 0
    last: float = 0.0

    def after(self, succeeded: Sequence[Pod], failed: Sequence[Pod]) -> Backoff:
        """The record with pods that have finished since."""
        ends = sorted(map(finished_at, failed))
        if not succeeded:
            return Backoff(self.failures + len(ends), ends[-1]) if ends else self
        success = max(map(finished_at, succeeded))
        later = [end for end in ends if end > success]
        return Backoff(len(later), later[-1]) if later else Backoff()

    def remaining(self, now: float) -> float:
        """Seconds until the next pod may be made."""
        if not self.failures:
            return 0.0
        pause = min(FIRST_PAUSE * float(1 << min(self.failures - 1, 16)), LONGEST_PAUSE)
        return max(self.last + pause - now, 0.0)


def tracked(pod: Pod) -> bool:
    """Whether a pod has still to be counted."""
    return TRACKING in pod.metadata.finalizers


def finished_at(pod: Pod) -> float:
    """When a pod ended: its containers, else its readiness, else its deletion."""
    ends = [one.state.terminated for one in pod.status.container_statuses]
    moments = [end.finished_at for end in ends if end is not None and end.finished_at]
    if moments and len(moments) == len(ends):
        return max(times.parse(moment).timestamp() for moment in moments)
    ready = readiness(pod)
    if ready is not None and ready.status == "False" and ready.last_transition_time:
        return times.parse(ready.last_transition_time).timestamp()
    meta = pod.metadata
    if meta.deletion_timestamp:
        due = times.parse(meta.deletion_timestamp).timestamp()
        return due - (meta.deletion_grace_period_seconds or 0)
    return times.parse(meta.creation_timestamp).timestamp() if meta.creation_timestamp else 0.0


def order(pod: Pod) -> int:
    """By index; pods without one are after all others."""
    index = index_of(pod)
    return 1 << 31 if index is None else index


def number(pod: Pod, annotation: str) -> int:
    """The number in an annotation; 0 if there is none."""
    text = pod.metadata.annotations.get(annotation, "")
    return natural(text) or 0


def later(pod: Pod, than: Pod) -> bool:
    """Whether a failed pod of an index is later than another one."""

    def rank(one: Pod) -> tuple[int, float]:
        return number(one, FAILURES) + number(one, IGNORED), finished_at(one)

    return rank(pod) >= rank(than)


def progress(pod: Pod) -> tuple[bool, int, bool, float, int, float, str]:
    """How far a pod is: placed, phase, ready, for how long, restarts, age."""
    since = ready_since(pod)
    restarts = max((one.restart_count for one in pod.status.container_statuses), default=0)
    created = pod.metadata.creation_timestamp
    return (
        bool(pod.spec.node_name),
        PHASES.get(pod.status.phase, 0),
        since is not None,
        -times.parse(since).timestamp() if since else 0.0,
        -restarts,
        -times.parse(created).timestamp() if created else 0.0,
        pod.metadata.name,
    )
