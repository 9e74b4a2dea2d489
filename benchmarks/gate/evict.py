"""Evictions by sixteen clients under one budget: ours, the real server's own, and our gate there.

All get the same pods: Ready, on nodes in three zones, without anybody to run or replace them, so
that evictions are measured and nothing else. On the real server they are a ReplicaSet's, whose
controller does not run. The budget allows all of them. On the real server it
is a plain PodDisruptionBudget, counted by its own controller; ours are counted per zone. A client
that is told to come later asks again at once, as often as it takes. Everything is kept on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from tests.kubernetes.installed import Installed

from benchmarks.embedded.servers import ours
from benchmarks.sheet import Line, Sheet
from tools import realkube
from zonewise.api import Namespace, Node, ObjectMeta, Pod, ReplicaSet, convert
from zonewise.api.errors import Conflict, TooManyRequests
from zonewise.api.objects.budgets import TopologyDisruptionBudget
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config

CLIENTS = 16
EVICTED = 300
ZONE = "topology.kubernetes.io/zone"
NAMESPACE = "evicted"
LABELS = {"app": "web"}
BudgetKind: TypeAlias = type[TopologyDisruptionBudget] | type[PodDisruptionBudget]


@dataclass(frozen=True)
class Rate:
    """Evictions a second, and how long the slowest of a hundred took."""

    rate: float
    p99: float


def evictions() -> Iterator[Sheet]:
    """The three of them, one after the other."""
    with tempfile.TemporaryDirectory(prefix="zonewise-bench-") as name:
        with ours(Path(name) / "ours", "--empty") as (_, kubeconfig):
            embedded = asyncio.run(_embedded(kubeconfig))
        settings = realkube.Settings(scheduler=False, controllers=("*", "-replicaset-controller"))
        with realkube.start(settings) as plane:
            own = asyncio.run(_own(plane.kubeconfig, PodDisruptionBudget))
        with realkube.start(settings) as plane:
            bare = asyncio.run(_own(plane.kubeconfig, None))
        with realkube.start(settings) as plane:
            gate = asyncio.run(_gate(plane))
    yield Sheet(
        title=f"evictions under one budget, {CLIENTS} clients; real is a plain budget there",
        lines=(
            Line(
                name="zonewise up",
                unit="1/s",
                ours=embedded.rate,
                real=own.rate,
                higher_is_better=True,
            ),
            Line(name="zonewise up, p99", unit="ms", ours=embedded.p99, real=own.p99),
            Line(
                name="gate on real",
                unit="1/s",
                ours=gate.rate,
                real=own.rate,
                higher_is_better=True,
            ),
            Line(name="gate on real, p99", unit="ms", ours=gate.p99, real=own.p99),
        ),
        goal=5.0,
        note=f"without any budget the real server evicts {bare.rate:.1f} a second",
    )


async def _embedded(kubeconfig: Path) -> Rate:
    async with _connected(kubeconfig) as client:
        return await _measured(client, TopologyDisruptionBudget, owned=False)


async def _own(kubeconfig: Path, kind: BudgetKind | None) -> Rate:
    async with _connected(kubeconfig) as client:
        return await _measured(client, kind)


async def _gate(plane: realkube.ControlPlane) -> Rate:
    async with _connected(plane.kubeconfig) as client:
        installed = Installed(plane, client, "zonewise-bench", role="observe", budgets="enforce")
        await installed.apply()
        try:
            return await _measured(client, TopologyDisruptionBudget)
        finally:
            await installed.remove()


@asynccontextmanager
async def _connected(kubeconfig: Path) -> AsyncIterator[Client]:
    async with Client(HttpsTransport(load_config(kubeconfig)), field_manager="bench") as client:
        yield client


async def _measured(client: Client, kind: BudgetKind | None, *, owned: bool = True) -> Rate:
    labels = {"zonewise.io/budgets": "enforce"}
    await client.create(Namespace(metadata=ObjectMeta(name=NAMESPACE, labels=labels)))
    await _account(client)
    names = [f"web-{number}" for number in range(EVICTED)]
    for number in range(6):
        await client.create(convert(Node, _node(number)))
    owner = await client.create(convert(ReplicaSet, _replica_set())) if owned else None
    for name in names:
        await _pod(client, name, int(name[4:]) % 6, owner)
    if kind is not None:
        await _budget(client, kind)
    taken: list[float] = []

    async def evict() -> None:
        while names:
            name = names.pop()
            begin = time.perf_counter()
            while True:
                try:
                    await client.evict(name, NAMESPACE)
                    break
                except (TooManyRequests, Conflict):
                    continue
            taken.append(time.perf_counter() - begin)

    begin = time.perf_counter()
    await asyncio.gather(*(evict() for _ in range(CLIENTS)))
    spent = time.perf_counter() - begin
    return Rate(len(taken) / spent, statistics.quantiles(taken, n=100)[98] * 1000)


async def _budget(client: Client, kind: BudgetKind) -> None:
    """A budget that allows everything, once it was counted."""
    spec: dict[str, Any] = {"minAvailable": 0, "selector": {"matchLabels": LABELS}}
    if kind is TopologyDisruptionBudget:
        spec["topologyKeys"] = [ZONE]
    meta = {"name": "web", "namespace": NAMESPACE}
    await client.create(convert(kind, {"metadata": meta, "spec": spec}))
    while True:
        budget = await client.get(kind, "web", NAMESPACE)
        if isinstance(budget, TopologyDisruptionBudget):
            allowed = sum(row.disruptions_allowed or 0 for row in budget.status.domains)
        else:
            allowed = budget.status.disruptions_allowed
        if allowed == EVICTED:
            return
        await asyncio.sleep(0.2)


async def _account(client: Client) -> None:
    """Wait for the service account of a namespace: its pods are refused before that."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
    for _ in range(300):
        with contextlib.suppress(Exception):
            await client.raw("GET", path)
            return
        await asyncio.sleep(0.1)


def _node(number: int) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"n{number}",
            "labels": {ZONE: f"z{number % 3}"},
            "annotations": {"zonewise.io/kubelet": "none"},
        }
    }


def _replica_set() -> dict[str, Any]:
    containers = [{"name": "c", "image": "c"}]
    return {
        "metadata": {"name": "web", "namespace": NAMESPACE},
        "spec": {
            "replicas": EVICTED,
            "selector": {"matchLabels": LABELS},
            "template": {"metadata": {"labels": LABELS}, "spec": {"containers": containers}},
        },
    }


async def _pod(client: Client, name: str, node: int, owner: ReplicaSet | None) -> None:
    meta: dict[str, Any] = {"name": name, "namespace": NAMESPACE, "labels": LABELS}
    if owner is not None:
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web"}
        uid = owner.metadata.uid
        meta["generateName"] = "web-"
        meta["ownerReferences"] = [{**reference, "uid": uid, "controller": True}]
    pod = {
        "metadata": meta,
        "spec": {
            "nodeName": f"n{node}",
            "containers": [{"name": "c", "image": "c"}],
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
        },
    }
    await client.raw(
        "POST",
        Pod.resource.path(NAMESPACE),
        headers={"Content-Type": "application/json"},
        body=msgspec.json.encode({"apiVersion": "v1", "kind": "Pod", **pod}),
    )
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await client.patch(Pod, name, NAMESPACE, {"status": status}, subresource="status")
