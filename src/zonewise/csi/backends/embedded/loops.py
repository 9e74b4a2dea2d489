"""Loop devices: a file as a block device.

They are found again by the name of their file, which has a uuid in it, not by a note of ours: a
node that was killed knows at its next start what is attached. For file systems a device is attached
with ``AUTOCLEAR``: our descriptor holds it until it is mounted, the mount holds it afterwards, and
the kernel detaches it when both are gone, whoever dies when. A device that is published as such is
held by nobody, so those are detached explicitly.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zonewise.csi.backends.embedded import mounts
from zonewise.csi.status import Code, CsiError, aborted

_CLEAR = 0x4C01
_SET_CAPACITY = 0x4C07
_CONFIGURE = 0x4C0A
_GET_FREE = 0x4C82
_SET_READ_ONLY = 0x125D
_READ_ONLY = 1
_AUTOCLEAR = 4
_CONTROL = "/dev/loop-control"
_SYSTEM = Path("/sys/block")
_TRIES = 50
_SECONDS = 10.0
_MAJOR = 7
_HERE = -100
_FORCE_SYNC = 0x2000
_SIZE = 0x200
_CONFIG = struct.Struct("=II5Q4I64s64s32s2Q64x")


def seen_at(path: Path) -> bool:
    """Whether a loop device, or what was mounted from one, is seen at a path.

    What does not even say what it is counts as one, or a broken mount would stay for ever.
    """
    try:
        found = path.stat()
    except OSError:
        return True
    device = found.st_rdev if stat.S_ISBLK(found.st_mode) else found.st_dev
    return os.major(device) == _MAJOR


def find(file: Path, *, deleted: bool = False) -> list[Path]:
    """The devices that a file is attached to; none if it is not.

    With ``deleted`` also those of a file that had this name: one that was removed, or replaced
    because its device could not be taken from whoever holds it.
    """
    endings = ("", " (deleted)") if deleted else ("",)
    ends = tuple(os.fsencode(f"/{file.name}{ending}\n") for ending in endings)
    found = []
    for block in sorted(_SYSTEM.iterdir()):
        if block.name.startswith("loop"):
            with suppress(OSError), (block / "loop" / "backing_file").open("rb") as backing:
                if backing.read().endswith(ends):
                    found.append(Path("/dev", block.name))
    return found


def backing(device: Path) -> Path | None:
    """The file behind a device, as it is called here."""
    try:
        return Path(
            os.fsdecode((_SYSTEM / device.name / "loop" / "backing_file").read_bytes()[:-1])
        )
    except OSError:
        return None


@contextmanager
def attached(file: Path, *, readonly: bool = False, keep: bool = False) -> Iterator[Path]:
    """Attach a file and hold the device open meanwhile.

    With ``keep`` it stays attached afterwards, else only as long as something else holds it.
    """
    flags = os.O_RDONLY if readonly else os.O_RDWR
    backing = os.open(file, flags | os.O_CLOEXEC)
    try:
        device, descriptor = _configure(backing, file, readonly=readonly, keep=keep)
    finally:
        os.close(backing)
    try:
        yield device
    except BaseException:
        if keep:
            with suppress(OSError):
                fcntl.ioctl(descriptor, _CLEAR)
        raise
    finally:
        os.close(descriptor)


def _configure(backing: int, file: Path, *, readonly: bool, keep: bool) -> tuple[Path, int]:
    kind = (_READ_ONLY if readonly else 0) | (0 if keep else _AUTOCLEAR)
    name = os.fsencode(file.name)[:63]
    config = _CONFIG.pack(backing, 0, *(0,) * 5, 0, 0, 0, kind, name, b"", b"", 0, 0)
    try:
        control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise _unavailable(f"{_CONTROL} cannot be opened: {error.strerror}") from error
    try:
        for _ in range(_TRIES):
            number = fcntl.ioctl(control, _GET_FREE)
            device = Path(f"/dev/loop{number}")
            try:
                descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                raise _unavailable(f"the kernel offers {device}, which is not in /dev") from None
            try:
                fcntl.ioctl(descriptor, _CONFIGURE, config)
            except OSError as error:
                os.close(descriptor)
                if error.errno == errno.EBUSY:
                    continue  # another process was faster; ask for the next free one
                raise _unavailable(f"{device} refuses {file}: {error.strerror}") from error
            # The kernel keeps what was said about the file before.
            fcntl.ioctl(descriptor, _SET_READ_ONLY, struct.pack("i", readonly))
            return device, descriptor
    finally:
        os.close(control)
    raise _unavailable("no free loop device was left after many attempts")


def detach(device: Path) -> None:
    """Detach a device; if it is in use, as soon as it is not."""
    with suppress(FileNotFoundError):
        descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(descriptor, _CLEAR)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        finally:
            os.close(descriptor)


def release(find: Callable[[], list[Path]]) -> None:
    """Detach the devices of an image that are mounted nowhere here; ABORTED if somebody holds one.

    An image that is still held must not be attached or removed: who holds it may yet write to it.
    """
    for device in _not_mounted(find()):
        detach(device)
    if held := held_after_a_while(lambda: _not_mounted(find()), _SECONDS):
        devices = ", ".join(map(str, held))
        raise aborted(
            f"{devices} is still held by a process or mounted in another mount namespace; ask again"
        )


def _not_mounted(devices: list[Path]) -> list[Path]:
    return [device for device in devices if not mounts.of_device(device)]


def held_after_a_while(find: Callable[[], list[Path]], seconds: float) -> list[Path]:
    """Wait for devices that were detached; those that somebody still holds after that time.

    Many hold one for a moment: a program that looks at every disk, or a process with a mount
    namespace of its own (``ip netns exec``), in which everything is mounted once more.
    """
    end = time.monotonic() + seconds
    while held := find():
        if time.monotonic() > end:
            break
        time.sleep(0.01)
    return held


def follow(device: Path) -> None:
    """Let a device take the size its file has now.

    The kernel believes for a second what a file system in user space told it last, and is made to
    ask again.
    """
    file = backing(device)
    if file is not None:
        _ask_again(file)
    descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _SET_CAPACITY, 0)
    finally:
        os.close(descriptor)


def _ask_again(file: Path) -> None:
    """Have the kernel ask a file system for a file's size, whatever it remembers."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.statx(
        _HERE,
        ctypes.c_char_p(os.fsencode(file)),
        _FORCE_SYNC,
        _SIZE,
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
        fcntl.ioctl(descriptor, _SET_READ_ONLY, struct.pack("i", readonly))
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


def exclusive(device: Path) -> bool:
    """Whether nobody has the device mounted, in any mount namespace."""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise
    return True


def _unavailable(sentence: str) -> CsiError:
    return CsiError(Code.UNAVAILABLE, f"no loop device: {sentence}")
