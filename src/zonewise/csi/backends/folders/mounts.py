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

RDONLY = 1
REMOUNT = 32
BIND = 4096
_FLAGS = {
    "ro": RDONLY,
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
_KEPT = ("nosuid", "nodev", "noexec", "noatime", "nodiratime", "relatime")
_IGNORED = frozenset({"rw", "defaults", "suid", "dev", "exec", "async", "atime", "bind"})
_NO_FOLLOW = 8
_DETACH = 2

_NUMBERS = Path("/sys/dev/block")

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Mounted:
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


def table() -> list[Mounted]:
    """Every mount, in the order they were made; of several at one path the last one counts."""
    return [_mounted(fields) for fields in _lines()]


def at(path: Path) -> Mounted | None:
    """The mount at a path."""
    wanted = os.fsencode(os.path.realpath(path))
    found = [fields for fields in _lines() if _unescaped(fields[4]) == wanted]
    return _mounted(found[-1]) if found else None


def of_device(device: Path) -> list[Mounted]:
    """Where the file system on a device is mounted, and where the device itself is bound."""
    number = device.stat().st_rdev
    pair = (os.major(number), os.minor(number))
    return [one for one in table() if one.device == pair or _is_device(one, number)]


def of_folder(folder: Path) -> list[Mounted]:
    """Where a folder is bound."""
    wanted = folder.stat()
    pair = (os.major(wanted.st_dev), os.minor(wanted.st_dev))
    return [one for one in table() if one.device == pair and _same(one.target, wanted)]


def device_at(path: Path) -> Path | None:
    """The block device that is mounted at a path, or whose file is bound there; None if none is.

    A mounted file system is not accessed: it may not respond.
    """
    mounted = at(path)
    if mounted is None:
        return None
    device = _device(os.makedev(*mounted.device))
    if device is not None:
        return device
    try:
        status = mounted.target.lstat()
    except OSError:
        return None
    return _device(status.st_rdev) if stat.S_ISBLK(status.st_mode) else None


def _device(number: int) -> Path | None:
    try:
        name = (_NUMBERS / f"{os.major(number)}:{os.minor(number)}").readlink().name
    except OSError:
        return None
    return Path("/dev", name)


def mount(source: Path, target: Path, file_system: str, options: Iterable[str]) -> None:
    """Mount a device; raises OSError."""
    flags, data = parsed(options)
    _mount(os.fsencode(source), target, file_system.encode(), flags, ",".join(data).encode())


def bind(source: Path, target: Path, *, readonly: bool) -> None:
    """Show a file or folder at a second path; raises OSError and leaves nothing behind then.

    Read-only takes a second call, because the kernel ignores it in the first.
    """
    _mount(os.fsencode(source), target, None, BIND, b"")
    if not readonly:
        return
    try:
        made = at(target)
        kept = made.options if made is not None else frozenset()
        flags = sum(_FLAGS[name] for name in _KEPT if name in kept)
        _mount(None, target, None, BIND | REMOUNT | RDONLY | flags, b"")
    except BaseException:
        unmount(target)
        raise


def unmount(target: Path) -> None:
    """Remove what is mounted at a path, however often; raises OSError if it is busy."""
    while True:
        if _libc.umount2(os.fsencode(target), _NO_FOLLOW) == 0:
            continue
        number = ctypes.get_errno()
        if number in (errno.EINVAL, errno.ENOENT):
            return
        raise OSError(number, os.strerror(number), str(target))


def detach(target: Path) -> None:
    """Take what is mounted at a path out of sight now, though it may be in use; raises OSError."""
    if _libc.umount2(os.fsencode(target), _NO_FOLLOW | _DETACH) != 0:
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOENT):
            raise OSError(number, os.strerror(number), str(target))


def parsed(options: Iterable[str]) -> tuple[int, list[str]]:
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


def _lines() -> list[list[bytes]]:
    return [line.split(b" ") for line in Path("/proc/self/mountinfo").read_bytes().splitlines()]


def _mounted(fields: list[bytes]) -> Mounted:
    major, minor = fields[2].split(b":")
    dash = fields.index(b"-")
    return Mounted(
        target=Path(os.fsdecode(_unescaped(fields[4]))),
        device=(int(major), int(minor)),
        root=os.fsdecode(_unescaped(fields[3])),
        file_system=fields[dash + 1].decode(),
        options=frozenset(fields[5].decode().split(",")),
        super_options=tuple(fields[dash + 3].decode(errors="replace").split(",")),
    )


def _is_device(one: Mounted, number: int) -> bool:
    """Whether a device's own file is what is mounted; few mounts can be, so few are read."""
    if one.file_system not in ("devtmpfs", "tmpfs") or one.root == "/":
        return False
    try:
        found = one.target.lstat()
    except OSError:
        return False
    return stat.S_ISBLK(found.st_mode) and found.st_rdev == number


def _same(target: Path, wanted: os.stat_result) -> bool:
    try:
        found = target.lstat()
    except OSError:
        return False
    return found.st_ino == wanted.st_ino and found.st_dev == wanted.st_dev


def _unescaped(text: bytes) -> bytes:
    if b"\\" not in text:
        return text
    for code, char in ((rb"\040", b" "), (rb"\011", b"\t"), (rb"\012", b"\n"), (rb"\134", b"\\")):
        text = text.replace(code, char)
    return text
