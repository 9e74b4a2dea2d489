"""The owner of an image or folder: the name of its volume or snapshot, as a file attribute.

The folder of a shared volume is open to its tenants, who may set ``user.`` attributes of it as they
like. So the mark is in ``trusted.``, which only root reads and writes; without that right, or where
the file system has no such attributes, it is in ``user.``, as in earlier versions. A mark in
``user.`` counts only where there is none in ``trusted.``, and ``upgrade_mark`` moves it there.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from zonewise.csi.backends.folders.file_data import UNSUPPORTED

TRUSTED_MARK = "trusted.zonewise.name"
USER_MARK = "user.zonewise.name"


def write_mark(file: int | Path, mark: str) -> None:
    """Record the owner, where the file system can."""
    if _try_write(file, TRUSTED_MARK, mark, (errno.EPERM, *UNSUPPORTED)):
        return
    _try_write(file, USER_MARK, mark, UNSUPPORTED)


def read_mark(file: Path) -> str | None:
    """The owner; None where that is not recorded."""
    trusted = _read(file, TRUSTED_MARK)
    return _read(file, USER_MARK) if trusted is None else trusted


def upgrade_mark(file: Path) -> None:
    """Move the mark of an earlier version to where no tenant can change it, if this is allowed."""
    with suppress(OSError):
        if _read(file, TRUSTED_MARK) is not None:
            return
        mark = _read(file, USER_MARK)
        if mark is not None and _try_write(file, TRUSTED_MARK, mark, (errno.EPERM, *UNSUPPORTED)):
            os.removexattr(file, USER_MARK)


def _try_write(file: int | Path, attribute: str, mark: str, unsupported: tuple[int, ...]) -> bool:
    """Whether it could be written; errors other than missing support are raised."""
    try:
        os.setxattr(file, attribute, mark.encode())
    except OSError as error:
        if error.errno not in unsupported:
            raise
        return False
    return True


def _read(file: Path, attribute: str) -> str | None:
    try:
        return os.getxattr(file, attribute).decode(errors="replace")
    except OSError as error:
        if error.errno in (errno.ENODATA, *UNSUPPORTED):
            return None
        raise
