"""Our hints on slices that another controller writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tests.embedded.virtual_cluster import until, virtual_cluster
from tests.explain.dumps import AUTO, Item, endpoint, node, part, service

from zonewise.api import EndpointSlice, FeatureGates, Node, Service, convert
from zonewise.api.values.selector import parse
from zonewise.embedded.machinery.patch import jsonpatch
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.webhook.admission import AdmissionRequest, Allowed, UserInfo
from zonewise.webhook.hints import HintInjection, InjectionSettings

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

OURS = {"managed-by": "endpointslice-controller.k8s.io"}
WRITER = "system:serviceaccount:zonewise:zonewise"
TOLERATED = AUTO | {"zonewise.io/share-nodes": "tolerated"}


def six(*, hints: bool = False, name: str = "web-1") -> Item:
    """Two endpoints in each of three zones."""
    rows = [
        endpoint(f"10.0.0.{n}", zone, hints=[zone] if hints else [])
        for n, zone in enumerate("aabbcc")
    ]
    return part(rows, name=name, **OURS)


@asynccontextmanager
async def injection(
    *items: Item, settings: InjectionSettings | None = None
) -> AsyncIterator[HintInjection]:
    """The handler over a cluster of three equal zones with these objects."""
    async with virtual_cluster({}) as cluster:
        for item in [node(f"n-{zone}", zone, row=f"r-{zone}") for zone in "abc"]:
            stored = await cluster.client.create(convert(Node, item))
            body = {"status": item["status"]}
            await cluster.client.patch(Node, stored.metadata.name, None, body, subresource="status")
        kinds: dict[str, type[Any]] = {"Service": Service, "EndpointSlice": EndpointSlice}
        for item in items:
            await cluster.client.create(convert(kinds[item["kind"]], item))
        cache = Cache(cluster.client)
        handler = HintInjection(cache, settings or InjectionSettings(writer=WRITER))
        work = asyncio.create_task(cache.run())
        await cache.synced()
        try:
            yield handler
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


async def written(
    handler: HintInjection, new: Item, old: Item | None = None, *, by: str = "kcm"
) -> Item:
    """The slice as the API server would store it."""
    answer = await handler(
        AdmissionRequest(
            uid="1",
            namespace="default",
            operation="UPDATE" if old else "CREATE",
            user_info=UserInfo(username=by),
            object=msgspec.Raw(msgspec.json.encode(new)),
            old_object=msgspec.Raw(msgspec.json.encode(old)),
        )
    )
    assert isinstance(answer, Allowed)
    patch = msgspec.json.decode(msgspec.json.encode(answer.patch))
    result: Item = jsonpatch.apply(new, patch)
    return result


def zones(piece: Item) -> list[list[str]]:
    """The zones each endpoint is for."""
    return [
        [zone["name"] for zone in row.get("hints", {}).get("forZones", [])]
        for row in piece["endpoints"]
    ]


def own(rows: Iterable[str]) -> list[list[str]]:
    """Each endpoint for its own zone."""
    return [[zone] for zone in rows]


async def test_a_write_that_only_strips_hints_is_no_write() -> None:
    """The result equals what is stored, so the server writes nothing."""
    hinted = six(hints=True)
    async with injection(service(), hinted) as handler:
        assert await written(handler, six(), hinted) == hinted
        foreign = six()
        for row in foreign["endpoints"]:
            row["hints"] = {"forZones": [{"name": "a"}]}
        assert await written(handler, foreign, hinted) == hinted


async def test_the_first_slice_of_a_service() -> None:
    """The first slice of a Service is stored with its hints."""
    async with injection(service()) as handler:
        assert zones(await written(handler, six())) == own("aabbcc")


async def test_new_endpoints() -> None:
    """New endpoints get hints; existing ones keep theirs, in this slice and in others."""
    hinted = six(hints=True)
    more = part([endpoint("10.0.1.1", "a"), endpoint("10.0.1.2", ready=False)], name="x", **OURS)
    async with injection(service(), hinted) as handler:
        assert zones(await written(handler, more)) == [["a"], []]
        grown = six()
        grown["endpoints"].append(endpoint("10.0.0.9", "b"))
        assert zones(await written(handler, grown, hinted)) == own("aabbccb")


async def test_hints_are_removed_with_their_endpoints() -> None:
    """Where too few endpoints are left, the rest is stored without hints."""
    hinted = six(hints=True)
    fewer = six(hints=True)
    fewer["endpoints"] = fewer["endpoints"][:2]
    async with injection(service(), hinted) as handler:
        assert zones(await written(handler, fewer, hinted)) == [[], []]


async def test_what_is_left_unchanged() -> None:
    """Writes of our controller, foreign slices, and slices of Services without hints or unknown are
    not changed.
    """
    silent = service("silent", annotations={})
    async with injection(service(), silent) as handler:
        for new, by in (
            (six(), WRITER),
            (part(six()["endpoints"]), "kcm"),
            (part(six()["endpoints"], of="silent", **OURS), "kcm"),
            (part(six()["endpoints"], of="nowhere", **OURS), "kcm"),
        ):
            assert await written(handler, new, by=by) == new


@pytest.mark.parametrize("field", ["services", "namespaces"])
async def test_services_that_are_not_selected(field: str) -> None:
    """A gradual rollout does not change slices of Services that are not selected."""
    chosen: dict[str, Any] = {field: parse("rollout=yes")}
    async with injection(service(), settings=InjectionSettings(**chosen)) as handler:
        assert await written(handler, six()) == six()


async def test_shares_that_depend_on_pods() -> None:
    """Hints by shares that depend on pods are carried over, and new endpoints get their own zone;
    otherwise none are added.
    """
    hinted = six(hints=True)
    hinted["endpoints"][0]["hints"] = {"forZones": [{"name": "c"}]}
    grown = six()
    grown["endpoints"].append(endpoint("10.0.0.9", "b"))
    async with injection(service(annotations=TOLERATED), hinted) as handler:
        assert zones(await written(handler, grown, hinted)) == own("cabbccb")
        assert await written(handler, grown, six()) == grown


async def test_nodes_change() -> None:
    """Shares follow the nodes that count; other changes of nodes cost nothing."""
    async with virtual_cluster({}) as cluster:
        handler = HintInjection(cache := Cache(cluster.client))
        work = asyncio.create_task(cache.run())
        await cache.synced()
        assert handler.shares().zones == ()
        ready = node("n-a", "a")
        await cluster.client.create(convert(Node, ready))
        body = {"status": ready["status"]}
        await cluster.client.patch(Node, "n-a", None, body, subresource="status")
        await until(lambda: bool(handler.shares().zones))
        known = handler.shares()
        mark = {"metadata": {"annotations": {"seen": "yes"}}}
        await cluster.client.patch(Node, "n-a", None, mark)
        await until(lambda: all(each.metadata.annotations for each in cache.store(Node)))
        assert handler.shares() is known
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


@pytest.mark.parametrize("mode", ["Auto", "zonewise.io/weighted"])
async def test_without_the_gate_hints_of_the_built_in_controller_are_removed(mode: str) -> None:
    """The built-in controller still writes hints of the annotation; they do not reach the slice."""
    settings = InjectionSettings(writer=WRITER, gates=FeatureGates({"TopologyAwareHints": False}))
    web = service(annotations={"service.kubernetes.io/topology-mode": mode})
    async with injection(web, settings=settings) as handler:
        assert zones(await written(handler, six(hints=True))) == [[]] * 6


async def test_without_the_gate_a_traffic_distribution_is_hinted() -> None:
    """trafficDistribution has a gate of its own, so its hints stay."""
    settings = InjectionSettings(writer=WRITER, gates=FeatureGates({"TopologyAwareHints": False}))
    web = service(trafficDistribution="PreferClose")
    async with injection(web, settings=settings) as handler:
        assert zones(await written(handler, six())) == own("aabbcc")


async def test_values_of_topology_keys_are_put_on_a_slice() -> None:
    """A slice of a Service with keys is written with the labels of its nodes, whatever it had."""
    keys = {"zonewise.io/topology-keys": "row,*"}
    for requested in (keys, keys | AUTO, keys | TOLERATED):
        async with injection(service(annotations=requested)) as handler:
            new = part([endpoint("10.0.0.1", "a", on="n-a")], **OURS)
            values = {"zonewise.io/topology": '{"10.0.0.1":{"row":"r-a"}}'}
            stored = await written(handler, new)
            assert stored["metadata"]["annotations"] == values
            other = {"zonewise.io/topology": "{}", "mine": "1"}
            new["metadata"]["annotations"] = other
            stored = await written(handler, new, stored)
            assert stored["metadata"]["annotations"] == values | {"mine": "1"}
            new["metadata"]["annotations"] = stored["metadata"]["annotations"]
            new["endpoints"][0]["nodeName"] = "n-b"
            stored = await written(handler, new, stored)
            moved = {"zonewise.io/topology": '{"10.0.0.1":{"row":"r-b"}}', "mine": "1"}
            assert stored["metadata"]["annotations"] == moved, "an address on another node"


async def test_values_of_keys_that_a_service_does_not_have_are_taken_off() -> None:
    """The annotation goes with the keys, even if the Service asks for nothing."""
    async with injection(service(annotations={})) as handler:
        new = part([endpoint("10.0.0.1", "a")], **OURS)
        new["metadata"]["annotations"] = {"zonewise.io/topology": '{"10.0.0.1":{"row":"r1"}}'}
        stored = await written(handler, new)
        assert stored["metadata"]["annotations"] == {}
