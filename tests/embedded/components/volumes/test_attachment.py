"""Volumes of drivers that need attaching, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from tests.embedded.virtual_cluster import VirtualCluster, until, virtual_cluster

from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.storage import VolumeAttachment
from zonewise.embedded.components.volumes.attachment import AttachDetachController
from zonewise.embedded.components.volumes.binder import PersistentVolumeController
from zonewise.runtime.program.context import ControllerContext
from zonewise.runtime.program.program import Runnable

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

PARTS: Mapping[str, Callable[[ControllerContext], Runnable]] = {
    "binder": PersistentVolumeController,
    "attachdetach": AttachDetachController,
}
DRIVER = "disks.example.com"
ATTACHER = "external-attacher/disks-example-com"


async def post(cluster: VirtualCluster, path: str, body: dict[str, Any]) -> None:
    """Create an object of any kind."""
    await cluster.client.raw("POST", path, body=msgspec.json.encode(body))


async def prepare(cluster: VirtualCluster, *, required: bool, mode: str = "ReadWriteOnce") -> None:
    """Create two nodes, a driver, a volume and its claim."""
    for name in ("n1", "n2"):
        await cluster.client.create(Node(metadata=ObjectMeta(name=name)))
    driver = {"metadata": {"name": DRIVER}, "spec": {"attachRequired": required}}
    await post(cluster, "/apis/storage.k8s.io/v1/csidrivers", driver)
    spec: dict[str, Any] = {
        "capacity": {"storage": "1Gi"},
        "accessModes": [mode],
        "storageClassName": "",
        "csi": {"driver": DRIVER, "volumeHandle": "handle"},
    }
    await post(cluster, "/api/v1/persistentvolumes", {"metadata": {"name": "v"}, "spec": spec})
    claim = {
        "metadata": {"name": "c"},
        "spec": {
            "accessModes": [mode],
            "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    await post(cluster, "/api/v1/namespaces/default/persistentvolumeclaims", claim)


async def use(cluster: VirtualCluster, name: str, node: str) -> None:
    """Create a pod on a node that uses the claim."""
    spec = {
        "nodeName": node,
        "containers": [{"name": "c", "image": "c"}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
    }
    body = {"metadata": {"name": name}, "spec": spec}
    await post(cluster, "/api/v1/namespaces/default/pods", body)


def attached(cluster: VirtualCluster) -> list[str]:
    """The nodes with an attachment of the volume, also one that is being deleted."""
    store = cluster.program.cache.store(VolumeAttachment)
    return sorted(attachment.spec.node_name for attachment in store)


async def hold(cluster: VirtualCluster) -> None:
    """Add the finalizer of an attacher to the attachment."""
    (attachment,) = await cluster.client.list(VolumeAttachment)
    body = {"metadata": {"finalizers": [ATTACHER]}}
    await cluster.client.patch(VolumeAttachment, attachment.metadata.name, None, body)


async def test_a_volume_is_attached_for_its_first_pod_and_detached_after_its_last() -> None:
    """Two pods of a node share the attachment."""
    async with virtual_cluster(PARTS) as cluster:
        await prepare(cluster, required=True)
        await use(cluster, "p", "n1")
        await use(cluster, "q", "n1")
        await until(lambda: attached(cluster) == ["n1"])
        (attachment,) = await cluster.client.list(VolumeAttachment)
        assert attachment.spec.attacher == DRIVER
        assert attachment.spec.source.persistent_volume_name == "v"
        await cluster.client.delete(Pod, "p", "default", grace_period=0)
        await asyncio.sleep(10)
        assert attached(cluster) == ["n1"]
        await cluster.client.delete(Pod, "q", "default", grace_period=0)
        await until(lambda: not attached(cluster))


async def test_a_volume_of_one_node_moves_only_when_it_is_off_the_first() -> None:
    """The next node waits for the finalizer of the attacher, and an event of its pod says why."""
    async with virtual_cluster(PARTS) as cluster:
        await prepare(cluster, required=True)
        await use(cluster, "p", "n1")
        await until(lambda: attached(cluster) == ["n1"])
        await hold(cluster)
        await use(cluster, "q", "n2")
        await asyncio.sleep(5)
        assert attached(cluster) == ["n1"]
        await cluster.client.delete(Pod, "p", "default", grace_period=0)
        await asyncio.sleep(5)
        assert attached(cluster) == ["n1"]
        (old,) = await cluster.client.list(VolumeAttachment)
        assert old.metadata.deletion_timestamp is not None
        body = {"metadata": {"finalizers": None}}
        await cluster.client.patch(VolumeAttachment, old.metadata.name, None, body)
        await until(lambda: attached(cluster) == ["n2"])
        answer = await cluster.client.raw("GET", "/apis/events.k8s.io/v1/events")
        notes = [item["note"] for item in msgspec.json.decode(answer.body)["items"]]
        assert any(note.startswith("Multi-Attach error for volume") for note in notes)


async def test_a_volume_of_many_nodes_is_attached_to_each() -> None:
    """A ReadWriteMany volume is attached to several nodes at once."""
    async with virtual_cluster(PARTS) as cluster:
        await prepare(cluster, required=True, mode="ReadWriteMany")
        await use(cluster, "p", "n1")
        await use(cluster, "q", "n2")
        await until(lambda: attached(cluster) == ["n1", "n2"])
        await cluster.client.delete(Node, "n2")
        await until(lambda: attached(cluster) == ["n1"])


async def test_a_driver_that_needs_no_attaching_is_left_alone() -> None:
    """With ``attachRequired: false`` there are no attachments."""
    async with virtual_cluster(PARTS) as cluster:
        await prepare(cluster, required=False)
        await use(cluster, "p", "n1")
        await asyncio.sleep(10)
        assert not attached(cluster)
