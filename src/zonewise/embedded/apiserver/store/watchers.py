"""The watchers of a kind.

A ``Watcher`` is a position on the kind's trail, a selection and a representation. Events are not
copied to it: a publication wakes the waiting watchers it concerns, and each takes, at its own pace,
everything from its position on as one chunk of bytes. So bursts are coalesced by themselves, a
thousand watchers of the same representation get the same bytes, and one that is slow costs nothing
but its position. When it has fallen too far behind, in events or bytes, it is closed, as a real
server closes it; the history's own bounds hold in any case.

Watchers of one namespace or one object wait apart, so that events elsewhere cost them nothing. A
selection is evaluated before its watcher is woken. While a watcher waits its position is not kept
up to date: waiting means that everything so far was handed out or did not concern it.

Everything runs on the event loop's thread, in the order of versions; only committed events are on a
trail, so no watcher can see one before its commit. ``poll`` and ``arm`` are the whole interface;
``next`` puts them behind an await.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from zonewise.embedded.apiserver.store.collection import Matches
from zonewise.embedded.apiserver.store.entry import Entry
from zonewise.embedded.apiserver.store.history import History, StoreEvent, Trail
from zonewise.embedded.apiserver.store.limits import StoreLimits
from zonewise.embedded.apiserver.store.representation import Frames, Representation, view
from zonewise.runtime.process.logs import logger

SLOW: Final = "the watcher fell too far behind"
STOPPED: Final = "the server is stopping"
LEFT: Final = "the watcher is done"

SLACK = 0.001  # seconds; timers are not exact: a moment this near counts as due
SCAN = 1_024  # events that one poll looks at
SWEEP = 128  # events between two checks for slow watchers
REPRESENTATIONS = 16  # whose newest chunk is kept, per kind; each at one place

_log = logger("watches")


class Watcher:
    """One watch. Made by ``State.watch``; use ``next``, or ``poll`` and ``arm``; then ``close``."""

    __slots__ = (
        "_deadline",
        "_ended",
        "_future",
        "_initial",
        "_left",
        "_loop",
        "_matches",
        "_place",
        "_position",
        "_representation",
        "_stage",
        "_timer",
        "_waiting",
        "_wake",
        "_watchers",
        "closed",
        "on_close",
        "sink",
    )

    def __init__(
        self,
        watchers: Watchers,
        *,
        position: int,
        place: str,
        matches: Matches | None,
        representation: Representation,
        initial: Sequence[Entry] | None,
        ended: bytes,
    ) -> None:
        self._watchers = watchers
        self._position = position
        self._place = place
        self._matches = matches
        self._representation = representation
        self._initial = initial
        self._ended = ended
        self._stage = 0
        self._waiting = False
        self._wake: Callable[[], None] | None = None
        self._future: asyncio.Future[None] | None = None
        self._deadline = inf
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left = b""
        self.sink: Callable[[bytes], bool] | None = None
        """Takes frames while ``next`` waits, or declines with False; then ``next`` returns them."""
        self.closed: str | None = None
        """Why the watch ended, or None while it is open."""
        self.on_close: Callable[[], None] | None = None
        """Called when the server ends the watch, for consumers that may be blocked in a write."""

    @property
    def progress(self) -> int:
        """The version up to which everything was handed out; 0 before the initial events were."""
        trail = self._watchers.trail
        if self._initial is not None or (self._position < trail.base and not self._waiting):
            return 0
        if self._waiting or self._position == trail.end:
            return self._watchers.history.rv
        return trail.events[self._position - trail.base].entry.rv - 1

    @property
    def behind(self) -> bool:
        """Whether ``poll`` has more to look at already."""
        return not self._waiting and (
            self._initial is not None or self._position < self._watchers.trail.end
        )

    def poll(self) -> bytes | None:
        """The next frames, as much as one write should carry.

        Empty if there are none yet (or, while ``behind``, none so far); None when closed.
        """
        if self.closed is not None:
            return None
        if self._waiting:
            return b""
        if self._initial is not None:
            return self._take_initial(self._initial)
        watchers = self._watchers
        trail = watchers.trail
        start = self._position
        if start == trail.end:
            return b""
        if start < trail.base:
            self.end(SLOW)
            return None
        if self._matches is None:
            chunk, self._position = watchers.shared(start, self._representation, self._place)
        else:
            chunk, self._position = watchers.chunk(
                start, self._representation, self._place, self._matches
            )
        return chunk

    def arm(self, wake: Callable[[], None]) -> bool:
        """Have ``wake`` called, once, when there is something to poll; False if there is now.

        ``wake`` is called while the commit is being published: it must be quick and not raise.
        """
        if self.closed is not None or self.behind:
            return False
        self._wake = wake
        if not self._waiting:
            self._waiting = True
            self._watchers.wait(self, self._place)
        return True

    def disarm(self) -> None:
        """Do not call back after all."""
        self._wake = None
        if self._waiting:
            self._waiting = False
            self._position = self._watchers.trail.end
            self._watchers.leave(self, self._place)

    async def next(self, timeout: float | None = None) -> bytes | None:
        """The next frames; empty when ``timeout`` seconds passed without any; None when closed."""
        loop = asyncio.get_running_loop()
        deadline = inf if timeout is None else loop.time() + timeout
        self._deadline = deadline
        while True:
            if self._left:
                declined, self._left = self._left, b""
                return declined
            chunk = self.poll()
            if chunk is None or chunk:
                return chunk
            if self.behind:  # many events, none of them for this selection: let others run
                await asyncio.sleep(0)
                continue
            if loop.time() + SLACK >= deadline:
                return b""
            future: asyncio.Future[None] = loop.create_future()
            self._future = future
            self._loop = loop
            self.arm(self.settle if self.sink is None else self._hurry)
            self._set_timer(loop, deadline)
            try:
                await future
            finally:
                self._future = None
                self.disarm()

    def _hurry(self) -> None:
        """Be pushed to behind the publication that woke this watcher; no task is woken for it."""
        if self._loop is not None:
            self._watchers.hurry(self, self._loop)

    def push(self) -> None:
        """Give the sink what there is, unless ``next`` has stopped waiting."""
        if self._future is None or self._future.done() or self.sink is None:
            return
        chunk = self.poll()
        if chunk and not self.sink(chunk):
            self._left = chunk
            self.settle()
        elif chunk is None or not self.arm(self._hurry):
            self.settle()

    def _set_timer(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        """Have ``_tick`` called by ``deadline``.

        A busy watcher waits thousands of times before its deadline: the timer of an earlier wait is
        left running and looks at the newest deadline when it fires.
        """
        if deadline == inf or (self._timer is not None and self._timer.when() <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(deadline, self._tick, loop, deadline)

    def _tick(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        self._timer = None
        if self._future is None:
            return
        if self._deadline <= when:
            self.settle()
        else:
            self._set_timer(loop, self._deadline)

    def settle(self) -> None:
        """Let ``next`` go on."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def close(self) -> None:
        """Stop watching; ``next`` and ``poll`` return None from now on."""
        if self.closed is None:
            self.on_close = None
            self.end(LEFT)

    def concerned(self, events: Sequence[StoreEvent]) -> bool:
        """Whether any of these is something to this watcher's selection."""
        matches = self._matches
        if matches is None:
            return True
        try:
            return any(view(event, matches) is not None for event in events)
        except Exception:
            return True  # then its own poll raises, and no other

    def awake(self, position: int) -> None:
        """Stop waiting: something of concern is at ``position`` or behind it."""
        wake, self._wake = self._wake, None
        self._waiting = False
        self._position = position
        if wake is not None:
            wake()

    def lag(self, trail: Trail) -> tuple[int, int]:
        """How many events and bytes wait to be taken."""
        if self._waiting or self._position >= trail.end:
            return 0, 0
        oldest = trail.events[max(self._position - trail.base, 0)]
        return trail.end - self._position, trail.size - oldest.size

    def ahead(self) -> list[Entry]:
        """The objects that the next poll looks at."""
        if self._initial is not None:
            return list(self._initial[self._stage : self._stage + SCAN])
        trail = self._watchers.trail
        start = max(self._position, trail.base)
        return [
            entry
            for event in trail.between(start, min(trail.end, start + SCAN))
            if concerns(event.entry.key, self._place)
            for entry in (event.entry, event.previous if self._matches is not None else None)
            if entry is not None
        ]

    def _take_initial(self, initial: Sequence[Entry]) -> bytes:
        frames: list[bytes] = []
        size = 0
        limit = self._watchers.limits.chunk_bytes
        matches = self._matches
        frame = self._representation.frame
        at, stop = self._stage, min(len(initial), self._stage + SCAN)
        while at < stop and size < limit:
            entry = initial[at]
            at += 1
            if matches is None or matches(entry):
                frames.append(frame("ADDED", entry))
                size += len(frames[-1])
        self._stage = at  # only now: after an exception above the same is done again
        if self._stage == len(initial):
            frames.append(self._ended)
            self._initial = None
        return b"".join(frames)

    def end(self, reason: str) -> None:
        """End the watch from the server's side."""
        self.closed = reason
        self._initial = None
        self._watchers.remove(self, self._place)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake, self._wake = self._wake, None
        self._waiting = False
        for call in (wake, self.on_close):
            if call is not None:
                call()
        self.on_close = None


class Watchers:
    """All watchers of one kind."""

    def __init__(self, trail: Trail, history: History, limits: StoreLimits, frames: Frames) -> None:
        self.trail = trail
        self.history = history
        self.limits = limits
        self._frames = frames
        self._open: dict[Watcher, None] = {}
        # Waiting watchers, by place: "" is everywhere, "ns/" a namespace, a key one object.
        self._waiting: dict[str, dict[Watcher, None]] = {}
        self._unswept = 0
        self._last: dict[tuple[Representation, str], tuple[int, int, bytes]] = {}
        self._hurrying: list[Watcher] = []

    def __len__(self) -> int:
        return len(self._open)

    def add(self, watcher: Watcher) -> None:
        """Keep account of a new watcher."""
        self._open[watcher] = None

    def remove(self, watcher: Watcher, place: str) -> None:
        """Remove a watcher."""
        self._open.pop(watcher, None)
        self.leave(watcher, place)
        if not self._open:
            self._last.clear()

    def wait(self, watcher: Watcher, place: str) -> None:
        """Wake this one at the next event that concerns it."""
        self._waiting.setdefault(place, {})[watcher] = None

    def leave(self, watcher: Watcher, place: str) -> None:
        """Do not wake this one."""
        waiting = self._waiting.get(place)
        if waiting is not None and watcher in waiting:
            del waiting[watcher]
            if not waiting:
                del self._waiting[place]

    def publish(self, start: int, events: Sequence[StoreEvent]) -> None:
        """Wake the watchers of these events, which are on the trail from position ``start`` on."""
        if not self._open:
            return
        if self._waiting:
            self._wake("", start, events)
        if self._waiting:
            for event in events:
                entry = event.entry
                self._wake(entry.key, start, (event,))
                if entry.namespace:
                    self._wake(f"{entry.namespace}/", start, (event,))
        self._unswept += len(events)
        if self._unswept >= SWEEP:
            self._unswept = 0
            self._sweep()

    def shared(self, start: int, representation: Representation, place: str) -> tuple[bytes, int]:
        """A chunk of everything from ``start`` on, the same bytes for all watchers there."""
        last = self._last.get((representation, place))
        if last is not None and last[0] == start:
            _, stop, chunk = last
            if stop == self.trail.end or len(chunk) >= self.limits.chunk_bytes:
                return chunk, stop
        chunk, stop = self.chunk(start, representation, place, None)
        if len(self._last) >= REPRESENTATIONS:
            self._last.clear()
        self._last[representation, place] = (start, stop, chunk)
        return chunk, stop

    def chunk(
        self, start: int, representation: Representation, place: str, matches: Matches | None
    ) -> tuple[bytes, int]:
        """The frames of one selection from ``start`` on, and the position behind them."""
        limit = self.limits.chunk_bytes
        of = self._frames.of
        found: list[bytes] = []
        size = 0
        position = start
        for event in self.trail.between(start, min(self.trail.end, start + SCAN)):
            if size >= limit:
                break
            position += 1
            if place and not concerns(event.entry.key, place):
                continue
            seen = view(event, matches)
            if seen is not None:
                found.append(of(event, seen, representation))
                size += len(found[-1])
        return found[0] if len(found) == 1 else b"".join(found), position

    def hurry(self, watcher: Watcher, loop: asyncio.AbstractEventLoop) -> None:
        """Push to this watcher soon, together with all others that were just woken."""
        if not self._hurrying:
            loop.call_soon(self._push)
        self._hurrying.append(watcher)

    def _push(self) -> None:
        woken, self._hurrying = self._hurrying, []
        for watcher in woken:
            try:
                watcher.push()
            except Exception:
                _log.exception("a watcher could not be written to", kind=self.trail.kind)
                watcher.settle()

    def close(self, reason: str) -> None:
        """End all watches of this kind."""
        for watcher in list(self._open):
            watcher.end(reason)

    def _wake(self, place: str, start: int, events: Sequence[StoreEvent]) -> None:
        waiting = self._waiting.get(place)
        if waiting is None:
            return
        concerned = [watcher for watcher in waiting if watcher.concerned(events)]
        if len(concerned) == len(waiting):
            del self._waiting[place]
        else:
            for watcher in concerned:
                del waiting[watcher]
        for watcher in concerned:
            try:
                watcher.awake(start)
            except Exception:
                _log.exception("a watcher could not be woken", kind=self.trail.kind)
                watcher.close()

    def _sweep(self) -> None:
        limits = self.limits
        for watcher in list(self._open):
            events, size = watcher.lag(self.trail)
            if events > limits.lag_events or size > limits.lag_bytes:
                watcher.end(SLOW)


def concerns(key: str, place: str) -> bool:
    """Whether an object is in a watched place: everywhere, a namespace, or one object."""
    return not place or (key.startswith(place) if place.endswith("/") else key == place)
