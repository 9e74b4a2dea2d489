"""When the baseline follows the pods: after a minute of rest, and after ten minutes at most."""

from __future__ import annotations

import asyncio

import pytest
from tests.controllers.budgets.budget_scene import budget_scene

from zonewise.controllers.budgets.controller import Rest

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def test_a_minute_of_rest() -> None:
    """Rest is a minute without a change; a change restarts it; ten minutes are the most."""
    rest = Rest(0, 100.0, 100.0)
    assert not rest.may_settle(159.0)
    assert rest.seconds_to_wait(159.0) == 1.0
    assert rest.may_settle(160.0)
    rest.note_moves(1, 150.0)
    assert not rest.may_settle(160.0)
    for moment in range(160, 700, 30):
        rest.note_moves(rest.moves + 1, float(moment))
    assert not rest.may_settle(699.0)
    assert rest.may_settle(700.0)


async def test_the_baseline_waits_for_rest() -> None:
    """A pod that moved to another zone counts in the old one for a minute, then in the new one."""
    async with budget_scene(3, *"ab") as scene:
        moved = await scene.pod("c")
        await scene.budget(maxUnavailable=1)
        await asyncio.sleep(5)
        assert await scene.baseline() == {"a": 1, "b": 1, "c": 1}
        await scene.remove_pod(moved)
        await scene.pod("a")
        await asyncio.sleep(50)
        assert await scene.baseline() == {"a": 1, "b": 1, "c": 1}
        assert (await scene.get_budget()).status.allowed == "a=1,b=1,c=0"
        await asyncio.sleep(20)
        assert await scene.baseline() == {"a": 2, "b": 1, "c": 0}


async def test_pods_that_never_rest() -> None:
    """Pods that come and go every half minute delay the baseline to ten minutes and no longer."""
    async with budget_scene(3, *"ab") as scene:
        moved = await scene.pod("c")
        await scene.budget(maxUnavailable=1)
        await asyncio.sleep(5)
        for step in range(18):
            await scene.remove_pod(moved)
            moved = await scene.pod("ab"[step % 2])
            await asyncio.sleep(30)
        assert await scene.baseline() == {"a": 1, "b": 1, "c": 1}
        for step in range(4):
            await scene.remove_pod(moved)
            moved = await scene.pod("ab"[step % 2])
            await asyncio.sleep(30)
        assert (await scene.baseline())["c"] == 0


async def test_a_new_leader_waits_a_whole_minute() -> None:
    """A leader that takes over after fifty seconds of rest waits a whole minute."""
    async with budget_scene(3, *"ab") as scene:
        moved = await scene.pod("c")
        await scene.budget(maxUnavailable=1)
        await asyncio.sleep(5)
        await scene.remove_pod(moved)
        await scene.pod("a")
        await asyncio.sleep(50)
        scene.lead()
        await asyncio.sleep(50)
        assert await scene.baseline() == {"a": 1, "b": 1, "c": 1}
        await asyncio.sleep(15)
        assert await scene.baseline() == {"a": 2, "b": 1, "c": 0}


async def test_an_hour_at_rest_writes_nothing() -> None:
    """A budget without changes is not written again."""
    async with budget_scene(3, *"abc") as scene:
        await scene.budget(maxUnavailable=1)
        await asyncio.sleep(5)
        version = (await scene.get_budget()).metadata.resource_version
        await asyncio.sleep(3600)
        assert (await scene.get_budget()).metadata.resource_version == version
