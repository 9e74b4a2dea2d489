"""A cluster of a thousand Services, and both name servers over it.

The cluster is an API server without anything that runs; its objects are written by hand. A pod that
stands for the load generator has the address 127.0.0.1, so that ours has a place to answer for.
"""

from __future__ import annotations

import asyncio
import random
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.coredns.questions import Obj
from tools.coredns.recording import plant
from tools.coredns.running import running

from zonewise.embedded.apiserver.server import DUAL_STACK, ApiServer, ServerSettings

SERVICES = 1000
ENDPOINTS = 10
ZONES = ("a", "b", "c")
KINDS = ("cip", "hl", "near")


@dataclass(frozen=True)
class Contestant:
    """A server under load."""

    name: str
    port: int
    pid: int


def objects() -> list[Obj]:
    """The namespaces, Services, slices, nodes and the one pod."""
    manifests: list[Obj] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "load"}}]
    for zone in ZONES:
        label = {"topology.kubernetes.io/zone": zone}
        meta = {"name": f"n-{zone}", "labels": label}
        manifests.append({"apiVersion": "v1", "kind": "Node", "metadata": meta})
    for number in range(SERVICES):
        kind = KINDS[number % 3]
        manifests += _service(f"{kind}-{number}", kind, number)
    manifests.append(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "client", "namespace": "load"},
            "spec": {"nodeName": "n-a", "containers": [{"name": "c", "image": "i"}]},
            "status": {"phase": "Running", "podIPs": [{"ip": "127.0.0.1"}], "podIP": "127.0.0.1"},
        }
    )
    return manifests


def _service(name: str, kind: str, number: int) -> list[Obj]:
    ports = [{"name": "http", "port": 80, "protocol": "TCP"}]
    spec: Obj = {"ports": ports, "clusterIP": "None"}
    if kind == "cip":
        spec = {"ports": ports, "clusterIP": f"10.96.{number // 250 + 1}.{number % 250 + 1}"}
    meta: Obj = {"name": name, "namespace": "load"}
    notes = {"zonewise.io/topology-keys": "topology.kubernetes.io/zone,*"}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta | ({"annotations": notes} if kind == "near" else {}),
        "spec": spec,
    }
    count = 3 * ENDPOINTS if kind == "near" else ENDPOINTS
    piece = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": "load",
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
        "ports": ports,
        "endpoints": [endpoint(number, at) for at in range(count)],
    }
    return [service, piece]


def endpoint(number: int, at: int) -> Obj:
    """One endpoint of a Service."""
    return {
        "addresses": [f"10.{number // 250 + 1}.{number % 250}.{at + 1}"],
        "conditions": {"ready": True},
        "nodeName": f"n-{ZONES[at % 3]}",
    }


@asynccontextmanager
async def scene() -> AsyncIterator[tuple[ApiServer, Contestant, Contestant]]:
    """Both servers, synced."""
    with tempfile.TemporaryDirectory(prefix="zonewise-bench-") as folder:
        server = ApiServer(
            Path(folder),
            settings=ServerSettings(service_networks=DUAL_STACK),
            clock=time.time,
            rng=random.SystemRandom(),
        )
        await server.start(0)
        try:
            await plant(server.connect("benchmark"), objects())
            kubeconfig = server.identity.kubeconfig.resolve()
            more = "    cache 30\n    loadbalance"
            async with (
                running(kubeconfig, more=more, processors=1) as (theirs, their_pid),
                _ours(kubeconfig) as (ours, our_pid),
            ):
                yield (
                    server,
                    Contestant("zonewise", ours, our_pid),
                    Contestant("CoreDNS", theirs, their_pid),
                )
        finally:
            await server.close()


@asynccontextmanager
async def _ours(kubeconfig: Path) -> AsyncIterator[tuple[int, int]]:
    port, health = _free_port(), _free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "zonewise", "dns", "--kubeconfig", str(kubeconfig)),
        *("--listen", f"127.0.0.1:{port}", "--upstream", "127.0.0.1:1"),
        *("--metrics-listen", f"127.0.0.1:{health}"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(60):
            while True:
                if await _ready(health):
                    break
                await asyncio.sleep(0.2)
        yield port, process.pid
    finally:
        process.terminate()
        await process.wait()


async def _ready(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
        return b" 200 " in await reader.readline()
    finally:
        writer.close()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
