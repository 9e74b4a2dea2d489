"""The mounts and loop devices of a cluster's volumes, and their removal after a kill.

A cluster that mounts has a record with its folder in ``RECORDS``, locked as long as it runs. A
record without a lock is of a program that was killed: what is mounted below that folder's
``nodes/`` is unmounted, and devices on its images are detached, by the next cluster that starts,
wherever its own folder is. Nothing else is touched, and no data is removed: a cluster that starts
in the folder again mounts what its pods need. A folder has one record, so a folder that is in use
again never counts as stale. What is busy stays, with its record, for the next start.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from zonewise.api.errors import ConfigError
from zonewise.csi.backends.folders import copies, loops, mounts
from zonewise.embedded.leftovers.record import lock_record
from zonewise.runtime.process.logs import logger

RECORDS = Path("/run/zonewise/volumes")
DETACH_SECONDS = 2.0
"""How long a device may stay in use by a process that copied all mounts for a moment."""

_log = logger("csi")


class VolumeRecord:
    """The record of a running cluster; created by ``claim``."""

    def __init__(self, folder: Path, path: Path, record: int | None) -> None:
        self._folder = folder
        self._path = path
        self._record = record

    @classmethod
    def claim(cls, folder: Path) -> VolumeRecord:
        """Clean up after killed clusters, and record that this one may have mounts."""
        path = RECORDS / hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]
        try:
            release_stale_volumes()
            record = lock_record(path, create=True)
        except ConfigError as error:
            _log.warning("mounts could stay behind if this program is killed", why=str(error))
            record = None
        if record is not None:
            os.ftruncate(record, 0)
            os.write(record, os.fsencode(folder))
        return cls(folder, path, record)

    def close(self) -> None:
        """Release what is still mounted; the next program that starts retries what is busy."""
        if self._record is not None:
            _release(self._folder, self._path)
            os.close(self._record)
            self._record = None


def release_stale_volumes() -> None:
    """Release the mounts and devices of clusters whose program was killed."""
    for path in sorted(RECORDS.iterdir()) if RECORDS.is_dir() else ():
        record = lock_record(path, create=False)
        if record is not None:
            try:
                _release(Path(os.fsdecode(path.read_bytes())), path)
            finally:
                os.close(record)


def _release(folder: Path, record: Path) -> None:
    """Unmount what is below a cluster's nodes, detach its devices, and remove the record.

    A file system that a killed copy left frozen is thawed first, or it could never be unmounted.
    The record stays if a volume is busy.
    """
    images = folder / "csi" / "pools"
    devices = loops.find_below(images)
    busy = []
    for mounted in reversed(mounts.read_table()):
        if mounted.target.is_relative_to(folder / "nodes"):
            if mounts.device_at(mounted.target) in devices:
                copies.thaw(mounted.target)
            try:
                mounts.unmount(mounted.target)
            except OSError as error:
                busy.append(f"{mounted.target}: {error.strerror}")
    for device in _unused_devices(images):
        loops.detach(device)
    loops.wait_until_released(lambda: _unused_devices(images), DETACH_SECONDS)
    if busy:
        _log.warning("a volume is still mounted; it is unmounted at the next start", where=busy)
    else:
        record.unlink(missing_ok=True)


def _unused_devices(images: Path) -> list[Path]:
    return [device for device in loops.find_below(images) if not mounts.of_device(device)]
