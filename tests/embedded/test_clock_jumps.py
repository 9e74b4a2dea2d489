"""The clock is set forward or back while a cluster runs: it keeps working, no node is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.embedded.apiserver.objects import put
from tests.embedded.apiserver.store.gated_log import Ticks, gated
from tests.embedded.components.workloads.deployments.deploying import deployment
from tests.embedded.virtual_cluster import until
from tests.embedded.whole_cluster import settled, whole

from zonewise.api.errors import Unauthorized
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.core import Namespace, Node, NodeStatus
from zonewise.api.objects.pod import Pod
from zonewise.embedded.apiserver.server import ApiServer
from zonewise.embedded.apiserver.store.log import WriteFailed
from zonewise.embedded.cluster import EmbeddedCluster
from zonewise.embedded.components.kubelet.node_status import FAILED_ANNOTATION
from zonewise.embedded.components.nodelifecycle import health
from zonewise.embedded.seed.nodes import NodeLayout

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

HOUR = 3600.0
JUMPS = {"an hour back": -HOUR, "an hour on": HOUR, "a year back": -365 * 24 * HOUR}


def verdicts(cluster: EmbeddedCluster) -> set[str | None]:
    """The Ready conditions of the nodes."""
    return {health.ready_status(node) for node in cluster.program.cache.store(Node)}


def replicas(cluster: EmbeddedCluster, app: str) -> Callable[[], int]:
    """The number of ready pods of an application."""
    pods = cluster.program.cache.store(Pod)
    return lambda: sum(
        any(
            condition.type == "Ready" and condition.status == "True"
            for condition in pod.status.conditions
        )
        for pod in pods
        if pod.metadata.labels.get("app") == app
    )


@pytest.mark.slow
@pytest.mark.parametrize("jump", JUMPS)
async def test_a_cluster_works_after_a_clock_jump(jump: str) -> None:
    """Nodes stay ready, pods are created and deleted, losses are noticed in the usual time."""
    shift = [0.0]
    async with whole(NodeLayout(("a", "b"), 2).nodes(), shift=lambda: shift[0]) as cluster:
        client = cluster.client
        await client.create(deployment(replicas=4))
        await client.create(Namespace(metadata=ObjectMeta(name="passing")))
        await settled(cluster)
        # Some work is under way: a pod that fits nowhere rests, a namespace is about to go.
        await client.create(deployment("large", replicas=1, template=_large()))
        await asyncio.sleep(30)
        await client.delete(Namespace, "passing")
        shift[0] = JUMPS[jump]

        began = asyncio.get_running_loop().time()
        await client.create(deployment("late", replicas=4))
        await until(lambda: replicas(cluster, "late")() == 4, within=30)
        await until(lambda: _gone(cluster, "passing"), within=60)
        for _ in range(20):
            await asyncio.sleep(10)
            assert verdicts(cluster) == {"True"}, "a clock is no reason to lose a node"
        # What had to wait is tried again within the usual pauses.
        await client.create(Node(metadata=ObjectMeta(name="big"), status=_size("64")))
        await until(lambda: replicas(cluster, "large")() == 1, within=60)
        # A real loss is noticed, and pods move after the time they tolerate.
        body = {"metadata": {"annotations": {FAILED_ANNOTATION: "test"}}}
        lost = next(
            pod.spec.node_name
            for pod in cluster.program.cache.store(Pod)
            if pod.metadata.labels.get("app") == "web"
        )
        await client.patch(Node, lost, None, body)
        await until(lambda: "Unknown" in verdicts(cluster), within=90)
        pods = cluster.program.cache.store(Pod)

        def moved() -> bool:
            living = [pod for pod in pods if pod.metadata.deletion_timestamp is None]
            return all(pod.spec.node_name != lost for pod in living)

        await until(moved, within=400)
        await until(lambda: replicas(cluster, "web")() >= 4, within=60)
        assert asyncio.get_running_loop().time() - began < 1000


def _gone(cluster: EmbeddedCluster, name: str) -> bool:
    return cluster.server.state.latest("/namespaces", "", name) is None


def _large() -> dict[str, object]:
    container = {"name": "main", "image": "app:1", "resources": {"requests": {"cpu": "32"}}}
    return {"metadata": {"labels": {"app": "large"}}, "spec": {"containers": [container]}}


def _size(cpu: str) -> NodeStatus:
    size: dict[str, str | int | float] = {"cpu": cpu, "memory": "64Gi", "pods": "110"}
    return NodeStatus(capacity=size, allocatable=size)


async def test_a_clock_set_back_does_not_extend_cached_authentication(tmp_path: Path) -> None:
    """A cached authentication expires although the clock was set back."""
    now = [1_800_000_000.0]
    server = ApiServer(tmp_path, clock=lambda: now[0], rng=random.Random(1), inline=True)
    await server.start_local()
    try:
        client = server.connect("test")
        body = {"metadata": {"name": "robot"}}
        path = "/api/v1/namespaces/default/serviceaccounts"
        await client.raw("POST", path, body=msgspec.json.encode(body))
        answer = await client.raw("POST", f"{path}/robot/token", body=b"{}")
        bearer = f"Bearer {answer.json()['status']['token']}"
        assert server.authenticator.authenticate(bearer, None).name.endswith(":robot")
        now[0] -= HOUR
        await client.raw("DELETE", f"{path}/robot")
        with pytest.raises(Unauthorized):
            server.authenticator.authenticate(bearer, None)
    finally:
        await server.close()


async def test_a_clock_set_back_does_not_delay_writes(tmp_path: Path) -> None:
    """After a full disk, writes are tried again in a second, although the clock was set back."""
    clock = Ticks()
    state, log = gated(tmp_path, clock=clock)
    log.allowed.release()
    await put(state, "kept")
    log.entered.acquire()
    log.trouble = WriteFailed("the disk is full; free some space", permanent=False)
    log.allowed.release()
    with pytest.raises(WriteFailed):
        await put(state, "refused")
    clock.now -= HOUR
    log.trouble = None
    log.allowed.release()
    await put(state, "taken")
    await state.close()
