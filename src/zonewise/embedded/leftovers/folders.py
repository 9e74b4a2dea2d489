"""The temporary folders of clusters, and their removal after a kill.

Such a folder has keys and a kubeconfig in it. It also has a file ``MARKER`` that its program locks
as long as it runs, so one without a lock is of a program that was killed, and the next cluster that
starts removes the folder. A folder without that file is never touched: ``--data`` folders have
none, and it is removed from a temporary one that is passed as ``--data``.
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
from zonewise.embedded.leftovers.volumes import release_stale_volumes

MARKER = ".zonewise-temporary"
_PREFIX = "zonewise-"


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is removed at the end, or by the next program after a kill."""
    remove_stale_folders()
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        new_marker = folder / f"{MARKER}.new"
        record = lock_record(new_marker, create=True)
        assert record is not None
        try:
            new_marker.rename(folder / MARKER)  # it is locked from the moment it has its name
            yield folder
        finally:
            os.close(record)


def keep_folder(folder: Path) -> None:
    """Make a temporary folder permanent, unless its program runs."""
    record = lock_record(folder / MARKER, create=False)
    if record is not None:
        (folder / MARKER).unlink()
        os.close(record)


def remove_stale_folders() -> None:
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
                if not _has_mounts_below(folder):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(record)


def _has_mounts_below(folder: Path) -> bool:
    """Whether volumes are still mounted below, whose data must not be removed."""
    with suppress(ConfigError):
        release_stale_volumes()
    resolved = folder.resolve()
    return any(mounted.target.is_relative_to(resolved) for mounted in mounts.read_table())
