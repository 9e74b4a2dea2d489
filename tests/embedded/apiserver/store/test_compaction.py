"""Compaction: whatever is removed and whenever, the log has the state since its floor."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from zonewise.embedded.apiserver.store.compaction import (
    ADDED,
    COPY,
    DELETED,
    MODIFIED,
    CompactionPass,
    FloorReader,
    Record,
)

Commit = list[tuple[str, bool]]

_COMMIT = st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), min_size=1, max_size=3)
_STEPS: st.SearchStrategy[list[Commit | float | int]] = st.lists(
    st.one_of(_COMMIT, st.floats(0, 1), st.integers(1, 4)), max_size=50
)
"""A commit; a new sweep that forgets a part of what can be forgotten; a step of so many rows."""


class Rows:
    """A log in a list, with the expected state at each version."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, list[Record]]] = []
        self.sweep: CompactionPass | None = None
        self.number = 0
        self.rv = 1
        self.floor = 1
        self.now: dict[str, int] = {}
        self.then: dict[int, dict[str, int]] = {1: {}}

    def commit(self, writes: list[tuple[str, bool]]) -> None:
        """Add or change objects, or delete them."""
        records = []
        for key, keep in writes:
            if not keep and key not in self.now:
                continue
            self.rv += 1
            kind = (MODIFIED if key in self.now else ADDED) if keep else DELETED
            records.append(Record(self.rv, "/k", key, kind, b"%d" % self.rv))
            if keep:
                self.now[key] = self.rv
            else:
                del self.now[key]
            self.then[self.rv] = dict(self.now)
        if records:
            self.add(records)

    def add(self, records: list[Record]) -> None:
        """Append a row."""
        self.number += 1
        self.rows.append((self.number, records))

    def begin(self, part: float) -> None:
        """Begin a sweep, as after a restart, with a floor between the old one and the present."""
        floor = self.floor + int((self.rv - self.floor) * part)
        self.sweep = CompactionPass(floor, {"/k": self.then[floor]}, self.number)

    def step(self, number: int) -> bool:
        """Remove some of the oldest rows."""
        if self.sweep is None:
            return False
        going = []
        for row, records in self.rows[:number]:
            above = records[-1].type < COPY and records[-1].rv > self.sweep.floor
            if row > self.sweep.last_row or above:
                break
            going.append(records)
        if not going:
            return False
        repeat = self.sweep.records_to_repeat(record for records in going for record in records)
        del self.rows[: len(going)]
        if repeat:
            self.add(repeat)
        self.floor = self.sweep.floor
        return True

    def run(self, steps: list[Commit | float | int]) -> None:
        """Do all steps, and check the log after each."""
        for step in steps:
            if isinstance(step, list):
                self.commit(step)
            elif isinstance(step, float):
                self.begin(step)
            else:
                self.step(step)
            self.check()

    def check(self) -> None:
        """Reading the rows gives the objects at the floor and every event since, no more."""
        floor = FloorReader(self.floor)
        for _, records in self.rows:
            for record in records:
                floor.read(record)
        objects = floor.objects()
        assert {item.key: item.rv for item in objects} == self.then[self.floor]
        assert all(item.raw == b"%d" % item.rv for item in objects)
        assert [item.rv for item in floor.events] == list(range(self.floor + 1, self.rv + 1))


@settings(max_examples=500, deadline=None)
@given(steps=_STEPS)
def test_the_state_at_the_floor_can_always_be_read(steps: list[Commit | float | int]) -> None:
    """After any commits and removals, a restart finds the objects at the floor and all since."""
    Rows().run(steps)


@settings(max_examples=100, deadline=None)
@given(steps=_STEPS)
def test_nothing_is_repeated_for_ever(steps: list[Commit | float | int]) -> None:
    """After two complete sweeps there is one copy of each object and nothing else."""
    log = Rows()
    log.run(steps)
    for _ in range(2):
        log.begin(1.0)
        while log.step(1):
            log.check()
    records = [record for _, some in log.rows for record in some]
    assert sorted(item.key for item in records) == sorted(log.now)
