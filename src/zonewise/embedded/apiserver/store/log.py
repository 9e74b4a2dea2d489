"""The durable log: what was acknowledged is on the disk, unchanged.

SQLite, write-ahead log, ``synchronous=FULL``. A commit of the state is **one row**, however many
writes it gathers: their records as one blob, inserted by one statement in autocommit. A commit is
then one call into SQLite, which releases the GIL once and returns when the data is synced; a row
per write would compete with the event loop for the GIL at every row.

Rows are added at the end and removed at the beginning. Commits above the floor are complete; of
those below it the objects that still exist are repeated (`embedded.apiserver.store.compaction`). A
step of compaction is one transaction of bounded size: repeat, remove, move the floor. A restart
reads everything, and so has the same versions and the same history to serve watches from.

Everything is verified. A row's checksum covers its columns *and the checksum of the row before it*,
so a missing, repeated or exchanged row breaks the chain; ``meta`` says where the chain starts and
which row it must at least reach, with a checksum of its own. SQLite checks the structure,
`embedded.apiserver.store.wal` the write-ahead log before SQLite touches it, and the folder's record
of acknowledgements the end of the log.

One thread uses a ``Log`` at a time; its owner decides which. Nothing here waits for anything but
the disk. The owner bounds sizes: a commit by its batch, the log by compaction. The write-ahead log
is bounded by checkpoints at ``CHECKPOINT_BYTES``, after the commit was acknowledged and not, as
SQLite would, before.
"""

from __future__ import annotations

import contextlib
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from zonewise.api.errors import ZonewiseError
from zonewise.embedded.apiserver.store import layout
from zonewise.embedded.apiserver.store.compaction import COPY, CompactionPass, FloorReader, Record
from zonewise.embedded.apiserver.store.folder import (
    ACKNOWLEDGED,
    Folder,
    FolderDamaged,
    unusable_error,
)

FIRST_RV = 1  # the version of an empty cluster; 0 means "any" in the API
CHECKPOINT_BYTES = 2 * 1024 * 1024
RECORD_OVERHEAD = 128  # weight of a record beside its bytes


class LogContents(NamedTuple):
    """The contents of a log when it was opened: objects at the floor, and all records since."""

    objects: list[Record]
    records: list[Record]
    floor: int
    rv: int


class WriteFailed(ZonewiseError):
    """A commit could not be written, and none of it is stored.

    ``permanent``: the state of the file is unknown, so only a restart may write again.
    """

    def __init__(self, message: str, *, permanent: bool) -> None:
        super().__init__(message)
        self.permanent = permanent


def weight_of(raw: bytes) -> int:
    """The weight of a record of these bytes in the size of a log."""
    return RECORD_OVERHEAD + len(raw)


class _Meta(NamedTuple):
    """``removed`` is the last row removed, ``chain`` its checksum, ``tail`` a row that existed."""

    floor: int = FIRST_RV
    removed: int = 0
    chain: int = 0
    tail: int = 0
    ceiling: int = FIRST_RV

    def with_checksum(self) -> tuple[int, ...]:
        return (*self, zlib.crc32(" ".join(map(str, self)).encode()))


class Log:
    """An open log; it owns its folder."""

    def __init__(self, folder: Folder, connection: sqlite3.Connection, read: _Reader) -> None:
        self._folder = folder
        self._connection = connection
        self._meta = read.meta
        self._chain = read.chain
        self._row = read.row
        self._last = read.last
        self._weight = read.weight
        self._last_commit_size = 0  # of the last commit
        self._bytes_since_checkpoint = 0  # bytes since the last checkpoint, about

    @classmethod
    def open(
        cls, path: Path, *, migrations: layout.Migrations = layout.MIGRATIONS
    ) -> tuple[Log, LogContents]:
        """Lock the folder at ``path`` and read everything in it; refuses damaged content."""
        folder = Folder.acquire(path)
        database = folder.database
        try:
            acknowledged = folder.read_acknowledged()
            if not database.exists():
                if acknowledged is not None and acknowledged > FIRST_RV:
                    raise FolderDamaged(
                        database, f"it is missing, and version {acknowledged} was acknowledged"
                    )
                if layout.wal_path(folder).exists():  # SQLite would replay it into the new file
                    raise FolderDamaged(database, "it is missing, and its write-ahead log is there")
                layout.create(folder, migrations, meta=_Meta().with_checksum())
                folder.record(FIRST_RV)
                folder.sync()
            layout.upgrade(folder, migrations)
            with layout.open_read_only(folder) as connection:
                layout.check_tables(connection, migrations, path=database)
                read = _Reader(database, connection)
            if acknowledged == 0 and read.last > FIRST_RV:
                marker = folder.path / ACKNOWLEDGED
                raise FolderDamaged(
                    marker,
                    f"it is missing, so it is unknown whether writes after version {read.last} are"
                    " lost",
                    alternative=f"; or confirm with 'echo accept > {marker}' that none are",
                )
            if acknowledged is not None and read.last < acknowledged:
                raise FolderDamaged(
                    database,
                    f"with its write-ahead log it ends at version {read.last},"
                    f" and {acknowledged} was acknowledged",
                )
            connection = layout.open_for_writing(folder)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            folder.release()
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if isinstance(error, OSError) or code in _ENVIRONMENT_ERRORS:
                raise unusable_error(database, error) from error
            raise FolderDamaged(database, f"SQLite reports “{error}”") from error
        except BaseException:
            folder.release()
            raise
        folder.acknowledge(read.last)
        return cls(folder, connection, read), read.contents()

    @property
    def last(self) -> int:
        """The newest version that is stored."""
        return self._last

    @property
    def floor(self) -> int:
        """The version above which every commit is complete."""
        return self._meta.floor

    @property
    def ceiling(self) -> int:
        """No version above this may be visible before it is stored.

        After a crash versions continue above it, so that none is ever used twice.
        """
        return self._meta.ceiling

    @property
    def row(self) -> int:
        """The number of the newest row."""
        return self._row

    @property
    def weight(self) -> int:
        """The sum of the weights of all records in the log."""
        return self._weight

    def append(self, records: Sequence[Record], *, ceiling: int | None = None) -> None:
        """Store one commit, and a new ceiling with it; it is synced when this returns."""
        row = self._encode_row(records)
        with self._translating_errors("store a write"):
            if ceiling is None:
                self._connection.execute(_INSERT, row)
            else:
                meta = self._meta._replace(ceiling=ceiling)
                with self._transaction():
                    self._connection.execute(_INSERT, row)
                    self._connection.execute(_REPLACE_META, meta.with_checksum())
                self._meta = meta
        self._account_row(row, records)
        self._last_commit_size = len(row[1])
        self._last = records[-1].rv
        self._folder.acknowledge(self._last)

    def compact(self, compaction: CompactionPass, limit: int) -> bool:
        """Remove the oldest rows that a pass may remove; False if there are none left.

        A step reads about ``limit`` bytes, and at least three times the last commit: half of it may
        have to be repeated, and the log still gets shorter.
        """
        with self._translating_errors("compact the log"):
            last, chain, records = self._read_oldest(
                compaction, max(limit, 3 * self._last_commit_size)
            )
            if not records:
                return False
            repeated = compaction.records_to_repeat(records)
            row = self._encode_row(repeated) if repeated else None
            meta = self._meta._replace(
                floor=max(compaction.floor, self._meta.floor),
                removed=last,
                chain=chain,
                tail=row[0] if row else self._row,
            )
            with self._transaction():
                if row is not None:
                    self._connection.execute(_INSERT, row)
                self._connection.execute("DELETE FROM log WHERE id <= ?", (last,))
                self._connection.execute(_REPLACE_META, meta.with_checksum())
        self._meta = meta
        if row is not None:
            self._account_row(row, repeated)
        self._weight -= sum(weight_of(record.raw) for record in records)
        return True

    def checkpoint_if_due(self) -> None:
        """Checkpoint the write-ahead log into the database if it is long."""
        if self._bytes_since_checkpoint < CHECKPOINT_BYTES:
            return
        self._bytes_since_checkpoint = 0
        with contextlib.suppress(sqlite3.Error):  # the next commit reports it
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self, rv: int) -> None:
        """Leave one complete file that continues from version ``rv``, and release the folder."""
        with contextlib.suppress(sqlite3.Error):  # then the next start recovers, as after a crash
            if rv != max(self._last, self._meta.ceiling):
                meta = self._meta._replace(ceiling=rv)
                self._connection.execute(_REPLACE_META, meta.with_checksum())
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()
        self._folder.release()

    def _encode_row(self, records: Sequence[Record]) -> tuple[int, bytes, int]:
        value = _ENCODER.encode(records)
        return self._row + 1, value, _chain_checksum(self._row + 1, value, self._chain)

    def _account_row(self, row: tuple[int, bytes, int], records: Sequence[Record]) -> None:
        self._row, value, self._chain = row
        self._weight += sum(weight_of(record.raw) for record in records)
        self._bytes_since_checkpoint += len(value) + 2 * layout.PAGE_SIZE

    def _read_oldest(self, compaction: CompactionPass, limit: int) -> tuple[int, int, list[Record]]:
        """The rows to remove next: the number and checksum of the last one, and all records."""
        last, chain = self._meta.removed, self._meta.chain
        oldest: list[Record] = []
        size = 0
        rows = self._connection.execute("SELECT * FROM log ORDER BY id")
        try:
            for number, value, checksum in rows:
                if number > compaction.last_row or size >= limit:
                    break
                if _chain_checksum(number, value, chain) != checksum:
                    raise sqlite3.DatabaseError(f"row {number} is not what was written")
                records = _DECODER.decode(value)
                if records[-1].type < COPY and records[-1].rv > compaction.floor:
                    break
                last, chain = number, checksum
                oldest += records
                size += len(value)
        finally:
            rows.close()
        return last, chain, oldest

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _translating_errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            full = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
            remedy = "free some space" if full else "check the disk, then start again"
            raise WriteFailed(
                f"{self._folder.database}: cannot {action}: {error}; {remedy}", permanent=not full
            ) from error


class _Reader:
    """Everything in a database, verified."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.weight = 0
        self._path = path
        try:
            self.meta = self._read_meta(connection)
            self.chain = self.meta.chain
            self.row = self.meta.removed
            self._floor = FloorReader(self.meta.floor)
            for number, value, checksum in connection.execute("SELECT * FROM log ORDER BY id"):
                self._read_row(number, value, checksum)
            if self.row < self.meta.tail:
                raise FolderDamaged(path, "rows are missing at its end")
        except (TypeError, ValueError, msgspec.DecodeError) as error:
            raise FolderDamaged(path, f"a row cannot be decoded ({error})") from error
        events = self._floor.events
        self.last = events[-1].rv if events else self.meta.floor

    def contents(self) -> LogContents:
        """The contents that were read."""
        return LogContents(
            self._floor.objects(),
            self._floor.events,
            self.meta.floor,
            max(self.last, self.meta.ceiling),
        )

    def _read_meta(self, connection: sqlite3.Connection) -> _Meta:
        rows = connection.execute("SELECT * FROM meta").fetchall()
        if len(rows) == 1:
            meta = _Meta(*rows[0][1:-1])
            if rows[0] == (1, *meta.with_checksum()):
                return meta
        raise FolderDamaged(
            self._path, "the row with the checksum of the log is not what was written"
        )

    def _read_row(self, number: int, value: bytes, checksum: int) -> None:
        self.chain = _chain_checksum(number, value, self.chain)
        if self.chain != checksum or number != self.row + 1:
            raise FolderDamaged(self._path, f"row {number} of the log is not what was written")
        self.row = number
        for record in _DECODER.decode(value):
            self.weight += weight_of(record.raw)
            self._floor.read(record)


def _chain_checksum(row: int, value: bytes, previous: int) -> int:
    return zlib.crc32(value, zlib.crc32(b"%d %d" % (row, len(value)), previous))


_ENVIRONMENT_ERRORS = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}
_INSERT = "INSERT INTO log VALUES (?, ?, ?)"
_REPLACE_META = "INSERT OR REPLACE INTO meta VALUES (1, ?, ?, ?, ?, ?, ?)"
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(list[Record])
