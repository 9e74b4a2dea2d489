"""ReplicationControllers work as ReplicaSets do."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.embedded.virtual_cluster import until, virtual_cluster

from zonewise.api.objects.apps import ReplicationController
from zonewise.api.objects.pod import Pod
from zonewise.embedded.components.workloads.replicasets.controller import ReplicaSetController

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

PATH = "/api/v1/namespaces/default/replicationcontrollers"


async def test_a_replication_controller_has_its_pods() -> None:
    """Pods follow the scale, and the status is not written when it does not change."""
    parts = {"rc": lambda context: ReplicaSetController(context, kind=ReplicationController)}
    async with virtual_cluster(parts) as cluster:
        template = {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "c"}]},
        }
        spec = {"replicas": 3, "selector": {"app": "web"}, "template": template}
        body = {"metadata": {"name": "web"}, "spec": spec}
        await cluster.client.raw("POST", PATH, body=msgspec.json.encode(body))
        pods = cluster.program.cache.store(Pod)
        store = cluster.program.cache.store(ReplicationController)

        def replicas() -> int:
            controller = store.get(("default", "web"))
            return controller.status.replicas if controller else -1

        await until(lambda: len(pods) == 3 and replicas() == 3)
        owner = pods.values()[0].metadata.controller
        assert owner is not None
        assert (owner.api_version, owner.kind) == ("v1", "ReplicationController")
        change = {"spec": {"replicas": 1}}
        await cluster.client.patch(ReplicationController, "web", "default", change)
        await until(lambda: len(pods) == 1 and replicas() == 1)
        before = store.values()[0].metadata.resource_version
        await asyncio.sleep(30)
        assert store.values()[0].metadata.resource_version == before
