"""Pods that nobody but a test moves, under the controller of budgets, in virtual time."""

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
from zonewise.runtime.program.context import ControllerContext

NS = "shop"
ZONE = "topology.kubernetes.io/zone"
EXISTS = {"matchExpressions": [{"key": ZONE, "operator": "Exists"}]}
LABELS = {"app": "web"}
WOKEN = "zonewise.io/woken"

Obj = dict[str, Any]


class Field:
    """A server with the pods of one ReplicaSet, in zones a, b and c."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.cluster = cluster
        self.client = cluster.client
        self.owner: ReplicaSet | None = None
        self.leading: asyncio.Task[None] | None = None
        self.made = 0

    async def build(self, replicas: int, *, enforce: bool = True) -> None:
        """A namespace, a node in each zone, and a ReplicaSet that asks for so many pods."""
        await Seeder(self.client, self.cluster.server.registry).create(resource_definitions())
        labels = {"zonewise.io/budgets": "enforce"} if enforce else {}
        await self.client.create(Namespace(metadata=ObjectMeta(name=NS, labels=labels)))
        for zone in "abc":
            meta = ObjectMeta(name=f"n-{zone}", labels={ZONE: zone})
            await self.client.create(Node(metadata=meta))
        template = {
            "metadata": {"labels": LABELS},
            "spec": {"containers": [{"name": "c", "image": "c"}]},
        }
        body = {
            "metadata": {"name": "web", "namespace": NS},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": LABELS},
                "template": template,
            },
        }
        self.owner = await self.client.create(convert(ReplicaSet, body))
        accounts = "/serviceaccounts"
        state = self.cluster.server.state
        await until(lambda: state.latest(accounts, NS, "default") is not None)

    async def pod(
        self,
        zone: str,
        *,
        ready: bool = True,
        owner: Object | Unstructured | None = None,
        generate_name: str = "",
    ) -> str:
        """A pod of it, or of another owner, that runs there."""
        mine = owner or self.owner
        assert mine is not None
        self.made += 1
        name = f"web-{self.made}"
        reference = {
            "apiVersion": mine.resource.api_version,
            "kind": mine.resource.kind,
            "name": mine.metadata.name,
            "uid": mine.metadata.uid,
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

    async def gone(self, name: str) -> None:
        """A pod is gone at once."""
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

    async def told(self, name: str = "web") -> TopologyDisruptionBudget:
        """The budget."""
        return await self.client.get(TopologyDisruptionBudget, name, NS)

    async def baseline(self) -> dict[str, int]:
        """What is remembered."""
        return {row.domain: row.expected_pods for row in (await self.told()).status.domains}

    async def woken(self) -> list[str]:
        """What was written on pods to wake up their workload."""
        pods = await self.client.list(Pod, NS)
        return [
            pod.metadata.annotations[WOKEN] for pod in pods if WOKEN in pod.metadata.annotations
        ]

    def lead(self, **settings: Any) -> None:
        """A leader takes over; the one before it ends, and nothing of what it knew is left."""
        if self.leading is not None:
            self.leading.cancel()
        context = self.cluster.program.context("zonewise-budgets")
        leader = keeper(context, **settings)
        self.leading = asyncio.create_task(run_all(leader.run(), context.recorder.run()))


def keeper(context: ControllerContext, **settings: Any) -> BudgetsController:
    """The controller, as on a real cluster."""
    return BudgetsController(context, settings=BudgetsSettings(**settings))


@asynccontextmanager
async def field(
    replicas: int, *zones: str, enforce: bool = True, **settings: Any
) -> AsyncIterator[Field]:
    """A field with pods in these zones."""
    async with virtual_cluster({}) as cluster:
        made = Field(cluster)
        await made.build(replicas, enforce=enforce)
        for zone in zones:
            await made.pod(zone)
        made.lead(**settings)
        assert made.leading is not None
        try:
            yield made
            assert not made.leading.done()
        finally:
            made.leading.cancel()
            await asyncio.gather(made.leading, return_exceptions=True)
