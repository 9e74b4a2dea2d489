"""Servers that differ: older ones, failing ones, ones whose namespace is deleted. Virtual time."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable

import pytest
from tests.controllers.hints.shops import SPACE, Shop
from tests.embedded.virtual_cluster import until, virtual_cluster

from zonewise.api import Service
from zonewise.api.errors import ServerError, Status
from zonewise.controllers.hints.controller import HintsController, HintsSettings, SliceRole
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import Request, Response, Transport
from zonewise.runtime.monitoring.metrics import Metrics
from zonewise.runtime.program.context import ControllerContext
from zonewise.traffic.modes import MODE_ANNOTATION

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


class Between:
    """A transport that lets a test change, or refuse, requests."""

    def __init__(self, transport: Transport, change: Callable[[Request], Request]) -> None:
        self._transport = transport
        self._change = change

    async def send(self, request: Request) -> Response:
        """Send what the test makes of a request."""
        return await self._transport.send(self._change(request))

    async def close(self) -> None:
        """End every connection."""
        await self._transport.close()


def between(
    change: Callable[[Request], Request],
    metrics: Metrics | None = None,
    settings: HintsSettings | None = None,
) -> Callable[[ControllerContext], HintsController]:
    """The controller, with a transport that changes its requests."""

    def make(context: ControllerContext) -> HintsController:
        return HintsController(
            dataclasses.replace(
                context,
                client=Client(Between(context.client.transport, change), field_manager="hints"),
                metrics=metrics,
            ),
            settings,
        )

    return make


def older(request: Request) -> Request:
    """A server that does not know node hints drops them."""
    if request.body is None or b"forNodes" not in request.body:
        return request
    body = json.loads(request.body)
    for endpoint in body["endpoints"]:
        endpoint["hints"].pop("forNodes", None)
    return Request(
        method=request.method,
        path=request.path,
        query=request.query,
        headers=request.headers,
        body=json.dumps(body).encode(),
    )


async def test_servers_without_node_hints() -> None:
    """On older servers PreferSameNode hints zones, without repeated writes."""
    async with virtual_cluster({"hints": between(older)}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1, b=1)
        await shop.service("web", annotations={}, trafficDistribution="PreferSameNode")
        await shop.pods(a0=2, b0=1)
        await until(lambda: shop.per_zone() == {"a": 2, "b": 1})
        await asyncio.sleep(30)
        versions = shop.versions()
        await shop.client.patch(Service, "web", SPACE, {"metadata": {"labels": {"x": "y"}}})
        await until(lambda: shop.versions() != versions)
        generation = shop.of("web")[0].metadata.generation
        await asyncio.sleep(600)
        assert shop.of("web")[0].metadata.generation == generation


class Failing:
    """A server that refuses the first writes of slices."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.moments: list[float] = []

    def __call__(self, request: Request) -> Request:
        if "endpointslices" in request.path and request.method != "GET" and self.left:
            self.left -= 1
            self.moments.append(asyncio.get_running_loop().time())
            raise ServerError(Status(message="not now", code=500))
        return request


async def settled(shop: Shop) -> None:
    """One Service with two pods, in a cluster at rest."""
    await shop.zones(a=1)
    await shop.pods(a0=2)
    await asyncio.sleep(5)
    await shop.service("web", annotations={})


async def test_retries_back_off() -> None:
    """A failed write is repeated after 1 s, 2 s, 4 s, each up to a quarter less, until it works."""
    failing = Failing(5)
    async with virtual_cluster({"hints": between(failing)}) as cluster:
        shop = Shop(cluster)
        await settled(shop)
        await until(lambda: len(shop.endpoints("web")) == 2)
        pauses = [b - a for a, b in zip(failing.moments, failing.moments[1:], strict=False)]
        assert len(pauses) == 4
        for number, pause in enumerate(pauses):
            assert 0.75 * 2**number <= pause <= 2**number + 0.1


async def test_a_service_that_cannot_be_written_rests() -> None:
    """After 15 failed attempts a Service is left until something about it changes."""
    failing = Failing(15)
    async with virtual_cluster({"hints": between(failing)}) as cluster:
        shop = Shop(cluster)
        await settled(shop)
        await asyncio.sleep(8_000)
        assert (failing.left, shop.of("web")) == (0, [])
        await shop.client.patch(Service, "web", SPACE, {"metadata": {"labels": {"x": "y"}}})
        await until(lambda: len(shop.endpoints("web")) == 2)


async def test_metrics() -> None:
    """Metrics have upstream's names and labels, the KEP's approach, and Services by mode and
    reason.
    """
    metrics = Metrics()
    async with virtual_cluster({"hints": between(lambda request: request, metrics)}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1, b=1)
        await shop.service("web")
        await shop.service("api", annotations={}, trafficDistribution="PreferClose")
        for mode in ("shared", "weighted"):
            await shop.service(mode, annotations={MODE_ANNOTATION: f"zonewise.io/{mode}"})
        await shop.pods(a0=2, b0=2)
        await until(lambda: shop.per_zone() == {"a": 2, "b": 2})
        text = metrics.render().decode()
    for line in (
        'endpoint_slice_controller_syncs_total{result="success"}',
        'endpoint_slice_controller_changes_total{operation="create"} 4.0',
        "endpoint_slice_controller_endpointslices_changed_per_sync_count"
        '{approach="auto",topology="Auto",traffic_distribution=""}',
        "endpoint_slice_controller_endpoints_added_per_sync_sum 4.0",
        "endpoint_slice_controller_endpoints_desired 4.0",
        "endpoint_slice_controller_num_endpoint_slices 4.0",
        "endpoint_slice_controller_desired_endpoint_slices 4.0",
        "endpoint_slice_controller_services_count_by_traffic_distribution"
        '{traffic_distribution="PreferClose"} 1.0',
        'zonewise_hints_services{mode="Auto",reason="Hinted",state="hinted"} 1.0',
        'zonewise_hints_services{mode="zonewise.io/shared",reason="NoEndpoints",state="unhinted"}'
        " 1.0",
        "endpoint_slice_controller_endpointslices_changed_per_sync_count"
        '{approach="auto",topology="zonewise.io/weighted",traffic_distribution=""}',
        'zonewise_hints_services{mode="PreferSameZone",reason="NoEndpoints",state="unhinted"} 1.0',
    ):
        assert f"\n{line}" in text, line


async def test_metrics_where_slices_are_only_observed() -> None:
    """Observe counts syncs and the approach too: the feature is in use, and no slice is changed."""
    metrics = Metrics()
    settings = HintsSettings(role=SliceRole.OBSERVE)
    parts = {
        "hints": between(lambda request: request),
        "watcher": between(lambda request: request, metrics, settings),
    }
    async with virtual_cluster(parts) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1, b=1)
        await shop.service("web")
        await shop.pods(a0=2, b0=2)
        await until(lambda: shop.per_zone() == {"a": 2, "b": 2})
        await asyncio.sleep(1)
    read = metrics.registry.get_sample_value
    labels = {"approach": "auto", "topology": "Auto", "traffic_distribution": ""}
    changed = "endpoint_slice_controller_endpointslices_changed_per_sync"
    synced = read("endpoint_slice_controller_syncs_total", {"result": "success"})
    assert synced is not None and synced > 0
    assert (read(f"{changed}_count", labels) or 0) > 0
    assert read(f"{changed}_sum", labels) == 0
    assert read("endpoint_slice_controller_changes_total", {"operation": "create"}) is None


async def test_each_sync_that_fails_is_counted() -> None:
    """A turn whose request is refused is an error, each time it is tried again."""
    metrics = Metrics()
    failing = Failing(3)
    async with virtual_cluster({"hints": between(failing, metrics)}) as cluster:
        shop = Shop(cluster)
        await settled(shop)
        await until(lambda: len(shop.endpoints("web")) == 2)
    read = metrics.registry.get_sample_value
    assert read("endpoint_slice_controller_syncs_total", {"result": "error"}) == 3
