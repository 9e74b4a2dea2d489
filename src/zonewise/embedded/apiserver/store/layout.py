"""The database file: its tables, its layout version, and checks before SQLite opens it.

The layout version is SQLite's ``user_version``: an older one is upgraded by the migrations, in
order and in one transaction (a new file starts from 0); a newer one is refused.

A new file is completed under another name and then renamed, so there is never half a database.
Checks use a read-only connection, so a refusal changes nothing; closing a connection that can write
would already checkpoint the write-ahead log into the file.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from zonewise.api.errors import ConfigError
from zonewise.embedded.apiserver.store import wal
from zonewise.embedded.apiserver.store.folder import Folder, FolderDamaged

APPLICATION_ID = 0x5A57_4C4F  # "ZWLO"
PAGE_SIZE = 8192

Migrations = Sequence[Sequence[str]]

MIGRATIONS: Migrations = (
    (
        "CREATE TABLE IF NOT EXISTS log"
        " (id INTEGER PRIMARY KEY, value BLOB NOT NULL, sum INTEGER NOT NULL)",
        "CREATE TABLE IF NOT EXISTS meta"
        " (id INTEGER PRIMARY KEY, floor INTEGER NOT NULL, removed INTEGER NOT NULL,"
        " chain INTEGER NOT NULL, tail INTEGER NOT NULL, ceiling INTEGER NOT NULL,"
        " sum INTEGER NOT NULL)",
    ),
)
"""Item n upgrades a file from layout n to n + 1."""


class LayoutTooNew(ConfigError):
    """The file was written by a newer release."""


def create(folder: Folder, migrations: Migrations, *, meta: tuple[int, ...]) -> None:
    """Create an empty database with ``meta`` as its only row."""
    new = _with_suffix(folder.database, ".new")
    for leftover in folder.path.glob(new.name + "*"):
        leftover.unlink()
    os.close(os.open(new, os.O_CREAT | os.O_EXCL, 0o600))
    connection = sqlite3.connect(new, isolation_level=None)
    try:
        connection.execute(f"PRAGMA page_size={PAGE_SIZE}")
        connection.execute("PRAGMA auto_vacuum=NONE")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        _migrate(connection, 0, migrations)
        connection.execute("INSERT INTO meta VALUES (1, ?, ?, ?, ?, ?, ?)", meta)
        connection.execute("COMMIT")
    finally:
        connection.close()
    new.rename(folder.database)


def upgrade(folder: Folder, migrations: Migrations) -> None:
    """Refuse a file that is foreign, damaged or too new; upgrade an old one."""
    path = folder.database
    with path.open("rb") as file:
        if (
            file.read(len(_FILE_START)) != _FILE_START
        ):  # SQLite would delete the log of an empty database
            raise FolderDamaged(path, "it does not start like a Zonewise database")
    try:
        wal.inspect(wal_path(folder))
    except wal.WalDamaged as damage:
        raise FolderDamaged(wal_path(folder), str(damage)) from damage
    with open_read_only(folder) as connection:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID:
            raise FolderDamaged(path, "it is not a Zonewise database")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > len(migrations):
            raise LayoutTooNew(
                f"{path} was written by a newer release (layout {version}, this one supports"
                f" {len(migrations)}): run that release, or give another data folder"
            )
        check_lines = [line for (line,) in connection.execute("PRAGMA quick_check(1)")]
        if check_lines != ["ok"]:
            raise FolderDamaged(path, f"SQLite reports “{' '.join(' '.join(check_lines).split())}”")
        (vacuum,) = connection.execute("PRAGMA auto_vacuum").fetchone()
        if vacuum:
            raise FolderDamaged(path, "its header is not what was written")
    if version != len(migrations):
        with contextlib.closing(open_for_writing(folder)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            _migrate(connection, max(version, 0), migrations)
            connection.execute("COMMIT")


def check_tables(connection: sqlite3.Connection, migrations: Migrations, *, path: Path) -> None:
    """Refuse a database whose tables are not exactly those of the migrations."""
    query = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as model:
        _migrate(model, 0, migrations)
        expected = model.execute(query).fetchall()
    if connection.execute(query).fetchall() != expected:
        raise FolderDamaged(path, "its tables are not those that were created")


@contextlib.contextmanager
def open_read_only(folder: Folder) -> Iterator[sqlite3.Connection]:
    """A connection that can neither write nor, when it closes, checkpoint."""
    temporary = [
        _with_suffix(folder.database, "-shm")
    ]  # an index in shared memory; a single owner does not need it
    if not wal_path(folder).exists():
        temporary.append(wal_path(folder))  # reading creates an empty one
    uri = f"{folder.database.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()
        for path in temporary:
            path.unlink(missing_ok=True)


def open_for_writing(folder: Folder) -> sqlite3.Connection:
    """The owner's connection: synced commits, no other process, checkpoints only on request."""
    connection = sqlite3.connect(folder.database, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA locking_mode=EXCLUSIVE")  # no shared memory file, fewer locks
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA wal_autocheckpoint=0")
    connection.execute("PRAGMA secure_delete=OFF")  # or compaction would rewrite what it frees
    return connection


def _migrate(connection: sqlite3.Connection, version: int, migrations: Migrations) -> None:
    for migration in migrations[version:]:
        for statement in migration:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version={len(migrations)}")


def wal_path(folder: Folder) -> Path:
    """The path of SQLite's write-ahead log."""
    return _with_suffix(folder.database, "-wal")


def _with_suffix(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


_FILE_START = b"SQLite format 3\0" + PAGE_SIZE.to_bytes(2, "big") + bytes((2, 2, 0, 64, 32, 32))
"""The header fields that never change: page size, write-ahead log, fixed numbers."""
