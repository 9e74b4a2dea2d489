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

from zonewise.csi.backends.ceph.connection import CephConnection, translate_errors
from zonewise.csi.backends.ceph.fuse import RbdFuse
from zonewise.csi.backends.ceph.journals.cluster_journal import open_image_pool
from zonewise.csi.backends.ceph.journals.node_index import NodeIndex
from zonewise.csi.backends.ceph.rbd.fencing import RbdFencing
from zonewise.csi.backends.ceph.rbd.images import MKFS_KEY, PREFIX, image_name
from zonewise.csi.backends.ceph.rbd.mapped_devices import (
    KRBD,
    MOUNTER,
    RBD_FUSE,
    RBD_NBD,
    MappedImages,
    parse_mounter,
)
from zonewise.csi.backends.contract import BLOCK, MountRequest
from zonewise.csi.backends.folders import filesystems, mounts
from zonewise.csi.backends.folders.node import FolderNode
from zonewise.csi.errors import not_found, precondition
from zonewise.storage.configuration import CephCluster
from zonewise.storage.identifiers import StoredKind
from zonewise.storage.journal import JournalEntry
from zonewise.storage.takeover.dead_nodes import VolumeHolder

FORMATTING_KEY = "zonewise.formatting"
STAGED = "staged"
"""The note of an image in the index of nodes; its clients are among its watchers."""


class ImageClient(Protocol):
    """One way of mapping images on this machine."""

    def map(self, entry: JournalEntry, *, readonly: bool, read_domain: Mapping[str, str]) -> None:
        """Bring an image here, unless it is; ``near`` is where it is read from, if given."""

    def find_source(self, uuid: str) -> Path | None:
        """What a volume's image is read and written through: a file or a device."""

    def find_devices(self, uuid: str) -> list[Path]:
        """The devices of a volume's image."""

    def attach(self, source: Path, *, readonly: bool, keep: bool) -> AbstractContextManager[Path]:
        """The image as a device, at least for a while."""

    def update_size(self, device: Path, size: int) -> None:
        """Let a device be as large as its image is now."""

    def unmap(self, uuid: str) -> None:
        """Remove a volume's image from this node, unless its device is used; none is fine."""

    def release(self, uuid: str) -> None:
        """Detach unused devices, and then the same."""

    def kill_client(self, uuid: str) -> None:
        """Let nothing wait any more for an image whose client was fenced."""

    def force_unmap(self, uuid: str) -> None:
        """Remove such an image from this node, even if it is used."""

    def is_mounted_at(self, path: Path, uuid: str) -> bool:
        """Whether a volume that was mapped this way is mounted at a path."""


class NodeClusters(Protocol):
    """The clusters whose images a node may have."""

    def connection_of(self, entry: JournalEntry) -> CephConnection:
        """The one that an entry is in; FAILED_PRECONDITION if it is not known any more."""

    def index_of(self, entry: JournalEntry) -> NodeIndex:
        """Which volumes nodes have, in that cluster."""

    def any_connection(self) -> CephConnection:
        """One of them."""


class RbdNode(FolderNode):
    """Brings RBD images to paths of this machine."""

    def __init__(self, clusters: NodeClusters, data: Path) -> None:
        self._clusters = clusters
        self._fuse = RbdFuse(
            lambda entry: clusters.connection_of(entry).cluster, data, PREFIX[StoredKind.VOLUME]
        )
        super().__init__(self._fuse)
        self._fencing = RbdFencing(clusters.connection_of)

    def stage(self, entry: JournalEntry, staging: Path, request: MountRequest) -> None:
        """Show the image, then as with a file; what cannot be staged is not shown either."""
        client = self._client(entry)
        readonly = request.readonly and (entry.access == BLOCK or not self._is_empty(entry))
        client.map(entry, readonly=readonly, read_domain=request.read_domain)
        try:
            super().stage(entry, staging, request)
        except BaseException:
            client.unmap(entry.uuid)
            raise

    def find_holder(self, entry: JournalEntry, staging: Path) -> VolumeHolder | None:
        """The holder of the image, anywhere; None if staged here without a recorded holder."""
        holder = self._fencing.find_holder(entry)
        if holder is None or holder.node:
            return holder
        staged = mounts.at(staging) is not None and self._find_devices(entry)
        return None if staged else holder

    def record_holder(self, entry: JournalEntry, holder: VolumeHolder) -> None:
        """Record its holder; first in the index, which may name too many and not too few."""
        self._clusters.index_of(entry).put(entry, holder.node, STAGED)
        self._fencing.record_holder(entry, holder)

    def clear_holder(self, entry: JournalEntry, node: str) -> None:
        """It has no holder any more, if that node had it."""
        self._fencing.clear_holder(entry, node)
        self._clusters.index_of(entry).remove(entry, node)

    def fence(self, entry: JournalEntry) -> None:
        """Fence the holder of the image, after removing what an earlier attempt of ours left."""
        self._client(entry).unmap(entry.uuid)
        self._fencing.fence(entry)

    def abandon_staging(self, entry: JournalEntry, staging: Path) -> None:
        """Nothing that was fenced is waited for: it might never answer."""
        client = self._client(entry)
        client.kill_client(entry.uuid)
        super().abandon_staging(entry, staging)
        client.force_unmap(entry.uuid)

    def _client(self, entry: JournalEntry) -> ImageClient:
        mounter = parse_mounter(entry.attributes.get(MOUNTER, ""))
        if mounter == RBD_FUSE:
            return self._fuse
        return self._mapped_images(mounter, self._clusters.connection_of(entry).cluster)

    def _all_clients(self) -> Iterator[ImageClient]:
        """All of them; what is mapped from one cluster is listed and unmapped by any other's."""
        yield self._fuse
        for mounter in (KRBD, RBD_NBD):
            yield self._mapped_images(mounter, self._clusters.any_connection().cluster)

    def _mapped_images(self, mounter: str, cluster: CephCluster) -> MappedImages:
        return MappedImages(mounter, cluster, self._fuse.folder, PREFIX[StoredKind.VOLUME])

    def _find_devices(self, entry: JournalEntry) -> list[Path]:
        return self._client(entry).find_devices(entry.uuid)

    def _attach(
        self, entry: JournalEntry, source: Path, *, readonly: bool, keep: bool = False
    ) -> AbstractContextManager[Path]:
        return self._client(entry).attach(source, readonly=readonly, keep=keep)

    def _update_device_size(self, entry: JournalEntry, device: Path) -> None:
        self._client(entry).update_size(device, entry.bytes)

    def _release_devices(self, uuid: str) -> None:
        """The image is closed when this returns; most have an rbd-fuse, which is quickly seen."""
        if not uuid:
            return
        if self._fuse.is_mapped(uuid):
            self._fuse.release(uuid)
            return
        for client in self._all_clients():
            client.release(uuid)

    def _is_mounted_at(self, path: Path, uuid: str) -> bool:
        return any(client.is_mounted_at(path, uuid) for client in self._all_clients())

    def _require_source(self, entry: JournalEntry) -> Path:
        source = self._client(entry).find_source(entry.uuid)
        if source is None:
            raise precondition("the volume is not staged here; stage it first")
        return source

    def _require_staged(self, entry: JournalEntry, path: Path) -> Path:
        if self._client(entry).find_source(entry.uuid) is None:
            raise not_found(f"the volume is not at {path}")
        return super()._require_staged(entry, path)

    def _is_empty(self, entry: JournalEntry) -> bool:
        """Whether nothing was ever written, or an attempt to make a file system was killed."""
        written: list[int] = []
        with self._open_image(entry) as image:
            with suppress(KeyError):
                image.metadata_get(FORMATTING_KEY)
                return True
            image.diff_iterate(0, image.size(), None, lambda offset, *_: written.append(offset))
        return not written

    def _detect_content(self, entry: JournalEntry, source: Path) -> str:
        return "" if self._is_empty(entry) else filesystems.detect(source)

    def _format(self, entry: JournalEntry, source: Path) -> None:
        with self._open_image(entry) as image:
            image.metadata_set(FORMATTING_KEY, entry.access)
        filesystems.make(entry.access, source, entry.attributes.get(MKFS_KEY, "").split())
        with self._open_image(entry) as image:
            image.metadata_remove(FORMATTING_KEY)

    @contextmanager
    def _open_image(self, entry: JournalEntry) -> Iterator[rbd.Image]:
        name = image_name(entry)
        with (
            translate_errors(f"staging image {name}"),
            rbd.Image(open_image_pool(self._clusters.connection_of(entry), entry), name) as image,
        ):
            yield image
