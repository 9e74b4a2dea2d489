"""The proxy as a program: its parts, and the order in which they start and stop.

First the kernel's rules: nothing that they do not need is loaded before they are written, or before
``PATIENCE`` seconds have passed, so that a proxy which waits for an API server answers health
checks. Until then the garbage collector is off too: it would walk what is just being made. On
shutdown the program leaves the tables as they are: packets keep flowing, and the next program
continues from there.
"""

from __future__ import annotations

import asyncio
import gc
import random
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from zonewise.api.errors import Forbidden, NotFound
from zonewise.proxy import sysctls
from zonewise.proxy.flows import StaleFlows
from zonewise.proxy.notes import Notes
from zonewise.proxy.objects import ServiceCIDR
from zonewise.proxy.proxier import Proxier
from zonewise.proxy.settings import ProxySettings
from zonewise.proxy.summary import RoutesSummary
from zonewise.proxy.tables.kernel import Kernel
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.controller.controller import run_all
from zonewise.runtime.process.logs import logger
from zonewise.runtime.program.context import ControllerContext
from zonewise.runtime.program.program import Program

if TYPE_CHECKING:
    from zonewise.runtime.cache.store import Store
    from zonewise.runtime.client.client import Client
    from zonewise.runtime.process.process import Process

PATIENCE = 5.0

_log = logger("proxy")


async def initialise(settings: ProxySettings) -> None:
    """What has to be there before pods: tables, empty if there are none, and kernel settings."""
    sysctls.apply(settings.conntrack)
    kernel = Kernel(settings.frames())
    try:
        kernel.read()
        await kernel.prepare()
    finally:
        kernel.close()


class NodeProxy:
    """One node's proxy with all its observers."""

    def __init__(
        self,
        context: ControllerContext,
        settings: ProxySettings,
        *,
        kernel: Kernel,
        service_cidrs: Store[ServiceCIDR] | None,
    ) -> None:
        client, cache = context.client, context.cache
        self._cache = cache
        self._settings = settings
        self._namespace = kernel.namespace
        self.proxier = Proxier(cache, kernel, settings, service_cidrs=service_cidrs)
        self.notes = Notes(client, settings.node_name, service=self.proxier.services.get)
        self._summary = RoutesSummary()
        self.written = self._summary.written
        self._flows = StaleFlows(
            lambda: settings.nodeport_networks(self.proxier.location.addresses), kernel.namespace
        )
        self.proxier.observers = (self._summary, self.notes, self._flows)

    async def run(self) -> None:
        """Keep the rules right, send events, and serve health and metrics until cancelled."""
        await run_all(self.notes.run(), self._look_out(), self.proxier.run())

    async def _look_out(self) -> None:
        """Serve health and metrics, from the first write on or once that takes too long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._summary.written.wait()
        gc.enable()
        lookout = import_module("zonewise.proxy.lookout")
        await lookout.look_out(
            self.proxier,
            self._cache,
            self._settings,
            summary=self._summary,
            notes=self.notes,
            flows=self._flows,
            namespace=self._namespace,
        )


async def serve(process: Process, client: Client, settings: ProxySettings) -> None:
    """Keep the packets of one node right until the program is to stop."""
    sysctls.apply(settings.conntrack)
    kernel = Kernel(settings.frames())
    try:
        program = Program(lambda _: client, clock=client.clock.now, rng=random.SystemRandom())
        cidrs = await service_cidrs(client, program.cache)
        program.add("proxy", NodeProxy, settings, kernel=kernel, service_cidrs=cidrs)
        await process.until_stop(program.run(), stop=program.stop)
    finally:
        kernel.close()


async def service_cidrs(client: Client, cache: Cache) -> Store[ServiceCIDR] | None:
    """The ranges of ClusterIPs; clusters before 1.33 do not say, and then nothing is dropped."""
    try:
        await client.list(ServiceCIDR, limit=1)
    except (NotFound, Forbidden) as error:
        _log.info("unallocated ClusterIPs are not dropped", reason=str(error))
        return None
    return cache.store(ServiceCIDR)
