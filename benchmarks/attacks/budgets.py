"""Many budgets in one namespace: what their changes cost evictions and deletions in another one.

The programs are the real ones: ``zonewise webhook`` and ``zonewise controller`` as processes on an
embedded API server that calls the webhook. One namespace has a thousand budgets per zone, each with
a selector of its own that matches all of its pods, and the labels of those pods change sixty times
a second while its own evictions are asked for, too. The same traffic before those budgets exist
shows what the API server and the machine have to do with it. In the quiet namespace one pod at a
time is to be evicted, or deleted by its ReplicaSet's controller; its budget forbids both. Counted
are the time until each refusal, and what was let through.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from benchmarks.embedded.servers import ours
from benchmarks.table import Row, Table
from zonewise.api import Namespace, Node, ObjectMeta, Pod, convert
from zonewise.api.errors import ZonewiseError
from zonewise.api.objects.budgets import TopologyDisruptionBudget
from zonewise.install.installation import Installation
from zonewise.install.manifests import render_manifests
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config

BUDGETS = 1000
PODS = 60
CHANGES = 60
"""Label changes a second."""
EVICTIONS = 20
"""Evictions asked for a second in the loud namespace."""
SECONDS = 20.0
QUIET, LOUD = "quiet", "loud"
SYSTEM = "zonewise-system"
ZONE = "topology.kubernetes.io/zone"
DELETER = "system:serviceaccount:kube-system:replicaset-controller"
LIMIT = 100.0
REFUSED = 429
JSON = {"Content-Type": "application/json"}
PATHS = {
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "ValidatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1"
    "/validatingwebhookconfigurations",
}


@dataclass
class Observed:
    """What the quiet client saw."""

    times: list[float] = field(default_factory=list)
    let_through: int = 0
    failed: int = 0


def attack() -> Iterator[Table]:
    """The quiet namespace alone, and beside the other one."""
    with tempfile.TemporaryDirectory(prefix="zonewise-bench-") as name:
        home = Path(name)
        with ours(home / "ours", "--api-only") as (_, kubeconfig):
            phases, led = asyncio.run(_run(home, kubeconfig))
    rows = []
    for title, seen in phases.items():
        p99 = statistics.quantiles(seen.times, n=100)[98]
        rows += [
            Row(name=f"{title}, median", value=statistics.median(seen.times), ours=True),
            Row(name=f"{title}, p99", value=p99, ours=True),
            Row(name=f"{title}, slowest", value=max(seen.times), ours=True),
        ]
    attacked = phases["attacked"]
    verdict = "reached" if max(attacked.times) < LIMIT else "NOT reached"
    yield Table(
        title=f"refusals in a quiet namespace beside {BUDGETS:,} budgets and {CHANGES} label"
        " changes a second",
        unit="ms",
        higher_is_better=False,
        rows=tuple(rows),
        note=f"below {LIMIT:g} ms: {verdict}; of {len(attacked.times)} forbidden disruptions"
        f" {attacked.let_through} let through, {attacked.failed} without a verdict;"
        f" the controller {'kept' if led else 'LOST'} its lease",
    )


async def _run(home: Path, kubeconfig: Path) -> tuple[dict[str, Observed], bool]:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            Client(HttpsTransport(load_config(kubeconfig)), field_manager="bench", retries=0)
        )
        for zone in "abc":
            await client.create(
                convert(Node, {"metadata": {"name": zone, "labels": {ZONE: f"z-{zone}"}}})
            )
        for name in (SYSTEM, QUIET, LOUD):
            labels = {"zonewise.io/budgets": "enforce"}
            await client.create(Namespace(metadata=ObjectMeta(name=name, labels=labels)))
        objects = render_manifests(
            Installation(role="observe", version="test", namespace=SYSTEM, budgets="enforce")
        )
        for item in objects:
            if item["kind"] == "CustomResourceDefinition":
                await _post(client, PATHS[item["kind"]], item)
        await stack.enter_async_context(_program(home, kubeconfig, "controller"))
        await _heard(home, "controller", "leading")
        await stack.enter_async_context(_program(home, kubeconfig, "webhook"))
        port = (await _heard(home, "webhook", "webhooks are served"))["port"]
        for item in objects:
            if item["kind"] == "ValidatingWebhookConfiguration":
                await _post(client, PATHS[item["kind"]], _called_at(port, item))
        await _heard(home, "webhook", "a certificate is served")
        for namespace, count in ((QUIET, 6), (LOUD, PODS)):
            for number in range(count):
                await _pod(client, namespace, f"web-{number}", "abc"[number % 3])
        await _budget(client, QUIET, "web", {"matchLabels": {"app": "web"}})
        await _counted(client)
        phases = {"alone": await _observed(client)}
        ended = asyncio.Event()
        loud = [asyncio.create_task(_relabel(client, ended))]
        loud.append(asyncio.create_task(_evict(client, ended)))
        phases["traffic alone"] = await _observed(client)
        for number in range(BUDGETS):
            expression = {"key": "never", "operator": "NotIn", "values": [f"v{number}"]}
            await _budget(client, LOUD, f"web-{number}", {"matchExpressions": [expression]})
        phases["attacked"] = await _observed(client)
        ended.set()
        await asyncio.gather(*loud)
        log = (home / "controller.log").read_text()
        return phases, log.count('"leading"') == 1


async def _observed(client: Client) -> Observed:
    """Ask for forbidden disruptions, one after the other."""
    seen = Observed()
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        for path, method in (("/pods/web-0/eviction", "POST"), ("/pods/web-1", "DELETE")):
            begin = time.perf_counter()
            code = await _request_status(client, QUIET, path, method)
            seen.times.append((time.perf_counter() - begin) * 1000)
            seen.let_through += 200 <= code < 300
            seen.failed += code not in (200, 201, REFUSED)
            await asyncio.sleep(0.05)
    return seen


async def _request_status(client: Client, namespace: str, path: str, method: str) -> int:
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": path.split("/")[2], "namespace": namespace},
    }
    headers = {**JSON, **({"Impersonate-User": DELETER} if method == "DELETE" else {})}
    body = msgspec.json.encode(eviction) if method == "POST" else b""
    try:
        answer = await client.raw(
            method, f"/api/v1/namespaces/{namespace}{path}", headers=headers, body=body
        )
    except ZonewiseError as error:
        return int(getattr(error, "code", 0) or 0)
    return answer.status


async def _relabel(client: Client, ended: asyncio.Event) -> None:
    async for number in _paced(CHANGES, ended):
        body = {"metadata": {"labels": {"turn": str(number)}}}
        with contextlib.suppress(ZonewiseError):
            await client.patch(Pod, f"web-{number % PODS}", LOUD, body)


async def _evict(client: Client, ended: asyncio.Event) -> None:
    async for number in _paced(EVICTIONS, ended):
        await _request_status(client, LOUD, f"/pods/web-{number % PODS}/eviction", "POST")


async def _paced(rate: float, ended: asyncio.Event) -> AsyncIterator[int]:
    """Count up at this rate; a number that is late follows at once."""
    began, number = time.monotonic(), 0
    while not ended.is_set():
        number += 1
        yield number
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))


async def _counted(client: Client) -> None:
    while True:
        budget = await client.get(TopologyDisruptionBudget, "web", QUIET)
        if budget.status.observed_generation and len(budget.status.domains) == 3:
            return
        await asyncio.sleep(0.1)


async def _budget(client: Client, namespace: str, name: str, selector: dict[str, Any]) -> None:
    spec = {"maxUnavailable": 0, "topologyKeys": [ZONE], "selector": selector}
    meta = {"name": name, "namespace": namespace}
    await client.create(convert(TopologyDisruptionBudget, {"metadata": meta, "spec": spec}))


async def _pod(client: Client, namespace: str, name: str, node: str) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "c"}]},
    }
    path = f"/api/v1/namespaces/{namespace}/pods"
    await _post(client, path, pod)
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await client.raw(
        "PATCH",
        f"{path}/{name}/status",
        headers={"Content-Type": "application/merge-patch+json"},
        body=msgspec.json.encode({"status": status}),
    )


async def _post(client: Client, path: str, item: dict[str, Any]) -> None:
    await client.raw("POST", path, headers=JSON, body=msgspec.json.encode(item))


def _called_at(port: int, item: dict[str, Any]) -> dict[str, Any]:
    """A webhook configuration for a webhook on this machine, without what is not measured."""
    hooks = []
    for hook in item["webhooks"]:
        client_config = hook["clientConfig"]
        path = (
            client_config["service"]["path"]
            if "service" in client_config
            else urlsplit(client_config["url"]).path
        )
        if path in ("/evictions", "/deletions"):
            hooks.append({**hook, "clientConfig": {"url": f"https://127.0.0.1:{port}{path}"}})
    return {**item, "webhooks": hooks}


@asynccontextmanager
async def _program(home: Path, kubeconfig: Path, name: str) -> AsyncIterator[None]:
    where = ("--listen", "127.0.0.1:0", "--host", "127.0.0.1") if name == "webhook" else ()
    lease = ("--lease-namespace", SYSTEM) if name == "controller" else ()
    command = [
        *(sys.executable, "-m", "zonewise", name, "--endpointslices", "observe"),
        *("--budgets", "enforce", "-v", "--log-format", "json", "-n", SYSTEM),
        *("--kubeconfig", str(kubeconfig), "--metrics-listen", "127.0.0.1:0", *where, *lease),
    ]
    program = await asyncio.to_thread(_begun, command, home / f"{name}.log")
    try:
        yield
    finally:
        program.terminate()
        try:
            await asyncio.to_thread(program.wait, 30)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()


def _begun(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(command, stderr=file)


async def _heard(home: Path, name: str, event: str) -> dict[str, Any]:
    async with asyncio.timeout(120):
        while True:
            for line in (home / f"{name}.log").read_text().splitlines(keepends=True):
                if line.startswith("{") and line.endswith("\n"):
                    entry: dict[str, Any] = json.loads(line)
                    if entry["event"] == event:
                        return entry
            await asyncio.sleep(0.1)
