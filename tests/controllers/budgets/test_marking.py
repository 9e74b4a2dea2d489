"""Who is marked to go when a ReplicaSet is held: the fullest zone first, and nobody else's pods.

Its Deployment is told which budget holds it.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.controllers.budgets.budgeted import NS, Field, field

from zonewise.api import Deployment, Pod, ReplicaSet, convert
from zonewise.api.objects.events import Event
from zonewise.disruption.steering import DELETION_COST, MARK_COST, REDUCE_TO

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def hold(town: Field, size: int | None) -> None:
    """What the clamp writes, or takes back."""
    wish = None if size is None else str(size)
    body = {"metadata": {"annotations": {REDUCE_TO: wish}}}
    await town.client.patch(ReplicaSet, "web", NS, body)
    await asyncio.sleep(10)


async def costs(town: Field) -> dict[str, str]:
    """Deletion costs of pods."""
    pods = await town.client.list(Pod, NS)
    return {
        pod.metadata.name: pod.metadata.annotations[DELETION_COST]
        for pod in pods
        if DELETION_COST in pod.metadata.annotations
    }


async def size(town: Field) -> int:
    """What the ReplicaSet asks for."""
    return (await town.client.get(ReplicaSet, "web", NS)).spec.replicas


async def test_the_fullest_zone_gives_first() -> None:
    """Three of zone a, two of b, one of c become four: both that go are from where most are, and
    as many as the budget allows are taken off at once.
    """
    async with field(6, *"aaabbc") as town:
        await town.budget(maxUnavailable=2)
        await asyncio.sleep(5)
        await hold(town, 4)
        marked = {
            (await town.client.get(Pod, name, NS)).spec.node_name for name in await costs(town)
        }
        assert set((await costs(town)).values()) == {MARK_COST}
        assert marked <= {"n-a", "n-b"}
        assert "n-a" in marked
        assert await size(town) == 4


async def test_nothing_is_marked_that_may_not_go() -> None:
    """Under a budget that allows nothing a held ReplicaSet keeps its size, and an hour costs no
    write; a wider budget lets it go on.
    """
    async with field(3, *"abc") as town:
        await town.budget(minAvailable=1)
        await asyncio.sleep(5)
        await hold(town, 2)
        before = await town.client.get(ReplicaSet, "web", NS)
        await asyncio.sleep(3600)
        after = await town.client.get(ReplicaSet, "web", NS)
        assert await costs(town) == {}
        assert after.metadata.resource_version == before.metadata.resource_version
        await town.edit(minAvailable=0)
        await asyncio.sleep(10)
        assert len(await costs(town)) == 1
        assert await size(town) == 2


async def test_a_cost_of_somebody_else_is_left_alone() -> None:
    """A pod whose cost was given by others keeps it, and an event says that it is not steered."""
    async with field(2, "a") as town:
        theirs = {"metadata": {"annotations": {DELETION_COST: "7"}}}
        (pod,) = await town.client.list(Pod, NS)
        await town.client.patch(Pod, pod.metadata.name, NS, theirs)
        await town.budget(maxUnavailable=2)
        await asyncio.sleep(5)
        await hold(town, 0)
        assert await costs(town) == {pod.metadata.name: "7"}
        told = [one.reason for one in await town.client.list(Event, NS)]
        assert "ForeignDeletionCost" in told


async def test_a_wish_that_is_withdrawn_takes_its_marks_back() -> None:
    """A ReplicaSet that is to grow again has no marked pods."""
    async with field(3, *"abc") as town:
        await town.budget(maxUnavailable=1)
        await asyncio.sleep(5)
        body = {"metadata": {"annotations": {REDUCE_TO: "2"}}}
        await town.client.patch(ReplicaSet, "web", NS, body)
        await asyncio.sleep(0.6)
        assert len(await costs(town)) == 1
        await hold(town, 3)
        assert await costs(town) == {}
        assert await size(town) == 3


async def deploy(town: Field) -> Deployment:
    """A Deployment to which the ReplicaSet belongs."""
    owner = await town.client.get(ReplicaSet, "web", NS)
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
    deployment = await town.client.create(convert(Deployment, body))
    reference = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": "web",
        "uid": deployment.metadata.uid,
        "controller": True,
    }
    await town.client.patch(ReplicaSet, "web", NS, {"metadata": {"ownerReferences": [reference]}})
    return deployment


async def holds(town: Field) -> list[Event]:
    """The events that tell of a hold, the oldest first."""
    events = [one for one in await town.client.list(Event, NS) if one.reason == "HeldByBudget"]
    return sorted(events, key=lambda event: event.event_time or "")


async def test_a_hold_is_an_event_on_the_deployment() -> None:
    """One event names the ReplicaSet, its sizes and the budget, however long the hold lasts and
    whatever changes meanwhile; the next hold is another event.
    """
    async with field(3, *"abc") as town:
        deployment = await deploy(town)
        await town.budget(minAvailable=1)
        await asyncio.sleep(5)
        await hold(town, 1)
        (event,) = await holds(town)
        assert event.regarding.kind == "Deployment"
        assert event.regarding.uid == deployment.metadata.uid
        assert event.type == "Warning"
        assert event.note == (
            'ReplicaSet "web" has 3 pods and should have 1: the budget web: needs 1 healthy pods in'
            " domain a and has 1"
        )
        for number in range(20):
            body = {"metadata": {"annotations": {"example.com/number": str(number)}}}
            await town.client.patch(Pod, "web-1", NS, body)
            await asyncio.sleep(60)
        assert await holds(town) == [event]
        await town.edit(minAvailable=0)
        await asyncio.sleep(10)
        assert await holds(town) == [event]
        assert await size(town) == 1
        for name in await costs(town):
            await town.gone(name)
        await town.edit(minAvailable=1)
        await asyncio.sleep(5)
        await hold(town, 0)
        assert len(await holds(town)) == 2
        assert "has 1 pods and should have 0: the budget web: " in (
            (await holds(town))[-1].note or ""
        )


async def test_a_scale_down_that_goes_on_is_no_hold() -> None:
    """Nothing is told where the budget lets the pods go."""
    async with field(3, *"abc") as town:
        await deploy(town)
        await town.budget(maxUnavailable=1)
        await asyncio.sleep(5)
        await hold(town, 1)
        assert await size(town) == 1
        assert await holds(town) == []
