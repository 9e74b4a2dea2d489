"""Ids of volumes and snapshots: what a cluster stores of them, at most 128 bytes.

::

    vol-<32 hex digits>                                    one journal: the embedded backend
    vol-<32 hex digits>-<journal pool, hex>-<cluster id>   which journal has it: Ceph
    snap-…                                                 the same for snapshots

An id says where its journal entry is and nothing else: the pool is in the entry. Anything that is
not an id of ours is *unknown*, never an error: deleting it succeeds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

ID_LIMIT = 128


class Stored(Enum):
    """What an id or a journal entry is about."""

    VOLUME = "volume"
    SNAPSHOT = "snapshot"


_BEGINNING = {Stored.VOLUME: "vol", Stored.SNAPSHOT: "snap"}
_UUID = re.compile(r"[0-9a-f]{32}")
_ID = re.compile(r"(vol|snap)-([0-9a-f]{32})(?:-(0|[1-9a-f][0-9a-f]{0,15})-([!-~]+))?")


@dataclass(frozen=True, slots=True)
class StorageId:
    """An id, taken apart; ``str()`` is the id."""

    stored: Stored
    uuid: str
    """32 lower-case hex digits, the key of the journal entry and part of the image's name."""
    journal_pool: int = 0
    cluster: str = ""

    def __post_init__(self) -> None:
        text = str(self)
        if len(text) > ID_LIMIT or not _ID.fullmatch(text):
            raise ValueError(f"{text!r} is not an id")

    def __str__(self) -> str:
        text = f"{_BEGINNING[self.stored]}-{self.uuid}"
        return f"{text}-{self.journal_pool:x}-{self.cluster}" if self.cluster else text


def parse_id(text: str, stored: Stored) -> StorageId | None:
    """The id that a text is; None if it is none of ours."""
    match = _ID.fullmatch(text) if len(text) <= ID_LIMIT else None
    if match is None or match[1] != _BEGINNING[stored]:
        return None
    return StorageId(stored, match[2], int(match[3] or "0", 16), match[4] or "")


def is_uuid(text: str) -> bool:
    """Whether it can be the key of an entry."""
    return _UUID.fullmatch(text) is not None
