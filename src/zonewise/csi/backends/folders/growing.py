"""Growing a file system that is mounted, also on kernels that do not allow it.

xfs grows while it is used. ext4 does too, unless the capability is missing (containers without
``CAP_SYS_RESOURCE``): then it is unmounted everywhere, grown, and mounted again at the same paths.
That is done only if it is unused in every mount namespace; else it is refused, and the next stage
does it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from zonewise.csi.backends.folders import filesystems, loops, mounts
from zonewise.csi.status import precondition

SECONDS = 2.0
"""Some processes copy all mounts for a moment; a real user has it for longer."""

_IN_USE = (
    "this kernel does not grow ext4 while it is in use; it grows when the volume is staged next"
)


def grow(file_system: str, device: Path) -> None:
    """Grow what is mounted from a device."""
    there = [one for one in mounts.of_device(device) if one.file_system == file_system]
    if not there:
        filesystems.grow_unmounted(file_system, device)
        return
    if filesystems.grow_mounted(file_system, device, there[0].target):
        return
    if any(one.root != "/" for one in there):
        raise precondition(_IN_USE)
    with loops.open_device(device):
        removed: list[mounts.Mounted] = []
        try:
            for one in reversed(there):
                _unmount(one)
                removed.append(one)
            if loops.held_after_a_while(lambda: _mounted_elsewhere(device), SECONDS):
                raise precondition(_IN_USE)
            filesystems.grow_unmounted(file_system, device)
        finally:
            _mount_again(device, there, removed)


def _unmount(one: mounts.Mounted) -> None:
    try:
        mounts.unmount(one.target)
    except OSError:
        raise precondition(_IN_USE) from None


def _mounted_elsewhere(device: Path) -> list[Path]:
    return [] if loops.exclusive(device) else [device]


def _mount_again(device: Path, there: list[mounts.Mounted], removed: list[mounts.Mounted]) -> None:
    """The first mount is the file system's, the others show the same at other paths."""
    first = there[0]
    for one in there:
        if one not in removed:
            continue
        if one is first:
            options = [*one.super_options, *(one.options - {"rw"})]
            mounts.mount(device, one.target, one.file_system, options)
        else:
            with suppress(FileNotFoundError):
                mounts.bind(first.target, one.target, readonly=one.readonly)
