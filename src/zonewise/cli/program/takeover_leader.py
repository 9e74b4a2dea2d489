"""The takeover controller inside ``zonewise csi``: of several drivers that have it, one leads.

The lease matters: kubelets bring a changed ConfigMap to their nodes at different times, and two
controllers with two states of it would take each other's labels away. A driver that loses its lease
continues to serve volumes and follows.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zonewise.cli.program.options import Options

if TYPE_CHECKING:
    from zonewise.csi.driver import DriverStorage
    from zonewise.csi.takeover.controller import StatesByCluster
    from zonewise.csi.takeover.source import TakeoverSource
    from zonewise.csi.transport.calls import CallWorker
    from zonewise.storage.configuration import StorageConfiguration
    from zonewise.storage.domains import DomainLabels

LEASE = "zonewise-csi-takeover"
AGAIN = 5.0


@dataclass(frozen=True, slots=True)
class Leading:
    """Where the lease is, and where metrics are served."""

    namespace: str | None = None
    metrics: str | None = None


async def lead(
    options: Options,
    source: TakeoverSource,
    labels: DomainLabels,
    storage: DriverStorage,
    worker: CallWorker,
    settings: Leading,
) -> None:
    """Follow, lead, and follow again, endlessly."""
    import random
    import time
    from functools import partial

    from zonewise.api.errors import LeadershipLost
    from zonewise.cli.program.connection import connected
    from zonewise.csi.answering import answered
    from zonewise.csi.takeover.automatic import AutomaticLoop
    from zonewise.csi.takeover.controller import TakeoverController
    from zonewise.csi.takeover.metrics import TakeoverMetrics
    from zonewise.runtime import Cache, Client, Health, Metrics, Monitor, Recorder
    from zonewise.runtime.controller.components import ComponentContext
    from zonewise.runtime.election import election as elections
    from zonewise.runtime.process.logs import logger

    async def states(configuration: StorageConfiguration) -> StatesByCluster:
        def ask() -> StatesByCluster:
            with storage.in_call():
                clusters = storage.clusters().items()
                return answered(
                    {name: partial(one.backend.states, configuration) for name, one in clusters}
                )

        return await worker(ask)

    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(connected(options))
        metrics = Metrics()
        takeover_metrics = TakeoverMetrics(metrics.registry)
        if settings.metrics:
            await stack.enter_async_context(Monitor(metrics, Health(), listen=settings.metrics))
        namespace = elections.lease_namespace(settings.namespace)
        leading = metrics.leading(LEASE)
        while True:
            election = elections.Election(
                Client(plain.transport, retries=0),
                name=LEASE,
                namespace=namespace,
                on_change=leading,
            )
            client = Client(plain.transport, fence=election.fence)
            cache = Cache(client)
            recorder = Recorder(client, controller=LEASE, instance=election.identity)
            context = ComponentContext(
                client=client,
                cache=cache,
                recorder=recorder,
                clock=time.time,
                rng=random.SystemRandom(),
            )

            async def work(
                context: ComponentContext = context,
                cache: Cache = cache,
                recorder: Recorder = recorder,
            ) -> None:
                controller = TakeoverController(
                    context,
                    source,
                    labels,
                    namespace=namespace,
                    states=states,
                    metrics=takeover_metrics,
                )
                automatic = AutomaticLoop(
                    context, source, labels, storage, worker, namespace=namespace
                )
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(automatic.run())
                    tasks.create_task(cache.run())
                    tasks.create_task(recorder.run())
                    tasks.create_task(controller.run())

            try:
                await election.run(work)
            except* LeadershipLost as lost:
                logger("csi").warning("takeover is led by another now", why=str(lost.exceptions[0]))
            await asyncio.sleep(AGAIN)
