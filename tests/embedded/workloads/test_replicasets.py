"""The ReplicaSet controller over a living API server, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest
from tests.embedded.living import Living, living, until
from tests.embedded.workloads.attendant import Attendant

from zonewise.api.pod import Pod
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.embedded.workloads.replicasets import ReplicaSets
from zonewise.embedded.workloads.views import ReplicaSet

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

Raw = unstructured(Resource("apps", "v1", "ReplicaSet", "replicasets"))


def replica_set(name: str = "web", *, replicas: int = 3, image: str = "app:1", **spec: Any) -> Any:
    """A ReplicaSet as a person writes one."""
    labels = {"app": name}
    return Raw(
        {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "main", "image": image}]},
                },
                **spec,
            },
        }
    )


def ready_replicas(cluster: Living, name: str = "web") -> int:
    """How many pods its status says are ready."""
    found = cluster.crew.cache.store(ReplicaSet).get(("default", name))
    return -1 if found is None else found.status.ready_replicas


async def test_a_replica_set_gets_its_pods() -> None:
    """As many pods as asked for, with the template's spec, owned and counted."""
    async with living({"replicaset-controller": ReplicaSets, "nodes": Attendant}) as cluster:
        await cluster.client.create(replica_set(replicas=5))
        await until(lambda: ready_replicas(cluster) == 5)
        pods = cluster.crew.cache.store(Pod).values()
        assert len(pods) == 5
        for pod in pods:
            owner = pod.metadata.controller
            assert owner is not None and owner.kind == "ReplicaSet" and owner.name == "web"
            assert owner.block_owner_deletion
            assert pod.metadata.labels["app"] == "web"
        print(await cluster.client.get(ReplicaSet, "web", "default"))
