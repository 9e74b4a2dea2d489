"""The database file: its tables, its number, and whether SQLite can be trusted with it.

The number of the layout is SQLite's ``user_version``: an older one is brought up to date by the
migrations, in order and in one transaction (a new file starts from 0); a newer one is refused.

A new file is made whole under another name and then renamed, so there is never half a database.
Everything that only looks uses a connection that cannot write, so a refusal changes nothing; a
connection that can write would, by being closed, already bring the write-ahead log into the file.
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
"""Item n brings a file from layout n to n + 1."""


class LayoutTooNew(ConfigError):
    """The file was written by a newer release."""


def create(folder: Folder, migrations: Migrations, *, meta: tuple[int, ...]) -> None:
    """Make an empty database with ``meta`` as its only row."""
    new = _beside(folder.database, ".new")
    for left in folder.path.glob(new.name + "*"):
        left.unlink()
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
    """Refuse a file that is not ours, not whole or too new; bring an old one up to date."""
    path = folder.database
    with path.open("rb") as file:
        if file.read(len(_START)) != _START:  # SQLite would delete the log of an empty database
            raise FolderDamaged(path, "it does not begin as a Zonewise database does")
    try:
        wal.inspect(write_ahead(folder))
    except wal.Damaged as damage:
        raise FolderDamaged(write_ahead(folder), str(damage)) from damage
    with reading(folder) as connection:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID:
            raise FolderDamaged(path, "it is not a Zonewise database")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > len(migrations):
            raise LayoutTooNew(
                f"{path} was written by a newer release (layout {version}, this one knows"
                f" {len(migrations)}): run that release, or give another data folder"
            )
        found = [line for (line,) in connection.execute("PRAGMA quick_check(1)")]
        if found != ["ok"]:
            raise FolderDamaged(path, f"SQLite finds “{' '.join(' '.join(found).split())}”")
        (vacuum,) = connection.execute("PRAGMA auto_vacuum").fetchone()
        if vacuum:
            raise FolderDamaged(path, "its header is not what was written")
    if version != len(migrations):
        with contextlib.closing(writing(folder)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            _migrate(connection, max(version, 0), migrations)
            connection.execute("COMMIT")


def check_tables(connection: sqlite3.Connection, migrations: Migrations, *, path: Path) -> None:
    """Refuse a database whose tables are not exactly those that the migrations make."""
    query = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as model:
        _migrate(model, 0, migrations)
        expected = model.execute(query).fetchall()
    if connection.execute(query).fetchall() != expected:
        raise FolderDamaged(path, "its tables are not those that were made")


@contextlib.contextmanager
def reading(folder: Folder) -> Iterator[sqlite3.Connection]:
    """A connection that can neither write nor, when it closes, checkpoint."""
    extra = [_beside(folder.database, "-shm")]  # an index in shared memory; one owner needs none
    if not write_ahead(folder).exists():
        extra.append(write_ahead(folder))  # reading makes an empty one
    uri = f"{folder.database.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()
        for path in extra:
            path.unlink(missing_ok=True)


def writing(folder: Folder) -> sqlite3.Connection:
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


def write_ahead(folder: Folder) -> Path:
    """Where SQLite keeps the write-ahead log."""
    return _beside(folder.database, "-wal")


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


_START = b"SQLite format 3\0" + PAGE_SIZE.to_bytes(2, "big") + bytes((2, 2, 0, 64, 32, 32))
"""What never changes: page size, write-ahead log for readers and writers, fixed numbers."""
