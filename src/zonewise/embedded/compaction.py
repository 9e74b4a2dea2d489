"""What a log must repeat before its oldest rows can go.

A log that only grows at its end and loses rows at its beginning is cheap: nothing is ever sought or
overwritten. But the oldest rows hold the only copies of objects that nobody has changed since.
So when rows go, those of their records that still say how things were at the new floor are repeated
at the end, as ``KEPT``. A tree of objects beside the log would do the same with ten times the bytes
written, because every small object costs a page.

The state at the floor is then: of each object, the newest record that was kept. Copies pile up (an
object kept, changed, and kept again), and the newest one wins. An object that was deleted needs a
record too, ``GONE``, as long as an older copy of it is still somewhere in the log; since rows go
in order, that copy goes first, and then the record of the deletion is not repeated any more.

``Base`` knows of each object that has copies its newest one, where that is, and how many there are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NamedTuple

ADDED, MODIFIED, DELETED, KEPT, GONE = range(5)


class Record(NamedTuple):
    """One write, or a copy of one. ``type`` is one of the five above."""

    rv: int
    kind: str
    key: str
    type: int
    raw: bytes


class Copies(NamedTuple):
    """The newest copy of an object: its version, its row; and how many copies there are."""

    rv: int
    row: int
    number: int


class Plan(NamedTuple):
    """What to repeat, and what is then known of the objects concerned."""

    repeat: list[Record]
    copies: dict[tuple[str, str], Copies | None]


class Base:
    """The copies in a log."""

    def __init__(self) -> None:
        self._copies: dict[tuple[str, str], Copies] = {}

    def __len__(self) -> int:
        return len(self._copies)

    def found(self, row: int, record: Record) -> bool:
        """Take note of a copy while a log is read; False if a newer one was found before."""
        place = _place(record)
        known = self._copies.get(place)
        if known is None:
            self._copies[place] = Copies(record.rv, row, 1)
            return True
        newer = record.rv > known.rv
        newest = (record.rv, row) if newer else known[:2]
        self._copies[place] = Copies(*newest, known.number + 1)
        return newer

    def plan(self, last: int, records: Iterable[Record], row: int) -> Plan:
        """What to repeat in row ``row`` when the rows up to ``last``, with these records, go."""
        newest: dict[tuple[str, str], Record] = {}
        going: dict[tuple[str, str], int] = {}
        for record in records:
            place = _place(record)
            if record.type >= KEPT:
                going[place] = going.get(place, 0) + 1
            known = newest.get(place)
            if known is None or record.rv > known.rv:
                newest[place] = record
        plan = Plan([], {})
        for place, record in newest.items():
            copies = self._copies.get(place)
            left = copies.number - going.get(place, 0) if copies else 0
            if copies and copies.row > last and copies.rv >= record.rv:
                plan.copies[place] = copies._replace(number=left)
            elif record.type not in (DELETED, GONE):
                plan.repeat.append(record._replace(type=KEPT))
                plan.copies[place] = Copies(record.rv, row, left + 1)
            elif left:
                plan.repeat.append(record._replace(type=GONE, raw=b""))
                plan.copies[place] = Copies(record.rv, row, left + 1)
            else:
                plan.copies[place] = None
        return plan

    def carry_out(self, plan: Plan) -> None:
        """Know what is known once a plan was stored."""
        for place, copies in plan.copies.items():
            if copies is None:
                self._copies.pop(place, None)
            else:
                self._copies[place] = copies


def _place(record: Record) -> tuple[str, str]:
    return sys.intern(record.kind), record.key
