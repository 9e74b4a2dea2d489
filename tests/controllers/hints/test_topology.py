"""Values of topology keys on slices: the controller keeps them current, alone or beside another."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs
from tests.controllers.hints.shops import SPACE, Shop, hints
from tests.embedded.virtual_cluster import VirtualCluster, until, virtual_cluster

from zonewise.api import EndpointSlice, Node, Pod, Service
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.events import Event
from zonewise.controllers.hints.controller import HintsSettings, SliceRole

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

KEYS = {"zonewise.io/topology-keys": "example.com/rack,topology.kubernetes.io/zone,*"}
VALUES = "zonewise.io/topology"


async def label(shop: Shop, node: str, rack: str | None) -> None:
    await shop.client.patch(Node, node, None, {"metadata": {"labels": {"example.com/rack": rack}}})


def values(shop: Shop) -> list[str]:
    return [piece.metadata.annotations.get(VALUES, "") for piece in shop.of("web")]


async def reasons(cluster: VirtualCluster) -> list[str]:
    return [event.reason for event in await cluster.client.list(Event)]


@pytest.mark.parametrize("role", [SliceRole.OWN, SliceRole.ADOPT, SliceRole.OBSERVE])
async def test_values_follow_nodes_and_keys(role: SliceRole) -> None:
    """Values are on slices, follow a node's label, and go with the keys; observe writes none."""
    async with virtual_cluster({}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1, b=1)
        await label(shop, "a0", "r1")
        if role is not SliceRole.OWN:
            other = hints()(cluster.program.context("other"))
            filling = asyncio.create_task(other.run())
        await shop.service("web", annotations={})
        await shop.pods(a0=1, b0=1)
        if role is not SliceRole.OWN:
            await until(lambda: len(shop.endpoints("web")) == 2)
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)
        part = hints(HintsSettings(role=role))(cluster.program.context("hints"))
        work = asyncio.create_task(part.run())
        await until(lambda: len(shop.endpoints("web")) == 2)
        await shop.client.patch(Service, "web", SPACE, {"metadata": {"annotations": KEYS}})
        if role is SliceRole.OBSERVE:
            await asyncio.sleep(10)
            assert values(shop) == [""]
        else:
            first, second = ((e.addresses or ("",))[0] for e in shop.endpoints("web"))
            text = '{{"{}":{{"example.com/rack":{}}},"{}":{{"example.com/rack":{}}}}}'
            await until(lambda: values(shop) == [text.format(first, '"r1"', second, "null")])
            await label(shop, "b0", "r2")
            await until(lambda: values(shop) == [text.format(first, '"r1"', second, '"r2"')])
            await label(shop, "a0", None)
            await until(lambda: values(shop) == [text.format(first, "null", second, '"r2"')])
            generation = shop.of("web")[0].metadata.resource_version
            await shop.client.patch(Node, "a0", None, {"metadata": {"labels": {"other": "x"}}})
            await asyncio.sleep(10)
            assert shop.of("web")[0].metadata.resource_version == generation
            gone = {"metadata": {"annotations": {"zonewise.io/topology-keys": None}}}
            await shop.client.patch(Service, "web", SPACE, gone)
            await until(lambda: values(shop) == [""])
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def test_values_left_over_are_told_once_they_are_wrong() -> None:
    """A controller that only observes removes no value, but an event tells how to, when one is not
    that of the node any more.
    """
    observing = hints(HintsSettings(role=SliceRole.OBSERVE))
    async with virtual_cluster({"hints": observing}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1)
        await label(shop, "a0", "r1")
        owning = asyncio.create_task(hints()(cluster.program.context("other")).run())
        await shop.service("web", annotations=KEYS)
        await shop.pods(a0=1)
        await until(lambda: '"r1"' in "".join(values(shop)))
        owning.cancel()
        await asyncio.gather(owning, return_exceptions=True)
        await asyncio.sleep(20)
        assert "TopologyLeftOver" not in await reasons(cluster)
        await label(shop, "a0", "r9")
        await asyncio.sleep(20)
        assert '"r1"' in "".join(values(shop))
        assert (await reasons(cluster)).count("TopologyLeftOver") == 1


@pytest.mark.parametrize("role", [SliceRole.OWN, SliceRole.ADOPT])
async def test_an_address_on_another_node_has_that_nodes_values(role: SliceRole) -> None:
    """An address that a pod on another node gets has the values of that node, whoever writes it."""
    async with virtual_cluster({}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=2)
        await label(shop, "a0", "r1")
        await label(shop, "a1", "r2")
        filling = asyncio.create_task(hints()(cluster.program.context("other")).run())
        await shop.service("web", annotations=KEYS)
        await shop.pods(a0=1)
        await until(lambda: '"r1"' in "".join(values(shop)))
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)
        part = hints(HintsSettings(role=role))(cluster.program.context("hints"))
        work = asyncio.create_task(part.run())
        await asyncio.sleep(10)
        piece = shop.of("web")[0]
        (address,) = (piece.endpoints or ())[0].addresses or ()
        if role is SliceRole.OWN:
            await shop.client.delete(Pod, "web-a0-0", SPACE, grace_period=0)
            await shop.pod("successor", "a1", address)
        else:
            body = [{"op": "replace", "path": "/endpoints/0/nodeName", "value": "a1"}]
            await shop.client.patch(EndpointSlice, piece.metadata.name, SPACE, body, kind="json")
        await until(lambda: '"r2"' in "".join(values(shop)))
        assert f'"{address}"' in values(shop)[0]
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def test_values_that_are_too_long_are_told_once() -> None:
    """Above the bound the slice has none, and one event on the Service says why."""
    async with virtual_cluster({"hints": hints()}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1)
        keys = [f"example.com/{letter * 60}" for letter in "abcdefghijklm"]
        labels = {"metadata": {"labels": dict.fromkeys(keys, "v" * 63)}}
        await shop.client.patch(Node, "a0", None, labels)
        joined = {"zonewise.io/topology-keys": ",".join(keys)}
        await shop.service("web", annotations=joined)
        await shop.pods(a0=9)
        await until(lambda: len(shop.endpoints("web")) == 9)
        await asyncio.sleep(10)
        assert values(shop) == [""]
        assert (await reasons(cluster)).count("TopologyTooLong") == 1
        name = shop.of("web")[0].metadata.name
        await shop.client.patch(EndpointSlice, name, SPACE, {"endpoints": []})
        await until(lambda: len(shop.endpoints("web")) == 9)
        await asyncio.sleep(10)
        assert (await reasons(cluster)).count("TopologyTooLong") == 1


@pytest.mark.parametrize("role", [SliceRole.OWN, SliceRole.ADOPT])
async def test_a_node_that_is_registered_again_without_its_label(role: SliceRole) -> None:
    """A Node that is deleted, and registered by its kubelet with its own labels only, has no value
    on the slices from then on.
    """
    async with virtual_cluster({}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1)
        await label(shop, "a0", "r1")
        node = await shop.client.get(Node, "a0")
        filling = asyncio.create_task(hints()(cluster.program.context("other")).run())
        await shop.service("web", annotations=KEYS)
        await shop.pods(a0=1)
        await until(lambda: '"r1"' in "".join(values(shop)))
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)
        part = hints(HintsSettings(role=role))(cluster.program.context("hints"))
        work = asyncio.create_task(part.run())
        await asyncio.sleep(10)
        await shop.client.delete(Node, "a0")
        await asyncio.sleep(10)
        labels = {key: text for key, text in node.metadata.labels.items() if "rack" not in key}
        metadata = ObjectMeta(name="a0", labels=labels)
        await shop.client.create(structs.replace(node, metadata=metadata))
        await until(lambda: '"example.com/rack":null' in "".join(values(shop)))
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
