"""Pods that wait for a node: which is next, which are unschedulable, and until when.

A pod is in one of three states, as in kube-scheduler. *Active* pods are popped by priority, then by
how long they have been active. A pod that fits nowhere is *unschedulable*: it is not tried until an
event that could help it, or until ``FLUSH_SECONDS`` have passed, should an event have been missed.
Such an event makes it active, but not before its *backoff* is over, which doubles with each failure
from 1 s to 10 s.

So a pod that fits nowhere costs nothing while nothing happens, and one attempt per backoff while
much does. Events are recorded and processed together, when the next pod is popped.

Time is an argument; nothing here waits.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from zonewise.api.meta import Key
from zonewise.scheduling.decision import ClusterEvent

INITIAL_BACKOFF = 1.0
MAX_BACKOFF = 10.0
FLUSH_SECONDS = 300.0
STALE_ENTRIES = 64

_NO_EVENT = ClusterEvent(0)


@dataclass(slots=True)
class _QueuedPod:
    priority: int
    failures: int = 0
    backoff_until: float = 0.0
    helped_by: ClusterEvent = _NO_EVENT
    active: bool = False
    due: float | None = None
    """When the pod becomes active without an event: its backoff ends, or it is flushed."""


class SchedulingQueue:
    """All pods that wait for a node."""

    def __init__(self) -> None:
        self._pods: dict[Key, _QueuedPod] = {}
        self._unschedulable: dict[Key, _QueuedPod] = {}
        self._active: list[tuple[int, float, int, Key]] = []
        self._due: list[tuple[float, int, Key]] = []
        self._events = _NO_EVENT
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, key: object) -> bool:
        return key in self._pods

    def add(self, key: Key, priority: int, now: float) -> None:
        """A pod needs a node, or its requirements have changed."""
        queued = self._pods.get(key)
        if queued is None:
            queued = self._pods[key] = _QueuedPod(priority)
        elif queued.active and queued.priority == priority:
            return
        queued.priority = priority
        self._unschedulable.pop(key, None)
        self._activate(key, queued, now)

    def remove(self, key: Key) -> None:
        """A pod needs no node any more."""
        self._pods.pop(key, None)
        self._unschedulable.pop(key, None)

    def add_unschedulable(self, key: Key, helped_by: ClusterEvent, now: float) -> None:
        """No node fits a pod that was popped; ``helped_by`` are the events that may change that."""
        queued = self._pods.get(key)
        if queued is None:
            return
        queued.active = False
        queued.helped_by = helped_by
        queued.backoff_until = now + min(INITIAL_BACKOFF * 2**queued.failures, MAX_BACKOFF)
        queued.failures = min(queued.failures + 1, 8)
        self._unschedulable[key] = queued
        self._set_due(key, queued, now + FLUSH_SECONDS)

    def back_off(self, key: Key, now: float) -> None:
        """An error interrupted the scheduling of a pod: it is tried again after its backoff."""
        self.add_unschedulable(key, _NO_EVENT, now)
        queued = self._unschedulable.pop(key, None)
        if queued is not None:
            self._set_due(key, queued, queued.backoff_until)

    def record(self, event: ClusterEvent) -> None:
        """An event that may help unschedulable pods."""
        if self._unschedulable:
            self._events |= event

    def pop(self, now: float) -> Key | None:
        """The next active pod; it stays in the queue until ``remove`` or ``add_unschedulable``."""
        self._apply_events(now)
        while self._due and self._due[0][0] <= now:
            due, _, key = heapq.heappop(self._due)
            if self._is_current(due, key):
                self._unschedulable.pop(key, None)
                self._pods[key].backoff_until = 0.0
                self._activate(key, self._pods[key], now)
        while self._active:
            *_, key = heapq.heappop(self._active)
            queued = self._pods.get(key)
            if queued is not None and queued.active:
                queued.active = False
                return key
        return None

    def next_due(self) -> float | None:
        """When the next pod becomes active without an event."""
        while self._due:
            due, _, key = self._due[0]
            if self._is_current(due, key):
                return due
            heapq.heappop(self._due)
        return None

    def _apply_events(self, now: float) -> None:
        events, self._events = self._events, _NO_EVENT
        if not events:
            return
        unschedulable = self._unschedulable.items()
        helped = [(key, queued) for key, queued in unschedulable if queued.helped_by & events]
        for key, queued in helped:
            del self._unschedulable[key]
            self._activate(key, queued, now)

    def _activate(self, key: Key, queued: _QueuedPod, now: float) -> None:
        if queued.backoff_until > now:
            self._set_due(key, queued, queued.backoff_until)
            return
        queued.due = None
        queued.active = True
        self._sequence += 1
        heapq.heappush(self._active, (-queued.priority, now, self._sequence, key))

    def _set_due(self, key: Key, queued: _QueuedPod, due: float) -> None:
        queued.due = due
        self._sequence += 1
        heapq.heappush(self._due, (due, self._sequence, key))
        # Times that were replaced stay in the heap; they may not outnumber the current ones.
        if len(self._due) > 2 * len(self._pods) + STALE_ENTRIES:
            self._due = [entry for entry in self._due if self._is_current(entry[0], entry[2])]
            heapq.heapify(self._due)

    def _is_current(self, due: float, key: Key) -> bool:
        queued = self._pods.get(key)
        return queued is not None and queued.due == due
