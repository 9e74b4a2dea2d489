"""Heavy load: many endpoints, zones renamed quickly, nodes that flap, a server that fails often."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from tests.controllers.altered_stream import Alteration, AlteredStream
from tests.controllers.hints.shops import SPACE, Shop, hints
from tests.embedded.virtual_cluster import VirtualCluster, until, virtual_cluster

from zonewise.api import EndpointSlice, Node, Pod
from zonewise.api.errors import ServerError, Status
from zonewise.controllers.hints.controller import HintsController
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import Request, Response, Transport
from zonewise.runtime.program.context import ControllerContext

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

ZONE = "topology.kubernetes.io/zone"
SLICE = 100


async def crowd(shop: Shop, number: int, *, per_node: int, zones: str = "abc") -> None:
    """A Service with this many ready endpoints, distributed over the zones."""
    nodes = number // per_node
    await asyncio.gather(
        *(shop.node(f"{zones[n % len(zones)]}{n}", zones[n % len(zones)]) for n in range(nodes))
    )
    await shop.service("web")
    pods = ((f"{zones[n % nodes % len(zones)]}{n % nodes}", n) for n in range(number))
    await asyncio.gather(
        *(shop.pod(f"web-{n}", node, f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}") for node, n in pods)
    )


async def rename(shop: Shop, old: str, new: str) -> None:
    """Rename a zone, node by node, as a script would."""
    for node in await shop.client.list(Node):
        if node.metadata.labels.get(ZONE) == old:
            await shop.client.patch(
                Node, node.metadata.name, None, {"metadata": {"labels": {ZONE: new}}}
            )


def matched(shop: Shop, zones: set[str]) -> bool:
    """Whether every endpoint has the zone of its node, and a hint for an existing zone."""
    home = {
        n.metadata.name: n.metadata.labels[ZONE] for n in shop.cluster.program.cache.store(Node)
    }
    return set(shop.per_zone()) == zones and all(
        endpoint.zone == home[endpoint.node_name or ""] for endpoint in shop.endpoints("web")
    )


class Writes:
    """Counts the writes of slices."""

    number = 0

    def __init__(self, shop: Shop) -> None:
        shop.slices.on_change(self._count)
        self.number = 0

    def _count(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        del old, new
        self.number += 1


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_service_of_5000_endpoints() -> None:
    """A Service of 5,000 endpoints has each of them once, in full slices; a later change of one
    writes one slice.
    """
    async with virtual_cluster({"hints": hints()}) as cluster:
        shop = Shop(cluster)
        await crowd(shop, 5000, per_node=50)
        await until(lambda: matched(shop, {"a", "b", "c"}) and len(shop.endpoints("web")) == 5000)
        names = Counter(endpoint.addresses for endpoint in shop.endpoints("web"))
        assert max(names.values()) == 1, "no endpoint is there twice"
        assert len(shop.of("web")) <= 5000 // SLICE + 5
        assert shop.condition() == ("True", "Hinted")
        await asyncio.sleep(5)
        writes = Writes(shop)
        await shop.ready("web-7", "10.0.0.7", ready=False)
        await until(lambda: writes.number > 0)
        await asyncio.sleep(30)
        assert writes.number == 1, "one endpoint is one slice"


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_zones_renamed_thrice_in_a_hurry() -> None:
    """After the last name every endpoint has its node's zone and a hint, within seconds."""
    async with virtual_cluster({"hints": hints()}) as cluster:
        shop = Shop(cluster)
        await crowd(shop, 2700, per_node=30)
        await until(lambda: matched(shop, {"a", "b", "c"}))
        await asyncio.sleep(5)
        writes = Writes(shop)
        for old, new in (("a", "x"), ("x", "y"), ("y", "z")):
            await rename(shop, old, new)
        await until(lambda: matched(shop, {"z", "b", "c"}), within=5.0)
        assert shop.condition() == ("True", "Hinted")
        done = writes.number
        await asyncio.sleep(60)
        assert writes.number == done, "nothing is written any more"
        assert done <= 4 * len(shop.of("web")), "each name is at most one round of writes"


@pytest.mark.slow
async def test_nodes_that_flap_a_hundred_times_a_second() -> None:
    """Writes are bounded by time, not by flaps, and the end state is that without flaps."""
    async with virtual_cluster({"hints": hints()}) as cluster:
        shop = Shop(cluster)
        await crowd(shop, 300, per_node=10)
        await until(lambda: matched(shop, {"a", "b", "c"}))
        await asyncio.sleep(5)
        names = sorted(node.metadata.name for node in cluster.program.cache.store(Node))
        rng, writes = random.Random(7), Writes(shop)
        up = dict.fromkeys(names, True)
        for _ in range(1000):
            name = rng.choice(names)
            up[name] = not up[name]
            await shop.status(name, ready=up[name])
            await asyncio.sleep(0.01)
        assert writes.number <= 150 * len(shop.of("web")), "a round for each pause, at most"
        for name in names:
            await shop.status(name, ready=True)
        await until(lambda: matched(shop, {"a", "b", "c"}))
        await asyncio.sleep(10)
        done = writes.number
        await asyncio.sleep(60)
        assert writes.number == done


def cut(rng: random.Random) -> Alteration:
    """Streams end in the middle, some with a 410."""

    async def some(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            yield chunk
            match rng.randrange(12):
                case 0:
                    yield (
                        b'{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1",'
                        b'"metadata":{},"status":"Failure","message":"too old resource version",'
                        b'"reason":"Expired","code":410}}\n'
                    )
                    return
                case 1:
                    return
                case 2:
                    raise ServerError(Status(message="the connection broke", code=502))

    return some


class Stormy:
    """A transport to a server that fails every third request for some time."""

    def __init__(self, transport: Transport, rng: random.Random) -> None:
        self._transport = transport
        self._rng = rng
        self.raging = True
        self.failed: Counter[str] = Counter()

    async def send(self, request: Request) -> Response:
        """Send a request, or fail before or after the server has seen it."""
        if not self.raging:
            return await self._transport.send(request)
        fate = self._rng.randrange(9)
        if fate == 0:
            self.failed["before"] += 1
            code = self._rng.choice((429, 500, 503, 504))
            raise ServerError(Status(message="storm", code=code))
        response = await self._transport.send(request)
        if request.stream:
            return AlteredStream(response, cut(self._rng))
        if fate == 1:
            self.failed["after"] += 1
            await response.read()
            raise ServerError(Status(message="storm", code=504))
        return response

    async def close(self) -> None:
        """End every connection."""
        await self._transport.close()


def stormy(
    cluster: VirtualCluster, seed: int
) -> tuple[Stormy, HintsController, asyncio.Task[None]]:
    """The controller with its own cache, both with such a transport."""
    context: ControllerContext = cluster.program.context("hints")
    storm = Stormy(context.client.transport, random.Random(seed))
    client = Client(storm, field_manager="hints")
    cache = Cache(client)
    part = HintsController(
        dataclasses.replace(context, client=client, cache=cache, rng=random.Random(seed))
    )

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(cache.run())
            tasks.create_task(part.run())

    return storm, part, asyncio.create_task(run())


@pytest.mark.parametrize("seed", range(4))
async def test_a_server_that_fails_often(seed: int) -> None:
    """After 410s, 429s, 5xx, cut streams and writes with lost answers the end state is right."""
    async with virtual_cluster({}) as cluster:
        for kind in (EndpointSlice, Node, Pod):
            cluster.program.cache.store(kind)
        shop = Shop(cluster)
        storm, _, work = stormy(cluster, seed)
        try:
            await shop.zones(a=2, b=2, c=2)
            await shop.service("web")
            await shop.service("other")
            rng = random.Random(seed)
            for round_ in range(20):
                node = rng.choice(("a0", "a1", "b0", "b1", "c0", "c1"))
                address = f"10.9.{round_}.1"
                await shop.pod(f"p{round_}", node, address, app=rng.choice(("web", "other")))
                if round_ % 5 == 4:
                    await shop.client.delete(Pod, f"p{round_ - 2}", SPACE, grace_period=0)
                await asyncio.sleep(3)
            assert sum(storm.failed.values()) >= 3
            storm.raging = False

            def right() -> bool:
                want = {
                    app: sorted(
                        pod.status.pod_ip
                        for pod in cluster.program.cache.store(Pod)
                        if pod.metadata.labels["app"] == app
                    )
                    for app in ("web", "other")
                }
                have = {
                    app: sorted(
                        ip for endpoint in shop.endpoints(app) for ip in endpoint.addresses or ()
                    )
                    for app in want
                }
                return want == have

            await until(right, within=1100.0)
            await asyncio.sleep(5)
            assert right(), "nothing is there twice, and nothing comes back"
            assert not work.done()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
