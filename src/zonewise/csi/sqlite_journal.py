"""The journal in one SQLite file, for the embedded backend.

Durable: every change is one transaction in the write-ahead log with ``synchronous=FULL``, so what
returned is on the disk, and a change is atomic. Look-ups by name and by uuid are index searches
however many volumes there are. What a pool has promised is a row of its own that changes in the
transaction of the entry, and the room is checked there, too: a hundred controllers cannot promise
the same bytes twice.

Several threads and processes may use one file. Threads share a connection under a lock, which is
held for one small transaction; processes wait for each other inside SQLite, at most
``BUSY_SECONDS``. A file that stays locked, or a disk that fails, is answered with UNAVAILABLE: the
change may have happened, and a retry finds out.

The holder of an entry is found without leases and clocks: every journal that writes has a number of
its own, and holds a lock on that byte of a file beside the journal. The kernel drops it when the
process ends, however it ends, so what a killed controller held is free at once and what a slow one
holds never is. The locks belong to open files, not to processes: two journals in one process are
two holders.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import struct
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from zonewise.api.errors import ConfigError
from zonewise.api.reason import Reason
from zonewise.storage.errors import CsiCode, Refusal, StorageError
from zonewise.storage.identifiers import StoredKind, is_uuid
from zonewise.storage.journal import (
    JOURNAL_FULL,
    EntryPage,
    EntryState,
    Holder,
    JournalConflict,
    JournalEntry,
    Reservation,
)
from zonewise.storage.placement_reasons import format_size

BUSY_SECONDS = 5.0
APPLICATION = 0x5A57_4A31
VERSION = 1
HOLDER = "controller-"
PRIVATE = 0o600

_TABLES = """
CREATE TABLE entries (
    stored TEXT NOT NULL, uuid TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL,
    pool TEXT NOT NULL, bytes INTEGER NOT NULL, source TEXT NOT NULL, revision INTEGER NOT NULL,
    body BLOB NOT NULL, PRIMARY KEY (stored, uuid)
) WITHOUT ROWID;
CREATE UNIQUE INDEX names ON entries (stored, name);
CREATE INDEX sources ON entries (stored, source, uuid);
CREATE TABLE pools (name TEXT PRIMARY KEY, promised INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE holders (last INTEGER NOT NULL);
INSERT INTO holders VALUES (0);
"""
_DECODER = msgspec.json.Decoder(JournalEntry)
_FLOCK = "hhqqi"


class SqliteJournal:
    """A journal in a file, with the locks of its holders in a second one, ``.lock``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._holder_number = 0
        try:
            self._lock_file = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, PRIVATE)
        except OSError as error:
            raise ConfigError(f"journal {path} cannot be used: {error.strerror}") from error
        try:
            # Two that make the same file would find it locked in the middle of its making.
            _lock_byte(self._lock_file, 0)
            self._database = _open_database(path)
            _unlock_byte(self._lock_file, 0)
        except BaseException:
            os.close(self._lock_file)
            raise

    @property
    def name(self) -> str:
        """The writer's name."""
        with self._lock, _translate_errors():
            return self._holder_name()

    def find(self, kind: StoredKind, name: str) -> JournalEntry | None:
        """The entry with a request's name."""
        with self._lock_database() as database:
            return _select_entry(database, "stored = ? AND name = ?", kind, name)

    def get(self, kind: StoredKind, uuid: str) -> JournalEntry | None:
        """The entry of an id."""
        with self._lock_database() as database:
            return _select_entry(database, "stored = ? AND uuid = ?", kind, uuid)

    def new_uuid(self, kind: StoredKind, name: str) -> str:
        """A new uuid; all are as good here."""
        return uuid.uuid4().hex

    def reserve(self, entry: JournalEntry, capacity: int | None) -> Reservation:
        """Write a new entry if neither name nor uuid are taken and its pool has room."""
        with self._begin_transaction(full_code=CsiCode.RESOURCE_EXHAUSTED) as database:
            taken = _select_entry(
                database, "stored = ? AND name = ?", entry.kind, entry.name
            ) or _select_entry(database, "stored = ? AND uuid = ?", entry.kind, entry.uuid)
            if taken is not None:
                return Reservation(None, existing=taken)
            promised = _read_promised(database, entry.pool)
            if capacity is not None and promised + entry.bytes > capacity:
                return Reservation(None, free_bytes=max(0, capacity - promised))
            reserved = msgspec.structs.replace(
                entry,
                state=EntryState.RESERVED,
                holder=f"{HOLDER}{self._holder_number}",
                revision=1,
            )
            database.execute(
                "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    reserved.kind.value,
                    reserved.uuid,
                    reserved.name,
                    reserved.state.value,
                    reserved.pool,
                    reserved.bytes,
                    reserved.source,
                    reserved.revision,
                    msgspec.json.encode(reserved),
                ),
            )
            _write_promised(database, reserved.pool, promised + reserved.bytes)
        return Reservation(reserved)

    def change(
        self, entry: JournalEntry, changed: JournalEntry, capacity: int | None = None
    ) -> JournalEntry:
        """Replace an entry that still is as it was read."""
        fixed_fields = ("kind", "uuid", "name", "pool", "source")
        assert all(getattr(entry, field) == getattr(changed, field) for field in fixed_fields)
        replacement = msgspec.structs.replace(changed, revision=entry.revision + 1)
        with self._begin_transaction() as database:
            update = database.execute(
                "UPDATE entries SET state = ?, bytes = ?, revision = ?, body = ?"
                " WHERE stored = ? AND uuid = ? AND revision = ?",
                (
                    replacement.state.value,
                    replacement.bytes,
                    replacement.revision,
                    msgspec.json.encode(replacement),
                    entry.kind.value,
                    entry.uuid,
                    entry.revision,
                ),
            )
            if not update.rowcount:
                raise JournalConflict(f"{entry.kind.value} {entry.name} was changed meanwhile")
            promised = _read_promised(database, replacement.pool) + replacement.bytes - entry.bytes
            if replacement.bytes > entry.bytes and capacity is not None and promised > capacity:
                raise no_room(replacement, capacity - promised + replacement.bytes)
            _write_promised(database, replacement.pool, promised)
        return replacement

    def mark_created(self, entry: JournalEntry) -> JournalEntry:
        """The entry, created."""
        return self.change(entry, entry.as_created())

    def forget(self, entry: JournalEntry) -> None:
        """Remove an entry that still is as it was read; not found is fine."""
        with self._begin_transaction() as database:
            deletion = database.execute(
                "DELETE FROM entries WHERE stored = ? AND uuid = ? AND revision = ?",
                (entry.kind.value, entry.uuid, entry.revision),
            )
            if deletion.rowcount:
                promised = _read_promised(database, entry.pool)
                _write_promised(database, entry.pool, promised - entry.bytes)
            elif (
                _select_entry(database, "stored = ? AND uuid = ?", entry.kind, entry.uuid)
                is not None
            ):
                raise JournalConflict(f"{entry.kind.value} {entry.name} was changed meanwhile")

    def holder_of(self, entry: JournalEntry) -> Holder:
        """Which process works on an entry."""
        number = entry.holder.removeprefix(HOLDER)
        if not entry.holder.startswith(HOLDER) or not number.isdecimal():
            return Holder.NOBODY
        with self._lock:
            if self._holder_number == int(number):
                return Holder.OURS
            request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, int(number), 1, 0)
            answer = fcntl.fcntl(self._lock_file, fcntl.F_OFD_GETLK, request)
        free = struct.unpack(_FLOCK, answer)[0] == fcntl.F_UNLCK
        return Holder.NOBODY if free else Holder.OTHER

    def promised_bytes(self) -> Mapping[str, int]:
        """Bytes promised, by pool."""
        with self._lock_database() as database:
            return dict(database.execute("SELECT name, promised FROM pools ORDER BY name"))

    def list_page(
        self,
        kind: StoredKind,
        *,
        token: str = "",
        limit: int = 0,
        source: str = "",
        states: frozenset[EntryState] = frozenset(EntryState),
    ) -> EntryPage:
        """Entries by uuid, after a token; 0 is no limit."""
        if token and not is_uuid(token):
            raise bad_token(token)
        query = "SELECT body FROM entries WHERE stored = ? AND uuid > ?"
        values: list[str | int] = [kind.value, token]
        if source:
            query += " AND source = ?"
            values.append(source)
        if states != frozenset(EntryState):
            query += f" AND state IN ({', '.join('?' * len(states))})"
            values += sorted(state.value for state in states)
        query += " ORDER BY uuid LIMIT ?"
        with self._lock_database() as database:
            rows = database.execute(query, (*values, limit + 1 if limit else -1)).fetchall()
        entries = tuple(_DECODER.decode(body) for (body,) in rows)
        if limit and len(entries) > limit:
            return EntryPage(entries[:limit], entries[limit - 1].uuid)
        return EntryPage(entries)

    def close(self) -> None:
        """Nothing is worked on in this journal's name any more."""
        with self._lock:
            self._database.close()
            if self._lock_file >= 0:
                os.close(self._lock_file)
                self._lock_file = -1

    def _holder_name(self) -> str:
        """This one's name; its number is drawn once, and locked before it can be read."""
        if not self._holder_number:
            with _transaction(self._database) as database:
                database.execute("UPDATE holders SET last = last + 1")
                ((number,),) = database.execute("SELECT last FROM holders")
                _lock_byte(self._lock_file, number)
            self._holder_number = number
        return f"{HOLDER}{self._holder_number}"

    @contextmanager
    def _lock_database(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _translate_errors():
            yield self._database

    @contextmanager
    def _begin_transaction(
        self, full_code: CsiCode = CsiCode.UNAVAILABLE
    ) -> Iterator[sqlite3.Connection]:
        with self._lock, _translate_errors(full_code):
            self._holder_name()
            with _transaction(self._database) as database:
                yield database


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """All of it, or nothing."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield database
        database.execute("COMMIT")
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")


def _lock_byte(file: int, offset: int) -> None:
    """Lock a byte; only byte 0, which is held while a journal is opened, is waited for."""
    flock = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0)
    fcntl.fcntl(file, fcntl.F_OFD_SETLKW, flock)


def _unlock_byte(file: int, offset: int) -> None:
    unlock = struct.pack(_FLOCK, fcntl.F_UNLCK, os.SEEK_SET, offset, 1, 0)
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, unlock)


def _open_database(path: Path) -> sqlite3.Connection:
    try:
        _make_private(path)
    except OSError as error:
        raise ConfigError(f"journal {path} cannot be used: {error.strerror}") from error
    try:
        database = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
    except sqlite3.Error as error:
        raise ConfigError(f"journal {path} cannot be opened: {error}") from error
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        with _transaction(database):
            _ensure_tables(database, path)
        _sync_folder(path.parent)
    except (sqlite3.Error, OSError) as error:
        database.close()
        raise ConfigError(f"journal {path} cannot be used: {error}") from error
    except ConfigError:
        database.close()
        raise
    return database


def _make_private(path: Path) -> None:
    """Let only the owner read a journal, also one that an earlier version made.

    A file that exists is not opened for that: closing it would drop the locks that SQLite has in
    this process. What SQLite makes beside it gets the same mode.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE))
    for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        with suppress(FileNotFoundError):
            file.chmod(PRIVATE)


def _ensure_tables(database: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new file, or see that they are ours."""
    ((application,),) = database.execute("PRAGMA application_id")
    ((version,),) = database.execute("PRAGMA user_version")
    ((tables,),) = database.execute("SELECT count(*) FROM sqlite_schema")
    if not tables:
        for statement in _TABLES.split(";"):
            database.execute(statement)
        database.execute(f"PRAGMA application_id = {APPLICATION}")
        database.execute(f"PRAGMA user_version = {VERSION}")
    elif (application, version) != (APPLICATION, VERSION):
        raise ConfigError(
            f"journal {path} was not made by this version: it is of application"
            f" {application:#x}, version {version}"
        )


def _sync_folder(folder: Path) -> None:
    """The names of new files are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _select_entry(
    database: sqlite3.Connection, where: str, kind: StoredKind, value: str
) -> JournalEntry | None:
    query = f"SELECT body FROM entries WHERE {where}"  # noqa: S608 - our own words
    row = database.execute(query, (kind.value, value)).fetchone()
    return None if row is None else _DECODER.decode(row[0])


def _read_promised(database: sqlite3.Connection, pool: str) -> int:
    row = database.execute("SELECT promised FROM pools WHERE name = ?", (pool,)).fetchone()
    return 0 if row is None else int(row[0])


def _write_promised(database: sqlite3.Connection, pool: str, promised: int) -> None:
    if promised:
        database.execute("INSERT OR REPLACE INTO pools VALUES (?, ?)", (pool, promised))
    else:
        database.execute("DELETE FROM pools WHERE name = ?", (pool,))


@contextmanager
def _translate_errors(full_code: CsiCode = CsiCode.UNAVAILABLE) -> Iterator[None]:
    """SQLite's errors in the words of the protocol; ``full`` is what a full disk means."""
    try:
        yield
    except sqlite3.Error as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
            message, fix = "the disk of the data folder is full", "Make room there; delete volumes."
            raise StorageError(
                Refusal(full_code, Reason(code=JOURNAL_FULL, message=message, fix=fix))
            ) from error
        message = f"the journal cannot be used now: {error}"
        fix = "Try again; if it stays so, look at the disk of the data folder."
        reason = Reason(code="JournalUnavailable", message=message, fix=fix)
        raise StorageError(Refusal(CsiCode.UNAVAILABLE, reason)) from error


def bad_token(token: str) -> StorageError:
    """The error for a token that no page begins at."""
    return StorageError(
        Refusal(
            CsiCode.ABORTED,
            Reason(
                code="BadToken",
                message=f"no page begins at {token[:64]!r}",
                fix="Start the list again without a token.",
            ),
        )
    )


def no_room(entry: JournalEntry, free: int) -> StorageError:
    """The error for a request of more than its pool has."""
    return StorageError(
        Refusal(
            CsiCode.RESOURCE_EXHAUSTED,
            Reason(
                code="PoolFull",
                message=f"pool {entry.pool} has room for {format_size(max(0, free))}"
                f" of {entry.kind.value} {entry.name}, {format_size(entry.bytes)} are wanted",
                object=f"Pool/{entry.pool}",
                numbers={"bytes": entry.bytes, "free": max(0, free)},
                fix="Delete volumes there, or enlarge the pool.",
            ),
        )
    )
