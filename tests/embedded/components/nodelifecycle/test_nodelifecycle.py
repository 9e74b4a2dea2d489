"""Lost, cordoned, tainted and deleted nodes, and their pods, in virtual time."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.embedded.virtual_cluster import EPOCH, VirtualCluster, until, virtual_cluster

from zonewise.api.errors import ServerError, Status
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.core import Node
from zonewise.api.objects.events import Event
from zonewise.api.objects.pod import Pod
from zonewise.embedded.components.kubelet.kubelets import Kubelets
from zonewise.embedded.components.kubelet.node_status import FAILED_ANNOTATION, KUBELET_ANNOTATION
from zonewise.embedded.components.nodelifecycle.controller import NodeLifecycleController
from zonewise.embedded.components.nodelifecycle.health import NodeLifecycleSettings
from zonewise.embedded.components.nodelifecycle.pod_gc import PodGCController
from zonewise.embedded.components.nodelifecycle.taint_eviction import TaintEvictionController
from zonewise.runtime.client.client import Client
from zonewise.runtime.program.program import Program

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

PARTS: dict[str, Any] = {
    "kubelets": Kubelets,
    "node-controller": NodeLifecycleController,
    "taint-eviction-controller": TaintEvictionController,
    "pod-garbage-collector": PodGCController,
}
ZONE = "topology.kubernetes.io/zone"
PREFIX = "node.kubernetes.io/"
LOST = {(PREFIX + "unreachable", "NoSchedule"), (PREFIX + "unreachable", "NoExecute")}


class Scene:
    """A cluster with nodes `a1`, `a2`, `b1`... of the zones `a`, `b`... that are ready."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.client = cluster.client
        self.nodes = cluster.program.cache.store(Node)
        self.pods = cluster.program.cache.store(Pod)

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
            body = {"metadata": {"annotations": {FAILED_ANNOTATION: None if heal else "yes"}}}
            await self.client.patch(Node, name, None, body)

    def ready(self, name: str) -> str:
        node = self.nodes.get(("", name))
        conditions = node.status.conditions if node else ()
        return next((condition.status for condition in conditions if condition.type == "Ready"), "")

    def taints(self, name: str) -> set[tuple[str, str]]:
        node = self.nodes.get(("", name))
        return {(taint.key, taint.effect) for taint in node.spec.taints} if node else set()

    async def tainted(self, name: str, want: set[tuple[str, str]]) -> None:
        await until(lambda: self.taints(name) == want)

    def pod(self, name: str) -> Pod:
        pod = self.pods.get(("default", name))
        assert pod is not None, f"{name} is gone"
        return pod

    def gone(self, name: str) -> bool:
        return ("default", name) not in self.pods

    def pod_ready(self, name: str) -> str:
        pod = self.pods.get(("default", name))
        conditions = pod.status.conditions if pod else ()
        return next((condition.status for condition in conditions if condition.type == "Ready"), "")


async def test_a_replaced_pod_does_not_stop_the_taints_of_its_node(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lost node is tainted although one of its pods was replaced under the same name."""
    original = Client.patch_status
    replaced: list[str] = []

    async def patch_status(client: Client, item: Any, status: object, **options: Any) -> Any:
        if isinstance(item, Pod) and item.metadata.name == "web" and armed and not replaced:
            replaced.append(item.metadata.uid)
            await client.delete(Pod, "web", "default", grace_period=0)
            await scene.run("web", "b1")
        return await original(client, item, status, **options)

    armed = False
    monkeypatch.setattr(Client, "patch_status", patch_status)
    async with virtual_cluster(PARTS) as cluster:
        scene = Scene(cluster)
        await scene.build("a1", "a2", "b1")
        await scene.run("web", "a1")
        await scene.run("other", "a1")
        armed = True
        await scene.fail("a1")
        await scene.tainted("a1", LOST)
        assert replaced
        await until(lambda: scene.pod_ready("other") == "False")
        assert scene.pod_ready("web") == "True"
    assert "not retried" not in capsys.readouterr().err


async def test_a_silent_node_is_lost_and_its_pods_are_deleted() -> None:
    """A node without heartbeats gets Unknown, two taints and unready pods, deleted after 300 s."""
    async with virtual_cluster(PARTS) as cluster:
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
        assert {(condition.reason, condition.status) for condition in node.status.conditions} == {
            ("NodeStatusUnknown", "Unknown")
        }
        assert scene.pod_ready("web") == "False"
        assert scene.pod_ready("patient") == "False"
        await asyncio.sleep(290)
        assert scene.pod("web").metadata.deletion_timestamp is None
        await until(lambda: scene.pod("web").metadata.deletion_timestamp is not None)
        target = next(
            condition
            for condition in scene.pod("web").status.conditions
            if condition.type == "DisruptionTarget"
        )
        assert target.reason == "DeletionByTaintManager"
        await asyncio.sleep(100)
        assert not scene.gone("web"), "nobody is there to finish its deletion"
        assert scene.pod("patient").metadata.deletion_timestamp is None
        await scene.fail("a1", heal=True)
        await until(lambda: scene.ready("a1") == "True" and not scene.taints("a1"))
        await until(lambda: scene.gone("web") and scene.pod_ready("patient") == "True")


async def test_a_node_that_returns_in_time_keeps_its_pods() -> None:
    """The taints are removed when the node returns, and no pod is deleted."""
    async with virtual_cluster(PARTS) as cluster:
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
    """spec.unschedulable and the taint are added and removed together."""
    async with virtual_cluster(PARTS) as cluster:
        scene = Scene(cluster)
        await scene.build("a1")
        await scene.client.patch(Node, "a1", None, {"spec": {"unschedulable": True}})
        cordoned = {("node.kubernetes.io/unschedulable", "NoSchedule")}
        await until(lambda: scene.taints("a1") == cordoned)
        await scene.client.patch(Node, "a1", None, {"spec": {"unschedulable": None}})
        await until(lambda: not scene.taints("a1"))


async def test_a_node_without_a_kubelet_is_lost_after_its_startup_grace() -> None:
    """A Node without a kubelet gets the status Unknown after a minute."""
    async with virtual_cluster(PARTS) as cluster:
        scene = Scene(cluster)
        await scene.build("a1")
        meta = ObjectMeta(name="a2", annotations={KUBELET_ANNOTATION: "none"})
        await scene.client.create(Node(metadata=meta))
        await asyncio.sleep(55)
        assert scene.ready("a2") == ""
        await until(lambda: scene.ready("a2") == "Unknown")
        await until(lambda: scene.taints("a2") == LOST)
        node = scene.nodes.get(("", "a2"))
        assert node is not None
        assert {condition.reason for condition in node.status.conditions} == {
            "NodeStatusNeverUpdated"
        }


async def test_conditions_become_taints() -> None:
    """A node that is not ready, or under pressure, gets the taints for it."""
    async with virtual_cluster(PARTS) as cluster:
        scene = Scene(cluster)
        await scene.build("a1")
        meta = ObjectMeta(name="b1", annotations={KUBELET_ANNOTATION: "none"})
        await scene.client.create(Node(metadata=meta))
        for says, taints in (
            ({"Ready": "True", "DiskPressure": "True"}, {("disk-pressure", "NoSchedule")}),
            ({"Ready": "False"}, {("not-ready", "NoSchedule"), ("not-ready", "NoExecute")}),
            ({"Ready": "True"}, set()),
        ):
            conditions = [{"type": kind, "status": status} for kind, status in says.items()]
            await scene.client.patch(
                Node, "b1", None, {"status": {"conditions": conditions}}, subresource="status"
            )
            await scene.tainted("b1", {(PREFIX + key, effect) for key, effect in taints})


async def test_noexecute_taints_evict_pods() -> None:
    """NoExecute taints evict pods without a toleration, unless they are removed in time."""
    async with virtual_cluster(PARTS) as cluster:
        scene = Scene(cluster)
        await scene.build("a1")
        minute = {"key": "example.com/out", "effect": "NoExecute", "tolerationSeconds": 60}
        await scene.run("waits", "a1", tolerations=[{**minute, "operator": "Exists"}])
        await scene.run("stays", "a1", tolerations=[{"key": "example.com/out", "value": "x"}])
        await scene.run("goes", "a1")
        await asyncio.sleep(100)
        taint = {"key": "example.com/out", "value": "x", "effect": "NoExecute"}
        await scene.client.patch(Node, "a1", None, {"spec": {"taints": [taint]}})
        await until(lambda: scene.gone("goes"))
        await asyncio.sleep(30)
        assert not scene.gone("waits")
        await scene.client.patch(Node, "a1", None, {"spec": {"taints": []}})
        await asyncio.sleep(100)
        assert not scene.gone("waits")
        notes = {
            event.note
            for event in await scene.client.list(Event, "default")
            if event.reason == "TaintManagerEviction"
        }
        assert notes == {
            "Marking for deletion Pod default/goes",
            "Cancelling deletion of Pod default/waits",
        }
        await scene.client.patch(Node, "a1", None, {"spec": {"taints": [taint]}})
        await asyncio.sleep(62)
        assert scene.gone("waits") and not scene.gone("stays")


async def test_a_lost_zone_is_evicted_node_by_node() -> None:
    """When a whole zone is lost, the pods of one node every ten seconds are evicted."""
    async with virtual_cluster(PARTS) as cluster:
        scene = Scene(cluster)
        await scene.build("a1", "a2", "a3", "b1")
        await scene.fail("a1", "a2", "a3")
        await until(lambda: all(scene.ready(name) == "Unknown" for name in ("a1", "a2", "a3")))
        counts = []
        for _ in range(4):
            await asyncio.sleep(8)
            counts.append(sum(scene.taints(name) >= LOST for name in ("a1", "a2", "a3")))
        assert counts[-1] == 3
        assert counts != [3, 3, 3, 3]


async def test_a_small_zone_that_is_mostly_lost_keeps_its_pods() -> None:
    """When most of a small zone is lost, no more nodes are evicted."""
    async with virtual_cluster(PARTS) as cluster:
        scene = Scene(cluster)
        names = ("a1", "a2", "a3", "a4", "a5")
        await scene.build(*names, "b1")
        lost = names[:4]
        await scene.fail(*lost)
        await until(lambda: all(scene.ready(name) == "Unknown" for name in lost))
        await asyncio.sleep(5)
        given_up = {name for name in lost if scene.taints(name) >= LOST}
        await asyncio.sleep(300)
        assert {name for name in lost if scene.taints(name) >= LOST} == given_up
        assert len(given_up) < 4


async def test_no_pod_is_evicted_when_every_zone_is_lost() -> None:
    """When all zones are lost, the NoExecute taints are removed, and pods stay."""
    async with virtual_cluster(PARTS) as cluster:
        scene = Scene(cluster)
        await scene.build("a1", "b1")
        await scene.run("web", "a1")
        await scene.fail("a1", "b1")
        await until(lambda: all(scene.ready(name) == "Unknown" for name in ("a1", "b1")))
        await asyncio.sleep(10)
        assert not any(scene.taints(name) >= LOST for name in ("a1", "b1"))
        await asyncio.sleep(900)
        assert scene.pod("web").metadata.deletion_timestamp is None
        await scene.fail("b1", heal=True)
        await until(lambda: scene.ready("b1") == "True")
        await until(lambda: scene.taints("a1") == LOST)
        await asyncio.sleep(310)
        assert scene.pod("web").metadata.deletion_timestamp is not None


async def test_pods_of_a_deleted_node_are_removed() -> None:
    """Pods are removed seconds after their Node, unless it is created again in time."""
    async with virtual_cluster(PARTS) as cluster:
        scene = Scene(cluster)
        await scene.build("a1", "a2")
        await scene.run("web", "a1")
        await scene.run("other", "a2")
        seen: list[tuple[str, str]] = []

        def watch(_: Pod | None, pod: Pod | None) -> None:
            for condition in pod.status.conditions if pod else ():
                if pod and condition.type == "DisruptionTarget":
                    seen.append((pod.status.phase, condition.reason))

        scene.pods.on_change(watch)
        await scene.client.delete(Node, "a1")
        await scene.client.delete(Node, "a2")
        await asyncio.sleep(5)
        await scene.build("a2")
        assert not scene.gone("web")
        await until(lambda: scene.gone("web"), within=40)
        assert set(seen) == {("Failed", "DeletionByPodGC")}
        await asyncio.sleep(60)
        assert scene.pod_ready("other") == "True"


async def test_terminating_pods_of_a_node_out_of_service_are_removed() -> None:
    """With the taint out-of-service, terminating pods of a lost node are removed at once."""
    async with virtual_cluster(PARTS) as cluster:
        scene = Scene(cluster)
        await scene.build("a1", "b1")
        await scene.run("web", "a1", tolerations=[{"operator": "Exists"}])
        await scene.run("stays", "a1", tolerations=[{"operator": "Exists"}])
        await scene.fail("a1")
        await until(lambda: scene.taints("a1") == LOST)
        await scene.client.delete(Pod, "web", "default")
        await asyncio.sleep(60)
        assert not scene.gone("web")
        node = await scene.client.get(Node, "a1")
        out = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}
        taints = [*msgspec.to_builtins(node.spec.taints), out]
        await scene.client.patch(Node, "a1", None, {"spec": {"taints": taints}})
        await until(lambda: scene.gone("web"))
        assert not scene.gone("stays")


async def test_the_oldest_finished_pods_go_beyond_a_number() -> None:
    """Finished pods are kept up to a number."""
    few = NodeLifecycleSettings(finished_pods=2)
    parts = {**PARTS, "pod-garbage-collector": lambda context: PodGCController(context, few)}
    async with virtual_cluster(parts) as cluster:
        scene = Scene(cluster)
        await scene.build("a1")
        for name in ("first", "second", "third", "fourth"):
            await scene.run(name, "a1", restartPolicy="Never")
            await asyncio.sleep(1.5)
        await until(lambda: len(scene.pods) == 2)
        assert {pod.metadata.name for pod in scene.pods} == {"third", "fourth"}


async def test_a_refused_deletion_does_not_stop_the_collector() -> None:
    """A deletion that is refused, for example by a broken webhook, is tried again later."""
    refusals = [ServerError(Status(message="a webhook is broken"))] * 2

    class Hindered(PodGCController):
        async def _remove(self, pod: Pod, *, message: str) -> None:
            if refusals:
                raise refusals.pop()
            await super()._remove(pod, message=message)

    none = NodeLifecycleSettings(finished_pods=0)
    parts = {**PARTS, "pod-garbage-collector": lambda context: Hindered(context, none)}
    async with virtual_cluster(parts) as cluster:
        scene = Scene(cluster)
        await scene.build("a1")
        await scene.run("done", "a1", restartPolicy="Never")
        await until(lambda: scene.gone("done"))
        assert not refusals


async def test_time_asleep_does_not_count_against_nodes() -> None:
    """Time that passed while this process was stopped does not make nodes lost."""
    slept = 0.0
    loop = asyncio.get_running_loop()
    async with virtual_cluster({}) as cluster:
        components = Program(
            cluster.server.connect, clock=lambda: EPOCH + slept + loop.time(), rng=random.Random(1)
        )
        for name, make in PARTS.items():
            components.add(name, make)
        scene = Scene(replace(cluster, program=components))
        seen: list[str] = []
        work = asyncio.create_task(components.run())
        try:
            await scene.build("a1", "a2", "b1")
            scene.nodes.on_change(
                lambda _, node: seen.append(scene.ready(node.metadata.name) if node else "gone")
            )
            await asyncio.sleep(49)
            slept = 3600.0
            await asyncio.sleep(100)
            assert set(seen) == {"True"}
            await scene.fail("a1")
            await until(lambda: scene.ready("a1") == "Unknown")
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
