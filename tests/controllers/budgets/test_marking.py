"""Which pods are marked for deletion when a ReplicaSet is held: those of the fullest zone first.

An event on its Deployment names the budget that holds it.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.controllers.budgets.budget_scene import EXISTS, NS, ZONE, BudgetScene, budget_scene

from zonewise.api import Deployment, Pod, ReplicaSet, convert
from zonewise.api.objects.events import Event
from zonewise.disruption.steering import DELETION_COST, MARK_COST, REDUCE_TO

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def hold(scene: BudgetScene, replicas: int | None) -> None:
    """Write the annotation of the clamp, or remove it."""
    annotation = None if replicas is None else str(replicas)
    body = {"metadata": {"annotations": {REDUCE_TO: annotation}}}
    await scene.client.patch(ReplicaSet, "web", NS, body)
    await asyncio.sleep(10)


async def deletion_costs(scene: BudgetScene) -> dict[str, str]:
    """Deletion costs of pods."""
    pods = await scene.client.list(Pod, NS)
    return {
        pod.metadata.name: pod.metadata.annotations[DELETION_COST]
        for pod in pods
        if DELETION_COST in pod.metadata.annotations
    }


async def replicas(scene: BudgetScene) -> int:
    """The replicas in the spec of the ReplicaSet."""
    return (await scene.client.get(ReplicaSet, "web", NS)).spec.replicas


async def test_the_fullest_zone_gives_first() -> None:
    """When three pods of zone a, two of b and one of c become four, both that go are from the
    fullest zones, and as many as the budget allows go at once.
    """
    async with budget_scene(6, *"aaabbc") as scene:
        await scene.budget(maxUnavailable=2)
        await asyncio.sleep(5)
        await hold(scene, 4)
        marked = {
            (await scene.client.get(Pod, name, NS)).spec.node_name
            for name in await deletion_costs(scene)
        }
        assert set((await deletion_costs(scene)).values()) == {MARK_COST}
        assert marked <= {"n-a", "n-b"}
        assert "n-a" in marked
        assert await replicas(scene) == 4


async def test_nothing_is_marked_that_may_not_go() -> None:
    """Under a budget that allows nothing a held ReplicaSet keeps its size, and nothing is written
    for an hour; with a wider budget it shrinks.
    """
    async with budget_scene(3, *"abc") as scene:
        await scene.budget(minAvailable=1)
        await asyncio.sleep(5)
        await hold(scene, 2)
        before = await scene.client.get(ReplicaSet, "web", NS)
        await asyncio.sleep(3600)
        after = await scene.client.get(ReplicaSet, "web", NS)
        assert await deletion_costs(scene) == {}
        assert after.metadata.resource_version == before.metadata.resource_version
        await scene.edit(minAvailable=0)
        await asyncio.sleep(10)
        assert len(await deletion_costs(scene)) == 1
        assert await replicas(scene) == 2


async def test_pods_that_are_about_to_be_deleted_are_not_counted_twice() -> None:
    """While the two pods of the open zone are marked and still exist, the ReplicaSet is not made
    smaller for them again: the pods of closed zones would be denied, and their Deployment, which
    counts sizes, would create one too many.
    """
    async with budget_scene(6, *"aabbcc") as scene:
        await deploy(scene)
        closed = {"key": ZONE, "operator": "NotIn", "values": ["a"]}
        term = {"matchExpressions": [closed, *EXISTS["matchExpressions"]]}
        await scene.budget(maxUnavailable=0, nodeSelectorTerm=term)
        await asyncio.sleep(5)
        await hold(scene, 3)
        assert len(await deletion_costs(scene)) == 2
        assert await replicas(scene) == 4
        body = {"metadata": {"annotations": {"example.com/changed": "yes"}}}
        for pod in await scene.client.list(Pod, NS):
            await scene.client.patch(Pod, pod.metadata.name, NS, body)
        await asyncio.sleep(10)
        assert await replicas(scene) == 4


async def test_a_foreign_deletion_cost_is_left_alone() -> None:
    """A pod whose cost was set by others keeps it, and an event says that it is not marked."""
    async with budget_scene(2, "a") as scene:
        theirs = {"metadata": {"annotations": {DELETION_COST: "7"}}}
        (pod,) = await scene.client.list(Pod, NS)
        await scene.client.patch(Pod, pod.metadata.name, NS, theirs)
        await scene.budget(maxUnavailable=2)
        await asyncio.sleep(5)
        await hold(scene, 0)
        assert await deletion_costs(scene) == {pod.metadata.name: "7"}
        reasons = [event.reason for event in await scene.client.list(Event, NS)]
        assert "ForeignDeletionCost" in reasons


async def test_marks_are_removed_when_the_scale_down_is_cancelled() -> None:
    """A ReplicaSet that need not shrink any more has no marked pods."""
    async with budget_scene(3, *"abc") as scene:
        await scene.budget(maxUnavailable=1)
        await asyncio.sleep(5)
        body = {"metadata": {"annotations": {REDUCE_TO: "2"}}}
        await scene.client.patch(ReplicaSet, "web", NS, body)
        await asyncio.sleep(0.6)
        assert len(await deletion_costs(scene)) == 1
        await hold(scene, 3)
        assert await deletion_costs(scene) == {}
        assert await replicas(scene) == 3


async def deploy(scene: BudgetScene) -> Deployment:
    """Create a Deployment that owns the ReplicaSet."""
    owner = await scene.client.get(ReplicaSet, "web", NS)
    labels = {"app": "web"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "c"}]},
    }
    spec = {
        "replicas": owner.spec.replicas,
        "selector": {"matchLabels": labels},
        "template": template,
    }
    body = {"metadata": {"name": "web", "namespace": NS}, "spec": spec}
    deployment = await scene.client.create(convert(Deployment, body))
    reference = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": "web",
        "uid": deployment.metadata.uid,
        "controller": True,
    }
    await scene.client.patch(ReplicaSet, "web", NS, {"metadata": {"ownerReferences": [reference]}})
    return deployment


async def hold_events(scene: BudgetScene) -> list[Event]:
    """The events about a hold, the oldest first."""
    events = [e for e in await scene.client.list(Event, NS) if e.reason == "HeldByBudget"]
    return sorted(events, key=lambda event: event.event_time or "")


async def test_a_clamp_is_an_event_on_the_deployment() -> None:
    """One event names the ReplicaSet, its sizes and the budget, however long the clamp lasts and
    whatever changes meanwhile; the next clamp is another event.
    """
    async with budget_scene(3, *"abc") as scene:
        deployment = await deploy(scene)
        await scene.budget(minAvailable=1)
        await asyncio.sleep(5)
        await hold(scene, 1)
        (event,) = await hold_events(scene)
        assert event.regarding.kind == "Deployment"
        assert event.regarding.uid == deployment.metadata.uid
        assert event.type == "Warning"
        assert event.note == (
            'ReplicaSet "web" has 3 pods and should have 1: the budget web: needs 1 healthy pods in'
            " domain a and has 1"
        )
        for number in range(20):
            body = {"metadata": {"annotations": {"example.com/number": str(number)}}}
            await scene.client.patch(Pod, "web-1", NS, body)
            await asyncio.sleep(60)
        assert await hold_events(scene) == [event]
        await scene.edit(minAvailable=0)
        await asyncio.sleep(10)
        assert await hold_events(scene) == [event]
        assert await replicas(scene) == 1
        for name in await deletion_costs(scene):
            await scene.remove_pod(name)
        await scene.edit(minAvailable=1)
        await asyncio.sleep(5)
        await hold(scene, 0)
        assert len(await hold_events(scene)) == 2
        assert "has 1 pods and should have 0: the budget web: " in (
            (await hold_events(scene))[-1].note or ""
        )


async def test_a_scale_down_that_is_allowed_is_no_hold() -> None:
    """There is no event where the budget lets the pods go."""
    async with budget_scene(3, *"abc") as scene:
        await deploy(scene)
        await scene.budget(maxUnavailable=1)
        await asyncio.sleep(5)
        await hold(scene, 1)
        assert await replicas(scene) == 1
        assert await hold_events(scene) == []
