"""The network of an embedded cluster, as one of its components.

Triggered by Nodes, Pods and EndpointSlices; changes are batched for ``BATCH_SECONDS`` after the
first of them. Each time the whole network is planned and the difference to the actual state is
applied: links and addresses first, then the listeners at them, then the proxies of new nodes. In
between the proxies follow Services by themselves.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from zonewise.api.gates import FeatureGates
from zonewise.api.objects.core import Node
from zonewise.api.objects.discovery import EndpointSlice
from zonewise.api.objects.pod import Pod
from zonewise.embedded.network.echo import Echo
from zonewise.embedded.network.namespaces import ClusterNamespaces
from zonewise.embedded.network.plan import plan_network
from zonewise.embedded.network.proxies import NodeProxies
from zonewise.embedded.network.wiring import Wiring
from zonewise.runtime.program.context import ControllerContext

BATCH_SECONDS = 0.1
SETTLE_SECONDS = 10.0


class ClusterNetwork:
    """Brings the network in line with the objects, until it is cancelled."""

    def __init__(
        self, context: ControllerContext, instance: ClusterNamespaces, gates: FeatureGates
    ) -> None:
        cache = context.cache
        self._cache = cache
        self._instance = instance
        self._nodes = cache.store(Node)
        self._pods = cache.store(Pod)
        self._slices = cache.store(EndpointSlice)
        self._wiring = Wiring(instance)
        self._echo = Echo()
        self._proxies = NodeProxies(context, gates)
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
