"""The server's time, estimated from its answers, whatever this machine's clock says."""

from __future__ import annotations

import asyncio
import random
from email.utils import formatdate

import pytest
from tests.runtime.memory_server import Answered

from zonewise.api.objects.core import Node
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.server_clock import ClockOff, ServerClock
from zonewise.runtime.client.transport import Request

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

EPOCH = 1_790_000_000.25


def server_time() -> float:
    """The time on the server's clock."""
    return EPOCH + asyncio.get_running_loop().time()


class Dated:
    """A transport that answers after a delay, with a date from the middle of it."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    async def send(self, request: Request) -> Answered:
        await asyncio.sleep(self._rng.uniform(0, 0.2))
        date = formatdate(server_time(), usegmt=True)
        await asyncio.sleep(self._rng.uniform(0, 0.2))
        return Answered(200, b'{"metadata": {"name": "n"}}', {"Date": date})

    async def close(self) -> None:
        return None


@pytest.mark.parametrize("wrong", [-4000.0, -61.0, 0.0, 59.0, 200.0])
async def test_the_servers_time_is_known_whatever_the_clock_shows(wrong: float) -> None:
    """After some answers the estimate is right to a fraction of a second; a local clock that is off
    by more than a minute is a problem with advice.
    """
    clock = ServerClock(lambda: server_time() + wrong)
    client = Client(Dated(random.Random(3)), clock=clock)
    assert clock.now() == server_time() + wrong, "nothing better is known before the first answer"
    for _ in range(50):
        await client.get(Node, "n")
        await asyncio.sleep(0.3)
        assert abs(clock.now() - server_time()) < 0.75
    assert abs(clock.now() - server_time()) < 0.2
    problem = clock.problem()
    if abs(wrong) < 60:
        assert problem is None
    else:
        side = "ahead of" if wrong > 0 else "behind"
        assert problem is not None
        assert problem.startswith("the clock of this machine is ")
        assert f" s {side} the API server's; set it" in problem


async def test_it_follows_a_server_whose_clock_is_set() -> None:
    """A date that contradicts earlier ones replaces them; an invalid date changes nothing."""
    clock = ServerClock(server_time)
    for moment in (EPOCH, EPOCH + 5000, EPOCH - 5000):
        clock.observe(formatdate(moment, usegmt=True), 0.0, 0.1)
        assert abs(clock.now() - moment) < 1.5
    for nonsense in ("", "yesterday", "Thu, 99 Jan 2026 00:00:00 GMT"):
        clock.observe(nonsense, 0.0, 0.1)
        assert abs(clock.now() - (EPOCH - 5000)) < 1.5


async def test_a_wrong_clock_is_logged_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong clock is logged when noticed, not with each answer, and again if it comes back."""
    wrong = 200.0
    clock = ServerClock(lambda: server_time() + wrong)
    for wrong in (200.0, 200.0, 0.0, -200.0, -200.0):  # noqa: B007
        clock.observe(formatdate(server_time(), usegmt=True), 0.0, 0.0)
    lines = capsys.readouterr().err.splitlines()
    warnings = [line for line in lines if "set it, for example with NTP" in line]
    assert ["ahead of" in line for line in warnings] == [True, False]


async def test_a_wrong_date_makes_the_time_uncertain() -> None:
    """After a date that is more than a minute off the time is unknown until the next right one."""
    clock = ServerClock(server_time)
    loop = asyncio.get_running_loop()
    for shift, reliable_now in ((0.0, True), (130.0, False), (0.0, True), (-86400.0, False)):
        clock.observe(formatdate(server_time() + shift, usegmt=True), loop.time(), loop.time())
        if reliable_now:
            assert abs(clock.reliable_now() - server_time()) < 1
        else:
            with pytest.raises(ClockOff, match=f"differ by {abs(shift):.0f} s"):
                clock.reliable_now()
