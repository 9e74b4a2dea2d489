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
from zonewise.storage.takeover.dead_nodes import VolumeHolder

HOLDER_ATTRIBUTE = "user.zonewise.holder"
REPLACEMENT_SUFFIX = ".mkfs"
"""Beside an image it is a step of stage, which the next one repeats."""
RELEASE_SECONDS = 2.0
_XFS_IOC_GOINGDOWN = 0x8004587D
_GOINGDOWN_FLUSH = struct.pack("I", 0)

_log = logger("csi")
FindDevices = Callable[[Path], list[Path]]


def read_holder(image: Path) -> VolumeHolder | None:
    """The recorded holder; None if there is none, or the file system keeps no attributes."""
    try:
        return VolumeHolder.from_json(os.getxattr(image, HOLDER_ATTRIBUTE).decode(errors="replace"))
    except OSError:
        return None


def write_holder(image: Path, holder: VolumeHolder | None) -> None:
    """Record the holder, where the file system can; None removes it."""
    with suppress(OSError):
        if holder is None:
            os.removexattr(image, HOLDER_ATTRIBUTE)
        else:
            os.setxattr(image, HOLDER_ATTRIBUTE, holder.to_json().encode())


def fence_image(image: Path, find_devices: FindDevices) -> None:
    """Fence every user of an image; raises OSError."""
    for device in find_devices(image):
        device_mounts = mounts.of_device(device)
        shut_down: set[tuple[int, int]] = set()
        for mount in device_mounts:
            if mount.file_system in filesystems.KNOWN and mount.device not in shut_down:
                shut_down.add(mount.device)
                _shut_down(mount.target)
        for mount in reversed(device_mounts):
            mounts.detach(mount.target)
        loops.detach(device)
    if devices := loops.wait_until_released(lambda: find_devices(image), RELEASE_SECONDS):
        _log.warning(
            "a fenced image is still held, so it is replaced by a copy",
            image=image.name,
            device=", ".join(map(str, devices)),
        )
        replace_image(image)


def replace_image(image: Path) -> None:
    """Put a copy in an image's place, with all its attributes: open files stay on the old one."""
    replacement = image.with_name(image.name + REPLACEMENT_SUFFIX)
    replacement.unlink(missing_ok=True)
    try:
        copies.make_image(replacement, image.stat().st_size, read_mark(image) or "", source=image)
        write_holder(replacement, read_holder(image))
        replacement.rename(image)
    finally:
        replacement.unlink(missing_ok=True)


def _shut_down(target: Path) -> None:
    """Write what a file system has, and let it refuse everything from then on."""
    descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _XFS_IOC_GOINGDOWN, _GOINGDOWN_FLUSH)
    except OSError as error:
        if error.errno not in (errno.ENOTTY, errno.EOPNOTSUPP, errno.EIO):
            raise
    finally:
        os.close(descriptor)
