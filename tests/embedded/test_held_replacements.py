"""New pods of a rollout by domain while an embedded cluster starts again on its folder."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from tests.controllers.rollouts.rollout_scene import begin, complete, until, workload
from tests.embedded.virtual_cluster import EPOCH
from tests.embedded.whole_cluster import settled, whole

from zonewise.api import Pod, ReplicaSet
from zonewise.disruption.rollouts.replacements import is_held
from zonewise.embedded.cluster import EmbeddedCluster
from zonewise.embedded.seed.nodes import NodeLayout

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


def new_pod(name: str, owner: ReplicaSet | None, namespace: str = "default") -> dict[str, Any]:
    """A pod as a ReplicaSet creates it, or a user."""
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "labels": {"app": "bar"}}
    if owner is not None:
        metadata["ownerReferences"] = [
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "name": owner.metadata.name,
                "uid": owner.metadata.uid,
                "controller": True,
            }
        ]
    containers = [{"name": "c", "image": "c:2"}]
    spec = {"containers": containers}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


async def test_pods_wait_until_rollouts_are_known(tmp_path: Path) -> None:
    """Before the cache of a cluster that starts is complete, pods of ReplicaSets wait where there
    is a rollout, no others; those that need not wait are released once it runs.
    """
    async with whole([*NodeLayout().nodes(), workload("Deployment")], folder=tmp_path) as cluster:
        await begin(cluster, "Deployment")
        (owner,) = await cluster.client.list(ReplicaSet, "default")
    loop = asyncio.get_running_loop()
    starting = EmbeddedCluster(
        tmp_path, clock=lambda: EPOCH + loop.time(), rng=random.Random(2), inline=True
    )
    await starting.server.start_local()
    try:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}}
        refused = await starting.seeder.create(
            [
                namespace,
                new_pod("of-a-set", owner),
                new_pod("of-a-user", None),
                new_pod("elsewhere", owner, "other"),
            ]
        )
        assert not refused
        pods = await starting.client.list(Pod)
        assert {pod.metadata.name for pod in pods if is_held(pod)} == {"of-a-set"}
    finally:
        await starting.close()
    async with whole([], folder=tmp_path) as cluster:
        await until(cluster, complete)
        await settled(cluster)
        assert not any(is_held(pod) for pod in await cluster.client.list(Pod))
