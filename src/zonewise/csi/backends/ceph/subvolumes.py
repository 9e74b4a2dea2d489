"""Volumes and snapshots on CephFS, through the manager: the controller half.

::

    /volumes/zonewise/zw-vol-<uuid>/…    a volume: a subvolume, its layout is its pool,
                                         its quota its size
    snapshot zw-snap-<uuid> of it        a snapshot; it outlives its volume
    snapshot zw-copy-<uuid> of it        what a volume is being copied from

The manager makes, removes and copies: a client of our own that was killed would block others for a
minute. A subvolume is made atomically. Making one again with another layout would silently re-point
the old one: the journal pins the layout, what an earlier attempt may have made is looked for first,
and it counts as ours only if its layout is what the journal says.

A copy is a full one and needs nothing of its source once it is ready, wherever that is. The manager
copies in the background: a call waits some seconds and answers ABORTED, and the next one continues
with the same copy. What has been copied is marked last; without the mark it is work to be finished.

Removing is the manager's ``rm``: it moves the files aside and deletes them in the background. A
volume that has snapshots loses its files only; the rest is removed with the last snapshot.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from zonewise.csi.backends.ceph.connection import Ceph, CommandFailed
from zonewise.csi.backends.ceph.crush import CephPool
from zonewise.csi.backends.ceph.images import MARK, PREFIX, image_name
from zonewise.csi.backends.ceph.journals.pools import JournalPools, claim_names, pool_gone
from zonewise.csi.backends.ceph.pool_states import PoolStates
from zonewise.csi.backends.contract import FOLDER
from zonewise.csi.backends.folders import mounts
from zonewise.csi.status import Code, CsiError, aborted, exhausted, invalid
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.identifiers import Stored, parse_id
from zonewise.storage.journal import Image, JournalEntry
from zonewise.storage.parameters import ClassParameters
from zonewise.storage.pools import PoolState

GROUP = "zonewise"
FILE_SYSTEM = "fsName"
"""The attribute of an entry that says which file system it is in."""
COPY = "zw-copy-"
MODE = "777"
"""As other drivers make them: any user the pod runs as may write."""
COPY_SECONDS = 7.0
"""Callers wait ten."""
_COPYING = "copying"
_RETAINED = "snapshot-retained"
_FAILED = frozenset({"failed", "canceled"})
_UNIT = 4096


class Subvolumes:
    """The subvolumes of a cluster's file systems; ``folder`` is where this machine mounts them."""

    further: frozenset[str] = frozenset()
    evident = False

    def __init__(self, ceph: Ceph, journals: JournalPools, folder: Path) -> None:
        self._ceph = ceph
        self._journals = journals
        self._states = PoolStates(ceph, journals)
        self._folder = folder
        self._file_systems: Mapping[str, frozenset[str]] = {}
        self._grouped: set[str] = set()

    def prepare(self, configuration: StorageConfiguration) -> None:
        """Nothing is made: pools and file systems are the administrator's."""

    def pools(self) -> Mapping[str, CephPool]:
        """What Ceph says about its pools."""
        return self._states.pools()

    def states(self, configuration: StorageConfiguration) -> Mapping[str, PoolState]:
        """Space and health of the pools."""
        return self._states.states(configuration)

    def attributes(self, parameters: ClassParameters, request: Mapping[str, str]) -> dict[str, str]:
        """What an entry keeps for us: its journal, the cluster, the file system."""
        if parameters.data_pool or any(one.data_pool for one in parameters.pools):
            raise invalid("dataPool is not for ceph-fs: a pool is a data pool of the file system")
        file_system = self._file_system(parameters)
        found = self._journals.attributes(parameters, request)
        if file_system not in self._grouped:
            self._ceph.manage("fs subvolumegroup create", vol_name=file_system, group_name=GROUP)
            self._grouped.add(file_system)
        return {**found, FILE_SYSTEM: file_system}

    def access(self, file_system: str, *, block: bool, shared: bool) -> str:
        """A folder, for as many nodes as like."""
        if block:
            raise invalid("CephFS has no devices; use ceph-rbd for block volumes")
        if file_system:
            raise invalid(f"CephFS is a file system already; leave fs_type {file_system!r} out")
        return FOLDER

    def size(self, bytes: int, access: str) -> int:
        """Whole pages."""
        return max(-(-bytes // _UNIT) * _UNIT, _UNIT)

    def image(self, entry: JournalEntry) -> Image | None:
        """The subvolume of an entry; None for a copy that is not finished.

        Ceph keeps the names of files whose pool was deleted: their content is lost.
        """
        if pool_gone(self._ceph, entry):
            return None
        if entry.stored is Stored.SNAPSHOT:
            found = self._snapshot(entry)
            if found is None:
                return None
            return self._image(entry, str(found.get("data_pool", entry.pool)), entry.bytes)
        found = self._info(entry.attributes[FILE_SYSTEM], image_name(entry))
        if found is None or found["state"] in (_COPYING, _RETAINED):
            return None
        if entry.source and not self._marked(entry):
            return None
        quota = found["bytes_quota"]
        return self._image(entry, found["data_pool"], quota if isinstance(quota, int) else 0)

    def path(self, entry: JournalEntry) -> str:
        """Where a volume is in its file system."""
        self._require_pool(entry)
        found = self._info(entry.attributes[FILE_SYSTEM], image_name(entry))
        if found is None or "path" not in found:
            raise CsiError(Code.INTERNAL, f"subvolume {image_name(entry)} is not there any more")
        return str(found["path"])

    def make(self, entry: JournalEntry, source: JournalEntry | None) -> bool:
        """Make a subvolume or a snapshot; go on with a copy that was begun."""
        if source is None:
            # A uuid that was drawn just now cannot exist; looking first costs a sixth of a create.
            fresh = entry.revision == 1
            if not fresh and self._info(entry.attributes[FILE_SYSTEM], image_name(entry)):
                return False
            self._tell("create", entry, size=entry.bytes, pool_layout=entry.pool, mode=MODE)
            for key, value in claim_names(entry).items():
                self._tell("metadata set", entry, key_name=key, value=value)
        elif entry.stored is Stored.SNAPSHOT:
            self._tell("snapshot create", source, snap_name=image_name(entry))
        else:
            return self._copy(entry, source)
        return True

    def remove(self, entry: JournalEntry) -> None:
        """Away with it, finished or not."""
        if entry.stored is Stored.SNAPSHOT:
            self._drop_snapshot(entry, _origin(entry), image_name(entry))
            return
        found = self._info(entry.attributes[FILE_SYSTEM], image_name(entry))
        if found is not None and found["state"] == _COPYING:
            with suppress(CommandFailed):  # it may be over, or have failed
                self._clone("cancel", entry)
            self._remove(entry, force=True)
        elif found is not None and found["state"] != _RETAINED:
            for one in self._snapshots(entry.attributes[FILE_SYSTEM], image_name(entry)):
                if one.startswith(COPY):
                    with suppress(CommandFailed):  # a copy still needs it, and will remove it
                        self._drop_snapshot(entry, image_name(entry), one)
            self._remove(entry, retain_snapshots=True)
        if parse_id(entry.source, Stored.VOLUME) is not None:
            self._drop_snapshot(entry, _origin(entry), COPY + entry.uuid)

    def grow(self, entry: JournalEntry) -> bool:
        """Raise the quota; clients see it by themselves."""
        self._require_pool(entry)
        found = self._info(entry.attributes[FILE_SYSTEM], image_name(entry))
        if found is None or "bytes_quota" not in found:
            raise CsiError(Code.INTERNAL, f"subvolume {image_name(entry)} is not there any more")
        quota = found["bytes_quota"]
        if isinstance(quota, int) and quota < entry.bytes:
            self._resize(entry)
        return False

    def in_use(self, entry: JournalEntry) -> str:
        """Where it is mounted on this machine; CephFS does not list other clients."""
        place = self._folder / entry.uuid
        return str(place) if mounts.at(place) is not None else ""

    def images(self) -> Sequence[Image]:
        """Every subvolume and snapshot of ours, in all file systems."""
        return sorted(self._images(), key=lambda image: (image.pool, image.uuid))

    def file_systems(self) -> Mapping[str, frozenset[str]]:
        """File systems and their data pools, as Ceph says now."""
        self._file_systems = {
            one["name"]: frozenset(one["data_pools"]) for one in self._ceph.ask("fs ls")
        }
        return self._file_systems

    def close(self) -> None:
        """Nothing is held."""

    def _file_system(self, parameters: ClassParameters) -> str:
        """The file system of a class, of which all its pools are data pools."""
        wanted = {one.name for one in parameters.pools}
        for known in (self._file_systems, None):
            listed = self.file_systems() if known is None else known
            name = parameters.fs_name or (next(iter(listed)) if len(listed) == 1 else "")
            if name in listed and wanted <= listed[name]:
                return name
        if not name:
            raise invalid(
                f"the parameter fsName is missing: the cluster has {', '.join(sorted(listed))}"
                if listed
                else "the cluster has no file system"
            )
        if name not in listed:
            raise invalid(f"fsName: the cluster has no file system {name!r}")
        unknown = ", ".join(sorted(wanted - listed[name]))
        raise invalid(f"{unknown} is not a data pool of the file system {name}")

    def _require_pool(self, entry: JournalEntry) -> None:
        if pool_gone(self._ceph, entry):
            raise CsiError(Code.INTERNAL, f"pool {entry.pool} of the volume is not there any more")

    def _copy(self, entry: JournalEntry, source: JournalEntry) -> bool:
        if entry.attributes[FILE_SYSTEM] != source.attributes[FILE_SYSTEM]:
            raise exhausted("a copy cannot leave the file system of its source")
        of_volume = source.stored is Stored.VOLUME
        snapshot = COPY + entry.uuid if of_volume else image_name(source)
        state = self._copy_state(entry)
        if state in _FAILED:
            self._remove(entry, force=True)
            state = ""
        if not state:
            origin = image_name(source) if of_volume else _origin(source)
            if of_volume:
                self._tell("snapshot create", source, snap_name=snapshot)
            try:
                self._tell(
                    "snapshot clone",
                    source,
                    sub_name=origin,
                    snap_name=snapshot,
                    target_sub_name=image_name(entry),
                    target_group_name=GROUP,
                    pool_layout=entry.pool,
                )
            except CommandFailed as error:
                if error.errno == errno.ENOENT:
                    raise CsiError(Code.INTERNAL, f"{origin} is not there any more") from error
                if error.errno == errno.EEXIST:
                    return False
                raise
        self._copied(entry)
        if of_volume:
            self._drop_snapshot(entry, image_name(source), snapshot)
        found = self._info(entry.attributes[FILE_SYSTEM], image_name(entry))
        if found is None or found["data_pool"] != entry.pool:
            return False
        if found["bytes_quota"] != entry.bytes:
            self._resize(entry)
        for key, value in {**claim_names(entry), MARK: entry.name}.items():
            self._tell("metadata set", entry, key_name=key, value=value)
        return True

    def _copied(self, entry: JournalEntry) -> None:
        """Wait for the manager, as long as a caller does."""
        end = time.monotonic() + COPY_SECONDS
        while (state := self._copy_state(entry)) != "complete":
            if state in _FAILED or not state:
                raise aborted(f"copying into {image_name(entry)} failed; try again")
            if time.monotonic() > end:
                raise aborted(f"{image_name(entry)} is still being copied; try again")
            time.sleep(0.1)

    def _copy_state(self, entry: JournalEntry) -> str:
        try:
            return str(self._clone("status", entry)["status"]["state"])
        except CommandFailed as error:
            if error.errno == errno.ENOENT:
                return ""
            raise

    def _images(self) -> Iterator[Image]:
        volumes, snapshots = PREFIX[Stored.VOLUME], PREFIX[Stored.SNAPSHOT]
        for file_system in self.file_systems():
            for name in self._listed("fs subvolume ls", vol_name=file_system, group_name=GROUP):
                if not name.startswith(volumes):
                    continue
                found = self._info(file_system, name)
                if found is None or found["state"] == _COPYING:
                    continue
                if found["state"] != _RETAINED:
                    quota = found["bytes_quota"]
                    yield Image(
                        pool=found["data_pool"],
                        uuid=name.removeprefix(volumes),
                        bytes=quota if isinstance(quota, int) else 0,
                        stored=Stored.VOLUME,
                    )
                for one in self._snapshots(file_system, name):
                    if one.startswith(snapshots):
                        pool = found.get("data_pool") or self._ceph.manage(
                            "fs subvolume snapshot info",
                            vol_name=file_system,
                            group_name=GROUP,
                            sub_name=name,
                            snap_name=one,
                        ).get("data_pool", "")
                        yield Image(
                            pool=pool,
                            uuid=one.removeprefix(snapshots),
                            bytes=0,
                            stored=Stored.SNAPSHOT,
                        )

    def _image(self, entry: JournalEntry, pool: str, bytes: int) -> Image:
        return Image(
            pool=pool,
            uuid=entry.uuid,
            bytes=bytes,
            stored=entry.stored,
            ours=pool == entry.pool,
            complete=bytes > 0,
        )

    def _info(self, file_system: str, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._ceph.manage(
                "fs subvolume info", vol_name=file_system, sub_name=name, group_name=GROUP
            )
        except CommandFailed as error:
            if error.errno == errno.ENOENT:
                return None
            if error.errno == errno.EAGAIN:
                return {"state": _COPYING}
            raise
        return found

    def _snapshot(self, entry: JournalEntry) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._tell(
                "snapshot info", entry, sub_name=_origin(entry), snap_name=image_name(entry)
            )
        except CommandFailed as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return found

    def _snapshots(self, file_system: str, name: str) -> list[str]:
        return self._listed(
            "fs subvolume snapshot ls", vol_name=file_system, group_name=GROUP, sub_name=name
        )

    def _listed(self, prefix: str, **arguments: str) -> list[str]:
        try:
            return [one["name"] for one in self._ceph.manage(prefix, **arguments)]
        except CommandFailed as error:
            if error.errno == errno.ENOENT:
                return []
            raise

    def _marked(self, entry: JournalEntry) -> bool:
        try:
            found = self._tell("metadata ls", entry)
        except CommandFailed as error:
            if error.errno in (errno.ENOENT, errno.EAGAIN):
                return False
            raise
        return bool(found) and found.get(MARK) == entry.name

    def _resize(self, entry: JournalEntry) -> None:
        self._tell("resize", entry, new_size=str(entry.bytes), no_shrink=True)

    def _remove(self, entry: JournalEntry, **how: bool) -> None:
        try:
            self._tell("rm", entry, **how)
        except CommandFailed as error:
            if error.errno != errno.ENOENT:
                raise

    def _drop_snapshot(self, entry: JournalEntry, origin: str, name: str) -> None:
        try:
            self._tell("snapshot rm", entry, sub_name=origin, snap_name=name)
        except CommandFailed as error:
            if error.errno != errno.ENOENT:
                raise

    def _clone(self, what: str, entry: JournalEntry) -> Any:
        return self._ceph.manage(
            f"fs clone {what}",
            vol_name=entry.attributes[FILE_SYSTEM],
            group_name=GROUP,
            clone_name=image_name(entry),
        )

    def _tell(self, what: str, entry: JournalEntry, **arguments: Any) -> Any:
        """A command about an entry's subvolume, or another one in its file system."""
        given = {
            "vol_name": entry.attributes[FILE_SYSTEM],
            "group_name": GROUP,
            "sub_name": image_name(entry),
        }
        return self._ceph.manage(f"fs subvolume {what}", **(given | arguments))


def _origin(entry: JournalEntry) -> str:
    """The subvolume that an entry was made from."""
    parsed = parse_id(entry.source, Stored.VOLUME)
    if parsed is None:
        raise CsiError(Code.INTERNAL, f"{entry.name} has no volume as its source")
    return PREFIX[Stored.VOLUME] + parsed.uuid
