"""Records of running clusters: files that a program locks as long as it runs.

A record without a lock is of a program that was killed, and names what it left behind.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from zonewise.api.errors import ConfigError


def lock_record(path: Path, *, create: bool) -> int | None:
    """Lock the file until it is closed; None if another process has the lock, or it is missing.

    The file is removed under its lock, so a lock on a file that no longer has its name does not
    count.
    """
    try:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        descriptor = os.open(path, flags, 0o600)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None
