"""How often a workload is synced.

A sync of a workload costs time in proportion to its pods, and may write a status. While five
hundred pods become ready one after the other, five hundred syncs would each count five hundred
pods and write a status. So the next sync of a workload waits, longer the larger the workload is,
and handles all changes since. A small workload waits ``MIN_INTERVAL``, none longer than
``MAX_INTERVAL``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from zonewise.runtime.process.clock import elapsed

K = TypeVar("K", bound=Hashable)

MIN_INTERVAL = 0.02
INTERVAL_PER_POD = 0.002
MAX_INTERVAL = 1.0


class Pacing(Generic[K]):
    """When each workload may be synced next."""

    def __init__(self, clock: Callable[[], float] = elapsed) -> None:
        self._clock = clock
        self._next_sync: dict[K, float] = {}

    def wait(self, key: K) -> float:
        """Seconds until the next sync may begin; 0.0 or less is now."""
        due = self._next_sync.get(key)
        return 0.0 if due is None else due - self._clock()

    def synced(self, key: K, pods: int) -> None:
        """A sync over so many pods has ended."""
        interval = min(MAX_INTERVAL, MIN_INTERVAL + INTERVAL_PER_POD * pods)
        self._next_sync[key] = self._clock() + interval

    def forget(self, key: K) -> None:
        """The workload is deleted."""
        self._next_sync.pop(key, None)
