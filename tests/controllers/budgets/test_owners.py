"""Whose pods are counted: custom kinds are asked for their scale, whatever they call it, and only
while they have pods.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.controllers.budgets.budgeted import NS, Field, field
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


async def ring(town: Field, size: int, *, scope: str, scaled: bool) -> Unstructured:
    """An object of a custom kind that asks for ``size`` pods; without a scale, for nobody knows
    how many.
    """
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
    registry = town.cluster.server.registry
    await Seeder(town.client, registry).create([definition])
    await until(lambda: registry.by_kind("db.example/v1", "Ring") is not None)
    namespaced = scope == "Namespaced"
    kind = unstructured(Resource("db.example", "v1", "Ring", "rings", namespaced=namespaced))
    meta: Obj = {"name": "r", **({"namespace": NS} if namespaced else {})}
    return await town.client.create(kind({"metadata": meta, "spec": {"size": size}}))


async def allowed(town: Field) -> str:
    """What the budget says, some time later."""
    await asyncio.sleep(100)
    return (await town.told()).status.allowed


@pytest.mark.parametrize("scope", ["Namespaced", "Cluster"])
async def test_a_custom_kind_is_asked_for_its_scale(scope: str) -> None:
    """Its scale subresource says how many pods there should be, and is asked again."""
    async with field(1) as town:
        owner = await ring(town, 4, scope=scope, scaled=True)
        for zone in "abc":
            await town.pod(zone, owner=owner)
        await town.budget(minAvailable="70%", nodeSelectorTerm=None)
        assert await allowed(town) == "*=0"
        body = {"spec": {"size": 2}}
        await town.client.patch(type(owner), "r", owner.metadata.namespace or None, body)
        assert await allowed(town) == "*=1"


async def test_who_says_no_number_asks_for_its_pods() -> None:
    """A custom kind without a scale, and a node that owns pods itself."""
    async with field(1) as town:
        owner = await ring(town, 9, scope="Namespaced", scaled=False)
        await town.pod("a", owner=owner)
        await town.pod("b", owner=await town.client.get(Node, "n-b"))
        await town.budget(maxUnavailable=1)
        assert await allowed(town) == "a=1,b=1,c=0"


async def reads(client: Client, plural: str) -> float:
    """How often one object of this kind was requested so far."""
    told = (await client.raw("GET", "/metrics")).body.decode().splitlines()
    mine = [line for line in told if f'resource="{plural}"' in line and 'verb="GET"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in mine)


async def test_an_owner_without_pods_is_not_asked_any_more() -> None:
    """Neither while it is there, nor when it is gone."""
    async with field(1) as town:
        owner = await ring(town, 1, scope="Namespaced", scaled=True)
        await town.pod("a")
        name = await town.pod("b", owner=owner)
        await town.budget(maxUnavailable=1)
        assert await allowed(town) == "a=1,b=1,c=0"
        before = await reads(town.client, "rings")
        assert await allowed(town) == "a=1,b=1,c=0"
        assert await reads(town.client, "rings") > before
        await town.gone(name)
        assert await allowed(town) == "a=1,b=0,c=0"
        before = await reads(town.client, "rings")
        assert await allowed(town) == "a=1,b=0,c=0"
        assert await reads(town.client, "rings") == before


async def test_an_owner_that_is_deleted_and_made_again_is_read_as_it_is() -> None:
    """A DaemonSet is watched, so its pods without it are no reason to request it; what it says of
    its nodes counts.
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
            told = await client.get(TopologyDisruptionBudget, "agent", "default")
            assert told.status.allowed == "a=1"
            before = await reads(client, "daemonsets")
            await client.delete(DaemonSet, "agent", "default")
            await asyncio.sleep(100)
            assert not await client.list(Pod, "default")
            assert await reads(client, "daemonsets") == before
            await cluster.seeder.create([daemons])
