"""A program on a cluster: its connection, its lease, its metrics and health, its end.

``serve`` is what every long-running command of ours calls, with a function that adds the
controllers; ``run_program`` is the same as a whole process, with signals and an exit code.
After ``LeadershipLost`` a program may be served again: it follows, with new controllers.

*Order*: the controllers are constructed, so that their stores are known; metrics and health are
served; then stores are filled and controllers run, or wait for their lease. ``/readyz`` fails while
a store is incomplete, while the clock of this machine is far from the API server's, while a
controller with a ``problem`` has one, and from the first signal to stop on. ``/livez`` fails if a
watch is silent for so long that only a restart can help.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from zonewise.runtime.client.client import Client
from zonewise.runtime.client.limiter import Limiter
from zonewise.runtime.client.transport import HttpsTransport, Transport
from zonewise.runtime.client.watch import DEFAULTS, WatchOptions
from zonewise.runtime.config.cluster import ClusterConfig, load_config
from zonewise.runtime.election.deadman import Deadman
from zonewise.runtime.election.election import Election, LeaseTiming, lease_namespace
from zonewise.runtime.monitoring.health import Health, fresh_watches, synced_watches
from zonewise.runtime.monitoring.metrics import Metrics
from zonewise.runtime.monitoring.monitor import Monitor
from zonewise.runtime.process.memory import freeze_heap
from zonewise.runtime.process.process import Process, run
from zonewise.runtime.program.program import Program
from zonewise.runtime.serving.address import LISTEN


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """The lease that replicas elect a leader by; without a namespace it is in the pod's.

    A leader that was stopped beyond its lease is killed by the kernel before it can write again,
    unless it does other work in the same process (``deadman``).
    """

    name: str
    namespace: str | None = None
    timing: LeaseTiming = field(default_factory=LeaseTiming)
    deadman: bool = sys.platform == "linux"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSettings:
    """How a program is named and served.

    ``name`` is the reporter of its events and, if no other is given, its field manager. Without
    ``metrics_listen`` metrics and health are not served. ``rate`` is requests per second, and at
    once. A program that stays useful without an API server is not restarted for silent watches
    (``watches_are_vital``).
    """

    name: str
    field_manager: str = ""
    metrics_listen: str | None = LISTEN
    rate: tuple[float, int] | None = None
    lease: LeaseSettings | None = None
    watch_options: WatchOptions = DEFAULTS
    transforms: Mapping[type[Any], Callable[[Any], Any]] | None = None
    watches_are_vital: bool = True


@runtime_checkable
class Checked(Protocol):
    """A controller that knows whether it can do its work."""

    def problem(self) -> str | None:
        """Why it cannot; None if it can."""


Assemble = Callable[[Program], None]
"""Adds the controllers of a program to it."""


def run_program(
    settings: ProgramSettings, assemble: Assemble, *, config: ClusterConfig | None = None
) -> int:
    """Run a program on the cluster of the configuration until a signal; gives the exit code."""

    async def main(process: Process) -> None:
        transport = HttpsTransport(config or load_config())
        process.ready = True
        try:
            await serve(process, transport, settings, assemble)
        finally:
            await transport.close()

    return run(main)


async def serve(
    process: Process, transport: Transport, settings: ProgramSettings, assemble: Assemble
) -> None:
    """Run a program until the process is to stop; raises what ended it before."""
    metrics, health = Metrics(), Health()
    election = _election(transport, settings.lease, metrics)
    client = Client(
        transport,
        field_manager=settings.field_manager or settings.name,
        limiter=Limiter(*settings.rate) if settings.rate else None,
        fence=election.fence if election else None,
    )
    program = Program(
        lambda _: client,
        clock=client.clock.now,
        rng=random.SystemRandom(),
        reporter=settings.name,
        watch_options=settings.watch_options,
        transforms=settings.transforms,
        metrics=metrics,
        election=election,
    )
    assemble(program)
    cache = program.cache
    if settings.watches_are_vital:
        clock = asyncio.get_running_loop().time
        health.add_alive("watches", fresh_watches(lambda: cache.stats, clock))
        health.add_ready("stores", synced_watches(lambda: cache.stats))
        health.add_ready("clock", client.clock.problem)
    for name, runnable in program.runnables.items():
        if isinstance(runnable, Checked):
            health.add_ready(name, runnable.problem)
    health.add_ready("program", process.problem)
    async with AsyncExitStack() as stack:
        if settings.metrics_listen is not None:
            monitor = Monitor(metrics, health, listen=settings.metrics_listen)
            await stack.enter_async_context(monitor)
        settling = asyncio.create_task(_settle(program), name="settle")
        stack.callback(settling.cancel)
        await process.until_stop(program.run(), stop=program.stop)


def _election(
    transport: Transport, lease: LeaseSettings | None, metrics: Metrics
) -> Election | None:
    if lease is None:
        return None
    return Election(
        Client(transport, retries=0),
        name=lease.name,
        namespace=lease_namespace(lease.namespace),
        timing=lease.timing,
        deadman=Deadman() if lease.deadman else None,
        on_change=metrics.leading(lease.name),
    )


async def _settle(program: Program) -> None:
    """Once stores are complete the garbage collector need not look at them again."""
    await program.cache.synced()
    freeze_heap()
