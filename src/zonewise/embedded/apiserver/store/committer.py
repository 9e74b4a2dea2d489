"""Group commit: how writes get from memory to the disk and become visible.

A write waits in a batch. While the worker syncs one batch, writes gather in the next one, so one
sync serves all concurrent writers, and a lone writer does not wait for others. The first batch is
taken one turn of the loop after its first write, so writers that are ready in the same turn share
it. When a batch is on the disk it is published, in order, and then its writers are answered.

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
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple, Protocol

from zonewise.api.errors import ZonewiseError
from zonewise.embedded.apiserver.store.collection import Collection
from zonewise.embedded.apiserver.store.compaction import CompactionPass, Record
from zonewise.embedded.apiserver.store.entry import Entry, WatchEventType
from zonewise.embedded.apiserver.store.limits import StoreLimits
from zonewise.embedded.apiserver.store.log import Log, WriteFailed

Clock = Callable[[], float]


class Overloaded(ZonewiseError):
    """Too many writes wait for the disk."""


class PendingWrite(NamedTuple):
    """One write that waits for its commit."""

    type: WatchEventType
    collection: Collection
    entry: Entry
    previous: Entry | None
    durable: bool
    future: asyncio.Future[Entry]

    @property
    def record(self) -> Record:
        """The write as a record of the log."""
        entry = self.entry
        return Record(entry.rv, self.collection.kind, entry.key, _CODES[self.type], entry.raw)


class Retention(Protocol):
    """What the log has to retain."""

    def weight(self) -> int:
        """An upper bound of the weight of objects and history."""

    def floor(self) -> int:
        """The newest version that the history has dropped."""

    def versions(self) -> Mapping[str, Mapping[str, int]]:
        """The version of every object at that floor, by kind and key."""


Publish = Callable[[Sequence[PendingWrite]], None]
Undo = Callable[[Sequence[PendingWrite]], None]


class _Job(NamedTuple):
    run: Callable[[], None]
    done: Callable[[Exception | None], None]
    clean_up: Callable[[], None]


class Worker:
    """The thread that waits for the disk, so that the event loop does not.

    One thread, one job at a time, in order: so commits are serial. The loop gets a job's result
    first; only then the thread cleans up, so nothing waits for that unless another job is queued.
    The committer submits the next job when the last one is done, so the queue stays short.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(
        self,
        run: Callable[[], None],
        done: Callable[[Exception | None], None],
        clean_up: Callable[[], None],
    ) -> None:
        """Run a job; ``done`` gets its error or None on the loop, ``tidy`` runs after that."""
        self._jobs.put(_Job(run, done, clean_up))

    def stop(self) -> None:
        """Finish what was submitted and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            failure: Exception | None = None
            try:
                job.run()
            except Exception as error:
                failure = error
            try:
                self._loop.call_soon_threadsafe(job.done, failure)
            except RuntimeError:
                return  # the loop is closed: there is no one to notify
            job.clean_up()


class Committer:
    """Stores writes in order and publishes them, or undoes them if that fails."""

    def __init__(
        self,
        log: Log | None,
        *,
        publish: Publish,
        undo: Undo,
        retention: Retention,
        clock: Clock,
        limits: StoreLimits,
        inline: bool,
    ) -> None:
        self.failure: str | None = None
        self._log = log
        self._publish = publish
        self._undo = undo
        self._retention = retention
        self._clock = clock
        self._limits = limits
        self._inline = inline
        self._worker: Worker | None = None
        self._pending: deque[PendingWrite] = deque()
        self._pending_bytes = 0
        self._unsynced: list[Record] = []
        self._compacted_last = False
        self._compaction: CompactionPass | None = None
        self._busy = False
        self._start_scheduled = False
        self._stopped = False
        self._failed_permanently = False
        self._retry_at = 0.0
        self._flush_timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.Event | None = None

    def check(self) -> None:
        """Refuse a write while the disk fails or too many writes wait."""
        if self._stopped:
            raise WriteFailed("the state is closed", permanent=True)
        if self.failure is not None and (self._failed_permanently or self._is_pausing()):
            raise WriteFailed(self.failure, permanent=self._failed_permanently)
        limits = self._limits
        if (
            len(self._pending) >= limits.pending_writes
            or self._pending_bytes >= limits.pending_bytes
        ):
            raise Overloaded(f"{len(self._pending)} writes wait for the disk: try again shortly")

    def submit(self, write: PendingWrite) -> None:
        """Queue a write; its future is done when it is stored and visible."""
        self._pending.append(write)
        self._pending_bytes += len(write.entry.raw)
        if self._inline:
            self._advance()
        elif not self._busy and not self._start_scheduled:
            self._start_scheduled = True
            asyncio.get_running_loop().call_soon(self._start)

    async def close(self, rv: Callable[[], int]) -> None:
        """Store what waits, then close the log so that the next start continues at ``rv()``."""
        self._stopped = True
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        self._idle = asyncio.Event()
        self._advance(flush=True)
        if self._busy or self._pending:
            await self._idle.wait()
        if self._worker is not None:
            self._worker.stop()
        if self._log is not None:
            self._log.close(rv())
            self._log = None

    def _start(self) -> None:
        self._start_scheduled = False
        self._advance()

    def _advance(self, *, flush: bool = False) -> None:
        """Start the next work; returns when the worker is busy or all is done."""
        while not self._busy:
            if self._compaction_due():
                self._compact()
            elif self._pending:
                self._commit(self._take_batch())
            elif self._unsynced and (flush or self._stopped) and self.failure is None:
                self._commit([])
            else:
                break
        if self._idle is not None and not self._busy:
            self._idle.set()

    def _take_batch(self) -> list[PendingWrite]:
        limits = self._limits
        batch: list[PendingWrite] = []
        size = 0
        while self._pending and len(batch) < limits.batch_writes and size < limits.batch_bytes:
            write = self._pending.popleft()
            batch.append(write)
            size += len(write.entry.raw)
        self._pending_bytes -= size
        return batch

    def _commit(self, batch: list[PendingWrite]) -> None:
        self._compacted_last = False
        log = self._log
        if log is None:
            self._publish_batch(batch)
            return
        volatile = [write for write in batch if not write.durable]
        records = [write.record for write in batch]
        limits = self._limits
        if (
            batch
            and len(volatile) == len(batch)
            and not self._inline
            and self.failure is None
            and batch[-1].entry.rv <= log.ceiling
            and len(self._unsynced) + len(batch) <= limits.unsynced_writes
        ):
            self._unsynced += records
            if self._flush_timer is None:
                loop = asyncio.get_running_loop()
                self._flush_timer = loop.call_later(limits.unsynced_seconds, self._flush_unsynced)
            self._publish_batch(batch)
            return
        ceiling = None
        if volatile and batch[-1].entry.rv + limits.unsynced_writes // 2 > log.ceiling:
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
        self._publish_batch(batch)

    def _publish_batch(self, batch: list[PendingWrite]) -> None:
        if not batch:
            return
        self._publish(batch)
        for write in batch:
            if not write.future.done():
                write.future.set_result(write.entry)

    def _is_pausing(self) -> bool:
        """Whether writes are refused after a full disk; a clock set back does not extend this."""
        return 0.0 < self._retry_at - self._clock() <= self._limits.retry_seconds

    def _fail(self, batch: list[PendingWrite], failure: Exception) -> None:
        permanent = not isinstance(failure, WriteFailed) or failure.permanent
        self.failure = str(failure)
        self._failed_permanently = permanent
        self._retry_at = self._clock() + self._limits.retry_seconds
        failed = [*batch, *self._pending]
        self._pending.clear()
        self._pending_bytes = 0
        self._undo(failed)
        for write in failed:
            if not write.future.done():
                write.future.set_exception(WriteFailed(self.failure, permanent=permanent))

    def _flush_unsynced(self) -> None:
        self._flush_timer = None
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
        if self._compaction is not None:
            return True
        waste = self._limits.waste_bytes
        if log.weight <= waste or log.weight <= 2 * self._retention.weight() + waste:
            return False
        floor = self._retention.floor()
        if not log.floor < floor <= log.last:
            return False
        self._compaction = CompactionPass(floor, self._retention.versions(), log.row)
        return True

    def _compact(self) -> None:
        log, compaction = self._log, self._compaction
        assert log is not None and compaction is not None, "compaction is due"
        self._compacted_last = True
        ended: list[bool] = []

        def step() -> None:
            ended.append(not log.compact(compaction, self._limits.compact_bytes))

        self._run(step, partial(self._compacted, ended))

    def _compacted(self, ended: list[bool], failure: Exception | None) -> None:
        if failure is not None:
            self._fail([], failure)
        if ended != [False]:
            self._compaction = None

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
            log.checkpoint_if_due()
            return
        if self._worker is None:
            self._worker = Worker(asyncio.get_running_loop(), "zonewise-log")
        self._busy = True
        self._worker.submit(job, partial(self._done, done), log.checkpoint_if_due)

    def _done(self, done: Callable[[Exception | None], None], failure: Exception | None) -> None:
        self._busy = False
        done(failure)
        self._advance()


_CODES: dict[WatchEventType, int] = {"ADDED": 0, "MODIFIED": 1, "DELETED": 2}
TYPES: tuple[WatchEventType, ...] = ("ADDED", "MODIFIED", "DELETED")
