"""Plain PodDisruptionBudgets that have pods in common, on a cluster whose server refuses that."""

from __future__ import annotations

import asyncio

import pytest
from tests.controllers.budgets.budget_scene import LABELS, NS, BudgetScene, budget_scene

from zonewise.api import Pod, convert
from zonewise.api.objects.events import Event
from zonewise.api.objects.policy import PodDisruptionBudget

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def plain_budget(scene: BudgetScene, name: str, labels: dict[str, str]) -> None:
    """A PodDisruptionBudget without a term."""
    spec = {"selector": {"matchLabels": labels}, "maxUnavailable": 1}
    body = {"metadata": {"name": name, "namespace": NS}, "spec": spec}
    await scene.client.create(convert(PodDisruptionBudget, body))


async def overlap_events(scene: BudgetScene) -> dict[str, str]:
    """The notes of the events, by budget."""
    events = await scene.client.list(Event, NS)
    return {
        event.regarding.name: event.note or ""
        for event in events
        if event.reason == "SeveralBudgets"
    }


async def test_each_of_two_budgets_gets_an_event() -> None:
    """It names the other one and says what to do; one budget, and others that have no pod in
    common with it, get none.
    """
    async with budget_scene(3, *"abc") as scene:
        await plain_budget(scene, "one", LABELS)
        await plain_budget(scene, "other", {"app": "shop"})
        await asyncio.sleep(5)
        assert await overlap_events(scene) == {}
        await plain_budget(scene, "two", LABELS)
        await asyncio.sleep(5)
        events = await overlap_events(scene)
        assert events.keys() == {"one", "two"}
        assert events["one"] == (
            "PodDisruptionBudget two covers pods of one, too, and Kubernetes evicts no pod that has"
            " more than one. Merge them into one budget, or replace all but one by"
            " TopologyDisruptionBudgets."
        )


async def test_a_pod_that_gets_a_label_is_noticed() -> None:
    """Budgets that had no pod in common are reported once a pod has the labels of both."""
    async with budget_scene(3, *"abc") as scene:
        await plain_budget(scene, "web", LABELS)
        await plain_budget(scene, "slow", {"tier": "slow"})
        await asyncio.sleep(5)
        assert await overlap_events(scene) == {}
        await scene.client.patch(Pod, "web-1", NS, {"metadata": {"labels": {"tier": "slow"}}})
        await asyncio.sleep(5)
        assert (await overlap_events(scene)).keys() == {"web", "slow"}
