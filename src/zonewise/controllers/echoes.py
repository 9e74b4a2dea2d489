"""Our own writes, as they come back on the watch.

A store follows the server a moment later. Who decides again before it has caught up sees slices
that he has already replaced or deleted, and would create them twice. So the version of each write
is noted; versions of one resource grow, and a watch brings changes in order: while the store is
older than our last write, or still shows a slice we deleted, the Service waits.

The same notes tell an echo from a foreign edit. A change with a version that we were given as the
answer to a write is ours and asks for nothing. It may come back before the answer does; changes
seen while a Service is being written are therefore kept and judged afterwards.

A server whose versions are no numbers gives no order to wait for; there every change counts as
somebody's, and conflicts are what protects.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from zonewise.api.discovery import EndpointSlice
from zonewise.api.meta import Key
from zonewise.runtime.store import Store, older


@dataclass(slots=True)
class _Notes:
    newest: str = ""
    versions: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    seen: list[str] | None = None
    """Versions and uids of changes that came while the Service is being written."""


class Echoes:
    """What was written for each Service and has not come back yet."""

    def __init__(self, store: Store[EndpointSlice]) -> None:
        self._store = store
        self._notes: dict[Key, _Notes] = {}

    def begin(self, key: Key) -> None:
        """The Service is going to be written."""
        self._notes.setdefault(key, _Notes()).seen = []

    def wrote(self, key: Key, answer: EndpointSlice) -> None:
        """A slice was created or replaced."""
        notes, version = self._notes[key], answer.metadata.resource_version
        notes.versions.add(version)
        notes.newest = version

    def deleted(self, key: Key, piece: EndpointSlice) -> None:
        """A slice was deleted."""
        self._notes[key].deleted.add(piece.metadata.uid)

    def end(self, key: Key) -> bool:
        """The Service has been written; whether somebody else changed its slices meanwhile."""
        notes = self._notes[key]
        seen, notes.seen = notes.seen or [], None
        return bool([one for one in seen if not self._expected(notes, one)])

    def foreign(self, key: Key, old: EndpointSlice | None, new: EndpointSlice | None) -> bool:
        """Whether a change of a slice is somebody else's; while we write, that is said later."""
        notes = self._notes.get(key)
        if notes is None:
            return True
        mark = new.metadata.resource_version if new is not None else ""
        if new is None and old is not None:
            mark = old.metadata.uid
        if self._expected(notes, mark):
            return False
        if notes.seen is not None:
            notes.seen.append(mark)
            return False
        return True

    def behind(self, key: Key, shown: Iterable[EndpointSlice]) -> bool:
        """Whether the store has not caught up with what was written for the Service."""
        notes = self._notes.get(key)
        if notes is None:
            return False
        if older(self._store.resource_version, notes.newest) or any(
            piece.metadata.uid in notes.deleted for piece in shown
        ):
            return True
        # Everything came back, or was overtaken by a list that shows a later state.
        del self._notes[key]
        return False

    def forget(self, key: Key) -> None:
        """The Service is gone."""
        self._notes.pop(key, None)

    @staticmethod
    def _expected(notes: _Notes, mark: str) -> bool:
        if mark in notes.versions:
            notes.versions.discard(mark)
            return True
        return mark in notes.deleted
