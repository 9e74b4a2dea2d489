"""How soon a failed watch tries again."""

from __future__ import annotations

import asyncio
import random

import pytest

from zonewise.runtime.client.pace import Pace

pytestmark = pytest.mark.looptime


class Longest(random.Random):
    """A random number generator that takes the end of the range."""

    def uniform(self, a: float, b: float) -> float:
        return b


class Shortest(random.Random):
    """A random number generator that takes the beginning of the range."""

    def uniform(self, a: float, b: float) -> float:
        return a


async def test_the_window_doubles_to_its_cap() -> None:
    """With each failure the longest pause doubles, up to the cap."""
    pace = Pace(base=2, cap=30, rng=Longest())
    assert [pace.pause() for _ in range(7)] == [2, 4, 8, 16, 30, 30, 30]


async def test_a_connection_that_lived_is_trusted_again() -> None:
    """A stream that lived for a minute resets the pause; one that lived for a second does not."""
    pace = Pace(base=2, cap=30, rng=Longest())
    for _ in range(6):
        pace.pause()
    assert pace.pause(lived=60) == 2
    assert [pace.pause(lived=1) for _ in range(3)] == [2, 2, 2]
    assert pace.pause(lived=0.1) > 2


async def test_retry_after_comes_before_the_jitter() -> None:
    """Retry-After is a minimum, to which the jitter is added."""
    assert Pace(base=2, rng=Shortest()).pause(retry_after=7) == 7
    assert Pace(base=2, rng=Longest()).pause(retry_after=7) == 9


async def test_the_whole_window_is_random() -> None:
    """Fifty watches that fail together spread over the window."""
    rng = random.Random(7)
    pauses = sorted(Pace(base=2, rng=rng).pause() for _ in range(50))
    assert pauses[0] < 0.2
    assert pauses[-1] > 1.8
    assert max(sum(start <= p < start + 0.1 for p in pauses) for start in pauses) <= 10


async def test_no_more_than_one_request_per_second_over_thirty() -> None:
    """Any 30 seconds have at most 30 requests, whatever fails."""
    pace = Pace()
    loop = asyncio.get_running_loop()
    moments = []
    while loop.time() < 200:
        await pace.turn()
        moments.append(loop.time())
    for start in moments:
        assert sum(start <= moment < start + 30 for moment in moments) <= 30


async def test_resting_takes_the_time_it_says() -> None:
    """``rest`` sleeps for the pause it returns."""
    loop = asyncio.get_running_loop()
    seconds = await Pace(base=4, rng=Longest()).rest(retry_after=1)
    assert (seconds, loop.time()) == (5, 5)
