"""The ledger loses what is over, and nothing while nobody knows what is."""

from __future__ import annotations

import asyncio

import pytest
from tests.controllers.budgets.budgeted import NS, Field, field
from tests.embedded.virtual_cluster import EPOCH

from zonewise.api import DisruptionLedger, convert
from zonewise.api.objects.budgets import LEDGER_NAME
from zonewise.api.values import times
from zonewise.disruption.ledger import GRANT_SECONDS
from zonewise.runtime.client.server_clock import ServerClock

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def write(town: Field, **ahead: float) -> None:
    """A ledger with grants so many seconds from now."""
    now = EPOCH + asyncio.get_running_loop().time()
    grants = [
        {"uid": pod, "pod": pod, "time": times.format_time(times.from_epoch(now + seconds))}
        for pod, seconds in ahead.items()
    ]
    meta = {"name": LEDGER_NAME, "namespace": NS}
    await town.client.create(
        convert(DisruptionLedger, {"metadata": meta, "spec": {"grants": grants}})
    )


async def granted(town: Field) -> list[str]:
    """The pods with a grant."""
    ledger = await town.client.get(DisruptionLedger, LEDGER_NAME, NS)
    return [grant.pod for grant in ledger.spec.grants]


async def test_grants_from_the_future_are_removed() -> None:
    """One of tomorrow goes at once, and one of the next minute when its time is over."""
    async with field(3, *"abc") as town:
        await write(town, now=0, soon=GRANT_SECONDS / 2, tomorrow=86400)
        await asyncio.sleep(5)
        assert await granted(town) == ["now", "soon"]
        await asyncio.sleep(2 * GRANT_SECONDS)
        assert await granted(town) == []


async def test_nothing_is_removed_by_a_clock_that_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the clock is off grants stay; those that are over go when it is right again."""
    with monkeypatch.context() as off:
        off.setattr(ServerClock, "problem", lambda _: "off")
        async with field(3, *"abc") as town:
            await write(town, old=-GRANT_SECONDS - 60)
            await asyncio.sleep(60)
            assert await granted(town) == ["old"]
            off.undo()
            await asyncio.sleep(60)
            assert await granted(town) == []
