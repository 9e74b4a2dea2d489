"""Pools as folders: the controller half of the embedded backend.

::

    <data>/pools/<pool>/vol-<uuid>.img       an image: block, ext4, xfs
    <data>/pools/<pool>/vol-<uuid>           a folder
    <data>/pools/<pool>/vol-<uuid>.partial   a folder that is being copied or removed
    <data>/pools/<pool>/snap-…               the same for snapshots

The limit of a pool is what its configuration says; what is promised is counted by the journal, in
one step with the reservation, so no number of racing controllers promises the same bytes twice.
Images are sparse: a pool that is larger than the disk below it is reported at the start, and a disk
that is full is RESOURCE_EXHAUSTED with nothing left behind.

A copy is taken from an image that is in use after its file systems were frozen, so it is as after a
power failure at one moment; from a device, after its cache was written.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, unquote

from zonewise.csi.backends.contract import BLOCK, FOLDER
from zonewise.csi.backends.folders import copies, filesystems, loops, mounts
from zonewise.csi.backends.folders.marks import read_mark, upgrade_mark
from zonewise.csi.errors import CsiError, exhausted, internal, invalid, precondition, unavailable
from zonewise.csi.private_folder import make_private_folder
from zonewise.runtime.process.logs import logger
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.identifiers import StoredKind
from zonewise.storage.journal import Image, Journal, JournalEntry
from zonewise.storage.parameters import ClassParameters
from zonewise.storage.pools import PoolState

POOLS_FOLDER = "pools"
IMAGE_SUFFIX = ".img"
FORMATTING_SUFFIX = ".mkfs"
_PREFIX = {StoredKind.VOLUME: "vol-", StoredKind.SNAPSHOT: "snap-"}
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_log = logger("csi")


class FolderPools:
    """The pools of a data folder."""

    backend_keys: frozenset[str] = frozenset()
    evident = False

    def __init__(self, data: Path, journal: Journal, *, privileged: bool) -> None:
        self._root = data / POOLS_FOLDER
        self._journal = journal
        self.privileged = privileged
        make_private_folder(self._root)

    def prepare(self, configuration: StorageConfiguration) -> None:
        """Make the folders of declared pools, and say so where they promise more than the disk."""
        declared = 0
        for name, state in configuration.pool_states.items():
            make_private_folder(self.pool_folder(name))
            declared += state.capacity
        disk = shutil.disk_usage(self._root).total
        if declared > disk:
            _log.warning(
                "the pools are declared larger than the disk below them",
                declared=declared,
                disk=disk,
                folder=str(self._root),
            )

    def thaw_all(self) -> None:
        """Thaw file systems that a killed controller had frozen for a copy; not a live one's."""
        if self.privileged:
            for image in self._root.glob(f"*/*{IMAGE_SUFFIX}"):
                for mount in _find_file_systems(image):
                    with suppress(CsiError), copies.lock_image(image, wait=False):
                        copies.thaw(mount.target)

    def upgrade_marks(self) -> None:
        """Move the marks of earlier versions to where tenants cannot change them."""
        for path in self._root.glob("*/*"):
            if not path.is_symlink():
                upgrade_mark(path)

    def pool_folder(self, pool: str) -> Path:
        """The folder of a pool; any name is a single name there."""
        return self._root / (quote(pool, safe="").replace(".", "%2E"))

    @property
    def data_folder(self) -> Path:
        """The folder of pools and journal."""
        return self._root.parent

    def is_mounted_at(self, path: Path, uuid: str) -> bool:
        """Whether a volume is mounted at a path: its image through a loop device, or its folder."""
        image = self.image_file(uuid)
        device = mounts.device_at(path)
        if device is not None and (backing := loops.backing_file(device)) is not None:
            return backing.name.removesuffix(loops.DELETED_SUFFIX) == image.name
        mounted = mounts.at(path)
        return mounted is not None and mounted.root_name == image.stem

    def path(self, entry: JournalEntry) -> Path:
        """Where an entry's image or folder is."""
        name = _PREFIX[entry.kind] + entry.uuid
        suffix = "" if entry.access == FOLDER else IMAGE_SUFFIX
        return self.pool_folder(entry.pool) / (name + suffix)

    def image_file(self, uuid: str) -> Path:
        """The name of a volume's image, in whichever pool it is."""
        return Path(f"{_PREFIX[StoredKind.VOLUME]}{uuid}{IMAGE_SUFFIX}")

    def pool_states(self, configuration: StorageConfiguration) -> Mapping[str, PoolState]:
        """The declared limits with what is promised of them."""
        promised = self._journal.promised_bytes()
        return {
            name: replace(state, promised=promised.get(name, 0))
            for name, state in configuration.pool_states.items()
        }

    def prepare_attributes(
        self, parameters: ClassParameters, request: Mapping[str, str]
    ) -> dict[str, str]:
        """Folders need to remember nothing."""
        return {}

    def choose_access(self, file_system: str, *, block: bool, shared: bool) -> str:
        """An image for a device or file system; a folder for many writing nodes."""
        if block and not self.privileged:
            raise invalid("block volumes need root; without it volumes are folders")
        if block and shared:
            raise invalid("a block volume cannot be written by several nodes here")
        if block:
            return BLOCK
        if file_system and file_system not in filesystems.KNOWN:
            raise invalid(f"fs_type {file_system!r} is not known; use ext4 or xfs")
        if file_system and not self.privileged:
            raise invalid(f"fs_type {file_system} needs root; leave it out: volumes are folders")
        if shared and file_system:
            raise invalid(
                f"{file_system} cannot be written by several nodes; leave fs_type out for a folder"
            )
        return FOLDER if shared or not self.privileged else file_system or filesystems.EXT4

    round_size = staticmethod(filesystems.round_size)

    def find_image(self, entry: JournalEntry) -> Image | None:
        """The image or folder of an entry, if it exists."""
        path = self.path(entry)
        partial = path.with_name(path.name + copies.PARTIAL)
        complete = path.exists()
        if not complete and not partial.exists():
            return None
        mark = read_mark(path) if complete else None
        return Image(
            pool=entry.pool,
            uuid=entry.uuid,
            bytes=_size_of(path, entry) if complete else 0,
            kind=entry.kind,
            ours=mark is None or mark == entry.name,
            complete=complete,
        )

    def make(self, entry: JournalEntry, source: JournalEntry | None) -> bool:
        """Make an image or folder, empty or as a copy; False if the name is taken."""
        path = self.path(entry)
        make_private_folder(path.parent)
        try:
            if source is None:
                self._make(entry, path, None)
                return True
            origin = self.path(source)
            with self._quiesce(source, origin):
                self._make(entry, path, origin)
        except FileExistsError:
            return False
        except FileNotFoundError:
            raise internal(
                f"{entry.source or entry.name}: its data is not in the pool any more"
            ) from None
        except OSError as error:
            if error.errno in _DISK_FULL:
                raise exhausted(f"the disk below pool {entry.pool} is full") from error
            raise unavailable(f"pool {entry.pool} cannot be written: {error.strerror}") from error
        return True

    def remove(self, entry: JournalEntry) -> None:
        """Remove an image or folder, finished or not; one with another mark stays, and is named.

        An answer that it is removed would let its journal entry go, and the data stay for ever.
        """
        path = self.path(entry)
        image = self.find_image(entry)
        if image is not None and not image.ours:
            raise precondition(
                f"{path} is marked as belonging to another name than {entry.name}, so nothing is"
                " deleted; correct its attribute trusted.zonewise.name if it is this volume, else"
                " move it away"
            )
        try:
            if entry.access == FOLDER:
                copies.remove_folder(path)
                return
            path.with_name(path.name + FORMATTING_SUFFIX).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        except OSError as error:
            raise unavailable(f"{path.name} cannot be removed: {error.strerror}") from error

    def grow(self, entry: JournalEntry) -> bool:
        """Make an image as large as its entry says; nodes follow with devices and file systems."""
        if entry.access == FOLDER:
            return False
        path = self.path(entry)
        try:
            if path.stat().st_size < entry.bytes:
                os.truncate(path, entry.bytes)
        except FileNotFoundError:
            raise internal(f"{path.name} is not in its pool any more") from None
        return True

    def find_user(self, entry: JournalEntry) -> str:
        """Where it is attached or mounted on this machine."""
        path = self.path(entry)
        if not self.privileged or not path.exists():
            return ""
        if entry.access == FOLDER:
            return ", ".join(str(mount.target) for mount in mounts.of_folder(path))
        return ", ".join(str(device) for device in loops.find(path))

    def list_images(self) -> Sequence[Image]:
        """Everything in all folders of pools, declared or not."""
        return sorted(self._scan_images(), key=lambda image: (image.pool, image.uuid))

    def _scan_images(self) -> Iterator[Image]:
        for path in self._root.glob("*/*"):
            name = path.name.removesuffix(copies.PARTIAL).removesuffix(FORMATTING_SUFFIX)
            stem = name.removesuffix(IMAGE_SUFFIX)
            kind = (
                StoredKind.SNAPSHOT
                if stem.startswith(_PREFIX[StoredKind.SNAPSHOT])
                else StoredKind.VOLUME
            )
            if path.name.endswith(FORMATTING_SUFFIX) and path.with_name(name).exists():
                continue  # beside its image it is a step of stage, which the next one repeats
            yield Image(
                pool=unquote(path.parent.name),
                uuid=stem.removeprefix(_PREFIX[kind]),
                bytes=path.lstat().st_size,
                kind=kind,
                complete=path.name == name,
            )

    def _make(self, entry: JournalEntry, path: Path, origin: Path | None) -> None:
        if entry.access == FOLDER:
            copies.make_folder(path, entry.name, origin)
        else:
            copies.make_image(path, entry.bytes, entry.name, origin)

    @contextmanager
    def _quiesce(self, source: JournalEntry, origin: Path) -> Iterator[None]:
        if not self.privileged or source.access == FOLDER or source.kind is StoredKind.SNAPSHOT:
            yield
            return
        file_systems = _find_file_systems(origin)
        lock = copies.lock_image(origin) if file_systems else nullcontext()
        with lock, copies.freeze(file_systems):
            for device in loops.find(origin):
                loops.flush(device)
            yield


def _find_file_systems(image: Path) -> list[mounts.Mount]:
    """One mount per file system on an image that is mounted."""
    mounts_by_device: dict[tuple[int, int], mounts.Mount] = {}
    for device in loops.find(image):
        for mount in mounts.of_device(device):
            if mount.file_system in filesystems.KNOWN:
                mounts_by_device.setdefault(mount.device, mount)
    return list(mounts_by_device.values())


def _size_of(path: Path, entry: JournalEntry) -> int:
    """What an image can hold; a folder has no size of its own but the promised one."""
    return entry.bytes if entry.access == FOLDER else path.stat().st_size
