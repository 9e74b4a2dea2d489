"""CephFS on a node: one ceph-fuse per volume shows its subvolume, pods see a bind of it.

::

    <data>/fs/<uuid>    ceph-fuse, rooted in the subvolume: its quota is the size of the mount
    staging, targets    binds of that folder

From the folder on, everything is as with local folders. The kernel's client is not offered: it
cannot be tested where this is built.

Where a ceph-fuse died, its mounts do not respond: usage says so, and staging and publishing again
replaces them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from zonewise.csi.backends.ceph import client_conf, fuse
from zonewise.csi.backends.ceph.subvolumes import FILE_SYSTEM
from zonewise.csi.backends.contract import Usage, Wanted
from zonewise.csi.backends.folders import mounts
from zonewise.csi.backends.folders.node import FolderNode
from zonewise.csi.status import Code, CsiError, not_found, precondition
from zonewise.storage.configuration import CephCluster
from zonewise.storage.journal import JournalEntry
from zonewise.storage.takeover.fencing import VolumeHolder

KIND = "fuse.ceph-fuse"


class FuseFolders:
    """Where volumes are folders: one per volume below the driver's own."""

    privileged = True

    def __init__(self, data: Path) -> None:
        self.data = data.resolve()
        self.folder = self.data / "fs"

    def path(self, entry: JournalEntry) -> Path:
        """The folder of an entry, if it is shown."""
        return self.folder / entry.uuid

    def file(self, uuid: str) -> Path:
        """The same for a volume's uuid."""
        return self.folder / uuid

    def shown_at(self, path: Path, uuid: str) -> bool:
        """A bind of the volume's folder, or what is left of one: a dead client has no name."""
        there = mounts.at(path)
        if there is None or there.file_system != KIND:
            return False
        shown = mounts.at(self.file(uuid))
        return fuse.dead(path) or (shown is not None and shown.device == there.device)


class CephFsNode(FolderNode):
    """Brings subvolumes to paths of this machine."""

    def __init__(
        self,
        cluster: Callable[[JournalEntry], CephCluster],
        data: Path,
        path: Callable[[JournalEntry], str],
    ) -> None:
        self._folders = FuseFolders(data)
        super().__init__(self._folders)
        self._cluster = cluster
        self._path = path

    def stage(self, entry: JournalEntry, staging: Path, wanted: Wanted) -> None:
        """Show the subvolume, then bind it; what cannot be staged is not shown either."""
        self._show(entry, wanted)
        try:
            if fuse.dead(staging):
                fuse.detach(staging)
            super().stage(entry, staging, wanted)
        except BaseException:
            self._hide(entry.uuid)
            raise

    def unstage(self, uuid: str, staging: Path) -> None:
        """The reverse; what was written is with Ceph when this returns."""
        self._unmount(staging, uuid)
        if uuid:
            self._hide(uuid)

    def holder(self, entry: JournalEntry, staging: Path) -> VolumeHolder | None:
        """None: many nodes may write at once."""
        return None

    def release(self, entry: JournalEntry, node: str) -> None:
        """Nothing to do: no node held it exclusively."""

    def publish(self, entry: JournalEntry, staging: Path, target: Path, wanted: Wanted) -> None:
        """Show the staged volume at a pod's path."""
        if mounts.at(self._folders.path(entry)) is None:
            raise precondition(f"the volume is not staged at {staging}; stage it first")
        self._require_client(entry)
        if fuse.dead(target):
            fuse.detach(target)
        super().publish(entry, staging, target, wanted)

    def usage(self, entry: JournalEntry, path: Path) -> Usage:
        """How full it is: the client reports the quota as the size."""
        self._staged(entry, path)
        found = os.statvfs(path)
        unit = found.f_frsize
        return Usage(
            total=found.f_blocks * unit,
            used=(found.f_blocks - found.f_bfree) * unit,
            available=found.f_bavail * unit,
        )

    def expand(self, entry: JournalEntry, path: Path) -> None:
        """Nothing is to be done: the quota is the controller's, and clients see it."""
        self._staged(entry, path)

    def _unmount(self, path: Path, uuid: str) -> bool:
        """Detach a mount whose client died; else as any other."""
        if uuid and fuse.dead(path) and self._shown_at(path, uuid):
            fuse.detach(path)
            return True
        return super()._unmount(path, uuid)

    def _mounts(self, entry: JournalEntry, source: Path) -> list[mounts.Mounted]:
        """The binds; the client's own mount is none."""
        real = source.resolve()
        return [one for one in super()._mounts(entry, source) if one.target != real]

    def _staged(self, entry: JournalEntry, path: Path) -> Path:
        if mounts.at(self._folders.path(entry)) is None:
            raise not_found(f"the volume is not at {path}")
        self._require_client(entry)
        return super()._staged(entry, path)

    def _require_client(self, entry: JournalEntry) -> None:
        if fuse.dead(self._folders.path(entry)):
            raise CsiError(
                Code.INTERNAL, "the ceph-fuse of the volume has died; unpublish and stage it again"
            )

    def _show(self, entry: JournalEntry, wanted: Wanted) -> None:
        folder = self._folders.path(entry)
        if mounts.at(folder) is not None:
            if not fuse.dead(folder):
                return
            fuse.end(folder)
        cluster = self._cluster(entry)
        flags = [word for flag in wanted.flags for word in flag.split(",") if word]
        fuse.begin(
            [
                *("ceph-fuse", "-c", str(client_conf.write(self._folders.folder, cluster))),
                *("--id", cluster.user, f"--client_fs={entry.attributes[FILE_SYSTEM]}"),
                *("-r", self._path(entry), str(folder)),
                *(["-o", ",".join(flags)] if flags else []),
            ],
            folder,
            lambda: not fuse.dead(folder),
        )

    def _hide(self, uuid: str) -> None:
        """End a volume's ceph-fuse, unless it is seen elsewhere still."""
        folder = self._folders.file(uuid)
        there = mounts.at(folder)
        if there is not None:
            same = [one for one in mounts.table() if one.device == there.device]
            if len(same) > 1 and not fuse.dead(folder):
                return
        fuse.end(folder)
