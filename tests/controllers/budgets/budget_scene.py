"""Pods that only the test moves, under the controller of budgets, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.embedded.virtual_cluster import VirtualCluster, until, virtual_cluster

from zonewise.api import Namespace, Node, Object, ObjectMeta, Pod, ReplicaSet, convert
from zonewise.api.objects.budgets import TopologyDisruptionBudget
from zonewise.api.unstructured import Unstructured
from zonewise.controllers.budgets.controller import BudgetsController, BudgetsSettings
from zonewise.disruption.definitions.schemas import resource_definitions
from zonewise.embedded.seed.seeder import Seeder
from zonewise.runtime.controller.controller import run_all

NS = "shop"
ZONE = "topology.kubernetes.io/zone"
EXISTS = {"matchExpressions": [{"key": ZONE, "operator": "Exists"}]}
LABELS = {"app": "web"}
WOKEN = "zonewise.io/woken"

Obj = dict[str, Any]


class BudgetScene:
    """A server with the pods of one ReplicaSet, in zones a, b and c."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.cluster = cluster
        self.client = cluster.client
        self.owner: ReplicaSet | None = None
        self.leading: asyncio.Task[None] | None = None
        self.pod_count = 0

    async def build(self, replicas: int, *, enforce: bool = True) -> None:
        """A namespace, a node in each zone, and a ReplicaSet of this many replicas."""
        await Seeder(self.client, self.cluster.server.registry).create(resource_definitions())
        labels = {"zonewise.io/budgets": "enforce"} if enforce else {}
        await self.client.create(Namespace(metadata=ObjectMeta(name=NS, labels=labels)))
        for zone in "abc":
            meta = ObjectMeta(name=f"n-{zone}", labels={ZONE: zone})
            await self.client.create(Node(metadata=meta))
        self.owner = await self.replica_set("web", replicas)
        accounts = "/serviceaccounts"
        state = self.cluster.server.state
        await until(lambda: state.latest(accounts, NS, "default") is not None)

    async def replica_set(self, name: str, replicas: int) -> ReplicaSet:
        """A ReplicaSet without pods."""
        template = {
            "metadata": {"labels": LABELS},
            "spec": {"containers": [{"name": "c", "image": "c"}]},
        }
        body = {
            "metadata": {"name": name, "namespace": NS},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": LABELS},
                "template": template,
            },
        }
        return await self.client.create(convert(ReplicaSet, body))

    async def starting(self) -> None:
        """A second ReplicaSet that has one of its three pods, in zone c.

        The pods that it lacks are expected, so a budget holds as many surplus ones of the first.
        """
        await self.pod("c", owner=await self.replica_set("next", 3))

    async def pod(
        self,
        zone: str,
        *,
        ready: bool = True,
        owner: Object | Unstructured | None = None,
        generate_name: str = "",
    ) -> str:
        """A running pod of the ReplicaSet, or of another owner, in a zone."""
        controller = owner or self.owner
        assert controller is not None
        self.pod_count += 1
        name = f"web-{self.pod_count}"
        reference = {
            "apiVersion": controller.resource.api_version,
            "kind": controller.resource.kind,
            "name": controller.metadata.name,
            "uid": controller.metadata.uid,
            "controller": True,
        }
        body = {
            "metadata": {
                "name": name,
                "generateName": generate_name,
                "namespace": NS,
                "labels": LABELS,
                "ownerReferences": [reference],
            },
            "spec": {"nodeName": f"n-{zone}", "containers": [{"name": "c", "image": "c"}]},
        }
        await self.client.create(convert(Pod, body))
        condition = {"type": "Ready", "status": str(ready)}
        status = {"status": {"phase": "Running", "conditions": [condition]}}
        await self.client.patch(Pod, name, NS, status, subresource="status")
        return name

    async def remove_pod(self, name: str) -> None:
        """Delete a pod without grace."""
        await self.client.delete(Pod, name, NS, grace_period=0)

    async def budget(self, name: str = "web", **spec: Any) -> None:
        """A budget of these pods, per zone."""
        body = {
            "apiVersion": "zonewise.io/v1alpha1",
            "kind": "TopologyDisruptionBudget",
            "metadata": {"name": name, "namespace": NS},
            "spec": {"selector": {"matchLabels": LABELS}, "nodeSelectorTerm": EXISTS, **spec},
        }
        await Seeder(self.client, self.cluster.server.registry).create([body])

    async def edit(self, **spec: Any) -> None:
        """Change the budget."""
        await self.client.patch(TopologyDisruptionBudget, "web", NS, {"spec": spec})

    async def get_budget(self, name: str = "web") -> TopologyDisruptionBudget:
        """The budget."""
        return await self.client.get(TopologyDisruptionBudget, name, NS)

    async def baseline(self) -> dict[str, int]:
        """The expected pods of each domain in the status."""
        return {row.domain: row.expected_pods for row in (await self.get_budget()).status.domains}

    async def wake_notes(self) -> list[str]:
        """The annotations on pods that wake up their workload."""
        pods = await self.client.list(Pod, NS)
        return [
            pod.metadata.annotations[WOKEN] for pod in pods if WOKEN in pod.metadata.annotations
        ]

    def lead(self, **settings: Any) -> None:
        """Start a new leader with empty memory; the previous one ends."""
        if self.leading is not None:
            self.leading.cancel()
        context = self.cluster.program.context("zonewise-budgets")
        controller = BudgetsController(context, settings=BudgetsSettings(**settings))
        self.leading = asyncio.create_task(run_all(controller.run(), context.recorder.run()))


@asynccontextmanager
async def budget_scene(
    replicas: int, *zones: str, enforce: bool = True, **settings: Any
) -> AsyncIterator[BudgetScene]:
    """A scene with a pod in each of these zones, and a leader."""
    async with virtual_cluster({}) as cluster:
        scene = BudgetScene(cluster)
        await scene.build(replicas, enforce=enforce)
        for zone in zones:
            await scene.pod(zone)
        scene.lead(**settings)
        assert scene.leading is not None
        try:
            yield scene
            assert not scene.leading.done()
        finally:
            scene.leading.cancel()
            await asyncio.gather(scene.leading, return_exceptions=True)
