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
from zonewise.csi.backends.ceph.node import NodeClusters, RbdNode
from zonewise.csi.backends.contract import Usage, Wanted
from zonewise.csi.backends.folders import loops, mounts
from zonewise.csi.status import Code, CsiError
from zonewise.runtime.process.logs import logger
from zonewise.storage.journal import JournalEntry

_log = logger("csi")


class RevivingRbdNode(RbdNode):
    """RBD images on a node, also after one of their clients died."""

    def __init__(self, clusters: NodeClusters, data: Path) -> None:
        super().__init__(clusters, data)
        self._buried: set[str] = set()

    def stage(self, entry: JournalEntry, staging: Path, wanted: Wanted) -> None:
        """With a new client, if the last one died; readers are not fenced."""
        if self._dead(entry.uuid):
            self._bury(entry.uuid)
        if entry.uuid in self._buried and not (wanted.shared and wanted.readonly):
            self._shut_out(entry)
        super().stage(entry, staging, wanted)

    def unstage(self, uuid: str, staging: Path) -> None:
        """What is dead is only taken down."""
        if uuid and self._dead(uuid):
            self._bury(uuid)
        super().unstage(uuid, staging)

    def release(self, entry: JournalEntry, node: str) -> None:
        """It has no holder any more, without waiting for Ceph to notice."""
        if entry.uuid in self._buried:
            found = self._fencing.holder(entry)
            if found is not None and found.node == node:
                self._shut_out(entry)
        super().release(entry, node)

    def publish(self, entry: JournalEntry, staging: Path, target: Path, wanted: Wanted) -> None:
        """INTERNAL until it is staged again."""
        self._require_client(entry)
        super().publish(entry, staging, target, wanted)

    def usage(self, entry: JournalEntry, path: Path) -> Usage:
        """INTERNAL, and what to do, if its client is dead."""
        self._require_client(entry)
        return super().usage(entry, path)

    def expand(self, entry: JournalEntry, path: Path) -> None:
        """The same."""
        self._require_client(entry)
        super().expand(entry, path)

    def _require_client(self, entry: JournalEntry) -> None:
        if self._dead(entry.uuid):
            raise CsiError(
                Code.INTERNAL, "the volume's rbd-fuse has died; stage and publish it again"
            )

    def _shut_out(self, entry: JournalEntry) -> None:
        self._fencing.fence(entry)
        self._buried.discard(entry.uuid)

    def _dead(self, uuid: str) -> bool:
        """Whether something is mounted whose client is dead.

        The mount is not accessed: the kernel answers for a dead client for a second.
        """
        folder = self._fuse.folder / uuid
        return mounts.at(folder) is not None and not [*fuse.processes(folder)]

    def _bury(self, uuid: str) -> None:
        """Remove all that is left of a dead client, even if in use."""
        folder = self._fuse.folder / uuid
        _log.warning("an rbd-fuse has died; what it showed is taken down", volume=uuid)
        for device in self._fuse.devices(uuid):
            for one in reversed(mounts.of_device(device)):
                with suppress(OSError):
                    mounts.detach(one.target)
            loops.detach(device)
        fuse.detach(folder)
        with suppress(OSError):
            folder.rmdir()
        self._buried.add(uuid)
