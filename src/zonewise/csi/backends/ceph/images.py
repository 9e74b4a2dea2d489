"""Volumes and snapshots as RBD images: the controller half.

::

    zw-vol-<uuid>    a volume        zw-snap-<uuid>    a snapshot: a clone of its source

An image is complete when the journal says so, or when it carries its mark, the request's name in
its metadata, which is written last. Copies are marked, because they take time, and images that have
a claim's names written into them anyway; marking all of them would cost a fifth of their making.
What the journal does not call created and has no mark is an attempt that was interrupted: nobody
was told of it, so it is removed and made again.

A copy is a snapshot of the source, a clone of that, and the snapshot goes (Ceph keeps it out of
sight while clones need it). So a source can be deleted before its copies. A clone in another pool
would read through to its source's zone for ever: it is flattened before it counts as made, and so
is one at the end of a long chain.

Removing is moving to the trash, which is quick; what is in the trash is removed by one thread in
the background, or later, when the last clone of it is gone. An image that is open somewhere is not
moved: ABORTED, because a client that was killed looks like one that lives for half a minute.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import rados
import rbd

from zonewise.csi.backends.ceph import header
from zonewise.csi.backends.ceph.connection import Ceph, PoolMissing, told
from zonewise.csi.backends.ceph.crush import CephPool
from zonewise.csi.backends.ceph.journals.pools import (
    NUMBER,
    JournalPools,
    claim_names,
    image_pool,
)
from zonewise.csi.backends.ceph.mapped import MOUNTER, check_mounter
from zonewise.csi.backends.ceph.pool_states import PoolStates
from zonewise.csi.backends.contract import BLOCK
from zonewise.csi.backends.embedded import filesystems
from zonewise.csi.status import Code, CsiError, aborted, exhausted, invalid
from zonewise.runtime.process.logs import logger
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.identifiers import Stored
from zonewise.storage.journal import Image, JournalEntry
from zonewise.storage.parameters import ClassParameters
from zonewise.storage.pools import PoolState

MARK = "zonewise.name"
PREFIX = {Stored.VOLUME: "zw-vol-", Stored.SNAPSHOT: "zw-snap-"}
DEEPEST = 4
"""How many images a read may have to go through."""
FEATURES = "imageFeatures"
MKFS = "mkfsOptions"
FEATURE_BITS = {
    "layering": 1,
    "exclusive-lock": 4,
    "object-map": 8,
    "fast-diff": 16,
    "deep-flatten": 32,
}
USUAL_FEATURES = sum(FEATURE_BITS.values())
_UNIT = 4096

_log = logger("csi")


class RbdImages:
    """The images of a cluster."""

    further = frozenset({FEATURES, MKFS, MOUNTER})

    def __init__(self, ceph: Ceph, journals: JournalPools) -> None:
        self._ceph = ceph
        self._journals = journals
        self._rbd = rbd.RBD()
        self._lock = threading.Lock()
        self._states = PoolStates(ceph, journals)
        self._purging = threading.Event()
        self._closed = False
        self._purger: threading.Thread | None = None

    def prepare(self, configuration: StorageConfiguration) -> None:
        """Nothing is made: pools are the administrator's. What is in the trash is looked at."""
        self._wake()

    def pools(self) -> Mapping[str, CephPool]:
        """What Ceph says about its pools."""
        return self._states.pools()

    def states(self, configuration: StorageConfiguration) -> Mapping[str, PoolState]:
        """Space and health of the pools."""
        return self._states.states(configuration)

    def attributes(self, parameters: ClassParameters, request: Mapping[str, str]) -> dict[str, str]:
        """What an entry keeps for us: its journal, the cluster, features, the claim's names."""
        _features(parameters.further.get(FEATURES, ""))
        check_mounter(parameters.further.get(MOUNTER, ""))
        self._require_data_pools(parameters)
        return self._journals.attributes(parameters, request) | dict(parameters.further)

    def access(self, file_system: str, *, block: bool, shared: bool) -> str:
        """A device or a file system on it; neither can be written by several nodes."""
        if shared:
            raise invalid("an RBD image cannot be written by several nodes; use ceph-fs for that")
        if block:
            return BLOCK
        if file_system and file_system not in filesystems.KNOWN:
            raise invalid(f"fs_type {file_system!r} is not known; use ext4 or xfs")
        return file_system or filesystems.EXT4

    def size(self, bytes: int, access: str) -> int:
        """Whole pages, and what the file system needs at least."""
        return max(-(-bytes // _UNIT) * _UNIT, filesystems.SMALLEST.get(access, _UNIT))

    def image(self, entry: JournalEntry) -> Image | None:
        """What is there for an entry."""
        name = image_name(entry)
        try:
            pool = image_pool(self._ceph, entry)
        except PoolMissing:
            return None
        with told(f"looking at image {name}"):
            found = header.read(pool, name, MARK)
            if found is None and not header.begun(pool, name):
                return None
        if found is None:
            return Image(entry.pool, entry.uuid, 0, entry.stored, complete=False)
        return Image(
            pool=entry.pool,
            uuid=entry.uuid,
            bytes=found.bytes,
            stored=entry.stored,
            ours=found.mark in (None, entry.name),
            complete=found.mark is not None,
        )

    def make(self, entry: JournalEntry, source: JournalEntry | None) -> bool:
        """Make an image, empty or as a copy; False if the name is taken."""
        name = image_name(entry)
        try:
            pool = image_pool(self._ceph, entry)
            with told(f"making image {name}"):
                if source is None:
                    self._rbd.create(
                        pool,
                        name,
                        entry.bytes,
                        old_format=False,
                        features=_features(entry.attributes.get(FEATURES, "")),
                        data_pool=entry.data_pool or None,
                    )
                    if claim_names(entry):
                        header.write(pool, name, _description(entry))
                else:
                    self._copy(entry, source)
        except rbd.ImageExists:
            return False
        except PoolMissing as error:  # deleted since it was chosen: another may be
            raise exhausted(error.message) from error
        except CsiError as error:
            if error.code is Code.UNAVAILABLE and self._full(entry):
                raise exhausted(f"pool {entry.pool} is full") from error
            raise
        return True

    def remove(self, entry: JournalEntry) -> None:
        """Into the trash; what was never finished is removed at once."""
        name = image_name(entry)
        try:
            pool = image_pool(self._ceph, entry)
        except PoolMissing:
            _require_number(entry)
            _log.warning("a pool is gone, and its images with it", pool=entry.pool, image=name)
            return
        with told(f"removing image {name}"):
            try:
                with rbd.Image(pool, name) as image:
                    if _mark(image) not in (None, entry.name):
                        return
                    _require_closed(image, name, self._ceph)
                    _drop_snapshots(image)
                self._rbd.trash_move(pool, name)
            except rbd.ImageNotFound:
                if header.begun(pool, name) and header.read(pool, name, MARK) is None:
                    with suppress(rbd.ImageNotFound):
                        self._rbd.remove(pool, name)
        self._wake()

    def grow(self, entry: JournalEntry) -> bool:
        """Make an image as large as its entry says; nodes follow."""
        name = image_name(entry)
        with told(f"growing image {name}"):
            try:
                with rbd.Image(image_pool(self._ceph, entry), name) as image:
                    if image.size() < entry.bytes:
                        image.resize(entry.bytes)
            except (rbd.ImageNotFound, PoolMissing):
                raise CsiError(Code.INTERNAL, f"image {name} is not in its pool any more") from None
        return True

    def in_use(self, entry: JournalEntry) -> str:
        """Nobody, or ABORTED: a client that lives and one that was killed look the same."""
        name = image_name(entry)
        with (
            told(f"looking at image {name}"),
            suppress(rbd.ImageNotFound, PoolMissing),
            rbd.Image(image_pool(self._ceph, entry), name, read_only=True) as image,
        ):
            _require_closed(image, name, self._ceph)
        return ""

    def images(self) -> Sequence[Image]:
        """Every image of ours, in all pools for RBD."""
        return sorted(self._images(), key=lambda image: (image.pool, image.uuid))

    def trash(self) -> list[dict[str, str]]:
        """What was removed and is still there."""
        found = []
        for name in self._rbd_pools():
            with told(f"listing the trash of pool {name}"):
                found += [
                    {"pool": name, "image": one["name"]}
                    for one in self._rbd.trash_list(self._pool(name))
                    if one["name"].startswith(tuple(PREFIX.values()))
                ]
        return found

    def purge(self) -> int:
        """Remove what is in the trash and needed by no clone; how much is left."""
        left = 0
        for name in self._rbd_pools():
            pool = self._pool(name)
            with told(f"emptying the trash of pool {name}"):
                for one in list(self._rbd.trash_list(pool)):
                    if one["name"].startswith(tuple(PREFIX.values())):
                        try:
                            self._rbd.trash_remove(pool, one["id"], True)
                        except (rbd.ImageHasSnapshots, rbd.ImageBusy):
                            left += 1
                        except rbd.ImageNotFound:
                            continue
        return left

    def close(self) -> None:
        """End the thread that empties the trash."""
        self._closed = True
        self._purging.set()
        if self._purger is not None:
            self._purger.join()

    def _copy(self, entry: JournalEntry, source: JournalEntry) -> None:
        """A clone at one moment of its source."""
        name, origin, snap = image_name(entry), image_name(source), f"zw-{entry.uuid}"
        pool = image_pool(self._ceph, entry)
        try:
            home = image_pool(self._ceph, source)
            with rbd.Image(home, origin) as image:
                depth = _depth(image, self._ceph)
                with suppress(rbd.ImageExists):
                    image.create_snap(snap)
        except (rbd.ImageNotFound, PoolMissing):
            raise CsiError(Code.INTERNAL, f"image {origin} is not in its pool any more") from None
        try:
            self._rbd.clone(
                *(home, origin, snap, pool, name),
                features=_features(entry.attributes.get(FEATURES, "")),
                data_pool=entry.data_pool or None,
            )
            with rbd.Image(pool, name) as image:
                if image.size() < entry.bytes:
                    image.resize(entry.bytes)
                if entry.pool != source.pool or depth >= DEEPEST:
                    image.flatten()
                for key, value in _description(entry).items():
                    image.metadata_set(key, value)
        finally:
            with suppress(rbd.Error), rbd.Image(home, origin) as image:
                image.remove_snap(snap)

    def _images(self) -> Iterator[Image]:
        for name in self._rbd_pools():
            pool = self._pool(name)
            with told(f"listing pool {name}"):
                listed = self._rbd.list(pool)
            for one in listed:
                for stored, prefix in PREFIX.items():
                    if not one.startswith(prefix):
                        continue
                    with told(f"looking at image {one}"):
                        found = header.read(pool, one, MARK)
                    yield Image(
                        pool=name,
                        uuid=one.removeprefix(prefix),
                        bytes=found.bytes if found is not None else 0,
                        stored=stored,
                        complete=found is not None and found.mark is not None,
                    )

    def _require_data_pools(self, parameters: ClassParameters) -> None:
        """librbd would only say that something was not found."""
        named = {parameters.data_pool, *(one.data_pool for one in parameters.pools)} - {""}
        if named and not named <= set(self.pools()):
            self._states.forget()
            if unknown := sorted(named - set(self.pools())):
                cluster = self._ceph.cluster.cluster_id
                raise invalid(f"dataPool: cluster {cluster} has no pool {unknown[0]!r}")

    def _rbd_pools(self) -> list[str]:
        """The pools for RBD that the driver's user may read: nothing of ours is in others."""
        named = sorted(name for name, one in self.pools().items() if "rbd" in one.application)
        return [name for name in named if self._readable(name)]

    def _readable(self, name: str) -> bool:
        with told(f"looking into pool {name}"):
            try:
                self._pool(name).stat("rbd_directory")
            except (rados.PermissionError, PoolMissing):
                return False
            except rados.ObjectNotFound:
                pass
            return True

    def _pool(self, name: str) -> rados.Ioctx:
        return self._ceph.pool(name)

    def _full(self, entry: JournalEntry) -> bool:
        """Whether a pool is full, and therefore nothing was made and nothing will be.

        librados keeps writes to a full pool to itself and gives them up with their time limit, so
        what is not there now will not come.
        """
        self._states.forget()
        pool = self.pools().get(entry.pool)
        return pool is not None and pool.alive and pool.full and self.image(entry) is None

    def _wake(self) -> None:
        with self._lock:
            if self._purger is None:
                self._purger = threading.Thread(target=self._work, name="trash", daemon=True)
                self._purger.start()
        self._purging.set()

    def _work(self) -> None:
        while True:
            self._purging.wait()
            self._purging.clear()
            if self._closed:
                return
            try:
                self.purge()
            except CsiError as error:
                _log.info("the trash stays for now", why=str(error))


def _require_number(entry: JournalEntry) -> None:
    """A pool of an entry's name is not there: only its number says that it was not renamed."""
    if NUMBER not in entry.attributes:
        raise CsiError(
            Code.FAILED_PRECONDITION,
            f"there is no pool {entry.pool}, and nobody knows whether it was renamed; bring it back"
            " under that name",
        )


def image_name(entry: JournalEntry) -> str:
    """The name of an entry's image."""
    return PREFIX[entry.stored] + entry.uuid


def _features(text: str) -> int:
    names = [one.strip() for one in text.split(",") if one.strip()]
    for name in names:
        if name not in FEATURE_BITS:
            known = ", ".join(FEATURE_BITS)
            raise invalid(f"imageFeatures: {name!r} is not known; known are {known}")
    return sum(FEATURE_BITS[name] for name in set(names)) | 1 if names else USUAL_FEATURES


def _mark(image: rbd.Image) -> str | None:
    try:
        return image.metadata_get(MARK)
    except KeyError:
        return None


def _description(entry: JournalEntry) -> dict[str, str]:
    """The claim's names for people who look, and at last the mark."""
    return {**claim_names(entry), MARK: entry.name}


def _drop_snapshots(image: rbd.Image) -> None:
    """Those that an interrupted copy left; Ceph keeps the ones that clones need out of sight."""
    for one in list(image.list_snaps()):
        if one["namespace"] == rbd.RBD_SNAP_NAMESPACE_TYPE_USER:
            with suppress(rbd.ImageNotFound):
                image.remove_snap(one["name"])


def _require_closed(image: rbd.Image, name: str, ceph: Ceph) -> None:
    """Nobody else has it open; we may, while we look."""
    ours = ceph.handle().get_instance_id()
    others = sorted({str(one["addr"]) for one in image.watchers_list() if one["id"] != ours})
    if others:
        raise aborted(
            f"image {name} is open at {', '.join(others)}, or was until its client died; ask again"
        )


def _depth(image: rbd.Image, ceph: Ceph) -> int:
    """How many images a read may go through before it ends."""
    depth = 0
    parent = _parent(image)
    while parent is not None and depth < DEEPEST:
        depth += 1
        pool, id = parent
        with rbd.Image(ceph.pool(pool), image_id=id, read_only=True) as one:
            parent = _parent(one)
    return depth


def _parent(image: rbd.Image) -> tuple[str, str] | None:
    try:
        return image.get_parent_image_spec()["pool_name"], image.parent_id()
    except rbd.ImageNotFound:
        return None
