"""A node dies and returns, on a real control plane and on ours: both react the same.

The kubelets are ours on both. Node lifecycle and taint eviction are the real ones there and ours
here, with the same short grace periods.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tools import realkube as real
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.core import Namespace, Node
from zonewise.api.objects.events import Event
from zonewise.api.objects.pod import Pod
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.embedded.apiserver.server import ApiServer
from zonewise.embedded.components.kubelet.kubelets import Kubelets, KubeletSettings
from zonewise.embedded.components.kubelet.node_status import FAILED_ANNOTATION
from zonewise.embedded.components.nodelifecycle.controller import NodeLifecycleController
from zonewise.embedded.components.nodelifecycle.health import NodeLifecycleSettings as NodeSettings
from zonewise.embedded.components.nodelifecycle.pod_gc import PodGCController
from zonewise.embedded.components.nodelifecycle.taint_eviction import TaintEvictionController
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config
from zonewise.runtime.program.program import Program

pytestmark = pytest.mark.real

FLAGS = ("--node-monitor-grace-period=6s", "--node-monitor-period=1s")
GRACE = NodeSettings(grace=6.0, period=1.0)
BEATS = KubeletSettings(heartbeat=1.0)
NAMESPACE = "node-loss"
LIMIT = 180.0
LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
FORMER = "finished"


def tolerant(seconds: int) -> dict[str, Any]:
    """Tolerations of a pod that stays so long on a lost node."""
    toleration = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
    return {"tolerations": [{"key": key, **toleration} for key in LOST]}


PODS: dict[str, dict[str, Any]] = {
    "usual": {},
    "hasty": tolerant(2),
    "intolerant": tolerant(0),
    "patient": {"tolerations": [{"operator": "Exists"}]},
    FORMER: {**tolerant(0), "restartPolicy": "Never"},
}
ServiceAccount = unstructured(Resource("", "v1", "ServiceAccount", "serviceaccounts"))


class Scene:
    """A cluster, and what can be seen of its nodes and pods."""

    def __init__(self, client: Client, components: Program) -> None:
        self.client = client
        self.nodes = components.cache.store(Node)
        self.pods = components.cache.store(Pod)
        self.accounts = components.cache.store(ServiceAccount)

    async def until(self, what: str, condition: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(LIMIT):
                while True:
                    if condition():
                        return
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"not {what}: {self.describe()}") from None

    def pod(self, name: str) -> Pod | None:
        return self.pods.get((NAMESPACE, name))

    def taints(self, name: str) -> set[tuple[str, str]]:
        node = self.nodes.get(("", name))
        return {(taint.key, taint.effect) for taint in node.spec.taints} if node else {("?", "")}

    def describe(self) -> dict[str, Any]:
        """Conditions and taints of nodes and pods, without times."""
        nodes = {
            node.metadata.name: {
                "conditions": {
                    condition.type: (condition.status, condition.reason, condition.message)
                    for condition in node.status.conditions
                },
                "taints": sorted(
                    (taint.key, taint.effect, bool(taint.time_added)) for taint in node.spec.taints
                ),
            }
            for node in self.nodes
        }
        pods = {
            pod.metadata.name: {
                "phase": pod.status.phase,
                "deleted": pod.metadata.deletion_timestamp is not None,
                "conditions": {
                    condition.type: (condition.status, condition.reason, condition.message)
                    for condition in pod.status.conditions
                },
            }
            for pod in self.pods
            if pod.metadata.namespace == NAMESPACE
        }
        return {"nodes": nodes, "pods": pods}

    async def reasons(self, last: str) -> set[tuple[str, ...]]:
        """The events about pods and nodes, once the last of them is there."""
        async with asyncio.timeout(LIMIT):
            while True:
                events = await self.client.list(Event)
                if any(event.note == last for event in events):
                    break
                await asyncio.sleep(0.05)
        return {
            (event.regarding.kind, event.regarding.name, event.type, event.reason, event.note)
            for event in events
            if event.regarding.kind in ("Pod", "Node")
        }


async def play(scene: Scene) -> list[Any]:
    """Create three nodes; one of them fails and returns."""
    client, seen = scene.client, list[Any]()
    await client.create(Namespace(metadata=ObjectMeta(name=NAMESPACE)))
    await scene.until("furnished", lambda: (NAMESPACE, "default") in scene.accounts)
    for name, zone in {"a1": "a", "a2": "a", "b1": "b"}.items():
        labels = {"topology.kubernetes.io/zone": zone}
        await client.create(Node(metadata=ObjectMeta(name=name, labels=labels)))
    await scene.until("alive", lambda: all(not scene.taints(name) for name in ("a1", "a2", "b1")))
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    for name, fields in PODS.items():
        spec = {"nodeName": "a1", "containers": [{"name": "c", "image": "x"}], **fields}
        body = msgspec.json.encode({"metadata": {"name": name}, "spec": spec})
        await client.raw("POST", path, body=body, headers={"Content-Type": "application/json"})
    await scene.until(
        "running",
        lambda: all(
            (pod := scene.pod(name)) is not None
            and pod.status.phase == ("Succeeded" if name == FORMER else "Running")
            for name in PODS
        ),
    )
    seen.append(scene.describe())
    await client.patch(Node, "a1", None, {"metadata": {"annotations": {FAILED_ANNOTATION: "yes"}}})
    await scene.until("lost", lambda: len(scene.taints("a1")) == 2)
    await scene.until(
        "evicted",
        lambda: all(
            (pod := scene.pod(name)) is None or pod.metadata.deletion_timestamp is not None
            for name in ("hasty", "intolerant")
        ),
    )
    seen.append(scene.describe())
    await client.patch(Node, "a1", None, {"metadata": {"annotations": {FAILED_ANNOTATION: None}}})
    await scene.until("healed", lambda: not scene.taints("a1"))
    await scene.until("gone", lambda: not (scene.pod("hasty") or scene.pod("intolerant")))
    await scene.until(
        "ready again",
        lambda: all(
            (pod := scene.pod(name)) is not None
            and any(
                condition.type == "Ready" and condition.status == "True"
                for condition in pod.status.conditions
            )
            for name in ("usual", "patient")
        ),
    )
    seen.append(scene.describe())
    seen.append(await scene.reasons(f"Cancelling deletion of Pod {NAMESPACE}/usual"))
    return seen


@asynccontextmanager
async def crewed(connect: Callable[[str], Client], *, whole: bool) -> AsyncIterator[Scene]:
    """A cluster with kubelets, and if it is ours with the controllers for nodes."""
    components = Program(connect, clock=time.time, rng=random.Random(1))
    components.add("kubelets", lambda context: Kubelets(context, BEATS))
    if whole:
        components.add("node-controller", lambda context: NodeLifecycleController(context, GRACE))
        components.add("taint-eviction-controller", TaintEvictionController)
        components.add("pod-garbage-collector", PodGCController)
    scene = Scene(connect("play"), components)
    work = asyncio.create_task(components.run())
    try:
        yield scene
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def theirs(kubeconfig: Path) -> list[Any]:
    """The play on the real control plane."""
    transport = HttpsTransport(load_config(kubeconfig=kubeconfig))
    try:

        def connect(name: str) -> Client:
            return Client(transport, field_manager=name)

        async with crewed(connect, whole=False) as scene:
            return await play(scene)
    finally:
        await transport.close()


async def ours(folder: Path) -> list[Any]:
    """The play on our own."""
    server = ApiServer(folder, clock=time.time, rng=random.Random(1))
    await server.start_local()
    try:
        async with crewed(server.connect, whole=True) as scene:
            return await play(scene)
    finally:
        await server.close()


async def test_a_dead_node_looks_the_same(real_binaries: real.Binaries, tmp_path: Path) -> None:
    """Conditions, taints, evicted pods and events of a node that dies and returns are equal."""
    settings = real.Settings(fsync=False, controller_manager_args=FLAGS)
    with real.start(settings, binaries=real_binaries) as plane:
        expected, actual = await asyncio.gather(theirs(plane.kubeconfig), ours(tmp_path / "ours"))
    for number, (right, mine) in enumerate(zip(expected, actual, strict=True), start=1):
        assert mine == right, f"act {number}"
