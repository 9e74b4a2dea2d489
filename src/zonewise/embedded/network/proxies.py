"""The proxies of all nodes, in one process: each writes the rules of its own namespace.

They are the same that ``zonewise proxy`` runs. They share the cluster's cache, so a Service or a
slice is watched and decoded once for all of them. One that fails is restarted after a pause and
does not affect others; its rules stay as they were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from zonewise.api.gates import FeatureGates
from zonewise.embedded.network.plan import NodeNetwork
from zonewise.proxy.netlink import NetworkNamespace
from zonewise.proxy.objects import ServiceCIDR
from zonewise.proxy.program import NodeProxy
from zonewise.proxy.settings import ProxySettings
from zonewise.proxy.tables.kernel import Kernel
from zonewise.runtime.client.pace import Pace
from zonewise.runtime.process.logs import logger
from zonewise.runtime.program.context import ControllerContext
from zonewise.traffic.routes.service import RouteSettings

HEALTHZ_PORT = 10256

_log = logger("network")


class NodeProxies:
    """A task for each node's proxy."""

    def __init__(self, context: ControllerContext, gates: FeatureGates) -> None:
        self._context = context
        self._routing = RouteSettings(gates=gates)
        self._cidrs = context.cache.store(ServiceCIDR)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._written: dict[str, asyncio.Event] = {}

    async def apply(self, desired: Mapping[str, tuple[NetworkNamespace, NodeNetwork]]) -> None:
        """Run a proxy on each of these nodes and on no other."""
        await self._stop([name for name in self._tasks if name not in desired])
        for name, (namespace, node) in desired.items():
            if name not in self._tasks:
                self._written[name] = asyncio.Event()
                self._tasks[name] = asyncio.create_task(
                    self._run_proxy(self._settings(name, node), namespace), name=f"proxy of {name}"
                )

    async def wait_until_written(self) -> None:
        """Wait until every proxy has written its first rules."""
        for event in tuple(self._written.values()):
            await event.wait()

    async def close(self) -> None:
        """Stop all proxies."""
        await self._stop(list(self._tasks))

    async def _stop(self, names: list[str]) -> None:
        tasks = [self._tasks.pop(name) for name in names]
        for name in names:
            del self._written[name]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _settings(self, name: str, node: NodeNetwork) -> ProxySettings:
        # Not at every address: a pod may listen on the same port of its own address.
        host = node.addresses[0]
        return ProxySettings(
            node_name=name,
            routing=self._routing,
            detect_local_mode="NodeCIDR",
            healthz_listen=f"[{host}]:{HEALTHZ_PORT}" if ":" in host else f"{host}:{HEALTHZ_PORT}",
        )

    async def _run_proxy(self, settings: ProxySettings, namespace: NetworkNamespace) -> None:
        loop = asyncio.get_running_loop()
        pace = Pace(base=0.5)
        while True:
            started = loop.time()
            try:
                await self._run_once(settings, namespace)
            except Exception as error:
                cause: BaseException = error
                while isinstance(cause, BaseExceptionGroup):
                    cause = cause.exceptions[0]
                _log.info("a proxy failed", node=settings.node_name, error=str(cause))
            await pace.rest(lived=loop.time() - started)

    async def _run_once(self, settings: ProxySettings, namespace: NetworkNamespace) -> None:
        kernel = Kernel(settings.frames(), namespace)
        try:
            proxy = NodeProxy(self._context, settings, kernel=kernel, service_cidrs=self._cidrs)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(proxy.run())
                await proxy.written.wait()
                self._written[settings.node_name].set()
        finally:
            kernel.close()
