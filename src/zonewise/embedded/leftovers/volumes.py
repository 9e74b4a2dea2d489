"""The mounts and loop devices of a cluster's volumes, and that none outlives its program for long.

A cluster that mounts has a record with its folder in ``FOLDER``, locked as long as it runs. A
record without a lock is of a program that was killed: what is mounted below that folder's
``nodes/`` is unmounted, and devices on its images are detached, by the next cluster that starts,
wherever its own folder is. Nothing else is touched, and no data is removed: a cluster that starts
in the folder again mounts what its pods need. A folder has one record, so that one in use again is
never taken for a left one. What is busy stays, with its record, for the next start.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from zonewise.api.errors import ConfigError
from zonewise.csi.backends.folders import copies, loops, mounts
from zonewise.embedded.leftovers.record import lock_record
from zonewise.runtime.process.logs import logger

FOLDER = Path("/run/zonewise/volumes")
SECONDS = 2.0
"""How long a device may still be held, by a process that copied all mounts for a moment."""

_log = logger("csi")


class VolumeRecord:
    """The record of a running cluster; ``claim`` makes one."""

    def __init__(self, folder: Path, path: Path, record: int | None) -> None:
        self._folder = folder
        self._path = path
        self._record = record

    @classmethod
    def claim(cls, folder: Path) -> VolumeRecord:
        """Clean up after killed clusters, and record that this one may have mounts."""
        path = FOLDER / hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]
        try:
            remove_stale()
            record = lock_record(path, create=True)
        except ConfigError as error:
            _log.warning("mounts could stay behind if this program is killed", why=str(error))
            record = None
        if record is not None:
            os.ftruncate(record, 0)
            os.write(record, os.fsencode(folder))
        return cls(folder, path, record)

    def close(self) -> None:
        """Release what is still mounted; what is busy is tried by the next program that starts."""
        if self._record is not None:
            _release(self._folder, self._path)
            os.close(self._record)
            self._record = None


def remove_stale() -> None:
    """Release the mounts and devices of clusters whose program was killed."""
    for path in sorted(FOLDER.iterdir()) if FOLDER.is_dir() else ():
        record = lock_record(path, create=False)
        if record is not None:
            try:
                _release(Path(os.fsdecode(path.read_bytes())), path)
            finally:
                os.close(record)


def _release(folder: Path, record: Path) -> None:
    """Unmount what is below a cluster's nodes, detach its devices, and drop the record if all went.

    A file system that a killed copy left frozen is thawed first, or it could never be unmounted.
    """
    images = folder / "csi" / "pools"
    devices = loops.on_files_below(images)
    busy = []
    for mounted in reversed(mounts.table()):
        if mounted.target.is_relative_to(folder / "nodes"):
            if mounts.device_at(mounted.target) in devices:
                copies.thaw(mounted.target)
            try:
                mounts.unmount(mounted.target)
            except OSError as error:
                busy.append(f"{mounted.target}: {error.strerror}")
    for device in _unused(images):
        loops.detach(device)
    loops.held_after_a_while(lambda: _unused(images), SECONDS)
    if busy:
        _log.warning("a volume is still mounted; it is unmounted at the next start", where=busy)
    else:
        record.unlink(missing_ok=True)


def _unused(images: Path) -> list[Path]:
    return [device for device in loops.on_files_below(images) if not mounts.of_device(device)]
