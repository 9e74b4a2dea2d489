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

from zonewise.csi.backends.ceph.connection import CephConnection, CommandFailed
from zonewise.csi.backends.ceph.crush import CEPHFS, CephPool
from zonewise.csi.backends.ceph.journals.cluster_journal import (
    ClusterJournal,
    claim_metadata,
    is_pool_deleted,
)
from zonewise.csi.backends.ceph.pool_states import PoolStates
from zonewise.csi.backends.ceph.rbd.images import MARK, PREFIX, image_name
from zonewise.csi.backends.contract import FOLDER
from zonewise.csi.backends.folders import filesystems, mounts
from zonewise.csi.errors import aborted, exhausted, internal, invalid
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.identifiers import StoredKind, parse_id
from zonewise.storage.journal import Image, JournalEntry
from zonewise.storage.parameters import ClassParameters
from zonewise.storage.pools import PoolState

GROUP = "zonewise"
FILE_SYSTEM = "fsName"
"""The attribute of an entry that says which file system it is in."""
COPY_PREFIX = "zw-copy-"
MODE = "777"
"""As other drivers make them: any user the pod runs as may write."""
COPY_SECONDS = 7.0
"""Callers wait ten."""
_COPYING_STATE = "copying"
_RETAINED_STATE = "snapshot-retained"
_FAILED_STATES = frozenset({"failed", "canceled"})


class Subvolumes:
    """The subvolumes of a cluster's file systems; ``folder`` is where this machine mounts them."""

    backend_keys: frozenset[str] = frozenset()
    evident = False
    application = CEPHFS

    def __init__(self, ceph: CephConnection, journals: ClusterJournal, folder: Path) -> None:
        self._ceph = ceph
        self._journals = journals
        self._states = PoolStates(ceph, journals, self.application)
        self._folder = folder
        self._file_systems: Mapping[str, frozenset[str]] = {}
        self._file_systems_with_group: set[str] = set()

    def prepare(self, configuration: StorageConfiguration) -> None:
        """Nothing is made: pools and file systems are the administrator's."""

    def pools(self) -> Mapping[str, CephPool]:
        """What Ceph says about its pools."""
        return self._states.pools()

    def pool_states(self, configuration: StorageConfiguration) -> Mapping[str, PoolState]:
        """Space and health of the pools."""
        return self._states.pool_states(configuration)

    def prepare_attributes(
        self, parameters: ClassParameters, request: Mapping[str, str]
    ) -> dict[str, str]:
        """What an entry keeps for us: its journal, the cluster, the file system."""
        if parameters.data_pool or any(pool.data_pool for pool in parameters.pools):
            raise invalid("dataPool is not for ceph-fs: a pool is a data pool of the file system")
        file_system = self._choose_file_system(parameters)
        attributes = self._journals.prepare_attributes(parameters, request)
        if file_system not in self._file_systems_with_group:
            self._ceph.mgr_command(
                "fs subvolumegroup create", vol_name=file_system, group_name=GROUP
            )
            self._file_systems_with_group.add(file_system)
        return {**attributes, FILE_SYSTEM: file_system}

    def choose_access(self, file_system: str, *, block: bool, shared: bool) -> str:
        """A folder, for any number of nodes."""
        if block:
            raise invalid("CephFS has no devices; use ceph-rbd for block volumes")
        if file_system:
            raise invalid(f"CephFS is a file system already; leave fs_type {file_system!r} out")
        return FOLDER

    round_size = staticmethod(filesystems.round_size)

    def find_image(self, entry: JournalEntry) -> Image | None:
        """The subvolume of an entry; None for a copy that is not finished.

        Ceph keeps the names of files whose pool was deleted: their content is lost.
        """
        if is_pool_deleted(self._ceph, entry):
            return None
        if entry.kind is StoredKind.SNAPSHOT:
            info = self._read_snapshot_info(entry)
            if info is None:
                return None
            return self._make_image(entry, str(info.get("data_pool", entry.pool)), entry.bytes)
        info = self._read_info(entry.attributes[FILE_SYSTEM], image_name(entry))
        if info is None or info["state"] in (_COPYING_STATE, _RETAINED_STATE):
            return None
        if entry.source and not self._has_mark(entry):
            return None
        quota = info["bytes_quota"]
        return self._make_image(entry, info["data_pool"], quota if isinstance(quota, int) else 0)

    def path(self, entry: JournalEntry) -> str:
        """Where a volume is in its file system."""
        self._require_pool(entry)
        info = self._read_info(entry.attributes[FILE_SYSTEM], image_name(entry))
        if info is None or "path" not in info:
            raise internal(f"subvolume {image_name(entry)} is not there any more")
        return str(info["path"])

    def make(self, entry: JournalEntry, source: JournalEntry | None) -> bool:
        """Make a subvolume or a snapshot; go on with a copy that was begun."""
        if source is None:
            # A uuid that was drawn just now cannot exist; looking first costs a sixth of a create.
            fresh = entry.revision == 1
            if not fresh and self._read_info(entry.attributes[FILE_SYSTEM], image_name(entry)):
                return False
            self._subvolume_command(
                "create", entry, size=entry.bytes, pool_layout=entry.pool, mode=MODE
            )
            for key, value in claim_metadata(entry).items():
                self._subvolume_command("metadata set", entry, key_name=key, value=value)
        elif entry.kind is StoredKind.SNAPSHOT:
            self._subvolume_command("snapshot create", source, snap_name=image_name(entry))
        else:
            return self._copy(entry, source)
        return True

    def remove(self, entry: JournalEntry) -> None:
        """Remove it, finished or not."""
        if entry.kind is StoredKind.SNAPSHOT:
            self._drop_snapshot(entry, _origin_of(entry), image_name(entry))
            return
        info = self._read_info(entry.attributes[FILE_SYSTEM], image_name(entry))
        if info is not None and info["state"] == _COPYING_STATE:
            with suppress(CommandFailed):  # it may be over, or have failed
                self._clone_command("cancel", entry)
            self._remove(entry, force=True)
        elif info is not None and info["state"] != _RETAINED_STATE:
            for snapshot in self._list_snapshots(entry.attributes[FILE_SYSTEM], image_name(entry)):
                if snapshot.startswith(COPY_PREFIX):
                    with suppress(CommandFailed):  # a copy still needs it, and will remove it
                        self._drop_snapshot(entry, image_name(entry), snapshot)
            self._remove(entry, retain_snapshots=True)
        if parse_id(entry.source, StoredKind.VOLUME) is not None:
            self._drop_snapshot(entry, _origin_of(entry), COPY_PREFIX + entry.uuid)

    def grow(self, entry: JournalEntry) -> bool:
        """Raise the quota; clients see it by themselves."""
        self._require_pool(entry)
        info = self._read_info(entry.attributes[FILE_SYSTEM], image_name(entry))
        if info is None or "bytes_quota" not in info:
            raise internal(f"subvolume {image_name(entry)} is not there any more")
        quota = info["bytes_quota"]
        if isinstance(quota, int) and quota < entry.bytes:
            self._resize(entry)
        return False

    def find_user(self, entry: JournalEntry) -> str:
        """Where it is mounted on this machine; CephFS does not list other clients."""
        client_folder = self._folder / entry.uuid
        return str(client_folder) if mounts.at(client_folder) is not None else ""

    def list_images(self) -> Sequence[Image]:
        """Every subvolume and snapshot of ours, in all file systems."""
        return sorted(self._list_images(), key=lambda image: (image.pool, image.uuid))

    def file_systems(self) -> Mapping[str, frozenset[str]]:
        """File systems and their data pools, as Ceph says now."""
        self._file_systems = {
            file_system["name"]: frozenset(file_system["data_pools"])
            for file_system in self._ceph.mon_command("fs ls")
        }
        return self._file_systems

    def close(self) -> None:
        """Nothing is held."""

    def _choose_file_system(self, parameters: ClassParameters) -> str:
        """The file system of a class, of which all its pools are data pools."""
        pool_names = {pool.name for pool in parameters.pools}
        for file_systems in (self._file_systems, None):
            listed = self.file_systems() if file_systems is None else file_systems
            name = parameters.fs_name or (next(iter(listed)) if len(listed) == 1 else "")
            if name in listed and pool_names <= listed[name]:
                return name
        if not name:
            raise invalid(
                f"the parameter fsName is missing: the cluster has {', '.join(sorted(listed))}"
                if listed
                else "the cluster has no file system"
            )
        if name not in listed:
            raise invalid(f"fsName: the cluster has no file system {name!r}")
        unknown = ", ".join(sorted(pool_names - listed[name]))
        raise invalid(f"{unknown} is not a data pool of the file system {name}")

    def _require_pool(self, entry: JournalEntry) -> None:
        if is_pool_deleted(self._ceph, entry):
            raise internal(f"pool {entry.pool} of the volume is not there any more")

    def _copy(self, entry: JournalEntry, source: JournalEntry) -> bool:
        if entry.attributes[FILE_SYSTEM] != source.attributes[FILE_SYSTEM]:
            raise exhausted("a copy cannot leave the file system of its source")
        of_volume = source.kind is StoredKind.VOLUME
        snapshot = COPY_PREFIX + entry.uuid if of_volume else image_name(source)
        state = self._read_copy_state(entry)
        if state in _FAILED_STATES:
            self._remove(entry, force=True)
            state = ""
        if not state:
            origin = image_name(source) if of_volume else _origin_of(source)
            if of_volume:
                self._subvolume_command("snapshot create", source, snap_name=snapshot)
            try:
                self._subvolume_command(
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
                    raise internal(f"{origin} is not there any more") from error
                if error.errno == errno.EEXIST:
                    return False
                raise
        self._wait_for_copy(entry)
        if of_volume:
            self._drop_snapshot(entry, image_name(source), snapshot)
        info = self._read_info(entry.attributes[FILE_SYSTEM], image_name(entry))
        if info is None or info["data_pool"] != entry.pool:
            return False
        if info["bytes_quota"] != entry.bytes:
            self._resize(entry)
        for key, value in {**claim_metadata(entry), MARK: entry.name}.items():
            self._subvolume_command("metadata set", entry, key_name=key, value=value)
        return True

    def _wait_for_copy(self, entry: JournalEntry) -> None:
        """Wait for the manager, as long as a caller does."""
        end = time.monotonic() + COPY_SECONDS
        while (state := self._read_copy_state(entry)) != "complete":
            if state in _FAILED_STATES or not state:
                raise aborted(f"copying into {image_name(entry)} failed; try again")
            if time.monotonic() > end:
                raise aborted(f"{image_name(entry)} is still being copied; try again")
            time.sleep(0.1)

    def _read_copy_state(self, entry: JournalEntry) -> str:
        try:
            return str(self._clone_command("status", entry)["status"]["state"])
        except CommandFailed as error:
            if error.errno == errno.ENOENT:
                return ""
            raise

    def _list_images(self) -> Iterator[Image]:
        volumes, snapshots = PREFIX[StoredKind.VOLUME], PREFIX[StoredKind.SNAPSHOT]
        for file_system in self.file_systems():
            for name in self._list_names("fs subvolume ls", vol_name=file_system, group_name=GROUP):
                if not name.startswith(volumes):
                    continue
                info = self._read_info(file_system, name)
                if info is None or info["state"] == _COPYING_STATE:
                    continue
                if info["state"] != _RETAINED_STATE:
                    quota = info["bytes_quota"]
                    yield Image(
                        pool=info["data_pool"],
                        uuid=name.removeprefix(volumes),
                        bytes=quota if isinstance(quota, int) else 0,
                        kind=StoredKind.VOLUME,
                    )
                for snapshot in self._list_snapshots(file_system, name):
                    if snapshot.startswith(snapshots):
                        pool = info.get("data_pool") or self._ceph.mgr_command(
                            "fs subvolume snapshot info",
                            vol_name=file_system,
                            group_name=GROUP,
                            sub_name=name,
                            snap_name=snapshot,
                        ).get("data_pool", "")
                        yield Image(
                            pool=pool,
                            uuid=snapshot.removeprefix(snapshots),
                            bytes=0,
                            kind=StoredKind.SNAPSHOT,
                        )

    def _make_image(self, entry: JournalEntry, pool: str, bytes: int) -> Image:
        return Image(
            pool=pool,
            uuid=entry.uuid,
            bytes=bytes,
            kind=entry.kind,
            ours=pool == entry.pool,
            complete=bytes > 0,
        )

    def _read_info(self, file_system: str, name: str) -> dict[str, Any] | None:
        try:
            info: dict[str, Any] = self._ceph.mgr_command(
                "fs subvolume info", vol_name=file_system, sub_name=name, group_name=GROUP
            )
        except CommandFailed as error:
            if error.errno == errno.ENOENT:
                return None
            if error.errno == errno.EAGAIN:
                return {"state": _COPYING_STATE}
            raise
        return info

    def _read_snapshot_info(self, entry: JournalEntry) -> dict[str, Any] | None:
        try:
            info: dict[str, Any] = self._subvolume_command(
                "snapshot info", entry, sub_name=_origin_of(entry), snap_name=image_name(entry)
            )
        except CommandFailed as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return info

    def _list_snapshots(self, file_system: str, name: str) -> list[str]:
        return self._list_names(
            "fs subvolume snapshot ls", vol_name=file_system, group_name=GROUP, sub_name=name
        )

    def _list_names(self, prefix: str, **arguments: str) -> list[str]:
        try:
            return [item["name"] for item in self._ceph.mgr_command(prefix, **arguments)]
        except CommandFailed as error:
            if error.errno == errno.ENOENT:
                return []
            raise

    def _has_mark(self, entry: JournalEntry) -> bool:
        try:
            metadata = self._subvolume_command("metadata ls", entry)
        except CommandFailed as error:
            if error.errno in (errno.ENOENT, errno.EAGAIN):
                return False
            raise
        return bool(metadata) and metadata.get(MARK) == entry.name

    def _resize(self, entry: JournalEntry) -> None:
        self._subvolume_command("resize", entry, new_size=str(entry.bytes), no_shrink=True)

    def _remove(self, entry: JournalEntry, **how: bool) -> None:
        try:
            self._subvolume_command("rm", entry, **how)
        except CommandFailed as error:
            if error.errno != errno.ENOENT:
                raise

    def _drop_snapshot(self, entry: JournalEntry, origin: str, name: str) -> None:
        try:
            self._subvolume_command("snapshot rm", entry, sub_name=origin, snap_name=name)
        except CommandFailed as error:
            if error.errno != errno.ENOENT:
                raise

    def _clone_command(self, operation: str, entry: JournalEntry) -> Any:
        return self._ceph.mgr_command(
            f"fs clone {operation}",
            vol_name=entry.attributes[FILE_SYSTEM],
            group_name=GROUP,
            clone_name=image_name(entry),
        )

    def _subvolume_command(self, operation: str, entry: JournalEntry, **arguments: Any) -> Any:
        """A command about an entry's subvolume, or another one in its file system."""
        default_arguments = {
            "vol_name": entry.attributes[FILE_SYSTEM],
            "group_name": GROUP,
            "sub_name": image_name(entry),
        }
        return self._ceph.mgr_command(
            f"fs subvolume {operation}", **(default_arguments | arguments)
        )


def _origin_of(entry: JournalEntry) -> str:
    """The subvolume that an entry was made from."""
    parsed = parse_id(entry.source, StoredKind.VOLUME)
    if parsed is None:
        raise internal(f"{entry.name} has no volume as its source")
    return PREFIX[StoredKind.VOLUME] + parsed.uuid
