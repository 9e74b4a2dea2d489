"""How many writes a pod, a node and a Deployment cost: exact numbers, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from tests.embedded.whole_cluster import settled, whole

from zonewise.embedded.apiserver.store.history import StoreEvent
from zonewise.embedded.cluster import ClusterSettings
from zonewise.embedded.components.kubelet.kubelets import DUAL_STACK
from zonewise.embedded.components.kubelet.stages import default_stages, with_delays

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

NODES, REPLICAS = 5, 20
LEASES = "coordination.k8s.io/leases"


def node(number: int) -> dict[str, Any]:
    """A node with enough room."""
    room = {"cpu": "32", "memory": "256Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"n{number}", "labels": {"topology.kubernetes.io/zone": "a"}},
        "status": {"capacity": room, "allocatable": room},
    }


def deployment() -> dict[str, Any]:
    """Pods without anything special."""
    labels = {"app": "web"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "main", "image": "example.com/app"}]},
            },
        },
    }


async def test_each_write_of_a_cluster_that_comes_up_is_accounted_for() -> None:
    """Three writes of a pod, one of its locator, and few of its owners; then only of nodes.

    A pod is created, bound and started. Its kubelet takes half a second, so a write of what is not
    final yet (a locator without an address, a status after each pod) would be counted here.
    """
    stages = with_delays(default_stages(), start="500ms")
    settings = ClusterSettings(kubelets=replace(DUAL_STACK, stages=stages))
    writes: Counter[tuple[str, str]] = Counter()

    def count(kind: str, event: StoreEvent) -> None:
        if kind != LEASES:
            writes[kind, event.type] += 1

    async with whole(settings=settings) as cluster:
        await asyncio.sleep(5)
        cluster.server.state.listen(count)
        refused = await cluster.seeder.create([*map(node, range(NODES)), deployment()])
        assert not refused
        await settled(cluster)
        await asyncio.sleep(5)
        events = writes.pop(("/events", "ADDED"))
        assert dict(writes) == {
            ("/nodes", "ADDED"): NODES,
            ("/nodes", "MODIFIED"): 3 * NODES,
            ("apps/deployments", "ADDED"): 1,
            ("apps/deployments", "MODIFIED"): 3,
            ("apps/replicasets", "ADDED"): 1,
            ("apps/replicasets", "MODIFIED"): 2,
            ("/pods", "ADDED"): REPLICAS,
            ("/pods", "MODIFIED"): 2 * REPLICAS,
            ("zonewise.io/podlocators", "ADDED"): REPLICAS,
        }
        assert events == NODES + 1 + 2 * REPLICAS
        writes.clear()
        await asyncio.sleep(400)
        assert dict(writes) == {("/nodes", "MODIFIED"): NODES}, "a report every five minutes"
