"""The status of a budget: whether it is in force, and how to change that."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.controllers.budgets.budget_scene import NS, BudgetScene, budget_scene

from zonewise.api import Namespace, Pod
from zonewise.api.objects.budgets import TopologyDisruptionBudget
from zonewise.api.objects.events import Event
from zonewise.controllers.budgets.controller import BudgetsController
from zonewise.disruption import namespace_budgets
from zonewise.runtime.client.transport import Request

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def read_enforced(scene: BudgetScene) -> tuple[str, str, str]:
    """Status, reason and message of the condition Enforced."""
    conditions = (await scene.get_budget()).status.conditions
    (condition,) = [each for each in conditions if each.type == "Enforced"]
    return condition.status, condition.reason, condition.message


async def test_a_namespace_that_has_not_opted_in() -> None:
    """The condition of a budget in a namespace that has not opted in names the command to do so;
    after it the budget is in force.
    """
    async with budget_scene(3, *"abc", enforce=False) as scene:
        await scene.budget(maxUnavailable=1)
        await asyncio.sleep(5)
        status, reason, message = await read_enforced(scene)
        assert (status, reason) == ("False", "NamespaceNotEnforced")
        assert f"kubectl label namespace {NS} zonewise.io/budgets=enforce" in message
        body = {"metadata": {"labels": {"zonewise.io/budgets": "enforce"}}}
        await scene.client.patch(Namespace, NS, None, body)
        await asyncio.sleep(5)
        assert (await read_enforced(scene))[:2] == ("True", "Enforced")


async def test_a_budget_that_observes_is_counted() -> None:
    """A budget with ``mode: Observe`` has all its numbers, and says that it refuses nothing."""
    async with budget_scene(3, *"abc") as scene:
        await scene.budget(maxUnavailable=0, mode="Observe")
        await asyncio.sleep(5)
        assert (await read_enforced(scene))[:2] == ("False", "ObserveOnly")
        assert (await scene.get_budget()).status.allowed == "a=0,b=0,c=0"


async def test_many_moves_are_few_writes() -> None:
    """Forty changes of pods within four seconds cost a write a second, not one each."""
    async with budget_scene(3, *"abc") as scene:
        await scene.budget(maxUnavailable=1)
        await asyncio.sleep(5)
        store = scene.cluster.program.cache.store(type(await scene.get_budget()))
        writes: list[str] = []
        store.on_change(lambda _, new: writes.append("" if new is None else new.metadata.name))
        writes.clear()
        for _ in range(20):
            name = await scene.pod("a")
            await asyncio.sleep(0.1)
            await scene.remove_pod(name)
            await asyncio.sleep(0.1)
        await asyncio.sleep(5)
        assert 1 <= len(writes) <= 6


async def test_an_old_label_is_reported_once() -> None:
    """A budget with an old key of zones gets one event, and counts as with the new one."""
    old = {"key": "failure-domain.beta.kubernetes.io/zone", "operator": "Exists"}
    async with budget_scene(3, *"abc") as scene:
        await scene.budget(maxUnavailable=1, nodeSelectorTerm={"matchExpressions": [old]})
        await asyncio.sleep(60)
        assert await scene.baseline() == {"a": 1, "b": 1, "c": 1}
        events = await scene.client.list(Event, NS)
        assert [e.reason for e in events if e.regarding.name == "web"] == ["OldLabelKey"]


async def test_budgets_beyond_the_limit_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit of two the third is not counted and says so, until an older one is deleted."""
    monkeypatch.setattr(namespace_budgets, "BUDGETS_LIMIT", 2)
    async with budget_scene(3, *"abc") as scene:
        for name in ("web", "old", "new"):
            await scene.budget(name, maxUnavailable=1)
            await asyncio.sleep(2)
        await asyncio.sleep(5)
        assert (await read_allowed(scene, "old"))[:2] == ("True", "SufficientPods")
        status, reason, message = await read_allowed(scene, "new")
        assert (status, reason) == ("False", "TooManyBudgets")
        assert "the 2 oldest are counted, and new is not among them" in message
        before = await scene.get_budget("new")
        await scene.remove_pod("web-1")
        await scene.pod("b")
        await asyncio.sleep(5)
        assert await scene.get_budget("new") == before, "pods do not change it"
        await scene.client.delete(TopologyDisruptionBudget, "web", NS)
        await asyncio.sleep(5)
        assert (await read_allowed(scene, "new"))[:2] == ("True", "SufficientPods")


async def test_only_budgets_of_a_changed_pod_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thirty budgets the one that selects a pod is counted when the pod changes."""
    counted: list[str] = []
    count = BudgetsController._count

    async def counting(self: BudgetsController, *given: Any) -> float:
        counted.append(given[1].name)
        return await count(self, *given)

    monkeypatch.setattr(BudgetsController, "_count", counting)
    async with budget_scene(3, *"abc") as scene:
        for number in range(30):
            selector = {"matchLabels": {"group": str(number)}}
            await scene.budget(f"b{number}", maxUnavailable=1, selector=selector)
        await asyncio.sleep(20)
        counted.clear()
        for name, labels in (("web-1", {"group": "7"}), ("web-2", {"other": "7"})):
            await scene.client.patch(Pod, name, NS, {"metadata": {"labels": labels}})
        await asyncio.sleep(5)
        assert set(counted) == {"b7"}


async def read_allowed(scene: BudgetScene, name: str) -> tuple[str, str, str]:
    """Status, reason and message of the condition DisruptionAllowed."""
    conditions = (await scene.get_budget(name)).status.conditions
    (condition,) = [each for each in conditions if each.type == "DisruptionAllowed"]
    return condition.status, condition.reason, condition.message


async def read_columns(scene: BudgetScene) -> dict[str, dict[str, str]]:
    """What ``kubectl get tdb`` shows: the narrow columns of each budget."""
    request = Request(
        method="GET",
        path=f"/apis/zonewise.io/v1alpha1/namespaces/{NS}/topologydisruptionbudgets",
        headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"},
    )
    response = await scene.client.transport.send(request)
    table = json.loads(await response.read())
    await response.close()
    names = [(column["name"], column["priority"]) for column in table["columnDefinitions"]]
    return {
        row["cells"][0]: {
            name: cell
            for (name, priority), cell in zip(names, row["cells"], strict=True)
            if not priority
        }
        for row in table["rows"]
    }


async def test_zeros_that_hold_updates_only_are_shown_as_such() -> None:
    """``kubectl get tdb`` distinguishes them from zeros that also refuse a drain."""
    async with budget_scene(3, *"abc") as scene:
        await scene.budget("drains", maxUnavailable=0)
        await scene.budget("web", maxUnavailable=0, holds="Updates")
        await asyncio.sleep(5)
        rows = await read_columns(scene)
        assert rows["drains"]["Allowed"] == "a=0,b=0,c=0"
        assert rows["web"]["Allowed"] == "a=0,b=0,c=0 (updates only)"
        await scene.edit(holds="Disruptions")
        await asyncio.sleep(5)
        assert (await read_columns(scene))["web"]["Allowed"] == "a=0,b=0,c=0"


async def test_a_line_of_an_older_version_is_written_again() -> None:
    """A status that an older version wrote without "updates only" is corrected once."""
    async with budget_scene(3, *"abc") as scene:
        await scene.budget(maxUnavailable=0, holds="Updates")
        await asyncio.sleep(5)
        old = {"status": {"allowed": "a=0,b=0,c=0"}}
        await scene.client.patch(TopologyDisruptionBudget, "web", NS, old, subresource="status")
        await asyncio.sleep(5)
        assert (await scene.get_budget()).status.allowed == "a=0,b=0,c=0 (updates only)"
