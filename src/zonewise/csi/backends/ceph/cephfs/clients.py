"""Which ceph-fuse a node shows a subvolume through, and how all of a node are fenced.

::

    clients.<node>      <uuid of a volume> -> the address of its ceph-fuse there

is an object beside each journal. A node writes it before a pod can use the volume, and removes the
key when the client has ended; so it may name a client that has died, and never misses one that is
used. The mds knows its clients, too, but tells them only to those who may do everything with it.

A client whose address is blocklisted is answered by no OSD any more, and the mds ends its session
at once: what it had locked or cached is given to others without waiting for it. What it had not
written yet is lost.

It is not let in again while it may live: it may still have writes for files that others were given
since. The next mount on its node is a new client, which nothing keeps out.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress

import rados

from zonewise.csi.backends.ceph.blocklist import block, list_blocked, unblock
from zonewise.csi.backends.ceph.connection import CephConnection, PoolMissing, translate_errors
from zonewise.csi.backends.ceph.journals.cluster_journal import ClusterJournal
from zonewise.csi.backends.contract import HeldVolume
from zonewise.csi.errors import CsiError
from zonewise.runtime.process.logs import logger
from zonewise.storage.journal import JournalEntry

PAGE = 1000

_log = logger("csi")


class CephFsClients:
    """The clients of one cluster."""

    def __init__(self, ceph: CephConnection, journal: ClusterJournal) -> None:
        self._ceph = ceph
        self._journal = journal

    def record(self, entry: JournalEntry, node: str, address: str) -> None:
        """Write through which client a node shows a volume, instead of an earlier one."""
        with translate_errors("recording a client"), rados.WriteOpCtx() as operation:
            operation.new(0)
            pool = self._journal.open_pool_of(entry)
            pool.set_omap(operation, (entry.uuid,), (address.encode(),))
            pool.operate_write_op(operation, _object_name(node))

    def forget(self, entry: JournalEntry, node: str) -> None:
        """A node shows a volume no more: its client has ended."""
        with suppress(PoolMissing):
            self._remove(self._journal.open_pool_of(entry), node, entry.uuid)

    def find(self, entry: JournalEntry, node: str) -> str:
        """The address of a node's client of a volume; "" if there is none."""
        with translate_errors("looking for a client"), rados.ReadOpCtx() as operation:
            pool = self._journal.open_pool_of(entry)
            values, _ = pool.get_omap_vals_by_keys(operation, (entry.uuid,))
            try:
                pool.operate_read_op(operation, _object_name(node))
            except rados.ObjectNotFound:
                return ""
            return dict(values).get(entry.uuid, b"").decode()

    def is_blocked(self, address: str) -> bool:
        """Whether a client was fenced."""
        return address in list_blocked(self._ceph)

    def find_held(self, cluster: str, node: str) -> tuple[list[HeldVolume], list[str]]:
        """What a node shows through clients that are not fenced, and what could not be read."""
        recorded, problems = self._list(node)
        if not recorded:
            return [], problems
        try:
            blocked = list_blocked(self._ceph)
        except CsiError as error:
            return [], [*problems, str(error)]
        return [
            HeldVolume(cluster, uuid, (address,))
            for uuid, (address, _) in sorted(recorded.items())
            if address not in blocked
        ], problems

    def fence(self, node: str, volume: HeldVolume) -> None:
        """Fence clients of a node; raises unless that is certain."""
        block(self._ceph, volume.clients)
        _log.warning("a subvolume was fenced", volume=volume.uuid, node=node)

    def unfence(self, node: str, volume: HeldVolume, *, rebooted: bool) -> bool:
        """Let clients in again that have ended; False if one may live."""
        recorded, problems = self._list(node)
        address, pool = recorded.get(volume.uuid, ("", None))
        if not rebooted and (problems or address in volume.clients):
            return False
        if pool is not None and address in volume.clients:
            self._remove(pool, node, volume.uuid, address)
        unblock(self._ceph, volume.clients)
        return True

    def _list(self, node: str) -> tuple[dict[str, tuple[str, rados.Ioctx]], list[str]]:
        """Addresses by volume, each with where it is written; and what could not be read."""
        recorded: dict[str, tuple[str, rados.Ioctx]] = {}
        pools, problems = self._journal.open_pools()
        for pool in pools:
            try:
                for uuid, address in self._read_all(pool, node):
                    recorded[uuid] = address, pool
            except CsiError as error:
                problems.append(str(error))
        return recorded, problems

    def _read_all(self, pool: rados.Ioctx, node: str) -> Sequence[tuple[str, str]]:
        entries: list[tuple[str, str]] = []
        while True:
            after = entries[-1][0] if entries else ""
            with (
                translate_errors(f"looking for clients of node {node}"),
                rados.ReadOpCtx() as operation,
            ):
                values, _ = pool.get_omap_vals(operation, after, "", PAGE)
                try:
                    pool.operate_read_op(operation, _object_name(node))
                except rados.ObjectNotFound:
                    return entries
                page = [(uuid, address.decode()) for uuid, address in values]
            entries += page
            if len(page) < PAGE:
                return entries

    def _remove(self, pool: rados.Ioctx, node: str, uuid: str, address: str = "") -> None:
        """Remove a key; with an address only if it still is that one."""
        with translate_errors("removing a client's record"), rados.WriteOpCtx() as operation:
            if address:
                operation.omap_cmp(uuid, address)
            pool.remove_omap_keys(operation, (uuid,))
            try:
                pool.operate_write_op(operation, _object_name(node))
            except rados.ObjectNotFound:
                return
            except rados.Error as error:
                if error.errno != errno.ECANCELED:
                    raise


def _object_name(node: str) -> str:
    return f"clients.{node}"
