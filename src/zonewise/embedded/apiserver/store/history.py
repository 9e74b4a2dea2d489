"""Recent events: watches resume from them, and old states are computed from them.

Every committed write is an event with the object before and after. Events of one kind are in an
``EventBuffer``, in order of version, at positions that never change: position 7 is the eighth event
of this kind since the start, whether or not it is still in the buffer. So a watcher is little more
than a position, and the events that wait for it cost no memory of their own.

The ``History`` bounds all buffers together, oldest first, by number, by bytes and by age. Its
``floor`` is the newest version that was dropped: watches can resume from it, not from before it.
When a cluster is quiet, lists of exact old versions expire earlier than watches: after
``history_age``, as a real server's do by compaction, while a watch may still resume.

Entries are shared with the state. The cost of an event is counted as its own bytes and those of the
version it replaced, which is never less than the memory it keeps alive.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from operator import attrgetter
from typing import Any

import msgspec

from zonewise.api.errors import ZonewiseError
from zonewise.embedded.apiserver.store.entry import Entry, WatchEventType
from zonewise.embedded.apiserver.store.limits import StoreLimits

EVENT_OVERHEAD = 256


class Expired(ZonewiseError):
    """The requested version is older than the history."""

    def __init__(self, rv: int, floor: int) -> None:
        super().__init__(f"too old resource version: {rv} ({floor})")
        self.rv = rv
        self.floor = floor


class StoreEvent(msgspec.Struct, gc=False, eq=False):
    """One committed write. ``previous`` is None when the object is new.

    A deletion's ``entry`` is the object's last content under the version of its deletion.
    ``size`` is the number of bytes in the buffer up to and including this event.
    """

    type: WatchEventType
    entry: Entry
    previous: Entry | None
    time: float
    size: int
    encoded: dict[Any, bytes] | None = None

    @property
    def rv(self) -> int:
        """The version of this event."""
        return self.entry.rv

    @property
    def cost(self) -> int:
        """The bytes this event may keep alive."""
        previous_size = len(self.previous.raw) if self.previous else 0
        return EVENT_OVERHEAD + len(self.entry.raw) + previous_size


class EventBuffer:
    """The events of one kind. ``base`` is the position of the oldest one in the buffer."""

    __slots__ = ("base", "events", "kind", "size")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.events: deque[StoreEvent] = deque()
        self.base = 0
        self.size = 0

    @property
    def end(self) -> int:
        """The position of the next event."""
        return self.base + len(self.events)

    def position_after(self, rv: int) -> int:
        """The position of the first event that is newer than ``rv``."""
        if not self.events or self.events[-1].entry.rv <= rv:
            return self.end
        return self.base + bisect_right(self.events, rv, key=_RV)

    def events_between(self, start: int, stop: int) -> list[StoreEvent]:
        """Events by position; all must be in the buffer."""
        events, base = self.events, self.base
        return [events[position - base] for position in range(start, stop)]


class History:
    """All buffers, bounded together. ``rv`` is the newest visible version."""

    def __init__(self, limits: StoreLimits, *, floor: int, rv: int) -> None:
        self.floor = floor
        self.rv = rv
        self._limits = limits
        self._buffers: deque[EventBuffer] = deque()
        self._bytes = 0
        self._times: deque[tuple[float, int]] = deque()
        self._exact_floor = floor

    def __len__(self) -> int:
        return len(self._buffers)

    @property
    def bytes(self) -> int:
        """The bytes that the events may keep alive."""
        return self._bytes

    def add(
        self,
        buffer: EventBuffer,
        type: WatchEventType,
        entry: Entry,
        previous: Entry | None,
        now: float,
    ) -> StoreEvent:
        """Append an event; versions must increase."""
        assert entry.rv > self.rv, "versions increase"
        buffer.size += len(entry.raw)
        event = StoreEvent(type, entry, previous, now, buffer.size)
        buffer.events.append(event)
        self._buffers.append(buffer)
        self._bytes += event.cost
        self.rv = entry.rv
        return event

    def record_time(self, now: float) -> None:
        """Record when the newest version became visible, to a thousandth of ``history_age``."""
        if not self._times or now - self._times[-1][0] >= self._limits.history_age / 1000:
            self._times.append((now, self.rv))
            self._advance_exact_floor(now)

    def trim(self, now: float) -> None:
        """Drop events beyond the limits, oldest first."""
        limits = self._limits
        while self._buffers:
            buffer = self._buffers[0]
            event = buffer.events[0]
            count = len(self._buffers)
            if (
                count <= limits.history_events
                and self._bytes <= limits.history_bytes
                and (count <= limits.history_keep or event.time >= now - limits.history_age)
            ):
                break
            self._buffers.popleft()
            buffer.events.popleft()
            buffer.base += 1
            self._bytes -= event.cost
            self.floor = event.entry.rv

    def check_resumable(self, rv: int) -> None:
        """Refuse to resume a watch after a version that was dropped."""
        if rv < self.floor:
            raise Expired(rv, self.floor)

    def check_listable(self, rv: int, now: float) -> None:
        """Refuse to list the state at a version that is too old."""
        self._advance_exact_floor(now)
        floor = max(self.floor, self._exact_floor)
        if rv < floor:
            raise Expired(rv, floor)

    def _advance_exact_floor(self, now: float) -> None:
        while self._times and self._times[0][0] <= now - self._limits.history_age:
            self._exact_floor = self._times.popleft()[1]


_RV = attrgetter("entry.rv")
