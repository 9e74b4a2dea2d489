"""Owners of pods: the scale of custom kinds is read, at any path, and only while they have pods."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.controllers.budgets.budget_scene import NS, BudgetScene, budget_scene
from tests.embedded.virtual_cluster import until
from tests.embedded.whole_cluster import settled, whole

from zonewise.api import DaemonSet, Node, Pod
from zonewise.api.objects.budgets import TopologyDisruptionBudget
from zonewise.api.resource import Resource
from zonewise.api.unstructured import Unstructured, unstructured
from zonewise.embedded.seed.nodes import NodeLayout
from zonewise.embedded.seed.seeder import Seeder
from zonewise.runtime.client.client import Client

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

Obj = dict[str, Any]


async def ring(scene: BudgetScene, size: int, *, scope: str, scaled: bool) -> Unstructured:
    """An object of a custom kind for ``size`` pods, with a scale subresource or without."""
    version: Obj = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        },
    }
    if scaled:
        paths = {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}
        version["subresources"] = {"scale": paths}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "rings.db.example"},
        "spec": {
            "group": "db.example",
            "names": {"kind": "Ring", "plural": "rings"},
            "scope": scope,
            "versions": [version],
        },
    }
    registry = scene.cluster.server.registry
    await Seeder(scene.client, registry).create([definition])
    await until(lambda: registry.by_kind("db.example/v1", "Ring") is not None)
    namespaced = scope == "Namespaced"
    kind = unstructured(Resource("db.example", "v1", "Ring", "rings", namespaced=namespaced))
    meta: Obj = {"name": "r", **({"namespace": NS} if namespaced else {})}
    return await scene.client.create(kind({"metadata": meta, "spec": {"size": size}}))


async def allowed(scene: BudgetScene) -> str:
    """The disruptions that the budget allows, some time later."""
    await asyncio.sleep(100)
    return (await scene.get_budget()).status.allowed


@pytest.mark.parametrize("scope", ["Namespaced", "Cluster"])
async def test_the_scale_of_a_custom_kind_is_read(scope: str) -> None:
    """The scale of a custom kind says how many pods there should be, and is read again."""
    async with budget_scene(1) as scene:
        owner = await ring(scene, 4, scope=scope, scaled=True)
        for zone in "abc":
            await scene.pod(zone, owner=owner)
        await scene.budget(minAvailable="70%", nodeSelectorTerm=None)
        assert await allowed(scene) == "*=0"
        body = {"spec": {"size": 2}}
        await scene.client.patch(type(owner), "r", owner.metadata.namespace or None, body)
        assert await allowed(scene) == "*=1"


async def test_an_owner_without_a_number_expects_its_present_pods() -> None:
    """A custom kind without a scale, and a node that owns pods, expect the pods they have."""
    async with budget_scene(1) as scene:
        owner = await ring(scene, 9, scope="Namespaced", scaled=False)
        await scene.pod("a", owner=owner)
        await scene.pod("b", owner=await scene.client.get(Node, "n-b"))
        await scene.budget(maxUnavailable=1)
        assert await allowed(scene) == "a=1,b=1,c=0"


async def reads(client: Client, plural: str) -> float:
    """How often one object of this kind was requested so far."""
    lines = (await client.raw("GET", "/metrics")).body.decode().splitlines()
    gets = [line for line in lines if f'resource="{plural}"' in line and 'verb="GET"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in gets)


async def test_an_owner_without_pods_is_not_read_any_more() -> None:
    """The scale of an owner is read while it has pods, and not afterwards."""
    async with budget_scene(1) as scene:
        owner = await ring(scene, 1, scope="Namespaced", scaled=True)
        await scene.pod("a")
        name = await scene.pod("b", owner=owner)
        await scene.budget(maxUnavailable=1)
        assert await allowed(scene) == "a=1,b=1,c=0"
        before = await reads(scene.client, "rings")
        assert await allowed(scene) == "a=1,b=1,c=0"
        assert await reads(scene.client, "rings") > before
        await scene.remove_pod(name)
        assert await allowed(scene) == "a=1,b=0,c=0"
        before = await reads(scene.client, "rings")
        assert await allowed(scene) == "a=1,b=0,c=0"
        assert await reads(scene.client, "rings") == before


async def test_an_owner_that_is_deleted_and_created_again() -> None:
    """A DaemonSet is watched, so it is not requested for pods that it left behind; its node
    selector counts.
    """
    labels = {"app": "agent"}
    zone = "topology.kubernetes.io/zone"
    daemons = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "agent"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "nodeSelector": {zone: "a"},
                    "containers": [{"name": "c", "image": "c"}],
                },
            },
        },
    }
    budget = {
        "apiVersion": "zonewise.io/v1alpha1",
        "kind": "TopologyDisruptionBudget",
        "metadata": {"name": "agent"},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}, "topologyKeys": [zone]},
    }
    async with whole([*NodeLayout().nodes(), daemons, budget]) as cluster:
        client = cluster.client
        for _ in range(2):
            await settled(cluster)
            await asyncio.sleep(100)
            stored = await client.get(TopologyDisruptionBudget, "agent", "default")
            assert stored.status.allowed == "a=1"
            before = await reads(client, "daemonsets")
            await client.delete(DaemonSet, "agent", "default")
            await asyncio.sleep(100)
            assert not await client.list(Pod, "default")
            assert await reads(client, "daemonsets") == before
            await cluster.seeder.create([daemons])
