"""How often a workload is looked at as a whole.

A pass over a workload costs time in proportion to its pods, and may write a status. While five
hundred pods become ready one after the other, five hundred passes would each count five hundred
pods and write one more. So after a pass a workload rests, longer the larger it is; what happens
meanwhile is in the next pass. A small workload hardly rests, and none longer than ``LONGEST``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from zonewise.runtime.process.clock import elapsed

K = TypeVar("K", bound=Hashable)

SHORTEST = 0.02
PER_POD = 0.002
LONGEST = 1.0


class Pacing(Generic[K]):
    """When keys may have their next pass."""

    def __init__(self, clock: Callable[[], float] = elapsed) -> None:
        self._clock = clock
        self._next: dict[K, float] = {}

    def wait(self, key: K) -> float:
        """Seconds until the next pass may begin; 0.0 or less is now."""
        due = self._next.get(key)
        return 0.0 if due is None else due - self._clock()

    def passed(self, key: K, pods: int) -> None:
        """A pass over so many pods has ended."""
        self._next[key] = self._clock() + min(LONGEST, SHORTEST + PER_POD * pods)

    def forget(self, key: K) -> None:
        """The workload is deleted."""
        self._next.pop(key, None)
