"""Budgets per failure domain on real Kubernetes, with its own controllers and scheduler.

Everything runs with the rights that ``zonewise install --budgets enforce`` prints. A watch sees
every change of a pod: after none of them may a zone have fewer healthy pods than its budget allows.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from tests.kubernetes.budget_scene import (
    AUDIT,
    ZONE,
    ZONES,
    BudgetScene,
    image,
    same,
    scene,
)

from tools import realkube as real
from zonewise.api import Deployment, Node, PodDisruptionBudget, convert
from zonewise.api.errors import ApiError, TooManyRequests
from zonewise.api.objects.budgets import DisruptionLedger, TopologyDisruptionBudget
from zonewise.api.objects.events import Event
from zonewise.api.objects.pod_state import is_pod_ready

pytestmark = [pytest.mark.real, pytest.mark.timeout(600), pytest.mark.asyncio]


@pytest.fixture(scope="module")
def plane(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    """A whole control plane with an audit log; its long grace period keeps nodes Ready on a busy
    machine.
    """
    patient = ("--node-monitor-grace-period=10m",)
    settings = real.Settings(fsync=False, audit=AUDIT, controller_manager_args=patient)
    with real.start(settings, binaries=real_binaries) as running:
        yield running


async def test_story_2_a_rollout_keeps_every_zone(plane: real.ControlPlane) -> None:
    """Kubernetes' own Deployment controller, with maxUnavailable 3, takes one pod of each zone at a
    time, and the rollout ends.
    """
    async with scene(plane, "story2") as here:
        await here.deploy(9)
        await here.budget(ZONE, maxUnavailable=1)
        assert await here.counted() == {"a": 1, "b": 1, "c": 1}
        here.begin()
        await here.update()
        await here.ready(9, "c:2")
        assert all(count >= 2 for count in here.least.values()), here.evidence()
        assert here.most <= 9
        _within_bounds(here, pods=9)


async def test_story_3_a_rollout_takes_one_pod_of_all(plane: real.ControlPlane) -> None:
    """A budget without a term: at no moment is more than one pod missing, wherever it is."""
    async with scene(plane, "story3") as here:
        await here.deploy(6)
        await here.budget(maxUnavailable=1)
        assert await here.counted() == {"*": 1}
        here.begin()
        await here.update()
        await here.ready(6, "c:2")
        assert here.fewest >= 5
        assert here.most <= 6
        _within_bounds(here, pods=6)


def _within_bounds(here: BudgetScene, *, pods: int) -> None:
    """At most one write of the ledger for a grant and one for dropping it; one patch to mark a pod
    for deletion; at most two status writes for each pod; hardly a deletion is refused.
    """
    requests = here.requests()
    ledger = sum(n for key, n in requests.items() if " disruptionledgers 20" in key)
    status = sum(n for key, n in requests.items() if " topologydisruptionbudgets/status 20" in key)
    assert ledger <= 2 * pods, requests
    assert status <= 2 * pods + len(ZONES), requests
    assert requests["patch pods 200"] <= pods + len(ZONES), requests
    assert here.refused() <= len(ZONES), requests


async def test_recreate_is_not_blocked(plane: real.ControlPlane) -> None:
    """A Deployment of type Recreate is updated under a budget that allows no disruption: it creates
    new pods only when the old ones are gone.
    """
    async with scene(plane, "recreate") as here:
        await here.deploy(6, recreate=True)
        await here.budget(ZONE, maxUnavailable=0)
        await here.update()
        await here.ready(6, "c:2")
        assert here.refused() == 0


async def test_story_1_one_zone_at_a_time(plane: real.ControlPlane) -> None:
    """Only the zone left out of the budget is updated, and an event on the Deployment names the
    budget that blocks the rest; leaving out one zone after the other completes the rollout.
    """
    async with scene(plane, "story1") as here:
        await here.deploy(9)
        await here.budget(
            {"key": ZONE["key"], "operator": "NotIn", "values": ["a"]}, ZONE, maxUnavailable=0
        )
        here.begin()
        await here.update()

        def old() -> Counter[str]:
            return Counter(p.spec.node_name[-2] for p in here.pods() if image(p) == "c:1")

        await here.until(lambda: old() == {"b": 3, "c": 3}, "zone a updated")
        await asyncio.sleep(5)
        assert old() == {"b": 3, "c": 3}
        assert here.least["b"] == here.least["c"] == 3
        events = await here.client.list(Event, here.namespace)
        notes = [
            event.note or ""
            for event in events
            if (event.regarding.kind, event.reason) == ("Deployment", "HeldByBudget")
        ]
        assert notes and all(": the budget web: " in note for note in notes), notes
        steps: list[tuple[str, dict[str, int]]] = [("b", {"c": 3}), ("c", {})]
        for zone, left in steps:
            term = [{"key": ZONE["key"], "operator": "NotIn", "values": [zone]}, ZONE]
            body = {"spec": {"nodeSelectorTerm": {"matchExpressions": term}}}
            await here.client.patch(TopologyDisruptionBudget, "web", here.namespace, body)
            await here.until(partial(same, old, left), f"zone {zone} updated")
        await here.ready(9, "c:2")
        assert here.most <= 9
        _within_bounds(here, pods=9)


async def test_story_4_scaling_down_keeps_the_spread(
    plane: real.ControlPlane, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """Twenty pods become three, one in each zone; Kubernetes alone ignores zones here.

    What it does alone is written into the report and not asserted: 1/1/1 may be luck.
    """
    async with scene(plane, "story4") as here:
        await here.deploy(20)
        await here.budget(ZONE, maxUnavailable=1)
        await here.client.patch(Deployment, "web", here.namespace, {"spec": {"replicas": 3}})
        await here.ready(3)
        assert here.healthy() == {"a": 1, "b": 1, "c": 1}
        assert here.refused() <= len(ZONES)
    async with scene(plane, "story4alone", install=False) as here:
        await here.deploy(20)
        await here.client.patch(Deployment, "web", here.namespace, {"spec": {"replicas": 3}})
        await here.ready(3)
        record_testsuite_property("without Zonewise", dict(sorted(here.healthy().items())))


async def test_a_scale_down_to_nothing_ends(plane: real.ControlPlane) -> None:
    """Who scales a Deployment to nothing gets that, although a budget needs two pods in each zone:
    the gate never holds pods beyond those that are expected.
    """
    async with scene(plane, "nothing") as here:
        await here.deploy(6)
        await here.budget(ZONE, minAvailable=2)
        assert await here.counted() == {"a": 0, "b": 0, "c": 0}
        assert not await here.evict(here.pods()[0])
        await here.client.patch(Deployment, "web", here.namespace, {"spec": {"replicas": 0}})
        await here.ready(0)
        assert here.refused() <= len(ZONES), here.evidence()


async def test_fifty_evictions_at_once(plane: real.ControlPlane) -> None:
    """Of fifty concurrent evictions exactly as many are granted as the budget allows."""
    async with scene(plane, "fifty") as here:
        await here.deploy(50)
        await here.budget(ZONE, maxUnavailable=1)

        # An evicted pod must not be replaced meanwhile, or the budget would rightly allow more.
        closed = {"spec": {"unschedulable": True}}
        for node in (await here.client.list(Node)).items:
            await here.client.patch(Node, node.metadata.name, None, closed)
        answers = await asyncio.gather(*map(here.evict, here.pods()))
        assert sum(answers) == 3
        ledger = await here.client.get(DisruptionLedger, "zonewise", here.namespace)
        assert len(ledger.spec.grants) == 3


async def test_two_plain_budgets_of_a_pod_are_named(plane: real.ControlPlane) -> None:
    """Kubernetes answers 500 for a pod with two PodDisruptionBudgets, and names none of them. The
    gate is asked before and names both, each has an event that says what to do, and ``explain pod``
    says which to delete; replaced by a TopologyDisruptionBudget, it allows the eviction.
    """
    async with scene(plane, "plain") as here:
        await here.deploy(6)
        pod = here.pods()[0]
        meta = pod.metadata
        for name, limit in (("one", {"maxUnavailable": 1}), ("two", {"minAvailable": 2})):
            spec = {"selector": {"matchLabels": {"app": "web"}}, **limit}
            named = {"name": name, "namespace": here.namespace}
            await here.client.create(
                convert(PodDisruptionBudget, {"metadata": named, "spec": spec})
            )
        text = "this pod has 2 PodDisruptionBudgets (one, two), and Kubernetes evicts no pod"
        refusal = ""
        for _ in range(60):
            with pytest.raises(ApiError) as caught:
                await here.client.evict(meta.name, here.namespace, uid=meta.uid)
            refusal = str(caught.value)
            if text in refusal:
                break
            await asyncio.sleep(1)
        assert isinstance(caught.value, TooManyRequests)
        details = caught.value.status.details
        assert details is not None and details.causes is not None
        assert [cause.message.split(":")[0] for cause in details.causes] == [
            "The disruption budget one",
            "The disruption budget two",
        ]

        async def find_notes() -> dict[str, str]:
            return {
                event.regarding.name: event.note
                for event in await here.client.list(Event, here.namespace)
                if event.reason == "SeveralBudgets"
            }

        for _ in range(60):
            if len(events := await find_notes()) == 2:
                break
            await asyncio.sleep(1)
        assert "PodDisruptionBudget two covers pods of one, too" in events["one"]
        assert "Merge them into one budget, or replace all but one" in events["two"]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "zonewise", "explain", "pod", meta.name),
            *("-n", here.namespace, "--kubeconfig", str(plane.kubeconfig)),
            stdout=asyncio.subprocess.PIPE,
        )
        explained = (await process.communicate())[0].decode()
        assert text in explained
        assert "Delete PodDisruptionBudget" in explained
        await here.client.delete(PodDisruptionBudget, "two", here.namespace)
        await here.budget(minAvailable=2)
        assert await here.evict(pod)


async def test_a_second_update_goes_on_in_the_open_zone(plane: real.ControlPlane) -> None:
    """While only zone a is open, a Deployment is updated twice. Its oldest ReplicaSet, with which
    Kubernetes' controller begins, has pods in closed zones only; those of the other old one in zone
    a are replaced all the same, one at a time. With all zones open the update ends.
    """
    async with scene(plane, "twice") as here:
        await here.deploy(6, unavailable=1)
        only_a = {"key": ZONE["key"], "operator": "NotIn", "values": ["a"]}
        await here.budget(only_a, ZONE, maxUnavailable=0)
        here.begin()
        for version in (2, 3):
            await here.update(f"c:{version}")
            await here.until(
                partial(_is_updated, here, "a", f"c:{version}"), f"zone a at version {version}"
            )
        assert here.fewest >= 5, here.evidence()
        term = {"nodeSelectorTerm": {"matchExpressions": [ZONE]}, "maxUnavailable": 1}
        await here.client.patch(TopologyDisruptionBudget, "web", here.namespace, {"spec": term})
        await here.ready(6, "c:3")
        assert here.fewest >= 5, here.evidence()


def _is_updated(here: BudgetScene, zone: str, version: str) -> bool:
    """Whether all pods are Ready, and those of a zone have this image and no other."""
    pods = here.pods()
    images = {image(pod) for pod in pods if pod.spec.node_name[-2:-1] == zone}
    return images == {version} and len(pods) == 6 and all(map(is_pod_ready, pods))
