"""Lost, cordoned, tainted and deleted nodes, and what becomes of their pods, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.embedded.living import Living, living, until

from zonewise.api.core import Node
from zonewise.api.meta import ObjectMeta
from zonewise.api.pod import Pod
from zonewise.embedded.kubelets import FAILED, Kubelets
from zonewise.embedded.nodes import NodeLifecycle, PodCollector, TaintEviction

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

PARTS: dict[str, Any] = {
    "kubelets": Kubelets,
    "node-controller": NodeLifecycle,
    "taint-eviction-controller": TaintEviction,
    "pod-garbage-collector": PodCollector,
}
ZONE = "topology.kubernetes.io/zone"
LOST = {
    ("node.kubernetes.io/unreachable", "NoSchedule"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
}


class Scene:
    """A cluster with nodes `a1`, `a2`, `b1`... of the zones `a`, `b`... that are ready."""

    def __init__(self, cluster: Living) -> None:
        self.client = cluster.client
        self.nodes = cluster.crew.cache.store(Node)
        self.pods = cluster.crew.cache.store(Pod)

    async def build(self, *names: str) -> None:
        for name in names:
            meta = ObjectMeta(name=name, labels={ZONE: name[0]})
            await self.client.create(Node(metadata=meta))
        await until(lambda: all(self.ready(name) == "True" for name in names))
        await until(lambda: not any(self.taints(name) for name in names))

    async def run(self, name: str, node: str, **spec: Any) -> None:
        """Create a pod on a node and wait until it is ready."""
        body = {
            "metadata": {"name": name},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "x"}], **spec},
        }
        path = "/api/v1/namespaces/default/pods"
        await self.client.raw("POST", path, body=msgspec.json.encode(body))
        await until(lambda: self.pod_ready(name) == "True")

    async def fail(self, *names: str, heal: bool = False) -> None:
        for name in names:
            body = {"metadata": {"annotations": {FAILED: None if heal else "yes"}}}
            await self.client.patch(Node, name, None, body)

    def ready(self, name: str) -> str:
        node = self.nodes.get(("", name))
        conditions = node.status.conditions if node else ()
        return next((one.status for one in conditions if one.type == "Ready"), "")

    def taints(self, name: str) -> set[tuple[str, str]]:
        node = self.nodes.get(("", name))
        return {(one.key, one.effect) for one in node.spec.taints} if node else set()

    def pod(self, name: str) -> Pod:
        found = self.pods.get(("default", name))
        assert found is not None, f"{name} is gone"
        return found

    def gone(self, name: str) -> bool:
        return ("default", name) not in self.pods

    def pod_ready(self, name: str) -> str:
        found = self.pods.get(("default", name))
        conditions = found.status.conditions if found else ()
        return next((one.status for one in conditions if one.type == "Ready"), "")


async def test_a_silent_node_is_lost_and_its_pods_leave_after_their_time() -> None:
    """Silence ends in Unknown, two taints, unready pods, and after 300 s their deletion."""
    async with living(PARTS) as cluster:
        scene = Scene(cluster)
        await scene.build("a1", "a2", "b1")
        await scene.run("web", "a1")
        await scene.run("patient", "a1", tolerations=[{"operator": "Exists"}])
        await scene.fail("a1")
        await asyncio.sleep(15)
        assert scene.ready("a1") == "True"
        await until(lambda: scene.ready("a1") == "Unknown")
        await until(lambda: scene.taints("a1") == LOST)
        node = scene.nodes.get(("", "a1"))
        assert node is not None
        assert {(one.reason, one.status) for one in node.status.conditions} == {
            ("NodeStatusUnknown", "Unknown")
        }
        assert scene.pod_ready("web") == "False"
        assert scene.pod_ready("patient") == "False"
        await asyncio.sleep(290)
        assert scene.pod("web").metadata.deletion_timestamp is None
        await until(lambda: scene.pod("web").metadata.deletion_timestamp is not None)
        target = next(
            one for one in scene.pod("web").status.conditions if one.type == "DisruptionTarget"
        )
        assert target.reason == "DeletionByTaintManager"
        await asyncio.sleep(100)
        assert not scene.gone("web"), "nobody is there to finish its deletion"
        assert scene.pod("patient").metadata.deletion_timestamp is None
        await scene.fail("a1", heal=True)
        await until(lambda: scene.ready("a1") == "True" and not scene.taints("a1"))
        await until(lambda: scene.gone("web") and scene.pod_ready("patient") == "True")


async def test_a_node_that_returns_in_time_keeps_its_pods() -> None:
    """Taints go when the node is back, and nobody is deleted."""
    async with living(PARTS) as cluster:
        scene = Scene(cluster)
        await scene.build("a1", "a2")
        await scene.run("web", "a1")
        await scene.fail("a1")
        await until(lambda: scene.taints("a1") == LOST)
        await asyncio.sleep(100)
        await scene.fail("a1", heal=True)
        await until(lambda: not scene.taints("a1") and scene.pod_ready("web") == "True")
        await asyncio.sleep(600)
        assert scene.pod_ready("web") == "True"


async def test_cordon_is_a_taint() -> None:
    """spec.unschedulable and the taint come and go together."""
    async with living(PARTS) as cluster:
        scene = Scene(cluster)
        await scene.build("a1")
        await scene.client.patch(Node, "a1", None, {"spec": {"unschedulable": True}})
        cordoned = {("node.kubernetes.io/unschedulable", "NoSchedule")}
        await until(lambda: scene.taints("a1") == cordoned)
        await scene.client.patch(Node, "a1", None, {"spec": {"unschedulable": None}})
        await until(lambda: not scene.taints("a1"))
