"""Mounts of this mount namespace: made, found and removed.

What is mounted where is read from the kernel each time, never remembered: a killed program, a
rebooted machine or an administrator's ``umount`` leave no stale state.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MS_RDONLY = 1
MS_REMOUNT = 32
MS_BIND = 4096
_FLAGS = {
    "ro": MS_RDONLY,
    "nosuid": 2,
    "nodev": 4,
    "noexec": 8,
    "sync": 16,
    "dirsync": 128,
    "noatime": 1024,
    "nodiratime": 2048,
    "relatime": 1 << 21,
    "strictatime": 1 << 24,
    "lazytime": 1 << 25,
}
_REMOUNT_FLAGS = ("nosuid", "nodev", "noexec", "noatime", "nodiratime", "relatime")
_IGNORED = frozenset({"rw", "defaults", "suid", "dev", "exec", "async", "atime", "bind"})
_UMOUNT_NOFOLLOW = 8
_MNT_DETACH = 2

_SYS_DEVICES = Path("/sys/dev/block")

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the kernel's table."""

    target: Path
    device: tuple[int, int]
    root: str
    """Which part of the file system is mounted."""
    file_system: str
    options: frozenset[str]
    """Of this mount."""
    super_options: tuple[str, ...] = ()
    """Of the file system, wherever it is mounted."""

    @property
    def root_name(self) -> str:
        """The name of the folder that is mounted, also if it was removed meanwhile."""
        return Path(self.root.removesuffix("//deleted")).name

    @property
    def readonly(self) -> bool:
        """Whether nothing can be written through it."""
        return "ro" in self.options


def read_table() -> list[Mount]:
    """Every mount, in the order they were made; of several at one path the last one counts."""
    return [_parse_mount(fields) for fields in _read_lines()]


def at(path: Path) -> Mount | None:
    """The mount at a path."""
    real_path = os.fsencode(os.path.realpath(path))
    matches = [fields for fields in _read_lines() if _unescape(fields[4]) == real_path]
    return _parse_mount(matches[-1]) if matches else None


def of_device(device: Path) -> list[Mount]:
    """Where the file system on a device is mounted, and where the device itself is bound."""
    number = device.stat().st_rdev
    device_number = (os.major(number), os.minor(number))
    table = read_table()
    return [item for item in table if item.device == device_number or _is_device(item, number)]


def of_folder(folder: Path) -> list[Mount]:
    """Where a folder is bound."""
    status = folder.stat()
    device_number = (os.major(status.st_dev), os.minor(status.st_dev))
    return [
        mount
        for mount in read_table()
        if mount.device == device_number and _is_same_file(mount.target, status)
    ]


def device_at(path: Path) -> Path | None:
    """The block device that is mounted at a path, or whose file is bound there; None if none is.

    A mounted file system is not accessed: it may not respond.
    """
    mount_at_path = at(path)
    if mount_at_path is None:
        return None
    device = _device_path(os.makedev(*mount_at_path.device))
    if device is not None:
        return device
    try:
        status = mount_at_path.target.lstat()
    except OSError:
        return None
    return _device_path(status.st_rdev) if stat.S_ISBLK(status.st_mode) else None


def _device_path(number: int) -> Path | None:
    try:
        name = (_SYS_DEVICES / f"{os.major(number)}:{os.minor(number)}").readlink().name
    except OSError:
        return None
    return Path("/dev", name)


def mount(source: Path, target: Path, file_system: str, options: Iterable[str]) -> None:
    """Mount a device; raises OSError."""
    flags, data = parse_options(options)
    _mount(os.fsencode(source), target, file_system.encode(), flags, ",".join(data).encode())


def bind(source: Path, target: Path, *, readonly: bool) -> None:
    """Show a file or folder at a second path; raises OSError and leaves nothing behind then.

    Read-only takes a second call, because the kernel ignores it in the first.
    """
    _mount(os.fsencode(source), target, None, MS_BIND, b"")
    if not readonly:
        return
    try:
        bound = at(target)
        options = bound.options if bound is not None else frozenset()
        flags = sum(_FLAGS[name] for name in _REMOUNT_FLAGS if name in options)
        _mount(None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | flags, b"")
    except BaseException:
        unmount(target)
        raise


def unmount(target: Path) -> None:
    """Remove what is mounted at a path, however often; raises OSError if it is busy."""
    while True:
        if _libc.umount2(os.fsencode(target), _UMOUNT_NOFOLLOW) == 0:
            continue
        number = ctypes.get_errno()
        if number in (errno.EINVAL, errno.ENOENT):
            return
        raise OSError(number, os.strerror(number), str(target))


def detach(target: Path) -> None:
    """Take what is mounted at a path out of sight now, though it may be in use; raises OSError."""
    if _libc.umount2(os.fsencode(target), _UMOUNT_NOFOLLOW | _MNT_DETACH) != 0:
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOENT):
            raise OSError(number, os.strerror(number), str(target))


def parse_options(options: Iterable[str]) -> tuple[int, list[str]]:
    """Mount options for the kernel: flags, and words for the file system."""
    flags, data = 0, []
    for word in (part.strip() for option in options for part in option.split(",")):
        if word in _FLAGS:
            flags |= _FLAGS[word]
        elif word and word not in _IGNORED:
            data.append(word)
    return flags, data


def _mount(
    source: bytes | None, target: Path, file_system: bytes | None, flags: int, data: bytes
) -> None:
    if _libc.mount(source, os.fsencode(target), file_system, ctypes.c_ulong(flags), data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


def _read_lines() -> list[list[bytes]]:
    return [line.split(b" ") for line in Path("/proc/self/mountinfo").read_bytes().splitlines()]


def _parse_mount(fields: list[bytes]) -> Mount:
    major, minor = fields[2].split(b":")
    dash = fields.index(b"-")
    return Mount(
        target=Path(os.fsdecode(_unescape(fields[4]))),
        device=(int(major), int(minor)),
        root=os.fsdecode(_unescape(fields[3])),
        file_system=fields[dash + 1].decode(),
        options=frozenset(fields[5].decode().split(",")),
        super_options=tuple(fields[dash + 3].decode(errors="replace").split(",")),
    )


def _is_device(mount: Mount, number: int) -> bool:
    """Whether a device's own file is what is mounted; few mounts can be, so few are read."""
    if mount.file_system not in ("devtmpfs", "tmpfs") or mount.root == "/":
        return False
    try:
        status = mount.target.lstat()
    except OSError:
        return False
    return stat.S_ISBLK(status.st_mode) and status.st_rdev == number


def _is_same_file(target: Path, status: os.stat_result) -> bool:
    try:
        target_status = target.lstat()
    except OSError:
        return False
    return target_status.st_ino == status.st_ino and target_status.st_dev == status.st_dev


def _unescape(text: bytes) -> bytes:
    if b"\\" not in text:
        return text
    for code, char in ((rb"\040", b" "), (rb"\011", b"\t"), (rb"\012", b"\n"), (rb"\134", b"\\")):
        text = text.replace(code, char)
    return text
