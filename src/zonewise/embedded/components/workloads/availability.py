"""When a pod counts as available: Ready, and for long enough."""

from __future__ import annotations

from collections.abc import Iterable

from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import ready_since
from zonewise.api.values import times


def available_in(pod: Pod, min_ready: int, now: float) -> float | None:
    """Seconds until a pod is available, 0.0 if it is; None while it is not Ready."""
    since = ready_since(pod)
    if since is None:
        return None
    if min_ready <= 0:
        return 0.0
    return max(times.parse(since).timestamp() + min_ready - now, 0.0) if since else None


def is_available(pod: Pod, min_ready: int, now: float) -> bool:
    """Whether a pod is available now."""
    return available_in(pod, min_ready, now) == 0.0


def next_available(pods: Iterable[Pod], min_ready: int, now: float) -> float | None:
    """Seconds until the next Ready pod has been Ready for long enough."""
    if min_ready <= 0:
        return None
    waits = (available_in(pod, min_ready, now) for pod in pods)
    return min((wait for wait in waits if wait), default=None)
