"""Pods that wait for a node: which is next, which are unschedulable, and until when.

A pod is in one of three states. *Ready* pods are served by priority, then by how long they have
been ready. A pod that failed *rests*: nothing is tried until a change that could help it, or until
``FLUSH`` seconds have passed, should a change have been missed. A change makes it ready, but not
before its pause is over, which doubles with each failure from 1 s to 10 s; until then it *pauses*.

So a pod that fits nowhere costs nothing while nothing happens, and one attempt per pause while much
does. Changes are recorded and processed together, when the next pod is taken.

Time is an argument; nothing here waits.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from zonewise.api.meta import Key
from zonewise.scheduling.decision import ClusterEvent

PAUSE = 1.0
LONGEST_PAUSE = 10.0
FLUSH = 300.0
SLACK = 64

_NOTHING = ClusterEvent(0)


@dataclass(slots=True)
class _Waiting:
    priority: int
    failures: int = 0
    resumes: float = 0.0
    helped_by: ClusterEvent = _NOTHING
    ready: bool = False
    due: float | None = None
    """When the pod gets ready by itself: its pause ends, or it has rested long enough."""


class SchedulingQueue:
    """All pods that wait."""

    def __init__(self) -> None:
        self._pods: dict[Key, _Waiting] = {}
        self._resting: dict[Key, _Waiting] = {}
        self._ready: list[tuple[int, float, int, Key]] = []
        self._due: list[tuple[float, int, Key]] = []
        self._changes = _NOTHING
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, key: object) -> bool:
        return key in self._pods

    def add(self, key: Key, priority: int, now: float) -> None:
        """A pod needs a node, or its requirements have changed."""
        waiting = self._pods.get(key)
        if waiting is None:
            waiting = self._pods[key] = _Waiting(priority)
        elif waiting.ready and waiting.priority == priority:
            return
        waiting.priority = priority
        self._resting.pop(key, None)
        self._get_ready(key, waiting, now)

    def remove(self, key: Key) -> None:
        """A pod needs no node any more."""
        self._pods.pop(key, None)
        self._resting.pop(key, None)

    def fail(self, key: Key, helped_by: ClusterEvent, now: float) -> None:
        """No node was found for a pod that was served; what could help it is known."""
        waiting = self._pods.get(key)
        if waiting is None:
            return
        waiting.ready = False
        waiting.helped_by = helped_by
        waiting.resumes = now + min(PAUSE * 2**waiting.failures, LONGEST_PAUSE)
        waiting.failures = min(waiting.failures + 1, 8)
        self._resting[key] = waiting
        self._set_due(key, waiting, now + FLUSH)

    def retry(self, key: Key, now: float) -> None:
        """Something went wrong with a pod that was served: again after its pause."""
        self.fail(key, _NOTHING, now)
        waiting = self._resting.pop(key, None)
        if waiting is not None:
            self._set_due(key, waiting, waiting.resumes)

    def note(self, change: ClusterEvent) -> None:
        """Something happened that may help some."""
        if self._resting:
            self._changes |= change

    def next(self, now: float) -> Key | None:
        """The pod that is served now; it stays until ``remove``d, or rests after ``fail``."""
        self._apply_changes(now)
        while self._due and self._due[0][0] <= now:
            due, _, key = heapq.heappop(self._due)
            if self._counts(due, key):
                self._resting.pop(key, None)
                self._pods[key].resumes = 0.0
                self._get_ready(key, self._pods[key], now)
        while self._ready:
            *_, key = heapq.heappop(self._ready)
            waiting = self._pods.get(key)
            if waiting is not None and waiting.ready:
                waiting.ready = False
                return key
        return None

    def wakes(self) -> float | None:
        """When a pod gets ready by itself, if none is ready now and nothing happens."""
        while self._due:
            due, _, key = self._due[0]
            if self._counts(due, key):
                return due
            heapq.heappop(self._due)
        return None

    def _apply_changes(self, now: float) -> None:
        changes, self._changes = self._changes, _NOTHING
        if not changes:
            return
        helped = [
            (key, waiting) for key, waiting in self._resting.items() if waiting.helped_by & changes
        ]
        for key, waiting in helped:
            del self._resting[key]
            self._get_ready(key, waiting, now)

    def _get_ready(self, key: Key, waiting: _Waiting, now: float) -> None:
        if waiting.resumes > now:
            self._set_due(key, waiting, waiting.resumes)
            return
        waiting.due = None
        waiting.ready = True
        self._sequence += 1
        heapq.heappush(self._ready, (-waiting.priority, now, self._sequence, key))

    def _set_due(self, key: Key, waiting: _Waiting, due: float) -> None:
        waiting.due = due
        self._sequence += 1
        heapq.heappush(self._due, (due, self._sequence, key))
        # Moments that were put off stay in the heap; they may not outnumber those that count.
        if len(self._due) > 2 * len(self._pods) + SLACK:
            self._due = [one for one in self._due if self._counts(one[0], one[2])]
            heapq.heapify(self._due)

    def _counts(self, due: float, key: Key) -> bool:
        waiting = self._pods.get(key)
        return waiting is not None and waiting.due == due
