"""KEP-8's first story for StatefulSets: ordinals of other domains do not hold up the open one."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.embedded.components.disruption.budget_stories import (
    OLD_ZONE,
    STORY_1,
    Obj,
    Watcher,
    apply,
    counted,
    images,
)
from tests.embedded.whole_cluster import settled, whole

from zonewise.api import PodDisruptionBudget, StatefulSet
from zonewise.embedded.cluster import EmbeddedCluster
from zonewise.embedded.seed.nodes import NodeLayout

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


def stateful_set(replicas: int, policy: str) -> Obj:
    """Pods of app=foo, one more or less in each zone."""
    spread = {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "foo"}},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "foo"},
        "spec": {
            "replicas": replicas,
            "serviceName": "foo",
            "podManagementPolicy": policy,
            "selector": {"matchLabels": {"app": "foo"}},
            "template": {
                "metadata": {
                    "labels": {"app": "foo"},
                    "annotations": {"zonewise.io/ready-after": "3s"},
                },
                "spec": {
                    "containers": [{"name": "c", "image": "c:1"}],
                    "topologySpreadConstraints": [spread],
                },
            },
        },
    }


async def open_zone(cluster: EmbeddedCluster, zone: str) -> None:
    """Allow updates in one zone."""
    term = [
        {"key": OLD_ZONE, "operator": "NotIn", "values": [zone]},
        {"key": OLD_ZONE, "operator": "Exists"},
    ]
    body = {"spec": {"nodeSelectorTerm": {"matchExpressions": term}}}
    await cluster.client.patch(PodDisruptionBudget, "app-pdb", "default", body)


async def update(cluster: EmbeddedCluster) -> None:
    """Change the pods' template."""
    container = {"name": "c", "image": "c:2"}
    body = {"spec": {"template": {"spec": {"containers": [container]}}}}
    await cluster.client.patch(StatefulSet, "foo", "default", body)


@pytest.mark.parametrize("policy", ["OrderedReady", "Parallel"])
async def test_story_1_one_zone_at_a_time(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pods of the open zone are updated, one at a time, whatever their ordinals are; opening
    the other zones completes the update. A held pod costs no eviction.
    """
    async with whole([*NodeLayout().nodes(), stateful_set(9, policy)]) as cluster:
        await settled(cluster)
        await apply(cluster, STORY_1)
        assert await counted(cluster) == {"a": None, "b": 0, "c": 0}
        evictions = _count_evictions(cluster, monkeypatch)
        watcher = Watcher(cluster)
        watcher.begin()
        await update(cluster)
        await asyncio.sleep(120)
        for zone, done in (("b", "a"), ("c", "ab"), ("", "abc")):
            seen = await images(cluster)
            assert seen == {(name, "c:2" if name in done else "c:1"): 3 for name in "abc"}
            least = {name: 2 if name in done else 3 for name in "abc"}
            assert watcher.least == least
            if zone:
                await open_zone(cluster, zone)
                await asyncio.sleep(120)
        assert evictions["evictions"] == 9


@pytest.mark.parametrize("policy", ["OrderedReady", "Parallel"])
async def test_a_scale_down_passes_held_ordinals(policy: str) -> None:
    """A scale-down removes the highest ordinals of the open zone and ends when all were open."""
    async with whole([*NodeLayout().nodes(), stateful_set(9, policy)]) as cluster:
        await settled(cluster)
        await apply(cluster, STORY_1)
        await counted(cluster)
        await cluster.client.patch(StatefulSet, "foo", "default", {"spec": {"replicas": 3}})
        await asyncio.sleep(30)
        seen = await images(cluster)
        assert seen["a", "c:1"] == 1, seen
        for zone in "bc":
            await open_zone(cluster, zone)
            await asyncio.sleep(30)
        assert sum((await images(cluster)).values()) == 3


def _count_evictions(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the evictions that the gate is asked for."""
    questions = Counter[str]()
    gate = cluster.server.evictions.gate
    assert gate is not None
    ask = gate.ask

    async def noticed(*args: Any, **more: Any) -> Any:
        questions["evictions"] += 1
        return await ask(*args, **more)

    monkeypatch.setattr(gate, "ask", noticed)
    return questions
