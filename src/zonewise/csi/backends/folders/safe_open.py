"""Opening what is inside a volume, while its tenants change it.

A tenant may put a link in the place of a folder at any moment, and a path that the kernel resolves
after that leads wherever the link does, with our permissions. So whatever is inside a volume is
opened from a descriptor of the volume's own folder, and no link is followed on the way: by
``openat2``, which resolves a whole path under that rule, or, where the kernel or a container's
filter lacks it, step by step with ``O_NOFOLLOW``.

What was opened stays what it is. ``open_entry`` opens a name as whatever it is now, without reading
it; ``descriptor_path`` is a path to an open descriptor, for calls that take no descriptor.

A tenant may hold a lease on a file (``F_SETLEASE``). The kernel asks for it when we open the file,
and makes us wait until it is given up (45 seconds by default, per file). So a file is opened
without waiting, and ``LeaseWait`` is how long a whole copy waits for its files.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PATH_LIMIT = 4096
LEASE_PAUSE_SECONDS = 0.02
LEASE_PAUSE_LIMIT = 100
"""Two seconds for a whole copy: a server that uses leases gives them up at once."""
REPLACED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""What opening a folder answers that is no longer there, or is something else now."""

_OPENAT2 = 437
_OPEN_HOW = struct.Struct("=QQQ")
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPENAT2_MISSING = (errno.ENOSYS, errno.EPERM)

_libc = ctypes.CDLL(None, use_errno=True)


class LeaseWait:
    """How much longer a copy waits for files with leases, all of them together."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep = sleep
        self._pauses = LEASE_PAUSE_LIMIT

    def pause(self) -> bool:
        """Wait a moment; False, without waiting, if the copy has waited enough."""
        if self._pauses == 0:
            return False
        self._pauses -= 1
        self._sleep(LEASE_PAUSE_SECONDS)
        return True


@contextmanager
def open_root(folder: Path) -> Iterator[int]:
    """The folder of a volume itself, which no tenant can replace."""
    with _close_after(os.open(folder, _FOLDER_FLAGS)) as descriptor:
        yield descriptor


@contextmanager
def open_folder(root: int, names: Sequence[str]) -> Iterator[int]:
    """A folder below another one, by the names that lead to it; raises OSError."""
    with _close_after(_open_below(root, names)) as descriptor:
        yield descriptor


@contextmanager
def open_entry(folder: int, name: str) -> Iterator[int]:
    """Whatever has a name in a folder, to be looked at: a link is opened itself."""
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    with _close_after(os.open(name, flags, dir_fd=folder)) as descriptor:
        yield descriptor


@contextmanager
def open_file(entry: int, wait: LeaseWait) -> Iterator[int]:
    """An opened regular file, for reading; raises BlockingIOError if its lease is not given up."""
    with _close_after(_open_readable(entry, wait)) as descriptor:
        yield descriptor


def descriptor_path(descriptor: int) -> Path:
    """A path that leads to what is open, also to a link itself."""
    return Path(f"/proc/self/fd/{descriptor}")


def _open_readable(entry: int, wait: LeaseWait) -> int:
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        try:
            return os.open(descriptor_path(entry), flags)
        except BlockingIOError:
            if not wait.pause():
                raise


def _open_below(root: int, names: Sequence[str]) -> int:
    path = os.fsencode("/".join(names)) or b"."
    if len(path) >= PATH_LIMIT:
        raise OSError(errno.ENAMETOOLONG, f"a path in the volume has {PATH_LIMIT} bytes or more")
    try:
        return _openat2(root, path)
    except OSError as error:
        if error.errno not in _OPENAT2_MISSING:
            raise
    return _step_by_step(root, names)


def _openat2(root: int, path: bytes) -> int:
    how = _OPEN_HOW.pack(_FOLDER_FLAGS, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH)
    descriptor = int(_libc.syscall(_OPENAT2, root, path, how, _OPEN_HOW.size))
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return descriptor


def _step_by_step(root: int, names: Sequence[str]) -> int:
    descriptor = os.open(".", _FOLDER_FLAGS, dir_fd=root)
    for name in names:
        with _close_after(descriptor):
            descriptor = os.open(name, _FOLDER_FLAGS, dir_fd=descriptor)
    return descriptor


@contextmanager
def _close_after(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)
