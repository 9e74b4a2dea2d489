"""After kill -9 during a rollout, the next start on the same folder finishes it.

``zonewise up`` is a separate process with its demo. Rollouts of a Deployment, a StatefulSet and a
DaemonSet are started, and the process is killed after a random number of pod events. After a
restart all are finished, no pod is duplicated or surplus, and pods of other workloads are the same
as before.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.embedded.virtual_cluster import until, virtual_cluster

from zonewise.api import DaemonSet, Deployment, Node, ObjectMeta, Pod, StatefulSet
from zonewise.embedded.apiserver.handlers.deleting import Deleter
from zonewise.embedded.components.kubelet.kubelets import Kubelets
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config

ROUNDS = int(os.environ.get("ZONEWISE_KILL_ROUNDS", "4"))
PATIENCE = 180.0
"""A disruption that was granted before the kill, and not used, counts for two minutes."""
Workload = DaemonSet | Deployment | StatefulSet
REPLICAS = {"cache": 9, "cart": 2, "catalog": 6, "checkout": 3, "orders": 3, "search": 4, "web": 9}
ROLLED: dict[str, type[Workload]] = {"cache": DaemonSet, "orders": StatefulSet, "web": Deployment}
UNTOUCHED = {"cart", "catalog", "checkout", "search"}


@contextlib.asynccontextmanager
async def up(folder: Path) -> AsyncIterator[tuple[Client, asyncio.subprocess.Process]]:
    """``zonewise up`` on a folder and a client of it; SIGTERM ends it, so that no mount stays."""
    kubeconfig = folder / "kubeconfig"
    kubeconfig.unlink(missing_ok=True)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "zonewise", "up", "--data", str(folder)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PATIENCE):
            while not kubeconfig.exists():
                if process.returncode is not None:
                    assert process.stderr is not None
                    pytest.fail((await process.stderr.read()).decode())
                await asyncio.sleep(0.02)
        transport = HttpsTransport(load_config(str(kubeconfig)))
        async with Client(transport) as client:
            yield client, process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def settled(client: Client) -> dict[str, list[Pod]]:
    """Wait until every workload is complete and rolled out; gives the pods by workload."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while True:
        pods: dict[str, list[Pod]] = {}
        for pod in await client.list(Pod, "shop"):
            pods.setdefault(pod.metadata.labels["app"], []).append(pod)
        counts = {app: len(pods.get(app, ())) for app in REPLICAS}
        behind = [name async for name in unfinished(client)]
        if counts == REPLICAS and not behind:
            return pods
        if asyncio.get_running_loop().time() > deadline:
            states = [describe(pod) for group in pods.values() for pod in group]
            pytest.fail(f"{counts}, {behind}\n" + "\n".join(states))
        await asyncio.sleep(0.1)


def describe(pod: Pod) -> str:
    """A pod in a line, for the message of a failed test."""
    meta, owner = pod.metadata, pod.metadata.controller
    ready = [condition.status for condition in pod.status.conditions if condition.type == "Ready"]
    return (
        f"{meta.name} {pod.status.phase} ready={ready} node={pod.spec.node_name} "
        f"owner={owner.name if owner else None} made={meta.creation_timestamp} "
        f"deleted={meta.deletion_timestamp} finalizers={meta.finalizers}"
    )


async def unfinished(client: Client) -> AsyncIterator[str]:
    """The workloads whose rollout is not complete."""
    for workload in (
        *await client.list(Deployment, "shop"),
        *await client.list(StatefulSet, "shop"),
    ):
        status, desired = workload.status, workload.spec.replicas
        seen = status.observed_generation >= workload.metadata.generation
        if not seen or not (
            desired == status.replicas == status.ready_replicas == status.updated_replicas
        ):
            yield f"{workload.metadata.name}: {status}"
    for each in await client.list(DaemonSet, "shop"):
        state = each.status
        seen = state.observed_generation >= each.metadata.generation
        if not seen or not (
            state.updated_number_scheduled == state.number_ready == REPLICAS["cache"]
        ):
            yield f"{each.metadata.name}: {state}"


async def events(client: Client, number: int) -> None:
    """Wait until so many pod events were seen."""
    listing = await client.list(Pod, "shop")
    async for _ in client.watch(Pod, "shop", resource_version=listing.resource_version):
        number -= 1
        if number <= 0:
            return


def uids(pods: dict[str, list[Pod]], apps: set[str]) -> set[str]:
    """The uids of the pods of some workloads."""
    return {pod.metadata.uid for app in apps for pod in pods[app]}


def check(before: dict[str, list[Pod]], after: dict[str, list[Pod]]) -> None:
    """Assert that no pod was lost or duplicated, and that all rolled out pods are new."""
    assert uids(after, UNTOUCHED) == uids(before, UNTOUCHED)
    assert not uids(after, set(ROLLED)) & uids(before, set(ROLLED))
    names = sorted(pod.metadata.name for pod in after["orders"])
    assert names == ["orders-0", "orders-1", "orders-2"]
    assert len({pod.spec.node_name for pod in after["cache"]}) == REPLICAS["cache"]
    addresses = [pod.status.pod_ip for pods in after.values() for pod in pods]
    assert len(set(addresses)) == len(addresses)


@pytest.mark.system
@pytest.mark.timeout(900)
async def test_a_rollout_survives_kill(tmp_path: Path) -> None:
    """After kill -9 at a random moment the rollout finishes; no pod is lost or duplicated."""
    rng = random.Random(11)
    before: dict[str, list[Pod]] = {}
    for round_ in range(ROUNDS + 1):
        async with up(tmp_path / "cluster") as (client, process):
            after = await settled(client)
            if before:
                check(before, after)
            before = after
            if round_ == ROUNDS:
                break
            moment = asyncio.create_task(events(client, rng.randint(1, 60)))
            stamp = {"metadata": {"annotations": {"example.com/round": str(round_)}}}
            for name, kind in ROLLED.items():
                await client.patch(kind, name, "shop", {"spec": {"template": stamp}})
            async with asyncio.timeout(PATIENCE):
                await moment
            process.send_signal(signal.SIGKILL)
            await process.wait()


@pytest.mark.looptime
async def test_a_removal_interrupted_by_a_kill_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is killed between a pod's last status and its deletion deletes it later."""
    removed = Deleter._write

    async def dies(self: Deleter, *arguments: Any) -> Any:
        if arguments[3] == "DELETED":
            raise ConnectionResetError("killed")
        return await removed(self, *arguments)

    async with virtual_cluster({"kubelet": Kubelets}) as cluster:
        pods = cluster.program.cache.store(Pod)
        await cluster.client.create(Node(metadata=ObjectMeta(name="n1")))
        spec = {"nodeName": "n1", "containers": [{"name": "c", "image": "c"}]}
        body = msgspec.json.encode({"metadata": {"name": "web"}, "spec": spec})
        await cluster.client.raw("POST", "/api/v1/namespaces/default/pods", body=body)
        await until(lambda: any(pod.status.phase == "Running" for pod in pods))
        monkeypatch.setattr(Deleter, "_write", dies)
        await cluster.client.delete(Pod, "web", "default", grace_period=30)
        await until(lambda: any(pod.metadata.deletion_grace_period_seconds == 0 for pod in pods))
        monkeypatch.setattr(Deleter, "_write", removed)
        await until(lambda: not len(pods))
