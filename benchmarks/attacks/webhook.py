"""Callers of the webhook that are no API servers.

*Memory*: 10,000 reviews of deletions, each of a namespace of its own with a name of 60 kB.
*Connections*: 1,000 of one address, with a request every 4 s on each; a quiet client of another
address connects anew for each of its reviews. A review that has no answer after ``PATIENCE``
seconds counts as one that took so long.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path

from benchmarks.table import Row, Table
from zonewise.disruption.definitions.schemas import resource_definitions
from zonewise.embedded.apiserver.server import ApiServer
from zonewise.embedded.seed.seeder import Seeder

REVIEWS = 10_000
NAME = 60_000
SENDERS = 8
CONNECTIONS = 1000
PERIOD = 4.0
QUESTIONS = 30
PATIENCE = 10.0
ATTACKER, QUIET = "127.0.0.1", "127.0.0.2"


def attack() -> Iterator[Table]:
    """Memory and latency, before and during."""
    yield from asyncio.run(_attack())


async def _attack() -> list[Table]:
    async with _webhook() as (program, port):
        before = _memory(program)
        await asyncio.gather(*(_send(port, number) for number in range(SENDERS)))
        after = _memory(program)
    async with _webhook() as (_, port):
        alone = await _quiet(port)
        holding = [asyncio.create_task(_hold(port, number)) for number in range(CONNECTIONS)]
        await asyncio.sleep(3 * PERIOD)
        during = await _quiet(port)
        for task in holding:
            task.cancel()
        await asyncio.gather(*holding, return_exceptions=True)
    return [
        Table(
            title=f"{REVIEWS:,} reviews of namespaces with names of {NAME:,} bytes: memory",
            unit="MB",
            higher_is_better=False,
            rows=(Row(name="before", value=before), Row(name="after", value=after, ours=True)),
        ),
        Table(
            title=f"{CONNECTIONS:,} connections that are held: another client's slowest review",
            unit="ms",
            higher_is_better=False,
            rows=(
                Row(name="alone", value=max(alone) * 1000),
                Row(name="attacked", value=max(during) * 1000, ours=True),
            ),
            note=f"median {statistics.median(alone) * 1000:.0f} ms alone,"
            f" {statistics.median(during) * 1000:.0f} ms attacked",
        ),
    ]


@asynccontextmanager
async def _webhook() -> AsyncIterator[tuple[subprocess.Popen[bytes], int]]:
    """The program beside an API server in this process, and its port."""
    with tempfile.TemporaryDirectory() as folder:
        server = ApiServer(Path(folder) / "cluster", clock=time.time, rng=random.Random(5))
        await server.start(0)
        await Seeder(server.connect("test"), server.registry).create(resource_definitions())
        program = _started(folder, server.identity.kubeconfig)
        draining: asyncio.Task[None] | None = None
        try:
            port = int((await asyncio.to_thread(_heard, program, "webhooks are served"))["port"])
            await asyncio.to_thread(_heard, program, "a certificate is served")
            draining = asyncio.create_task(asyncio.to_thread(_drain, program))
            yield program, port
        finally:
            program.terminate()
            if draining is not None:
                await draining
            program.wait(timeout=30)
            await server.close()


def _started(folder: str, kubeconfig: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "zonewise", "webhook", "--budgets", "enforce"),
            *("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"),
            *("--host", "127.0.0.1", "-v", "--log-format", "json"),
            *("--kubeconfig", str(kubeconfig)),
        ],
        env={**os.environ, "HOME": folder},
        stderr=subprocess.PIPE,
    )


def _heard(program: subprocess.Popen[bytes], event: str) -> dict[str, str]:
    assert program.stderr is not None
    for line in program.stderr:
        entry: dict[str, str] = json.loads(line)
        if entry.get("event") == event:
            return entry
    raise RuntimeError(f"the webhook ended before {event}")


def _drain(program: subprocess.Popen[bytes]) -> None:
    assert program.stderr is not None
    for _ in program.stderr:
        pass


def _memory(program: subprocess.Popen[bytes]) -> float:
    """What the program occupies, in MB."""
    lines = Path(f"/proc/{program.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


async def _send(port: int, number: int) -> None:
    """Send a part of the reviews over one connection, opened again if it breaks."""
    link = None
    for index in range(number, REVIEWS, SENDERS):
        namespace = f"{index:06}".ljust(NAME, "x")
        pod = {"metadata": {"name": "x", "namespace": namespace, "uid": "1"}}
        body = _review("DELETE", namespace, oldObject=pod)
        while True:
            try:
                link = link or await _connect(port, ATTACKER)
                await _ask(link, "/deletions", body)
                break
            except (OSError, asyncio.IncompleteReadError):
                link = None
    if link is not None:
        link[1].close()


async def _hold(port: int, number: int) -> None:
    """A connection with a request now and then, opened again when it is closed."""
    await asyncio.sleep(PERIOD * number / CONNECTIONS)
    while True:
        with suppress(OSError, asyncio.IncompleteReadError):
            link = await _connect(port, ATTACKER)
            try:
                while True:
                    await _ask(link, "/services", _review("CREATE", "shop"))
                    await asyncio.sleep(PERIOD)
            finally:
                link[1].transport.abort()
        await asyncio.sleep(PERIOD)


async def _quiet(port: int) -> list[float]:
    """How long a client that asks twice a second waits for each answer."""
    seconds = []
    for _ in range(QUESTIONS):
        begin = time.perf_counter()
        with suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
            async with asyncio.timeout(PATIENCE):
                link = await _connect(port, QUIET)
                await _ask(link, "/services", _review("CREATE", "shop"))
                link[1].close()
        seconds.append(time.perf_counter() - begin)
        await asyncio.sleep(0.5)
    return seconds


Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@cache
def _trust() -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname = False
    tls.verify_mode = ssl.CERT_NONE
    return tls


async def _connect(port: int, source: str) -> Link:
    return await asyncio.open_connection(
        "127.0.0.1", port, ssl=_trust(), local_addr=(source, 0), ssl_handshake_timeout=PATIENCE
    )


async def _ask(link: Link, path: str, body: bytes) -> None:
    head = (
        f"POST {path}?timeout=10s HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    link[1].write(head.encode() + body)
    await link[1].drain()
    answer = (await link[0].readuntil(b"\r\n\r\n")).lower()
    size = int(answer.split(b"content-length:")[1].split(b"\r\n")[0])
    await link[0].readexactly(size)


def _review(operation: str, namespace: str, **more: object) -> bytes:
    request = {"uid": "1", "operation": operation, "namespace": namespace, "name": "x", **more}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(review).encode()
