"""The watchers of a kind.

A ``Watcher`` is a position in the kind's event buffer, a selection and a representation. Events are
not copied to it: a publication wakes the waiting watchers it concerns, and each takes, at its own
pace, everything from its position on as one chunk of bytes. So bursts are coalesced, a thousand
watchers of the same representation get the same bytes, and a slow one costs only its position. When
it has fallen too far behind, in events or bytes, it is closed, as a real server closes it; the
history's own limits hold in any case.

Waiting watchers are indexed by scope (all, one namespace, one object), so that events elsewhere
cost them nothing. A selection is evaluated before its watcher is woken. While a watcher waits its
position is not updated: waiting means that everything so far was sent or did not concern it.

Everything runs on the event loop's thread, in the order of versions; only committed events are in a
buffer, so no watcher gets one before its commit. ``poll`` and ``arm`` are the whole interface;
``next`` puts them behind an await.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from zonewise.embedded.apiserver.store.collection import Matches
from zonewise.embedded.apiserver.store.entry import Entry
from zonewise.embedded.apiserver.store.history import EventBuffer, History, StoreEvent
from zonewise.embedded.apiserver.store.limits import StoreLimits
from zonewise.embedded.apiserver.store.representation import (
    FrameCache,
    Representation,
    event_type_for,
)
from zonewise.runtime.process.logs import logger

TOO_SLOW: Final = "the watcher fell too far behind"
SERVER_STOPPING: Final = "the server is stopping"
CLOSED_BY_WATCHER: Final = "the watcher is done"

TIMER_SLACK = 0.001  # seconds; timers are not exact: a deadline this near counts as reached
SCAN_LIMIT = 1_024  # events that one poll examines
LAG_CHECK_EVENTS = 128  # events between two checks for slow watchers
CACHED_CHUNKS = 16  # newest chunks, by representation and scope, per kind

_log = logger("watches")


class Watcher:
    """One watch of ``State.watch``; use ``next``, or ``poll`` and ``arm``; then ``close``."""

    __slots__ = (
        "_deadline",
        "_declined",
        "_future",
        "_initial",
        "_initial_end",
        "_initial_index",
        "_loop",
        "_matches",
        "_position",
        "_representation",
        "_scope",
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
        scope: str,
        matches: Matches | None,
        representation: Representation,
        initial: Sequence[Entry] | None,
        initial_end: bytes,
    ) -> None:
        self._watchers = watchers
        self._position = position
        self._scope = scope
        self._matches = matches
        self._representation = representation
        self._initial = initial
        self._initial_end = initial_end
        self._initial_index = 0
        self._waiting = False
        self._wake: Callable[[], None] | None = None
        self._future: asyncio.Future[None] | None = None
        self._deadline = inf
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._declined = b""
        self.sink: Callable[[bytes], bool] | None = None
        """Gets frames while ``next`` waits; if it declines with False, ``next`` returns them."""
        self.closed: str | None = None
        """Why the watch ended, or None while it is open."""
        self.on_close: Callable[[], None] | None = None
        """Called when the server ends the watch, for consumers that may be blocked in a write."""

    @property
    def progress(self) -> int:
        """The version up to which everything was sent; 0 before the initial events were."""
        buffer = self._watchers.buffer
        if self._initial is not None or (self._position < buffer.base and not self._waiting):
            return 0
        if self._waiting or self._position == buffer.end:
            return self._watchers.history.rv
        return buffer.events[self._position - buffer.base].entry.rv - 1

    @property
    def is_behind(self) -> bool:
        """Whether there are more events to poll already."""
        return not self._waiting and (
            self._initial is not None or self._position < self._watchers.buffer.end
        )

    def poll(self) -> bytes | None:
        """The next frames, as many as one write should carry.

        Empty if there are none yet (or, while ``is_behind``, none so far); None when closed.
        """
        if self.closed is not None:
            return None
        if self._waiting:
            return b""
        if self._initial is not None:
            return self._take_initial(self._initial)
        watchers = self._watchers
        buffer = watchers.buffer
        start = self._position
        if start == buffer.end:
            return b""
        if start < buffer.base:
            self.end(TOO_SLOW)
            return None
        if self._matches is None:
            chunk, self._position = watchers.shared_chunk(start, self._representation, self._scope)
        else:
            chunk, self._position = watchers.chunk(
                start, self._representation, self._scope, self._matches
            )
        return chunk

    def arm(self, wake: Callable[[], None]) -> bool:
        """Call ``wake`` once when there is something to poll; False if there is something now.

        ``wake`` is called while the commit is being published: it must be quick and not raise.
        """
        if self.closed is not None or self.is_behind:
            return False
        self._wake = wake
        if not self._waiting:
            self._waiting = True
            self._watchers.wait(self, self._scope)
        return True

    def disarm(self) -> None:
        """Cancel ``arm``."""
        self._wake = None
        if self._waiting:
            self._waiting = False
            self._position = self._watchers.buffer.end
            self._watchers.stop_waiting(self, self._scope)

    async def next(self, timeout: float | None = None) -> bytes | None:
        """The next frames; empty when ``timeout`` seconds passed without any; None when closed."""
        loop = asyncio.get_running_loop()
        deadline = inf if timeout is None else loop.time() + timeout
        self._deadline = deadline
        while True:
            if self._declined:
                declined, self._declined = self._declined, b""
                return declined
            chunk = self.poll()
            if chunk is None or chunk:
                return chunk
            if self.is_behind:  # many events, none for this selection: let others run
                await asyncio.sleep(0)
                continue
            if loop.time() + TIMER_SLACK >= deadline:
                return b""
            future: asyncio.Future[None] = loop.create_future()
            self._future = future
            self._loop = loop
            self.arm(self.resume_next if self.sink is None else self._push_soon)
            self._set_timer(loop, deadline)
            try:
                await future
            finally:
                self._future = None
                self.disarm()

    def _push_soon(self) -> None:
        """Push after the publication that woke this watcher; no task is woken for it."""
        if self._loop is not None:
            self._watchers.push_soon(self, self._loop)

    def push(self) -> None:
        """Give the sink the next frames, unless ``next`` has stopped waiting."""
        if self._future is None or self._future.done() or self.sink is None:
            return
        chunk = self.poll()
        if chunk and not self.sink(chunk):
            self._declined = chunk
            self.resume_next()
        elif chunk is None or not self.arm(self._push_soon):
            self.resume_next()

    def _set_timer(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        """Call ``_tick`` by ``deadline``.

        A busy watcher waits thousands of times before its deadline: the timer of an earlier wait
        stays and checks the newest deadline when it fires.
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
            self.resume_next()
        else:
            self._set_timer(loop, self._deadline)

    def resume_next(self) -> None:
        """Let ``next`` continue."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def close(self) -> None:
        """Stop watching; ``next`` and ``poll`` return None from now on."""
        if self.closed is None:
            self.on_close = None
            self.end(CLOSED_BY_WATCHER)

    def is_concerned(self, events: Sequence[StoreEvent]) -> bool:
        """Whether any of these events concerns this watcher's selection."""
        matches = self._matches
        if matches is None:
            return True
        try:
            return any(event_type_for(event, matches) is not None for event in events)
        except Exception:
            return True  # its own poll then raises, and no other

    def wake_up(self, position: int) -> None:
        """Stop waiting: an event that concerns it is at or after ``position``."""
        wake, self._wake = self._wake, None
        self._waiting = False
        self._position = position
        if wake is not None:
            wake()

    def lag(self, buffer: EventBuffer) -> tuple[int, int]:
        """How many events and bytes wait to be polled."""
        if self._waiting or self._position >= buffer.end:
            return 0, 0
        oldest = buffer.events[max(self._position - buffer.base, 0)]
        return buffer.end - self._position, buffer.size - oldest.size

    def upcoming_entries(self) -> list[Entry]:
        """The objects that the next poll examines."""
        if self._initial is not None:
            return list(self._initial[self._initial_index : self._initial_index + SCAN_LIMIT])
        buffer = self._watchers.buffer
        start = max(self._position, buffer.base)
        return [
            entry
            for event in buffer.events_between(start, min(buffer.end, start + SCAN_LIMIT))
            if is_in_scope(event.entry.key, self._scope)
            for entry in (event.entry, event.previous if self._matches is not None else None)
            if entry is not None
        ]

    def _take_initial(self, initial: Sequence[Entry]) -> bytes:
        frames: list[bytes] = []
        size = 0
        limit = self._watchers.limits.chunk_bytes
        matches = self._matches
        frame = self._representation.frame
        index, stop = self._initial_index, min(len(initial), self._initial_index + SCAN_LIMIT)
        while index < stop and size < limit:
            entry = initial[index]
            index += 1
            if matches is None or matches(entry):
                frames.append(frame("ADDED", entry))
                size += len(frames[-1])
        self._initial_index = (
            index  # only now: after an exception above the same entries are tried again
        )
        if self._initial_index == len(initial):
            frames.append(self._initial_end)
            self._initial = None
        return b"".join(frames)

    def end(self, reason: str) -> None:
        """End the watch from the server's side."""
        self.closed = reason
        self._initial = None
        self._watchers.remove(self, self._scope)
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

    def __init__(
        self, buffer: EventBuffer, history: History, limits: StoreLimits, frames: FrameCache
    ) -> None:
        self.buffer = buffer
        self.history = history
        self.limits = limits
        self._frames = frames
        self._open: dict[Watcher, None] = {}
        # Waiting watchers by scope: "" is everything, "ns/" a namespace, a key one object.
        self._waiting: dict[str, dict[Watcher, None]] = {}
        self._events_since_check = 0
        self._chunks: dict[tuple[Representation, str], tuple[int, int, bytes]] = {}
        self._to_push: list[Watcher] = []

    def __len__(self) -> int:
        return len(self._open)

    def add(self, watcher: Watcher) -> None:
        """Add a new watcher."""
        self._open[watcher] = None

    def remove(self, watcher: Watcher, scope: str) -> None:
        """Remove a watcher."""
        self._open.pop(watcher, None)
        self.stop_waiting(watcher, scope)
        if not self._open:
            self._chunks.clear()

    def wait(self, watcher: Watcher, scope: str) -> None:
        """Wake this watcher at the next event that concerns it."""
        self._waiting.setdefault(scope, {})[watcher] = None

    def stop_waiting(self, watcher: Watcher, scope: str) -> None:
        """Do not wake this watcher."""
        waiting = self._waiting.get(scope)
        if waiting is not None and watcher in waiting:
            del waiting[watcher]
            if not waiting:
                del self._waiting[scope]

    def publish(self, start: int, events: Sequence[StoreEvent]) -> None:
        """Wake the watchers of these events, which are in the buffer from position ``start`` on."""
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
        self._events_since_check += len(events)
        if self._events_since_check >= LAG_CHECK_EVENTS:
            self._events_since_check = 0
            self._close_slow()

    def shared_chunk(
        self, start: int, representation: Representation, scope: str
    ) -> tuple[bytes, int]:
        """A chunk of everything from ``start`` on, the same bytes for all watchers of the scope."""
        cached = self._chunks.get((representation, scope))
        if cached is not None and cached[0] == start:
            _, stop, chunk = cached
            if stop == self.buffer.end or len(chunk) >= self.limits.chunk_bytes:
                return chunk, stop
        chunk, stop = self.chunk(start, representation, scope, None)
        if len(self._chunks) >= CACHED_CHUNKS:
            self._chunks.clear()
        self._chunks[representation, scope] = (start, stop, chunk)
        return chunk, stop

    def chunk(
        self, start: int, representation: Representation, scope: str, matches: Matches | None
    ) -> tuple[bytes, int]:
        """The frames of one selection from ``start`` on, and the position after them."""
        limit = self.limits.chunk_bytes
        get_frame = self._frames.get
        frames: list[bytes] = []
        size = 0
        position = start
        for event in self.buffer.events_between(start, min(self.buffer.end, start + SCAN_LIMIT)):
            if size >= limit:
                break
            position += 1
            if scope and not is_in_scope(event.entry.key, scope):
                continue
            event_type = event_type_for(event, matches)
            if event_type is not None:
                frames.append(get_frame(event, event_type, representation))
                size += len(frames[-1])
        return frames[0] if len(frames) == 1 else b"".join(frames), position

    def push_soon(self, watcher: Watcher, loop: asyncio.AbstractEventLoop) -> None:
        """Push to this watcher soon, with all others that were just woken."""
        if not self._to_push:
            loop.call_soon(self._push)
        self._to_push.append(watcher)

    def _push(self) -> None:
        woken, self._to_push = self._to_push, []
        for watcher in woken:
            try:
                watcher.push()
            except Exception:
                _log.exception("a watcher could not be written to", kind=self.buffer.kind)
                watcher.resume_next()

    def close(self, reason: str) -> None:
        """End all watches of this kind."""
        for watcher in list(self._open):
            watcher.end(reason)

    def _wake(self, scope: str, start: int, events: Sequence[StoreEvent]) -> None:
        waiting = self._waiting.get(scope)
        if waiting is None:
            return
        concerned = [watcher for watcher in waiting if watcher.is_concerned(events)]
        if len(concerned) == len(waiting):
            del self._waiting[scope]
        else:
            for watcher in concerned:
                del waiting[watcher]
        for watcher in concerned:
            try:
                watcher.wake_up(start)
            except Exception:
                _log.exception("a watcher could not be woken", kind=self.buffer.kind)
                watcher.close()

    def _close_slow(self) -> None:
        limits = self.limits
        for watcher in list(self._open):
            events, size = watcher.lag(self.buffer)
            if events > limits.lag_events or size > limits.lag_bytes:
                watcher.end(TOO_SLOW)


def is_in_scope(key: str, scope: str) -> bool:
    """Whether an object is in a watched scope: everything, a namespace, or one object."""
    return not scope or (key.startswith(scope) if scope.endswith("/") else key == scope)
