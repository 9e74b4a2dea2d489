"""A running locators controller on a virtual cluster, with all its requests counted."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.controllers.hints.shops import SPACE, Shop
from tests.embedded.virtual_cluster import VirtualCluster

from zonewise.api import Pod
from zonewise.api.objects.apiextensions import CustomResourceDefinition
from zonewise.api.objects.locator import PodLocator
from zonewise.controllers.locators.controller import LocatorsController, LocatorsSettings
from zonewise.controllers.locators.definition import definition
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import Request, Response, Transport
from zonewise.runtime.monitoring.metrics import Metrics
from zonewise.topology.locator_index import LabelInterner
from zonewise.topology.pod_locators import label_interning

ZONE = "topology.kubernetes.io/zone"


class Counting:
    """A transport that counts requests other than watches and lists."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.requests: Counter[str] = Counter()

    async def send(self, request: Request) -> Response:
        if request.method != "GET":
            self.requests[request.method] += 1
        elif "podlocators/" in request.path:
            self.requests["GET"] += 1
        return await self._inner.send(request)

    async def close(self) -> None:
        await self._inner.close()


class LocatorsRun:
    """A running controller, the requests that it sent, and their causes."""

    def __init__(self, shop: Shop, cluster: VirtualCluster, settings: LocatorsSettings) -> None:
        self.shop = shop
        self.transport = Counting(cluster.server.connect("locators").transport)
        client = Client(self.transport)
        self.cache = Cache(client, transforms={PodLocator: label_interning(LabelInterner())})
        self.locators = self.cache.store(PodLocator)
        self.pods = self.cache.store(Pod)
        metrics = Metrics()
        self.registry = metrics.registry
        context = dataclasses.replace(
            cluster.program.context("locators"), client=client, cache=self.cache, metrics=metrics
        )
        self.controller = LocatorsController(context, settings)

    def of(self, name: str) -> tuple[list[str], str, dict[str, str]] | None:
        """Addresses, node and labels in the locator of a pod."""
        locator = self.locators.get((SPACE, name))
        if locator is None:
            return None
        addresses = [address.ip for address in locator.ips or ()]
        return addresses, locator.node_name, dict(locator.node_labels or {})

    def causes(self) -> dict[tuple[str, str], int]:
        """Writes by operation and cause."""
        return {
            (sample.labels["operation"], sample.labels["cause"]): int(sample.value)
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == "zonewise_locator_writes_total"
        }

    async def count_requests(self) -> dict[str, int]:
        """The requests since the last time, after everything has come to rest."""
        await asyncio.sleep(60)
        requests = dict(self.transport.requests)
        self.transport.requests.clear()
        return requests


@asynccontextmanager
async def running(
    cluster: VirtualCluster, shop: Shop, settings: LocatorsSettings | None = None
) -> AsyncIterator[LocatorsRun]:
    """A controller over a cluster, stopped at the end."""
    run = LocatorsRun(shop, cluster, settings or LocatorsSettings())
    tasks = [
        asyncio.create_task(run.cache.run()),
        asyncio.create_task(run.controller.run()),
    ]
    try:
        yield run
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def define_locators(cluster: VirtualCluster) -> Shop:
    """A cluster that knows PodLocators."""
    body = definition()
    name = body["metadata"]["name"]
    await cluster.client.apply(CustomResourceDefinition, name, None, body)
    return Shop(cluster)


def stamp(number: int) -> str:
    """A time as kubelets write it."""
    return f"2026-01-02T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}Z"
