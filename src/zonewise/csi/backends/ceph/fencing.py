"""Which node has an RBD image, and how all others are fenced from it.

The holder is written into the image's own metadata (``zonewise.holder``), by compare-and-set on its
header: of two nodes that try at once, one finds that the other was faster. It is deleted with the
image. Whether the holder is connected is seen from the image's watchers, which Ceph keeps.

Only Ceph can fence: the addresses that watch or lock the image are blocklisted (``osd blocklist``),
so that OSDs no longer answer them; every OSD that we use afterwards has the new map; then the lock
is broken. An address has a nonce that no other client ever has, so no client is fenced by accident,
and a node that comes back is let in again with its next client. The entry stays for a year: a zone
that was lost may come back after weeks.

Our own address is never among them.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress

import rados
import rbd

from zonewise.csi.backends.ceph.connection import (
    Ceph,
    PoolMissing,
    client_number,
    client_numbers,
    told,
)
from zonewise.csi.backends.ceph.images import image_name
from zonewise.csi.backends.ceph.journals.pools import image_pool
from zonewise.csi.status import Code, CsiError, aborted
from zonewise.runtime.process.logs import logger
from zonewise.storage.journal import JournalEntry
from zonewise.storage.takeover.fencing import VolumeHolder

KEY = "metadata_zonewise.holder"
SECONDS = 365 * 24 * 3600

_log = logger("csi")


class RbdFencing:
    """The holders of images; ``ceph`` says which cluster an entry's is in."""

    def __init__(self, ceph: Callable[[JournalEntry], Ceph]) -> None:
        self._ceph = ceph

    def holder(self, entry: JournalEntry) -> VolumeHolder | None:
        """The holder of an image; None if none is recorded, and it has no watcher and no lock."""
        name = image_name(entry)
        try:
            with told(f"looking who has image {name}"):
                written = self._written(entry)
                watching, locking = self._clients(entry)
        except PoolMissing:
            return None  # a deleted image can be unstaged
        if not written and not watching and not locking:
            return None
        found = VolumeHolder.read(written.decode(errors="replace"))
        return VolumeHolder(found.node, found.at, live=bool(watching))

    def hold(self, entry: JournalEntry, holder: VolumeHolder) -> None:
        """Write it down; ABORTED if it is not as it was a moment ago."""
        text = holder.text().encode()
        with told(f"taking image {image_name(entry)}"):
            try:
                before = self._written(entry)
                if before == text or self._swap(entry, before, text):
                    return
            except (rados.ObjectNotFound, PoolMissing):
                raise CsiError(
                    Code.INTERNAL, f"image {image_name(entry)} is not in pool {entry.pool} any more"
                ) from None
            raise aborted(f"another node takes image {image_name(entry)} just now; try again")

    def release(self, entry: JournalEntry, node: str) -> None:
        """It has no holder any more, if that node had it."""
        with told(f"letting go of image {image_name(entry)}"), suppress(PoolMissing):
            before = self._written(entry)
            if before and VolumeHolder.read(before.decode(errors="replace")).node == node:
                self._swap(entry, before, b"")

    def fence(self, entry: JournalEntry) -> None:
        """Fence every client that watches or locks an image; raises if that is not certain."""
        name = image_name(entry)
        with told(f"fencing image {name}"):
            watching, locking = self._clients(entry)
            addresses = sorted({*watching, *(address for _, _, address in locking)})
            ceph = self._ceph(entry)
            for address in addresses:
                ceph.ask("osd blocklist", blocklistop="add", addr=address, expire=float(SECONDS))
            ceph.newest()
            with rbd.Image(image_pool(ceph, entry), name) as image:
                for client, cookie, _ in locking:
                    try:
                        image.break_lock(client, cookie)
                    except rbd.ImageNotFound:
                        continue
        _log.warning("an image was taken from others", image=name, addresses=addresses)

    def _clients(self, entry: JournalEntry) -> tuple[list[str], list[tuple[str, str, str]]]:
        """The addresses that watch an image, and client, cookie, address of those that lock it."""
        handle = self._ceph(entry).handle()
        own = f"client.{handle.get_instance_id()}"
        numbers = {*client_numbers(handle.get_addrs())}
        try:
            image = rbd.Image(
                image_pool(self._ceph(entry), entry), image_name(entry), read_only=True
            )
        except rbd.ImageNotFound:
            return [], []
        with image:
            watching = [str(one["addr"]) for one in image.watchers_list()]
            locks = image.list_lockers() or {"lockers": []}
            locking = [tuple(map(str, one)) for one in locks["lockers"] if str(one[0]) != own]
        return (
            [one for one in watching if client_number(one) not in numbers],
            [(one[0], one[1], one[2]) for one in locking if client_number(one[2]) not in numbers],
        )

    def _written(self, entry: JournalEntry) -> bytes:
        pool = image_pool(self._ceph(entry), entry)
        with rados.ReadOpCtx() as operation:
            found, _ = pool.get_omap_vals_by_keys(operation, (KEY,))
            try:
                pool.operate_read_op(operation, self._header(entry))
            except rados.ObjectNotFound:
                return b""
            return dict(found).get(KEY, b"")

    def _swap(self, entry: JournalEntry, before: bytes, after: bytes) -> bool:
        """Write it if it is still as it was; False, and nothing is written, if it is not."""
        pool = image_pool(self._ceph(entry), entry)
        with rados.WriteOpCtx() as operation:
            operation.omap_cmp(KEY, before.decode())
            if after:
                pool.set_omap(operation, (KEY,), (after,))
            else:
                pool.remove_omap_keys(operation, (KEY,))
            try:
                pool.operate_write_op(operation, self._header(entry))
            except rados.Error as error:
                if error.errno == errno.ECANCELED:
                    return False
                raise
        return True

    def _header(self, entry: JournalEntry) -> str:
        id = (
            image_pool(self._ceph(entry), entry)
            .read(f"rbd_id.{image_name(entry)}", 256)[4:]
            .decode()
        )
        return f"rbd_header.{id}"
