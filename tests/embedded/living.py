"""A living cluster in virtual time: an embedded server in memory and the parts a test asks for."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from zonewise.embedded.crew import Crew, Means, Part
from zonewise.embedded.server import ApiServer
from zonewise.runtime.client import Client

EPOCH = 1_750_000_000.0
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


@dataclass(frozen=True)
class Living:
    """A running cluster; ``client`` is its owner's."""

    server: ApiServer
    crew: Crew
    client: Client


@asynccontextmanager
async def living(
    parts: Mapping[str, Callable[[Means], Part]], *, seed: int = 1
) -> AsyncIterator[Living]:
    """Start the parts over a fresh server, and stop them; time is the event loop's."""
    loop = asyncio.get_running_loop()

    def clock() -> float:
        return EPOCH + loop.time()

    with tempfile.TemporaryDirectory(prefix="zonewise-test-", dir=MEMORY) as folder:
        server = ApiServer(Path(folder), clock=clock, rng=random.Random(seed), inline=True)
        await server.live()
        await until(
            lambda: server.state.latest("/serviceaccounts", "default", "default") is not None
        )
        crew = Crew(server.connect, clock=clock, rng=random.Random(seed))
        for name, make in parts.items():
            crew.add(name, make)
        work = asyncio.create_task(crew.run())
        try:
            yield Living(server, crew, server.connect("test"))
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            await server.close()


async def until(condition: Callable[[], bool], *, within: float = 120.0) -> None:
    """Wait, in virtual time, until something is true."""
    async with asyncio.timeout(within):
        while True:
            if condition():
                return
            await asyncio.sleep(0.05)
