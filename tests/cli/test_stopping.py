"""What a program's parts use outlives them, however it ends."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from zonewise.api import Namespace, ObjectMeta
from zonewise.apiserver.server import ApiServer
from zonewise.cli.main import main
from zonewise.cli.program import connection
from zonewise.cli.program.options import Options
from zonewise.runtime.client.client import Client
from zonewise.runtime.process import process
from zonewise.runtime.process.process import Main, supervise

PROGRAMS = {
    "webhook": ["webhook", "--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0", "-n", "default"],
    "controller": ["controller", "--metrics-listen=127.0.0.1:0", "--lease-namespace=default"],
    "dns": ["dns", "--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0", "--lameduck=0"],
}


@pytest.mark.parametrize("name", PROGRAMS)
async def test_the_client_is_closed_after_the_parts_that_read_with_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that is stopped while its watches read ends them first, then their connections:
    otherwise a watch reads from a connection that is closed under it.
    """
    server = ApiServer(tmp_path / "cluster", clock=time.time, rng=random.Random(5))
    await server.start(0)
    await server.connect("test").create(Namespace(metadata=ObjectMeta(name="zonewise")))
    mains: list[Main] = []
    reading: list[str] = []
    connect = connection.connected

    def tasks() -> set[str]:
        return {task.get_name() for task in asyncio.all_tasks()}

    @asynccontextmanager
    async def watched(options: Options) -> AsyncIterator[Client]:
        async with connect(options) as client:
            yield client
            reading.extend(tasks() & {"cache"})

    def captured(start: Main, **_: Any) -> int:
        mains.append(start)
        return 0

    monkeypatch.setattr(connection, "connected", watched)
    monkeypatch.setattr(process, "run", captured)
    try:
        kubeconfig = f"--kubeconfig={server.identity.kubeconfig}"
        assert main([*PROGRAMS[name], kubeconfig]) == 0
        running = asyncio.create_task(supervise(mains[0]))
        while not tasks() & {"cache"} and not running.done():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        signal.raise_signal(signal.SIGTERM)
        assert await running == 0
        assert reading == []
    finally:
        await server.close()
