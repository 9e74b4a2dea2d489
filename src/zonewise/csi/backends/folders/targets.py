"""Paths of pods: made for a volume, recognised afterwards, and removed.

A path is removed only if the driver itself showed the volume there. That is seen by the mount;
where there is none any more (a reboot, a killed unpublish), by an attribute of the empty folder or
file that the driver made, or by where a link leads. Anything else at a path that a caller names is
left alone.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from zonewise.csi.errors import invalid, precondition

VOLUME_ATTRIBUTE = "trusted.zonewise.target"
"""The uuid of the volume; only root can write it, and file systems without attributes have none."""


def make_folder(path: Path, uuid: str = "") -> None:
    """A folder to mount at; a link could lead anywhere and no longer exist when it is unmounted."""
    try:
        _refuse_link(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir()
        except FileExistsError:
            if not path.is_dir():
                raise
        else:
            _record_volume(path, uuid)
    except (FileExistsError, NotADirectoryError):
        raise precondition(f"{path} cannot be a folder: a file is in its place") from None
    except OSError as error:
        raise invalid(f"the folder {str(path)[:200]} cannot be made: {error.strerror}") from None


def make_file(path: Path, uuid: str) -> None:
    """An empty file to bind a device at."""
    _refuse_link(path)
    if path.is_dir():
        path.rmdir()
    make_folder(path.parent)
    with suppress(FileExistsError):
        path.touch(mode=0o600, exist_ok=False)
        _record_volume(path, uuid)


def make_link(folder: Path, path: Path) -> None:
    """A link to a folder; one that leads there already is fine."""
    if path.is_symlink():
        if path.resolve() == folder.resolve():
            return
        raise precondition(f"{path} is a link to something else")
    if path.is_dir():
        path.rmdir()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(folder.resolve(), target_is_directory=True)


def remove_link(path: Path, image: Path) -> None:
    """Remove a link to a volume's image or folder, also to where our data once was."""
    if path.readlink().name not in (image.name, image.stem):
        raise precondition(f"{path} is a link that is not ours; it was left alone")
    path.unlink()


def remove(path: Path, uuid: str, *, was_mounted: bool) -> None:
    """Remove a path if the volume was shown there; an empty one that is not ours is no error."""
    made_by_driver = was_mounted or _has_recorded_volume(path, uuid)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        if not stat.S_ISREG(status.st_mode) or status.st_size:
            raise precondition(f"{path} is a file that is not ours; it was left alone")
        if made_by_driver:
            path.unlink()
    elif any(path.iterdir()):
        raise precondition(f"{path} is not mounted and has files in it; they were left alone")
    elif made_by_driver:
        path.rmdir()


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise precondition(f"{path} is a link; a volume cannot be mounted there")


def _record_volume(path: Path, uuid: str) -> None:
    if uuid:
        with suppress(OSError):
            os.setxattr(path, VOLUME_ATTRIBUTE, uuid.encode(), follow_symlinks=False)


def _has_recorded_volume(path: Path, uuid: str) -> bool:
    try:
        return os.getxattr(path, VOLUME_ATTRIBUTE, follow_symlinks=False) == uuid.encode() != b""
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP, errno.EPERM):
            return False
        raise
