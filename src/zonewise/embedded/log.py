"""The durable log: what was acknowledged is on the disk, and it is what was written.

SQLite, write-ahead log, ``synchronous=FULL``. A commit of the state is **one row**, however many
writes it gathers: their records as one blob, inserted by one statement in autocommit. A commit is
then one call into SQLite, which lets go of the interpreter once and comes back when the data is
synced; a row per write would fight the event loop for the interpreter at every row.

Three tables. ``log`` holds the commits since the floor, ``objects`` every object as it was at the
floor, ``meta`` the floor and what is needed to notice loss. Compaction moves the floor up: in one
transaction objects are brought up to date, log rows go and ``meta`` follows. A restart loads the
objects, replays the log, and so has the same versions and the same history to serve watches from.

Nothing is believed unchecked. A log row's sum runs over its columns *and the sum of the row before
it*, so a missing, repeated or exchanged row breaks the chain. An object's row has its own sum, and
``meta`` the number and the total of those, under a sum of its own. SQLite checks the structure,
`zonewise.embedded.wal` the write-ahead log before SQLite touches it, and the folder's record of
acknowledgements the end of it all.

One thread uses a ``Log`` at a time; which one is its owner's business. Nothing here waits for
anything but the disk. The owner bounds sizes: a commit by its batch, the log by compaction.
The write-ahead log is bounded by checkpoints at ``CHECKPOINT_BYTES``, made after the commit was
acknowledged and not, as SQLite would, before.
"""

from __future__ import annotations

import contextlib
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from zonewise.api.errors import ConfigError, ZonewiseError
from zonewise.embedded import layout
from zonewise.embedded.folder import Folder, FolderDamaged

FIRST_RV = 1  # the version of an empty cluster; 0 means "any" in the API
CHECKPOINT_BYTES = 2 * 1024 * 1024
ROWS_PER_STATEMENT = 32  # compaction, too, lets go of the interpreter once per statement


class Record(NamedTuple):
    """One write. ``type`` is 0 for added, 1 for modified, 2 for deleted."""

    rv: int
    kind: str
    key: str
    type: int
    raw: bytes


class Move(NamedTuple):
    """What compaction does to one object: its version and bytes at the old and the new floor."""

    kind: str
    key: str
    old: tuple[int, bytes] | None
    new: tuple[int, bytes] | None


class Contents(NamedTuple):
    """What a log held when it was opened: objects at the floor, and all that happened since."""

    objects: list[tuple[str, str, int, bytes]]
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


class _Meta(NamedTuple):
    floor: int = FIRST_RV
    chain: int = 0
    objects: int = 0
    total: int = 0
    ceiling: int = FIRST_RV

    def summed(self) -> tuple[int, ...]:
        return (*self, zlib.crc32(" ".join(map(str, self)).encode()))


class Log:
    """An open log, owner of its folder."""

    def __init__(
        self, folder: Folder, connection: sqlite3.Connection, meta: _Meta, chain: int, last: int
    ) -> None:
        self._folder = folder
        self._connection = connection
        self._meta = meta
        self._chain = chain
        self._last = last
        self._unchecked = 0  # bytes since the last checkpoint, about

    @classmethod
    def open(
        cls, path: Path, *, migrations: layout.Migrations = layout.MIGRATIONS
    ) -> tuple[Log, Contents]:
        """Own the folder at ``path`` and read everything in it; refuses what cannot be right."""
        folder = Folder.own(path)
        try:
            known = folder.acknowledged()
            if not folder.database.exists():
                if known is not None and known > FIRST_RV:
                    raise FolderDamaged(
                        folder.database, f"it is gone, and version {known} was acknowledged"
                    )
                layout.create(folder, migrations, meta=_Meta().summed())
                folder.acknowledge(FIRST_RV)
                folder.sync()
            layout.upgrade(folder, migrations)
            with layout.reading(folder) as connection:
                layout.check_tables(connection, migrations, path=folder.database)
                contents, meta, chain = _contents(folder.database, connection)
            last = contents.records[-1].rv if contents.records else contents.floor
            if known is not None and last < known:
                raise FolderDamaged(
                    folder.database,
                    f"with its write-ahead log it ends at version {last},"
                    f" and {known} was acknowledged",
                )
            connection = layout.writing(folder)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            folder.release()
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if isinstance(error, OSError) or code in _NOT_THE_FILE:
                raise ConfigError(f"{folder.database} cannot be used: {error}") from error
            raise FolderDamaged(folder.database, f"SQLite says “{error}”") from error
        except BaseException:
            folder.release()
            raise
        folder.acknowledge(last)
        return cls(folder, connection, meta, chain, last), contents

    @property
    def last(self) -> int:
        """The newest version that is stored."""
        return self._last

    @property
    def floor(self) -> int:
        """The version up to which the log was compacted."""
        return self._meta.floor

    @property
    def ceiling(self) -> int:
        """No version above this may be shown before it is stored.

        After a crash versions go on above it, so that none is ever used twice.
        """
        return self._meta.ceiling

    def append(self, records: Sequence[Record], *, ceiling: int | None = None) -> None:
        """Store one commit, and a new ceiling with it; when this returns, power may fail."""
        value = _ENCODER.encode(records)
        last = records[-1].rv
        chain = _commit_sum(last, value, self._chain)
        row = (last, value, chain)
        with self._failing("store a write"):
            if ceiling is None:
                self._connection.execute(_INSERT_COMMIT, row)
            else:
                meta = self._meta._replace(ceiling=ceiling)
                with self._transaction():
                    self._connection.execute(_INSERT_COMMIT, row)
                    self._connection.execute(_REPLACE_META, meta.summed())
                self._meta = meta
        self._chain = chain
        self._last = last
        self._unchecked += len(value) + 2 * layout.PAGE_SIZE
        self._folder.acknowledge(last)

    def compact(self, floor: int, moves: Sequence[Move]) -> None:
        """Move the floor up to ``floor``; ``moves`` has every object changed since the old one."""
        puts: list[tuple[str, str, int, bytes, int]] = []
        drops: list[tuple[str, str]] = []
        objects, total = self._meta.objects, self._meta.total
        for kind, key, old, new in moves:
            if old is not None:
                objects -= 1
                total -= _object_sum(kind, key, *old)
            if new is not None:
                own = _object_sum(kind, key, *new)
                objects += 1
                total += own
                puts.append((kind, key, *new, own))
            elif old is not None:
                drops.append((kind, key))
        with self._failing("compact the log"), self._transaction():
            self._each(puts, "INSERT OR REPLACE INTO objects VALUES {}", "(?, ?, ?, ?, ?)")
            self._each(drops, "DELETE FROM objects WHERE (kind, key) IN (VALUES {})", "(?, ?)")
            newest = self._connection.execute(
                "SELECT sum FROM log WHERE last <= ? ORDER BY last DESC LIMIT 1", (floor,)
            ).fetchone()
            self._connection.execute("DELETE FROM log WHERE last <= ?", (floor,))
            chain = newest[0] if newest else self._meta.chain
            meta = self._meta._replace(floor=floor, chain=chain, objects=objects, total=total)
            self._connection.execute(_REPLACE_META, meta.summed())
        self._meta = meta
        self._unchecked += sum(len(put[3]) for put in puts)
        self._unchecked += layout.PAGE_SIZE * (len(puts) + len(drops))

    def tidy(self) -> None:
        """Bring the write-ahead log into the database once it is long."""
        if self._unchecked < CHECKPOINT_BYTES:
            return
        self._unchecked = 0
        with contextlib.suppress(sqlite3.Error):  # the next commit meets the same disk, and tells
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self, rv: int) -> None:
        """Leave one complete file that goes on from version ``rv``, and give up the folder."""
        with contextlib.suppress(sqlite3.Error):  # then the next start recovers, as after a crash
            if rv != max(self._last, self._meta.ceiling):
                meta = self._meta._replace(ceiling=rv)
                self._connection.execute(_REPLACE_META, meta.summed())
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()
        self._folder.release()

    def _each(self, rows: Sequence[tuple[object, ...]], statement: str, place: str) -> None:
        for start in range(0, len(rows), ROWS_PER_STATEMENT):
            some = rows[start : start + ROWS_PER_STATEMENT]
            places = ", ".join([place] * len(some))
            self._connection.execute(
                statement.format(places), [value for row in some for value in row]
            )

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


def _contents(path: Path, connection: sqlite3.Connection) -> tuple[Contents, _Meta, int]:
    try:
        meta = _meta(path, connection)
        objects = list(_objects(path, connection, meta))
        records: list[Record] = []
        chain = meta.chain
        for last, value, found in connection.execute("SELECT * FROM log ORDER BY last"):
            chain = _commit_sum(last, value, chain)
            if chain != found:
                raise FolderDamaged(path, f"the commit of version {last} is not what was written")
            # A commit may reach over the floor: what is below it is in the objects already.
            records += [record for record in _DECODER.decode(value) if record.rv > meta.floor]
    except (TypeError, ValueError, msgspec.DecodeError) as error:
        raise FolderDamaged(path, f"a row holds what was never written ({error})") from error
    rv = max(records[-1].rv if records else meta.floor, meta.ceiling)
    return Contents(objects, records, meta.floor, rv), meta, chain


def _meta(path: Path, connection: sqlite3.Connection) -> _Meta:
    rows = connection.execute("SELECT * FROM meta").fetchall()
    if len(rows) == 1:
        meta = _Meta(*rows[0][1:-1])
        if rows[0] == (1, *meta.summed()):
            return meta
    raise FolderDamaged(path, "the row that sums up the others is not what was written")


def _objects(
    path: Path, connection: sqlite3.Connection, meta: _Meta
) -> Iterator[tuple[str, str, int, bytes]]:
    number = total = 0
    for kind, key, rv, value, found in connection.execute("SELECT * FROM objects"):
        if _object_sum(kind, key, rv, value) != found:
            raise FolderDamaged(path, f"{kind} {key} is not what was written")
        number += 1
        total += found
        yield kind, key, rv, value
    if (number, total) != (meta.objects, meta.total):
        raise FolderDamaged(path, f"{number} objects are left of {meta.objects}")


def _commit_sum(last: int, value: bytes, before: int) -> int:
    return zlib.crc32(value, zlib.crc32(b"%d %d" % (last, len(value)), before))


def _object_sum(kind: str, key: str, rv: int, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(f"{kind} {key} {rv} {len(value)}".encode()))


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
_INSERT_COMMIT = "INSERT INTO log VALUES (?, ?, ?)"
_REPLACE_META = "INSERT OR REPLACE INTO meta VALUES (1, ?, ?, ?, ?, ?, ?)"
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(list[Record])
