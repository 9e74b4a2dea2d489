"""Real kube-proxies, one per zone, send real connections where our hints say.

Each zone is a network namespace with kube-proxy (nftables) of a node there; see ``zonenet``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from fractions import Fraction
from math import sqrt

import pytest
from tests.kubernetes.crowd import ZONES, Crowd
from tests.kubernetes.installed import Installed, cluster, complete
from tests.kubernetes.kubeproxies import ZoneNet, zone_nets

from tools import realkube as real
from zonewise.api import EndpointSlice, Node, Service
from zonewise.api.objects.discovery import service_name_of
from zonewise.runtime.cache.cache import Cache
from zonewise.topology.nodes import cpu_milli, zone_of
from zonewise.traffic.endpoint import TrafficEndpoint, read_as_proxy
from zonewise.traffic.modes import Mode
from zonewise.traffic.routes.choice import (
    ClientLocation,
    RouteRule,
    Selection,
    choose_by_hints,
    choose_by_weights,
)
from zonewise.traffic.slices.reading import common_weights
from zonewise.traffic.weights import parse_weights

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

CONTROLLERS = ("serviceaccount-controller", "namespace-controller")
EACH = 12
"""Connections per endpoint: an endpoint in use is missed once in a hundred thousand times."""
DRAWN = 600
"""Connections over which weights are counted."""


@pytest.fixture(scope="module")
def plane(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    """A control plane that fills no EndpointSlices."""
    settings = real.Settings(controllers=CONTROLLERS, scheduler=False, fsync=False)
    with real.start(settings, binaries=real_binaries) as running:
        yield running


def expected(
    cache: Cache, crowd: Crowd, service: str, zone: str, *, ours: bool = False
) -> Selection[TrafficEndpoint]:
    """The endpoints that a proxy of a zone should use, given the current slices."""
    pieces = [
        piece
        for piece in cache.store(EndpointSlice)
        if piece.metadata.namespace == crowd.namespace and service_name_of(piece) == service
    ]
    targets = [read_as_proxy(endpoint) for piece in pieces for endpoint in piece.endpoints or ()]
    rows = parse_weights(common_weights(pieces)) if ours else None
    if rows is None:
        return choose_by_hints(targets, ClientLocation(zone))
    return choose_by_weights(targets, ClientLocation(zone), rows)


async def packets_follow(nets: list[ZoneNet], cache: Cache, crowd: Crowd) -> set[RouteRule]:
    """Wait until every zone's connections go where the slices say; returns the rules used."""
    rules: set[RouteRule] = set()
    for service in sorted(crowd.pods):
        cached = cache.store(Service).get((crowd.namespace, service))
        assert cached is not None
        for net in nets:
            answers: dict[str, int] = {}
            names: set[str] = set()
            try:
                async with asyncio.timeout(180):
                    while True:
                        selection = expected(cache, crowd, service, net.zone, ours=net.ours)
                        names = {target.name for target in selection.endpoints}
                        count = EACH * len(names)
                        answers = await net.ask(cached.spec.cluster_ip, count)
                        if _often(selection, count) <= set(answers) <= names:
                            break
                        await asyncio.sleep(0.5)
            except TimeoutError:
                where = f"{service} at {cached.spec.cluster_ip} from {net.zone}, ours={net.ours}"
                log = await net.log()
                pytest.fail(f"{where}: wanted {sorted(names)}, answered {answers}\n{log}")
            rules.add(selection.rule)
    return rules


def _often(selection: Selection[TrafficEndpoint], count: int) -> set[str]:
    """The endpoints that so many connections cannot miss; those of low weight may be missed."""
    weights = selection.weights or (1,) * len(selection.endpoints)
    return {
        target.name
        for target, weight in zip(selection.endpoints, weights, strict=True)
        if count * weight >= EACH * sum(weights)
    }


async def addressed(crowd: Crowd, number: int) -> dict[str, str]:
    """A node of each zone, with an address."""
    nodes = {}
    for zone in ZONES:
        nodes[zone] = f"{crowd.namespace}-{zone}-{number}"
        address = {"addresses": [{"type": "InternalIP", "address": "10.200.0.1"}]}
        await crowd.client.patch(Node, nodes[zone], None, {"status": address}, subresource="status")
    return nodes


async def test_shared_hints_are_obeyed_by_kube_proxy(plane: real.ControlPlane) -> None:
    """Services of three to five pods: a zone uses exactly the endpoints hinted for it."""
    async with cluster(plane, "shared") as (crowd, cache):
        crowd.mode = Mode.SHARED.value
        installed = Installed(plane, crowd.client, "zonewise-shared", role="own")
        try:
            await installed.apply()
            await crowd.settle(services=6, most=5)
            nodes = await addressed(crowd, 0)
            await complete(crowd, cache)
            async with zone_nets(plane, nodes) as nets:
                rules = await packets_follow(nets, cache, crowd)
            several = [
                endpoint
                for piece in cache.store(EndpointSlice)
                if piece.metadata.namespace == crowd.namespace
                for endpoint in piece.endpoints or ()
                if endpoint.hints is not None and len(endpoint.hints.for_zones) > 1
            ]
            assert several
            assert RouteRule.SAME_ZONE in rules
        finally:
            await installed.remove()


async def test_a_mixed_cluster_stays_within_the_limits(plane: real.ControlPlane) -> None:
    """Per zone one node runs kube-proxy, one ours: both obey hints, no endpoint is overloaded."""
    async with cluster(plane, "mixed") as (crowd, cache):
        crowd.mode = Mode.WEIGHTED.value
        installed = Installed(plane, crowd.client, "zonewise-mixed", role="own")
        try:
            await installed.apply()
            await crowd.settle(services=6, most=6)
            for node in crowd.nodes:
                await crowd.report(node, ready=True, cores=3)
            stock, ours = await addressed(crowd, 0), await addressed(crowd, 1)
            await complete(crowd, cache)
            async with zone_nets(plane, stock, ours) as nets:
                rules = await packets_follow(nets, cache, crowd)
                for service in sorted(crowd.pods):
                    for net in nets:
                        await weights_fit(net, cache, crowd, service)
            assert rules >= {RouteRule.SAME_ZONE, RouteRule.WEIGHTED}
            for service in crowd.pods:
                assert overload(cache, crowd, service, stock) <= Fraction(30, 100)
        finally:
            await installed.remove()


async def weights_fit(net: ZoneNet, cache: Cache, crowd: Crowd, service: str) -> None:
    """Every endpoint answers in proportion to its weight, within six standard deviations."""
    cached = cache.store(Service).get((crowd.namespace, service))
    assert cached is not None
    selection = expected(cache, crowd, service, net.zone, ours=net.ours)
    weights = selection.weights or (1,) * len(selection.endpoints)
    answers = await net.ask(cached.spec.cluster_ip, DRAWN)
    for target, weight in zip(selection.endpoints, weights, strict=True):
        chance = weight / sum(weights)
        away = abs(answers.get(target.name, 0) - DRAWN * chance)
        assert away <= 6 * sqrt(DRAWN * chance * (1 - chance)), (net.zone, service, answers)


def overload(cache: Cache, crowd: Crowd, service: str, stock: dict[str, str]) -> Fraction:
    """How far the busiest endpoint is above the average, if nodes send by their CPU."""
    nodes = [node for node in cache.store(Node) if node.metadata.name in crowd.nodes]
    total = sum(map(cpu_milli, nodes))
    exact: dict[str, Fraction] = {}
    for node in nodes:
        ours = node.metadata.name not in stock.values()
        selection = expected(cache, crowd, service, zone_of(node), ours=ours)
        weights = selection.weights or (1,) * len(selection.endpoints)
        for target, weight in zip(selection.endpoints, weights, strict=True):
            part = Fraction(cpu_milli(node) * weight, total * sum(weights))
            exact[target.name] = exact.get(target.name, Fraction(0)) + part
    return max(exact.values()) * len(crowd.pods[service]) - 1


async def test_connections_go_where_hints_say(plane: real.ControlPlane) -> None:
    """In three zones packets go where hints say, before and after pods and nodes change."""
    async with cluster(plane, "packets") as (crowd, cache):
        installed = Installed(plane, crowd.client, "zonewise-packets", role="own")
        try:
            await installed.apply()
            await crowd.settle(services=8, most=12)
            nodes = await addressed(crowd, 0)
            await complete(crowd, cache)
            async with zone_nets(plane, nodes) as nets:
                rules = await packets_follow(nets, cache, crowd)
                for _ in range(40):
                    await crowd.step()
                await complete(crowd, cache)
                rules |= await packets_follow(nets, cache, crowd)
            assert RouteRule.SAME_ZONE in rules
        finally:
            await installed.remove()
