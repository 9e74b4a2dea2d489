"""Volumes and snapshots as RBD images: the controller half.

::

    zw-vol-<uuid>    a volume        zw-snap-<uuid>    a snapshot: a clone of its source

A copy is complete when it carries its mark, the request's name in its metadata, which is written
last; so is an image that has a claim's names written into it anyway. Any other image is complete
when librbd's last step is done: it has a header, and an object map if its header calls for one.
What is not complete is an attempt that was interrupted: its id was never returned, so it is removed
and made again. CREATED in the journal follows the answer, and comes before the image is used.

A copy is a snapshot of the source and a clone of that; then the snapshot is removed (Ceph keeps it
hidden while clones need it). So a source can be deleted before its copies. A clone in another pool
would read through to its source's zone forever: it is flattened before it counts as made, and so is
one at the end of a long chain.

Removing is moving to the trash, which is quick; what is in the trash is removed by one thread in
the background, or later, when its last clone is deleted. An image that is open somewhere is not
moved: ABORTED, because for half a minute a killed client looks like a live one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import rados
import rbd

from zonewise.csi.backends.ceph.connection import CephConnection, PoolMissing, translate_errors
from zonewise.csi.backends.ceph.crush import RBD, CephPool
from zonewise.csi.backends.ceph.journals.cluster_journal import (
    IMAGE_POOL_NUMBER,
    ClusterJournal,
    claim_metadata,
    open_image_pool,
)
from zonewise.csi.backends.ceph.pool_states import PoolStates
from zonewise.csi.backends.ceph.rbd import header
from zonewise.csi.backends.ceph.rbd.mapped_devices import MOUNTER, parse_mounter
from zonewise.csi.backends.contract import BLOCK
from zonewise.csi.backends.folders import filesystems
from zonewise.csi.errors import Code, CsiError, aborted, exhausted, internal, invalid, precondition
from zonewise.runtime.process.logs import logger
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.identifiers import StoredKind
from zonewise.storage.journal import Image, JournalEntry
from zonewise.storage.parameters import RBD_KEYS, ClassParameters
from zonewise.storage.pools import PoolState

MARK = "zonewise.name"
PREFIX = {StoredKind.VOLUME: "zw-vol-", StoredKind.SNAPSHOT: "zw-snap-"}
DEPTH_LIMIT = 4
"""How many images a read may have to go through."""
FEATURES_KEY = "imageFeatures"
MKFS_KEY = "mkfsOptions"
FEATURE_BITS = {
    "layering": 1,
    "exclusive-lock": 4,
    "object-map": 8,
    "fast-diff": 16,
    "deep-flatten": 32,
}
NEEDED_FEATURES = {"object-map": "exclusive-lock", "fast-diff": "object-map"}
USUAL_FEATURES = sum(FEATURE_BITS.values())

_log = logger("csi")


class RbdImages:
    """The images of a cluster."""

    backend_keys = RBD_KEYS
    evident = True
    application = RBD

    def __init__(self, ceph: CephConnection, journals: ClusterJournal) -> None:
        self._ceph = ceph
        self._journals = journals
        self._rbd = rbd.RBD()
        self._lock = threading.Lock()
        self._states = PoolStates(ceph, journals, self.application)
        self._purging = threading.Event()
        self._closed = False
        self._purger: threading.Thread | None = None

    def prepare(self, configuration: StorageConfiguration) -> None:
        """Nothing is made: pools are the administrator's. What is in the trash is looked at."""
        self._start_purging()

    def pools(self) -> Mapping[str, CephPool]:
        """What Ceph says about its pools."""
        return self._states.pools()

    def pool_states(self, configuration: StorageConfiguration) -> Mapping[str, PoolState]:
        """Space and health of the pools."""
        return self._states.pool_states(configuration)

    def prepare_attributes(
        self, parameters: ClassParameters, request: Mapping[str, str]
    ) -> dict[str, str]:
        """What an entry keeps for us: its journal, the cluster, features, the claim's names."""
        _parse_features(parameters.backend_parameters.get(FEATURES_KEY, ""))
        parse_mounter(parameters.backend_parameters.get(MOUNTER, ""))
        self._require_data_pools(parameters)
        attributes = self._journals.prepare_attributes(parameters, request)
        return attributes | dict(parameters.backend_parameters)

    def choose_access(self, file_system: str, *, block: bool, shared: bool) -> str:
        """A device or a file system on it; neither can be written by several nodes."""
        if shared:
            raise invalid("an RBD image cannot be written by several nodes; use ceph-fs for that")
        if block:
            return BLOCK
        if file_system and file_system not in filesystems.KNOWN:
            raise invalid(f"fs_type {file_system!r} is not known; use ext4 or xfs")
        return file_system or filesystems.EXT4

    round_size = staticmethod(filesystems.round_size)

    def find_image(self, entry: JournalEntry) -> Image | None:
        """The image of an entry, if it exists."""
        name = image_name(entry)
        try:
            pool = open_image_pool(self._ceph, entry)
        except PoolMissing:
            return None
        with translate_errors(f"looking at image {name}"):
            image_header = header.read(pool, name, MARK)
            if image_header is None and not header.is_begun(pool, name):
                return None
            if image_header is None:
                return Image(entry.pool, entry.uuid, 0, entry.kind, complete=False)
            complete = image_header.mark is not None
            if entry.evident and not claim_metadata(entry):
                complete = header.is_complete(pool, image_header)
        return Image(
            pool=entry.pool,
            uuid=entry.uuid,
            bytes=image_header.bytes,
            kind=entry.kind,
            ours=image_header.mark in (None, entry.name),
            complete=complete,
        )

    def make(self, entry: JournalEntry, source: JournalEntry | None) -> bool:
        """Make an image, empty or as a copy; False if the name is taken."""
        name = image_name(entry)
        try:
            pool = open_image_pool(self._ceph, entry)
            with translate_errors(f"making image {name}"):
                if source is None:
                    self._rbd.create(
                        pool,
                        name,
                        entry.bytes,
                        old_format=False,
                        features=_parse_features(entry.attributes.get(FEATURES_KEY, "")),
                        data_pool=entry.data_pool or None,
                    )
                    if claim_metadata(entry):
                        header.write_metadata(pool, name, _metadata_of(entry))
                else:
                    self._clone(entry, source)
        except rbd.ImageExists:
            return False
        except PoolMissing as error:  # deleted since it was chosen: another may be
            raise exhausted(error.message) from error
        except CsiError as error:
            if source is None and isinstance(error.__cause__, rbd.InvalidArgument):
                raise _pool_cannot_hold(entry) from error
            if error.code is Code.UNAVAILABLE and self._is_full(entry):
                raise exhausted(f"pool {entry.pool} is full") from error
            raise
        return True

    def remove(self, entry: JournalEntry) -> None:
        """Into the trash; what was never finished is removed at once."""
        name = image_name(entry)
        try:
            pool = open_image_pool(self._ceph, entry)
        except PoolMissing:
            _require_pool_number(entry)
            _log.warning("a pool is gone, and its images with it", pool=entry.pool, image=name)
            return
        with translate_errors(f"removing image {name}"):
            try:
                with rbd.Image(pool, name) as image:
                    if _read_mark(image) not in (None, entry.name):
                        return
                    _require_closed(image, name, self._ceph)
                    _drop_snapshots(image)
                self._rbd.trash_move(pool, name)
            except rbd.ImageNotFound:
                if header.is_begun(pool, name) and header.read(pool, name, MARK) is None:
                    with suppress(rbd.ImageNotFound):
                        self._rbd.remove(pool, name)
        self._start_purging()

    def grow(self, entry: JournalEntry) -> bool:
        """Make an image as large as its entry says; nodes follow."""
        name = image_name(entry)
        with translate_errors(f"growing image {name}"):
            try:
                with rbd.Image(open_image_pool(self._ceph, entry), name) as image:
                    if image.size() < entry.bytes:
                        image.resize(entry.bytes)
            except (rbd.ImageNotFound, PoolMissing):
                raise internal(f"image {name} is not in its pool any more") from None
        return True

    def find_user(self, entry: JournalEntry) -> str:
        """Empty, or ABORTED: a live client and a killed one look the same."""
        name = image_name(entry)
        with (
            translate_errors(f"looking at image {name}"),
            suppress(rbd.ImageNotFound, PoolMissing),
            rbd.Image(open_image_pool(self._ceph, entry), name, read_only=True) as image,
        ):
            _require_closed(image, name, self._ceph)
        return ""

    def list_images(self) -> Sequence[Image]:
        """Every image of ours, in all pools for RBD."""
        return sorted(self._list_images(), key=lambda image: (image.pool, image.uuid))

    def list_trash(self) -> list[dict[str, str]]:
        """What was removed and still exists."""
        trashed = []
        for name in self._readable_pools():
            with translate_errors(f"listing the trash of pool {name}"):
                trashed += [
                    {"pool": name, "image": image["name"]}
                    for image in self._rbd.trash_list(self._pool(name))
                    if image["name"].startswith(tuple(PREFIX.values()))
                ]
        return trashed

    def purge(self) -> int:
        """Remove what is in the trash and needed by no clone; how much is left.

        A pool that does not answer, as in a dead zone, is left out; raises after all others.
        """
        remaining, pool_error = 0, None
        for name in self._rbd_pool_names():
            try:
                remaining += self._purge_pool(name) if self._may_read(name) else 0
            except CsiError as error:
                pool_error = error
        if pool_error is not None:
            raise pool_error
        return remaining

    def _purge_pool(self, name: str) -> int:
        remaining, pool = 0, self._pool(name)
        with translate_errors(f"emptying the trash of pool {name}"):
            for image in list(self._rbd.trash_list(pool)):
                if image["name"].startswith(tuple(PREFIX.values())):
                    try:
                        self._rbd.trash_remove(pool, image["id"], True)
                    except (rbd.ImageHasSnapshots, rbd.ImageBusy):
                        remaining += 1
                    except rbd.ImageNotFound:
                        continue
        return remaining

    def close(self) -> None:
        """End the thread that empties the trash."""
        self._closed = True
        self._purging.set()
        if self._purger is not None:
            self._purger.join()

    def _clone(self, entry: JournalEntry, source: JournalEntry) -> None:
        """A clone at one moment of its source."""
        name, source_name, snapshot_name = image_name(entry), image_name(source), f"zw-{entry.uuid}"
        pool = open_image_pool(self._ceph, entry)
        try:
            source_pool = open_image_pool(self._ceph, source)
            with rbd.Image(source_pool, source_name) as image:
                depth = _clone_depth(image, self._ceph)
                with suppress(rbd.ImageExists):
                    image.create_snap(snapshot_name)
        except (rbd.ImageNotFound, PoolMissing):
            raise internal(f"image {source_name} is not in its pool any more") from None
        try:
            self._rbd.clone(
                *(source_pool, source_name, snapshot_name, pool, name),
                features=_parse_features(entry.attributes.get(FEATURES_KEY, "")),
                data_pool=entry.data_pool or None,
            )
            with rbd.Image(pool, name) as image:
                if image.size() < entry.bytes:
                    image.resize(entry.bytes)
                if entry.pool != source.pool or depth >= DEPTH_LIMIT:
                    image.flatten()
                for key, value in _metadata_of(entry).items():
                    image.metadata_set(key, value)
        finally:
            with suppress(rbd.Error), rbd.Image(source_pool, source_name) as image:
                image.remove_snap(snapshot_name)

    def _list_images(self) -> Iterator[Image]:
        for name in self._readable_pools():
            pool = self._pool(name)
            with translate_errors(f"listing pool {name}"):
                image_names = self._rbd.list(pool)
            for image_name in image_names:
                for kind, prefix in PREFIX.items():
                    if not image_name.startswith(prefix):
                        continue
                    with translate_errors(f"looking at image {image_name}"):
                        image_header = header.read(pool, image_name, MARK)
                    yield Image(
                        pool=name,
                        uuid=image_name.removeprefix(prefix),
                        bytes=image_header.bytes if image_header is not None else 0,
                        kind=kind,
                        complete=image_header is not None and image_header.mark is not None,
                    )

    def _require_data_pools(self, parameters: ClassParameters) -> None:
        """librbd would only say that something was not found."""
        data_pools = {parameters.data_pool, *(pool.data_pool for pool in parameters.pools)} - {""}
        if data_pools and not data_pools <= set(self.pools()):
            self._states.invalidate()
            if unknown := sorted(data_pools - set(self.pools())):
                cluster = self._ceph.cluster.cluster_id
                raise invalid(f"dataPool: cluster {cluster} has no pool {unknown[0]!r}")

    def _readable_pools(self) -> list[str]:
        """The pools for RBD that the driver's user may read: nothing of ours is in others."""
        return [name for name in self._rbd_pool_names() if self._may_read(name)]

    def _rbd_pool_names(self) -> list[str]:
        return sorted(name for name, pool in self.pools().items() if RBD in pool.applications)

    def _may_read(self, name: str) -> bool:
        with translate_errors(f"looking into pool {name}"):
            try:
                self._pool(name).stat("rbd_directory")
            except (rados.PermissionError, PoolMissing):
                return False
            except rados.ObjectNotFound:
                pass
            return True

    def _pool(self, name: str) -> rados.Ioctx:
        return self._ceph.open_pool(name)

    def _is_full(self, entry: JournalEntry) -> bool:
        """Whether a pool is full, and therefore nothing was made and nothing will be.

        librados holds back writes to a full pool and drops them at their time limit, so what does
        not exist now never will.
        """
        self._states.invalidate()
        pool = self.pools().get(entry.pool)
        return pool is not None and pool.alive and pool.full and self.find_image(entry) is None

    def _start_purging(self) -> None:
        with self._lock:
            if self._purger is None:
                self._purger = threading.Thread(
                    target=self._purge_until_closed, name="trash", daemon=True
                )
                self._purger.start()
        self._purging.set()

    def _purge_until_closed(self) -> None:
        while True:
            self._purging.wait()
            self._purging.clear()
            if self._closed:
                return
            try:
                self.purge()
            except CsiError as error:
                _log.info("the trash stays for now", why=str(error))


def _require_pool_number(entry: JournalEntry) -> None:
    """No pool has an entry's pool name: only its number says that it was not renamed."""
    if IMAGE_POOL_NUMBER not in entry.attributes:
        raise precondition(
            f"there is no pool {entry.pool}, and whether it was renamed is unknown; bring it back"
            " under that name"
        )


def _pool_cannot_hold(entry: JournalEntry) -> CsiError:
    """librbd made no image, and a retry fails too: the request depends on the class alone."""
    pools = f"pool {entry.pool}" + f" with its data in {entry.data_pool}" * bool(entry.data_pool)
    return invalid(
        f"{pools} cannot hold an image: an erasure-coded pool is for dataPool only, and needs"
        " allow_ec_overwrites"
    )


def image_name(entry: JournalEntry) -> str:
    """The name of an entry's image."""
    return PREFIX[entry.kind] + entry.uuid


def _parse_features(text: str) -> int:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in FEATURE_BITS:
            known = ", ".join(FEATURE_BITS)
            raise invalid(f"imageFeatures: {name!r} is not known; known are {known}")
        needed_feature = NEEDED_FEATURES.get(name, name)
        if needed_feature not in names:
            raise invalid(f"imageFeatures: {name} needs {needed_feature}; add it")
    return sum(FEATURE_BITS[name] for name in set(names)) | 1 if names else USUAL_FEATURES


def _read_mark(image: rbd.Image) -> str | None:
    try:
        return image.metadata_get(MARK)
    except KeyError:
        return None


def _metadata_of(entry: JournalEntry) -> dict[str, str]:
    """The claim's names for administrators, and the mark last."""
    return {**claim_metadata(entry), MARK: entry.name}


def _drop_snapshots(image: rbd.Image) -> None:
    """Those that an interrupted copy left; Ceph keeps the ones that clones need out of sight."""
    for snapshot in list(image.list_snaps()):
        if snapshot["namespace"] == rbd.RBD_SNAP_NAMESPACE_TYPE_USER:
            with suppress(rbd.ImageNotFound):
                image.remove_snap(snapshot["name"])


def _require_closed(image: rbd.Image, name: str, ceph: CephConnection) -> None:
    """Raises if another client has it open; we may, while we look."""
    own_id = ceph.handle().get_instance_id()
    other_addresses = sorted(
        {str(watcher["addr"]) for watcher in image.watchers_list() if watcher["id"] != own_id}
    )
    if other_addresses:
        raise aborted(
            f"image {name} is open at {', '.join(other_addresses)}, or was until its client"
            " died; try again"
        )


def _clone_depth(image: rbd.Image, ceph: CephConnection) -> int:
    """How many images a read may go through before it ends."""
    depth = 0
    parent = _parent_of(image)
    while parent is not None and depth < DEPTH_LIMIT:
        depth += 1
        pool, id = parent
        with rbd.Image(ceph.open_pool(pool), image_id=id, read_only=True) as parent_image:
            parent = _parent_of(parent_image)
    return depth


def _parent_of(image: rbd.Image) -> tuple[str, str] | None:
    try:
        return image.get_parent_image_spec()["pool_name"], image.parent_id()
    except rbd.ImageNotFound:
        return None
