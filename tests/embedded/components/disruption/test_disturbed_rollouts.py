"""Rollouts under a budget per zone with outages, edits, drains and a lost leader."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.embedded.components.disruption.budget_stories import (
    OLD_ZONE,
    STORY_2,
    Watcher,
    apply,
    counted,
    deployment,
    evict,
    images,
    update,
)
from tests.embedded.whole_cluster import settled, whole

from zonewise.api import DisruptionLedger, Node, Pod, PodDisruptionBudget
from zonewise.api.objects.pod_state import is_pod_active, is_pod_ready
from zonewise.embedded.cluster import EmbeddedCluster
from zonewise.embedded.components.kubelet.node_status import FAILED_ANNOTATION
from zonewise.embedded.seed.nodes import NodeLayout

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


def slow(replicas: int, **more: int) -> dict[str, Any]:
    """Pods that take some time to become Ready, so that a rollout takes some time."""
    body = deployment(replicas, **more)
    body["spec"]["template"]["metadata"]["annotations"] = {"zonewise.io/ready-after": "10s"}
    return body


async def fail(cluster: EmbeddedCluster, zone: str, *, heal: bool = False) -> None:
    """Make a zone fail, or heal it."""
    for number in range(1, 4):
        body: dict[str, Any] = {
            "metadata": {"annotations": {FAILED_ANNOTATION: None if heal else "yes"}}
        }
        await cluster.client.patch(Node, f"{zone}-{number}", None, body)


@pytest.mark.parametrize("heals", [True, False])
async def test_a_zone_fails_in_the_middle(heals: bool) -> None:
    """If a zone fails during a rollout the others keep what the budget says, and the rollout ends
    with or without the zone.
    """
    async with whole([*NodeLayout().nodes(), slow(9)]) as cluster:
        await settled(cluster)
        await apply(cluster, STORY_2)
        await counted(cluster)
        watcher = Watcher(cluster)
        watcher.begin()
        await update(cluster)
        await asyncio.sleep(15)
        assert {image for _, image in await images(cluster)} == {"c:1", "c:2"}
        await fail(cluster, "b")
        await asyncio.sleep(100)
        assert watcher.least["a"] >= 2
        assert watcher.least["c"] >= 2
        if heals:
            await fail(cluster, "b", heal=True)
        # A lost node's pods are given up after five minutes, and end only with their node.
        async with asyncio.timeout(3600):
            while True:
                seen = await images(cluster)
                if {image for _, image in seen} == {"c:2"} and sum(seen.values()) == 9:
                    break
                await asyncio.sleep(5)
        assert watcher.least["a"] >= 2
        assert watcher.least["c"] >= 2


async def test_a_budget_edited_in_the_middle() -> None:
    """A budget that is closed stops a rollout; widened, the rollout ends within the new limit."""
    async with whole([*NodeLayout().nodes(), slow(12, unavailable=9)]) as cluster:
        await settled(cluster)
        await apply(cluster, STORY_2)
        await counted(cluster)
        watcher = Watcher(cluster)
        watcher.begin()
        await update(cluster)
        await asyncio.sleep(15)
        body = {"spec": {"maxUnavailable": 0}}
        await cluster.client.patch(PodDisruptionBudget, "app-pdb", "default", body)
        await asyncio.sleep(60)
        stalled = await images(cluster)
        assert {image for _, image in stalled} == {"c:1", "c:2"}
        await asyncio.sleep(600)
        assert await images(cluster) == stalled
        assert all(least >= 3 for least in watcher.least.values())
        body = {"spec": {"maxUnavailable": 2}}
        await cluster.client.patch(PodDisruptionBudget, "app-pdb", "default", body)
        await settled(cluster, within=900)
        await asyncio.sleep(60)
        assert {image for _, image in await images(cluster)} == {"c:2"}
        assert all(least >= 2 for least in watcher.least.values())


async def test_the_keys_of_a_budget_edited_in_the_middle() -> None:
    """A budget with other keys is counted again, and nothing is granted before."""
    async with whole([*NodeLayout().nodes(), slow(9)]) as cluster:
        await settled(cluster)
        await apply(cluster, STORY_2)
        await counted(cluster)
        watcher = Watcher(cluster)
        watcher.begin()
        await update(cluster)
        await asyncio.sleep(15)
        rack = "topology.zonewise.io/rack"
        term = {
            "matchExpressions": [{"key": key, "operator": "Exists"} for key in (OLD_ZONE, rack)]
        }
        body = {"spec": {"nodeSelectorTerm": term}}
        await cluster.client.patch(PodDisruptionBudget, "app-pdb", "default", body)
        pods = await cluster.client.list(Pod, "default")
        first = next(pod for pod in pods if is_pod_active(pod) and is_pod_ready(pod))
        assert not await evict(cluster, first.metadata.name)
        assert set(await counted(cluster)) == {
            f"{zone}/{zone}-r{n}" for zone in "abc" for n in (1, 2)
        }
        await settled(cluster, within=900)
        assert {image for _, image in await images(cluster)} == {"c:2"}
        assert all(least >= 1 for least in watcher.least.values())


async def test_two_nodes_are_drained_at_once() -> None:
    """Drains in two zones that retry every five seconds both end, one pod of a zone at once."""
    async with whole([*NodeLayout(nodes_per_zone=2).nodes(), deployment(12)]) as cluster:
        await settled(cluster)
        await apply(cluster, STORY_2)
        await counted(cluster)
        watcher = Watcher(cluster)
        watcher.begin()

        async def drain(name: str) -> int:
            await cluster.client.patch(Node, name, None, {"spec": {"unschedulable": True}})
            tries = 0
            while pods := [
                pod
                for pod in await cluster.client.list(Pod, "default")
                if pod.spec.node_name == name and pod.metadata.deletion_timestamp is None
            ]:
                tries += 1
                for pod in pods:
                    await evict(cluster, pod.metadata.name)
                await asyncio.sleep(5)
            return tries

        async with asyncio.timeout(600):
            await asyncio.gather(drain("a-1"), drain("b-1"))
        assert watcher.least["a"] >= 3
        assert watcher.least["b"] >= 3
        assert watcher.least["c"] >= 4
        await settled(cluster)


async def test_a_leader_dies_between_grant_and_eviction(tmp_path: Path) -> None:
    """A grant counts for the next leader: no second pod of the zone is evicted, the same pod may
    be, and an unused grant ends after two minutes.
    """
    async with whole([*NodeLayout().nodes(), deployment(9)], folder=tmp_path) as cluster:
        await settled(cluster)
        await apply(cluster, STORY_2)
        await counted(cluster)
        gate = cluster.server.evictions.gate
        assert gate is not None
        pods = list(await cluster.client.list(Pod, "default"))
        zone = [pod for pod in pods if pod.spec.node_name.startswith("a")]
        verdict = await gate.ask(zone[0], evicting=True, dry_run=False)
        assert verdict.charged
    async with whole([], folder=tmp_path) as cluster:
        await counted(cluster)
        await asyncio.sleep(5)
        assert not await evict(cluster, zone[1].metadata.name)
        ledger = await cluster.client.get(DisruptionLedger, "zonewise", "default")
        assert [grant.pod for grant in ledger.spec.grants] == [zone[0].metadata.name]
        await asyncio.sleep(150)
        assert await evict(cluster, zone[1].metadata.name)
        ledger = await cluster.client.get(DisruptionLedger, "zonewise", "default")
        assert zone[0].metadata.name not in {grant.pod for grant in ledger.spec.grants}


async def test_a_leader_dies_and_its_pod_goes_once(tmp_path: Path) -> None:
    """The next leader evicts the granted pod, without a second grant."""
    async with whole([*NodeLayout().nodes(), deployment(9)], folder=tmp_path) as cluster:
        await settled(cluster)
        await apply(cluster, STORY_2)
        await counted(cluster)
        gate = cluster.server.evictions.gate
        assert gate is not None
        pods = list(await cluster.client.list(Pod, "default"))
        first = next(pod for pod in pods if pod.spec.node_name.startswith("a"))
        await gate.ask(first, evicting=True, dry_run=False)
    async with whole([], folder=tmp_path) as cluster:
        await counted(cluster)
        await asyncio.sleep(5)
        assert await evict(cluster, first.metadata.name)
        ledger = await cluster.client.get(DisruptionLedger, "zonewise", "default")
        assert len(ledger.spec.grants) == 1
