"""What a log must repeat before its oldest rows can be removed.

A log that only grows at its end and loses rows at its beginning is cheap: nothing is ever sought or
overwritten. But the oldest rows hold the only copies of objects that have not changed since. So
when rows are removed, those of their records that are still current at the floor are repeated at
the end, as ``KEPT``. (A table of objects beside the log would take ten times the bytes: every small
object costs a page.)

The state at the floor is then: of each object, the newest record that is not above the floor,
commit or copy. For this a deletion has to be repeated, too, as ``GONE``: an older copy of the
object may be further on in the log. But it is repeated only once. All older copies are then before
it, no later pass repeats one, and rows are removed in order: when its own row is removed, they are
already.

A ``Sweep`` is one pass over the log. Its floor and the versions at that floor are taken when it
begins and hold for all its steps, so each step may remove little and yet keeps nothing that a later
row already replaces. It ends at the row that was the newest when it began, so that it never reads
what it repeated itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

ADDED, MODIFIED, DELETED, KEPT, GONE = range(5)


class Record(NamedTuple):
    """One write, or a copy of one. ``type`` is one of the five above."""

    rv: int
    kind: str
    key: str
    type: int
    raw: bytes


class Sweep(NamedTuple):
    """A pass: its floor, each object's version there, by kind and key, and its last row."""

    floor: int
    versions: Mapping[str, Mapping[str, int]]
    until: int

    def repeated(self, records: Iterable[Record]) -> list[Record]:
        """What has to be repeated of rows that go; ``records`` is all that is in them."""
        newest: dict[tuple[str, str], Record] = {}
        for record in records:
            place = (record.kind, record.key)
            known = newest.get(place)
            if known is None or record.rv > known.rv:
                newest[place] = record
        found = []
        for (kind, key), record in newest.items():
            version = self.versions[kind].get(key, 0) if kind in self.versions else 0
            if record.type == DELETED:
                if not version:
                    found.append(record._replace(type=GONE, raw=b""))
            elif record.type != GONE and record.rv == version:
                found.append(record._replace(type=KEPT))
        return found


class Floor:
    """Reads a log's records in order and finds the objects at its floor."""

    def __init__(self, rv: int) -> None:
        self.rv = rv
        self.events: list[Record] = []
        """What happened above the floor."""
        self._newest: dict[tuple[str, str], Record] = {}

    def read(self, record: Record) -> None:
        """Take the next record."""
        if record.rv > self.rv:
            self.events.append(record)
            return
        place = (record.kind, record.key)
        known = self._newest.get(place)
        if known is None or record.rv >= known.rv:
            self._newest[place] = record

    def objects(self) -> list[Record]:
        """What was there at the floor."""
        return [item for item in self._newest.values() if item.type not in (DELETED, GONE)]
