"""Memory and CPU of controller, webhook and gate on clusters of 100, 1,000 and 5,000 nodes.

Ten pods on each node, twenty in each Service, every Service in mode Auto and under a budget per
zone. The *gate* is the webhook that holds back disruptions. The API server is the
embedded one, in this process, filled before anybody looks. Then each program runs alone: *start* is
the CPU time until it has read everything (and, for the controller, written all slices), *memory*
what is resident then, *steady* the share of one core over ``STEADY`` seconds in which every node
reports once in five minutes and ``CHANGES`` pods change readiness each second.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.embedded.servers import megabytes
from zonewise.api import Node, Pod, Service, convert
from zonewise.api.objects.budgets import TopologyDisruptionBudget
from zonewise.disruption.definitions.schemas import resource_definitions
from zonewise.embedded.apiserver.server import ApiServer
from zonewise.embedded.seed.seeder import Seeder
from zonewise.runtime.client.client import Client

PODS_PER_NODE = 10
PODS_PER_SERVICE = 20
STEADY = 60.0
REPORT_EVERY = 300.0
CHANGES = 5
AT_ONCE = 16
PATIENCE = 1200.0
RESTING = 0.1
"""A program that takes less CPU time than this in five seconds has finished what it had to do."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The memory and CPU that one program used."""

    program: str
    nodes: int
    pods: int
    services: int
    memory_mb: float
    start_cpu_seconds: float
    steady_cpu_percent: float


@dataclass(frozen=True)
class Costs:
    """The costs of all programs."""

    rows: tuple[Cost, ...]

    def plain(self) -> dict[str, Any]:
        """For machines."""
        return {"rows": [asdict(row) for row in self.rows]}

    def text(self) -> str:
        """For people."""
        heads = f"{'program':<12}{'nodes':>7}{'pods':>8}{'Services':>10}"
        lines = [f"{heads}{'memory':>10}{'start':>10}{'steady':>9}"]
        for row in self.rows:
            columns = f"{row.program:<12}{row.nodes:>7,}{row.pods:>8,}{row.services:>10,}"
            lines.append(
                f"{columns}{row.memory_mb:>7,.0f} MB{row.start_cpu_seconds:>8.1f} s"
                f"{row.steady_cpu_percent:>7.1f} %"
            )
        return "\n".join(lines)


PROGRAMS = {
    "controller": ("controller", "--endpointslices", "own", "--lease-namespace", "default"),
    "webhook": ("webhook", "--endpointslices", "adopt"),
    "gate": ("webhook", "--endpointslices", "observe", "--budgets", "enforce"),
}


def footprint(nodes: int) -> Iterator[Costs]:
    """All programs on a cluster of that size."""
    yield Costs(tuple(asyncio.run(_measured(nodes))))


async def _measured(nodes: int) -> list[Cost]:
    with tempfile.TemporaryDirectory() as folder:
        server = ApiServer(Path(folder), clock=time.time, rng=random.Random(1))
        await server.start(0)
        client = server.connect("benchmark")
        try:
            await Seeder(client, server.registry).create(resource_definitions())
            await _fill(client, nodes)
            kubeconfig = server.identity.kubeconfig
            return [
                await _cost(client, nodes, "controller", kubeconfig, _all_written(server, nodes)),
                await _cost(client, nodes, "webhook", kubeconfig, lambda: True),
                await _cost(client, nodes, "gate", kubeconfig, lambda: True),
            ]
        finally:
            await server.close()


def _all_written(server: ApiServer, nodes: int) -> Callable[[], bool]:
    expected = nodes * PODS_PER_NODE // PODS_PER_SERVICE

    def ask() -> bool:
        return len(server.state.list("discovery.k8s.io/endpointslices").entries) >= expected

    return ask


async def _fill(client: Client, nodes: int) -> None:
    await _together(_add_node(client, number) for number in range(nodes))
    pods = nodes * PODS_PER_NODE
    await _together(_add_service(client, n) for n in range(pods // PODS_PER_SERVICE))
    await _together(_add_pod(client, number, nodes) for number in range(pods))


async def _add_node(client: Client, number: int) -> None:
    labels = {"topology.kubernetes.io/zone": f"zone-{'abc'[number % 3]}"}
    await client.create(convert(Node, {"metadata": {"name": f"node-{number}", "labels": labels}}))
    await _report(client, number)


async def _report(client: Client, number: int) -> None:
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": moment}
    status = {"allocatable": {"cpu": "4"}, "conditions": [ready]}
    await client.patch(Node, f"node-{number}", None, {"status": status}, subresource="status")


async def _add_service(client: Client, number: int) -> None:
    mode = {"service.kubernetes.io/topology-mode": "Auto"}
    meta = {"name": f"s-{number}", "namespace": "default", "annotations": mode}
    spec = {"selector": {"app": f"s-{number}"}, "ports": [{"port": 80}]}
    await client.create(convert(Service, {"metadata": meta, "spec": spec}))
    budget = {
        "selector": {"matchLabels": {"app": f"s-{number}"}},
        "maxUnavailable": 1,
        "topologyKeys": ["topology.kubernetes.io/zone"],
    }
    meta = {"name": f"s-{number}", "namespace": "default"}
    await client.create(convert(TopologyDisruptionBudget, {"metadata": meta, "spec": budget}))


async def _add_pod(client: Client, number: int, nodes: int) -> None:
    app = f"s-{number // PODS_PER_SERVICE}"
    meta = {
        "name": f"{app}-6d4cf56db6-{number:05}",
        "namespace": "default",
        "labels": {"app": app, "pod-template-hash": "6d4cf56db6", "team": "shop", "tier": "web"},
        "annotations": {"prometheus.io/scrape": "true", "checksum/config": "5f2d" * 16},
    }
    spec = {"nodeName": f"node-{number % nodes}", "containers": [_CONTAINER, _SIDECAR]}
    await client.create(convert(Pod, {"metadata": meta, "spec": spec}))
    await _tell(client, number, ready=True)


def _container(name: str, port: int) -> dict[str, Any]:
    return {
        "name": name,
        "image": f"example.com/shop/{name}:1.42.0",
        "ports": [{"name": name, "containerPort": port}],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
    }


_CONTAINER, _SIDECAR = _container("web", 8080), _container("proxy", 15001)


async def _tell(client: Client, number: int, *, ready: bool) -> None:
    address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    status = {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [
            {"type": kind, "status": str(ready or "Ready" not in kind)}
            for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ],
    }
    name = f"s-{number // PODS_PER_SERVICE}-6d4cf56db6-{number:05}"
    await client.patch(Pod, name, "default", {"status": status}, subresource="status")


async def _together(work: Iterable[Any]) -> None:
    turn = asyncio.Semaphore(AT_ONCE)

    async def send(thing: Any) -> None:
        async with turn:
            await thing

    for chunk in _chunks(work):
        await asyncio.gather(*map(send, chunk))


def _chunks(work: Iterable[Any]) -> Iterator[list[Any]]:
    chunk: list[Any] = []
    for thing in work:
        chunk.append(thing)
        if len(chunk) == 1000:
            yield chunk
            chunk = []
    yield chunk


async def _cost(
    client: Client, nodes: int, name: str, kubeconfig: Path, ready: Callable[[], bool]
) -> Cost:
    program = await asyncio.to_thread(_started, PROGRAMS[name], kubeconfig)
    try:
        async with asyncio.timeout(PATIENCE):
            resting = False
            while not (resting and ready()):
                before = _cpu(program.pid)
                await asyncio.sleep(5)
                resting = before > 0 and _cpu(program.pid) - before < RESTING
        start, memory = _cpu(program.pid), megabytes([program.pid])
        begin = time.monotonic()
        await _live(client, nodes)
        used = _cpu(program.pid) - start
        return Cost(
            program=name,
            nodes=nodes,
            pods=nodes * PODS_PER_NODE,
            services=nodes * PODS_PER_NODE // PODS_PER_SERVICE,
            memory_mb=max(memory, megabytes([program.pid])),
            start_cpu_seconds=start,
            steady_cpu_percent=100 * used / (time.monotonic() - begin),
        )
    finally:
        program.terminate()
        await asyncio.to_thread(program.wait)


def _started(command: tuple[str, ...], kubeconfig: Path) -> subprocess.Popen[bytes]:
    called = ("--listen", "127.0.0.1:0", "--host", "127.0.0.1")
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "zonewise", *command, "--kubeconfig", str(kubeconfig)),
            *("--metrics-listen", "127.0.0.1:0"),
            *(called if command[0] == "webhook" else ()),
        ]
    )


async def _live(client: Client, nodes: int) -> None:
    """Make the changes that a healthy cluster makes all the time."""
    rng = random.Random(7)
    end = time.monotonic() + STEADY
    due = 0.0
    while (now := time.monotonic()) < end:
        due += nodes / REPORT_EVERY
        while due >= 1:
            await _report(client, rng.randrange(nodes))
            due -= 1
        for _ in range(CHANGES):
            number = rng.randrange(nodes * PODS_PER_NODE)
            await _tell(client, number, ready=rng.random() < 0.5)
        await asyncio.sleep(max(0.0, now + 1 - time.monotonic()))


def _cpu(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
