"""Through which ceph-fuse a node shows a subvolume, and how all of a node are fenced.

Each node writes the addresses of its clients (``NodeIndex``): the mds knows them, too, but tells
them only to those who may do everything with it.

A client whose address is blocklisted is answered by no OSD any more, and the mds ends its session
at once: what it had locked or cached is given to others without waiting for it. What it had not
written yet is lost.

It is not let in again while it may live: it may still have writes for files that others were given
since. The next mount on its node is a new client, which nothing keeps out.
"""

from __future__ import annotations

from zonewise.csi.backends.ceph.blocklist import block, list_blocked, unblock
from zonewise.csi.backends.ceph.connection import CephConnection
from zonewise.csi.backends.ceph.journals.cluster_journal import ClusterJournal
from zonewise.csi.backends.ceph.journals.node_index import NodeIndex
from zonewise.csi.backends.contract import HeldVolume
from zonewise.csi.errors import CsiError
from zonewise.runtime.process.logs import logger
from zonewise.storage.journal import JournalEntry

_log = logger("csi")


class CephFsClients:
    """The clients of one cluster."""

    def __init__(self, ceph: CephConnection, journal: ClusterJournal) -> None:
        self._ceph = ceph
        self._index = NodeIndex(journal)

    def record(self, entry: JournalEntry, node: str, address: str) -> None:
        """Write through which client a node shows a volume, instead of an earlier one."""
        self._index.put(entry, node, address)

    def forget(self, entry: JournalEntry, node: str) -> None:
        """A node shows a volume no more: its client has ended."""
        self._index.remove(entry, node)

    def find(self, entry: JournalEntry, node: str) -> str:
        """The address of a node's client of a volume; "" if there is none."""
        return self._index.get(entry, node)

    def is_blocked(self, address: str) -> bool:
        """Whether a client was fenced."""
        return address in list_blocked(self._ceph)

    def find_held(self, cluster: str, node: str) -> tuple[list[HeldVolume], list[str]]:
        """What a node shows through clients that are not fenced, and what could not be read."""
        addresses, problems = self._index.list_volumes(node)
        if not addresses:
            return [], problems
        try:
            blocked = list_blocked(self._ceph)
        except CsiError as error:
            return [], [*problems, str(error)]
        return [
            HeldVolume(cluster, uuid, (address,))
            for uuid, address in sorted(addresses.items())
            if address not in blocked
        ], problems

    def fence(self, node: str, volume: HeldVolume) -> None:
        """Fence clients of a node; raises unless that is certain."""
        block(self._ceph, volume.clients)
        _log.warning("a subvolume was fenced", volume=volume.uuid, node=node)

    def unfence(self, node: str, volume: HeldVolume, *, rebooted: bool) -> bool:
        """Let clients in again that have ended; False if one may live."""
        addresses, problems = self._index.list_volumes(node)
        address = addresses.get(volume.uuid, "")
        if not rebooted and (problems or address in volume.clients):
            return False
        if address in volume.clients:
            self._index.remove_note(volume.uuid, node, address)
        unblock(self._ceph, volume.clients)
        return True
