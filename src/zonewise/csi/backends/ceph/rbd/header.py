"""An image's header, read and marked without opening the image.

Opening an image for one key costs more than twice its creation (11.6 ms and 4.7 ms, measured):
librbd reads everything, and sets and removes a watch on the header. The OSD's own functions for
headers (class ``rbd``) do one thing in one round trip; librbd calls the same ones. Only new images
that no client has open are marked this way, so none misses the notification that librbd would send.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import rados

_LENGTH = struct.Struct("<I")
_SIZE = struct.Struct("<BQ")
_NO_SNAPSHOT = struct.pack("<Q", 2**64 - 2)
_OBJECT_MAP = 8
_REPLY_LIMIT = 1 << 16


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """What a header says: the size, and one key of its metadata."""

    id: str
    bytes: int
    mark: str | None


def is_begun(pool: rados.Ioctx, name: str) -> bool:
    """Whether an image was begun: listed in the pool's directory, or with an id.

    librbd lists it first; one that was killed then leaves a name that can be neither opened nor
    made, and is removed as any other.
    """
    if _read_id(pool, name) is not None:
        return True
    try:
        pool.execute("rbd_directory", "rbd", "dir_get_id", _encode(name), _REPLY_LIMIT)
    except rados.ObjectNotFound:
        return False
    return True


def read(pool: rados.Ioctx, name: str, key: str) -> ImageHeader | None:
    """A header; None if there is none, though the image may have been begun."""
    id = _read_id(pool, name)
    if id is None:
        return None
    header = f"rbd_header.{id}"
    try:
        _, reply = pool.execute(header, "rbd", "get_size", _NO_SNAPSHOT, _REPLY_LIMIT)
    except rados.ObjectNotFound:
        return None
    _, size = _SIZE.unpack(reply[: _SIZE.size])
    try:
        _, value = pool.execute(header, "rbd", "metadata_get", _encode(key), _REPLY_LIMIT)
    except rados.ObjectNotFound:
        return ImageHeader(id, size, None)
    return ImageHeader(id, size, value[_LENGTH.size :].decode())


def is_complete(pool: rados.Ioctx, header: ImageHeader) -> bool:
    """Whether librbd finished an empty image: it makes the object map last, if there is one."""
    _, features = pool.execute(
        f"rbd_header.{header.id}", "rbd", "get_features", _NO_SNAPSHOT + b"\1", _REPLY_LIMIT
    )
    if not int.from_bytes(features[:8], "little") & _OBJECT_MAP:
        return True
    try:
        pool.stat(f"rbd_object_map.{header.id}")
    except rados.ObjectNotFound:
        return False
    return True


def write_metadata(pool: rados.Ioctx, name: str, metadata: Mapping[str, str]) -> None:
    """Set metadata of an image that was just made."""
    id = _read_id(pool, name)
    if id is None:
        raise rados.ObjectNotFound(f"image {name} is gone", 2)
    body = _LENGTH.pack(len(metadata))
    for key, value in sorted(metadata.items()):
        body += _encode(key) + _encode(value)
    pool.execute(f"rbd_header.{id}", "rbd", "metadata_set", body, 0)


def _read_id(pool: rados.Ioctx, name: str) -> str | None:
    try:
        encoded = pool.read(f"rbd_id.{name}", 256)
    except rados.ObjectNotFound:
        return None
    return encoded[_LENGTH.size :].decode() or None


def _encode(text: str) -> bytes:
    encoded = text.encode()
    return _LENGTH.pack(len(encoded)) + encoded
