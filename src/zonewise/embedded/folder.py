"""A data folder: who owns it, and how far its acknowledgements went.

One process owns a folder, by a lock that the kernel drops when the process ends, however it ends.

``acknowledged`` holds the newest resourceVersion of which any client was told that it is stored.
It is written after each commit was synced and before anybody hears of it, and is not synced
itself. A killed process therefore leaves it exact, and a power cut leaves it exact or behind, never
ahead: a database that ends before it has lost acknowledged writes. That is how a bad byte in
the very last transaction, a log that was cut short or deleted, or an older copy of the database put
back beside newer files is noticed. It is one line in one disk sector, so it is never half new.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from pathlib import Path

from zonewise.api.errors import ConfigError

DATABASE = "state.db"
LOCK = "lock"
ACKNOWLEDGED = "acknowledged"


class FolderInUse(ConfigError):
    """Another process owns the folder."""


class FolderDamaged(ConfigError):
    """What is in the folder is not what was written there; nothing was changed."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(
            f"{path} is damaged: {what}. Nothing was changed. Restore the whole folder"
            f" {path.parent} from a copy, or move it away to start with an empty cluster"
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
            raise ConfigError(f"{path} cannot be the data folder: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
            os.close(lock)
            raise FolderInUse(
                f"{path} is in use by process {owner or '?'}: stop it, or give another data folder"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"%d\n" % os.getpid(), 0)
        return cls(path, lock)

    def acknowledged(self) -> int | None:
        """The newest version anybody was told of, or None when that was never recorded."""
        path = self.path / ACKNOWLEDGED
        try:
            line = path.read_bytes()
        except FileNotFoundError:
            return None
        number, _, _ = line.partition(b" ")
        if not number.isdigit() or line != _line(int(number)):
            raise FolderDamaged(path, "it does not hold a version and its checksum")
        return int(number)

    def acknowledge(self, rv: int) -> None:
        """Record that clients may now be told of ``rv``.

        Failing to is no failure of the write, which is stored: the record just stays behind.
        """
        try:
            if self._mark < 0:
                self._mark = os.open(self.path / ACKNOWLEDGED, os.O_RDWR | os.O_CREAT, 0o600)
            os.pwrite(self._mark, _line(rv), 0)
        except OSError:
            return

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


def _line(rv: int) -> bytes:
    number = b"%020d" % rv
    return b"%b %08x\n" % (number, zlib.crc32(number))
