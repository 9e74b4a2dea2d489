"""Reads of pods: few, and shared."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.controllers.budgets.budgeted import field
from tests.webhook.asked_gate import Asked

from zonewise.runtime.webhook.admission import Allowed, Denied
from zonewise.webhook.pod_reader import STRANGERS

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def test_reads_of_unknown_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evictions of a thousand names that do not exist share few reads at a time; the rest is told
    to try again, and a pod that exists is answered meanwhile.
    """
    async with field(3, *"abc") as town:
        await town.budget(maxUnavailable=1)
        asked = Asked(town, "enforce")
        await asyncio.sleep(5)
        get, reading = town.client.get, Counter[str]()

        async def slow(cls: Any, name: str, *rest: Any) -> Any:
            reading[name] += 1
            if name.startswith("none"):
                await asyncio.sleep(1)
            return await get(cls, name, *rest)

        monkeypatch.setattr(town.client, "get", slow)
        flood = [asyncio.create_task(asked.evict(f"none-{number}")) for number in range(1000)]
        await asyncio.sleep(0.1)
        assert isinstance(await asked.evict("web-1"), Allowed)
        answers = await asyncio.gather(*flood)
        assert Counter(map(type, answers)) == {Allowed: STRANGERS, Denied: 1000 - STRANGERS}
        assert reading.total() == STRANGERS + 1
        await asyncio.gather(*(asked.evict("none") for _ in range(100)))
        assert reading["none"] == 1, "questions about one pod share a read"
