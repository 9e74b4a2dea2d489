"""When the baseline follows what is there: after a minute of rest, at the latest in ten."""

from __future__ import annotations

import asyncio

import pytest
from tests.controllers.budgets.budgeted import field

from zonewise.controllers.budgets.controller import Rest

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def test_a_minute_of_rest() -> None:
    """Rest is a minute without a move; a move begins it anew; ten minutes are the most."""
    rest = Rest(0, 100.0, 100.0)
    assert not rest.due(159.0)
    assert rest.left(159.0) == 1.0
    assert rest.due(160.0)
    rest.saw(1, 150.0)
    assert not rest.due(160.0)
    for moment in range(160, 700, 30):
        rest.saw(rest.moves + 1, float(moment))
    assert not rest.due(699.0)
    assert rest.due(700.0)


async def test_the_baseline_waits_for_rest() -> None:
    """A pod that moved to another zone counts where it was for a minute, then where it is."""
    async with field(3, *"ab") as town:
        moved = await town.pod("c")
        await town.budget(maxUnavailable=1)
        await asyncio.sleep(5)
        assert await town.baseline() == {"a": 1, "b": 1, "c": 1}
        await town.gone(moved)
        await town.pod("a")
        await asyncio.sleep(50)
        assert await town.baseline() == {"a": 1, "b": 1, "c": 1}
        assert (await town.told()).status.allowed == "a=1,b=1,c=0"
        await asyncio.sleep(20)
        assert await town.baseline() == {"a": 2, "b": 1, "c": 0}


async def test_who_never_rests_settles_too() -> None:
    """Pods that come and go every half minute delay it to ten minutes and no longer."""
    async with field(3, *"ab") as town:
        moved = await town.pod("c")
        await town.budget(maxUnavailable=1)
        await asyncio.sleep(5)
        for step in range(18):
            await town.gone(moved)
            moved = await town.pod("ab"[step % 2])
            await asyncio.sleep(30)
        assert await town.baseline() == {"a": 1, "b": 1, "c": 1}
        for step in range(4):
            await town.gone(moved)
            moved = await town.pod("ab"[step % 2])
            await asyncio.sleep(30)
        assert (await town.baseline())["c"] == 0


async def test_a_new_leader_begins_to_wait_anew() -> None:
    """The minute is the leader's own: one that takes over after fifty seconds waits a whole one."""
    async with field(3, *"ab") as town:
        moved = await town.pod("c")
        await town.budget(maxUnavailable=1)
        await asyncio.sleep(5)
        await town.gone(moved)
        await town.pod("a")
        await asyncio.sleep(50)
        town.lead()
        await asyncio.sleep(50)
        assert await town.baseline() == {"a": 1, "b": 1, "c": 1}
        await asyncio.sleep(15)
        assert await town.baseline() == {"a": 2, "b": 1, "c": 0}


async def test_an_hour_at_rest_writes_nothing() -> None:
    """A budget nobody touches is not written again."""
    async with field(3, *"abc") as town:
        await town.budget(maxUnavailable=1)
        await asyncio.sleep(5)
        version = (await town.told()).metadata.resource_version
        await asyncio.sleep(3600)
        assert (await town.told()).metadata.resource_version == version
