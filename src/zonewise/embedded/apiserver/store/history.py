"""Recent events: watches resume from them and old states are rebuilt from them.

Every committed write is an event with the object before and after. Events of one kind form a
``Trail``, in order of version, at positions that never change their meaning: position 7 is the
eighth event of this kind since the start, whether or not it is still kept. A watcher is then
little more than a position, and what waits for it costs no memory of its own.

The ``History`` bounds all trails together, oldest first, by number, by bytes and by age. Its
``floor`` is the newest version that was dropped: watches can resume from it, not from before it.
Lists of exact old versions end earlier than watches do when a cluster is quiet: after
``history_age``, as a real server's do by compaction, while a watch may still resume.

Entries are shared with the state. What an event costs is counted as its own bytes and those of the
version it replaced, which is never less than what it keeps alive.
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
    """The requested version is older than what is kept."""

    def __init__(self, rv: int, floor: int) -> None:
        super().__init__(f"too old resource version: {rv} ({floor})")
        self.rv = rv
        self.floor = floor


class StoreEvent(msgspec.Struct, gc=False, eq=False):
    """One committed write. ``previous`` is None when the object is new.

    A deletion's ``entry`` is the object's last content under the version of its deletion.
    ``size`` is the number of bytes in the trail up to and including this event.
    """

    type: WatchEventType
    entry: Entry
    previous: Entry | None
    time: float
    size: int
    encoded: dict[Any, bytes] | None = None

    @property
    def rv(self) -> int:
        """The version this event made."""
        return self.entry.rv

    @property
    def cost(self) -> int:
        """The bytes this event may keep alive."""
        before = len(self.previous.raw) if self.previous else 0
        return EVENT_OVERHEAD + len(self.entry.raw) + before


class Trail:
    """The events of one kind. ``base`` is the position of the oldest one kept."""

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

    def after(self, rv: int) -> int:
        """The position of the first event that is newer than ``rv``."""
        if not self.events or self.events[-1].entry.rv <= rv:
            return self.end
        return self.base + bisect_right(self.events, rv, key=_RV)

    def between(self, start: int, stop: int) -> list[StoreEvent]:
        """Events by position; both must be kept."""
        events, base = self.events, self.base
        return [events[position - base] for position in range(start, stop)]


class History:
    """All trails, bounded together. ``rv`` is the newest visible version."""

    def __init__(self, limits: StoreLimits, *, floor: int, rv: int) -> None:
        self.floor = floor
        self.rv = rv
        self._limits = limits
        self._order: deque[Trail] = deque()
        self._bytes = 0
        self._ages: deque[tuple[float, int]] = deque()
        self._exact_floor = floor

    def __len__(self) -> int:
        return len(self._order)

    @property
    def bytes(self) -> int:
        """What the events kept may keep alive."""
        return self._bytes

    def add(
        self, trail: Trail, type: WatchEventType, entry: Entry, previous: Entry | None, now: float
    ) -> StoreEvent:
        """Append an event; versions must rise."""
        assert entry.rv > self.rv, "versions rise"
        trail.size += len(entry.raw)
        event = StoreEvent(type, entry, previous, now, trail.size)
        trail.events.append(event)
        self._order.append(trail)
        self._bytes += event.cost
        self.rv = entry.rv
        return event

    def stamp(self, now: float) -> None:
        """Remember when the newest version became visible, to a thousandth of the age kept."""
        if not self._ages or now - self._ages[-1][0] >= self._limits.history_age / 1000:
            self._ages.append((now, self.rv))
            self._forget(now)

    def trim(self, now: float) -> None:
        """Drop what is too old or too much, oldest first."""
        limits = self._limits
        while self._order:
            trail = self._order[0]
            event = trail.events[0]
            number = len(self._order)
            if (
                number <= limits.history_events
                and self._bytes <= limits.history_bytes
                and (number <= limits.history_keep or event.time >= now - limits.history_age)
            ):
                break
            self._order.popleft()
            trail.events.popleft()
            trail.base += 1
            self._bytes -= event.cost
            self.floor = event.entry.rv

    def check_resumable(self, rv: int) -> None:
        """Refuse to resume a watch after a version that was dropped."""
        if rv < self.floor:
            raise Expired(rv, self.floor)

    def check_listable(self, rv: int, now: float) -> None:
        """Refuse to list the state at a version that is too old."""
        self._forget(now)
        floor = max(self.floor, self._exact_floor)
        if rv < floor:
            raise Expired(rv, floor)

    def _forget(self, now: float) -> None:
        while self._ages and self._ages[0][0] <= now - self._limits.history_age:
            self._exact_floor = self._ages.popleft()[1]


_RV = attrgetter("entry.rv")
