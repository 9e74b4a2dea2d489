"""One event and one condition per transition. Virtual time."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.controllers.hints.shops import SPACE, Shop, hints
from tests.embedded.virtual_cluster import until, virtual_cluster

from zonewise.api import FeatureGates, Pod, Service, convert
from zonewise.api.reason import Reason
from zonewise.controllers.hints.conditions import HintConditions
from zonewise.runtime.client.client import Client
from zonewise.runtime.controller.recorder import Recorder
from zonewise.traffic.hints import HintDecision
from zonewise.traffic.limits import HintCounts
from zonewise.traffic.modes import MODE_ANNOTATION, Mode
from zonewise.traffic.slices.planning import FamilyPlan

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

ON, OFF = "TopologyAwareHintsEnabled", "TopologyAwareHintsDisabled"


async def mode(shop: Shop, value: str | None) -> None:
    """Set the annotation, or remove it."""
    await shop.client.patch(
        Service, "web", SPACE, {"metadata": {"annotations": {MODE_ANNOTATION: value}}}
    )


async def test_transitions_are_reported_once() -> None:
    """Scenario 24: hints that appear, are lost with pods, appear again and end with the annotation
    are reported once each.
    """
    async with virtual_cluster({"hints": hints()}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1, b=1)
        await shop.service("web", annotations={})
        await shop.pods(a0=2, b0=2)
        await until(lambda: shop.per_zone() == {"": 4})
        assert shop.condition() is None
        await mode(shop, "Auto")
        await until(lambda: shop.condition() == ("True", "Hinted"))
        for round_ in range(5):
            await shop.ready("web-a0-0", "10.3.97.0", ready=bool(round_ % 2))
            await asyncio.sleep(2)
        await shop.ready("web-a0-0", "10.3.97.0")
        await asyncio.sleep(5)
        reasons = await shop.events()
        assert reasons[0] == ON
        flips = reasons.count(OFF)
        await mode(shop, None)
        await until(lambda: shop.condition() is None)
        assert shop.per_zone() == {"": 4}
        await asyncio.sleep(5)
        assert (await shop.events()).count(OFF) == flips + 1


def is_reported(shop: Shop, status: str) -> bool:
    """Whether the condition has this status."""
    condition = shop.condition()
    return condition is not None and condition[0] == status


async def test_the_last_event_is_the_condition_after_every_transition() -> None:
    """Hints that are lost and come back are told each time, however soon and in the same words."""
    async with virtual_cluster({"hints": hints()}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1, b=1)
        await shop.service("web")
        await shop.pods(a0=2, b0=2)
        await until(lambda: shop.condition() == ("True", "Hinted"))
        for transition in range(1, 7):
            lost = transition % 2 == 1
            await shop.status("a0", cpu="0" if lost else "4")
            await until(partial(is_reported, shop, str(not lost)))
            await asyncio.sleep(1)
            events = await shop.events()
            assert (len(events), events[-1]) == (transition + 1, OFF if lost else ON)


async def test_a_service_created_again_is_reported_again() -> None:
    """Scenario 24: a new Service under an old name is reported again and has slices of its own."""
    async with virtual_cluster({"hints": hints()}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1, b=1)
        await shop.service("web")
        await shop.pods(a0=2, b0=2)
        await until(lambda: shop.condition() == ("True", "Hinted"))
        await shop.client.delete(Service, "web", SPACE)
        await until(lambda: shop.services.get((SPACE, "web")) is None)
        again = await shop.service("web")
        await until(lambda: shop.condition() == ("True", "Hinted"))

        def theirs() -> bool:
            owners = [piece.metadata.owner_references[0].uid for piece in shop.of("web")]
            return owners == [again.metadata.uid]

        await until(theirs)
        await asyncio.sleep(2)
        assert (await shop.events()).count(ON) == 2


def family(code: str, *, hinted: bool) -> FamilyPlan:
    """One address family with a decision."""
    reason = Reason(code=code, message=f"it is {code}")
    return FamilyPlan(HintDecision(Mode.AUTO, hinted, reason), HintCounts.of([]), 2, 1, 1)


async def test_two_families_are_one_event() -> None:
    """Scenario 23: if IPv4 is hinted and IPv6 is not there is one event; ten more turns report
    nothing.
    """
    async with virtual_cluster({}) as cluster:
        shop = Shop(cluster)
        await shop.service("web")
        context = cluster.program.context("hints")
        conditions = HintConditions(context.client, context.recorder, context.clock)
        sending = asyncio.create_task(context.recorder.run())
        families = {"IPv4": family("Hinted", hinted=True), "IPv6": family("Overload", hinted=False)}
        for _ in range(10):
            service = await shop.client.get(Service, "web", SPACE)
            await conditions.report(service, families, asks=True)
            await asyncio.sleep(1)
        (condition,) = (await shop.client.get(Service, "web", SPACE)).status.conditions
        assert (condition.status, condition.reason) == ("True", "Hinted")
        assert condition.message == "IPv4: it is Hinted IPv6: it is Overload"
        assert await shop.events() == [ON]
        sending.cancel()


async def test_the_condition_remembers_over_restarts() -> None:
    """A controller that starts reads the condition, and reports nothing again."""
    async with virtual_cluster({}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1, b=1)
        await shop.service("web")
        await shop.pods(a0=2, b0=2)
        for _ in range(3):
            part = hints()(cluster.program.context("hints"))
            work = asyncio.create_task(part.run())
            await until(lambda: shop.condition() == ("True", "Hinted"))
            await asyncio.sleep(30)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        service = shop.services.get((SPACE, "web"))
        assert service is not None
        moment = service.status.conditions[0].last_transition_time
        assert moment is not None
        await shop.client.delete(Pod, "web-a0-0", SPACE, grace_period=0)
        assert service.status.conditions[0].last_transition_time == moment


async def test_numbers_alone_are_not_reported() -> None:
    """While the code stays the same, changing numbers write no condition."""
    async with virtual_cluster({"hints": hints()}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1, b=1, c=1)
        await shop.service("web")
        await shop.pods(a0=2, b0=1, c0=1)
        await until(lambda: shop.condition() == ("False", "Overload"))
        before = shop.services.get((SPACE, "web"))
        await shop.pod("web-x", "a0", "10.0.9.9")
        await until(lambda: len(shop.endpoints("web")) == 5)
        await asyncio.sleep(5)
        assert shop.services.get((SPACE, "web")) is before


async def test_the_last_event_agrees_with_the_condition_however_often_that_changes() -> None:
    """After more transitions than an object may have events for, the last is told in 30 seconds."""
    async with virtual_cluster({"hints": hints()}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1, b=1)
        await shop.service("web")
        await shop.pods(a0=2, b0=2)
        await until(lambda: shop.condition() == ("True", "Hinted"))
        for number in range(1, 36):
            lost = number % 2 == 1
            await shop.status("a0", cpu="0" if lost else "4")
            await until(partial(is_reported, shop, str(not lost)))
            await asyncio.sleep(3 if number % 10 else 31)
            if number % 10 == 0:
                assert (await shop.events())[-1] == (OFF if lost else ON)
        await asyncio.sleep(31)
        assert (await shop.events())[-1] == OFF


class MemoryRecorder(Recorder):
    """A recorder that only remembers."""

    def __init__(self, client: Client) -> None:
        super().__init__(client, controller="zonewise.io/hints", instance="here")
        self.notes: list[tuple[str, str]] = []

    def event(self, regarding: object, reason: str, action: str, note: str, **_: Any) -> None:
        """Store reason and note."""
        self.notes.append((reason, note))


async def test_wrong_topology_keys_are_reported_once() -> None:
    """Keys that were stored wrong are ignored, which is reported once for each mistake."""
    async with virtual_cluster({}) as cluster:
        recorder = MemoryRecorder(cluster.client)
        conditions = HintConditions(cluster.client, recorder, lambda: 0.0)

        def report(text: str, uid: str = "1") -> None:
            meta = {"name": "web", "uid": uid, "annotations": {"zonewise.io/topology-keys": text}}
            conditions.report_keys(convert(Service, {"metadata": meta}), FeatureGates())

        for text in ("zone,*", "*,zone", "*,zone", "zone,zone", "zone,*", "zone,zone"):
            report(text)
        assert [reason for reason, _ in recorder.notes] == ["InvalidTopologyKeys"] * 3
        assert "'*' must be the last key" in recorder.notes[0][1]
        report("zone,zone", uid="2")
        assert len(recorder.notes) == 4
        stored = {"metadata": {"name": "old", "uid": "3"}, "spec": {"topologyKeys": ["*", "a b"]}}
        conditions.report_keys(convert(Service, stored), FeatureGates())
        assert recorder.notes[4][0] == "TopologyKeysOff", "not an error of keys without effect"
