"""The durable log: what was acknowledged is on the disk, and it is what was written.

SQLite, write-ahead log, ``synchronous=FULL``. A commit of the state is **one row**, however many
writes it gathers: their records as one blob, inserted by one statement in autocommit. A commit is
then one call into SQLite, which releases the GIL once and returns when the data is synced; a row
per write would compete with the event loop for the GIL at every row.

Rows are added at the end and removed at the beginning. Commits above the floor are complete; what
was below it is kept as far as it still matters (`embedded.apiserver.store.compaction`). A step of
compaction is one transaction of bounded size: repeat, remove, move the floor. A restart reads
everything, and so has the same versions and the same history to serve watches from.

Everything is verified. A row's sum runs over its columns *and the sum of the row before it*, so a
missing, repeated or exchanged row breaks the chain; ``meta`` says where the chain starts and which
row it must at least reach, under a sum of its own. SQLite checks the structure,
`embedded.apiserver.store.wal` the write-ahead log before SQLite touches it, and the folder's record
of acknowledgements the end of it all.

One thread uses a ``Log`` at a time; its owner decides which. Nothing here waits for anything but
the disk. The owner bounds sizes: a commit by its batch, the log by compaction. The write-ahead log
is bounded by checkpoints at ``CHECKPOINT_BYTES``, made after the commit was acknowledged and not,
as SQLite would, before.
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
from zonewise.embedded.apiserver.store.compaction import KEPT, Floor, Record, Sweep
from zonewise.embedded.apiserver.store.folder import ACKNOWLEDGED, Folder, FolderDamaged, unusable

FIRST_RV = 1  # the version of an empty cluster; 0 means "any" in the API
CHECKPOINT_BYTES = 2 * 1024 * 1024
RECORD_OVERHEAD = 128  # what a record weighs beside its bytes


class Contents(NamedTuple):
    """What a log held when it was opened: objects at the floor, and all that happened since."""

    objects: list[Record]
    records: list[Record]
    floor: int
    rv: int


class WriteFailed(ZonewiseError):
    """The disk did not take a commit, and none of it is stored.

    ``lasting``: the state of the file is not known any more, so only a restart may write again.
    """

    def __init__(self, message: str, *, lasting: bool) -> None:
        super().__init__(message)
        self.lasting = lasting


def weight(raw: bytes) -> int:
    """What a record of these bytes counts for in the size of a log."""
    return RECORD_OVERHEAD + len(raw)


class _Meta(NamedTuple):
    """``removed`` is the last row removed, ``chain`` its sum, ``tail`` a row that there was."""

    floor: int = FIRST_RV
    removed: int = 0
    chain: int = 0
    tail: int = 0
    ceiling: int = FIRST_RV

    def summed(self) -> tuple[int, ...]:
        return (*self, zlib.crc32(" ".join(map(str, self)).encode()))


class Log:
    """An open log, owner of its folder."""

    def __init__(self, folder: Folder, connection: sqlite3.Connection, read: _Reader) -> None:
        self._folder = folder
        self._connection = connection
        self._meta = read.meta
        self._chain = read.chain
        self._row = read.row
        self._last = read.last
        self._weight = read.weight
        self._last_size = 0  # of the last commit
        self._unchecked = 0  # bytes since the last checkpoint, about

    @classmethod
    def open(
        cls, path: Path, *, migrations: layout.Migrations = layout.MIGRATIONS
    ) -> tuple[Log, Contents]:
        """Own the folder at ``path`` and read everything in it; refuses what cannot be right."""
        folder = Folder.own(path)
        database = folder.database
        try:
            known = folder.acknowledged()
            if not database.exists():
                if known is not None and known > FIRST_RV:
                    raise FolderDamaged(
                        database, f"it is missing, and version {known} was acknowledged"
                    )
                if layout.write_ahead(folder).exists():  # SQLite would replay it into the new file
                    raise FolderDamaged(database, "it is missing, and its write-ahead log is there")
                layout.create(folder, migrations, meta=_Meta().summed())
                folder.record(FIRST_RV)
                folder.sync()
            layout.upgrade(folder, migrations)
            with layout.reading(folder) as connection:
                layout.check_tables(connection, migrations, path=database)
                read = _Reader(database, connection)
            if known == 0 and read.last > FIRST_RV:
                mark = folder.path / ACKNOWLEDGED
                raise FolderDamaged(
                    mark,
                    f"it is missing, so it is unknown whether writes after version {read.last} are"
                    " lost",
                    otherwise=f"; or say with 'echo accept > {mark}' that none are",
                )
            if known is not None and read.last < known:
                raise FolderDamaged(
                    database,
                    f"with its write-ahead log it ends at version {read.last},"
                    f" and {known} was acknowledged",
                )
            connection = layout.writing(folder)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            folder.release()
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if isinstance(error, OSError) or code in _NOT_THE_FILE:
                raise unusable(database, error) from error
            raise FolderDamaged(database, f"SQLite says “{error}”") from error
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
        """The version above which every commit is kept."""
        return self._meta.floor

    @property
    def ceiling(self) -> int:
        """No version above this may be shown before it is stored.

        After a crash versions go on above it, so that none is ever used twice.
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
        """Store one commit, and a new ceiling with it; when this returns, power may fail."""
        row = self._sum_up(records)
        with self._failing("store a write"):
            if ceiling is None:
                self._connection.execute(_INSERT, row)
            else:
                meta = self._meta._replace(ceiling=ceiling)
                with self._transaction():
                    self._connection.execute(_INSERT, row)
                    self._connection.execute(_REPLACE_META, meta.summed())
                self._meta = meta
        self._added(row, records)
        self._last_size = len(row[1])
        self._last = records[-1].rv
        self._folder.acknowledge(self._last)

    def compact(self, sweep: Sweep, limit: int) -> bool:
        """Remove the oldest rows that a sweep may remove; False if there are none left.

        A step looks at about ``limit`` bytes, and at no less than thrice the last commit: half of
        it may have to be repeated, and still the log gets shorter.
        """
        with self._failing("compact the log"):
            last, chain, records = self._oldest(sweep, max(limit, 3 * self._last_size))
            if not records:
                return False
            repeat = sweep.repeated(records)
            row = self._sum_up(repeat) if repeat else None
            meta = self._meta._replace(
                floor=max(sweep.floor, self._meta.floor),
                removed=last,
                chain=chain,
                tail=row[0] if row else self._row,
            )
            with self._transaction():
                if row is not None:
                    self._connection.execute(_INSERT, row)
                self._connection.execute("DELETE FROM log WHERE id <= ?", (last,))
                self._connection.execute(_REPLACE_META, meta.summed())
        self._meta = meta
        if row is not None:
            self._added(row, repeat)
        self._weight -= sum(weight(record.raw) for record in records)
        return True

    def tidy(self) -> None:
        """Bring the write-ahead log into the database once it is long."""
        if self._unchecked < CHECKPOINT_BYTES:
            return
        self._unchecked = 0
        with contextlib.suppress(sqlite3.Error):  # the next commit reports it
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self, rv: int) -> None:
        """Leave one complete file that continues from version ``rv``, and release the folder."""
        with contextlib.suppress(sqlite3.Error):  # then the next start recovers, as after a crash
            if rv != max(self._last, self._meta.ceiling):
                meta = self._meta._replace(ceiling=rv)
                self._connection.execute(_REPLACE_META, meta.summed())
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()
        self._folder.release()

    def _sum_up(self, records: Sequence[Record]) -> tuple[int, bytes, int]:
        value = _ENCODER.encode(records)
        return self._row + 1, value, _sum(self._row + 1, value, self._chain)

    def _added(self, row: tuple[int, bytes, int], records: Sequence[Record]) -> None:
        self._row, value, self._chain = row
        self._weight += sum(weight(record.raw) for record in records)
        self._unchecked += len(value) + 2 * layout.PAGE_SIZE

    def _oldest(self, sweep: Sweep, limit: int) -> tuple[int, int, list[Record]]:
        """What goes next: the number and sum of the last row, and all records."""
        last, chain = self._meta.removed, self._meta.chain
        found: list[Record] = []
        size = 0
        rows = self._connection.execute("SELECT * FROM log ORDER BY id")
        try:
            for number, value, chained in rows:
                if number > sweep.until or size >= limit:
                    break
                if _sum(number, value, chain) != chained:
                    raise sqlite3.DatabaseError(f"row {number} is not what was written")
                records = _DECODER.decode(value)
                if records[-1].type < KEPT and records[-1].rv > sweep.floor:
                    break
                last, chain = number, chained
                found += records
                size += len(value)
        finally:
            rows.close()
        return last, chain, found

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
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            full = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
            remedy = "free some space" if full else "check the disk, then start again"
            raise WriteFailed(
                f"{self._folder.database}: cannot {what}: {error}; {remedy}", lasting=not full
            ) from error


class _Reader:
    """Everything in a database, checked."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.weight = 0
        self._path = path
        try:
            self.meta = self._read_meta(connection)
            self.chain = self.meta.chain
            self.row = self.meta.removed
            self._floor = Floor(self.meta.floor)
            for number, value, chained in connection.execute("SELECT * FROM log ORDER BY id"):
                self._read_row(number, value, chained)
            if self.row < self.meta.tail:
                raise FolderDamaged(path, "rows are missing at its end")
        except (TypeError, ValueError, msgspec.DecodeError) as error:
            raise FolderDamaged(path, f"a row holds what was never written ({error})") from error
        events = self._floor.events
        self.last = events[-1].rv if events else self.meta.floor

    def contents(self) -> Contents:
        """What was read."""
        return Contents(
            self._floor.objects(),
            self._floor.events,
            self.meta.floor,
            max(self.last, self.meta.ceiling),
        )

    def _read_meta(self, connection: sqlite3.Connection) -> _Meta:
        rows = connection.execute("SELECT * FROM meta").fetchall()
        if len(rows) == 1:
            meta = _Meta(*rows[0][1:-1])
            if rows[0] == (1, *meta.summed()):
                return meta
        raise FolderDamaged(self._path, "the row that sums up the others is not what was written")

    def _read_row(self, number: int, value: bytes, chained: int) -> None:
        self.chain = _sum(number, value, self.chain)
        if self.chain != chained or number != self.row + 1:
            raise FolderDamaged(self._path, f"row {number} of the log is not what was written")
        self.row = number
        for record in _DECODER.decode(value):
            self.weight += weight(record.raw)
            self._floor.read(record)


def _sum(row: int, value: bytes, before: int) -> int:
    return zlib.crc32(value, zlib.crc32(b"%d %d" % (row, len(value)), before))


_NOT_THE_FILE = {
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
