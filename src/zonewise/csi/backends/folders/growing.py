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
from zonewise.csi.errors import precondition

UNMOUNT_SECONDS = 2.0
"""Some processes copy all mounts for a moment; a real user has it for longer."""

_IN_USE = (
    "this kernel does not grow ext4 while it is in use; it grows when the volume is staged next"
)


def grow_device(file_system: str, device: Path) -> None:
    """Grow what is mounted from a device."""
    device_mounts = [
        mount for mount in mounts.of_device(device) if mount.file_system == file_system
    ]
    if not device_mounts:
        filesystems.grow_unmounted(file_system, device)
        return
    if filesystems.grow_mounted(file_system, device, device_mounts[0].target):
        return
    if any(mount.root != "/" for mount in device_mounts):
        raise precondition(_IN_USE)
    with loops.open_device(device):
        unmounted: list[mounts.Mount] = []
        try:
            for mount in reversed(device_mounts):
                _unmount(mount)
                unmounted.append(mount)
            if loops.wait_until_released(lambda: _find_mounted_elsewhere(device), UNMOUNT_SECONDS):
                raise precondition(_IN_USE)
            filesystems.grow_unmounted(file_system, device)
        finally:
            _mount_again(device, device_mounts, unmounted)


def _unmount(mount: mounts.Mount) -> None:
    try:
        mounts.unmount(mount.target)
    except OSError:
        raise precondition(_IN_USE) from None


def _find_mounted_elsewhere(device: Path) -> list[Path]:
    return [] if loops.is_mounted_nowhere(device) else [device]


def _mount_again(
    device: Path, device_mounts: list[mounts.Mount], unmounted: list[mounts.Mount]
) -> None:
    """The first mount is the file system's, the others show the same at other paths."""
    first = device_mounts[0]
    for mount in device_mounts:
        if mount not in unmounted:
            continue
        if mount is first:
            options = [*mount.super_options, *(mount.options - {"rw"})]
            mounts.mount(device, mount.target, mount.file_system, options)
        else:
            with suppress(FileNotFoundError):
                mounts.bind(first.target, mount.target, readonly=mount.readonly)
