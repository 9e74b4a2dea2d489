"""A cluster in virtual time: an embedded server in memory and the parts a test needs."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from zonewise.embedded.apiserver.server import ApiServer
from zonewise.runtime.client.client import Client
from zonewise.runtime.program.context import ControllerContext
from zonewise.runtime.program.program import Program, Runnable

EPOCH = 1_750_000_000.0
Parts = Mapping[str, Callable[[ControllerContext], Runnable]]
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


@dataclass(frozen=True)
class VirtualCluster:
    """A running cluster; ``client`` is an administrator's."""

    server: ApiServer
    program: Program
    client: Client


@asynccontextmanager
async def virtual_cluster(parts: Parts, *, seed: int = 1) -> AsyncIterator[VirtualCluster]:
    """Start components over a new server, and stop them; time is the event loop's."""
    loop = asyncio.get_running_loop()

    def clock() -> float:
        return EPOCH + loop.time()

    with tempfile.TemporaryDirectory(prefix="zonewise-test-", dir=MEMORY) as folder:
        server = ApiServer(Path(folder), clock=clock, rng=random.Random(seed), inline=True)
        await server.start_local()
        await until(
            lambda: server.state.latest("/serviceaccounts", "default", "default") is not None
        )
        components = Program(server.connect, clock=clock, rng=random.Random(seed))
        for name, make in parts.items():
            components.add(name, make)
        work = asyncio.create_task(components.run())
        try:
            yield VirtualCluster(server, components, server.connect("test"))
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            await server.close()


async def until(condition: Callable[[], bool], *, within: float = 120.0) -> None:
    """Wait, in virtual time, until a condition is true."""
    async with asyncio.timeout(within):
        while True:
            if condition():
                return
            await asyncio.sleep(0.05)
