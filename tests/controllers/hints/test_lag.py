"""Stores that lag behind writes: nothing is written twice. Virtual time."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace
from tests.controllers.altered_stream import AlteredStream
from tests.controllers.hints.shops import SPACE, Shop
from tests.embedded.virtual_cluster import VirtualCluster, until, virtual_cluster

from zonewise.api import EndpointSlice
from zonewise.api.meta import ObjectMeta
from zonewise.controllers.hints.controller import HintsController, HintsSettings
from zonewise.controllers.hints.own_writes import OwnWrites
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.cache.store import Store
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import Request, Response, Transport

LAG = 3.0
KEY = (SPACE, "web")


async def late(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """What the server sends, each piece later."""
    async for chunk in chunks:
        await asyncio.sleep(LAG)
        yield chunk


class Lagging:
    """A transport whose watches of slices lag behind."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def send(self, request: Request) -> Response:
        """Send a request."""
        response = await self._transport.send(request)
        slow = request.stream and request.path.endswith("/endpointslices")
        return AlteredStream(response, late) if slow else response

    async def close(self) -> None:
        """End every connection."""
        await self._transport.close()


def lagging(cluster: VirtualCluster) -> tuple[HintsController, list[asyncio.Task[None]]]:
    """A controller that sees slices three seconds late."""
    context = cluster.program.context("hints")
    client = Client(Lagging(context.client.transport), field_manager="hints")
    cache = Cache(client)
    part = HintsController(
        dataclasses.replace(context, client=client, cache=cache),
        settings=HintsSettings(limit=5),
    )
    return part, [asyncio.create_task(cache.run()), asyncio.create_task(part.run())]


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_lagging_watch_makes_no_duplicates() -> None:
    """Pods are added faster than slices are seen: no endpoint is ever in two slices."""
    async with virtual_cluster({}) as cluster:
        shop = Shop(cluster)
        part, tasks = lagging(cluster)
        await shop.zones(a=1, b=1)
        await shop.service("web", annotations={})
        twice: list[str] = []

        def look(old: EndpointSlice | None, new: EndpointSlice | None) -> None:
            names = [each.target_ref.name for each in shop.endpoints("web") if each.target_ref]
            twice.extend(name for name in names if names.count(name) > 1)

        shop.slices.on_change(look)
        for number in range(20):
            await shop.pod(f"web-{number}", "ab"[number % 2] + "0", f"10.0.0.{number}")
            await asyncio.sleep(0.7)
        await until(lambda: len(shop.endpoints("web")) == 20)
        assert twice == []
        assert part.controller.stats.errors == 0
        assert part.controller.stats.again > 0
        await asyncio.sleep(30)
        versions = shop.versions()
        await asyncio.sleep(300)
        assert shop.versions() == versions
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def piece(version: int, uid: str = "u1") -> EndpointSlice:
    """A slice at a version."""
    labels = {"kubernetes.io/service-name": "web"}
    meta = ObjectMeta(
        name=f"web-{uid}", namespace=SPACE, uid=uid, resource_version=str(version), labels=labels
    )
    return EndpointSlice(metadata=meta)


def test_own_writes_are_distinguished_from_foreign_edits() -> None:
    """A version that our write got is ours once; any other version is foreign."""
    store: Store[EndpointSlice] = Store()
    own_writes = OwnWrites(store)
    assert own_writes.foreign(KEY, None, piece(5))
    own_writes.begin(KEY)
    own_writes.wrote(KEY, piece(7))
    assert not own_writes.end(KEY)
    assert not own_writes.foreign(KEY, piece(5), piece(7))
    assert own_writes.foreign(KEY, piece(7), piece(8))


def test_own_writes_that_come_before_the_answer() -> None:
    """While a Service is written, changes are judged when the answers are there."""
    own_writes = OwnWrites(Store())
    own_writes.begin(KEY)
    assert not own_writes.foreign(KEY, piece(5), piece(7))
    own_writes.wrote(KEY, piece(7))
    assert not own_writes.end(KEY)
    own_writes.begin(KEY)
    assert not own_writes.foreign(KEY, piece(7), piece(8))
    own_writes.wrote(KEY, piece(9))
    assert own_writes.end(KEY)


def test_a_store_is_behind_until_it_shows_our_writes() -> None:
    """A store is behind while it is older than our last write, or has a slice we deleted; then all
    is forgotten.
    """
    store: Store[EndpointSlice] = Store()
    store.apply(piece(5))
    own_writes = OwnWrites(store)
    own_writes.begin(KEY)
    own_writes.wrote(KEY, piece(7))
    own_writes.end(KEY)
    assert own_writes.behind(KEY)
    store.apply(piece(7))
    assert not own_writes.behind(KEY)
    assert not own_writes.behind(KEY)
    own_writes.begin(KEY)
    own_writes.deleted(KEY, piece(7))
    own_writes.end(KEY)
    assert own_writes.behind(KEY)
    assert not own_writes.foreign(KEY, piece(7), None)
    store.remove(piece(9))
    assert not own_writes.behind(KEY)


def test_versions_that_are_no_numbers_are_not_waited_for() -> None:
    """Versions of such a server have no order, so nothing waits for them."""
    store: Store[EndpointSlice] = Store()
    own_writes = OwnWrites(store)
    odd = replace(piece(1), metadata=replace(piece(1).metadata, resource_version="abc"))
    store.apply(odd)
    own_writes.begin(KEY)
    own_writes.wrote(KEY, odd)
    own_writes.end(KEY)
    assert not own_writes.behind(KEY)
