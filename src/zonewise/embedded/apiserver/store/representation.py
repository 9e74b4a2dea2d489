"""How an event is encoded on a watch's stream, once for all watchers of the same form.

A ``Representation`` turns an event's type and object into one frame. The default splices the
object's stored bytes; tables, partial metadata and other versions of a kind are representations
that the server provides. Two watchers share their frames when they have the *same* representation,
so the server keeps one per kind and form instead of making one per request.

Frames are kept with the event while it is young. ``Frames`` bounds all of them together in bytes,
oldest first; what was dropped is encoded again for watchers that still need it.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, Protocol

from zonewise.embedded.apiserver.store.collection import Matches
from zonewise.embedded.apiserver.store.entry import Entry, WatchEventType
from zonewise.embedded.apiserver.store.history import StoreEvent

View = Literal["ADDED", "MODIFIED", "DELETED", "LEFT"]
"""What an event is to one watcher. ``LEFT``: the object still exists but is no longer selected."""


class Representation(Protocol):
    """A form of objects on a stream."""

    def frame(self, type: WatchEventType, entry: Entry) -> bytes:
        """One event as it is sent, with its line end; must not fail."""


class _Whole:
    """Objects as they are stored."""

    def frame(self, type: WatchEventType, entry: Entry) -> bytes:
        return b'{"type":"%b","object":%b}\n' % (_TYPES[type], entry.raw)


WHOLE: Representation = _Whole()


def view(event: StoreEvent, matches: Matches | None) -> View | None:
    """What an event is to a watcher with this selection, or None if it is nothing."""
    if matches is None:
        return event.type
    deleted = event.type == "DELETED"
    now = not deleted and matches(event.entry)
    before = event.previous is not None and matches(event.previous)
    if now:
        return "MODIFIED" if before else "ADDED"
    if before:
        return "DELETED" if deleted else "LEFT"
    return None


class Frames:
    """The frames of young events."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._young: deque[tuple[StoreEvent, object, int]] = deque()
        self._bytes = 0

    def of(self, event: StoreEvent, seen: View, representation: Representation) -> bytes:
        """The frame of an event, encoded now unless another watcher had it before."""
        kept = event.encoded
        if kept is None:
            kept = event.encoded = {}
        key = (representation, seen)
        frame = kept.get(key)
        if frame is None:
            if seen == "LEFT":
                assert event.previous is not None, "only what was there can leave"
                frame = representation.frame("DELETED", event.previous.at(event.entry.rv))
            else:
                frame = representation.frame(seen, event.entry)
            kept[key] = frame
            self._keep(event, key, len(frame))
        return frame

    def _keep(self, event: StoreEvent, key: object, size: int) -> None:
        self._young.append((event, key, size))
        self._bytes += size
        while self._bytes > self._limit:
            old, its, size = self._young.popleft()
            self._bytes -= size
            if old.encoded is not None:
                old.encoded.pop(its, None)


_TYPES: dict[WatchEventType, bytes] = {
    "ADDED": b"ADDED",
    "MODIFIED": b"MODIFIED",
    "DELETED": b"DELETED",
}
