"""The client's rate limit, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from zonewise.runtime.client.limiter import Limiter

pytestmark = pytest.mark.looptime


async def test_a_burst_passes_and_the_rest_is_spaced() -> None:
    """The burst goes at once, then one request per interval."""
    limiter = Limiter(rate=10, burst=3)
    loop = asyncio.get_running_loop()
    moments = []
    for _ in range(6):
        await limiter.acquire()
        moments.append(round(loop.time(), 6))
    assert moments == [0, 0, 0, 0.1, 0.2, 0.3]


async def test_a_pause_refills_no_more_than_the_burst() -> None:
    """However long no request was made, only the burst is free afterwards."""
    limiter = Limiter(rate=1, burst=2)
    for _ in range(2):
        assert await limiter.acquire() == 0
    await asyncio.sleep(1000)
    assert [await limiter.acquire() for _ in range(3)] == [0, 0, 1]


async def test_waiters_are_served_in_order_and_a_cancelled_one_gives_back() -> None:
    """Requests are sent in the order they came; a cancelled one does not use up its time."""
    limiter = Limiter(rate=1, burst=1)
    loop = asyncio.get_running_loop()
    order: list[tuple[str, float]] = []

    async def ask(name: str) -> None:
        await limiter.acquire()
        order.append((name, loop.time()))

    tasks = [asyncio.create_task(ask(name)) for name in "abcd"]
    await asyncio.sleep(0)
    tasks[3].cancel()
    await asyncio.wait(tasks)
    await ask("e")
    assert order == [("a", 0), ("b", 1), ("c", 2), ("e", 3)]


def test_a_limiter_that_lets_nothing_pass_is_refused() -> None:
    """A rate of zero or an empty burst is a mistake, not a way to wait for ever."""
    for rate, burst in ((0, 1), (-1, 1), (1, 0)):
        with pytest.raises(ValueError, match="rate > 0 and burst >= 1"):
            Limiter(rate, burst)


async def test_the_clock_can_be_given() -> None:
    """A limiter reads the clock it was given."""
    now = 100.0
    limiter = Limiter(rate=2, burst=1, clock=lambda: now)
    assert [limiter.reserve(), limiter.reserve()] == [0, 0.5]
    now = 101.0
    assert limiter.reserve() == 0
