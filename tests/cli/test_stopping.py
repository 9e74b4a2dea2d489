"""A program that is stopped ends its parts before it closes what they use."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.netns.spaces import inside, space
from tests.system_guard import starts_programs

from zonewise.api import Namespace, Node, ObjectMeta, convert
from zonewise.cli.main import main
from zonewise.cli.program import connection
from zonewise.cli.program.options import Options
from zonewise.csi.driver import Threads
from zonewise.embedded.apiserver.server import ApiServer
from zonewise.runtime.client.client import Client
from zonewise.runtime.process import process
from zonewise.runtime.process.process import Main, supervise
from zonewise.topology.nodes import ZONE_LABEL

METRICS = "--metrics-listen=127.0.0.1:0"
PROGRAMS = {
    "webhook": ["--listen=127.0.0.1:0", METRICS, "-n", "default"],
    "controller": [METRICS, "--lease-namespace=default"],
    "dns": ["--listen=127.0.0.1:0", METRICS, "--lameduck=0"],
    "proxy": ["--node-name=n1", "--cluster-cidr=10.244.0.0/16"],
    "csi": ["--node-id=n1", f"--domain-labels={ZONE_LABEL}"],
}


@pytest.fixture
@starts_programs
def namespace(request: pytest.FixtureRequest) -> Iterator[None]:
    """A proxy writes its rules into a network namespace that is gone afterwards."""
    if request.getfixturevalue("name") != "proxy":
        yield
        return
    with space(f"zwstop{os.getpid()}") as name, inside(name):
        yield


def csi_files(folder: Path) -> list[str]:
    """The flags for the socket and the files of a CSI driver."""
    (folder / "config.json").write_text('{"version": 2}')
    return [
        f"--endpoint=unix://{folder}/csi.sock",
        f"--config={folder}/config.json",
        f"--data={folder}/data",
    ]


def tasks() -> set[str]:
    """The names of all tasks."""
    return {task.get_name() for task in asyncio.all_tasks()}


async def stop(mains: list[Main], *parts: str) -> int:
    """Send SIGTERM to a program once its parts run; gives its exit code."""
    running = asyncio.create_task(supervise(mains[0]))
    while not tasks() >= set(parts) and not running.done():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    signal.raise_signal(signal.SIGTERM)
    return await running


@pytest.fixture
def mains(monkeypatch: pytest.MonkeyPatch) -> list[Main]:
    """The main functions of programs that were started, but not run."""
    captured: list[Main] = []

    def capture(start: Main, **_: Any) -> int:
        captured.append(start)
        return 0

    monkeypatch.setattr(process, "run", capture)
    return captured


@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize("name", PROGRAMS)
async def test_the_client_is_closed_after_the_parts_that_read_with_it(
    name: str, mains: list[Main], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that is stopped while its watches read ends them first, then their connections:
    otherwise a watch would read from a closed connection.
    """
    server = ApiServer(tmp_path / "cluster", clock=time.time, rng=random.Random(5))
    await server.start(0)
    await server.connect("test").create(Namespace(metadata=ObjectMeta(name="zonewise")))
    await server.connect("test").create(convert(Node, {"metadata": {"name": "n1"}}))
    part = "cache"
    reading: list[str] = []
    connect = connection.connect

    @asynccontextmanager
    async def watched(options: Options) -> AsyncIterator[Client]:
        async with connect(options) as client:
            yield client
            reading.extend(tasks() & {part})

    monkeypatch.setattr(connection, "connect", watched)
    files = csi_files(tmp_path) if name == "csi" else []
    try:
        kubeconfig = f"--kubeconfig={server.identity.kubeconfig}"
        assert main([name, *PROGRAMS[name], *files, kubeconfig]) == 0
        assert await stop(mains, part) == 0
        assert reading == []
    finally:
        await server.close()


async def test_threads_end_after_the_takeover_that_uses_them(
    mains: list[Main], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CSI driver that is stopped ends its takeover controller first, then the threads which that
    uses to read the storage: otherwise the next read would fail.
    """
    server = ApiServer(tmp_path / "cluster", clock=time.time, rng=random.Random(5))
    await server.start(0)
    asking: list[str] = []
    close = Threads.close

    def watched(threads: Threads) -> None:
        asking.extend(tasks() & {"takeover", "configuration"})
        close(threads)

    monkeypatch.setattr(Threads, "close", watched)
    leading = ["--takeover-controller", "--lease-namespace=default"]
    try:
        kubeconfig = f"--kubeconfig={server.identity.kubeconfig}"
        words = [*PROGRAMS["csi"], *csi_files(tmp_path), *leading, kubeconfig]
        assert main(["csi", *words]) == 0
        assert await stop(mains, "takeover", "configuration") == 0
        assert asking == []
    finally:
        await server.close()
