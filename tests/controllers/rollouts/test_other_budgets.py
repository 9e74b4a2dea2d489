"""Rollouts by domain beside budgets that expect other numbers of pods, on a whole cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.controllers.rollouts.rollout_scene import (
    Obj,
    Zones,
    begin,
    complete,
    finish,
    until,
    update,
    workload,
)
from tests.embedded.components.disruption.foo_workloads import topology_budget
from tests.embedded.whole_cluster import settled, whole

from zonewise.api import Node, Pod, TopologyDisruptionBudget
from zonewise.api.objects.budgets import DomainRollout
from zonewise.embedded.cluster import EmbeddedCluster
from zonewise.embedded.seed.nodes import NodeLayout

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def emptied(cluster: EmbeddedCluster, zone: str) -> None:
    """Drain a zone, and take pods there again once they run elsewhere."""
    names = [node.metadata.name for node in await cluster.client.list(Node)]
    names = [name for name in names if name.startswith(zone)]
    for name in names:
        await cluster.client.patch(Node, name, None, {"spec": {"unschedulable": True}})
    for pod in await cluster.client.list(Pod, "default"):
        if pod.spec.node_name.startswith(zone):
            await cluster.client.evict(pod.metadata.name, "default")
    await settled(cluster)
    for name in names:
        await cluster.client.patch(Node, name, None, {"spec": {"unschedulable": None}})


def per_domain(**spec: Any) -> Obj:
    """A budget that expects the replicas divided by the zones."""
    metadata = {"name": "even", "namespace": "default"}
    return topology_budget(expectedPods="ReplicasPerDomain", **spec) | {"metadata": metadata}


@pytest.mark.parametrize(
    "spec",
    [
        {"maxUnavailable": 2, "crossDomain": "Exclusive"},
        {"minAvailable": 2, "crossDomain": "Exclusive"},
        {"maxUnavailable": 1},
    ],
)
async def test_a_budget_that_expects_even_zones_gets_them(spec: Obj) -> None:
    """Where one zone is empty and a budget expects as many pods there as elsewhere, the surge of a
    rollout goes there first: the budget allows nothing before, so the rollout would never end.
    """
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2, "maxUnavailable": 0}}
    objects = [*NodeLayout().nodes(), workload("Deployment", strategy=strategy)]
    async with whole(objects) as cluster:
        await settled(cluster)
        await emptied(cluster, "c")
        zones = await begin(cluster, "Deployment")
        assert not await cluster.seeder.create([per_domain(**spec)])
        await asyncio.sleep(200)
        assert zones.images() == {("a", "c:1"): 3, ("b", "c:1"): 3}
        await update(cluster, "Deployment")
        await finish(cluster)
        images = Zones(cluster).images()
        assert images.total() == 6
        assert images[("c", "c:2")] == 2


@pytest.mark.parametrize(
    ("rolling", "spec", "words"),
    [
        (
            {"maxSurge": 0, "maxUnavailable": 1},
            {"minAvailable": 4},
            "the budget strict: needs 4 healthy pods in domain a",
        ),
        (
            {"maxSurge": 1, "maxUnavailable": 0},
            {"maxUnavailable": 0},
            "the budget strict: no pod of domain a may be unavailable",
        ),
    ],
)
async def test_the_budget_that_holds_a_deployment_is_named(
    rolling: Obj, spec: Obj, words: str
) -> None:
    """A rollout that another budget holds says which, also for a Deployment, which replaces its
    pods itself; it goes on when the budget is deleted.
    """
    strategy = {"type": "RollingUpdate", "rollingUpdate": rolling}
    objects = [*NodeLayout().nodes(), workload("Deployment", strategy=strategy)]
    async with whole(objects) as cluster:
        await begin(cluster, "Deployment")
        strict = {"metadata": {"name": "strict", "namespace": "default"}}
        assert not await cluster.seeder.create([topology_budget(**spec) | strict])
        await settled(cluster)
        await update(cluster, "Deployment")
        item = await until(cluster, lambda item: item.status.reason == "EvictionsBlocked")
        (condition,) = [each for each in item.status.conditions if each.type == "Progressing"]
        assert condition.status == "False"
        assert words in condition.message
        await cluster.client.delete(TopologyDisruptionBudget, "strict", "default")
        await until(cluster, complete)
        assert {image for _, image in Zones(cluster).images()} == {"c:2"}


async def test_no_budget_is_blamed_while_pods_start() -> None:
    """While the pods of a surge start the rollout is not blocked, though a budget allows nothing
    before they are Ready.
    """
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    objects = [*NodeLayout().nodes(), workload("Deployment", strategy=strategy)]
    async with whole(objects) as cluster:
        await begin(cluster, "Deployment")
        full = {"metadata": {"name": "full", "namespace": "default"}}
        assert not await cluster.seeder.create([topology_budget(minAvailable=2) | full])
        await settled(cluster)
        reasons: set[str] = set()

        def record(old: DomainRollout | None, new: DomainRollout | None) -> None:
            if new is not None:
                reasons.add(new.status.reason)

        cluster.program.cache.store(DomainRollout).on_change(record)
        await update(cluster, "Deployment")
        await finish(cluster)
        assert "Updating" in reasons
        assert "EvictionsBlocked" not in reasons
