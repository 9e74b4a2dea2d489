"""How long nodes and pods take to be Ready, and what the processes cost then.

Both contestants get the same objects from the same client: nodes in three zones, then Deployments
that spread their pods over the zones. Time runs from the first node's creation until every
Deployment reports all replicas ready. The real side is a whole control plane whose clients may send
500 requests a second (the defaults, 20 and 50, would rule every number) with kwok, which plays the
kubelets as ours does: nothing runs. Both keep what they acknowledge on disk.

One after the other, never at once: the machine is the same for both.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from tools.realkube import toolchain
from tools.realkube.binaries import Module, Suite, build, cache_folder

from benchmarks.embedded.servers import megabytes, ours
from benchmarks.sheet import Line, Sheet
from tools import realkube
from zonewise.api import Deployment, Node
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config

KWOK = Suite(
    "kwok",
    "v0.8.0",
    (Module(Path(__file__).with_name("kwok"), {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}, {}),),
)
STAGES = ("node/fast", "node/heartbeat-with-lease", "pod/fast")
PATIENCE = 1800.0
IDLE = 30.0
AT_ONCE = 32


@dataclass(frozen=True, kw_only=True)
class Size:
    """How many nodes and pods a cluster has."""

    nodes: int
    deployments: int
    replicas: int

    @property
    def pods(self) -> int:
        """All pods."""
        return self.deployments * self.replicas


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What it took, in seconds, megabytes and processors."""

    seconds: float
    memory: float
    idle: float


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A cluster that waits for nodes."""

    kubeconfig: Path
    processes: tuple[int, ...]

    def busy(self) -> float:
        """Seconds of processor time used so far."""
        ticks = 0
        for pid in self.processes:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def living() -> Iterator[Contestant]:
    """Ours: one process."""
    with (
        tempfile.TemporaryDirectory(prefix="zonewise-bench-") as name,
        ours(Path(name) / "ours", "--empty", "--workload-removal=delete") as (pid, kubeconfig),
    ):
        yield Contestant(kubeconfig=kubeconfig, processes=(pid,))


@contextmanager
def real() -> Iterator[Contestant]:
    """A real control plane and kwok.

    No node is ever given up: kwok, short of processor, is late with heartbeats, and a pod that was
    once called not Ready with its node stays so under kwok for ever.
    """
    kwok = build(KWOK).path("kwok")
    patient = realkube.Settings(controller_manager_args=("--node-monitor-grace-period=1h",))
    with realkube.start(patient) as plane:
        arguments = (
            f"--kubeconfig={plane.kubeconfig}",
            *(f"--config={file}" for file in stages()),
            "--manage-all-nodes=true",
            "--node-lease-duration-seconds=40",
            "--cidr=10.128.0.0/9",
        )
        with (plane.folder / "kwok.log").open("wb") as log:
            process = subprocess.Popen([kwok, *arguments], stdout=log, stderr=log)
        try:
            pids = tuple(component.pid for component in plane.components)
            yield Contestant(kubeconfig=plane.kubeconfig, processes=(*pids, process.pid))
        finally:
            process.terminate()
            process.wait(30)


def stages() -> list[Path]:
    """kwok's own stages that it calls fast, from the sources it was built from."""
    go = toolchain.find(cache_folder(), print)
    module_folder = subprocess.run(
        [go, "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok"],
        cwd=KWOK.modules[0].folder,
        env=toolchain.environment(go),
        capture_output=True,
        text=True,
        check=True,
    )
    home = Path(module_folder.stdout.strip()) / "kustomize" / "stage"
    files = [file for stage in STAGES for file in sorted((home / stage).glob("*.yaml"))]
    return [file for file in files if file.name != "kustomization.yaml"]


def node(number: int) -> dict[str, Any]:
    """A node of 32 processors in one of three zones."""
    name = f"node-{number}"
    room = {"cpu": "32", "memory": "256Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "topology.kubernetes.io/zone": f"zone-{number % 3}",
            },
        },
        "status": {"capacity": room, "allocatable": room},
    }


def deployment(number: int, replicas: int) -> dict[str, Any]:
    """A Deployment that spreads its pods over the zones."""
    labels = {"app": f"app-{number}"}
    spread = {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": labels},
    }
    container = {
        "name": "main",
        "image": "example.com/app",
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"app-{number}", "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], "topologySpreadConstraints": [spread]},
            },
        },
    }


@asynccontextmanager
async def talking(contestant: Contestant) -> AsyncIterator[Client]:
    """A client with enough connections."""
    config = load_config(kubeconfig=contestant.kubeconfig)
    async with Client(HttpsTransport(config), field_manager="benchmark") as client:
        yield client


async def come_up(contestant: Contestant, size: Size, name: str) -> Measured:
    """Create everything, wait until all is Ready, then watch it rest."""
    gate = asyncio.Semaphore(AT_ONCE)
    async with talking(contestant) as client:

        async def create(path: str, content: dict[str, Any]) -> None:
            async with gate:
                await client.raw(
                    "POST",
                    path,
                    headers={"Content-Type": "application/json"},
                    body=msgspec.json.encode(content),
                )

        begin = time.perf_counter()
        nodes = Node.resource.path()
        await asyncio.gather(*(create(nodes, node(number)) for number in range(size.nodes)))
        workloads = Deployment.resource.path("default")
        each = (deployment(number, size.replicas) for number in range(size.deployments))
        await asyncio.gather(*(create(workloads, content) for content in each))
        ready = 0
        while ready < size.pods:
            await asyncio.sleep(0.5)
            if time.perf_counter() - begin > PATIENCE:
                raise RuntimeError(f"{name}: {ready} of {size.pods} pods are Ready after all")
            deployments = await client.list(Deployment, "default")
            ready = sum(deployment.status.ready_replicas for deployment in deployments)
            if sys.stderr.isatty():
                print(f"  {name}: {ready} of {size.pods}", end="\r", file=sys.stderr, flush=True)
        seconds = time.perf_counter() - begin
    memory = megabytes(contestant.processes)
    await asyncio.sleep(IDLE)
    before, since = contestant.busy(), time.perf_counter()
    await asyncio.sleep(IDLE)
    idle = (contestant.busy() - before) / (time.perf_counter() - since)
    return Measured(seconds=seconds, memory=memory, idle=idle * 100)


def compare(size: Size) -> Sheet:
    """Both contestants, one after the other."""
    results = {}
    for name, contestant in (("ours", living), ("real", real)):
        with contestant() as cluster:
            results[name] = asyncio.run(come_up(cluster, size, name))
    mine, theirs = results["ours"], results["real"]
    return Sheet(
        title=f"{size.nodes:,} nodes and {size.pods:,} pods",
        lines=(
            Line(
                name="pods Ready",
                unit="pods/s",
                ours=size.pods / mine.seconds,
                real=size.pods / theirs.seconds,
                higher_is_better=True,
            ),
            Line(name="first node to last pod", unit="s", ours=mine.seconds, real=theirs.seconds),
            Line(name="memory", unit="MB", ours=mine.memory, real=theirs.memory),
            Line(name="processor at rest", unit="% of one", ours=mine.idle, real=theirs.idle),
        ),
        note=f"{os.cpu_count()} processors, load average {os.getloadavg()[0]:.1f}",
        goal=3.0,
    )


def small() -> Iterator[Sheet]:
    """100 nodes, 2,000 pods."""
    yield compare(Size(nodes=100, deployments=20, replicas=100))


def large() -> Iterator[Sheet]:
    """1,000 nodes, 20,000 pods."""
    yield compare(Size(nodes=1000, deployments=40, replicas=500))
