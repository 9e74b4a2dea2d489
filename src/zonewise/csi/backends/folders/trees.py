"""Trees of files in a volume: copied, removed, measured, while tenants may change them.

Nothing inside a volume is named by a path (``beneath``). An entry is opened as whatever it is, and
everything about it, its data too, is read from that descriptor: what is swapped meanwhile is copied
as it was, or as what it is now, and never as what a link leads to. What vanishes meanwhile is left
out.

No tree is too large: a folder is finished before another one is begun, with a few open files at
any time, and folders that are still to be done cost a name each. A copy can have paths as long as
Linux takes; removing has no such limit, because each folder is moved to the top before its turn.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from zonewise.csi.backends.folders.file_data import UNSUPPORTED, copy_data
from zonewise.csi.backends.folders.safe_open import (
    REPLACED,
    LeaseWait,
    descriptor_path,
    open_entry,
    open_file,
    open_folder,
    open_root,
)
from zonewise.csi.errors import aborted

_SKIPPED_ATTRIBUTES = (errno.ENODATA, errno.EPERM, errno.EACCES, *UNSUPPORTED)
_BLOCK_BYTES = 512
_SHOWN_PATH_LIMIT = 256


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder of a tree; it shares the names above it with the others there."""

    parent: _Folder | None = None
    name: str = ""

    @property
    def names(self) -> list[str]:
        """The names that lead to it from the top."""
        names = []
        folder = self
        while folder.parent is not None:
            names.append(folder.name)
            folder = folder.parent
        return names[::-1]


_TOP = _Folder()


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder to a name that is free, with all that files have besides their data.

    Raises OSError, or ABORTED if a tenant keeps a lease on a file; what was made by then stays.
    Owners are kept as far as this process may set them.
    """
    target.mkdir(mode=0o700)
    with open_root(source) as origin, open_root(target) as copy:
        _TreeCopy(origin, copy).run()


def remove_tree(folder: Path) -> None:
    """Remove a folder with everything in it; raises OSError, then the rest stays."""
    with open_root(folder) as top:
        free_names = _draw_free_names()
        pending = _empty_folder(top, top, free_names)
        while pending:
            name = pending.pop()
            with open_folder(top, [name]) as inner:
                pending += _empty_folder(inner, top, free_names)
            os.rmdir(name, dir_fd=top)
    folder.rmdir()


def disk_usage(folder: Path) -> int:
    """How many bytes the files of a folder take."""
    total = 0
    with open_root(folder) as root:
        pending = [_TOP]
        while pending:
            folder_below = pending.pop()
            with suppress(OSError), open_folder(root, folder_below.names) as descriptor:
                for status, name in _entries(descriptor):
                    if stat.S_ISDIR(status.st_mode):
                        pending.append(_Folder(folder_below, name))
                    else:
                        total += status.st_blocks * _BLOCK_BYTES
    return total


def _entries(folder: int) -> Iterator[tuple[os.stat_result, str]]:
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):
            yield os.stat(name, dir_fd=folder, follow_symlinks=False), name


class _TreeCopy:
    """One copy, from one open folder to another."""

    def __init__(self, origin: int, copy: int) -> None:
        self._origin = origin
        self._copy = copy
        self._pending = [_TOP]
        self._wait = LeaseWait()
        self._first_copies: dict[tuple[int, int], tuple[_Folder, str]] = {}
        """Files with several names, and where the first of them was copied to."""

    def run(self) -> None:
        while self._pending:
            folder = self._pending.pop()
            try:
                with open_folder(self._origin, folder.names) as origin:
                    self._copy_folder(folder, origin)
            except OSError as error:
                if folder.parent is None or error.errno not in REPLACED:
                    raise
                with open_folder(self._copy, folder.parent.names) as parent:
                    os.rmdir(folder.name, dir_fd=parent)

    def _copy_folder(self, folder: _Folder, origin: int) -> None:
        """Attributes come last: making an entry changes the times, and a default ACL the entry."""
        with open_folder(self._copy, folder.names) as copy:
            for name in os.listdir(origin):
                self._copy_entry(folder, name, origin, copy)
            _copy_attributes(origin, copy)

    def _copy_entry(self, folder: _Folder, name: str, origin: int, copy: int) -> None:
        try:
            with open_entry(origin, name) as entry:
                status = os.fstat(entry)
                if stat.S_ISDIR(status.st_mode):
                    os.mkdir(name, 0o700, dir_fd=copy)
                    self._pending.append(_Folder(folder, name))
                elif not self._link_to_first_copy(folder, name, status, copy):
                    self._make_entry(folder, name, status, entry, copy)
                    with open_entry(copy, name) as copied:
                        _copy_attributes(entry, copied)
        except FileNotFoundError:
            pass

    def _make_entry(
        self, folder: _Folder, name: str, status: os.stat_result, entry: int, copy: int
    ) -> None:
        """The copy of a file that is no folder, with its data only."""
        if stat.S_ISREG(status.st_mode):
            try:
                with open_file(entry, self._wait) as origin:
                    _make_file(name, origin, copy)
            except BlockingIOError:
                path = "/".join([*folder.names, name])
                raise aborted(
                    f"a program keeps a lease on the file {path[:_SHOWN_PATH_LIMIT]!r} of the"
                    " volume, so it cannot be copied; try again when the file is free"
                ) from None
        elif stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink("", dir_fd=entry), name, dir_fd=copy)
        else:
            os.mknod(name, stat.S_IFMT(status.st_mode) | 0o600, status.st_rdev, dir_fd=copy)

    def _link_to_first_copy(
        self, folder: _Folder, name: str, status: os.stat_result, copy: int
    ) -> bool:
        """Give an earlier copy of the same file one more name, if there is one."""
        if status.st_nlink < 2:
            return False
        identity = (status.st_dev, status.st_ino)
        if identity not in self._first_copies:
            self._first_copies[identity] = (folder, name)
            return False
        first_folder, first = self._first_copies[identity]
        with open_folder(self._copy, first_folder.names) as descriptor:
            os.link(first, name, src_dir_fd=descriptor, dst_dir_fd=copy, follow_symlinks=False)
        return True


def _make_file(name: str, origin: int, copy: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=copy)
    try:
        copy_data(origin, descriptor)
    finally:
        os.close(descriptor)


def _copy_attributes(entry: int, copied: int) -> None:
    """Owner, extended attributes with ACLs, mode and times, in the order that loses none.

    A new owner costs a file its capabilities and set-id bits. Without the right to keep the owner,
    those bits would let others be us.
    """
    status, origin, copy = os.fstat(entry), descriptor_path(entry), descriptor_path(copied)
    mode = stat.S_IMODE(status.st_mode)
    try:
        os.chown(copy, status.st_uid, status.st_gid)
    except PermissionError:
        mode &= ~(stat.S_ISUID | stat.S_ISGID)
    _copy_extended_attributes(origin, copy)
    if not stat.S_ISLNK(status.st_mode):
        copy.chmod(mode)
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))


def _copy_extended_attributes(origin: Path, copy: Path) -> None:
    """Those that this process may read and set, and that the file system has."""
    try:
        names = os.listxattr(origin)
    except OSError as error:
        if error.errno not in _SKIPPED_ATTRIBUTES:
            raise
        return
    for name in names:
        try:
            os.setxattr(copy, name, os.getxattr(origin, name))
        except OSError as error:
            if error.errno not in _SKIPPED_ATTRIBUTES:
                raise


def _empty_folder(folder: int, top: int, free_names: Iterator[str]) -> list[str]:
    """Remove what is in a folder; folders with entries are moved to the top, as the answer says.

    One that something is mounted at cannot be removed nor moved: what is mounted is not the
    volume's, and is not touched.
    """
    moved = []
    for name in os.listdir(folder):
        try:
            os.unlink(name, dir_fd=folder)
        except IsADirectoryError:
            if not _remove_if_empty(folder, name):
                new_name = next(free_names)
                os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=top)
                moved.append(new_name)
    return moved


def _remove_if_empty(folder: int, name: str) -> bool:
    """Remove a folder if it is empty; else let its owner move and read it."""
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        with open_entry(folder, name) as entry:
            descriptor_path(entry).chmod(0o700)
        return False
    return True


def _draw_free_names() -> Iterator[str]:
    """Names that no file has."""
    prefix = secrets.token_hex(16)
    return (f"{prefix}-{number}" for number in count())
