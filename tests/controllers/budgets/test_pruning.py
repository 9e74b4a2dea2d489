"""Expired grants are removed from the ledger, but not while the clock is off."""

from __future__ import annotations

import asyncio

import pytest
from tests.controllers.budgets.budget_scene import NS, BudgetScene, budget_scene
from tests.embedded.virtual_cluster import EPOCH

from zonewise.api import DisruptionLedger, convert
from zonewise.api.objects.budgets import LEDGER_NAME
from zonewise.api.values import times
from zonewise.disruption.ledger import GRANT_SECONDS
from zonewise.runtime.client.server_clock import ServerClock

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def write(scene: BudgetScene, **ahead: float) -> None:
    """A ledger with grants this many seconds from now."""
    now = EPOCH + asyncio.get_running_loop().time()
    grants = [
        {"uid": pod, "pod": pod, "time": times.format_time(times.from_epoch(now + seconds))}
        for pod, seconds in ahead.items()
    ]
    meta = {"name": LEDGER_NAME, "namespace": NS}
    await scene.client.create(
        convert(DisruptionLedger, {"metadata": meta, "spec": {"grants": grants}})
    )


async def granted(scene: BudgetScene) -> list[str]:
    """The pods with a grant."""
    ledger = await scene.client.get(DisruptionLedger, LEDGER_NAME, NS)
    return [grant.pod for grant in ledger.spec.grants]


async def test_grants_from_the_future_are_removed() -> None:
    """A grant of tomorrow is removed at once, and one of the next minute when it has expired."""
    async with budget_scene(3, *"abc") as scene:
        await write(scene, now=0, soon=GRANT_SECONDS / 2, tomorrow=86400)
        await asyncio.sleep(5)
        assert await granted(scene) == ["now", "soon"]
        await asyncio.sleep(2 * GRANT_SECONDS)
        assert await granted(scene) == []


async def test_nothing_is_removed_by_a_clock_that_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the clock is off grants stay; expired ones are removed when it is right again."""
    with monkeypatch.context() as off:
        off.setattr(ServerClock, "problem", lambda _: "off")
        async with budget_scene(3, *"abc") as scene:
            await write(scene, old=-GRANT_SECONDS - 60)
            await asyncio.sleep(60)
            assert await granted(scene) == ["old"]
            off.undo()
            await asyncio.sleep(60)
            assert await granted(scene) == []
