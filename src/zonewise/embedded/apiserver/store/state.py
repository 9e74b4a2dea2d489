"""The state of a cluster: all objects and their versions, in one order.

All of it is in memory and belongs to the event loop's thread. ``write`` takes the next version in
the call, so the order of calls is the order of versions. It becomes visible when it is on the disk
(`embedded.apiserver.store.committer`): to readers, to the history, to watchers and then to its
writer, batch by batch, in order. ``get``, ``list`` and ``watch`` return committed state only;
writers check against ``latest``, which includes what still waits for its commit, so of two writers
that read the same version one gets ``WriteConflict``.

A kind is named by the resource it is stored as, ``group/plural``: ``/pods``, ``apps/deployments``.

Everything that can grow beside the objects is bounded by ``StoreLimits``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from zonewise.api.errors import ZonewiseError
from zonewise.embedded.apiserver.store.collection import Collection, ListPage, Matches
from zonewise.embedded.apiserver.store.committer import TYPES, Clock, Committer, PendingWrite
from zonewise.embedded.apiserver.store.compaction import DELETED
from zonewise.embedded.apiserver.store.entry import Entry, WatchEventType, key_of
from zonewise.embedded.apiserver.store.history import History, StoreEvent
from zonewise.embedded.apiserver.store.limits import StoreLimits
from zonewise.embedded.apiserver.store.log import FIRST_RV, Log, LogContents, weight_of
from zonewise.embedded.apiserver.store.representation import FULL_OBJECT, FrameCache, Representation
from zonewise.embedded.apiserver.store.watchers import SERVER_STOPPING, Watcher, Watchers
from zonewise.runtime.process.logs import logger

Build = Callable[[int], bytes]

_log = logger("state")


class _AnyVersion:
    """Matches any present version."""


ANY_VERSION: Final = _AnyVersion()


class WriteConflict(ZonewiseError):
    """Another write came first. ``latest`` is the present entry, or None."""

    def __init__(self, kind: str, key: str, latest: Entry | None) -> None:
        super().__init__(f"{kind} {key} was changed by another write")
        self.latest = latest


class VersionTooLarge(ZonewiseError):
    """The requested version does not exist yet."""

    def __init__(self, rv: int, current: int) -> None:
        super().__init__(f"Too large resource version: {rv}, current: {current}")
        self.rv = rv
        self.current = current


class State:
    """Objects, versions, history and watches of one cluster.

    Without a log everything is in memory only. With ``inline`` commits run in the caller instead of
    a thread: under virtual time a write is done when the call returns.
    """

    def __init__(
        self,
        log: Log | None = None,
        contents: LogContents | None = None,
        *,
        clock: Clock,
        limits: StoreLimits | None = None,
        inline: bool = False,
    ) -> None:
        self.limits = limits or StoreLimits()
        self._clock = clock
        self._collections: dict[str, Collection] = {}
        self._objects_weight = 0
        self._watchers: dict[str, Watchers] = {}
        self._listeners: list[Callable[[str, StoreEvent], None]] = []
        self._frames = FrameCache(self.limits.encoding_bytes)
        self._version_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._committer = Committer(
            log,
            publish=self._publish,
            undo=self._undo,
            retention=_StateRetention(self),
            clock=clock,
            limits=self.limits,
            inline=inline or log is None,
        )
        floor = contents.floor if contents else FIRST_RV
        self._history = History(self.limits, floor=floor, rv=floor)
        if contents is not None:
            self._load(contents)
        self._next_rv = self._history.rv + 1

    @classmethod
    def open(
        cls, path: Path, *, clock: Clock, limits: StoreLimits | None = None, inline: bool = False
    ) -> State:
        """The state in a data folder; refuses one in use, damaged or of a newer release."""
        log, contents = Log.open(path)
        return cls(log, contents, clock=clock, limits=limits, inline=inline)

    async def close(self) -> None:
        """End all watches, store pending writes, leave one complete file. Later writes fail."""
        for watchers in self._watchers.values():
            watchers.close(SERVER_STOPPING)
        await self._committer.close(lambda: self.visible_rv)

    @property
    def visible_rv(self) -> int:
        """The newest version that readers and watchers may see."""
        return self._history.rv

    @property
    def floor(self) -> int:
        """The oldest version that a watch can resume from."""
        return self._history.floor

    @property
    def weight(self) -> int:
        """The weight of all objects and of the history in a log."""
        return self._objects_weight + self._history.bytes

    @property
    def failure(self) -> str | None:
        """Why writes are refused, in a sentence, or None if they are not."""
        return self._committer.failure

    def listen(self, listener: Callable[[str, StoreEvent], None]) -> None:
        """Call ``listener`` with the kind and each event from now on, while it is published.

        Listeners are called before the writer is answered. They must be quick and must not write.
        """
        self._listeners.append(listener)

    def kinds(self) -> Iterator[tuple[str, int, int]]:
        """Each kind with the number of its objects and of its watchers."""
        for kind, collection in self._collections.items():
            watchers = self._watchers.get(kind)
            yield kind, len(collection.entries), len(watchers) if watchers else 0

    def get(self, kind: str, namespace: str, name: str) -> Entry | None:
        """The committed version of an object."""
        collection = self._collections.get(kind)
        return collection.entries.get(key_of(namespace, name)) if collection else None

    def latest(self, kind: str, namespace: str, name: str) -> Entry | None:
        """The newest version of an object, though it may still wait for its commit."""
        collection = self._collections.get(kind)
        return collection.latest(key_of(namespace, name)) if collection else None

    def count(self, kind: str, namespace: str = "") -> int:
        """The number of objects, in one namespace or in all."""
        collection = self._collections.get(kind)
        return collection.count(namespace) if collection else 0

    def list(
        self,
        kind: str,
        namespace: str = "",
        *,
        matches: Matches | None = None,
        limit: int = 0,
        after: str = "",
        rv_at: int | None = None,
    ) -> ListPage:
        """Objects in order of their keys, at most ``limit`` (0: all) behind the key ``after``.

        ``rv_at`` lists the objects of an earlier version. Raises ``Expired`` if that is no longer
        available and ``VersionTooLarge`` if it does not exist yet.
        """
        rv = self.visible_rv if rv_at is None else rv_at
        if rv_at is not None:
            self._check_exists(rv_at)
            self._history.check_listable(rv_at, self._clock())
        collection = self._collections.get(kind)
        if collection is None:
            return ListPage([], rv)
        changed = (
            collection.entries_changed_since(rv_at)
            if rv_at is not None and rv_at < self.visible_rv
            else None
        )
        return collection.page(
            rv, namespace=namespace, after=after, limit=limit, matches=matches, changed=changed
        )

    def watch(
        self,
        kind: str,
        namespace: str = "",
        name: str = "",
        *,
        since: int | None = None,
        initial: bool = False,
        initial_end: Callable[[int], bytes] | None = None,
        matches: Matches | None = None,
        representation: Representation = FULL_OBJECT,
    ) -> Watcher:
        """Watch a kind, one namespace of it, or one object.

        ``since`` resumes after a version; the default is the present one. With ``initial`` the
        present objects come first, as ADDED, then ``initial_end(version)``, then changes. ``name``
        alone is for cluster-scoped kinds. Raises ``Expired`` or ``VersionTooLarge`` for a version
        that cannot be resumed from.
        """
        collection = self._collection(kind)
        buffer = collection.buffer
        position = buffer.end
        if since is not None and not initial:
            self._check_exists(since)
            self._history.check_resumable(since)
            position = buffer.position_after(since)
        entries: Sequence[Entry] | None = None
        initial_end_frame = b""
        if initial:
            if name:
                entry = collection.entries.get(key_of(namespace, name))
                entries = [entry] if entry is not None else []
            else:
                entries = collection.page(self.visible_rv, namespace=namespace).entries
            initial_end_frame = initial_end(self.visible_rv) if initial_end is not None else b""
        watchers = self._watchers.get(kind)
        if watchers is None:
            watchers = self._watchers[kind] = Watchers(
                buffer, self._history, self.limits, self._frames
            )
        watcher = Watcher(
            watchers,
            position=position,
            scope=key_of(namespace, name),
            matches=matches,
            representation=representation,
            initial=entries,
            initial_end=initial_end_frame,
        )
        watchers.add(watcher)
        return watcher

    def end_watches(self, kind: str, reason: str) -> None:
        """End all watches of a kind that is no longer served."""
        watchers = self._watchers.get(kind)
        if watchers is not None:
            watchers.close(reason)

    async def wait_for_version(self, rv: int, timeout: float) -> None:
        """Wait until ``rv`` is visible; raises ``VersionTooLarge`` after ``timeout`` seconds."""
        if rv <= self.visible_rv:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (rv, future)
        self._version_waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            raise VersionTooLarge(rv, self.visible_rv) from None
        finally:
            if waiter in self._version_waiters:
                self._version_waiters.remove(waiter)

    def write(
        self,
        kind: str,
        namespace: str,
        name: str,
        type: WatchEventType,
        build: Build,
        *,
        expected: Entry | _AnyVersion | None = ANY_VERSION,
        durable: bool = True,
        completed_by: object = None,
    ) -> asyncio.Future[Entry]:
        """Store a version of an object, or its deletion.

        ``build`` gets the new version's number and returns the object's bytes with it; for a
        deletion those of the object's last content. Everything up to here happens in the call: the
        write is ordered, and ``latest`` shows it. The future is done when it is stored and visible.
        Cancelling the future does not take the write back.

        ``expected`` is what ``latest`` was when the writer decided (None: no object). Raises
        ``WriteConflict`` if it is not that now, or if an object to be added exists or one to be
        changed does not. Raises ``WriteFailed`` or ``Overloaded``; so may the future.

        ``durable=False`` lets an update be seen before it is stored; a crash may lose it.
        """
        committer = self._committer
        committer.check()
        collection = self._collection(kind)
        key = key_of(namespace, name)
        previous = collection.latest(key)
        if (previous is None) != (type == "ADDED") or (
            not isinstance(expected, _AnyVersion) and expected is not previous
        ):
            raise WriteConflict(kind, key, previous)
        entry = Entry.decode(build(self._next_rv), self._next_rv)
        if entry.key != key:
            raise ValueError(f"{kind} {key} was built as {entry.key}")
        entry.completed_by = completed_by
        written: asyncio.Future[Entry] = asyncio.get_running_loop().create_future()
        self._next_rv += 1
        collection.add_pending(entry, deleted=type == "DELETED")
        committer.submit(
            PendingWrite(type, collection, entry, previous, durable or type != "MODIFIED", written)
        )
        return written

    def _collection(self, kind: str) -> Collection:
        collection = self._collections.get(kind)
        if collection is None:
            collection = self._collections[kind] = Collection(kind)
        return collection

    def _check_exists(self, rv: int) -> None:
        if rv > self.visible_rv:
            raise VersionTooLarge(rv, self.visible_rv)

    def _publish(self, batch: Sequence[PendingWrite]) -> None:
        """Make committed writes visible."""
        now = self._clock()
        history = self._history
        published: dict[Collection, tuple[int, list[StoreEvent]]] = {}
        for type, collection, entry, previous, _, _ in batch:
            self._commit(collection, type, entry, previous)
            if collection not in published:
                published[collection] = (collection.buffer.end, [])
            event = history.add(collection.buffer, type, entry, previous, now)
            published[collection][1].append(event)
        history.record_time(now)
        for collection, (start, events) in published.items():
            watchers = self._watchers.get(collection.kind)
            if watchers is not None:
                watchers.publish(start, events)
            for listener in self._listeners:
                self._notify(listener, collection.kind, events)
        if self._version_waiters:
            for rv, future in self._version_waiters:
                if rv <= history.rv and not future.done():
                    future.set_result(None)
        history.trim(now)

    def _commit(
        self, collection: Collection, type: WatchEventType, entry: Entry, previous: Entry | None
    ) -> None:
        deleted = type == "DELETED"
        collection.commit(entry, deleted=deleted)
        if not deleted:
            self._objects_weight += weight_of(entry.raw)
        if previous is not None:
            self._objects_weight -= weight_of(previous.raw)

    def _notify(
        self, listener: Callable[[str, StoreEvent], None], kind: str, events: Sequence[StoreEvent]
    ) -> None:
        for event in events:
            try:
                listener(kind, event)
            except Exception:  # the write is stored: all other listeners must get it
                _log.exception("a listener failed", kind=kind, key=event.entry.key)

    def _undo(self, batch: Sequence[PendingWrite]) -> None:
        """Drop writes that were not stored; no client has seen their versions."""
        for change in batch:
            change.collection.drop_pending()
        self._next_rv = self.visible_rv + 1

    def _load(self, contents: LogContents) -> None:
        """Load a log's contents. Of records older than the history only the last is decoded."""
        history_start = self._history_start(contents)
        latest = {(record.kind, record.key): record for record in contents.objects}
        for record in contents.records[:history_start]:
            latest[record.kind, record.key] = record
            self._history.floor = self._history.rv = record.rv
        entries_by_kind: dict[str, list[Entry]] = {}
        for record in latest.values():
            if record.type != DELETED:
                entries_by_kind.setdefault(record.kind, []).append(
                    Entry.decode(record.raw, record.rv)
                )
        for kind, entries in entries_by_kind.items():
            self._collection(kind).load(entries)
            self._objects_weight += sum(weight_of(entry.raw) for entry in entries)
        now = self._clock()
        for record in contents.records[history_start:]:
            collection = self._collection(record.kind)
            entry = Entry.decode(record.raw, record.rv)
            previous = collection.entries.get(entry.key)
            type = TYPES[record.type]
            self._commit(collection, type, entry, previous)
            self._history.add(collection.buffer, type, entry, previous, now)
        self._history.rv = contents.rv
        self._history.record_time(now)
        self._history.trim(now)

    def _history_start(self, contents: LogContents) -> int:
        """The index of the first record that fits in the history."""
        start = len(contents.records)
        size = 0
        while (
            start > 0
            and len(contents.records) - start < self.limits.history_events
            and size < self.limits.history_bytes
        ):
            start -= 1
            size += len(contents.records[start].raw)
        return start


class _StateRetention:
    """What the log has to retain of a state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def weight(self) -> int:
        return self._state.weight

    def floor(self) -> int:
        return self._state.floor

    def versions(self) -> dict[str, dict[str, int]]:
        by_kind = {}
        for kind, collection in self._state._collections.items():
            versions = {key: entry.rv for key, entry in collection.entries.items()}
            for key, entry in collection.entries_changed_since(self._state.floor).items():
                versions[key] = entry.rv if entry is not None else 0
            by_kind[kind] = versions
        return by_kind
