"""Copies of images and folders: complete or not at all.

An image is filled as a file without a name (``O_TMPFILE``) and gets its name at the end, so a
killed program leaves nothing. Blocks are shared where the file system can (reflink); else only what
is written is copied and holes stay holes. Folders have no such trick: they are filled under another
name, which says that they are not finished, and renamed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "user.zonewise.name"
PARTIAL = ".partial"

_CLONE = 0x40049409
_FREEZE = 0xC0045877
_THAW = 0xC0045878
_CHUNK = 16 << 20
_NOT_HERE = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS)


def make_image(file: Path, bytes: int, mark: str, source: Path | None) -> None:
    """An image of a size, empty or with a source's data; raises FileExistsError.

    The file is synced after it has its name: on Linux that makes the name durable too, as both are
    in one transaction of the file system's log.
    """
    descriptor = os.open(file.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        if source is not None:
            _fill(descriptor, source)
        os.ftruncate(descriptor, bytes)
        mark_image(descriptor, mark)
        # Only with a folder's descriptor does Python call linkat, which follows this link.
        os.link(f"/proc/self/fd/{descriptor}", file, src_dir_fd=descriptor, follow_symlinks=True)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def mark_image(file: int | Path, mark: str) -> None:
    """Write down whose it is, where the file system can."""
    try:
        os.setxattr(file, MARK, mark.encode())
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise


def read_mark(file: Path) -> str | None:
    """Whose it is; None where nobody wrote it down."""
    try:
        return os.getxattr(file, MARK).decode(errors="replace")
    except OSError as error:
        if error.errno in (errno.ENODATA, *_NOT_HERE):
            return None
        raise


def make_folder(folder: Path, mark: str, source: Path | None) -> None:
    """A folder, empty or with a source's files; raises FileExistsError."""
    if source is None:
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
        mark_image(folder, mark)
        return
    if folder.exists():
        raise FileExistsError(errno.EEXIST, "exists", str(folder))
    partial = folder.with_name(folder.name + PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    done = subprocess.run(
        ["cp", "--archive", "--reflink=auto", "--no-target-directory", str(source), str(partial)],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        shutil.rmtree(partial, ignore_errors=True)
        number = errno.ENOSPC if "No space left" in done.stderr else errno.EIO
        raise OSError(number, done.stderr.strip()[-300:], str(folder))
    mark_image(partial, mark)
    partial.rename(folder)


def remove_folder(folder: Path) -> None:
    """Remove a folder, also one that is not finished; it is unfinished from the first moment on."""
    partial = folder.with_name(folder.name + PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    with suppress(FileNotFoundError):
        folder.rename(partial)
    if partial.exists():
        shutil.rmtree(partial)


@contextmanager
def frozen(targets: list[Path]) -> Iterator[None]:
    """Hold writes to mounted file systems, so that a copy of their image is one that mounts.

    A killed program would leave them frozen: ``thaw`` is called for all of them at the start.
    """
    held = []
    try:
        for target in targets:
            with suppress(OSError):
                _control(target, _FREEZE)
                held.append(target)
        yield
    finally:
        for target in held:
            thaw(target)


def thaw(target: Path) -> None:
    """Let a file system be written again; one that is not frozen stays as it is."""
    with suppress(OSError):
        _control(target, _THAW)


def _control(target: Path, request: int) -> None:
    descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, request, 0)
    finally:
        os.close(descriptor)


def _fill(descriptor: int, source: Path) -> None:
    origin = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.ioctl(descriptor, _CLONE, origin)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
            _copy(origin, descriptor)
    finally:
        os.close(origin)


def _copy(origin: int, target: int) -> None:
    end = os.fstat(origin).st_size
    offset = 0
    while offset < end:
        try:
            offset = os.lseek(origin, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break
            raise
        hole = os.lseek(origin, offset, os.SEEK_HOLE)
        while offset < hole:
            copied = os.copy_file_range(
                origin, target, min(_CHUNK, hole - offset), offset_src=offset, offset_dst=offset
            )
            if copied == 0:
                break
            offset += copied
    os.ftruncate(target, end)
