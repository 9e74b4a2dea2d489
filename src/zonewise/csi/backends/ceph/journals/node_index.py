"""Which volumes each node has, beside the journals, so that they are found without asking all.

::

    node.<name>      <uuid of a volume> -> a note of the backend

is an object in the pool of each journal. A node writes its key before a pod can use the volume, and
removes it when it has let go of it: the index may name a volume that the node has no more, and
never misses one that it has.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress

import rados

from zonewise.csi.backends.ceph.connection import PoolMissing, translate_errors
from zonewise.csi.backends.ceph.journals.cluster_journal import ClusterJournal
from zonewise.csi.errors import CsiError
from zonewise.storage.journal import JournalEntry

PAGE = 1000


class NodeIndex:
    """The index of one cluster."""

    def __init__(self, journal: ClusterJournal) -> None:
        self._journal = journal

    def put(self, entry: JournalEntry, node: str, note: str) -> None:
        """Write that a node has a volume."""
        with translate_errors("recording which node has a volume"), rados.WriteOpCtx() as operation:
            operation.new(0)
            pool = self._journal.open_pool_of(entry)
            pool.set_omap(operation, (entry.uuid,), (note.encode(),))
            pool.operate_write_op(operation, _object_name(node))

    def get(self, entry: JournalEntry, node: str) -> str:
        """The note of a volume; "" if the node has it not."""
        with translate_errors("looking which node has a volume"), rados.ReadOpCtx() as operation:
            pool = self._journal.open_pool_of(entry)
            values, _ = pool.get_omap_vals_by_keys(operation, (entry.uuid,))
            try:
                pool.operate_read_op(operation, _object_name(node))
            except rados.ObjectNotFound:
                return ""
            return dict(values).get(entry.uuid, b"").decode()

    def remove(self, entry: JournalEntry, node: str) -> None:
        """Write that a node has a volume no more."""
        with suppress(PoolMissing):
            _remove(self._journal.open_pool_of(entry), node, entry.uuid)

    def remove_note(self, uuid: str, node: str, note: str) -> None:
        """The same of a volume that may have been deleted, if its note still is that one."""
        pools, _ = self._journal.open_pools()
        for pool in pools:
            _remove(pool, node, uuid, note)

    def list_volumes(self, node: str) -> tuple[dict[str, str], list[str]]:
        """The notes of a node's volumes by their uuids, and what could not be read."""
        notes: dict[str, str] = {}
        pools, problems = self._journal.open_pools()
        for pool in pools:
            try:
                notes.update(_read_all(pool, node))
            except CsiError as error:
                problems.append(str(error))
        return notes, problems


def _read_all(pool: rados.Ioctx, node: str) -> Iterator[tuple[str, str]]:
    after, page_size = "", PAGE
    while page_size == PAGE:
        with (
            translate_errors(f"looking for volumes of node {node}"),
            rados.ReadOpCtx() as operation,
        ):
            values, _ = pool.get_omap_vals(operation, after, "", PAGE)
            try:
                pool.operate_read_op(operation, _object_name(node))
            except rados.ObjectNotFound:
                return
            page = [(uuid, note.decode()) for uuid, note in values]
        yield from page
        after, page_size = (page[-1][0] if page else ""), len(page)


def _remove(pool: rados.Ioctx, node: str, uuid: str, note: str = "") -> None:
    """Remove a key; with a note only if it still is that one."""
    with translate_errors("recording which node has a volume"), rados.WriteOpCtx() as operation:
        if note:
            operation.omap_cmp(uuid, note)
        pool.remove_omap_keys(operation, (uuid,))
        try:
            pool.operate_write_op(operation, _object_name(node))
        except rados.ObjectNotFound:
            return
        except rados.Error as error:
            if error.errno != errno.ECANCELED:
                raise


def _object_name(node: str) -> str:
    return f"node.{node}"
