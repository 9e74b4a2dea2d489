"""Two proxies, one after the other, each in a network namespace of its own, on one API server.

Each starts with all Services there, is waited for until the kernel has a rule for every one, and
then sees endpoints of single Services replaced. The time of a change is from sending the PATCH
to the kernel's commit notice, heard here. CPU time is that of the process and of all it ran.

The API server is the real one. A namespace has no way to it, so this process passes connections on.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.netns.spaces import inside, space

from benchmarks.sheet import Line, Sheet
from tools import realkube as real
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.proxy.netlink import nftables
from zonewise.proxy.netlink.nftables import IPV4, SetForm
from zonewise.proxy.netlink.notices import Notices
from zonewise.proxy.netlink.socket import NetlinkError, NetlinkSocket
from zonewise.runtime import Client, HttpsTransport, load_config

ENDPOINTS = 10
CHANGES = 20
FEW_CHANGES = 5
"""Where a change takes kube-proxy half a minute."""
PATIENCE = 600.0
NODE_NAME = "bench-node"
API_PORT = 6443

SERVICE = unstructured(Resource("", "v1", "Service", "services"))
SLICE = unstructured(Resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"))
NODE = unstructured(Resource("", "v1", "Node", "nodes", namespaced=False))

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass
class Result:
    """What one proxy needed."""

    first_cpu: float = 0.0
    first_wall: float = 0.0
    rss: float = 0.0
    change_cpu: float = 0.0
    changes: list[float] = field(default_factory=list)


def contest(services: int) -> Iterable[Sheet]:
    """The sheet for so many Services."""
    binaries = real.find()
    if binaries is None:
        sys.exit("Kubernetes is not built; `python -m tools.realkube build` does")
    settings = real.Settings(controllers=(), scheduler=False, fsync=False)
    with real.start(settings, binaries=binaries) as plane:
        results = asyncio.run(_both(plane, services))
    ours, theirs = results["zonewise"], results["kube-proxy"]
    lines = (
        Line(name="first rules, CPU", unit="s", ours=ours.first_cpu, real=theirs.first_cpu),
        Line(name="first rules, wall", unit="s", ours=ours.first_wall, real=theirs.first_wall),
        Line(name="RSS", unit="MB", ours=ours.rss, real=theirs.rss),
        Line(
            name="one change, median",
            unit="ms",
            ours=1000 * statistics.median(ours.changes),
            real=1000 * statistics.median(theirs.changes),
        ),
        Line(
            name="one change, slowest",
            unit="ms",
            ours=1000 * max(ours.changes),
            real=1000 * max(theirs.changes),
        ),
        Line(
            name="one change, CPU",
            unit="ms",
            ours=1000 * ours.change_cpu,
            real=1000 * theirs.change_cpu,
        ),
    )
    yield Sheet(title=f"{services} Services of {ENDPOINTS} endpoints, one node", lines=lines)


async def _both(plane: real.ControlPlane, services: int) -> dict[str, Result]:
    async with Client(HttpsTransport(load_config(plane.kubeconfig))) as client:
        await _fill(client, services)
        return {
            name: await _measure(plane, client, name, services)
            for name in ("kube-proxy", "zonewise")
        }


async def _fill(client: Client, services: int) -> None:
    await client.create(NODE({"metadata": {"name": NODE_NAME}}))
    status = {"status": {"addresses": [{"type": "InternalIP", "address": "10.200.0.1"}]}}
    await client.patch(NODE, NODE_NAME, None, status, subresource="status")
    turn = asyncio.Semaphore(32)

    async def make(number: int) -> None:
        name = f"s{number}"
        async with turn:
            ports = [{"name": "http", "port": 80, "targetPort": 8080}]
            metadata = {"name": name, "namespace": "default"}
            await client.create(SERVICE({"metadata": metadata, "spec": {"ports": ports}}))
            await client.create(SLICE(_slice(number)))

    await asyncio.gather(*(make(number) for number in range(services)))
    print(f"   {services} Services are there", file=sys.stderr, flush=True)


def _slice(number: int) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"s{number}-x",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": f"s{number}"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [_endpoint(number * ENDPOINTS + at) for at in range(ENDPOINTS)],
    }


def _endpoint(number: int) -> dict[str, Any]:
    address = f"10.{128 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
    return {"addresses": [address], "nodeName": f"n{number % 50}", "conditions": {"ready": True}}


async def _measure(plane: real.ControlPlane, client: Client, name: str, services: int) -> Result:
    result = Result()
    with space(f"zwbench{os.getpid()}") as home:
        async with forward_api(plane, home):
            began = time.monotonic()
            process = start_proxy(plane, name, home)
            try:
                await wait_for_rules(home, name, services, process)
                result.first_wall = time.monotonic() - began
                await asyncio.to_thread(wait_for_children, process.pid)
                result.first_cpu = cpu_seconds(process.pid)
                await wait_until_quiet(process.pid)
                before = cpu_seconds(process.pid)
                result.changes = await _change(client, home, name, services)
                await wait_until_quiet(process.pid)
                result.change_cpu = (cpu_seconds(process.pid) - before) / len(result.changes)
                result.rss = resident_megabytes(process.pid)
            finally:
                process.kill()
                process.wait()
    print(f"   {name}: {result}", file=sys.stderr, flush=True)
    return result


def start_proxy(plane: real.ControlPlane, name: str, home: str) -> subprocess.Popen[bytes]:
    config = json.loads(plane.kubeconfig_for("system:kube-proxy").read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{API_PORT}"
    kubeconfig = plane.folder / "bench.kubeconfig"
    kubeconfig.write_text(json.dumps(config))
    if name == "kube-proxy":
        command = [
            *(str(plane.binaries.path("kube-proxy")), f"--kubeconfig={kubeconfig}"),
            *(f"--hostname-override={NODE_NAME}", "--proxy-mode=nftables"),
            *("--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s"),
            "--conntrack-tcp-timeout-close-wait=0s",
        ]
    else:
        command = [
            *(sys.executable, "-m", "zonewise", "proxy", "--node-name", NODE_NAME),
            *("--kubeconfig", str(kubeconfig)),
        ]
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    with inside(home), (plane.folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"PATH": path})


async def wait_for_rules(
    home: str, name: str, services: int, process: subprocess.Popen[bytes]
) -> None:
    """Wait until every Service is in the kernel."""
    table, where = (name, "service-ips") if name == "kube-proxy" else (name, "services")
    deadline = time.monotonic() + PATIENCE
    with inside(home):
        link = NetlinkSocket()
    with link:
        while time.monotonic() < deadline:
            assert process.poll() is None, "the proxy ended"
            with suppress(NetlinkError):
                if len(nftables.elements(link, IPV4, table, where, SetForm("verdict"))) >= services:
                    return
            await asyncio.sleep(0.1)
    raise TimeoutError("no rules were written")


def wait_for_children(pid: int) -> None:
    """Wait until the programs that a proxy ran have ended; only then their time is known."""
    while any(file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children")):
        time.sleep(0.01)


async def wait_until_quiet(pid: int) -> None:
    """Wait until a process has used no CPU for a second."""
    last = -1.0
    while (now := cpu_seconds(pid)) != last:
        last = now
        await asyncio.sleep(1.0)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of the children it waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(text) for text in fields[11:15]) / _TICK


def resident_megabytes(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    matched = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert matched is not None
    return int(matched[1]) / 1024


async def _change(client: Client, home: str, name: str, services: int) -> list[float]:
    """Replace an endpoint of one Service after the other; the time of each."""
    table = "kube-proxy" if name == "kube-proxy" else "zonewise"
    with inside(home):
        notices = Notices(table, but=0)
    draw = random.Random(7)
    times = []
    loop = asyncio.get_running_loop()
    heard = asyncio.Event()

    def hear() -> None:
        if notices.touched():
            heard.set()

    loop.add_reader(notices.socket.fileno(), hear)
    try:
        for turn in range(CHANGES if services < 5_000 else FEW_CHANGES):
            number = draw.randrange(services)
            body = _slice(number)
            new = 1_000_000 + turn + (CHANGES if name == "kube-proxy" else 0)
            body["endpoints"][turn % ENDPOINTS] = _endpoint(new)
            heard.clear()
            began = time.monotonic()
            patch = {"endpoints": body["endpoints"]}
            await client.patch(SLICE, f"s{number}-x", "default", patch)
            async with asyncio.timeout(PATIENCE):
                await heard.wait()
            times.append(time.monotonic() - began)
            await asyncio.sleep(0.2)
    finally:
        loop.remove_reader(notices.socket.fileno())
        notices.close()
    return times


@asynccontextmanager
async def forward_api(plane: real.ControlPlane, home: str) -> AsyncIterator[None]:
    """Connections to the API server's port in a namespace are passed on to it."""
    port = int(plane.url.rpartition(":")[2])
    with inside(home):
        listening = socket.create_server(("127.0.0.1", API_PORT))

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 18):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pipe(reader, back), pipe(there, writer))

    server = await asyncio.start_server(passed_on, sock=listening)
    try:
        yield
    finally:
        server.close()
