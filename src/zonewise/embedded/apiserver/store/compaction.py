"""What a log must repeat before its oldest rows can be removed.

A log that only grows at its end and loses rows at its beginning is cheap: nothing is ever searched
or overwritten. But the oldest rows have the only copies of objects that have not changed since. So
when rows are removed, those of their records that are still current at the floor are repeated at
the end, as ``COPY``. (A table of objects beside the log would take ten times the bytes: every small
object costs a page.)

The state at the floor is then: of each object, the newest record that is not above the floor,
commit or copy. For this a deletion has to be repeated, too, as ``TOMBSTONE``: an older copy of the
object may be further on in the log. But it is repeated only once. All older copies are then before
it, no later pass repeats one, and rows are removed in order: they are removed before its own row.

A ``CompactionPass`` is one pass over the log. Its floor and the versions at that floor are fixed
when it begins, so each step may remove little and still repeats nothing that a later row replaces.
It ends at the row that was the newest when it began, so that it never reads what it repeated
itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

ADDED, MODIFIED, DELETED, COPY, TOMBSTONE = range(5)


class Record(NamedTuple):
    """One write, or a copy of one. ``type`` is one of the five above."""

    rv: int
    kind: str
    key: str
    type: int
    raw: bytes


class CompactionPass(NamedTuple):
    """A pass: its floor, each object's version at the floor by kind and key, its last row."""

    floor: int
    versions: Mapping[str, Mapping[str, int]]
    last_row: int

    def records_to_repeat(self, records: Iterable[Record]) -> list[Record]:
        """The records to repeat of rows that are removed; ``records`` is all that is in them."""
        newest: dict[tuple[str, str], Record] = {}
        for record in records:
            identity = (record.kind, record.key)
            previous = newest.get(identity)
            if previous is None or record.rv > previous.rv:
                newest[identity] = record
        repeated = []
        for (kind, key), record in newest.items():
            version = self.versions[kind].get(key, 0) if kind in self.versions else 0
            if record.type == DELETED:
                if not version:
                    repeated.append(record._replace(type=TOMBSTONE, raw=b""))
            elif record.type != TOMBSTONE and record.rv == version:
                repeated.append(record._replace(type=COPY))
        return repeated


class FloorReader:
    """Reads a log's records in order and computes the objects at its floor."""

    def __init__(self, rv: int) -> None:
        self.rv = rv
        self.events: list[Record] = []
        """The records above the floor."""
        self._newest: dict[tuple[str, str], Record] = {}

    def read(self, record: Record) -> None:
        """Read the next record."""
        if record.rv > self.rv:
            self.events.append(record)
            return
        identity = (record.kind, record.key)
        previous = self._newest.get(identity)
        if previous is None or record.rv >= previous.rv:
            self._newest[identity] = record

    def objects(self) -> list[Record]:
        """The objects that existed at the floor."""
        return [
            record for record in self._newest.values() if record.type not in (DELETED, TOMBSTONE)
        ]
