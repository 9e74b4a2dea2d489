"""The proxy of node n1 on a cluster in memory, with a kernel in memory that a test looks into."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from tests.embedded.virtual_cluster import VirtualCluster, until, virtual_cluster
from tests.proxy.remembering_kernel import NODE, SERVICE, Remembering

from zonewise.api.meta import Key
from zonewise.api.objects.discovery import EndpointSlice
from zonewise.api.unstructured import unstructured
from zonewise.proxy.observer import Observer, Sync
from zonewise.proxy.proxier import Proxier
from zonewise.proxy.settings import ProxySettings
from zonewise.runtime.cache.cache import Cache
from zonewise.traffic.routes.table import ServiceRoutes

SLICE = unstructured(EndpointSlice.resource)


class RecordingObserver(Observer):
    """Records which Services were computed again, and the last routes of each."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.routes: dict[Key, ServiceRoutes | None] = {}
        self.syncs: list[Sync] = []
        self.failures = 0
        self.refusals: list[Key] = []
        self.batches: list[list[Key]] = []
        self._batch: list[Key] = []

    def routed(self, key: Key, routes: ServiceRoutes | None) -> None:
        self.keys.append(key)
        self._batch.append(key)
        self.routes[key] = routes

    def paths(self, name: str) -> list[str]:
        """The paths of the last routes of a Service."""
        routes = self.routes.get(("default", name))
        return [] if routes is None else [row["path"] for row in routes.rows()]

    def synced(self, sync: Sync) -> None:
        self.syncs.append(sync)
        self.batches.append(self._batch)
        self._batch = []

    def refused(self, key: Key, error: Exception) -> None:
        self.refusals.append(key)

    def failed(self, error: Exception) -> None:
        self.failures += 1


class Trial:
    """The proxy of node n1, with a kernel in memory and an observer."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.client = cluster.client
        self.kernel = Remembering()
        self.observer = RecordingObserver()
        self.cache = Cache(cluster.server.connect("proxy"))
        self.proxier = Proxier(self.cache, self.kernel, ProxySettings(node_name="n1"))
        self.proxier.observers = (self.observer,)

    async def node(self, name: str, **labels: str) -> None:
        named = {"topology.kubernetes.io/zone": labels.pop("zone", "a")} | labels
        await self.client.create(NODE({"metadata": {"name": name, "labels": named}}))

    async def service(
        self, name: str, *nodes: str, keys: str = "", hints: str = "", **spec: Any
    ) -> str:
        notes = {"zonewise.io/topology-keys": keys} if keys else {}
        metadata = {"name": name, "namespace": "default", "annotations": notes}
        ports = [{"name": "p", "port": 80, "targetPort": 8080}]
        body = {"metadata": metadata, "spec": {"ports": ports, **spec}}
        created = await self.client.create(SERVICE(body))
        await self.endpoints(name, *nodes, hints=hints)
        return str(created.raw["spec"]["clusterIP"])

    async def endpoints(self, service: str, *nodes: str, hints: str = "") -> None:
        body = {
            "metadata": {"labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4",
            "ports": [{"name": "p", "port": 8080, "protocol": "TCP"}],
            "endpoints": [
                {
                    "addresses": [f"10.244.0.{number}"],
                    "nodeName": node,
                    "conditions": {"ready": True},
                    **({"hints": {"forZones": [{"name": hints[number]}]}} if hints else {}),
                }
                for number, node in enumerate(nodes)
            ],
        }
        await self.client.apply(SLICE, f"{service}-x", "default", body, force=True)

    async def reaches(self, address: str, *last: int) -> None:
        expected = {f"10.244.0.{number}" for number in last}
        await until(lambda: self.kernel.chosen(address) == expected)


@asynccontextmanager
async def trial(*, run: bool = True) -> AsyncIterator[Trial]:
    async with virtual_cluster({}) as cluster:
        proxy = Trial(cluster)
        await proxy.node("n1")
        tasks = [asyncio.create_task(proxy.cache.run())]
        if run:
            tasks.append(asyncio.create_task(proxy.proxier.run()))
        try:
            yield proxy
            for task in tasks:
                assert not task.done(), task
        finally:
            for task in reversed(tasks):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            proxy.kernel.heard.close()
