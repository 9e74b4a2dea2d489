"""How an event is encoded for watches, once for all watchers of the same representation.

A ``Representation`` encodes an event's type and object as one frame. The default splices the
object's stored bytes; tables, partial metadata and other versions of a kind are representations
that the server provides. Two watchers share their frames if they have the *same* representation,
so the server has one per kind and form instead of one per request.

Frames are stored with recent events. ``FrameCache`` bounds all of them together in bytes, oldest
first; what was dropped is encoded again for watchers that still need it.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, Protocol

from zonewise.embedded.apiserver.store.collection import Matches
from zonewise.embedded.apiserver.store.entry import Entry, WatchEventType
from zonewise.embedded.apiserver.store.history import StoreEvent

WatcherEventType = Literal["ADDED", "MODIFIED", "DELETED", "LEFT"]
"""The type of an event for one watcher. ``LEFT``: the object exists but is no longer selected."""


class Representation(Protocol):
    """A form of objects on a stream."""

    def frame(self, type: WatchEventType, entry: Entry) -> bytes:
        """One event as it is sent, with a newline; must not fail."""


class _FullObject:
    """Objects as they are stored."""

    def frame(self, type: WatchEventType, entry: Entry) -> bytes:
        return b'{"type":"%b","object":%b}\n' % (_TYPES[type], entry.raw)


FULL_OBJECT: Representation = _FullObject()


def event_type_for(event: StoreEvent, matches: Matches | None) -> WatcherEventType | None:
    """The type of an event for a watcher with this selection, None if it is not concerned."""
    if matches is None:
        return event.type
    deleted = event.type == "DELETED"
    matches_now = not deleted and matches(event.entry)
    matched_before = event.previous is not None and matches(event.previous)
    if matches_now:
        return "MODIFIED" if matched_before else "ADDED"
    if matched_before:
        return "DELETED" if deleted else "LEFT"
    return None


class FrameCache:
    """The frames of recent events."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._recent: deque[tuple[StoreEvent, object, int]] = deque()
        self._bytes = 0

    def get(
        self, event: StoreEvent, event_type: WatcherEventType, representation: Representation
    ) -> bytes:
        """The frame of an event, encoded now unless another watcher had it before."""
        frames = event.encoded
        if frames is None:
            frames = event.encoded = {}
        key = (representation, event_type)
        frame = frames.get(key)
        if frame is None:
            if event_type == "LEFT":
                assert event.previous is not None, "an object that leaves was there before"
                frame = representation.frame("DELETED", event.previous.with_version(event.entry.rv))
            else:
                frame = representation.frame(event_type, event.entry)
            frames[key] = frame
            self._remember(event, key, len(frame))
        return frame

    def _remember(self, event: StoreEvent, key: object, size: int) -> None:
        self._recent.append((event, key, size))
        self._bytes += size
        while self._bytes > self._limit:
            oldest, oldest_key, size = self._recent.popleft()
            self._bytes -= size
            if oldest.encoded is not None:
                oldest.encoded.pop(oldest_key, None)


_TYPES: dict[WatchEventType, bytes] = {
    "ADDED": b"ADDED",
    "MODIFIED": b"MODIFIED",
    "DELETED": b"DELETED",
}
