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

from zonewise.csi.backends.contract import BLOCK, FOLDER, Usage, Wanted
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
from zonewise.csi.backends.folders.pools import FORMATTING
from zonewise.csi.status import Code, CsiError, invalid, not_found, precondition
from zonewise.storage.journal import JournalEntry
from zonewise.storage.takeover.fencing import VolumeHolder


class ImageFiles(Protocol):
    """Volumes that are files or folders of this machine."""

    @property
    def privileged(self) -> bool:
        """Whether devices and mounts can be made."""

    def path(self, entry: JournalEntry) -> Path:
        """Where an entry's image or folder is."""

    def file(self, uuid: str) -> Path:
        """The name of a volume's image, wherever it is."""

    def shown_at(self, path: Path, uuid: str) -> bool:
        """Whether it is the volume of a uuid that is mounted at a path."""

    @property
    def data(self) -> Path:
        """The folder that all of them are in."""


class FolderNode:
    """Brings volumes of ``FolderPools`` to paths of this machine."""

    def __init__(self, pools: ImageFiles) -> None:
        self._pools = pools
        self._privileged = pools.privileged

    def stage(self, entry: JournalEntry, staging: Path, wanted: Wanted) -> None:
        """Mount at the staging path; a device is only attached."""
        source = self._source(entry)
        if not self._privileged:
            return
        if entry.access == BLOCK:
            if any(loops.going(device) for device in self._devices(entry)):
                loops.release(lambda: self._devices(entry))
            if not self._devices(entry):
                with self._attached(entry, source, readonly=wanted.readonly, keep=True):
                    pass
            return
        there = self._mounts(entry, source)
        if _holds(there, staging):
            return
        if mounts.at(staging) is not None:
            raise precondition(f"something else is mounted at {staging}; unmount it first")
        self._keep_clear(staging)
        if entry.access == FOLDER:
            targets.make_folder(staging)
            with _told(staging):
                mounts.bind(source, staging, readonly=wanted.readonly)
            return
        if there and not (wanted.readonly and wanted.shared):
            raise precondition(
                f"the volume is mounted at {there[0].target} already, for another staging path"
            )
        self._mount(entry, source, staging, wanted)

    def unstage(self, uuid: str, staging: Path) -> None:
        """Unmount the staging path and release the device."""
        if not self._privileged:
            return
        self._unmount(staging, uuid)
        self._let_go(uuid)

    def holder(self, entry: JournalEntry, staging: Path) -> VolumeHolder | None:
        """The node that has the image attached, as it recorded itself."""
        source = self._pools.path(entry)
        if not self._privileged or not self._devices(entry):
            return None
        found = fencing.read_holder(source)
        if found is not None:
            return found
        there = self._mounts(entry, source)
        return VolumeHolder() if there and not _holds(there, staging) else None

    def hold(self, entry: JournalEntry, holder: VolumeHolder) -> None:
        """Record its holder."""
        if self._privileged:
            fencing.write_holder(self._source(entry), holder)

    def release(self, entry: JournalEntry, node: str) -> None:
        """It has no holder any more, if that node had it."""
        source = self._pools.path(entry)
        found = fencing.read_holder(source)
        if found is not None and found.node == node:
            fencing.write_holder(source, None)

    def fence(self, entry: JournalEntry) -> None:
        """Fence every user of the image."""
        source = self._source(entry)
        with _told(source, "fencing"):
            fencing.shut_out(source, loops.find)

    def leave(self, entry: JournalEntry, staging: Path) -> None:
        """Unmount a path through which nothing can be written any more."""
        if not self._privileged or mounts.at(staging) is None:
            return
        if not self._shown_at(staging, entry.uuid):
            raise precondition(f"something else is mounted at {staging}; it was left alone")
        with _told(staging):
            mounts.detach(staging)

    def publish(self, entry: JournalEntry, staging: Path, target: Path, wanted: Wanted) -> None:
        """Show the staged volume at a pod's path."""
        source = self._source(entry)
        if not self._privileged:
            targets.make_link(source, target)
            return
        there = self._mounts(entry, source)
        if entry.access != BLOCK and not _holds(there, staging):
            raise precondition(f"the volume is not staged at {staging}; stage it first")
        before = mounts.at(target)
        if before is not None:
            if not _holds(there, target):
                raise precondition(f"something else is mounted at {target}; unmount it first")
            if before.readonly != (wanted.readonly or "ro" in before.super_options):
                raise CsiError(
                    Code.ALREADY_EXISTS,
                    f"{target} shows the volume already, {'not ' * wanted.readonly}read-only",
                )
            return
        others = [one.target for one in there if one.target != _real(staging)]
        if wanted.single_writer and others:
            raise precondition(f"the volume is for a single writer and is used at {others[0]}")
        self._keep_clear(target)
        if entry.access == BLOCK:
            self._publish_device(entry, target, wanted, others=bool(others))
            return
        targets.make_folder(target, entry.uuid)
        with _told(target):
            mounts.bind(staging, target, readonly=wanted.readonly)

    def unpublish(self, uuid: str, target: Path) -> None:
        """Remove the mount, or the link, and then the path itself."""
        try:
            mode = target.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return
        if stat.S_ISLNK(mode):
            targets.remove_link(target, self._pools.file(uuid))
            return
        shown = self._privileged and self._unmount(target, uuid)
        targets.remove(target, uuid, shown=shown)

    def usage(self, entry: JournalEntry, path: Path) -> Usage:
        """How full it is: of a folder what its files take, as its size is not enforced."""
        source = self._staged(entry, path)
        if entry.access == BLOCK:
            return Usage(total=filesystems.size(source), used=0, available=0)
        if entry.access == FOLDER:
            used = trees.disk_usage(source)
            return Usage(total=entry.bytes, used=used, available=max(0, entry.bytes - used))
        found = os.statvfs(path)
        unit = found.f_frsize
        return Usage(
            total=found.f_blocks * unit,
            used=(found.f_blocks - found.f_bfree) * unit,
            available=found.f_bavail * unit,
            inodes=(found.f_files, found.f_files - found.f_ffree, found.f_favail),
        )

    def expand(self, entry: JournalEntry, path: Path) -> None:
        """Let the device, then the file system, follow the image."""
        source = self._staged(entry, path)
        if entry.access == FOLDER:
            return
        for device in self._devices(entry):
            self._follow(entry, device)
            if entry.access != BLOCK and filesystems.short(source):
                growing.grow(entry.access, device)

    def _devices(self, entry: JournalEntry) -> list[Path]:
        """The devices of an image."""
        return loops.find(self._pools.path(entry))

    def _attached(
        self, entry: JournalEntry, source: Path, *, readonly: bool, keep: bool = False
    ) -> AbstractContextManager[Path]:
        """An image as a device, at least for a while; with ``keep`` until it is released."""
        return loops.attached(source, readonly=readonly, keep=keep, again=not keep)

    def _follow(self, entry: JournalEntry, device: Path) -> None:
        """Let a device take the size that its image has now."""
        loops.follow(device)

    def _let_go(self, uuid: str) -> None:
        """Detach a volume's devices, as far as they are unused.

        Those of a file that was replaced are useless, so they are not waited for.
        """
        file = self._pools.file(uuid)
        for device in loops.find(file, deleted=True):
            if not mounts.of_device(device):
                loops.detach(device)
        loops.release(lambda: loops.find(file))

    def _shown_at(self, path: Path, uuid: str) -> bool:
        """Whether it is the volume of a uuid that is mounted at a path; an empty one has none."""
        return self._pools.shown_at(path, uuid)

    def _source(self, entry: JournalEntry) -> Path:
        path = self._pools.path(entry)
        if not path.exists():
            raise CsiError(Code.INTERNAL, f"{path.name} is not in pool {entry.pool} any more")
        return path

    def _mounts(self, entry: JournalEntry, source: Path) -> list[mounts.Mounted]:
        if entry.access == FOLDER:
            return mounts.of_folder(source)
        return [one for device in self._devices(entry) for one in mounts.of_device(device)]

    def _staged(self, entry: JournalEntry, path: Path) -> Path:
        """What a volume is kept in that is at a path; NOT_FOUND if it does not exist."""
        source = self._source(entry)
        self._require(entry, source, path)
        return source

    def _require(self, entry: JournalEntry, source: Path, path: Path) -> None:
        if self._privileged:
            there = _holds(self._mounts(entry, source), path)
            staged = entry.access == BLOCK and path.is_dir() and bool(self._devices(entry))
        else:
            there, staged = path.is_symlink() and path.resolve() == source.resolve(), False
        if not (there or staged):
            raise not_found(f"the volume is not at {path}")

    def _keep_clear(self, path: Path) -> None:
        """Refuse a path in, at or above our own data: a mount there would hide every volume."""
        real, data = _real(path), _real(self._pools.data)
        if real.is_relative_to(data) or data.is_relative_to(real):
            raise invalid(f"{path} would hide the driver's own data; give another path")

    def _unmount(self, path: Path, uuid: str) -> bool:
        """Unmount a volume, and nothing else; whether it was mounted there."""
        if mounts.at(path) is None:
            return False
        if not uuid or not self._shown_at(path, uuid):
            raise precondition(f"something else is mounted at {path}; it was left alone")
        with _told(path):
            mounts.unmount(path)
        return True

    def _mount(self, entry: JournalEntry, source: Path, staging: Path, wanted: Wanted) -> None:
        kind = self._content(entry, source)
        if kind == "":
            self._format(entry, source)
        elif kind != entry.access:
            what = "data that is not a file system" if kind == filesystems.UNKNOWN else kind
            raise precondition(f"the volume holds {what}, not {entry.access}; it was left alone")
        options = [*wanted.flags, *(["ro"] if wanted.readonly else [])]
        if entry.access == filesystems.XFS:
            options.append("nouuid")  # a clone has its source's, and both may be mounted here
        short = not wanted.readonly and filesystems.short(source)
        with self._attached(entry, source, readonly=wanted.readonly) as device:
            targets.make_folder(staging)
            if short:
                filesystems.grow_unmounted(entry.access, device)
            with _told(staging, f"mounting {entry.access} with options {','.join(options) or '-'}"):
                mounts.mount(device, staging, entry.access, options)
            copies.thaw(staging)  # a killed copy may have left it frozen, and nowhere mounted
        if short and entry.access == filesystems.XFS:
            filesystems.grow_mounted(entry.access, device, staging)

    def _content(self, entry: JournalEntry, source: Path) -> str:
        """What is on an image: a file system, ``data`` if unknown, empty if nothing."""
        return filesystems.on(source)

    def _format(self, entry: JournalEntry, source: Path) -> None:
        """Make a file system, so that a killed attempt leaves an image that counts as empty."""
        fresh = source.with_name(source.name + FORMATTING)
        fresh.unlink(missing_ok=True)
        try:
            with fresh.open("wb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.truncate(source.stat().st_size)
                write_mark(file.fileno(), entry.name)
            fencing.write_holder(fresh, fencing.read_holder(source))
            filesystems.make(entry.access, fresh)
            fresh.rename(source)
        finally:
            fresh.unlink(missing_ok=True)

    def _publish_device(
        self, entry: JournalEntry, target: Path, wanted: Wanted, *, others: bool
    ) -> None:
        devices = self._devices(entry)
        if not devices:
            raise precondition("the volume is not staged here; stage it first")
        if not others:
            loops.set_read_only(devices[0], wanted.readonly)
        elif wanted.readonly:
            raise precondition("the device is used for writing already; it cannot be read-only too")
        targets.make_file(target, entry.uuid)
        with _told(target):
            mounts.bind(devices[0], target, readonly=False)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _holds(there: list[mounts.Mounted], path: Path) -> bool:
    real = _real(path)
    return any(one.target == real for one in there)


@contextmanager
def _told(path: Path, what: str = "mounting") -> Iterator[None]:
    """Turn the kernel's error into an answer."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise precondition(f"{path} is in use; try again when it is not in use") from error
        if error.errno == errno.EINVAL:
            raise invalid(f"{what} at {path} is refused by the kernel: {error.strerror}") from error
        raise CsiError(Code.INTERNAL, f"{what} at {path} fails: {error.strerror}") from error
