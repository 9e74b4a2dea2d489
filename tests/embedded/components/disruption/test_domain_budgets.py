"""KEP-8's four stories, as its YAML prints them, on a whole embedded cluster in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.embedded.components.disruption.budget_stories import (
    OLD_ZONE,
    STORY_1,
    STORY_2,
    Obj,
    Watcher,
    apply,
    counted,
    deployment,
    evict,
    images,
    update,
)
from tests.embedded.virtual_cluster import until
from tests.embedded.whole_cluster import settled, whole

from zonewise.api import Deployment, DisruptionLedger, Pod, PodDisruptionBudget, StatefulSet
from zonewise.api.errors import Invalid
from zonewise.api.objects.budgets import TopologyDisruptionBudget
from zonewise.api.objects.events import Event
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.disruption.ledger import version_number
from zonewise.embedded.cluster import EmbeddedCluster
from zonewise.embedded.seed.nodes import NodeLayout

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


async def test_story_2_a_rollout_takes_one_pod_of_each_zone() -> None:
    """A rollout that may take three pods at once takes only one of each zone, and ends."""
    async with whole([*NodeLayout().nodes(), deployment(9)]) as cluster:
        await settled(cluster)
        await apply(cluster, STORY_2)
        assert await counted(cluster) == {"a": 1, "b": 1, "c": 1}
        watcher = Watcher(cluster)
        watcher.begin()
        await update(cluster)
        await asyncio.sleep(1)
        await settled(cluster, within=900)
        assert all(least >= 2 for least in watcher.least.values())
        assert {image for _, image in await images(cluster)} == {"c:2"}


async def test_story_1_one_zone_at_a_time() -> None:
    """Only the open zone is updated; opening the other zones completes the rollout."""
    async with whole([*NodeLayout().nodes(), deployment(9)]) as cluster:
        await settled(cluster)
        await apply(cluster, STORY_1)
        assert await counted(cluster) == {"a": None, "b": 0, "c": 0}
        await update(cluster)
        await asyncio.sleep(120)
        seen = await images(cluster)
        assert not {key for key in seen if key in {("b", "c:2"), ("c", "c:2")}}
        assert seen["a", "c:2"] == 3
        for zone in "bc":
            term = [
                {"key": OLD_ZONE, "operator": "NotIn", "values": [zone]},
                {"key": OLD_ZONE, "operator": "Exists"},
            ]
            body = {"spec": {"nodeSelectorTerm": {"matchExpressions": term}}}
            await cluster.client.patch(PodDisruptionBudget, "app-pdb", "default", body)
            await asyncio.sleep(120)
            assert (await images(cluster))[zone, "c:1"] == 0
        assert await images(cluster) == {(zone, "c:2"): 3 for zone in "abc"}


async def test_story_4_scaling_down_keeps_the_spread() -> None:
    """Ten pods become four: no zone loses more than it may, and the pods end evenly spread."""
    async with whole([*NodeLayout().nodes(), deployment(10)]) as cluster:
        await settled(cluster)
        await apply(cluster, STORY_2)
        await counted(cluster)
        await cluster.client.patch(Deployment, "foo", "default", {"spec": {"replicas": 4}})
        await asyncio.sleep(1)
        await settled(cluster, within=600)
        zones = Counter(zone for zone, _ in (await images(cluster)).elements())
        assert sum(zones.values()) == 4
        assert max(zones.values()) - min(zones[zone] for zone in "abc") <= 1


@pytest.mark.parametrize("limit", [{"minAvailable": "50%"}, {"maxUnavailable": 0}])
async def test_a_stateful_set_is_scaled_down_where_its_pods_are(limit: Obj) -> None:
    """The highest ordinals are removed although their zones are expected to keep a pod; afterwards
    the expectation follows the pods that stay.
    """
    labels = {"app": "foo"}
    zone = "topology.kubernetes.io/zone"
    group = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "foo"},
        "spec": {
            "replicas": 3,
            "serviceName": "foo",
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [{"name": "c", "image": "c:1"}],
                    "topologySpreadConstraints": [
                        {
                            "maxSkew": 1,
                            "topologyKey": zone,
                            "whenUnsatisfiable": "DoNotSchedule",
                            "labelSelector": {"matchLabels": labels},
                        }
                    ],
                },
            },
        },
    }
    budget = {
        "apiVersion": "zonewise.io/v1alpha1",
        "kind": "TopologyDisruptionBudget",
        "metadata": {"name": "foo"},
        "spec": {"selector": {"matchLabels": labels}, "topologyKeys": [zone], **limit},
    }
    async with whole([*NodeLayout().nodes(), group]) as cluster:
        await settled(cluster)
        await cluster.seeder.create([budget])
        await asyncio.sleep(5)
        for replicas in (2, 1):
            body = {"spec": {"replicas": replicas}}
            await cluster.client.patch(StatefulSet, "foo", "default", body)
            await settled(cluster)


async def test_fifty_evictions_at_once_under_three_budgets() -> None:
    """Exactly what all three budgets allow together is granted, with one write of the ledger."""
    zone = {"key": "topology.kubernetes.io/zone", "operator": "Exists"}
    specs: dict[str, Obj] = {
        "zones": {"maxUnavailable": 2, "nodeSelectorTerm": {"matchExpressions": [zone]}},
        "all": {"maxUnavailable": 5},
    }
    more = [
        {
            "apiVersion": "zonewise.io/v1alpha1",
            "kind": "TopologyDisruptionBudget",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "foo"}}, **spec},
        }
        for name, spec in specs.items()
    ]
    async with whole([*NodeLayout().nodes(), deployment(50)]) as cluster:
        await settled(cluster)
        await cluster.seeder.create(more)
        await apply(cluster, STORY_2.replace("maxUnavailable: 1", "maxUnavailable: 3"))
        await counted(cluster)
        await asyncio.sleep(2)
        names = [pod.metadata.name for pod in await cluster.client.list(Pod, "default")]
        answers = await asyncio.gather(*(evict(cluster, name) for name in names))
        assert sum(answers) == 5
        ledger = await cluster.client.get(DisruptionLedger, "zonewise", "default")
        assert len(ledger.spec.grants) == 5
        await asyncio.sleep(200)
        ledger = await cluster.client.get(DisruptionLedger, "zonewise", "default")
        assert not ledger.spec.grants


async def test_a_held_rollout_is_reported_on_its_deployment() -> None:
    """A condition and an event name the budget; no event claims a deletion that did not happen.
    When the budget is deleted the rollout ends, and the condition is removed.
    """
    async with whole([*NodeLayout().nodes(), deployment(9)]) as cluster:
        await settled(cluster)
        await apply(cluster, STORY_1.replace("- a", "- nowhere"))
        await counted(cluster)
        await update(cluster)
        await asyncio.sleep(60)
        notes = await _notes(cluster)
        assert [note for reason, note in notes if "Scaled down" in note] == []
        (refusal,) = [note for reason, note in notes if reason == "HeldByBudget"]
        assert "app-pdb" in refusal
        item = await cluster.client.get(Deployment, "foo", "default")
        (condition,) = [entry for entry in item.status.conditions if entry.type == "HeldByBudget"]
        assert condition.status == "True"
        assert "has 9 pods and should have 6: " in condition.message
        await cluster.client.delete(PodDisruptionBudget, "app-pdb", "default")
        await asyncio.sleep(120)
        item = await cluster.client.get(Deployment, "foo", "default")
        assert "HeldByBudget" not in [entry.type for entry in item.status.conditions]
        assert item.status.updated_replicas == 9
        downs = [note for _, note in await _notes(cluster) if "Scaled down" in note]
        assert downs[-1].endswith("to 0")


async def _notes(cluster: EmbeddedCluster) -> list[tuple[str, str]]:
    """The events about Deployments."""
    events = await cluster.client.list(Event, "default")
    return [
        (event.reason or "", event.note or "")
        for event in sorted(events, key=lambda item: version_number(item.metadata.resource_version))
        if event.regarding.kind == "Deployment"
    ]


@pytest.mark.slow
async def test_an_hour_of_being_blocked_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollout that no budget allows causes no eviction and no write of a status."""
    async with whole([*NodeLayout().nodes(), deployment(9)]) as cluster:
        await settled(cluster)
        await apply(cluster, STORY_1.replace("- a", "- nowhere"))
        await counted(cluster)
        await update(cluster)
        await asyncio.sleep(60)
        before = await cluster.client.get(PodDisruptionBudget, "app-pdb", "default")
        questions = Counter[str]()
        gate = cluster.server.evictions.gate
        assert gate is not None
        ask = gate.ask

        async def noticed(*args: Any, **more: Any) -> Any:
            questions["evictions"] += 1
            return await ask(*args, **more)

        monkeypatch.setattr(gate, "ask", noticed)
        await asyncio.sleep(3600)
        after = await cluster.client.get(PodDisruptionBudget, "app-pdb", "default")
        assert questions["evictions"] == 0
        assert after.metadata.resource_version == before.metadata.resource_version


@pytest.mark.parametrize(
    "kind",
    [
        "policy/v1, kind: PodDisruptionBudget",
        "zonewise.io/v1alpha1, kind: TopologyDisruptionBudget",
    ],
)
@pytest.mark.parametrize("most", [0, 1])
async def test_recreate_is_not_blocked(kind: str, most: int) -> None:
    """A Deployment of type Recreate is updated, whatever a budget of either kind allows."""
    plain = f"""
{{apiVersion: {kind}, metadata: {{name: plain, namespace: default}},
  spec: {{maxUnavailable: {most}, selector: {{matchLabels: {{app: foo}}}}}}}}
"""
    async with whole([*NodeLayout().nodes(), deployment(3, type="Recreate")]) as cluster:
        await settled(cluster)
        await apply(cluster, plain)
        await asyncio.sleep(5)
        await update(cluster)
        await asyncio.sleep(1)
        await settled(cluster)
        assert {image for _, image in await images(cluster)} == {"c:2"}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({}, "exactly one of maxUnavailable and minAvailable"),
        ({"maxUnavailable": 1, "minAvailable": 1}, "exactly one of maxUnavailable"),
        ({"maxUnavailable": -1}, "spec.maxUnavailable"),
        ({"maxUnavailable": "101%"}, "spec.maxUnavailable"),
        (
            {
                "maxUnavailable": 1,
                "nodeSelectorTerm": {"matchExpressions": [{"key": "z", "operator": "Near"}]},
            },
            "spec.nodeSelectorTerm.matchExpressions[0].operator",
        ),
        (
            {
                "maxUnavailable": 1,
                "nodeSelectorTerm": {"matchExpressions": [{"key": "z", "operator": "In"}]},
            },
            "In and NotIn need values",
        ),
        ({"maxUnavailable": 1, "crossDomain": "Both"}, "spec.crossDomain"),
    ],
)
async def test_an_invalid_budget_is_refused(spec: Obj, says: str) -> None:
    """The server refuses an invalid budget and names the field."""
    async with whole() as cluster:
        registry = cluster.server.registry
        kind_name = "TopologyDisruptionBudget"
        await until(lambda: registry.by_kind("zonewise.io/v1alpha1", kind_name) is not None)
        body = {
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "foo"}}, **spec},
        }
        kind = unstructured(
            Resource(
                "zonewise.io",
                "v1alpha1",
                "TopologyDisruptionBudget",
                "topologydisruptionbudgets",
            )
        )
        with pytest.raises(Invalid) as refusal:
            await cluster.client.create(kind(body))
        assert says in str(refusal.value)
        assert not await cluster.client.list(TopologyDisruptionBudget, "default")


async def test_requests_are_counted() -> None:
    """``/metrics`` counts requests by verb, resource, subresource and code."""
    async with whole([*NodeLayout().nodes(), deployment(3)]) as cluster:
        await settled(cluster)
        await apply(cluster, STORY_1.replace("- a", "- nowhere"))
        await counted(cluster)
        first = next(iter(await cluster.client.list(Pod, "default")))
        assert not await evict(cluster, first.metadata.name)
        metrics = (await cluster.client.raw("GET", "/metrics")).body.decode()
        line = (
            'apiserver_request_total{code="429",resource="pods",subresource="eviction",'
            'verb="POST"} 1.0'
        )
        assert line in metrics.splitlines()
