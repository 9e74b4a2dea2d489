"""How many writes and function calls a cluster needs to come up: exact, however busy the machine.

The same nodes and Deployments as in ``contest``, created in virtual time in this process, and
counted until thirty seconds later. Two revisions are compared by running both.
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.cluster.contest import AT_ONCE, Size, deployment, node
from zonewise.api import Deployment, Node
from zonewise.cli.local.composition import open_folder_driver
from zonewise.embedded.apiserver.store.history import StoreEvent
from zonewise.embedded.cluster import ClusterSettings, EmbeddedCluster
from zonewise.embedded.components.kubelet.kubelets import DUAL_STACK
from zonewise.embedded.components.kubelet.stages import default_stages, with_delays
from zonewise.embedded.scenario.virtual_time import VirtualTimeLoop

EPOCH = 1_750_000_000.0
START_SECONDS = 5.0
COUNTED_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class WriteCounts:
    """Writes by kind and by what they did, and function calls of the whole process."""

    title: str
    writes: dict[str, int]
    calls: int

    def plain(self) -> dict[str, Any]:
        """For machines."""
        return {"title": self.title, "writes": self.writes, "calls": self.calls}

    def text(self) -> str:
        """For people."""
        total = sum(self.writes.values())
        rows = [self.title]
        rows += [f"   {count:>10,} {name}" for name, count in sorted(self.writes.items())]
        rows.append(f"   {total:>10,} writes")
        rows.append(f"   {self.calls:>10,} function calls, {self.calls // total:,} for each write")
        return "\n".join(rows)


async def come_up(size: Size, profile: cProfile.Profile) -> Counter[str]:
    """Create everything, let it become ready, and count the writes."""
    loop = asyncio.get_running_loop()
    stages = with_delays(default_stages(), start="500ms")
    writes: Counter[str] = Counter()
    gate = asyncio.Semaphore(AT_ONCE)

    def count(kind: str, event: StoreEvent) -> None:
        writes[f"{kind.removeprefix('/')} {event.type}"] += 1

    with tempfile.TemporaryDirectory(prefix="zonewise-bench-") as folder:
        cluster = EmbeddedCluster(
            Path(folder),
            settings=ClusterSettings(kubelets=replace(DUAL_STACK, stages=stages), removal="delete"),
            clock=lambda: EPOCH + loop.time(),
            rng=random.Random(1),
            inline=True,
            driver=open_folder_driver(Path(folder)),
        )

        async def create(path: str, content: dict[str, Any]) -> None:
            headers = {"Content-Type": "application/json"}
            async with gate:
                body = msgspec.json.encode(content)
                await cluster.client.raw("POST", path, headers=headers, body=body)

        await cluster.server.start_local()
        work = asyncio.create_task(cluster.run())
        await asyncio.sleep(START_SECONDS)
        cluster.server.state.listen(count)
        nodes, workloads = Node.resource.path(), Deployment.resource.path("default")
        profile.enable()
        await asyncio.gather(*(create(nodes, node(number)) for number in range(size.nodes)))
        each = (deployment(number, size.replicas) for number in range(size.deployments))
        await asyncio.gather(*(create(workloads, content) for content in each))
        await asyncio.sleep(COUNTED_SECONDS)
        profile.disable()
        deployments = await cluster.client.list(Deployment, "default")
        assert sum(item.status.ready_replicas for item in deployments) == size.pods
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await cluster.close()
    return writes


def small_writes() -> Iterator[WriteCounts]:
    """100 nodes, 2,000 pods."""
    size = Size(nodes=100, deployments=20, replicas=100)
    profile = cProfile.Profile()
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(inf)) as runner:
        writes = runner.run(come_up(size, profile))
    yield WriteCounts(
        title=f"{size.nodes:,} nodes and {size.pods:,} pods, in virtual time",
        writes=dict(writes),
        calls=pstats.Stats(profile).total_calls,  # type: ignore[attr-defined]
    )
