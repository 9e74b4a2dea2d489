"""What a budget says about itself: whether anybody is held by it, and how to change that."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.controllers.budgets.budgeted import NS, Field, field

from zonewise.api import Namespace, Pod
from zonewise.api.objects.budgets import TopologyDisruptionBudget
from zonewise.api.objects.events import Event
from zonewise.controllers.budgets.controller import BudgetsController
from zonewise.disruption import namespace_budgets
from zonewise.runtime.client.transport import Request

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def enforced(town: Field) -> tuple[str, str, str]:
    """Status, reason and message of the condition."""
    (found,) = [one for one in (await town.told()).status.conditions if one.type == "Enforced"]
    return found.status, found.reason, found.message


async def test_a_namespace_that_has_not_opted_in() -> None:
    """The condition names the command; after it the budget is in force."""
    async with field(3, *"abc", enforce=False) as town:
        await town.budget(maxUnavailable=1)
        await asyncio.sleep(5)
        status, reason, message = await enforced(town)
        assert (status, reason) == ("False", "NamespaceNotEnforced")
        assert f"kubectl label namespace {NS} zonewise.io/budgets=enforce" in message
        body = {"metadata": {"labels": {"zonewise.io/budgets": "enforce"}}}
        await town.client.patch(Namespace, NS, None, body)
        await asyncio.sleep(5)
        assert (await enforced(town))[:2] == ("True", "Enforced")


async def test_a_budget_that_observes_is_counted() -> None:
    """``mode: Observe`` has all its numbers, and says that it holds nobody."""
    async with field(3, *"abc") as town:
        await town.budget(maxUnavailable=0, mode="Observe")
        await asyncio.sleep(5)
        assert (await enforced(town))[:2] == ("False", "ObserveOnly")
        assert (await town.told()).status.allowed == "a=0,b=0,c=0"


async def test_many_moves_are_few_writes() -> None:
    """Forty changes of pods within four seconds cost a write a second, not one each."""
    async with field(3, *"abc") as town:
        await town.budget(maxUnavailable=1)
        await asyncio.sleep(5)
        store = town.cluster.program.cache.store(type(await town.told()))
        writes: list[str] = []
        store.on_change(lambda _, new: writes.append("" if new is None else new.metadata.name))
        writes.clear()
        for _ in range(20):
            name = await town.pod("a")
            await asyncio.sleep(0.1)
            await town.gone(name)
            await asyncio.sleep(0.1)
        await asyncio.sleep(5)
        assert 1 <= len(writes) <= 6


async def test_an_old_label_is_told_once() -> None:
    """A budget with an old key of zones gets one event, and counts as with the new one."""
    old = {"key": "failure-domain.beta.kubernetes.io/zone", "operator": "Exists"}
    async with field(3, *"abc") as town:
        await town.budget(maxUnavailable=1, nodeSelectorTerm={"matchExpressions": [old]})
        await asyncio.sleep(60)
        assert await town.baseline() == {"a": 1, "b": 1, "c": 1}
        events = await town.client.list(Event, NS)
        assert [one.reason for one in events if one.regarding.name == "web"] == ["OldLabelKey"]


async def test_budgets_beyond_the_limit_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit of two the third is not counted and tells it; deleting an older one mends it."""
    monkeypatch.setattr(namespace_budgets, "BUDGETS_LIMIT", 2)
    async with field(3, *"abc") as town:
        for name in ("web", "old", "new"):
            await town.budget(name, maxUnavailable=1)
            await asyncio.sleep(2)
        await asyncio.sleep(5)
        assert (await allowing(town, "old"))[:2] == ("True", "SufficientPods")
        status, reason, message = await allowing(town, "new")
        assert (status, reason) == ("False", "TooManyBudgets")
        assert "the 2 oldest are counted, and new is not among them" in message
        before = await town.told("new")
        await town.gone("web-1")
        await town.pod("b")
        await asyncio.sleep(5)
        assert await town.told("new") == before, "pods are nothing to a budget that is not counted"
        await town.client.delete(TopologyDisruptionBudget, "web", NS)
        await asyncio.sleep(5)
        assert (await allowing(town, "new"))[:2] == ("True", "SufficientPods")


async def test_only_budgets_of_a_changed_pod_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thirty budgets the one that selects a pod is counted when the pod changes."""
    counted: list[str] = []
    count = BudgetsController._count

    async def counting(self: BudgetsController, *given: Any) -> float:
        counted.append(given[1].name)
        return await count(self, *given)

    monkeypatch.setattr(BudgetsController, "_count", counting)
    async with field(3, *"abc") as town:
        for number in range(30):
            selector = {"matchLabels": {"group": str(number)}}
            await town.budget(f"b{number}", maxUnavailable=1, selector=selector)
        await asyncio.sleep(20)
        counted.clear()
        for name, labels in (("web-1", {"group": "7"}), ("web-2", {"other": "7"})):
            await town.client.patch(Pod, name, NS, {"metadata": {"labels": labels}})
        await asyncio.sleep(5)
        assert set(counted) == {"b7"}


async def allowing(town: Field, name: str) -> tuple[str, str, str]:
    """Status, reason and message of the condition that tells what is allowed."""
    conditions = (await town.told(name)).status.conditions
    (condition,) = [one for one in conditions if one.type == "DisruptionAllowed"]
    return condition.status, condition.reason, condition.message


async def columns(town: Field) -> dict[str, dict[str, str]]:
    """What ``kubectl get tdb`` shows: the narrow columns of each budget."""
    request = Request(
        method="GET",
        path=f"/apis/zonewise.io/v1alpha1/namespaces/{NS}/topologydisruptionbudgets",
        headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"},
    )
    response = await town.client.transport.send(request)
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
    """``kubectl get tdb`` tells them from zeros that also hold a drain."""
    async with field(3, *"abc") as town:
        await town.budget("drains", maxUnavailable=0)
        await town.budget("web", maxUnavailable=0, holds="Updates")
        await asyncio.sleep(5)
        shown = await columns(town)
        assert shown["drains"]["Allowed"] == "a=0,b=0,c=0"
        assert shown["web"]["Allowed"] == "a=0,b=0,c=0 (updates only)"
        await town.edit(holds="Disruptions")
        await asyncio.sleep(5)
        assert (await columns(town))["web"]["Allowed"] == "a=0,b=0,c=0"


async def test_a_line_of_an_older_version_is_written_again() -> None:
    """A budget that was counted before the line said what it is about is corrected once."""
    async with field(3, *"abc") as town:
        await town.budget(maxUnavailable=0, holds="Updates")
        await asyncio.sleep(5)
        old = {"status": {"allowed": "a=0,b=0,c=0"}}
        await town.client.patch(TopologyDisruptionBudget, "web", NS, old, subresource="status")
        await asyncio.sleep(5)
        assert (await town.told()).status.allowed == "a=0,b=0,c=0 (updates only)"
