"""Stores that lag behind what was written: nothing is written twice. Virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest
from msgspec.structs import replace
from tests.controllers.shops import SPACE, Shop
from tests.embedded.living import Living, living, until

from zonewise.api import EndpointSlice
from zonewise.api.meta import ObjectMeta
from zonewise.controllers import HintsController, HintsSettings
from zonewise.controllers.echoes import Echoes
from zonewise.runtime.cache import Cache
from zonewise.runtime.client import Client
from zonewise.runtime.store import Store
from zonewise.runtime.transport import Request, Response, Transport

LAG = 3.0
KEY = (SPACE, "web")


class Late:
    """An answer whose body comes late."""

    def __init__(self, response: Response) -> None:
        self._response = response

    @property
    def status(self) -> int:
        """As the server says."""
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        """As the server says."""
        return self._response.headers

    async def read(self) -> bytes:
        """The whole body."""
        return await self._response.read()

    async def chunks(self) -> AsyncIterator[bytes]:
        """What the server sends, each piece a while later."""
        async for chunk in self._response.chunks():
            await asyncio.sleep(LAG)
            yield chunk

    async def close(self) -> None:
        """Give the connection back."""
        await self._response.close()


class Lagging:
    """A transport whose watches of slices lag behind."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def send(self, request: Request) -> Response:
        """Send a request."""
        response = await self._transport.send(request)
        slow = request.stream and request.path.endswith("/endpointslices")
        return Late(response) if slow else response

    async def close(self) -> None:
        """End every connection."""
        await self._transport.close()


def lagging(cluster: Living) -> tuple[HintsController, list[asyncio.Task[None]]]:
    """A controller that sees slices three seconds late."""
    means = cluster.crew.means("hints")
    client = Client(Lagging(means.client.transport), field_manager="hints")
    cache = Cache(client)
    part = HintsController(
        client=client,
        cache=cache,
        recorder=means.recorder,
        clock=means.clock,
        rng=means.rng,
        settings=HintsSettings(limit=5),
    )
    return part, [asyncio.create_task(cache.run()), asyncio.create_task(part.run())]


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_lagging_watch_makes_no_duplicates() -> None:
    """Pods come faster than slices are seen: no endpoint is ever in two slices, none conflicts."""
    async with living({}) as cluster:
        shop = Shop(cluster)
        part, tasks = lagging(cluster)
        await shop.zones(a=1, b=1)
        await shop.service("web", annotations={})
        twice: list[str] = []

        def look(old: EndpointSlice | None, new: EndpointSlice | None) -> None:
            names = [one.target_ref.name for one in shop.endpoints("web") if one.target_ref]
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


def test_echoes_are_told_from_foreign_edits() -> None:
    """A version we were given is ours once; another is somebody's; nothing noted is somebody's."""
    store: Store[EndpointSlice] = Store()
    echoes = Echoes(store)
    assert echoes.foreign(KEY, None, piece(5))
    echoes.begin(KEY)
    echoes.wrote(KEY, piece(7))
    assert not echoes.end(KEY)
    assert not echoes.foreign(KEY, piece(5), piece(7))
    assert echoes.foreign(KEY, piece(7), piece(8))


def test_echoes_that_come_before_the_answer() -> None:
    """While a Service is written, changes are judged when the answers are there."""
    echoes = Echoes(Store())
    echoes.begin(KEY)
    assert not echoes.foreign(KEY, piece(5), piece(7))
    echoes.wrote(KEY, piece(7))
    assert not echoes.end(KEY)
    echoes.begin(KEY)
    assert not echoes.foreign(KEY, piece(7), piece(8))
    echoes.wrote(KEY, piece(9))
    assert echoes.end(KEY)


def test_a_store_is_behind_until_it_shows_our_writes() -> None:
    """Older than our last write, or with a slice we deleted: behind. Then all is forgotten."""
    store: Store[EndpointSlice] = Store()
    store.apply(piece(5))
    echoes = Echoes(store)
    echoes.begin(KEY)
    echoes.wrote(KEY, piece(7))
    echoes.end(KEY)
    assert echoes.behind(KEY, store.values())
    store.apply(piece(7))
    assert not echoes.behind(KEY, store.values())
    assert not echoes.behind(KEY, store.values())
    echoes.begin(KEY)
    echoes.deleted(KEY, piece(7))
    echoes.end(KEY)
    assert echoes.behind(KEY, store.values())
    assert not echoes.foreign(KEY, piece(7), None)
    store.remove(piece(9))
    assert not echoes.behind(KEY, store.values())


def test_versions_that_are_no_numbers_are_not_waited_for() -> None:
    """A server with other versions gives no order; nobody waits for ever."""
    store: Store[EndpointSlice] = Store()
    echoes = Echoes(store)
    odd = replace(piece(1), metadata=replace(piece(1).metadata, resource_version="abc"))
    store.apply(odd)
    echoes.begin(KEY)
    echoes.wrote(KEY, odd)
    echoes.end(KEY)
    assert not echoes.behind(KEY, store.values())
