"""A data folder: its owner, and the newest acknowledged version.

One process owns a folder, by a lock that the kernel drops when the process ends, however it ends.

``acknowledged`` holds the newest resourceVersion that was acknowledged to any client. It is written
after each commit was synced and before it is acknowledged, and is not synced itself. A killed
process therefore leaves it exact, and a power cut leaves it exact or behind, never ahead: a
database that ends before it has lost acknowledged writes. That is how a bad byte in the very last
transaction, a log that was cut short or deleted, or an older copy of the database put back beside
newer files is noticed. It is one line in one disk sector, so it is never half new. Without it none
of that could be noticed, so a folder that lost it is refused too, until its owner writes ``accept``
into it and so accepts the present content as complete.
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
ROOM = 1 << 20
"""A disk with less than this is full: SQLite needs some room to open a database at all."""

_NOT_ALLOWED = (sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


class FolderInUse(ConfigError):
    """Another process owns the folder."""


class FolderDamaged(ConfigError):
    """What is in the folder is not what was written there; nothing was changed."""

    def __init__(self, path: Path, what: str, *, otherwise: str = "") -> None:
        super().__init__(
            f"{path} is damaged: {what}. Nothing was changed. Restore the whole folder"
            f" {path.parent} from a copy, or move it away to start with an empty cluster{otherwise}"
        )


class Folder:
    """A data folder that this process owns until ``release``."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.database = path / DATABASE
        self._lock = lock
        self._mark = -1

    @classmethod
    def own(cls, path: Path) -> Folder:
        """Take the folder, making it if needed; only its owner's user may look inside."""
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise unusable(path, error) from error
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
            raise unusable(path, error) from error
        return cls(path, lock)

    def acknowledged(self) -> int | None:
        """The newest acknowledged version; None if the owner accepts the present content."""
        path = self.path / ACKNOWLEDGED
        try:
            line = path.read_bytes()
        except FileNotFoundError:
            return 0
        if line.strip() == ACCEPT:
            return None
        number, _, _ = line.partition(b" ")
        if not number.isdigit() or line != _line(int(number)):
            raise FolderDamaged(path, "it does not hold a version and its checksum")
        return int(number)

    def record(self, rv: int) -> None:
        """Record that ``rv`` may now be acknowledged."""
        if self._mark < 0:
            self._mark = os.open(self.path / ACKNOWLEDGED, os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(self._mark, _line(rv), 0)

    def acknowledge(self, rv: int) -> None:
        """The same after a write; failing to is no failure of the write, which is stored."""
        with contextlib.suppress(OSError):
            self.record(rv)

    def sync(self) -> None:
        """Make the folder's own entries, and the record, survive a power cut."""
        if self._mark >= 0:
            os.fsync(self._mark)
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def release(self) -> None:
        """Let others own the folder."""
        for descriptor in (self._mark, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._mark = self._lock = -1


def unusable(path: Path, error: Exception) -> ConfigError:
    """Why a folder or a file in it cannot be worked with, and what to do, also on a full disk.

    SQLite and the kernel often report a full disk as another error, so the disk itself is checked.
    """
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    number = error.errno if isinstance(error, OSError) else 0
    if code == sqlite3.SQLITE_FULL or number in (errno.ENOSPC, errno.EDQUOT) or _full(path):
        advice = "the disk is full; free some space, then start again"
    elif code in _NOT_ALLOWED or number in (errno.EACCES, errno.EPERM, errno.EROFS):
        advice = "make it writable for this user, or give another data folder"
    elif number in (errno.EEXIST, errno.ENOTDIR):
        advice = "it is not a folder; give another data folder"
    elif code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        advice = "another program has it open; stop that, then start again"
    else:
        advice = "check the disk, then start again"
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ConfigError(f"{path} cannot be used: {why.lower()}; {advice}")


def _full(path: Path) -> bool:
    try:
        disk = os.statvfs(path)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < ROOM


def _line(rv: int) -> bytes:
    number = b"%020d" % rv
    return b"%b %08x\n" % (number, zlib.crc32(number))
