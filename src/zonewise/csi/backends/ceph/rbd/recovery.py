"""RBD images whose rbd-fuse died: detected, unmounted and mounted again.

A killed rbd-fuse leaves three layers that do not respond: its mount, the loop device on the file in
it, and the file system on that, at the staging path and at the pods' paths. None of them can be
used again. Staging, publishing or removing such a volume removes them first, from the top; what
pods still have open answers with errors. Then the image has a new client, and its file system does
what it does after a power failure.

The dead client is fenced before: for half a minute Ceph takes it for alive and holding the lock,
and its last writes must not arrive after the next client's. With several reading nodes none is:
fencing would hit every client that has the image open, those on other nodes too.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from zonewise.csi.backends.ceph import fuse
from zonewise.csi.backends.ceph.rbd.node import NodeClusters, RbdNode
from zonewise.csi.backends.contract import MountRequest, Usage
from zonewise.csi.backends.folders import loops, mounts
from zonewise.csi.errors import internal
from zonewise.runtime.process.logs import logger
from zonewise.storage.journal import JournalEntry

_log = logger("csi")


class RecoveringRbdNode(RbdNode):
    """RBD images on a node, also after one of their clients died."""

    def __init__(self, clusters: NodeClusters, data: Path) -> None:
        super().__init__(clusters, data)
        self._unfenced: set[str] = set()

    def stage(self, entry: JournalEntry, staging: Path, request: MountRequest) -> None:
        """With a new client, if the last one died; readers are not fenced."""
        if self._has_dead_client(entry.uuid):
            self._remove_dead_client(entry.uuid)
        if entry.uuid in self._unfenced and not (request.shared and request.readonly):
            self._fence_dead_client(entry)
        super().stage(entry, staging, request)

    def unstage(self, uuid: str, staging: Path) -> None:
        """What is dead is only taken down."""
        if uuid and self._has_dead_client(uuid):
            self._remove_dead_client(uuid)
        super().unstage(uuid, staging)

    def clear_holder(self, entry: JournalEntry, node: str) -> None:
        """It has no holder any more, without waiting for Ceph to notice."""
        if entry.uuid in self._unfenced:
            holder = self._fencing.find_holder(entry)
            if holder is not None and holder.node == node:
                self._fence_dead_client(entry)
        super().clear_holder(entry, node)

    def publish(
        self, entry: JournalEntry, staging: Path, target: Path, request: MountRequest
    ) -> None:
        """INTERNAL until it is staged again."""
        self._require_client(entry)
        super().publish(entry, staging, target, request)

    def measure_usage(self, entry: JournalEntry, path: Path) -> Usage:
        """INTERNAL, and what to do, if its client is dead."""
        self._require_client(entry)
        return super().measure_usage(entry, path)

    def expand(self, entry: JournalEntry, path: Path) -> None:
        """The same."""
        self._require_client(entry)
        super().expand(entry, path)

    def _require_client(self, entry: JournalEntry) -> None:
        if self._has_dead_client(entry.uuid):
            raise internal("the volume's rbd-fuse has died; stage and publish it again")

    def _fence_dead_client(self, entry: JournalEntry) -> None:
        self._fencing.fence(entry)
        self._unfenced.discard(entry.uuid)

    def _has_dead_client(self, uuid: str) -> bool:
        """Whether something is mounted whose client is dead.

        The mount is not accessed: the kernel answers for a dead client for a second.
        """
        folder = self._fuse.folder / uuid
        return mounts.at(folder) is not None and not [*fuse.find_processes(folder)]

    def _remove_dead_client(self, uuid: str) -> None:
        """Remove all that is left of a dead client, even if in use."""
        folder = self._fuse.folder / uuid
        _log.warning("an rbd-fuse has died; what it showed is taken down", volume=uuid)
        for device in self._fuse.find_devices(uuid):
            for mount in reversed(mounts.of_device(device)):
                with suppress(OSError):
                    mounts.detach(mount.target)
            loops.detach(device)
        fuse.detach_dead(folder)
        with suppress(OSError):
            folder.rmdir()
        self._unfenced.add(uuid)
