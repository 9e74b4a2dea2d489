"""How long the change of a small Service takes to reach the kernel, beside a large one.

The large Service has session affinity and 15,000 endpoints, of which one is replaced every second.
One proxy, in a network namespace of its own, on an embedded API server; the time of a change is
from sending it to the moment that the kernel has the new endpoint.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.netns.spaces import inside, space

from benchmarks.table import Row, Table
from zonewise.api.errors import ZonewiseError
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.proxy.netlink import nftables
from zonewise.proxy.netlink.nftables import IPV4, SetForm
from zonewise.proxy.netlink.socket import NetlinkError, NetlinkSocket
from zonewise.runtime import Client, HttpsTransport, load_config

LARGE = 15_000
PER_SLICE = 100
CHANGES = 10
PATIENCE = 120.0

SERVICE = unstructured(Resource("", "v1", "Service", "services"))
SLICE = unstructured(Resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"))
NODE = unstructured(Resource("", "v1", "Node", "nodes", namespaced=False))


def attack() -> Iterator[Table]:
    """A quiet Service alone, and beside the large one."""
    name = f"zwattack{os.getpid()}"
    with tempfile.TemporaryDirectory() as folder, space(name) as home, inside(home):
        alone, beside = asyncio.run(_measure(Path(folder)))
    for title, of in (("median", statistics.median), ("slowest", max)):
        yield Table(
            title=f"A change of a quiet Service, to the kernel, {title}",
            unit="ms",
            higher_is_better=False,
            rows=(
                Row(name="alone", value=1000 * of(alone)),
                Row(
                    name=f"beside {LARGE} endpoints with affinity",
                    value=1000 * of(beside),
                    ours=True,
                ),
            ),
        )


async def _measure(folder: Path) -> tuple[list[float], list[float]]:
    kubeconfig = folder / "data" / "kubeconfig"
    words = ("up", "--api-only", "--listen", "127.0.0.1:6443", "--data", str(folder / "data"))
    with _program(folder, *words):
        await _ready(kubeconfig)
        async with Client(HttpsTransport(load_config(kubeconfig))) as client:
            with NetlinkSocket() as link:
                return await _both(client, link, folder, kubeconfig)


async def _both(
    client: Client, link: NetlinkSocket, folder: Path, kubeconfig: Path
) -> tuple[list[float], list[float]]:
    await client.create(NODE({"metadata": {"name": "n1"}}))
    await _service(client, "quiet", {})
    words = ("proxy", "--node-name", "n1", "--kubeconfig", str(kubeconfig))
    quiet = ("--healthz-bind-address", "", "--metrics-bind-address", "")
    with _program(folder, *words, *quiet):
        await _change(client, link, 0)
        alone = [await _change(client, link, turn) for turn in range(1, CHANGES)]
        await _service(client, "large", {"sessionAffinity": "ClientIP"})
        for number in range(LARGE // PER_SLICE):
            await _write(
                client, "large", number, range(number * PER_SLICE, (number + 1) * PER_SLICE)
            )
        await asyncio.sleep(20.0)
        async with _restless(client):
            beside = []
            for turn in range(CHANGES, 2 * CHANGES):
                beside.append(await _change(client, link, turn))
                await asyncio.sleep(0.7)
    return alone, beside


@asynccontextmanager
async def _restless(client: Client) -> AsyncIterator[None]:
    """One endpoint of the large Service is replaced every second."""

    async def change() -> None:
        turn = 0
        while True:
            await asyncio.sleep(1.0)
            turn += 1
            await _write(client, "large", 0, [*range(PER_SLICE - 1), LARGE + turn % 2])

    task = asyncio.create_task(change())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _change(client: Client, link: NetlinkSocket, turn: int) -> float:
    """Give the quiet Service another endpoint, and wait until the kernel has it."""
    number = 60_000 + turn
    prefix = bytes((10, 128 + (number >> 16), number >> 8 & 255, number & 255))
    began = time.monotonic()
    await _write(client, "quiet", 0, [number])
    while time.monotonic() - began < PATIENCE:
        with suppress(NetlinkError):
            elements = nftables.elements(link, IPV4, "zonewise", "endpoints", SetForm("value"))
            if any(data.startswith(prefix) for data in elements.values()):
                return time.monotonic() - began
        await asyncio.sleep(0.002)
    return time.monotonic() - began


async def _service(client: Client, name: str, spec: dict[str, Any]) -> None:
    metadata = {"name": name, "namespace": "default"}
    ports = [{"name": "http", "port": 80, "targetPort": 8080}]
    await client.create(SERVICE({"metadata": metadata, "spec": {"ports": ports, **spec}}))


async def _write(client: Client, name: str, number: int, ends: Any) -> None:
    body = {
        "metadata": {"labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [
            {
                "addresses": [f"10.{128 + (end >> 16)}.{end >> 8 & 255}.{end & 255}"],
                "nodeName": f"n{end % 50}",
                "conditions": {"ready": True},
            }
            for end in ends
        ],
    }
    await client.apply(SLICE, f"{name}-{number}", "default", body, force=True)


async def _ready(kubeconfig: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with suppress(ZonewiseError, OSError):
            async with Client(HttpsTransport(load_config(kubeconfig))) as client:
                await client.list(SERVICE, limit=1)
                return
        await asyncio.sleep(0.2)
    raise TimeoutError("the API server does not answer")


@contextmanager
def _program(folder: Path, *words: str) -> Iterator[None]:
    """Run ``zonewise`` until the end."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    with (folder / f"{words[0]}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "zonewise", *words],
            stdout=log,
            stderr=log,
            env=os.environ | {"PATH": path},
        )
    try:
        yield
    finally:
        process.kill()
        process.wait()
