"""RBD images on a node: each by the client that its class names (``mounter``).

=========  =============================================  =================================
mounter    an image is                                    found again by
=========  =============================================  =================================
rbd-fuse   a file, and a loop device on it (``fuse``)     its mount
krbd       a device of the kernel's client (``mapped``)   ``rbd device list``
rbd-nbd    a device of rbd-nbd (``mapped``)               ``rbd device list``
=========  =============================================  =================================

Clients keep running when the driver is restarted. From the device on, everything is as with image
files: the same mounts, publishing and growing. The mounter is in the journal's entry; a volume to
be unstaged may have none any more, and is looked for with all mounters.

A file system is made on the image itself, which says so meanwhile: a killed mkfs leaves an image
that is formatted again, never one that looks like user data. An empty image that is only to be read
is therefore mapped for writing, once, and mounted read-only as any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

import rbd

from zonewise.csi.backends.ceph.connection import Ceph, told
from zonewise.csi.backends.ceph.fencing import RbdFencing
from zonewise.csi.backends.ceph.fuse import RbdFuse
from zonewise.csi.backends.ceph.images import MKFS, PREFIX, image_name
from zonewise.csi.backends.ceph.journals.pools import image_pool
from zonewise.csi.backends.ceph.mapped import (
    KRBD,
    MOUNTER,
    RBD_FUSE,
    RBD_NBD,
    MappedImages,
    check_mounter,
)
from zonewise.csi.backends.contract import BLOCK, Wanted
from zonewise.csi.backends.folders import filesystems, mounts
from zonewise.csi.backends.folders.node import FolderNode
from zonewise.csi.status import not_found, precondition
from zonewise.storage.configuration import CephCluster
from zonewise.storage.identifiers import Stored
from zonewise.storage.journal import JournalEntry
from zonewise.storage.takeover.fencing import VolumeHolder

FORMATTING = "zonewise.formatting"


class ImageClient(Protocol):
    """One way of mapping images on this machine."""

    def show(self, entry: JournalEntry, *, readonly: bool, near: Mapping[str, str]) -> None:
        """Bring an image here, unless it is; ``near`` is where it is read from, if given."""

    def source(self, uuid: str) -> Path | None:
        """What a volume's image is read and written through: a file or a device."""

    def devices(self, uuid: str) -> list[Path]:
        """The devices of a volume's image."""

    def attached(self, source: Path, *, readonly: bool, keep: bool) -> AbstractContextManager[Path]:
        """The image as a device, at least for a while."""

    def follow(self, device: Path, size: int) -> None:
        """Let a device be as large as its image is now."""

    def hide(self, uuid: str) -> None:
        """Remove a volume's image from this node, unless its device is used; none is fine."""

    def let_go(self, uuid: str) -> None:
        """Detach unused devices, and then the same."""

    def cut_off(self, uuid: str) -> None:
        """Let nothing wait any more for an image whose client was fenced."""

    def abandon(self, uuid: str) -> None:
        """Remove such an image from this node, even if it is used."""

    def shown_at(self, path: Path, uuid: str) -> bool:
        """Whether a volume that was mapped this way is mounted at a path."""


class NodeClusters(Protocol):
    """The clusters whose images a node may have."""

    def of(self, entry: JournalEntry) -> Ceph:
        """The one that an entry is in; FAILED_PRECONDITION if it is not known any more."""

    def any(self) -> Ceph:
        """One of them."""


class RbdNode(FolderNode):
    """Brings RBD images to paths of this machine."""

    def __init__(self, clusters: NodeClusters, data: Path) -> None:
        self._clusters = clusters
        self._fuse = RbdFuse(lambda entry: clusters.of(entry).cluster, data, PREFIX[Stored.VOLUME])
        super().__init__(self._fuse)
        self._fencing = RbdFencing(clusters.of)

    def stage(self, entry: JournalEntry, staging: Path, wanted: Wanted) -> None:
        """Show the image, then as with a file; what cannot be staged is not shown either."""
        client = self._client(entry)
        readonly = wanted.readonly and (entry.access == BLOCK or not self._empty(entry))
        client.show(entry, readonly=readonly, near=wanted.near)
        try:
            super().stage(entry, staging, wanted)
        except BaseException:
            client.hide(entry.uuid)
            raise

    def holder(self, entry: JournalEntry, staging: Path) -> VolumeHolder | None:
        """The holder of the image, anywhere; None if staged here without a recorded holder."""
        found = self._fencing.holder(entry)
        if found is None or found.node:
            return found
        staged = mounts.at(staging) is not None and self._devices(entry)
        return None if staged else found

    def hold(self, entry: JournalEntry, holder: VolumeHolder) -> None:
        """Record its holder."""
        self._fencing.hold(entry, holder)

    def release(self, entry: JournalEntry, node: str) -> None:
        """It has no holder any more, if that node had it."""
        self._fencing.release(entry, node)

    def fence(self, entry: JournalEntry) -> None:
        """Fence the holder of the image, after removing what an earlier attempt of ours left."""
        self._client(entry).hide(entry.uuid)
        self._fencing.fence(entry)

    def leave(self, entry: JournalEntry, staging: Path) -> None:
        """Nothing that was fenced is waited for: it might never answer."""
        client = self._client(entry)
        client.cut_off(entry.uuid)
        super().leave(entry, staging)
        client.abandon(entry.uuid)

    def _client(self, entry: JournalEntry) -> ImageClient:
        mounter = check_mounter(entry.attributes.get(MOUNTER, ""))
        if mounter == RBD_FUSE:
            return self._fuse
        return self._mapped(mounter, self._clusters.of(entry).cluster)

    def _clients(self) -> Iterator[ImageClient]:
        """All of them; what is mapped from one cluster is listed and unmapped by any other's."""
        yield self._fuse
        for mounter in (KRBD, RBD_NBD):
            yield self._mapped(mounter, self._clusters.any().cluster)

    def _mapped(self, mounter: str, cluster: CephCluster) -> MappedImages:
        return MappedImages(mounter, cluster, self._fuse.folder, PREFIX[Stored.VOLUME])

    def _devices(self, entry: JournalEntry) -> list[Path]:
        return self._client(entry).devices(entry.uuid)

    def _attached(
        self, entry: JournalEntry, source: Path, *, readonly: bool, keep: bool = False
    ) -> AbstractContextManager[Path]:
        return self._client(entry).attached(source, readonly=readonly, keep=keep)

    def _follow(self, entry: JournalEntry, device: Path) -> None:
        self._client(entry).follow(device, entry.bytes)

    def _let_go(self, uuid: str) -> None:
        """The image is closed when this returns; most have an rbd-fuse, which is quickly seen."""
        if not uuid:
            return
        if self._fuse.shown(uuid):
            self._fuse.let_go(uuid)
            return
        for client in self._clients():
            client.let_go(uuid)

    def _shown_at(self, path: Path, uuid: str) -> bool:
        return any(client.shown_at(path, uuid) for client in self._clients())

    def _source(self, entry: JournalEntry) -> Path:
        found = self._client(entry).source(entry.uuid)
        if found is None:
            raise precondition("the volume is not staged here; stage it first")
        return found

    def _staged(self, entry: JournalEntry, path: Path) -> Path:
        if self._client(entry).source(entry.uuid) is None:
            raise not_found(f"the volume is not at {path}")
        return super()._staged(entry, path)

    def _empty(self, entry: JournalEntry) -> bool:
        """Whether nothing was ever written, or an attempt to make a file system was killed."""
        written: list[int] = []
        with self._opened(entry) as image:
            with suppress(KeyError):
                image.metadata_get(FORMATTING)
                return True
            image.diff_iterate(0, image.size(), None, lambda offset, *_: written.append(offset))
        return not written

    def _content(self, entry: JournalEntry, source: Path) -> str:
        return "" if self._empty(entry) else filesystems.on(source)

    def _format(self, entry: JournalEntry, source: Path) -> None:
        with self._opened(entry) as image:
            image.metadata_set(FORMATTING, entry.access)
        filesystems.make(entry.access, source, entry.attributes.get(MKFS, "").split())
        with self._opened(entry) as image:
            image.metadata_remove(FORMATTING)

    @contextmanager
    def _opened(self, entry: JournalEntry) -> Iterator[rbd.Image]:
        name = image_name(entry)
        with (
            told(f"staging image {name}"),
            rbd.Image(image_pool(self._clusters.of(entry), entry), name) as image,
        ):
            yield image
