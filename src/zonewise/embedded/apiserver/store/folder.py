"""A data folder: its owner, and the newest acknowledged version.

One process owns a folder, by a lock that the kernel drops when the process ends, however it ends.

``acknowledged`` holds the newest resourceVersion that was acknowledged to any client. It is written
after each commit was synced and before it is acknowledged, and is not synced itself. A killed
process therefore leaves it exact, and a power cut leaves it exact or behind, never ahead: a
database that ends before it has lost acknowledged writes. This detects a bad byte in the last
transaction, a log that was cut short or deleted, or an older copy of the database beside newer
files. It is one line in one disk sector, so it is never half written. Without it none of that could
be detected, so a folder that lost it is refused too, until its owner writes ``accept`` into it and
so accepts the present content as complete.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
import zlib
from pathlib import Path

from zonewise.api.errors import ConfigError

DATABASE = "state.db"
LOCK = "lock"
ACKNOWLEDGED = "acknowledged"
ACCEPT = b"accept"
MIN_FREE_BYTES = 1 << 20
"""A disk with less than this is full: SQLite needs some room to open a database at all."""

_NOT_ALLOWED = (sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


class FolderInUse(ConfigError):
    """Another process owns the folder."""


class FolderDamaged(ConfigError):
    """What is in the folder is not what was written there; nothing was changed."""

    def __init__(self, path: Path, problem: str, *, alternative: str = "") -> None:
        super().__init__(
            f"{path} is damaged: {problem}. Nothing was changed. Restore the whole folder"
            f" {path.parent} from a copy, or move it away to start with an empty"
            f" cluster{alternative}"
        )


class Folder:
    """A data folder that this process owns until ``release``."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.database = path / DATABASE
        self._lock = lock
        self._acknowledged_file = -1

    @classmethod
    def acquire(cls, path: Path) -> Folder:
        """Lock the folder, creating it if needed; only its owner's user may read it."""
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise unusable_error(path, error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
            os.close(lock)
            raise FolderInUse(
                f"{path} is in use by process {owner or '?'}: stop it, or give another data folder"
            ) from None
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, b"%d\n" % os.getpid(), 0)
        except OSError as error:
            os.close(lock)
            raise unusable_error(path, error) from error
        return cls(path, lock)

    def read_acknowledged(self) -> int | None:
        """The newest acknowledged version; None if the owner accepts the present content."""
        path = self.path / ACKNOWLEDGED
        try:
            line = path.read_bytes()
        except FileNotFoundError:
            return 0
        if line.strip() == ACCEPT:
            return None
        number, _, _ = line.partition(b" ")
        if not number.isdigit() or line != _encode_version(int(number)):
            raise FolderDamaged(path, "it does not hold a version and its checksum")
        return int(number)

    def record(self, rv: int) -> None:
        """Record that ``rv`` may now be acknowledged."""
        if self._acknowledged_file < 0:
            self._acknowledged_file = os.open(
                self.path / ACKNOWLEDGED, os.O_RDWR | os.O_CREAT, 0o600
            )
        os.pwrite(self._acknowledged_file, _encode_version(rv), 0)

    def acknowledge(self, rv: int) -> None:
        """The same after a write; errors are ignored, as the write is stored."""
        with contextlib.suppress(OSError):
            self.record(rv)

    def sync(self) -> None:
        """Sync the folder and the record to the disk."""
        if self._acknowledged_file >= 0:
            os.fsync(self._acknowledged_file)
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def release(self) -> None:
        """Let others own the folder."""
        for descriptor in (self._acknowledged_file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._acknowledged_file = self._lock = -1


def unusable_error(path: Path, error: Exception) -> ConfigError:
    """The error for a folder or file that cannot be used, with advice, also on a full disk.

    SQLite and the kernel often report a full disk as another error, so the disk itself is checked.
    """
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    number = error.errno if isinstance(error, OSError) else 0
    if code == sqlite3.SQLITE_FULL or number in (errno.ENOSPC, errno.EDQUOT) or _is_full(path):
        advice = "the disk is full; free some space, then start again"
    elif code in _NOT_ALLOWED or number in (errno.EACCES, errno.EPERM, errno.EROFS):
        advice = "make it writable for this user, or give another data folder"
    elif number in (errno.EEXIST, errno.ENOTDIR):
        advice = "it is not a folder; give another data folder"
    elif code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        advice = "another program has it open; stop that, then start again"
    else:
        advice = "check the disk, then start again"
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ConfigError(f"{path} cannot be used: {reason.lower()}; {advice}")


def _is_full(path: Path) -> bool:
    try:
        disk = os.statvfs(path)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < MIN_FREE_BYTES


def _encode_version(rv: int) -> bytes:
    number = b"%020d" % rv
    return b"%b %08x\n" % (number, zlib.crc32(number))
