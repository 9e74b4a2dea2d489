"""The node half of the embedded backend: images and folders at paths.

========  ==============================  ===========================================
kept as   stage                           publish
========  ==============================  ===========================================
ext4 xfs  mkfs if empty, mount            bind the staging path
block     attach a loop device            bind the device's file
folder    bind the folder                 bind the staging path; without root a link
========  ==============================  ===========================================

A file system is made in a second file that replaces the image when it is finished: a killed mkfs
leaves an image that is still empty, never one that looks like user data.

On one machine many nodes may share one mount table. A volume that is mounted for another staging
path is therefore refused unless all requests are read-only: two mounts of one image through two
devices would destroy it.

A path may be wrong. Only the volume itself is unmounted, only what was made for it is removed
(``targets``), and nothing is mounted through a link: removing it would leave the mount.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from zonewise.csi.backends.contract import BLOCK, FOLDER, MountRequest, Usage
from zonewise.csi.backends.folders import (
    copies,
    fencing,
    filesystems,
    growing,
    loops,
    mounts,
    targets,
    trees,
)
from zonewise.csi.backends.folders.marks import write_mark
from zonewise.csi.backends.folders.pools import FORMATTING_SUFFIX
from zonewise.csi.errors import Code, CsiError, internal, invalid, not_found, precondition
from zonewise.storage.journal import JournalEntry
from zonewise.storage.takeover.dead_nodes import VolumeHolder


class ImageFiles(Protocol):
    """Volumes that are files or folders of this machine."""

    @property
    def privileged(self) -> bool:
        """Whether devices and mounts can be made."""

    def path(self, entry: JournalEntry) -> Path:
        """Where an entry's image or folder is."""

    def image_file(self, uuid: str) -> Path:
        """The name of a volume's image, wherever it is."""

    def is_mounted_at(self, path: Path, uuid: str) -> bool:
        """Whether it is the volume of a uuid that is mounted at a path."""

    @property
    def data_folder(self) -> Path:
        """The folder that all of them are in."""


class FolderNode:
    """Brings volumes of ``FolderPools`` to paths of this machine."""

    def __init__(self, pools: ImageFiles) -> None:
        self._pools = pools
        self._privileged = pools.privileged

    def stage(self, entry: JournalEntry, staging: Path, request: MountRequest) -> None:
        """Mount at the staging path; a device is only attached."""
        source = self._require_source(entry)
        if not self._privileged:
            return
        if entry.access == BLOCK:
            if any(loops.is_autoclear(device) for device in self._find_devices(entry)):
                loops.release(lambda: self._find_devices(entry))
            if not self._find_devices(entry):
                with self._attach(entry, source, readonly=request.readonly, keep=True):
                    pass
            return
        volume_mounts = self._find_mounts(entry, source)
        if _is_mounted_among(volume_mounts, staging):
            return
        if mounts.at(staging) is not None:
            raise precondition(f"something else is mounted at {staging}; unmount it first")
        self._refuse_data_folder(staging)
        if entry.access == FOLDER:
            targets.make_folder(staging)
            with _translate_errors(staging):
                mounts.bind(source, staging, readonly=request.readonly)
            return
        if volume_mounts and not (request.readonly and request.shared):
            raise precondition(
                f"the volume is mounted at {volume_mounts[0].target} already, for another"
                " staging path"
            )
        self._mount(entry, source, staging, request)

    def unstage(self, uuid: str, staging: Path) -> None:
        """Unmount the staging path and release the device."""
        if not self._privileged:
            return
        self._unmount(staging, uuid)
        self._release_devices(uuid)

    def find_holder(self, entry: JournalEntry, staging: Path) -> VolumeHolder | None:
        """The node that has the image attached, as it recorded itself."""
        source = self._pools.path(entry)
        if not self._privileged or not self._find_devices(entry):
            return None
        holder = fencing.read_holder(source)
        if holder is not None:
            return holder
        volume_mounts = self._find_mounts(entry, source)
        in_use = volume_mounts and not _is_mounted_among(volume_mounts, staging)
        return VolumeHolder() if in_use else None

    def record_holder(self, entry: JournalEntry, holder: VolumeHolder) -> None:
        """Record its holder."""
        if self._privileged:
            fencing.write_holder(self._require_source(entry), holder)

    def clear_holder(self, entry: JournalEntry, node: str) -> None:
        """It has no holder any more, if that node had it."""
        source = self._pools.path(entry)
        holder = fencing.read_holder(source)
        if holder is not None and holder.node == node:
            fencing.write_holder(source, None)

    def fence(self, entry: JournalEntry) -> None:
        """Fence every user of the image."""
        source = self._require_source(entry)
        with _translate_errors(source, "fencing"):
            fencing.fence_image(source, loops.find)

    def abandon_staging(self, entry: JournalEntry, staging: Path) -> None:
        """Unmount a path through which nothing can be written any more."""
        if not self._privileged or mounts.at(staging) is None:
            return
        if not self._is_mounted_at(staging, entry.uuid):
            raise precondition(f"something else is mounted at {staging}; it was left alone")
        with _translate_errors(staging):
            mounts.detach(staging)

    def publish(
        self, entry: JournalEntry, staging: Path, target: Path, request: MountRequest
    ) -> None:
        """Show the staged volume at a pod's path."""
        source = self._require_source(entry)
        if not self._privileged:
            targets.make_link(source, target)
            return
        volume_mounts = self._find_mounts(entry, source)
        if entry.access != BLOCK and not _is_mounted_among(volume_mounts, staging):
            raise precondition(f"the volume is not staged at {staging}; stage it first")
        target_mount = mounts.at(target)
        if target_mount is not None:
            if not _is_mounted_among(volume_mounts, target):
                raise precondition(f"something else is mounted at {target}; unmount it first")
            if target_mount.readonly != (request.readonly or "ro" in target_mount.super_options):
                raise CsiError(
                    Code.ALREADY_EXISTS,
                    f"{target} shows the volume already, {'not ' * request.readonly}read-only",
                )
            return
        others = [mount.target for mount in volume_mounts if mount.target != _resolve(staging)]
        if request.single_writer and others:
            raise precondition(f"the volume is for a single writer and is used at {others[0]}")
        self._refuse_data_folder(target)
        if entry.access == BLOCK:
            self._publish_device(entry, target, request, others=bool(others))
            return
        targets.make_folder(target, entry.uuid)
        with _translate_errors(target):
            mounts.bind(staging, target, readonly=request.readonly)

    def unpublish(self, uuid: str, target: Path) -> None:
        """Remove the mount, or the link, and then the path itself."""
        try:
            mode = target.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return
        if stat.S_ISLNK(mode):
            targets.remove_link(target, self._pools.image_file(uuid))
            return
        was_mounted = self._privileged and self._unmount(target, uuid)
        targets.remove(target, uuid, was_mounted=was_mounted)

    def measure_usage(self, entry: JournalEntry, path: Path) -> Usage:
        """How full it is: of a folder what its files take, as its size is not enforced."""
        source = self._require_staged(entry, path)
        if entry.access == BLOCK:
            return Usage(total=filesystems.size_of(source), used=0, available=0)
        if entry.access == FOLDER:
            used = trees.disk_usage(source)
            return Usage(total=entry.bytes, used=used, available=max(0, entry.bytes - used))
        statistics = os.statvfs(path)
        unit = statistics.f_frsize
        return Usage(
            total=statistics.f_blocks * unit,
            used=(statistics.f_blocks - statistics.f_bfree) * unit,
            available=statistics.f_bavail * unit,
            inodes=(
                statistics.f_files,
                statistics.f_files - statistics.f_ffree,
                statistics.f_favail,
            ),
        )

    def expand(self, entry: JournalEntry, path: Path) -> None:
        """Let the device, then the file system, follow the image."""
        source = self._require_staged(entry, path)
        if entry.access == FOLDER:
            return
        for device in self._find_devices(entry):
            self._update_device_size(entry, device)
            if entry.access != BLOCK and filesystems.needs_growing(source):
                growing.grow_device(entry.access, device)

    def _find_devices(self, entry: JournalEntry) -> list[Path]:
        """The devices of an image."""
        return loops.find(self._pools.path(entry))

    def _attach(
        self, entry: JournalEntry, source: Path, *, readonly: bool, keep: bool = False
    ) -> AbstractContextManager[Path]:
        """An image as a device, at least for a while; with ``keep`` until it is released."""
        return loops.attach(source, readonly=readonly, keep=keep, reuse=not keep)

    def _update_device_size(self, entry: JournalEntry, device: Path) -> None:
        """Let a device take the size that its image has now."""
        loops.update_size(device)

    def _release_devices(self, uuid: str) -> None:
        """Detach a volume's devices, as far as they are unused.

        Those of a file that was replaced are useless, so they are not waited for.
        """
        file = self._pools.image_file(uuid)
        for device in loops.find(file, deleted=True):
            if not mounts.of_device(device):
                loops.detach(device)
        loops.release(lambda: loops.find(file))

    def _is_mounted_at(self, path: Path, uuid: str) -> bool:
        """Whether it is the volume of a uuid that is mounted at a path; an empty one has none."""
        return self._pools.is_mounted_at(path, uuid)

    def _require_source(self, entry: JournalEntry) -> Path:
        path = self._pools.path(entry)
        if not path.exists():
            raise internal(f"{path.name} is not in pool {entry.pool} any more")
        return path

    def _find_mounts(self, entry: JournalEntry, source: Path) -> list[mounts.Mount]:
        if entry.access == FOLDER:
            return mounts.of_folder(source)
        return [mount for device in self._find_devices(entry) for mount in mounts.of_device(device)]

    def _require_staged(self, entry: JournalEntry, path: Path) -> Path:
        """The folder or file that holds a volume; an error unless the volume is at the path."""
        source = self._require_source(entry)
        self._require_at_path(entry, source, path)
        return source

    def _require_at_path(self, entry: JournalEntry, source: Path, path: Path) -> None:
        if self._privileged:
            is_at_path = _is_mounted_among(self._find_mounts(entry, source), path)
            staged = entry.access == BLOCK and path.is_dir() and bool(self._find_devices(entry))
        else:
            is_at_path, staged = path.is_symlink() and path.resolve() == source.resolve(), False
        if not (is_at_path or staged):
            raise not_found(f"the volume is not at {path}")

    def _refuse_data_folder(self, path: Path) -> None:
        """Refuse a path in, at or above our own data: a mount there would hide every volume."""
        real, data = _resolve(path), _resolve(self._pools.data_folder)
        if real.is_relative_to(data) or data.is_relative_to(real):
            raise invalid(f"{path} would hide the driver's own data; give another path")

    def _unmount(self, path: Path, uuid: str) -> bool:
        """Unmount a volume, and nothing else; whether it was mounted there."""
        if mounts.at(path) is None:
            return False
        if not uuid or not self._is_mounted_at(path, uuid):
            raise precondition(f"something else is mounted at {path}; it was left alone")
        with _translate_errors(path):
            mounts.unmount(path)
        return True

    def _mount(
        self, entry: JournalEntry, source: Path, staging: Path, request: MountRequest
    ) -> None:
        content = self._detect_content(entry, source)
        if content == "":
            self._format(entry, source)
        elif content != entry.access:
            what = "data that is not a file system" if content == filesystems.UNKNOWN else content
            raise precondition(f"the volume holds {what}, not {entry.access}; it was left alone")
        options = [*request.flags, *(["ro"] if request.readonly else [])]
        if entry.access == filesystems.XFS:
            options.append("nouuid")  # a clone has its source's, and both may be mounted here
        needs_growing = not request.readonly and filesystems.needs_growing(source)
        with self._attach(entry, source, readonly=request.readonly) as device:
            targets.make_folder(staging)
            if needs_growing:
                filesystems.grow_unmounted(entry.access, device)
            with _translate_errors(
                staging, f"mounting {entry.access} with options {','.join(options) or '-'}"
            ):
                mounts.mount(device, staging, entry.access, options)
            copies.thaw(staging)  # a killed copy may have left it frozen, and nowhere mounted
        if needs_growing and entry.access == filesystems.XFS:
            filesystems.grow_mounted(entry.access, device, staging)

    def _detect_content(self, entry: JournalEntry, source: Path) -> str:
        """What is on an image: a file system, ``data`` if unknown, empty if nothing."""
        return filesystems.detect(source)

    def _format(self, entry: JournalEntry, source: Path) -> None:
        """Make a file system, so that a killed attempt leaves an image that counts as empty."""
        formatted = source.with_name(source.name + FORMATTING_SUFFIX)
        formatted.unlink(missing_ok=True)
        try:
            with formatted.open("wb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.truncate(source.stat().st_size)
                write_mark(file.fileno(), entry.name)
            fencing.write_holder(formatted, fencing.read_holder(source))
            filesystems.make(entry.access, formatted)
            formatted.rename(source)
        finally:
            formatted.unlink(missing_ok=True)

    def _publish_device(
        self, entry: JournalEntry, target: Path, request: MountRequest, *, others: bool
    ) -> None:
        devices = self._find_devices(entry)
        if not devices:
            raise precondition("the volume is not staged here; stage it first")
        if not others:
            loops.set_read_only(devices[0], request.readonly)
        elif request.readonly:
            raise precondition("the device is used for writing already; it cannot be read-only too")
        targets.make_file(target, entry.uuid)
        with _translate_errors(target):
            mounts.bind(devices[0], target, readonly=False)


def _resolve(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _is_mounted_among(volume_mounts: list[mounts.Mount], path: Path) -> bool:
    real = _resolve(path)
    return any(mount.target == real for mount in volume_mounts)


@contextmanager
def _translate_errors(path: Path, action: str = "mounting") -> Iterator[None]:
    """Turn the kernel's error into an answer."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise precondition(f"{path} is in use; try again when it is not in use") from error
        if error.errno == errno.EINVAL:
            raise invalid(
                f"{action} at {path} is refused by the kernel: {error.strerror}"
            ) from error
        raise internal(f"{action} at {path} fails: {error.strerror}") from error
