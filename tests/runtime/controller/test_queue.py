"""The work queue, in virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from looptime import new_event_loop

from zonewise.runtime.controller.queue import FAIR, Queue

pytestmark = pytest.mark.looptime


class HalfJitter(random.Random):
    """Takes the middle of every range."""

    def random(self) -> float:
        return 0.5


async def take_all(queue: Queue[str]) -> list[str]:
    taken = []
    while len(queue):
        key = await queue.get()
        assert key is not None
        taken.append(key)
        queue.done(key)
    return taken


async def test_keys_are_deduplicated_and_served_in_order() -> None:
    """A key that waits already is not added again; keys are first in, first out."""
    queue: Queue[str] = Queue()
    for key in ("b", "a", "b", "c", "a"):
        queue.add(key)
    assert await take_all(queue) == ["b", "a", "c"]


async def test_lanes_take_turns() -> None:
    """A lane with many keys delays another lane's key by one key, in both priorities."""
    queue: Queue[str] = Queue(lane=lambda key: key[0])
    for number in range(5):
        queue.add(f"a{number}")
        queue.add(f"x{number}", low=True)
    for key in ("b0", "b1", "b0", "c0"):
        queue.add(key)
    queue.add("y0", low=True)
    queue.add("x4")
    assert len(queue) == 14
    taken = await take_all(queue)
    assert taken[:8] == ["a0", "b0", "c0", "x4", "a1", "b1", "a2", "a3"]
    assert taken[8:] == ["x0", "a4", "y0", "x1", "x2", "x3"]
    queue.add("a0")
    queue.close(drop=True)
    assert len(queue) == 0


async def test_a_key_added_while_active_runs_again_after_it() -> None:
    """Two workers never have the same key, and a change during the work is not lost."""
    queue: Queue[str] = Queue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert await take_all(queue) == ["a"]


async def test_get_waits_for_a_key() -> None:
    """A worker sleeps until there is a key, and each key wakes one worker."""
    queue: Queue[str] = Queue()
    workers = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.add("a")
    queue.add("b")
    await asyncio.sleep(1)
    assert [worker.done() for worker in workers] == [True, True, False]
    queue.add("c")
    assert await asyncio.gather(*workers) == ["a", "b", "c"]


async def test_a_cancelled_worker_passes_its_wakeup_on() -> None:
    """A key handed to a worker that is being cancelled goes to another one."""
    queue: Queue[str] = Queue()
    first = asyncio.create_task(queue.get())
    second = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()
    assert await second == "a"
    third = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    third.cancel()
    with pytest.raises(asyncio.CancelledError):
        await third
    queue.done("a")
    queue.add("b")
    assert await queue.get() == "b"


async def test_delayed_keys_come_when_due() -> None:
    """A delay is kept, the earliest of two wins, and a plain add beats both."""
    queue: Queue[str] = Queue()
    loop = asyncio.get_running_loop()
    queue.add_after("late", 30)
    queue.add_after("late", 20)
    queue.add_after("late", 40)
    queue.add_after("soon", 5)
    queue.add_after("now", 60)
    queue.add("now")
    assert await queue.get() == "now"
    assert loop.time() == 0
    assert await queue.get() == "soon"
    assert loop.time() == 5
    assert await queue.get() == "late"
    assert loop.time() == 20
    for key in ("now", "soon", "late"):
        queue.done(key)
    await asyncio.sleep(100)
    assert len(queue) == 0


async def test_a_delay_asked_for_during_the_work_is_kept() -> None:
    """A delay that a worker sets for its own key counts after the work is done."""
    queue: Queue[str] = Queue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add_after("a", 3)
    await asyncio.sleep(10)
    assert len(queue) == 0
    queue.done("a")
    assert await queue.get() == "a"


async def test_backoff_doubles_to_a_cap_and_is_forgotten() -> None:
    """Failures of one key wait longer and longer, up to the cap, until it succeeds."""
    queue: Queue[str] = Queue(base=1, cap=20, rng=HalfJitter())
    delays = []
    for _ in range(70):
        delays.append(queue.retry("a"))
        assert await queue.get() == "a"
        queue.done("a")
    assert delays[:7] == [0.875, 1.75, 3.5, 7, 14, 17.5, 17.5]
    assert delays[-1] == 17.5
    assert queue.failures("a") == 70
    queue.forget("a")
    assert queue.failures("a") == 0
    assert queue.retry("a") == 0.875
    assert queue.retry("other") == 0.875


async def test_low_priority_waits_but_is_not_starved() -> None:
    """Low keys come after the others, but one of them after every few."""
    queue: Queue[str] = Queue()
    for index in range(3):
        queue.add(f"low-{index}", low=True)
    for index in range(2 * FAIR):
        queue.add(f"key-{index}")
    taken = await take_all(queue)
    assert taken[0] == "key-0"
    assert taken[FAIR] == "low-0"
    assert taken[2 * FAIR + 1] == "low-1"
    assert taken[-1] == "low-2"


async def test_a_low_key_can_be_promoted() -> None:
    """A change of an object that waits for a resync moves it to the normal priority, once."""
    queue: Queue[str] = Queue()
    queue.add("a", low=True)
    queue.add("b", low=True)
    queue.add("b")
    queue.add("a", low=True)
    assert await take_all(queue) == ["b", "a"]


async def test_closing_hands_out_what_is_ready_and_drops_the_future() -> None:
    """After close, ready keys are still worked on, delayed ones are not, then workers end."""
    queue: Queue[str] = Queue()
    queue.add("a")
    queue.add("b")
    queue.add_after("later", 5)
    queue.close()
    queue.add("refused")
    assert await queue.get() == "a"
    assert await queue.get() == "b"
    assert await queue.get() is None
    assert queue.stats().active == 2
    queue.done("a")
    queue.done("b")
    assert queue.stats().active == 0


async def test_closing_can_drop_what_is_ready() -> None:
    """With drop, nothing is handed out any more and waiting workers end at once."""
    queue: Queue[str] = Queue()
    queue.add("active")
    assert await queue.get() == "active"
    queue.add("active")
    queue.add("ready")
    queue.close(drop=True)
    assert queue.closed
    assert await queue.get() is None
    queue.done("active")
    assert await queue.get() is None
    assert queue.stats().active == 0


async def test_closing_wakes_every_waiting_worker() -> None:
    """Workers that sleep on an empty queue end when it closes."""
    queue: Queue[str] = Queue()
    workers = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.close()
    assert await asyncio.gather(*workers) == [None, None, None]


async def test_memory_is_bounded_by_the_number_of_keys() -> None:
    """A million calls for three keys leave no more memory in use than three keys need."""
    queue: Queue[str] = Queue()
    for turn in range(20_000):
        for key in ("a", "b", "c"):
            queue.add_after(key, 1_000_000 - turn)
    stats = queue.stats()
    assert stats.delayed == 3
    assert len(queue._heap) <= 2 * 3 + 64


async def test_stats_count_what_happened() -> None:
    """Metrics read how many keys were added, failed, are active and wait."""
    queue: Queue[str] = Queue()
    queue.add("a")
    queue.add("a")
    queue.add("b", low=True)
    await queue.get()
    queue.retry("c")
    stats = queue.stats()
    assert (stats.added, stats.retried) == (2, 1)
    assert (stats.ready, stats.delayed, stats.active) == (1, 1, 1)


async def test_waiting_is_measured_if_requested() -> None:
    """The time each key was ready before a worker took it is reported, without delays."""
    queue: Queue[str] = Queue()
    waits: list[float] = []
    queue.waited = waits.append
    queue.add("a")
    queue.add("b", low=True)
    queue.add_after("c", 3)
    await asyncio.sleep(5)
    assert [await queue.get() for _ in range(3)] == ["a", "c", "b"]
    queue.add("a")
    await asyncio.sleep(10)
    queue.done("a")
    assert await queue.get() == "a"
    assert waits == [5, 2, 5, 0]


class QueueMachine(RuleBasedStateMachine):
    """Compares the queue with a slow and simple model, in virtual time."""

    keys = st.sampled_from("abcdef")

    def __init__(self) -> None:
        super().__init__()
        self.loop = new_event_loop()
        self.queue: Queue[str] = Queue(clock=self.loop.time)
        self.normal: list[str] = []
        self.low: list[str] = []
        self.due: dict[str, tuple[float, bool]] = {}
        self.active: dict[str, str | None] = {}
        self.streak = 0

    def teardown(self) -> None:
        self.loop.close()

    def run(self, seconds: float = 0) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def model_add(self, key: str, low: bool) -> None:
        if key in self.normal:
            return
        self.due.pop(key, None)
        if key in self.active:
            if self.active[key] != "normal":
                self.active[key] = "low" if low else "normal"
        elif not low:
            if key in self.low:
                self.low.remove(key)
            self.normal.append(key)
        elif key not in self.low:
            self.low.append(key)

    @rule(key=keys, low=st.booleans())
    def add(self, key: str, low: bool) -> None:
        self.queue.add(key, low=low)
        self.model_add(key, low)

    @rule(key=keys, seconds=st.integers(0, 20), low=st.booleans())
    def add_after(self, key: str, seconds: int, low: bool) -> None:
        async def call() -> None:
            self.queue.add_after(key, seconds, low=low)

        if seconds == 0:
            self.model_add(key, low)
        elif key not in self.normal and key not in self.low and self.active.get(key) is None:
            due = self.loop.time() + seconds
            known = self.due.get(key)
            if known is None or due < known[0]:
                self.due[key] = (due, low)
            elif known[1] and not low:
                self.due[key] = (known[0], False)
        self.loop.run_until_complete(call())

    @rule(seconds=st.integers(1, 15))
    def wait(self, seconds: int) -> None:
        end = self.loop.time() + seconds
        self.run(seconds)
        for key, (due, low) in sorted(self.due.items(), key=lambda entry: entry[1][0]):
            if due <= end:
                self.model_add(key, low)

    @precondition(lambda self: self.normal or self.low)
    @rule()
    def get(self) -> None:
        taken = self.loop.run_until_complete(self.queue.get())
        if self.low and (not self.normal or self.streak >= FAIR):
            expected, self.streak = self.low, 0
        else:
            expected, self.streak = self.normal, self.streak + 1
        # Keys that came due in the same instant have no order among themselves in the model.
        assert taken is not None
        assert taken in expected
        expected.remove(taken)
        self.due.pop(taken, None)
        assert taken not in self.active
        self.active[taken] = None

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.active)))
        self.queue.done(key)
        again = self.active.pop(key)
        if again is not None:
            (self.low if again == "low" else self.normal).append(key)

    @invariant()
    def same_sizes(self) -> None:
        stats = self.queue.stats()
        assert stats.ready == len(self.normal) + len(self.low)
        assert stats.delayed == len(self.due)
        assert stats.active == len(self.active)


def test_any_sequence_of_calls_gives_what_the_model_gives() -> None:
    """The queue behaves as a slow and simple model for any sequence of calls."""
    run_state_machine_as_test(
        QueueMachine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )
