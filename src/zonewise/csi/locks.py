"""One call at a time per volume, among threads and among processes.

A lock is a byte of one file, chosen by the hash of its key and locked for an open file description
(``F_OFD_SETLK``): threads of one process exclude each other as processes do, a process that is
killed holds nothing, and no file is left behind per volume. Nothing waits: the second call gets
``ABORTED`` and is retried, as CSI callers must. A collision of hashes (62 bits) would be answered
the same.

Shared locks are for sources: a volume may be copied twice at once, and not be deleted meanwhile.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zonewise.csi.errors import aborted


class Locks:
    """The locks of a data folder."""

    def __init__(self, file: Path) -> None:
        self._file = file
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))

    @contextmanager
    def hold(self, key: str, *, shared: bool = False) -> Iterator[None]:
        """Hold the lock of a key, or raise ABORTED at once."""
        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        offset = int.from_bytes(digest, "little") >> 2
        kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
        flock = struct.pack("hhqqi", kind, os.SEEK_SET, offset, 1, 0)
        descriptor = os.open(self._file, os.O_RDWR | os.O_CLOEXEC)
        try:
            try:
                fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, flock)
            except BlockingIOError:
                raise aborted(f"another call is at work on {key}; try again") from None
            yield
        finally:
            os.close(descriptor)
