"""Which node has an image, and how it is fenced: on one machine.

The holder is an attribute of the image file, so it moves with the image. It counts only while the
image is attached to a device: after a reboot there are no holders.

Fencing takes three steps, because the kernel does not take a device from its users:

1. every file system on the image is shut down: what is written is on the image, and from then on
   the kernel refuses writes to files that are still open;
2. its mounts are detached, busy or not, and the device with them if nothing holds it;
3. if something does (an open file, an open device), the image is replaced by a copy of itself under
   the same name. The old device leads to the old file, which is never used again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from zonewise.csi.backends.folders import copies, filesystems, loops, mounts
from zonewise.csi.backends.folders.marks import read_mark
from zonewise.runtime.process.logs import logger
from zonewise.storage.takeover.fencing import VolumeHolder

HOLDER = "user.zonewise.holder"
REPLACING = ".mkfs"
"""Beside an image it is a step of stage, which the next one repeats."""
SECONDS = 2.0
_SHUTDOWN = 0x8004587D
_FLUSH = struct.pack("I", 0)

_log = logger("csi")
Find = Callable[[Path], list[Path]]


def read_holder(image: Path) -> VolumeHolder | None:
    """The recorded holder; None if there is none, or the file system keeps no attributes."""
    try:
        return VolumeHolder.read(os.getxattr(image, HOLDER).decode(errors="replace"))
    except OSError:
        return None


def write_holder(image: Path, holder: VolumeHolder | None) -> None:
    """Record the holder, where the file system can; None removes it."""
    with suppress(OSError):
        if holder is None:
            os.removexattr(image, HOLDER)
        else:
            os.setxattr(image, HOLDER, holder.text().encode())


def shut_out(image: Path, find: Find) -> None:
    """Fence every user of an image; raises OSError."""
    for device in find(image):
        there = mounts.of_device(device)
        stopped: set[tuple[int, int]] = set()
        for one in there:
            if one.file_system in filesystems.KNOWN and one.device not in stopped:
                stopped.add(one.device)
                _shut_down(one.target)
        for one in reversed(there):
            mounts.detach(one.target)
        loops.detach(device)
    if held := loops.held_after_a_while(lambda: find(image), SECONDS):
        _log.warning(
            "a fenced image is still held, so it is replaced by a copy",
            image=image.name,
            device=", ".join(map(str, held)),
        )
        replace(image)


def replace(image: Path) -> None:
    """Put a copy in an image's place, with all its attributes: open files stay on the old one."""
    fresh = image.with_name(image.name + REPLACING)
    fresh.unlink(missing_ok=True)
    try:
        copies.make_image(fresh, image.stat().st_size, read_mark(image) or "", source=image)
        write_holder(fresh, read_holder(image))
        fresh.rename(image)
    finally:
        fresh.unlink(missing_ok=True)


def _shut_down(target: Path) -> None:
    """Write what a file system has, and let it refuse everything from then on."""
    descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _SHUTDOWN, _FLUSH)
    except OSError as error:
        if error.errno not in (errno.ENOTTY, errno.EOPNOTSUPP, errno.EIO):
            raise
    finally:
        os.close(descriptor)
