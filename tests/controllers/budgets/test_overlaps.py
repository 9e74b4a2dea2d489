"""Plain PodDisruptionBudgets that have pods in common, on a cluster whose server refuses that."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from tests.controllers.budgets.budget_scene import LABELS, NS, BudgetScene, budget_scene
from tests.disruption import clusters

from zonewise.api import Pod, convert
from zonewise.api.objects.events import Event
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.controllers.budgets.overlaps import Overlaps
from zonewise.disruption.budget import budget_of
from zonewise.disruption.namespace_budgets import PODS_PER_SLICE, NamespaceBudgets
from zonewise.runtime.cache.store import Store
from zonewise.runtime.controller.recorder import Recorder


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


@pytest.mark.asyncio
@pytest.mark.looptime
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


@pytest.mark.asyncio
@pytest.mark.looptime
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


class Notes:
    """Events of budgets that are all of the same pods."""

    def __init__(self, count: int) -> None:
        self.sent: list[str] = []
        items = [self.budget(number) for number in range(count)]
        stored = {(clusters.NS, item.metadata.name): item for item in items}
        self.budgets = [budget_of(item) for item in items]
        recorder = cast(Recorder, self)
        self.overlaps = Overlaps(recorder, cast(Store[PodDisruptionBudget], stored))

    @staticmethod
    def budget(number: int) -> PodDisruptionBudget:
        """One of the budgets."""
        meta = {"name": f"web-{number:03d}", "namespace": clusters.NS}
        spec = {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1}
        return convert(PodDisruptionBudget, {"metadata": meta, "spec": spec})

    def event(self, item: PodDisruptionBudget, code: str, *words: str, **more: Any) -> None:
        """Record an event: its note."""
        assert (code, more) == ("SeveralBudgets", {"type": "Warning"})
        self.sent.append(f"{item.metadata.name}: {words[-1]}")


def namespace_of(notes: Notes, pods: int) -> NamespaceBudgets:
    """The budgets, and pods that all of them cover."""
    items = [clusters.pod(f"web-{number}", "n-a") for number in range(pods)]
    return clusters.namespace_budgets(items, *notes.budgets, replicas=pods)


def test_a_note_names_few_of_many_budgets() -> None:
    """An event names three of the others and counts the rest, so that none grows with them."""
    notes = Notes(6)
    list(notes.overlaps.find_overlaps(namespace_of(notes, 2), notes.budgets[0]))
    assert len(notes.sent) == 6
    assert notes.sent[0].startswith(
        "web-000: PodDisruptionBudgets web-001, web-002, web-003 and 2 more cover pods of web-000"
    )
    assert notes.sent[5].startswith(
        "web-005: PodDisruptionBudgets web-000, web-001, web-002 and 2 more cover pods of web-005"
    )


def test_a_budget_beside_many_is_the_only_one_that_is_reported() -> None:
    """Budgets that were reported with three others are not reported again for every further one,
    but again after one of those was changed.
    """
    notes = Notes(50)
    namespace = namespace_of(notes, 3)
    newest = notes.budgets[-1]
    namespace.drop_budget(newest.key)
    list(notes.overlaps.find_overlaps(namespace, notes.budgets[0]))
    assert len(notes.sent) == 49
    namespace.put_budget(newest)
    list(notes.overlaps.find_overlaps(namespace, newest))
    assert [note.partition(":")[0] for note in notes.sent[49:]] == [newest.name]
    notes.overlaps.forget(notes.budgets[0].key)
    list(notes.overlaps.find_overlaps(namespace, notes.budgets[0]))
    assert len(notes.sent) == 100


def test_slices_are_of_pods_and_the_budgets_that_cover_them() -> None:
    """With many budgets, few pods are looked at before others have their turn."""
    notes = Notes(PODS_PER_SLICE)
    pauses = list(notes.overlaps.find_overlaps(namespace_of(notes, 20), notes.budgets[0]))
    assert len(pauses) == 20
    assert len(notes.sent) == PODS_PER_SLICE
