"""Requests take turns, and the event loop runs between two of them."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from zonewise.runtime.process.turns import FairTurns, in_slices

pytestmark = pytest.mark.asyncio


async def test_sources_take_turns() -> None:
    """Of a hundred requests of one source and two of another, the two are among the first four."""
    turns, order = FairTurns(), []

    async def ask(whose: str) -> None:
        await turns.take(whose)
        order.append(whose)

    loud = [asyncio.create_task(ask("loud")) for _ in range(100)]
    quiet = [asyncio.create_task(ask("quiet")) for _ in range(2)]
    await asyncio.gather(*loud, *quiet)
    assert order[:5] == ["loud", "quiet", "loud", "quiet", "loud"]
    assert order.count("loud") == 100


async def test_the_loop_runs_between_two_slices() -> None:
    """While a thousand slices run, another task gets as many turns of the loop."""
    turns, ticks, done = FairTurns(), 0, False

    async def tick() -> None:
        nonlocal ticks
        while not done:
            ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    await turns.slices("loud", iter([None] * 1000))
    done = True
    await ticking
    assert ticks >= 1000


async def test_a_cancelled_request_does_not_block_others() -> None:
    """The turn of a request that was cancelled goes to the next one."""
    turns = FairTurns()
    waiting = [asyncio.create_task(turns.take(number)) for number in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[1].cancel()
    await waiting[2]
    await turns.take("later")
    assert [task.cancelled() for task in waiting] == [True, True, False]


async def test_work_in_slices_gives_its_result() -> None:
    """What a generator returns is the result."""

    def work() -> Generator[None, None, str]:
        yield
        yield
        return "done"

    assert await in_slices(work()) == "done"
