"""Group commit: how writes get from memory to the disk and become visible.

A write waits in a batch. While the worker syncs one batch the next one gathers, so one sync serves
all concurrent writers, and a lone writer does not wait for others. The first batch is taken one
turn of the loop after its first write, so writers that are ready in the same turn share it. When a
batch is on the disk it is published, in order, and then its writers are answered.

``durable=False`` (renewals of leases) makes an update visible before it is stored: it is stored
with the next commit, at the latest after ``unsynced_seconds``, and never overtakes a write before
it. Its version is below a ceiling that was stored before; a restart after a crash continues above
the ceiling, so a version that a client may have seen is never reused.

When the disk fails, every waiting write fails with the same error and is undone. A full disk is
tried again after ``retry_seconds``. Anything else needs a restart, because the content of the file
is unknown then. What was published already (not durable) is kept for the next try.

Compaction runs between commits, one bounded step at a time, while the log holds more than twice
what it would need to.

Without a log, or ``inline``, there is no thread: a write is published before ``submit`` returns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from zonewise.api.errors import ZonewiseError
from zonewise.embedded.apiserver.store.collection import Collection
from zonewise.embedded.apiserver.store.compaction import Record, Sweep
from zonewise.embedded.apiserver.store.entry import Entry, WatchEventType
from zonewise.embedded.apiserver.store.limits import StoreLimits
from zonewise.embedded.apiserver.store.log import Log, WriteFailed
from zonewise.embedded.apiserver.store.worker import Worker

Clock = Callable[[], float]


class Overloaded(ZonewiseError):
    """More writes wait for the disk than may wait."""


class PendingWrite(NamedTuple):
    """One write on its way."""

    type: WatchEventType
    collection: Collection
    entry: Entry
    previous: Entry | None
    durable: bool
    written: asyncio.Future[Entry]

    @property
    def record(self) -> Record:
        """The write as the log keeps it."""
        entry = self.entry
        return Record(entry.rv, self.collection.kind, entry.key, _CODES[self.type], entry.raw)


class Need(Protocol):
    """What a log is for."""

    def weight(self) -> int:
        """The least it could weigh, or more: objects and history."""

    def floor(self) -> int:
        """The newest version that the history has dropped."""

    def versions(self) -> Mapping[str, Mapping[str, int]]:
        """The version of every object at that floor, by kind and key."""


Publish = Callable[[Sequence[PendingWrite]], None]
Undo = Callable[[Sequence[PendingWrite]], None]


class Committer:
    """Takes writes in order; publishes them when they are stored, or undoes them."""

    def __init__(
        self,
        log: Log | None,
        *,
        publish: Publish,
        undo: Undo,
        need: Need,
        clock: Clock,
        limits: StoreLimits,
        inline: bool,
    ) -> None:
        self.failure: str | None = None
        self._log = log
        self._publish = publish
        self._undo = undo
        self._need = need
        self._clock = clock
        self._limits = limits
        self._inline = inline
        self._worker: Worker | None = None
        self._pending: deque[PendingWrite] = deque()
        self._pending_bytes = 0
        self._unsynced: list[Record] = []
        self._compacted_last = False
        self._sweep: Sweep | None = None
        self._busy = False
        self._kicked = False
        self._stopped = False
        self._lasting = False
        self._retry_at = 0.0
        self._flush: asyncio.TimerHandle | None = None
        self._idle: asyncio.Event | None = None

    def check(self) -> None:
        """Refuse a write that could not be stored, or not in bounded memory."""
        if self._stopped:
            raise WriteFailed("the state is closed", lasting=True)
        if self.failure is not None and (self._lasting or self._rests()):
            raise WriteFailed(self.failure, lasting=self._lasting)
        limits = self._limits
        if (
            len(self._pending) >= limits.pending_writes
            or self._pending_bytes >= limits.pending_bytes
        ):
            raise Overloaded(f"{len(self._pending)} writes wait for the disk: try again shortly")

    def submit(self, change: PendingWrite) -> None:
        """Take a write; its future is done when it is stored and visible."""
        self._pending.append(change)
        self._pending_bytes += len(change.entry.raw)
        if self._inline:
            self._advance()
        elif not self._busy and not self._kicked:
            self._kicked = True
            asyncio.get_running_loop().call_soon(self._kick)

    async def close(self, rv: Callable[[], int]) -> None:
        """Store what waits, then close the log so that it continues from version ``rv()``."""
        self._stopped = True
        if self._flush is not None:
            self._flush.cancel()
        self._idle = asyncio.Event()
        self._advance(flush=True)
        if self._busy or self._pending:
            await self._idle.wait()
        if self._worker is not None:
            self._worker.stop()
        if self._log is not None:
            self._log.close(rv())
            self._log = None

    def _kick(self) -> None:
        self._kicked = False
        self._advance()

    def _advance(self, *, flush: bool = False) -> None:
        """Start whatever should be done next; returns when the worker is busy or all is done."""
        while not self._busy:
            if self._compaction_due():
                self._compact()
            elif self._pending:
                self._commit(self._batch())
            elif self._unsynced and (flush or self._stopped) and self.failure is None:
                self._commit([])
            else:
                break
        if self._idle is not None and not self._busy:
            self._idle.set()

    def _batch(self) -> list[PendingWrite]:
        limits = self._limits
        batch: list[PendingWrite] = []
        size = 0
        while self._pending and len(batch) < limits.batch_writes and size < limits.batch_bytes:
            change = self._pending.popleft()
            batch.append(change)
            size += len(change.entry.raw)
        self._pending_bytes -= size
        return batch

    def _commit(self, batch: list[PendingWrite]) -> None:
        self._compacted_last = False
        log = self._log
        if log is None:
            self._show(batch)
            return
        passing = [change for change in batch if not change.durable]
        records = [change.record for change in batch]
        limits = self._limits
        if (
            batch
            and len(passing) == len(batch)
            and not self._inline
            and self.failure is None
            and batch[-1].entry.rv <= log.ceiling
            and len(self._unsynced) + len(batch) <= limits.unsynced_writes
        ):
            self._unsynced += records
            if self._flush is None:
                loop = asyncio.get_running_loop()
                self._flush = loop.call_later(limits.unsynced_seconds, self._flushed)
            self._show(batch)
            return
        ceiling = None
        if passing and batch[-1].entry.rv + limits.unsynced_writes // 2 > log.ceiling:
            ceiling = batch[-1].entry.rv + limits.unsynced_writes
        self._run(
            partial(log.append, self._unsynced + records, ceiling=ceiling),
            partial(self._committed, batch),
        )

    def _committed(self, batch: list[PendingWrite], failure: Exception | None) -> None:
        if failure is not None:
            self._fail(batch, failure)
            return
        self.failure = None
        self._unsynced.clear()
        self._show(batch)

    def _show(self, batch: list[PendingWrite]) -> None:
        if not batch:
            return
        self._publish(batch)
        for change in batch:
            if not change.written.done():
                change.written.set_result(change.entry)

    def _rests(self) -> bool:
        """Whether the disk is left alone; a clock that was set back does not make that longer."""
        return 0.0 < self._retry_at - self._clock() <= self._limits.retry_seconds

    def _fail(self, batch: list[PendingWrite], failure: Exception) -> None:
        lasting = not isinstance(failure, WriteFailed) or failure.lasting
        self.failure = str(failure)
        self._lasting = lasting
        self._retry_at = self._clock() + self._limits.retry_seconds
        lost = [*batch, *self._pending]
        self._pending.clear()
        self._pending_bytes = 0
        self._undo(lost)
        for change in lost:
            if not change.written.done():
                change.written.set_exception(WriteFailed(self.failure, lasting=lasting))

    def _flushed(self) -> None:
        self._flush = None
        self._advance(flush=True)

    def _compaction_due(self) -> bool:
        log = self._log
        if (
            log is None
            or self._stopped
            or self.failure is not None
            or (self._pending and self._compacted_last)  # commits and compaction take turns
        ):
            return False
        if self._sweep is not None:
            return True
        waste = self._limits.waste_bytes
        if log.weight <= waste or log.weight <= 2 * self._need.weight() + waste:
            return False
        floor = self._need.floor()
        if not log.floor < floor <= log.last:
            return False
        self._sweep = Sweep(floor, self._need.versions(), log.row)
        return True

    def _compact(self) -> None:
        log, sweep = self._log, self._sweep
        assert log is not None and sweep is not None, "only what is due is done"
        self._compacted_last = True
        ended: list[bool] = []

        def step() -> None:
            ended.append(not log.compact(sweep, self._limits.compact_bytes))

        self._run(step, partial(self._compacted, ended))

    def _compacted(self, ended: list[bool], failure: Exception | None) -> None:
        if failure is not None:
            self._fail([], failure)
        if ended != [False]:
            self._sweep = None

    def _run(self, job: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        log = self._log
        assert log is not None, "only a log has jobs"
        if self._inline:
            failure: Exception | None = None
            try:
                job()
            except Exception as error:
                failure = error
            done(failure)
            log.tidy()
            return
        if self._worker is None:
            self._worker = Worker(asyncio.get_running_loop(), "zonewise-log")
        self._busy = True
        self._worker.submit(job, partial(self._done, done), log.tidy)

    def _done(self, done: Callable[[Exception | None], None], failure: Exception | None) -> None:
        self._busy = False
        done(failure)
        self._advance()


_CODES: dict[WatchEventType, int] = {"ADDED": 0, "MODIFIED": 1, "DELETED": 2}
TYPES: tuple[WatchEventType, ...] = ("ADDED", "MODIFIED", "DELETED")
