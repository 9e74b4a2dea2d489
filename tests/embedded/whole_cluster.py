"""A whole cluster in virtual time, with all parts and the objects of a test."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.embedded.virtual_cluster import EPOCH, MEMORY

from zonewise.api import DaemonSet, Deployment, StatefulSet
from zonewise.embedded.cluster import ClusterSettings, EmbeddedCluster
from zonewise.runtime.monitoring.metrics import Metrics

Obj = dict[str, Any]


@asynccontextmanager
async def whole(
    objects: Iterable[Obj] = (),
    *,
    folder: Path | None = None,
    settings: ClusterSettings | None = None,
    shift: Callable[[], float] = lambda: 0.0,
    metrics: Metrics | None = None,
) -> AsyncIterator[EmbeddedCluster]:
    """Start a cluster, create the objects, and stop it; time is the event loop's. ``shift`` is how
    far the clock is off, in seconds.
    """
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory(prefix="zonewise-test-", dir=MEMORY) as temporary:
        cluster = EmbeddedCluster(
            folder or Path(temporary),
            settings=settings,
            clock=lambda: EPOCH + loop.time() + shift(),
            rng=random.Random(1),
            inline=True,
            metrics=metrics,
        )
        await cluster.server.start_local()
        objects = list(objects)
        await cluster.plant_classes(objects)
        work = asyncio.create_task(cluster.run())
        try:
            refused = await cluster.seeder.create(objects)
            assert not refused, refused
            yield cluster
            assert not work.done(), work.exception()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            await cluster.close()


async def settled(cluster: EmbeddedCluster, *, within: float = 300.0) -> None:
    """Wait until every workload has all its pods Ready and nothing is under way."""
    async with asyncio.timeout(within):
        while True:
            await asyncio.sleep(1)
            client = cluster.client
            fine = all(
                workload.status.observed_generation >= workload.metadata.generation
                and workload.spec.replicas
                == workload.status.ready_replicas
                == workload.status.replicas
                for workload in (*await client.list(Deployment), *await client.list(StatefulSet))
            )
            if fine and all(
                daemon_set.status.observed_generation >= daemon_set.metadata.generation
                and daemon_set.status.desired_number_scheduled == daemon_set.status.number_ready
                for daemon_set in await client.list(DaemonSet)
            ):
                return


async def dumped(cluster: EmbeddedCluster) -> list[Obj]:
    """All objects of a cluster, as ``kubectl get -o yaml`` prints them."""
    objects: list[Obj] = []
    for served in cluster.server.registry:
        resource = served.kind.resource
        if "list" not in served.kind.verbs or "beta" in resource.version:
            continue
        answer = (await cluster.client.raw("GET", resource.path())).json()
        names = {"apiVersion": resource.api_version, "kind": resource.kind}
        objects += [{**item, **names} for item in answer["items"]]
    return objects
