"""Compaction: whatever is removed and whenever, the log still says what there was."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from zonewise.embedded.compaction import ADDED, DELETED, GONE, KEPT, MODIFIED, Base, Record

_STEPS = st.lists(
    st.one_of(
        st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), min_size=1, max_size=3),
        st.integers(1, 4),
    ),
    max_size=40,
)


class Rows:
    """A log in a list, with what was there at each version to compare with."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, list[Record]]] = []
        self.base = Base()
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

    def compact(self, number: int) -> None:
        """Remove the oldest rows."""
        going = self.rows[:number]
        if not going:
            return
        records = [record for _, some in going for record in some]
        plan = self.base.plan(going[-1][0], records, self.number + 1)
        del self.rows[:number]
        if plan.repeat:
            self.add(plan.repeat)
        self.base.carry_out(plan)
        self.floor = max([self.floor, *(item.rv for item in records if item.type < KEPT)])

    def check(self) -> None:
        """A reader of the rows finds the objects at the floor, every event since, no more."""
        base = Base()
        objects: dict[str, Record] = {}
        events = []
        for number, records in self.rows:
            for record in records:
                if record.type < KEPT:
                    events.append(record)
                elif base.found(number, record):
                    objects[record.key] = record
        found = {key: item.rv for key, item in objects.items() if item.type != GONE}
        assert found == self.then[self.floor]
        assert all(item.raw == b"%d" % item.rv for item in objects.values() if item.type == KEPT)
        assert [item.rv for item in events] == list(range(self.floor + 1, self.rv + 1))
        assert base._copies == self.base._copies


@settings(max_examples=400, deadline=None)
@given(steps=_STEPS)
def test_the_state_at_the_floor_can_always_be_read(
    steps: list[list[tuple[str, bool]] | int],
) -> None:
    """After any commits and removals, a restart finds the objects at the floor and all since."""
    log = Rows()
    for step in steps:
        if isinstance(step, int):
            log.compact(step)
        else:
            log.commit(step)
        log.check()


@settings(max_examples=100, deadline=None)
@given(steps=_STEPS)
def test_nothing_is_repeated_for_ever(steps: list[list[tuple[str, bool]] | int]) -> None:
    """Removing every row there was, twice, leaves one copy of each object and of nothing else."""
    log = Rows()
    for step in steps:
        if isinstance(step, int):
            log.compact(step)
        else:
            log.commit(step)
    for _ in range(2):
        log.compact(len(log.rows))
        log.check()
    records = [record for _, some in log.rows for record in some]
    assert sorted(item.key for item in records) == sorted(log.now)
    assert len(log.base) == len(log.now)
