"""Loop devices: a file as a block device.

They are found again by the name of their file, which has a uuid in it, not by a record of ours: a
node that was killed finds at its next start what is attached. For file systems a device is attached
with ``AUTOCLEAR``: our descriptor holds it until it is mounted, the mount holds it afterwards, and
the kernel detaches it when both are closed, whichever process dies when. Nothing holds a device
that is published as such, so those are detached explicitly.

Where no device can be had (none is free, or a container's own ``/dev`` does not get the nodes that
the kernel makes) the answer is ``RESOURCE_EXHAUSTED``: nothing was attached.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zonewise.csi.backends.folders import mounts
from zonewise.csi.errors import CsiError, aborted, exhausted, unavailable

_LOOP_CLR_FD = 0x4C01
_LOOP_SET_CAPACITY = 0x4C07
_LOOP_CONFIGURE = 0x4C0A
_LOOP_CTL_GET_FREE = 0x4C82
_BLKROSET = 0x125D
_LO_FLAGS_READ_ONLY = 1
_LO_FLAGS_AUTOCLEAR = 4
DELETED_SUFFIX = " (deleted)"
"""How the kernel ends the name of a file that no longer has it."""
_CONTROL = "/dev/loop-control"
_SYS_BLOCK = Path("/sys/block")
_DEVICES_HINT = "give the driver the node's own /dev and the right to open devices"
_TRIES = 50
RELEASE_SECONDS = 5.0
"""Callers wait ten, and should get the error that names the device's holder."""
_AT_FDCWD = -100
_AT_STATX_FORCE_SYNC = 0x2000
_STATX_SIZE = 0x200
_LOOP_CONFIG = struct.Struct("=II5Q4I64s64s32s2Q64x")


def find(file: Path, *, deleted: bool = False) -> list[Path]:
    """The devices that a file is attached to; none if it is not.

    With ``deleted`` also those of a file that had this name: one that was removed, or replaced
    because its device could not be taken from its holder.
    """
    name_suffixes = ("", DELETED_SUFFIX) if deleted else ("",)
    suffixes = tuple(os.fsencode(f"/{file.name}{ending}\n") for ending in name_suffixes)
    devices = []
    for block in sorted(_SYS_BLOCK.iterdir()):
        if block.name.startswith("loop"):
            with suppress(OSError), (block / "loop" / "backing_file").open("rb") as backing:
                if backing.read().endswith(suffixes):
                    devices.append(Path("/dev", block.name))
    return devices


def find_below(folder: Path) -> list[Path]:
    """The devices on files in a folder, also on files that were removed from there."""
    devices = [Path("/dev", block.name) for block in sorted(_SYS_BLOCK.iterdir())]
    return [
        device
        for device in devices
        if (file := backing_file(device)) is not None and file.is_relative_to(folder)
    ]


def backing_file(device: Path) -> Path | None:
    """The file behind a device, as it is called here."""
    try:
        return Path(
            os.fsdecode((_SYS_BLOCK / device.name / "loop" / "backing_file").read_bytes()[:-1])
        )
    except OSError:
        return None


@contextmanager
def attach(
    file: Path, *, readonly: bool = False, keep: bool = False, reuse: bool = False
) -> Iterator[Path]:
    """Attach a file and hold the device open meanwhile.

    With ``keep`` it stays attached afterwards, else only as long as something else holds it. With
    ``again`` a device that it is attached to already is used: two file systems on one file would
    destroy it. That is for files whose name is unique on the machine: an image that several FUSE
    clients show has it several times, and one that was fenced must not be used by others.
    """
    opened_device = _reopen(file, readonly=readonly) if reuse else None
    if opened_device is None:
        flags = os.O_RDONLY if readonly else os.O_RDWR
        file_descriptor = os.open(file, flags | os.O_CLOEXEC)
        try:
            opened_device = _configure(file_descriptor, file, readonly=readonly, keep=keep)
        finally:
            os.close(file_descriptor)
    device, descriptor = opened_device
    try:
        yield device
    except BaseException:
        if keep:
            with suppress(OSError):
                fcntl.ioctl(descriptor, _LOOP_CLR_FD)
        raise
    finally:
        os.close(descriptor)


def _reopen(file: Path, *, readonly: bool) -> tuple[Path, int] | None:
    """A device that another process still holds, for example in another mount namespace, opened."""
    for device in find(file):
        try:
            descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        # Open it cannot be detached; whether it was before is seen now.
        if device in find(file):
            if readonly or not _read_flag(device, "ro"):
                return device, descriptor
            os.close(descriptor)
            release(lambda: find(file))
        else:
            os.close(descriptor)
    return None


def is_autoclear(device: Path) -> bool:
    """Whether a device is detached as soon as nothing holds it."""
    return _read_flag(device, "loop/autoclear")


def _read_flag(device: Path, attribute: str) -> bool:
    try:
        return (_SYS_BLOCK / device.name / attribute).read_text().strip() == "1"
    except OSError:
        return False


def _configure(file_descriptor: int, file: Path, *, readonly: bool, keep: bool) -> tuple[Path, int]:
    flags = (_LO_FLAGS_READ_ONLY if readonly else 0) | (0 if keep else _LO_FLAGS_AUTOCLEAR)
    name = os.fsencode(file.name)[:63]
    config = _LOOP_CONFIG.pack(file_descriptor, 0, *(0,) * 5, 0, 0, 0, flags, name, b"", b"", 0, 0)
    try:
        control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise _no_device(
            f"{_CONTROL} cannot be opened ({error.strerror}); {_DEVICES_HINT}"
        ) from error
    try:
        for _ in range(_TRIES):
            device, descriptor = _open_free_device(control)
            try:
                fcntl.ioctl(descriptor, _LOOP_CONFIGURE, config)
            except OSError as error:
                os.close(descriptor)
                if error.errno == errno.EBUSY:
                    continue  # another process was faster; take the next free one
                raise unavailable(
                    f"no loop device: {device} refuses {file}: {error.strerror}"
                ) from error
            # The kernel keeps the setting of the previous file.
            fcntl.ioctl(descriptor, _BLKROSET, struct.pack("i", readonly))
            return device, descriptor
    finally:
        os.close(control)
    raise _no_device(f"other processes took the free one {_TRIES} times; try again")


def _open_free_device(control: int) -> tuple[Path, int]:
    """A device that was free a moment ago, opened."""
    try:
        number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
    except OSError as error:
        raise _no_device(
            f"the kernel has no free one ({error.strerror}); unstage a volume on this node, or use "
            "another node"
        ) from error
    device = Path(f"/dev/loop{number}")
    try:
        return device, os.open(device, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise _no_device(
            f"{device}, which the kernel offers, cannot be opened ({error.strerror});"
            f" {_DEVICES_HINT}, or unstage a volume on this node"
        ) from error


def detach(device: Path) -> None:
    """Detach a device; if it is in use, as soon as it is not."""
    with suppress(FileNotFoundError):
        descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(descriptor, _LOOP_CLR_FD)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        finally:
            os.close(descriptor)


def release(find: Callable[[], list[Path]]) -> None:
    """Detach the devices of an image that are mounted nowhere here; ABORTED if one is still held.

    An image that is still held must not be attached or removed: its holder may still write to it.
    """
    for device in _not_mounted(find()):
        detach(device)
    if devices := wait_until_released(lambda: _not_mounted(find()), RELEASE_SECONDS):
        names = ", ".join(map(str, devices))
        raise aborted(
            f"{names} is still held by a process or mounted in another mount namespace; try again"
        )


def _not_mounted(devices: list[Path]) -> list[Path]:
    return [device for device in devices if not mounts.of_device(device)]


def wait_until_released(find: Callable[[], list[Path]], seconds: float) -> list[Path]:
    """Wait for devices that were detached; those that are still held after that time.

    Many processes hold one for a moment: a program that scans every disk, or a process with a mount
    namespace of its own (``ip netns exec``), in which everything is mounted once more.
    """
    deadline = time.monotonic() + seconds
    while devices := find():
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return devices


def update_size(device: Path) -> None:
    """Let a device take the size its file has now.

    The kernel caches attributes of a file system in user space for a second, and is made to ask
    again.
    """
    file = backing_file(device)
    if file is not None:
        _refresh_size(file)
    descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _LOOP_SET_CAPACITY, 0)
    finally:
        os.close(descriptor)


def _refresh_size(file: Path) -> None:
    """Have the kernel ask a file system for a file's size, whatever it has cached."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.statx(
        _AT_FDCWD,
        ctypes.c_char_p(os.fsencode(file)),
        _AT_STATX_FORCE_SYNC,
        _STATX_SIZE,
        ctypes.create_string_buffer(256),
    )


def flush(device: Path) -> None:
    """Write what the kernel still keeps for a device into its file."""
    descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def set_read_only(device: Path, readonly: bool) -> None:
    """Let the kernel refuse writes to a device, or not any more."""
    descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _BLKROSET, struct.pack("i", readonly))
    finally:
        os.close(descriptor)


@contextmanager
def open_device(device: Path) -> Iterator[None]:
    """Hold a device, so that it stays attached while it is mounted nowhere."""
    descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        os.close(descriptor)


def is_mounted_nowhere(device: Path) -> bool:
    """Whether the device is mounted in no mount namespace."""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise
    return True


def _no_device(message: str) -> CsiError:
    return exhausted(f"no loop device: {message}")
