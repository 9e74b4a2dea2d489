"""Tells our own writes from foreign edits when they come back on the watch.

That a Service is not planned again before the store shows what was written for it is
``Expectations``, as for every controller. Here is what only this one needs: a foreign edit of a
slice has to be undone, our own write must not enqueue the Service again. A change with the version
that a write of ours returned is ours. It may come back before the answer does; changes seen while a
Service is being written are therefore kept and judged afterwards.

A wait has no end here: slices have generated names, so planning from an old store would create them
twice. A server whose versions are not numbers gives no order to wait for; there every change counts
as foreign, and conflicts protect.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from zonewise.api.meta import Key
from zonewise.api.objects.discovery import EndpointSlice
from zonewise.runtime.cache.store import Store
from zonewise.runtime.client.versions import number
from zonewise.runtime.controller.expectations import Expectations


@dataclass(slots=True)
class _Notes:
    versions: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    seen: list[str] | None = None
    """Versions and uids of changes that arrived while the Service is being written."""


class OwnWrites:
    """What was written for each Service and has not been seen on the watch yet."""

    def __init__(self, store: Store[EndpointSlice]) -> None:
        self._expectations: Expectations[Key, EndpointSlice] = Expectations(store, clock=_standing)
        self._notes: dict[Key, _Notes] = {}

    def begin(self, key: Key) -> None:
        """The Service is going to be written."""
        self._notes.setdefault(key, _Notes()).seen = []

    def wrote(self, key: Key, answer: EndpointSlice) -> None:
        """A slice was created or replaced."""
        version = answer.metadata.resource_version
        self._notes[key].versions.add(version)
        if number(version) >= 0:
            self._expectations.wrote(key, answer)

    def deleted(self, key: Key, piece: EndpointSlice) -> None:
        """A slice was deleted."""
        self._notes[key].deleted.add(piece.metadata.uid)
        self._expectations.removed(key, piece)

    def end(self, key: Key) -> bool:
        """The Service has been written; whether another writer changed its slices meanwhile."""
        notes = self._notes[key]
        seen, notes.seen = notes.seen or [], None
        return bool([change for change in seen if not self._expected(notes, change)])

    def foreign(self, key: Key, old: EndpointSlice | None, new: EndpointSlice | None) -> bool:
        """Whether a change of a slice is foreign; while we write, that is decided later."""
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

    def behind(self, key: Key) -> bool:
        """Whether the store has not caught up with what was written for the Service."""
        if not self._expectations.settled(key):
            return True
        # Every write was seen, or was overtaken by a list that shows a later state.
        self._notes.pop(key, None)
        return False

    def forget(self, key: Key) -> None:
        """The Service is deleted."""
        self._notes.pop(key, None)
        self._expectations.forget(key)

    @staticmethod
    def _expected(notes: _Notes, mark: str) -> bool:
        if mark in notes.versions:
            notes.versions.discard(mark)
            return True
        return mark in notes.deleted


def _standing() -> float:
    """A clock that stands still: what was written is waited for as long as it takes."""
    return 0.0
