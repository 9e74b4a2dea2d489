"""Which keys need work: each waits once, is worked on by one worker, and none is lost.

Only keys cross the queue, never events. Adding a key that already waits changes nothing, so a
thousand changes of one object cost one run, and memory is bounded by the number of distinct keys
however fast they are added. A key that is added while a worker has it runs again afterwards: the
worker may have read the store before the change.

Ready keys are served in order of arrival; with ``lane`` in turns around the lanes they belong to,
so that a namespace with a thousand keys delays another one's by one of them. There are two classes.
Low priority is for work that is not urgent (the first list, a resync); one low key is served after
every ``FAIR`` others, so a busy cluster cannot starve it. Adding a low key again with normal
priority moves it up.

A key waits at most once, until the earliest moment requested: a delay that ends later than an
existing one is dropped, and starting work on a key drops its remaining delay. The reconciler that
runs sees the present state and returns when to run again.

Failures back off exponentially for each key. A random quarter is taken off each delay so that keys
that failed together are not retried together.

Everything runs in one event loop and nothing here awaits except ``get``, so no locks are needed.
Delays share one timer.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FAIR = 8
_SLACK = 64


@dataclass(slots=True)
class QueueStats:
    """Counts since the start, and how much waits now; read by metrics when they are scraped."""

    added: int = 0
    retried: int = 0
    ready: int = 0
    delayed: int = 0
    active: int = 0


class Lanes(Generic[K]):
    """Ready keys with the moments they became so, taken from one lane after the other."""

    def __init__(self, lane: Callable[[K], Hashable]) -> None:
        self._lane = lane
        self._lanes: OrderedDict[Hashable, OrderedDict[K, float]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: K) -> bool:
        return key in self._lanes.get(self._lane(key), ())

    def __setitem__(self, key: K, since: float) -> None:
        keys = self._lanes.setdefault(self._lane(key), OrderedDict())
        self._count += key not in keys
        keys[key] = since

    def pop(self, key: K, default: float | None) -> float | None:
        """Remove a key, wherever it waits."""
        lane = self._lane(key)
        keys = self._lanes.get(lane)
        if keys is None or key not in keys:
            return default
        since = keys.pop(key)
        self._count -= 1
        if not keys:
            del self._lanes[lane]
        return since

    def popitem(self, *, last: bool) -> tuple[K, float]:
        """The oldest key of the lane whose turn it is; ``last`` is for lists that have an end."""
        assert not last
        lane, keys = self._lanes.popitem(last=False)
        taken = keys.popitem(last=False)
        self._count -= 1
        if keys:
            self._lanes[lane] = keys
        return taken

    def clear(self) -> None:
        """Remove all keys."""
        self._lanes.clear()
        self._count = 0


class Queue(Generic[K]):
    """A work queue of keys; see the module for what it promises."""

    def __init__(
        self,
        *,
        base: float = 0.05,
        cap: float = 300.0,
        clock: Callable[[], float] | None = None,
        rng: random.Random | None = None,
        lane: Callable[[K], Hashable] | None = None,
    ) -> None:
        self._base = base
        self._cap = cap
        self._clock = clock
        self._rng = rng or random.SystemRandom()
        self.waited: Callable[[float], None] | None = None
        """Called with how long each key was ready before a worker took it; set it before adding."""
        # The values are the moments at which keys became ready, if ``waited`` is set.
        self._normal: OrderedDict[K, float] | Lanes[K]
        self._low: OrderedDict[K, float] | Lanes[K]
        self._normal = OrderedDict() if lane is None else Lanes(lane)
        self._low = OrderedDict() if lane is None else Lanes(lane)
        # The value says what to do when the worker is done: None nothing, else run again (low?).
        self._active: dict[K, bool | None] = {}
        self._due: dict[K, tuple[float, bool]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._sequence = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._failures: dict[K, int] = {}
        self._getters: deque[asyncio.Future[None]] = deque()
        self._streak = 0
        self._closed = False
        self._added = 0
        self._retried = 0

    def __len__(self) -> int:
        """How many keys wait to be handed out now; delayed ones are not counted."""
        return len(self._normal) + len(self._low)

    @property
    def closed(self) -> bool:
        """Whether the queue takes no more keys."""
        return self._closed

    def stats(self) -> QueueStats:
        """Counts for metrics."""
        return QueueStats(
            added=self._added,
            retried=self._retried,
            ready=len(self),
            delayed=len(self._due),
            active=len(self._active),
        )

    def add(self, key: K, *, low: bool = False) -> None:
        """Request work on a key as soon as a worker is free."""
        if key in self._normal or self._closed:
            return
        if key in self._active:
            # Normal (False) wins over low (True); None means it was not requested yet.
            self._active[key] = low and self._active[key] is not False
        elif not low:
            if self._low:
                self._low.pop(key, None)
            self._normal[key] = 0.0 if self.waited is None else self._now()
        elif key not in self._low:
            self._low[key] = 0.0 if self.waited is None else self._now()
        else:
            return
        self._added += 1
        if self._due:
            self._due.pop(key, None)
        if self._getters:
            self._wake()

    def add_after(self, key: K, seconds: float, *, low: bool = False) -> None:
        """Request work on a key after a delay; the earliest of several such requests counts."""
        if seconds <= 0:
            self.add(key, low=low)
            return
        if (
            self._closed
            or key in self._normal
            or key in self._low
            or self._active.get(key) is not None
        ):
            return
        due = self._now() + seconds
        known = self._due.get(key)
        if known is not None and known[0] <= due:
            if known[1] and not low:
                self._due[key] = (known[0], False)
            return
        self._due[key] = (due, low)
        self._sequence += 1
        heapq.heappush(self._heap, (due, self._sequence, key))
        # Entries whose key was added, moved or handed out since stay in the heap and are skipped
        # when they come up; they may not outnumber the valid ones.
        if len(self._heap) > 2 * len(self._due) + _SLACK:
            self._heap = [entry for entry in self._heap if self._alive(entry)]
            heapq.heapify(self._heap)
        if self._timer is None or due < self._timer_at:
            self._arm()

    def retry(self, key: K) -> float:
        """Request work on a key that failed, after its backoff; gives the seconds until then."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        self._retried += 1
        # Beyond 2**62 the power is of no use and soon no float.
        window = min(self._cap, self._base * (1 << min(count, 62)))
        delay = window * (1 - self._rng.random() / 4)
        self.add_after(key, delay)
        return delay

    def failures(self, key: K) -> int:
        """How often work on the key failed since it last succeeded."""
        return self._failures.get(key, 0)

    def forget(self, key: K) -> None:
        """Reset the backoff of a key; it does not remove the key."""
        if self._failures:
            self._failures.pop(key, None)

    async def get(self) -> K | None:
        """The next key, this caller's alone until ``done``; None once closed and handed out."""
        while not (self._normal or self._low):
            if self._closed:
                return None
            getter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._getters.append(getter)
            try:
                await getter
            except asyncio.CancelledError:
                # A wake-up that reached this getter belongs to another one now.
                if not getter.cancelled():
                    self._wake()
                elif getter in self._getters:
                    self._getters.remove(getter)
                raise
        if self._low and (not self._normal or self._streak >= FAIR):
            key, since = self._low.popitem(last=False)
            self._streak = 0
        else:
            key, since = self._normal.popitem(last=False)
            self._streak += 1
        if self.waited is not None:
            self.waited(self._now() - since)
        if self._due:
            self._due.pop(key, None)
        self._active[key] = None
        return key

    def done(self, key: K) -> None:
        """Give a key back; if it was added meanwhile it becomes ready again."""
        again = self._active.pop(key)
        if again is not None:
            ready = self._low if again else self._normal
            ready[key] = 0.0 if self.waited is None else self._now()
            if self._getters:
                self._wake()

    def close(self, *, drop: bool = False) -> None:
        """Take no more keys. Ready ones are still handed out, unless dropped; delayed ones never.

        Delayed keys are future work by definition; the next start finds them again.
        """
        self._closed = True
        self._due.clear()
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if drop:
            self._normal.clear()
            self._low.clear()
            for key in self._active:
                self._active[key] = None
        while self._getters:
            self._wake()

    def _wake(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return

    def _now(self) -> float:
        return self._clock() if self._clock else asyncio.get_running_loop().time()

    def _arm(self) -> None:
        while self._heap and not self._alive(self._heap[0]):
            heapq.heappop(self._heap)
        if not self._heap:
            return
        first = self._heap[0][0]
        if self._timer is not None:
            if self._timer_at <= first:
                return
            self._timer.cancel()
        self._timer_at = first
        seconds = max(0.0, first - self._now())
        self._timer = asyncio.get_running_loop().call_later(seconds, self._fire)

    def _alive(self, entry: tuple[float, int, K]) -> bool:
        known = self._due.get(entry[2])
        return known is not None and known[0] == entry[0]

    def _fire(self) -> None:
        self._timer = None
        now = self._now()
        while self._heap and self._heap[0][0] <= now:
            entry = heapq.heappop(self._heap)
            if self._alive(entry):
                _, low = self._due.pop(entry[2])
                self.add(entry[2], low=low)
        self._arm()
