"""Refused workloads are woken up once when a budget allows more, and never otherwise."""

from __future__ import annotations

import asyncio

import pytest
from tests.controllers.budgets.budget_scene import LABELS, NS, budget_scene

from zonewise.api import Pod, TopologyDisruptionBudget
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
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
    """A domain that opens wakes workloads, also while others close; a deleted budget opens all."""
    assert opened(before, now) is wakes


async def test_a_widened_budget_wakes_once() -> None:
    """When a budget is widened, one pod of a ReplicaSet with surplus pods is changed, once, and an
    hour later still once.
    """
    async with budget_scene(3, *"aabbc") as scene:
        await scene.starting()
        await scene.budget(minAvailable=2)
        await asyncio.sleep(5)
        assert await scene.wake_notes() == []
        await scene.edit(minAvailable=1)
        await asyncio.sleep(5)
        first = await scene.wake_notes()
        assert len(first) == 1
        await asyncio.sleep(3600)
        assert await scene.wake_notes() == first


async def test_a_deleted_budget_wakes() -> None:
    """A workload that was held by a deleted budget may try at once."""
    async with budget_scene(3, *"aabbc") as scene:
        await scene.starting()
        await scene.budget(minAvailable=2)
        await asyncio.sleep(5)
        await scene.client.delete(TopologyDisruptionBudget, "web", NS)
        await asyncio.sleep(5)
        assert len(await scene.wake_notes()) == 1


async def test_a_replication_controller_wakes() -> None:
    """A ReplicationController that may delete its surplus pod again is woken, too."""
    async with budget_scene(0) as scene:
        template = {
            "metadata": {"labels": LABELS},
            "spec": {"containers": [{"name": "c", "image": "c"}]},
        }
        kind = unstructured(Resource("", "v1", "ReplicationController", "replicationcontrollers"))
        meta = {"name": "old", "namespace": NS}
        spec = {"replicas": 2, "selector": LABELS, "template": template}
        owner = await scene.client.create(kind({"metadata": meta, "spec": spec}))
        for zone in "abc":
            await scene.pod(zone, owner=owner)
        await scene.starting()
        await scene.budget(minAvailable=4, nodeSelectorTerm=None)
        await asyncio.sleep(5)
        assert await scene.wake_notes() == []
        await scene.edit(minAvailable=1)
        await asyncio.sleep(5)
        assert len(await scene.wake_notes()) == 1


async def test_a_pod_that_becomes_ready_wakes() -> None:
    """A pod that becomes Ready lets its domain allow a disruption again, which wakes, too."""
    async with budget_scene(3, *"aabb") as scene:
        await scene.starting()
        late = await scene.pod("c", ready=False)
        await scene.budget(minAvailable=2, nodeSelectorTerm=None, topologyKeys=None)
        await scene.edit(minAvailable=5)
        await asyncio.sleep(5)
        assert await scene.wake_notes() == []
        status = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        await scene.client.patch(Pod, late, NS, status, subresource="status")
        await asyncio.sleep(5)
        assert len(await scene.wake_notes()) == 1


async def test_a_workload_without_surplus_pods_is_not_woken() -> None:
    """A workload with as many pods as replicas is not changed when a budget opens."""
    async with budget_scene(6, *"aabbcc") as scene:
        await scene.budget(maxUnavailable=0)
        await asyncio.sleep(5)
        await scene.edit(maxUnavailable=1)
        await asyncio.sleep(5)
        assert await scene.wake_notes() == []


async def test_observing_wakes_nothing() -> None:
    """Under ``--budgets observe`` nothing but statuses is written."""
    async with budget_scene(3, *"aabbc", steer=False) as scene:
        await scene.starting()
        await scene.budget(minAvailable=2)
        await asyncio.sleep(5)
        await scene.edit(minAvailable=1)
        await asyncio.sleep(60)
        assert await scene.wake_notes() == []
        assert (await scene.get_budget()).status.allowed == "a=1,b=1,c=1"
