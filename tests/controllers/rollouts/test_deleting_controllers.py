"""Rollouts by domain where the workloads' own controllers delete pods without asking budgets."""

from __future__ import annotations

import asyncio

import pytest
from tests.controllers.rollouts.rollout_scene import (
    Zones,
    begin,
    complete,
    finish,
    rollout,
    until,
    update,
    workload,
)
from tests.embedded.whole_cluster import settled, whole

from zonewise.api import Pod
from zonewise.disruption.rollouts.replacements import is_held
from zonewise.embedded.cluster import ClusterSettings
from zonewise.embedded.seed.nodes import NodeLayout

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

DELETE = ClusterSettings(removal="delete")


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet"])
async def test_a_rollout_that_nothing_holds_says_so(kind: str) -> None:
    """A rollout of a workload that replaces its pods itself is never complete with
    ``--workload-removal=delete``, and says what to do; no new pod waits for its domain.
    """
    objects = [*NodeLayout().nodes(), workload(kind)]
    async with whole(objects, settings=DELETE) as cluster:
        await settled(cluster)
        assert not await cluster.seeder.create([rollout(kind)])
        item = await until(cluster, lambda item: item.status.reason == "ControllersDelete")
        (condition,) = [each for each in item.status.conditions if each.type == "Progressing"]
        assert condition.status == "False"
        assert "--workload-removal=evict" in condition.message
        assert ("OnDelete" in condition.message) is (kind != "Deployment")
        held_pods: list[Pod] = []

        def record(old: Pod | None, new: Pod | None) -> None:
            if new is not None and is_held(new):
                held_pods.append(new)

        cluster.program.cache.store(Pod).on_change(record)
        await update(cluster, kind)
        await asyncio.sleep(300)
        assert {image for _, image in Zones(cluster).images()} == {"c:2"}
        assert held_pods == []
        item = await until(cluster, lambda item: item.status.reason == "ControllersDelete")
        assert not complete(item)


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet"])
async def test_a_workload_that_waits_for_deletions_keeps_its_order(kind: str) -> None:
    """Under OnDelete only the rollout removes pods, by evictions that ask budgets, so the order is
    kept with ``--workload-removal=delete``, too.
    """
    body = workload(kind, strategy={"type": "OnDelete"})
    async with whole([*NodeLayout().nodes(), body], settings=DELETE) as cluster:
        zones = await begin(cluster, kind, order={"domains": ["b", "c", "a"]})
        await update(cluster, kind)
        await finish(cluster)
        assert zones.order == ["b", "c", "a"]
        assert not zones.together
