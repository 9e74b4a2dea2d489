"""What our contestants do."""

from __future__ import annotations

import asyncio
import time
from typing import Any, ClassVar

from benchmarks.runtime.clients import SECONDS, SERVICE, START, Measured, Meter
from zonewise.api.meta import Object
from zonewise.api.objects.discovery import (
    EndpointConditions,
    EndpointHints,
    EndpointPort,
    EndpointSlice,
)
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct
from zonewise.runtime.cache.reflector import Reflector
from zonewise.runtime.cache.store import Store
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.scope import Scope
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.client.watch import Watch
from zonewise.runtime.config.cluster import ClusterConfig
from zonewise.runtime.process.memory import freeze_heap


class Backend(Struct):
    """What a proxy wants to know of an endpoint: its own zone does not matter, its hints do."""

    addresses: tuple[str, ...] | None = ()
    conditions: EndpointConditions = EndpointConditions()
    node_name: str | None = None
    hints: EndpointHints | None = None


class Backends(Object):
    """What a proxy wants to know of an EndpointSlice."""

    resource: ClassVar[Resource] = EndpointSlice.resource

    address_type: str = ""
    endpoints: tuple[Backend, ...] | None = ()
    ports: tuple[EndpointPort, ...] | None = ()


def client(url: str) -> Client:
    return Client(HttpsTransport(ClusterConfig(server=url)))


def service(item: Any) -> tuple[str]:
    return (item.metadata.labels[SERVICE],)


def nodes(item: Any) -> set[str]:
    return {endpoint.node_name for endpoint in item.endpoints}


async def fill(url: str, cls: Any, *, compact: bool) -> Store[Any]:
    """Run a reflector until its store is synced."""
    store: Store[Any] = Store({"service": service, "node": nodes}, compact=compact)
    async with client(url) as connection:
        reflector = Reflector(connection, cls, store)
        task = asyncio.create_task(reflector.run())
        await reflector.synced.wait()
        task.cancel()
        await asyncio.wait([task])
    assert len(store) == 1000
    assert len(store.by("service", "service-7")[0].endpoints) == 100
    assert len(store.keys_by("node", next(iter(store.index_values("node"))))) > 100
    return store


async def follow(url: str, cls: Any, endpoints: int, *, compact: bool) -> Measured:
    """Apply events to a store for a while."""
    store: Store[Any] = Store(compact=compact)
    freeze_heap()
    async with client(url) as connection:
        scope = Scope(cls, label_selector=f"endpoints={endpoints}")
        watch = Watch(connection, scope, resource_version=START)
        meter = Meter()
        try:
            while True:
                for event in await watch.batch():
                    assert store.apply(event.object)
                    meter.count += 1
                    if meter.count == 0:
                        meter.start()
                if time.perf_counter() - meter.begin > SECONDS:
                    return meter.result()
        finally:
            await watch.close()
