"""What a Job reads from its pods: their indexes, whether they are counted, and how far they are.

Completion indexes are written as ``0,2-4,7,8``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import ready_condition, ready_since
from zonewise.api.values import times
from zonewise.api.values.numbers import parse_natural

COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
TRACKING_FINALIZER = "batch.kubernetes.io/job-tracking"
FAILURE_COUNT = "batch.kubernetes.io/job-index-failure-count"
IGNORED_FAILURE_COUNT = "batch.kubernetes.io/job-index-ignored-failure-count"
INITIAL_BACKOFF = 10.0
MAX_BACKOFF = 600.0
PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}


@dataclass(frozen=True, slots=True)
class Backoff:
    """Failures since the last success, and when the last of them was."""

    failures: int = 0
    last_failure: float = 0.0

    def after(self, succeeded: Sequence[Pod], failed: Sequence[Pod]) -> Backoff:
        """The record with pods that have finished since."""
        ends = sorted(map(finished_at, failed))
        if not succeeded:
            return Backoff(self.failures + len(ends), ends[-1]) if ends else self
        last_success = max(map(finished_at, succeeded))
        later = [end for end in ends if end > last_success]
        return Backoff(len(later), later[-1]) if later else Backoff()

    def remaining(self, now: float) -> float:
        """Seconds until the next pod may be created."""
        if not self.failures:
            return 0.0
        pause = min(INITIAL_BACKOFF * float(1 << min(self.failures - 1, 16)), MAX_BACKOFF)
        return max(self.last_failure + pause - now, 0.0)


def is_tracked(pod: Pod) -> bool:
    """Whether a pod has still to be counted."""
    return TRACKING_FINALIZER in pod.metadata.finalizers


def finished_at(pod: Pod) -> float:
    """When a pod ended: its containers, else its readiness, else its deletion."""
    ends = [container.state.terminated for container in pod.status.container_statuses]
    finish_times = [end.finished_at for end in ends if end is not None and end.finished_at]
    if finish_times and len(finish_times) == len(ends):
        return max(times.parse(time).timestamp() for time in finish_times)
    ready = ready_condition(pod)
    if ready is not None and ready.status == "False" and ready.last_transition_time:
        return times.parse(ready.last_transition_time).timestamp()
    meta = pod.metadata
    if meta.deletion_timestamp:
        due = times.parse(meta.deletion_timestamp).timestamp()
        return due - (meta.deletion_grace_period_seconds or 0)
    return times.parse(meta.creation_timestamp).timestamp() if meta.creation_timestamp else 0.0


def index_order(pod: Pod) -> int:
    """By index; pods without one are after all others."""
    index = index_of(pod)
    return 1 << 31 if index is None else index


def read_count(pod: Pod, annotation: str) -> int:
    """The number in an annotation; 0 if there is none."""
    text = pod.metadata.annotations.get(annotation, "")
    return parse_natural(text) or 0


def is_later(pod: Pod, than: Pod) -> bool:
    """Whether a failed pod of an index is later than another one."""

    def rank(pod: Pod) -> tuple[int, float]:
        failures = read_count(pod, FAILURE_COUNT) + read_count(pod, IGNORED_FAILURE_COUNT)
        return failures, finished_at(pod)

    return rank(pod) >= rank(than)


def progress_key(pod: Pod) -> tuple[bool, int, bool, float, int, float, str]:
    """How far a pod is: placed, phase, ready, for how long, restarts, age."""
    since = ready_since(pod)
    restarts = max((c.restart_count for c in pod.status.container_statuses), default=0)
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


def parse_indexes(text: str | None, completions: int) -> frozenset[int]:
    """The indexes a text names, as far as they are below ``completions``; nonsense is left out."""
    indexes: set[int] = set()
    for part in (text or "").split(","):
        first, _, last = part.partition("-")
        start, end = parse_natural(first), parse_natural(last or first)
        if start is not None and end is not None:
            indexes.update(range(start, min(end + 1, completions)))
    return frozenset(indexes)


def format_indexes(indexes: Iterable[int]) -> str:
    """The text of indexes; neighbours are joined from three on."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(
        str(first) if first == last else f"{first}{',' if last == first + 1 else '-'}{last}"
        for first, last in runs
    )


def index_of(pod: Pod) -> int | None:
    """A pod's index, if it has one."""
    text = pod.metadata.annotations.get(COMPLETION_INDEX, "")
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 19 else None
