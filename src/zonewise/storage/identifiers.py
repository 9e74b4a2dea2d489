"""Ids of volumes and snapshots: what a cluster stores of them, at most 128 bytes.

::

    vol-<32 hex digits>                                    for backends with one journal
    vol-<32 hex digits>-<journal pool, hex>-<cluster id>   for Ceph: names the journal as well
    snap-…                                                 the same for snapshots

An id says where its journal entry is and nothing else: the pool is in the entry. Anything that is
not an id of ours is *unknown*, never an error: deleting it succeeds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

ID_LIMIT = 128


class StoredKind(Enum):
    """What an id or a journal entry stands for."""

    VOLUME = "volume"
    SNAPSHOT = "snapshot"


_ID_PREFIXES = {StoredKind.VOLUME: "vol", StoredKind.SNAPSHOT: "snap"}
_UUID = re.compile(r"[0-9a-f]{32}")
_ID = re.compile(r"(vol|snap)-([0-9a-f]{32})(?:-(0|[1-9a-f][0-9a-f]{0,15})-([!-~]+))?")


@dataclass(frozen=True, slots=True)
class StorageId:
    """The parts of an id; ``str()`` is the id."""

    kind: StoredKind
    uuid: str
    """32 lower-case hex digits, the key of the journal entry and part of the image's name."""
    journal_pool: int = 0
    cluster: str = ""

    def __post_init__(self) -> None:
        text = str(self)
        if len(text) > ID_LIMIT or not _ID.fullmatch(text):
            raise ValueError(f"{text!r} is not an id")

    def __str__(self) -> str:
        text = f"{_ID_PREFIXES[self.kind]}-{self.uuid}"
        return f"{text}-{self.journal_pool:x}-{self.cluster}" if self.cluster else text


def parse_id(text: str, kind: StoredKind) -> StorageId | None:
    """Parse an id of that kind; None if it was not given by this driver."""
    match = _ID.fullmatch(text) if len(text) <= ID_LIMIT else None
    if match is None or match[1] != _ID_PREFIXES[kind]:
        return None
    return StorageId(kind, match[2], int(match[3] or "0", 16), match[4] or "")


def is_uuid(text: str) -> bool:
    """Whether a text can be the key of a journal entry."""
    return _UUID.fullmatch(text) is not None
