"""The temporary folders of clusters, and that none outlives its program for long.

Such a folder has keys and a kubeconfig in it. It also has a file ``MARKER`` that its program keeps
locked as long as it runs, so one without a lock is of a program that was killed, and the next
cluster that starts removes the folder. A folder without that file is never touched: ``--data``
folders have none, and a temporary one that is given as ``--data`` loses it.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zonewise.api.errors import ConfigError
from zonewise.csi.backends.folders import mounts
from zonewise.embedded.leftovers.record import lock_record
from zonewise.embedded.leftovers.volumes import remove_stale

MARKER = ".zonewise-temporary"
_PREFIX = "zonewise-"


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is removed at the end, or after a kill by the next program."""
    remove_left_folders()
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        unnamed = folder / f"{MARKER}.new"
        record = lock_record(unnamed, create=True)
        assert record is not None
        try:
            unnamed.rename(folder / MARKER)  # it is locked from the moment it has its name
            yield folder
        finally:
            os.close(record)


def keep_folder(folder: Path) -> None:
    """The folder is no temporary one any more; that of a running program stays what it is."""
    record = lock_record(folder / MARKER, create=False)
    if record is not None:
        (folder / MARKER).unlink()
        os.close(record)


def remove_left_folders() -> None:
    """Remove the temporary folders of our own clusters whose program was killed."""
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")):
        with suppress(OSError, ConfigError):
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            record = lock_record(folder / MARKER, create=False)
            if record is None:
                continue
            try:
                if not _mounted_below(folder):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(record)


def _mounted_below(folder: Path) -> bool:
    """Whether volumes are still mounted there, which must not be emptied."""
    with suppress(ConfigError):
        remove_stale()
    place = folder.resolve()
    return any(mounted.target.is_relative_to(place) for mounted in mounts.table())
