"""A node dies and returns, on a real control plane and on ours: both say the same.

The kubelets are ours on both. Who notices is the real node lifecycle and taint eviction there, and
ours here, with the same short grace periods.
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
from zonewise.embedded.components.kubelet import FAILED_ANNOTATION, Kubelets, KubeletSettings
from zonewise.embedded.components.nodelifecycle import (
    NodeLifecycleController,
    PodGCController,
    TaintEvictionController,
)
from zonewise.embedded.components.nodelifecycle import NodeLifecycleSettings as NodeSettings
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config
from zonewise.runtime.program.program import Program

pytestmark = pytest.mark.real

FLAGS = ("--node-monitor-grace-period=6s", "--node-monitor-period=1s")
GRACE = NodeSettings(grace=6.0, period=1.0)
BEATS = KubeletSettings(heartbeat=1.0)
PLACE = "node-loss"
LIMIT = 180.0
LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
FORMER = "finished"


def tolerant(seconds: int) -> dict[str, Any]:
    """A pod that stays so long on a lost node."""
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
    """One cluster, and what it says."""

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
            raise AssertionError(f"not {what}: {self.said()}") from None

    def pod(self, name: str) -> Pod | None:
        return self.pods.get((PLACE, name))

    def taints(self, name: str) -> set[tuple[str, str]]:
        node = self.nodes.get(("", name))
        return {(one.key, one.effect) for one in node.spec.taints} if node else {("?", "")}

    def said(self) -> dict[str, Any]:
        """What nodes and pods say, without times."""
        nodes = {
            node.metadata.name: {
                "conditions": {
                    one.type: (one.status, one.reason, one.message)
                    for one in node.status.conditions
                },
                "taints": sorted(
                    (one.key, one.effect, bool(one.time_added)) for one in node.spec.taints
                ),
            }
            for node in self.nodes
        }
        pods = {
            pod.metadata.name: {
                "phase": pod.status.phase,
                "deleted": pod.metadata.deletion_timestamp is not None,
                "conditions": {
                    one.type: (one.status, one.reason, one.message) for one in pod.status.conditions
                },
            }
            for pod in self.pods
            if pod.metadata.namespace == PLACE
        }
        return {"nodes": nodes, "pods": pods}

    async def reasons(self, last: str) -> set[tuple[str, ...]]:
        """What events say of pods and nodes, once the last of them is there."""
        async with asyncio.timeout(LIMIT):
            while True:
                events = await self.client.list(Event)
                if any(one.note == last for one in events):
                    break
                await asyncio.sleep(0.05)
        return {
            (one.regarding.kind, one.regarding.name, one.type, one.reason, one.note)
            for one in events
            if one.regarding.kind in ("Pod", "Node")
        }


async def play(scene: Scene) -> list[Any]:
    """Three nodes, one of which dies and returns."""
    client, said = scene.client, list[Any]()
    await client.create(Namespace(metadata=ObjectMeta(name=PLACE)))
    await scene.until("furnished", lambda: (PLACE, "default") in scene.accounts)
    for name, zone in {"a1": "a", "a2": "a", "b1": "b"}.items():
        labels = {"topology.kubernetes.io/zone": zone}
        await client.create(Node(metadata=ObjectMeta(name=name, labels=labels)))
    await scene.until("alive", lambda: all(not scene.taints(one) for one in ("a1", "a2", "b1")))
    path = f"/api/v1/namespaces/{PLACE}/pods"
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
    said.append(scene.said())
    await client.patch(Node, "a1", None, {"metadata": {"annotations": {FAILED_ANNOTATION: "yes"}}})
    await scene.until("lost", lambda: len(scene.taints("a1")) == 2)
    await scene.until(
        "evicted",
        lambda: all(
            (pod := scene.pod(name)) is None or pod.metadata.deletion_timestamp is not None
            for name in ("hasty", "intolerant")
        ),
    )
    said.append(scene.said())
    await client.patch(Node, "a1", None, {"metadata": {"annotations": {FAILED_ANNOTATION: None}}})
    await scene.until("healed", lambda: not scene.taints("a1"))
    await scene.until("gone", lambda: not (scene.pod("hasty") or scene.pod("intolerant")))
    await scene.until(
        "ready again",
        lambda: all(
            (pod := scene.pod(name)) is not None
            and any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions)
            for name in ("usual", "patient")
        ),
    )
    said.append(scene.said())
    said.append(await scene.reasons(f"Cancelling deletion of Pod {PLACE}/usual"))
    return said


@asynccontextmanager
async def crewed(connect: Callable[[str], Client], *, whole: bool) -> AsyncIterator[Scene]:
    """A cluster with kubelets, and if it is ours with those who watch over nodes."""
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
        expected, found = await asyncio.gather(theirs(plane.kubeconfig), ours(tmp_path / "ours"))
    for number, (right, mine) in enumerate(zip(expected, found, strict=True), start=1):
        assert mine == right, f"act {number}"
