"""What a proxy pays for topology keys in a large cluster: values on slices, or labels of all Nodes.

A hundred Services with a key that is a rack, of ten endpoints each, in a cluster of 5,000 Nodes.
One proxy after the other follows it: the first when slices state nothing, so that it watches all
Nodes as every proxy did before; the second when slices have the annotation that our EndpointSlice
controller writes. Each is measured until its first rules, while every Node reports its status once,
as kubelets do, and while every twentieth Node gets another label. Both are our own program, so a
line has what is received and paid with slices, and with Nodes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.netns.spaces import inside, space

from benchmarks.proxy.contest import (
    ENDPOINTS,
    NODE,
    NODE_NAME,
    SERVICE,
    SLICE,
    cpu_seconds,
    forward_api,
    resident_megabytes,
    start_proxy,
    wait_for_children,
    wait_for_rules,
    wait_until_quiet,
)
from benchmarks.sheet import Line, Sheet
from tools import realkube as real
from zonewise.runtime import Client, HttpsTransport, load_config

NODES, SERVICES, RACKS = 5_000, 100, 50
RELABELLED = 20
KEY = "example.com/rack"
PARALLEL = 32
TICK = 0.01
"""The kernel counts CPU time in hundredths of a second: less is measured as this."""


@dataclass
class Cost:
    """What one proxy received and needed in a part of a run."""

    events: float
    megabytes: float
    cpu: float


@dataclass
class Result:
    """What one proxy needed."""

    start: Cost
    reports: Cost
    labels: Cost
    rss: float


def compare() -> Iterable[Sheet]:
    """The sheet of both ways."""
    binaries = real.find()
    if binaries is None:
        sys.exit("Kubernetes is not built; `python -m tools.realkube build` does")
    settings = real.Settings(controllers=(), scheduler=False, fsync=False)
    with real.start(settings, binaries=binaries) as plane:
        by_nodes, by_slices = asyncio.run(_both(plane))
    parts = ("first rules", "every Node reports", f"every {RELABELLED}th Node has a new label")
    lines = []
    for part, ours, old in zip(parts, _costs(by_slices), _costs(by_nodes), strict=True):
        lines += [
            Line(name=f"{part}: events", unit="", ours=ours.events, real=old.events),
            Line(name=f"{part}: received", unit="MB", ours=ours.megabytes, real=old.megabytes),
            Line(name=f"{part}: CPU", unit="ms", ours=1000 * ours.cpu, real=1000 * old.cpu),
        ]
    lines.append(Line(name="RSS", unit="MB", ours=by_slices.rss, real=by_nodes.rss))
    title = (
        f"{SERVICES} Services with a topology key, {NODES} Nodes: values on slices, or all Nodes"
    )
    yield Sheet(title=title, lines=tuple(lines), peer="all Nodes")


def _costs(result: Result) -> tuple[Cost, Cost, Cost]:
    return result.start, result.reports, result.labels


async def _both(plane: real.ControlPlane) -> tuple[Result, Result]:
    async with Client(HttpsTransport(load_config(plane.kubeconfig))) as client:
        await _each(range(NODES), lambda number: _make_node(client, number))
        await _each(range(SERVICES), lambda number: _make_service(client, number))
        print(f"   {NODES} Nodes and {SERVICES} Services are there", file=sys.stderr, flush=True)
        by_nodes = await _measure(plane, client, "all Nodes")
        await _each(range(SERVICES), lambda number: _state_values(client, number))
        by_slices = await _measure(plane, client, "slices")
        return by_nodes, by_slices


async def _each(numbers: Iterable[int], work: Callable[[int], Awaitable[None]]) -> None:
    turn = asyncio.Semaphore(PARALLEL)

    async def in_turn(number: int) -> None:
        async with turn:
            await work(number)

    await asyncio.gather(*map(in_turn, numbers))


def _name(number: int) -> str:
    return f"n{number}" if number else NODE_NAME


def _labels(number: int) -> dict[str, str]:
    """The labels of a Node: those that cloud providers and kubelets set, and a rack."""
    own = {f"node.example.com/feature-{at}": f"value-{at}" for at in range(20)}
    name = _name(number)
    return own | {
        "kubernetes.io/hostname": name,
        "topology.kubernetes.io/zone": f"zone-{number % 3}",
        KEY: f"rack-{number % RACKS}",
    }


async def _make_node(client: Client, number: int) -> None:
    name = _name(number)
    await client.create(NODE({"metadata": {"name": name, "labels": _labels(number)}}))
    address = f"10.200.{number >> 8}.{number & 255}"
    status = {"addresses": [{"type": "InternalIP", "address": address}]}
    await client.patch(NODE, name, None, {"status": status}, subresource="status")


def _addresses(number: int) -> dict[str, int]:
    """The endpoints of a Service, and the number of the Node each is on."""
    first = number * ENDPOINTS
    return {
        f"10.128.{(first + at) >> 8}.{(first + at) & 255}": 1 + (first + at) * 7 % (NODES - 1)
        for at in range(ENDPOINTS)
    }


async def _make_service(client: Client, number: int) -> None:
    name, ports = f"s{number}", [{"name": "http", "port": 80, "targetPort": 8080}]
    keys = {"zonewise.io/topology-keys": f"{KEY},*"}
    metadata = {"name": name, "namespace": "default", "annotations": keys}
    await client.create(SERVICE({"metadata": metadata, "spec": {"ports": ports}}))
    slice_metadata = {
        "name": f"{name}-x",
        "namespace": "default",
        "labels": {"kubernetes.io/service-name": name},
    }
    endpoints = [
        {"addresses": [address], "nodeName": _name(node), "conditions": {"ready": True}}
        for address, node in _addresses(number).items()
    ]
    await client.create(
        SLICE(
            {
                "metadata": slice_metadata,
                "addressType": "IPv4",
                "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
                "endpoints": endpoints,
            }
        )
    )


async def _state_values(client: Client, number: int) -> None:
    rows = {address: {KEY: _labels(node)[KEY]} for address, node in _addresses(number).items()}
    text = json.dumps(rows, sort_keys=True, separators=(",", ":"))
    body = {"metadata": {"annotations": {"zonewise.io/topology": text}}}
    await client.patch(SLICE, f"s{number}-x", "default", body)


async def _measure(plane: real.ControlPlane, client: Client, what: str) -> Result:
    with space(f"zwkeyed{os.getpid()}") as home:
        async with forward_api(plane, home):
            process = start_proxy(plane, "zonewise", home)
            try:
                await wait_for_rules(home, "zonewise", SERVICES, process)
                await asyncio.to_thread(wait_for_children, process.pid)
                start = await _cost(process.pid, home, Cost(0.0, 0.0, 0.0))

                async def spend(work: Callable[[int], Awaitable[None]], step: int) -> Cost:
                    before = await _cost(process.pid, home, Cost(0.0, 0.0, 0.0))
                    await _each(range(1, NODES, step), work)
                    return await _cost(process.pid, home, before)

                now = str(time.time())
                reports = await spend(lambda number: _report(client, number, now), 1)
                labels = await spend(lambda number: _label(client, number, now), RELABELLED)
                result = Result(start, reports, labels, resident_megabytes(process.pid))
            finally:
                process.kill()
                process.wait()
    print(f"   {what}: {result}", file=sys.stderr, flush=True)
    return result


async def _report(client: Client, number: int, now: str) -> None:
    condition = {"type": "Ready", "status": "True", "message": now}
    body: dict[str, Any] = {"status": {"conditions": [condition]}}
    await client.patch(NODE, _name(number), None, body, subresource="status")


async def _label(client: Client, number: int, now: str) -> None:
    body = {"metadata": {"labels": {"node.example.com/feature-0": now}}}
    await client.patch(NODE, _name(number), None, body)


async def _cost(pid: int, home: str, before: Cost) -> Cost:
    """What a process received and needed since before, once it is idle."""
    await wait_until_quiet(pid)
    cpu = cpu_seconds(pid)
    text = await asyncio.to_thread(_read_metrics, home)
    events, received = (
        sum(map(float, re.findall(rf"^zonewise_watch_{name}_total{{[^}}]*}} (\S+)", text, re.M)))
        for name in ("events", "bytes")
    )
    spent = max(cpu - before.cpu, TICK)
    return Cost(events - before.events, received / 1e6 - before.megabytes, spent)


def _read_metrics(home: str) -> str:
    with inside(home), urllib.request.urlopen("http://127.0.0.1:10249/metrics") as answer:
        text: str = answer.read().decode()
        return text
