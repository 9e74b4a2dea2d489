"""Copies of images and folders: complete or not at all.

An image is filled as a file without a name (``O_TMPFILE``) and gets its name at the end, so a
killed program leaves nothing. Folders are filled under another name, which marks them as
unfinished, and then renamed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zonewise.csi.backends.folders import mounts
from zonewise.csi.backends.folders.file_data import copy_data
from zonewise.csi.backends.folders.marks import write_mark
from zonewise.csi.backends.folders.trees import copy_tree, remove_tree
from zonewise.csi.errors import CsiError, aborted

PARTIAL = ".partial"
LOCK_SECONDS = 5.0
"""Callers wait ten."""

_FIFREEZE = 0xC0045877
_FITHAW = 0xC0045878


def make_image(file: Path, bytes: int, mark: str, source: Path | None) -> None:
    """An image of a size, empty or with a source's data; raises FileExistsError.

    The file is synced after it has its name: on Linux that makes the name durable too, as both are
    in one transaction of the file system's log.
    """
    descriptor = os.open(file.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        if source is not None:
            origin = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
            try:
                copy_data(origin, descriptor)
            finally:
                os.close(origin)
        os.ftruncate(descriptor, bytes)
        write_mark(descriptor, mark)
        # Only with a folder's descriptor does Python call linkat, which follows this link.
        os.link(f"/proc/self/fd/{descriptor}", file, src_dir_fd=descriptor, follow_symlinks=True)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, mark: str, source: Path | None) -> None:
    """A folder, empty or with a source's files; raises FileExistsError."""
    if source is None:
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
        write_mark(folder, mark)
        return
    if folder.exists():
        raise FileExistsError(errno.EEXIST, "exists", str(folder))
    partial = folder.with_name(folder.name + PARTIAL)
    _remove_partial(partial)
    try:
        copy_tree(source, partial)
    except (OSError, CsiError):
        with suppress(OSError):
            _remove_partial(partial)
        raise
    write_mark(partial, mark)
    partial.rename(folder)


def remove_folder(folder: Path) -> None:
    """Remove a folder, also one that is not finished; it is unfinished from the first moment on."""
    partial = folder.with_name(folder.name + PARTIAL)
    _remove_partial(partial)
    with suppress(FileNotFoundError):
        folder.rename(partial)
    _remove_partial(partial)


def _remove_partial(partial: Path) -> None:
    with suppress(FileNotFoundError):
        remove_tree(partial)


@contextmanager
def freeze(file_systems: list[mounts.Mount]) -> Iterator[None]:
    """Hold writes to mounted file systems, so that a copy of their image is one that mounts.

    They are held open meanwhile: one that is unmounted frozen could never be thawed again, and a
    path where it no longer is belongs to another file system, perhaps the machine's own. A killed
    program would leave them frozen: ``thaw`` is called for all of them at the start. One that
    another holds already is left to it.
    """
    descriptors, frozen_here = [], []
    try:
        for mount in file_systems:
            with suppress(OSError):
                descriptor = _open_folder(mount.target)
                device = os.fstat(descriptor).st_dev
                if (os.major(device), os.minor(device)) != mount.device:
                    os.close(descriptor)
                    continue
                descriptors.append(descriptor)
                fcntl.ioctl(descriptor, _FIFREEZE, 0)
                frozen_here.append(descriptor)
        yield
    finally:
        for descriptor in frozen_here:
            _thaw(descriptor)
        for descriptor in descriptors:
            os.close(descriptor)


@contextmanager
def lock_image(image: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock on an image, so that one copy at a time freezes it; ABORTED after a while.

    A file system is frozen once, however many want it: the first to finish would thaw it under the
    others. The kernel drops the lock of a killed program.
    """
    deadline = time.monotonic() + (LOCK_SECONDS if wait else 0.0)
    descriptor = os.open(image, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise aborted(f"{image.name} is being copied by others; try again") from None
                time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


def thaw(target: Path) -> None:
    """Let a file system be written again; one that is not frozen stays as it is."""
    with suppress(OSError):
        descriptor = _open_folder(target)
        try:
            _thaw(descriptor)
        finally:
            os.close(descriptor)


def _thaw(descriptor: int) -> None:
    with suppress(OSError):
        fcntl.ioctl(descriptor, _FITHAW, 0)


def _open_folder(target: Path) -> int:
    return os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
