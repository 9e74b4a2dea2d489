"""An event loop whose time runs faster."""

from __future__ import annotations

import asyncio
from math import inf

import pytest

from zonewise.embedded.scenario.virtual_time import VirtualTimeLoop


async def _day() -> list[str]:
    order: list[str] = []

    async def after(seconds: float, name: str) -> None:
        await asyncio.sleep(seconds)
        order.append(name)

    async with asyncio.TaskGroup() as tasks:
        for seconds, name in ((86_400, "day"), (1, "second"), (3600, "hour")):
            tasks.create_task(after(seconds, name))
    return order


def test_a_day_takes_no_time() -> None:
    """At infinite speed waits take no time, and keep their order."""
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(inf)) as runner:
        assert runner.run(_day()) == ["second", "hour", "day"]
        assert runner.get_loop().time() == pytest.approx(86_400, abs=1e-3)


def test_a_finite_speed_is_that_much_faster() -> None:
    """An hour at ten thousandfold speed is over, in the loop's time, after an hour."""
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(10_000)) as runner:
        runner.run(asyncio.sleep(3600))
        assert runner.get_loop().time() >= 3600
