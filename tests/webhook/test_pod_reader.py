"""Reads of pods: few, and shared."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.controllers.budgets.budget_scene import budget_scene
from tests.webhook.gate_caller import GateCaller

from zonewise.runtime.webhook.admission import Allowed, Denied
from zonewise.webhook.pod_reader import STRANGERS

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def test_reads_of_unknown_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evictions of a thousand names that do not exist share few reads at a time; the rest have to
    try again, and a pod that exists is answered meanwhile.
    """
    async with budget_scene(3, *"abc") as scene:
        await scene.budget(maxUnavailable=1)
        caller = GateCaller(scene, "enforce")
        await asyncio.sleep(5)
        get, reading = scene.client.get, Counter[str]()

        async def slow(cls: Any, name: str, *rest: Any) -> Any:
            reading[name] += 1
            if name.startswith("none"):
                await asyncio.sleep(1)
            return await get(cls, name, *rest)

        monkeypatch.setattr(scene.client, "get", slow)
        flood = [asyncio.create_task(caller.evict(f"none-{number}")) for number in range(1000)]
        await asyncio.sleep(0.1)
        assert isinstance(await caller.evict("web-1"), Allowed)
        answers = await asyncio.gather(*flood)
        assert Counter(map(type, answers)) == {Allowed: STRANGERS, Denied: 1000 - STRANGERS}
        assert reading.total() == STRANGERS + 1
        await asyncio.gather(*(caller.evict("none") for _ in range(100)))
        assert reading["none"] == 1, "questions about one pod share a read"
