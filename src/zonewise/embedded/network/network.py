"""The network of an embedded cluster, as one of its components.

Triggered by Nodes, Pods and EndpointSlices; changes are batched for ``BATCH_SECONDS`` after the
first of them. Each time the whole network is planned and the difference to the actual state is
applied: links and addresses first, then the listeners at them, then the proxies of new nodes. In
between the proxies follow Services by themselves.

The proxies of all nodes are in one process, and each writes the rules of its own namespace. They
are the same that ``zonewise proxy`` runs. They share the cluster's cache, so a Service or a slice
is watched and decoded once for all of them. One that fails is restarted after a pause and does not
affect others; its rules stay as they were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from zonewise.api.gates import FeatureGates
from zonewise.api.objects.core import Node
from zonewise.api.objects.discovery import EndpointSlice
from zonewise.api.objects.pod import Pod
from zonewise.embedded.network.echo import Echo
from zonewise.embedded.network.namespaces import ClusterNamespaces
from zonewise.embedded.network.plan import NodeNetwork, plan_network
from zonewise.embedded.network.wiring import Wiring
from zonewise.proxy.netlink.namespace import NetworkNamespace
from zonewise.proxy.objects import ServiceCIDR
from zonewise.proxy.program import NodeProxy
from zonewise.proxy.settings import ProxySettings
from zonewise.proxy.tables.kernel import Kernel
from zonewise.runtime.client.pace import Pace
from zonewise.runtime.process.logs import logger
from zonewise.runtime.program.context import ControllerContext
from zonewise.traffic.routes.service import RouteSettings

BATCH_SECONDS = 0.1
SETTLE_SECONDS = 10.0


class ClusterNetwork:
    """Brings the network in line with the objects, until it is cancelled."""

    def __init__(
        self, context: ControllerContext, *, instance: ClusterNamespaces, gates: FeatureGates
    ) -> None:
        cache = context.cache
        self._cache = cache
        self._instance = instance
        self._nodes = cache.store(Node)
        self._pods = cache.store(Pod)
        self._slices = cache.store(EndpointSlice)
        self._wiring = Wiring(instance)
        self._echo = Echo()
        self._proxies = NodeProxies(context, gates=gates)
        self._wake = asyncio.Event()
        self._applied = asyncio.Event()
        """Set while the network is in line with the objects."""

    async def run(self) -> None:
        """Follow the cluster."""
        await self._cache.synced()
        self._nodes.on_change(self._changed)
        self._pods.on_change(self._changed)
        self._slices.on_change(self._changed)
        try:
            self._changed(None, None)
            while True:
                await self._wake.wait()
                await asyncio.sleep(BATCH_SECONDS)
                self._wake.clear()
                await self._apply()
                if not self._wake.is_set():
                    self._applied.set()
        finally:
            self._echo.close()
            await self._proxies.close()

    async def settled(self) -> None:
        """Wait until the network is in line with the objects, for a bounded time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._applied.wait()
                await self._proxies.wait_until_written()

    def curl_command(self, node: str, source: str, url: str) -> str:
        """The shell command for a request from an address on a node."""
        return f"ip netns exec {self._instance.node(node).name} curl --interface {source} {url}"

    def _changed(self, _old: object, _new: object) -> None:
        self._applied.clear()
        self._wake.set()

    async def _apply(self) -> None:
        networks = plan_network(self._nodes, self._pods, self._slices)
        existing = await self._wiring.apply(networks)
        namespaces = {name: self._instance.node(name) for name in networks if name in existing}
        await self._echo.apply(
            {
                (namespaces[name], pod_port): answer
                for name, node in networks.items()
                if name in existing
                for pod_port, answer in node.answers.items()
            }
        )
        await self._proxies.apply(
            {name: (namespace, networks[name]) for name, namespace in namespaces.items()}
        )


HEALTHZ_PORT = 10256

_log = logger("network")


class NodeProxies:
    """A task for each node's proxy."""

    def __init__(self, context: ControllerContext, *, gates: FeatureGates) -> None:
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
