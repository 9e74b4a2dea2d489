"""The file systems of images: recognised, made, grown.

What is on an image is decided by its own bytes: a file without any data was never used, so a file
system may be made; known signatures name one; anything else is user data and is not touched.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from zonewise.csi.errors import CsiError, internal, precondition

EXT4 = "ext4"
XFS = "xfs"
KNOWN = (EXT4, XFS)
UNKNOWN = "data"
SMALLEST_BYTES = {EXT4: 1 << 20, XFS: 300 << 20}
"""Bytes below which mkfs refuses."""

_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
_PAGE_BYTES = 4096
_TIMEOUT = 600
_ERRORS_CORRECTED = 1
_USUAL_SLACK = 4 << 20


def round_size(bytes: int, access: str) -> int:
    """Whole pages, and what a file system needs at least."""
    pages = -(-bytes // _PAGE_BYTES) * _PAGE_BYTES
    return max(pages, SMALLEST_BYTES.get(access, _PAGE_BYTES))


def detect(file: Path) -> str:
    """What is on an image: a file system, ``data`` if unknown, empty if nothing.

    A device does not say that nothing was ever written to it.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            os.lseek(descriptor, 0, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return ""
            if error.errno != errno.EINVAL:
                raise
        head = os.pread(descriptor, 4096, 0)
    finally:
        os.close(descriptor)
    if head[:4] == b"XFSB":
        return XFS
    if head[1080:1082] == b"\x53\xef":
        return EXT4
    return UNKNOWN


def size_of(file: Path) -> int:
    """How large an image or device is."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.lseek(descriptor, 0, os.SEEK_END)
    finally:
        os.close(descriptor)


def require_mkfs(file_system: str) -> None:
    """Raise FAILED_PRECONDITION if this machine cannot make a file system."""
    program = f"mkfs.{file_system}"
    if shutil.which(program, path=_PATH) is None:
        raise precondition(f"{program} is not installed on this node; install it there")


def make(file_system: str, file: Path, options: Sequence[str] = ()) -> None:
    """Make an empty file system; what exists there is lost."""
    require_mkfs(file_system)
    quiet = {
        EXT4: ("-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"),
        XFS: ("-q", "-f", "-K"),
    }[file_system]
    _run_checked(f"mkfs.{file_system}", *quiet, *options, str(file))


def grow_mounted(file_system: str, device: Path, target: Path) -> bool:
    """Grow a mounted file system; False if this kernel does not allow that."""
    if file_system == XFS:
        _run_checked("xfs_growfs", str(target))
        return True
    return _run("resize2fs", str(device)).returncode == 0


def grow_unmounted(file_system: str, device: Path) -> None:
    """Grow a file system that is not mounted; only ext4 needs that."""
    if file_system == EXT4:
        check = _run("e2fsck", "-f", "-p", str(device))
        if check.returncode > _ERRORS_CORRECTED:
            raise _program_failed("e2fsck", check)
        _run_checked("resize2fs", str(device))


def needs_growing(file: Path) -> bool:
    """Whether a file system is smaller than its device.

    A little less is normal: mkfs leaves out a last group that would be too small to be of use.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.lseek(descriptor, 0, os.SEEK_END)
        head = os.pread(descriptor, 2048, 0)
    finally:
        os.close(descriptor)
    if head[:4] == b"XFSB":
        block = int.from_bytes(head[4:8], "big")
        blocks = int.from_bytes(head[8:16], "big")
    else:
        superblock = head[1024:]
        block = 1024 << int.from_bytes(superblock[24:28], "little")
        blocks = int.from_bytes(superblock[4:8], "little")
        if int.from_bytes(superblock[96:100], "little") & 0x80:
            blocks |= int.from_bytes(superblock[0x150:0x154], "little") << 32
    return size // block - blocks >= min(_USUAL_SLACK // block, max(1, blocks // 16))


def _run_checked(program: str, *arguments: str) -> None:
    result = _run(program, *arguments)
    if result.returncode != 0:
        raise _program_failed(program, result)


def _run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    executable = shutil.which(program, path=_PATH)
    if executable is None:
        raise precondition(f"{program} is not installed on this node")
    return subprocess.run(
        [executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=_TIMEOUT,
    )


def _program_failed(program: str, result: subprocess.CompletedProcess[str]) -> CsiError:
    lines = (result.stderr.strip() or result.stdout.strip() or "it said nothing").splitlines()
    return internal(f"{program} failed with {result.returncode}: {lines[-1][:300]}")
