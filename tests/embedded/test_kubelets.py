"""The kubelets: nodes come to life, pods run, fail and go, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.embedded.living import Living, living, until

from zonewise.api.coordination import Lease
from zonewise.api.core import Node
from zonewise.api.errors import NotFound
from zonewise.api.meta import ObjectMeta
from zonewise.api.pod import Pod
from zonewise.embedded.kubelets import Kubelets

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

ACCOUNT = b'{"metadata":{"name":"default"}}'
CONTAINER = {"name": "web", "image": "example.invalid/web"}


async def pod(cluster: Living, name: str, *, node: str = "n1", **fields: Any) -> None:
    """Create a pod that is bound to a node."""
    annotations = fields.pop("annotations", {})
    finalizers = fields.pop("finalizers", [])
    spec = {"nodeName": node, "containers": [CONTAINER], **fields}
    meta = {"name": name, "annotations": annotations, "finalizers": finalizers}
    body = msgspec.json.encode({"metadata": meta, "spec": spec})
    await cluster.client.raw("POST", "/api/v1/namespaces/default/pods", body=body)


async def node(cluster: Living, name: str = "n1", **meta: Any) -> None:
    """Create a node that says nothing but its name."""
    await cluster.client.create(Node(metadata=ObjectMeta(name=name, **meta)))


async def get(cluster: Living, name: str) -> Pod:
    """The pod as it is now."""
    return await cluster.client.get(Pod, name, "default")


def states(found: Pod) -> dict[str, str]:
    """The statuses of a pod's conditions."""
    return {one.type: one.status for one in found.status.conditions}


async def test_a_node_comes_to_life() -> None:
    """A Node that has a name alone is Ready, with size, labels, address, range and lease."""
    async with living({"kubelets": Kubelets}) as cluster:
        nodes = cluster.crew.cache.store(Node)
        await node(cluster)
        await until(lambda: bool(nodes.get(("", "n1")) and nodes.values()[0].status.conditions))
        found = await cluster.client.get(Node, "n1")
        assert {one.type: one.status for one in found.status.conditions} == {
            "Ready": "True",
            "MemoryPressure": "False",
            "DiskPressure": "False",
            "PIDPressure": "False",
        }
        assert found.status.allocatable["cpu"] == "8"
        assert found.metadata.labels["kubernetes.io/hostname"] == "n1"
        assert found.spec.pod_cidrs == ("10.128.0.0/24",)
        assert [one.type for one in found.status.addresses] == ["InternalIP", "Hostname"]
        lease = await cluster.client.get(Lease, "n1", "kube-node-lease")
        assert lease.spec.holder_identity == "n1"
        assert lease.metadata.owner_references[0].name == "n1"
        await asyncio.sleep(31)
        later = await cluster.client.get(Lease, "n1", "kube-node-lease")
        assert later.spec.renew_time != lease.spec.renew_time


async def test_a_bound_pod_becomes_ready_and_a_deleted_one_goes() -> None:
    """A pod runs with an address of its node's range; deleted, it is gone."""
    async with living({"kubelets": Kubelets}) as cluster:
        pods = cluster.crew.cache.store(Pod)
        await node(cluster)
        await pod(cluster, "web")
        await until(lambda: bool(pods.values()) and pods.values()[0].status.phase == "Running")
        found = await get(cluster, "web")
        assert set(states(found).values()) == {"True"}
        assert found.status.pod_ip == "10.128.0.2"
        assert found.status.container_statuses[0].ready
        await cluster.client.delete(Pod, "web", "default")
        await until(lambda: not pods.values())
        with pytest.raises(NotFound):
            await get(cluster, "web")
