"""Which node has an RBD image, and how all others are fenced from it.

The holder is written into the image's own metadata (``zonewise.holder``), by compare-and-set on its
header: of two nodes that try at once, one finds that the other was faster. It is deleted with the
image. Whether the holder is connected is seen from the image's watchers, which Ceph keeps.

Only Ceph can fence: the addresses that watch or lock the image are blocklisted (``osd blocklist``),
so that OSDs no longer answer them; every OSD that we use afterwards has the new map; then the lock
is broken. A node that comes back is let in again with its next client, which has another address.

Our own address is never among them.

A node that is out of service is fenced from all its images at once, by the driver's controller
(``fence_node``), and let in again when it is in service.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import rados
import rbd

from zonewise.csi.backends.ceph.blocklist import block, unblock
from zonewise.csi.backends.ceph.connection import (
    CephConnection,
    CommandFailed,
    PoolMissing,
    client_nonce,
    client_nonces,
    translate_errors,
)
from zonewise.csi.backends.ceph.journals.cluster_journal import open_image_pool
from zonewise.csi.backends.ceph.rbd.images import image_name
from zonewise.csi.errors import aborted, internal, unavailable
from zonewise.runtime.process.logs import logger
from zonewise.storage.journal import JournalEntry
from zonewise.storage.takeover.dead_nodes import Fence, VolumeHolder

HOLDER_KEY = "metadata_zonewise.holder"

_log = logger("csi")


class RbdFencing:
    """The holders of images; ``ceph`` says which cluster an entry's is in."""

    def __init__(self, ceph: Callable[[JournalEntry], CephConnection]) -> None:
        self._ceph = ceph

    def find_holder(self, entry: JournalEntry) -> VolumeHolder | None:
        """The holder of an image; None if none is recorded, and it has no watcher and no lock."""
        name = image_name(entry)
        try:
            with translate_errors(f"looking who has image {name}"):
                written = self._read_holder(entry)
                watching, locking = self._find_clients(entry)
        except PoolMissing:
            return None  # a deleted image can be unstaged
        if not written and not watching and not locking:
            return None
        holder = VolumeHolder.from_json(written.decode(errors="replace"))
        return replace(holder, connected=bool(watching))

    def record_holder(self, entry: JournalEntry, holder: VolumeHolder) -> None:
        """Write it down; ABORTED if it is not as it was a moment ago."""
        text = holder.to_json().encode()
        with translate_errors(f"taking image {image_name(entry)}"):
            try:
                recorded = self._read_holder(entry)
                if recorded == text or self._compare_and_set(entry, recorded, text):
                    return
            except (rados.ObjectNotFound, PoolMissing):
                raise internal(
                    f"image {image_name(entry)} is not in pool {entry.pool} any more"
                ) from None
            raise aborted(f"another node takes image {image_name(entry)} just now; try again")

    def clear_holder(self, entry: JournalEntry, node: str) -> None:
        """It has no holder any more, if that node had it."""
        with translate_errors(f"letting go of image {image_name(entry)}"), suppress(PoolMissing):
            recorded = self._read_holder(entry)
            if recorded and VolumeHolder.from_json(recorded.decode(errors="replace")).node == node:
                self._compare_and_set(entry, recorded, b"")

    def fence(self, entry: JournalEntry) -> None:
        """Fence every client that watches or locks an image; raises if that is not certain."""
        name = image_name(entry)
        with translate_errors(f"fencing image {name}"):
            watching, locking = self._find_clients(entry)
            addresses = sorted({*watching, *(address for _, _, address in locking)})
            block(self._ceph(entry), addresses)
            self._break_locks(entry, locking)
        _log.warning("an image was taken from others", image=name, addresses=addresses)

    def find_clients_of(self, entry: JournalEntry, node: str) -> tuple[str, ...] | None:
        """The addresses of a node's clients; None if it has not the image, or is fenced from it."""
        with translate_errors(f"looking who has image {image_name(entry)}"):
            try:
                holder = VolumeHolder.from_json(self._read_holder(entry).decode(errors="replace"))
                if holder.node != node:
                    return None
                watching, locking = self._find_clients(entry)
            except (rados.ObjectNotFound, PoolMissing):
                return None
        addresses = sorted({*watching, *(address for _, _, address in locking)})
        return None if holder.fence is Fence.CONFIRMED and not addresses else tuple(addresses)

    def fence_node(self, entry: JournalEntry, node: str, addresses: Sequence[str]) -> None:
        """Fence these clients of a node; raises unless none is left, or it has the image no more.

        The image's record says that a fence has begun until it is certain: no other node takes it
        meanwhile. An image whose pool was deleted is nobody's.
        """
        name = image_name(entry)
        with translate_errors(f"fencing image {name}"), suppress(PoolMissing):
            if not self._mark(entry, node, Fence.BEGUN):
                return
            block(self._ceph(entry), addresses)
            _, locking = self._find_clients(entry)
            self._break_locks(entry, [lock for lock in locking if lock[2] in addresses])
            watching, locking = self._find_clients(entry)
            if watching or locking:
                raise unavailable(f"image {name} still has clients of node {node}")
            self._mark(entry, node, Fence.CONFIRMED)
            _log.warning("an image was fenced", image=name, node=node, addresses=addresses)

    def unfence_node(
        self, entry: JournalEntry, node: str, addresses: Sequence[str], *, rebooted: bool
    ) -> bool:
        """Let clients of a node in again; False if another node may have the image since then.

        First the mark says again that a fence has begun, and last it is removed: in between, when
        this ends early or the taint comes back, some clients are let in and others are not, and no
        other node takes the image.

        The mark is removed also where the monitors refuse to let them in: no other node would get
        the image. Without the mark it is like any image of this node: another one gets it when no
        client watches it, and what is refused here stays out. Only while it is not known what the
        monitors did the mark stays: a client that is let in later must not meet another node's.
        """
        with translate_errors(f"letting clients use image {image_name(entry)} again"):
            try:
                marked = self._mark(entry, node, Fence.BEGUN)
            except PoolMissing:
                marked, rebooted = False, True
            if not marked and not rebooted:
                return False
            refusal: CommandFailed | None = None
            try:
                unblock(self._ceph(entry), addresses)
            except CommandFailed as error:
                if error.errno == errno.ETIMEDOUT:
                    raise
                refusal = error
            if marked:
                self._mark(entry, node, None)
            if refusal is not None:
                raise refusal
        return True

    def _mark(self, entry: JournalEntry, node: str, fence: Fence | None) -> bool:
        """Write how far a node is fenced; False if the image is not, or no longer, the node's."""
        recorded = self._read_holder(entry)
        holder = VolumeHolder.from_json(recorded.decode(errors="replace"))
        if not recorded or holder.node != node:
            return False
        text = replace(holder, fence=fence).to_json().encode()
        return text == recorded or self._compare_and_set(entry, recorded, text)

    def _break_locks(self, entry: JournalEntry, locking: Sequence[tuple[str, str, str]]) -> None:
        with rbd.Image(open_image_pool(self._ceph(entry), entry), image_name(entry)) as image:
            for client, cookie, _ in locking:
                with suppress(rbd.ImageNotFound):
                    image.break_lock(client, cookie)

    def _find_clients(self, entry: JournalEntry) -> tuple[list[str], list[tuple[str, str, str]]]:
        """The addresses that watch an image, and client, cookie, address of those that lock it."""
        handle = self._ceph(entry).handle()
        own_name = f"client.{handle.get_instance_id()}"
        own_nonces = {*client_nonces(handle.get_addrs())}
        try:
            pool = open_image_pool(self._ceph(entry), entry)
            image = rbd.Image(pool, image_name(entry), read_only=True)
        except rbd.ImageNotFound:
            return [], []
        with image:
            watching = [str(watcher["addr"]) for watcher in image.watchers_list()]
            locks = image.list_lockers() or {"lockers": []}
            lockers = (tuple(map(str, locker)) for locker in locks["lockers"])
            locking = [locker for locker in lockers if locker[0] != own_name]
        return (
            [address for address in watching if client_nonce(address) not in own_nonces],
            [
                (locker[0], locker[1], locker[2])
                for locker in locking
                if client_nonce(locker[2]) not in own_nonces
            ],
        )

    def _read_holder(self, entry: JournalEntry) -> bytes:
        pool = open_image_pool(self._ceph(entry), entry)
        with rados.ReadOpCtx() as operation:
            values, _ = pool.get_omap_vals_by_keys(operation, (HOLDER_KEY,))
            try:
                pool.operate_read_op(operation, self._header_name(entry))
            except rados.ObjectNotFound:
                return b""
            return dict(values).get(HOLDER_KEY, b"")

    def _compare_and_set(self, entry: JournalEntry, expected: bytes, replacement: bytes) -> bool:
        """Write it if it is still as it was; False, and nothing is written, if it is not."""
        pool = open_image_pool(self._ceph(entry), entry)
        with rados.WriteOpCtx() as operation:
            operation.omap_cmp(HOLDER_KEY, expected.decode())
            if replacement:
                pool.set_omap(operation, (HOLDER_KEY,), (replacement,))
            else:
                pool.remove_omap_keys(operation, (HOLDER_KEY,))
            try:
                pool.operate_write_op(operation, self._header_name(entry))
            except rados.Error as error:
                if error.errno == errno.ECANCELED:
                    return False
                raise
        return True

    def _header_name(self, entry: JournalEntry) -> str:
        id = (
            open_image_pool(self._ceph(entry), entry)
            .read(f"rbd_id.{image_name(entry)}", 256)[4:]
            .decode()
        )
        return f"rbd_header.{id}"
