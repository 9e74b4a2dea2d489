"""The data of one file in another one.

Blocks are shared where the file system can (reflink); else only what is written is copied, and
holes stay holes.
"""

from __future__ import annotations

import errno
import fcntl
import os

UNSUPPORTED = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS)
"""What file systems answer that cannot do something at all."""

_FICLONE = 0x40049409
_CHUNK = 16 << 20
_BUFFER = 1 << 20


def copy_data(origin: int, target: int) -> None:
    """Fill an empty file with the data of another one, both given open; raises OSError."""
    try:
        fcntl.ioctl(target, _FICLONE, origin)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        _copy_extents(origin, target)


def _copy_extents(origin: int, target: int) -> None:
    end = os.fstat(origin).st_size
    offset = 0
    while offset < end:
        try:
            offset = os.lseek(origin, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break
            raise
        hole = os.lseek(origin, offset, os.SEEK_HOLE)
        while offset < hole:
            copied = _copy_range(origin, target, offset, hole - offset)
            if copied == 0:
                break
            offset += copied
    os.ftruncate(target, end)


def _copy_range(origin: int, target: int, offset: int, count: int) -> int:
    """Copy some bytes; 0 if there are none any more."""
    try:
        return os.copy_file_range(
            origin, target, min(_CHUNK, count), offset_src=offset, offset_dst=offset
        )
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    return os.pwrite(target, os.pread(origin, min(_BUFFER, count), offset), offset)
