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
from zonewise.csi.backends.folders import filesystems
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
NEEDED_FEATURES = {"object-map": "exclusive-lock", "fast-diff": "object-map"}
USUAL_FEATURES = sum(FEATURE_BITS.values())
_UNIT = 4096

_log = logger("csi")


class RbdImages:
    """The images of a cluster."""

    further = frozenset({FEATURES, MKFS, MOUNTER})
    evident = True

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
        """The image of an entry, if it exists."""
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
            complete = found.mark is not None
            if entry.evident and not claim_names(entry):
                complete = header.whole(pool, found)
        return Image(
            pool=entry.pool,
            uuid=entry.uuid,
            bytes=found.bytes,
            stored=entry.stored,
            ours=found.mark in (None, entry.name),
            complete=complete,
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
            if source is None and isinstance(error.__cause__, rbd.InvalidArgument):
                raise _no_place(entry) from error
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
        """Empty, or ABORTED: a live client and a killed one look the same."""
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
        """What was removed and still exists."""
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
        """Remove what is in the trash and needed by no clone; how much is left.

        A pool that does not answer, as in a dead zone, is left out; raises after all others.
        """
        left, silent = 0, None
        for name in self._named_pools():
            try:
                left += self._purged(name) if self._readable(name) else 0
            except CsiError as error:
                silent = error
        if silent is not None:
            raise silent
        return left

    def _purged(self, name: str) -> int:
        left, pool = 0, self._pool(name)
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
        return [name for name in self._named_pools() if self._readable(name)]

    def _named_pools(self) -> list[str]:
        return sorted(name for name, one in self.pools().items() if "rbd" in one.application)

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

        librados holds back writes to a full pool and drops them at their time limit, so what does
        not exist now never will.
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
    """No pool has an entry's pool name: only its number says that it was not renamed."""
    if NUMBER not in entry.attributes:
        raise CsiError(
            Code.FAILED_PRECONDITION,
            f"there is no pool {entry.pool}, and whether it was renamed is unknown; bring it back"
            " under that name",
        )


def _no_place(entry: JournalEntry) -> CsiError:
    """librbd made nothing, and never will: what it was asked for depends on the class alone."""
    place = f"pool {entry.pool}" + f" with its data in {entry.data_pool}" * bool(entry.data_pool)
    return invalid(
        f"{place} cannot hold an image: an erasure-coded pool is for dataPool only, and needs"
        " allow_ec_overwrites"
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
        needed = NEEDED_FEATURES.get(name, name)
        if needed not in names:
            raise invalid(f"imageFeatures: {name} needs {needed}; add it")
    return sum(FEATURE_BITS[name] for name in set(names)) | 1 if names else USUAL_FEATURES


def _mark(image: rbd.Image) -> str | None:
    try:
        return image.metadata_get(MARK)
    except KeyError:
        return None


def _description(entry: JournalEntry) -> dict[str, str]:
    """The claim's names for administrators, and the mark last."""
    return {**claim_names(entry), MARK: entry.name}


def _drop_snapshots(image: rbd.Image) -> None:
    """Those that an interrupted copy left; Ceph keeps the ones that clones need out of sight."""
    for one in list(image.list_snaps()):
        if one["namespace"] == rbd.RBD_SNAP_NAMESPACE_TYPE_USER:
            with suppress(rbd.ImageNotFound):
                image.remove_snap(one["name"])


def _require_closed(image: rbd.Image, name: str, ceph: Ceph) -> None:
    """Raises if another client has it open; we may, while we look."""
    ours = ceph.handle().get_instance_id()
    others = sorted({str(one["addr"]) for one in image.watchers_list() if one["id"] != ours})
    if others:
        raise aborted(
            f"image {name} is open at {', '.join(others)}, or was until its client died; try again"
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
