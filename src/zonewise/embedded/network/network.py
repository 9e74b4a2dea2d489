"""The network of an embedded cluster, as one of its components.

Triggered by Nodes, Pods and EndpointSlices; changes are batched for ``BATCH`` seconds after the
first of them. Each time the whole plan is made and the difference to the actual state is applied:
links and addresses first, then the listeners at them, then the proxies of new nodes. In between the
proxies follow Services by themselves.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from zonewise.api.gates import FeatureGates
from zonewise.api.objects.core import Node
from zonewise.api.objects.discovery import EndpointSlice
from zonewise.api.objects.pod import Pod
from zonewise.embedded.network.echo import Echo
from zonewise.embedded.network.instance import Instance
from zonewise.embedded.network.plan import plan
from zonewise.embedded.network.proxies import NodeProxies
from zonewise.embedded.network.wiring import Wiring
from zonewise.runtime.controller.components import ComponentContext

BATCH = 0.1
PATIENCE = 10.0


class ClusterNetwork:
    """Makes the network what the objects say, until it is cancelled."""

    def __init__(self, context: ComponentContext, instance: Instance, gates: FeatureGates) -> None:
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
        self._made = asyncio.Event()
        """Set while everything is as the objects say."""

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
                await asyncio.sleep(BATCH)
                self._wake.clear()
                await self._make()
                if not self._wake.is_set():
                    self._made.set()
        finally:
            self._echo.close()
            await self._proxies.close()

    async def settled(self) -> None:
        """Wait until packets go where the objects say, for a bounded time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._made.wait()
                await self._proxies.written()

    def command(self, node: str, source: str, url: str) -> str:
        """The command for a request from an address on a node."""
        return f"ip netns exec {self._instance.node(node).name} curl --interface {source} {url}"

    def _changed(self, _old: object, _new: object) -> None:
        self._made.clear()
        self._wake.set()

    async def _make(self) -> None:
        wanted = plan(self._nodes, self._pods, self._slices)
        there = await self._wiring.apply(wanted)
        spaces = {name: self._instance.node(name) for name in wanted if name in there}
        await self._echo.apply(
            {
                (spaces[name], at): text
                for name, node in wanted.items()
                if name in there
                for at, text in node.answers.items()
            }
        )
        await self._proxies.apply({name: (space, wanted[name]) for name, space in spaces.items()})
