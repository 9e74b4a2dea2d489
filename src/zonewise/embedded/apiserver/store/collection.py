"""The objects of one kind, in the order of their keys.

``entries`` is the committed state that every reader gets. Uncommitted writes are layered over it:
writers check against those, so two conflicting writes never both succeed.

The keys are also in a sorted list. So one namespace is a slice of it, and a page starts where the
last one ended, without reading anything else; adding or removing one key of 100,000 costs some ten
microseconds of moving memory, sorting them again for the next list would cost milliseconds.

An old state is the present one with the events since then undone, newest first; only the keys that
changed are copied.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping
from heapq import merge
from typing import NamedTuple

from zonewise.embedded.apiserver.store.entry import Entry
from zonewise.embedded.apiserver.store.history import EventBuffer

Matches = Callable[[Entry], bool]


class ListPage(NamedTuple):
    """Part of a list.

    ``last`` is the key to continue after, or None at the end. ``remaining`` says how many objects
    follow; None when a selector makes that unknown.
    """

    entries: list[Entry]
    rv: int
    last: str | None = None
    remaining: int | None = 0


class Collection:
    """The stored objects of one kind."""

    __slots__ = ("_keys", "_pending", "buffer", "entries", "kind")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.entries: dict[str, Entry] = {}
        self.buffer = EventBuffer(kind)
        self._keys: list[str] = []
        self._pending: dict[str, tuple[Entry, bool]] = {}

    def load(self, entries: Iterable[Entry]) -> None:
        """Set many entries at once; only for an empty collection."""
        self.entries = {entry.key: entry for entry in entries}
        self._keys = sorted(self.entries)

    def latest(self, key: str) -> Entry | None:
        """The newest version, committed or not."""
        if key not in self._pending:
            return self.entries.get(key)
        entry, deleted = self._pending[key]
        return None if deleted else entry

    def add_pending(self, entry: Entry, *, deleted: bool) -> None:
        """Show writers a version that waits for its commit."""
        self._pending[entry.key] = (entry, deleted)

    def commit(self, entry: Entry, *, deleted: bool) -> None:
        """Make a version the committed one; later versions of the object may still be pending."""
        key = entry.key
        if deleted:
            del self.entries[key]
            del self._keys[bisect_left(self._keys, key)]
        else:
            if key not in self.entries:
                insort(self._keys, key)
            self.entries[key] = entry
        pending = self._pending.get(key)
        if pending is not None and pending[0] is entry:
            del self._pending[key]

    def drop_pending(self) -> None:
        """Drop all uncommitted writes."""
        self._pending.clear()

    def count(self, namespace: str | None = None) -> int:
        """How many objects are committed, in one namespace or in all."""
        first, stop = self._span(namespace, "")
        return stop - first

    def page(
        self,
        rv: int,
        *,
        namespace: str | None = None,
        after: str = "",
        limit: int = 0,
        matches: Matches | None = None,
        changed: Mapping[str, Entry | None] | None = None,
    ) -> ListPage:
        """Objects in order of their keys, at most ``limit`` that match; 0 is no limit.

        ``changed`` has what was different at ``rv``, from ``entries_changed_since``.
        """
        first, stop = self._span(namespace, after)
        keys = self._keys
        entries = self.entries
        if changed:
            entries_in_span = self._entries_at(first, stop, changed, namespace, after)
        elif matches is None:
            end = min(stop, first + limit) if limit else stop
            page = [entries[key] for key in keys[first:end]]
            return ListPage(page, rv, keys[end - 1] if end < stop else None, stop - end)
        else:
            entries_in_span = [entries[key] for key in keys[first:stop]]
        if matches is None:
            if not limit or len(entries_in_span) <= limit:
                return ListPage(entries_in_span, rv)
            return ListPage(
                entries_in_span[:limit],
                rv,
                entries_in_span[limit - 1].key,
                len(entries_in_span) - limit,
            )
        if not limit:
            return ListPage([entry for entry in entries_in_span if matches(entry)], rv, None, None)
        page = []
        for entry in entries_in_span:
            if matches(entry):
                if len(page) == limit:
                    return ListPage(page, rv, page[-1].key, None)
                page.append(entry)
        return ListPage(page, rv, None, None)

    def entries_changed_since(self, rv: int) -> dict[str, Entry | None]:
        """The objects that changed after a version: the entry then, None if there was none."""
        changed: dict[str, Entry | None] = {}
        for event in reversed(self.buffer.events):
            if event.entry.rv <= rv:
                break
            changed[event.entry.key] = event.previous
        return changed

    def _span(self, namespace: str | None, after: str) -> tuple[int, int]:
        """The range of a namespace in the keys, behind ``after``."""
        keys = self._keys
        first = 0
        stop = len(keys)
        if namespace:
            first = bisect_left(keys, f"{namespace}/")
            stop = bisect_left(keys, f"{namespace}0", first)  # "0" follows "/"
        if after:
            first = max(first, bisect_right(keys, after))
        return min(first, stop), stop

    def _entries_at(
        self,
        first: int,
        stop: int,
        changed: Mapping[str, Entry | None],
        namespace: str | None,
        after: str,
    ) -> list[Entry]:
        prefix = f"{namespace}/" if namespace else ""
        deleted = sorted(
            key
            for key, entry in changed.items()
            if entry is not None
            and key not in self.entries
            and key > after
            and key.startswith(prefix)
        )
        keys = self._keys[first:stop]
        entries = []
        for key in merge(keys, deleted) if deleted else keys:
            entry = changed[key] if key in changed else self.entries[key]
            if entry is not None:
                entries.append(entry)
        return entries
