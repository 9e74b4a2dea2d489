"""CephFS on a node: one ceph-fuse per volume shows its subvolume, pods see a bind of it.

::

    <data>/fs/<uuid>    ceph-fuse, rooted in the subvolume: its quota is the size of the mount
    staging, targets    binds of that folder

From the folder on, everything is as with local folders. The kernel's client is not offered: it
cannot be tested where this is built.

Where a ceph-fuse died, its mounts do not respond: usage says so, and staging and publishing again
replaces them. One that was fenced, because its node was out of service, is killed then.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from zonewise.csi.backends.ceph import client_conf, fuse
from zonewise.csi.backends.ceph.cephfs.clients import CephFsClients
from zonewise.csi.backends.ceph.cephfs.subvolumes import FILE_SYSTEM
from zonewise.csi.backends.contract import MountRequest, Usage
from zonewise.csi.backends.folders import mounts, targets
from zonewise.csi.backends.folders.node import FolderNode
from zonewise.csi.errors import internal, not_found, precondition
from zonewise.storage.configuration import CephCluster
from zonewise.storage.journal import JournalEntry
from zonewise.storage.takeover.dead_nodes import VolumeHolder

FILE_SYSTEM_TYPE = "fuse.ceph-fuse"


class FuseFolders:
    """Where volumes are folders: one per volume below the driver's own."""

    privileged = True

    def __init__(self, data: Path) -> None:
        self.data_folder = data.resolve()
        self.folder = self.data_folder / "fs"

    def path(self, entry: JournalEntry) -> Path:
        """The folder of an entry, if it is shown."""
        return self.folder / entry.uuid

    def image_file(self, uuid: str) -> Path:
        """The same for a volume's uuid."""
        return self.folder / uuid

    def is_mounted_at(self, path: Path, uuid: str) -> bool:
        """A bind of the volume's folder, or what is left of one: a dead client has no name."""
        mount = mounts.at(path)
        if mount is None or mount.file_system != FILE_SYSTEM_TYPE:
            return False
        client_mount = mounts.at(self.image_file(uuid))
        return fuse.is_dead(path) or (
            client_mount is not None and client_mount.device == mount.device
        )


class CephFsNode(FolderNode):
    """Brings subvolumes to paths of this machine."""

    def __init__(
        self,
        cluster: Callable[[JournalEntry], CephCluster],
        data: Path,
        subvolume_path: Callable[[JournalEntry], str],
        clients: Callable[[JournalEntry], CephFsClients],
    ) -> None:
        self._folders = FuseFolders(data)
        super().__init__(self._folders)
        self._cluster = cluster
        self._subvolume_path = subvolume_path
        self._clients = clients

    def stage(self, entry: JournalEntry, staging: Path, request: MountRequest) -> None:
        """Show the subvolume, then bind it; what cannot be staged is not shown either."""
        try:
            self._start_client(entry, request)
            if fuse.is_dead(staging):
                fuse.detach_dead(staging)
            super().stage(entry, staging, request)
        except BaseException:
            self._stop_client(entry.uuid)
            raise

    def unstage(self, uuid: str, staging: Path) -> None:
        """The reverse; what was written is with Ceph when this returns."""
        self._unmount(staging, uuid)
        if uuid:
            self._stop_client(uuid)

    def find_holder(self, entry: JournalEntry, staging: Path) -> VolumeHolder | None:
        """None: many nodes may write at once."""
        return None

    def clear_holder(self, entry: JournalEntry, node: str) -> None:
        """Its client has ended, unless the volume is seen elsewhere still."""
        if mounts.at(self._folders.path(entry)) is None:
            self._clients(entry).forget(entry, node)

    def publish(
        self, entry: JournalEntry, staging: Path, target: Path, request: MountRequest
    ) -> None:
        """Show the staged volume at a pod's path."""
        if mounts.at(self._folders.path(entry)) is None:
            raise precondition(f"the volume is not staged at {staging}; stage it first")
        self._require_client(entry)
        if fuse.is_dead(target):
            fuse.detach_dead(target)
        super().publish(entry, staging, target, request)

    def unpublish(self, uuid: str, target: Path) -> None:
        """Remove the mount and its path, also if its client answers nothing any more."""
        if uuid and fuse.is_dead(target):
            targets.remove(target, uuid, was_mounted=self._unmount(target, uuid))
        else:
            super().unpublish(uuid, target)

    def measure_usage(self, entry: JournalEntry, path: Path) -> Usage:
        """How full it is: the client reports the quota as the size."""
        self._require_staged(entry, path)
        statistics = os.statvfs(path)
        unit = statistics.f_frsize
        return Usage(
            total=statistics.f_blocks * unit,
            used=(statistics.f_blocks - statistics.f_bfree) * unit,
            available=statistics.f_bavail * unit,
        )

    def expand(self, entry: JournalEntry, path: Path) -> None:
        """Nothing is to be done: the quota is the controller's, and clients see it."""
        self._require_staged(entry, path)

    def _unmount(self, path: Path, uuid: str) -> bool:
        """Detach a mount whose client died; else as any other."""
        if uuid and fuse.is_dead(path) and self._is_mounted_at(path, uuid):
            fuse.detach_dead(path)
            return True
        return super()._unmount(path, uuid)

    def _find_mounts(self, entry: JournalEntry, source: Path) -> list[mounts.Mount]:
        """The binds, without the client's own mount."""
        client_path = source.resolve()
        return [item for item in super()._find_mounts(entry, source) if item.target != client_path]

    def _require_staged(self, entry: JournalEntry, path: Path) -> Path:
        if mounts.at(self._folders.path(entry)) is None:
            raise not_found(f"the volume is not at {path}")
        self._require_client(entry)
        return super()._require_staged(entry, path)

    def _require_client(self, entry: JournalEntry) -> None:
        if fuse.is_dead(self._folders.path(entry)):
            raise internal(
                "the ceph-fuse of the volume has died or was fenced; unpublish and stage it again"
            )

    def _start_client(self, entry: JournalEntry, request: MountRequest) -> None:
        """Start a volume's ceph-fuse, unless there is one, and write down its address.

        One that has not been written down was started by a call that was killed; nobody uses it.
        """
        folder, clients = self._folders.path(entry), self._clients(entry)
        if mounts.at(folder) is not None:
            address = clients.find(entry, request.node)
            if address and not fuse.is_dead(folder) and not clients.is_blocked(address):
                return
            if address:
                fuse.kill_client(folder)
            fuse.stop_client(folder)
        cluster = self._cluster(entry)
        flags = [word for flag in request.flags for word in flag.split(",") if word]
        conf = client_conf.write_conf(self._folders.folder, cluster)
        # Short, because the path of a socket may have 107 characters.
        admin_socket = self._folders.folder / f".{secrets.token_hex(4)}"
        try:
            fuse.start_client(
                [
                    *("ceph-fuse", "-c", str(conf), "--id", cluster.user),
                    f"--client_fs={entry.attributes[FILE_SYSTEM]}",
                    f"--admin_socket={admin_socket}",
                    *("-r", self._subvolume_path(entry), str(folder)),
                    *(["-o", ",".join(flags)] if flags else []),
                ],
                folder,
                lambda: not fuse.is_dead(folder),
            )
            clients.record(entry, request.node, fuse.read_client_address(admin_socket))
        finally:
            admin_socket.unlink(missing_ok=True)

    def _stop_client(self, uuid: str) -> None:
        """End a volume's ceph-fuse, unless it is seen elsewhere still."""
        folder = self._folders.image_file(uuid)
        client_mount = mounts.at(folder)
        if client_mount is not None:
            client_mounts = [
                mount for mount in mounts.read_table() if mount.device == client_mount.device
            ]
            if len(client_mounts) > 1 and not fuse.is_dead(folder):
                return
        fuse.stop_client(folder)
