"""Workloads that were refused are woken up once when a budget gives more, and never otherwise."""

from __future__ import annotations

import asyncio

import pytest
from tests.controllers.budgets.budgeted import NS, field

from zonewise.api import Pod, TopologyDisruptionBudget
from zonewise.controllers.budgets.waking import opened

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


@pytest.mark.parametrize(
    ("before", "now", "wakes"),
    [
        ({"a": 0}, {"a": 1}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": 1}, {"a": 0}, False),
        ({"a": 0, "b": 1}, {"a": 1, "b": 0}, True),
        ({"a": 1, "b": 0}, {"a": 0, "b": 0}, False),
        ({"a": 0}, {"a": None}, True),
        ({"a": None}, {"a": None}, False),
        ({}, {"a": 1}, True),
        ({"a": 0}, {"": None}, True),
        ({"a": 1}, {"": None}, False),
    ],
)
async def test_domains_are_compared_not_sums(
    before: dict[str, int | None], now: dict[str, int | None], wakes: bool
) -> None:
    """A domain that opens wakes, also while another one closes; a budget that is gone opens all."""
    assert opened(before, now) is wakes


async def test_a_widened_budget_wakes_once() -> None:
    """One pod of a ReplicaSet that has too many is changed, once, and an hour later still once."""
    async with field(3, *"aabbcc") as town:
        await town.budget(minAvailable=2)
        await asyncio.sleep(5)
        assert await town.woken() == []
        await town.edit(minAvailable=1)
        await asyncio.sleep(5)
        first = await town.woken()
        assert len(first) == 1
        await asyncio.sleep(3600)
        assert await town.woken() == first


async def test_a_deleted_budget_wakes() -> None:
    """Who was held by a budget that is deleted may try at once."""
    async with field(3, *"aabbcc") as town:
        await town.budget(minAvailable=2)
        await asyncio.sleep(5)
        await town.client.delete(TopologyDisruptionBudget, "web", NS)
        await asyncio.sleep(5)
        assert len(await town.woken()) == 1


async def test_a_pod_that_gets_ready_wakes() -> None:
    """A domain that allows something again is news, too."""
    async with field(3, *"aabbc") as town:
        late = await town.pod("c", ready=False)
        await town.budget(minAvailable=2, nodeSelectorTerm=None, topologyKeys=None)
        await town.edit(minAvailable=5)
        await asyncio.sleep(5)
        assert await town.woken() == []
        status = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        await town.client.patch(Pod, late, NS, status, subresource="status")
        await asyncio.sleep(5)
        assert len(await town.woken()) == 1


async def test_who_has_nothing_left_is_not_woken() -> None:
    """A workload with as many pods as it asks for is left alone when a budget opens."""
    async with field(6, *"aabbcc") as town:
        await town.budget(maxUnavailable=0)
        await asyncio.sleep(5)
        await town.edit(maxUnavailable=1)
        await asyncio.sleep(5)
        assert await town.woken() == []


async def test_nobody_is_woken_by_who_only_observes() -> None:
    """Under ``--budgets observe`` nothing but statuses is written."""
    async with field(3, *"aabbcc", steer=False) as town:
        await town.budget(minAvailable=2)
        await asyncio.sleep(5)
        await town.edit(minAvailable=1)
        await asyncio.sleep(60)
        assert await town.woken() == []
        assert (await town.told()).status.allowed == "a=1,b=1,c=1"
