"""Real kube-proxy (nftables) chooses as our routes do, for everything both support.

All clusters of the route table, and random Services, live in one real cluster, each in a
namespace of its own. The kube-proxy of each node writes its rules into a network namespace; they
are read back and compared with our routes: every way in, its endpoints, refusals, source ranges,
affinity and health checks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.kubernetes.kubeproxies import ZoneNet, zone_nets
from tests.kubernetes.proxyrules import Fate, Rules, Way
from tests.kubernetes.zonenet import HERE, HERE_TOO
from tests.traffic.random_services import random_service
from tests.traffic.route_vectors import Vector, vectors

from tools import realkube as real
from zonewise.api import LeanEndpointSlice, Node, Service
from zonewise.runtime.cache.snapshot import Snapshot
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config
from zonewise.traffic.routes.choice import ClientLocation
from zonewise.traffic.routes.service import compute_node_routes
from zonewise.traffic.routes.table import NodeRoutes

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

NETWORKS = "10.96.0.0/12,fd00:96::/112"
RANDOM = 400
SETTLED = 240

Obj = dict[str, Any]
JSON = {"Content-Type": "application/json"}
FAMILIES = {"IPv4": "ip", "IPv6": "ip6"}


@pytest.fixture(scope="module")
def plane(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    """A dual-stack API server without an EndpointSlice controller."""
    settings = real.Settings(
        controllers=(),
        scheduler=False,
        fsync=False,
        apiserver_args=(f"--service-cluster-ip-range={NETWORKS}",),
    )
    with real.start(settings, binaries=real_binaries) as running:
        yield running


class Planted:
    """The objects of the cluster that is compared."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.nodes: dict[str, Obj] = {}
        self.known: list[Vector] = []

    async def make(self) -> None:
        """Create the objects of the route table, and random Services."""
        for vector in vectors():
            if not vector.needs:
                self.known.append(vector)
        for vector in self.known:
            self.nodes |= {node["metadata"]["name"]: node for node in vector.of("Node")}
        addresses = [{"type": "InternalIP", "address": here} for here in (HERE, HERE_TOO)]
        status = {"status": {"addresses": addresses}}
        for node in self.nodes.values():
            await self._put("/api/v1/nodes", node)
            name = node["metadata"]["name"]
            await self._client.patch(Node, name, None, status, subresource="status")
        for vector in self.known:
            (service,) = vector.of("Service")
            ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress", [])
            await self._plant(service, ingress, vector.of("EndpointSlice"))
        rng = random.Random(20_260_801)
        for number in range(RANDOM):
            names = [name for name in self.nodes if name != "x1"]
            await self._plant(*random_service(rng, number, names, "abcd"))

    async def _plant(self, service: Obj, ingress: list[Obj], slices: list[Obj]) -> None:
        meta = service["metadata"]
        space = f"/api/v1/namespaces/{meta['namespace']}"
        await self._put("/api/v1/namespaces", {"metadata": {"name": meta["namespace"]}})
        await self._put(f"{space}/services", {k: v for k, v in service.items() if k != "status"})
        if ingress:
            status = {"status": {"loadBalancer": {"ingress": ingress}}}
            await self._client.patch(
                Service, meta["name"], meta["namespace"], status, subresource="status"
            )
        for piece in slices:
            path = f"/apis/discovery.k8s.io/v1/namespaces/{meta['namespace']}/endpointslices"
            await self._put(path, piece)

    async def _put(self, path: str, body: Obj) -> None:
        content = msgspec.json.encode(body)
        await self._client.raw("POST", path, headers=JSON, body=content)

    async def routes(self) -> dict[str, NodeRoutes]:
        """What our proxy would do on every node, with the objects as the server has them."""
        snapshot = await Snapshot.live(self._client, [Node, Service, LeanEndpointSlice])
        labels = {node.metadata.name: node.metadata.labels for node in snapshot.all(Node)}
        services, slices = snapshot.all(Service), snapshot.all(LeanEndpointSlice)
        return {
            node.metadata.name: compute_node_routes(
                services, slices, ClientLocation.of(node), labels
            )
            for node in snapshot.all(Node)
        }


def differences(routes: NodeRoutes, family: str, rules: Rules) -> list[str]:
    """Where the rules of kube-proxy differ from our routes."""
    wrong: list[str] = []
    ours: set[Way] = set()
    for service in routes.services:
        for port in service.ports:
            for route in port.routes if port.family == family else ():
                way = (route.address, port.protocol, route.number)
                ours.add(way)
                where = f"{routes.node} {service.namespace} {port.name} {way} {route.source}"
                ends = tuple(sorted((end.address, end.port) for end in route.endpoints))
                fate = rules.fate(way, route.source)
                if fate != Fate(route.action, ends):
                    wrong.append(f"{where}: {route.action} {ends}, kube-proxy: {fate}")
                allowed = tuple(sorted((*route.source_ranges, *route.own_sources)))
                if route.address is not None and rules.sources(way) != allowed:
                    wrong.append(f"{where}: from {allowed}, kube-proxy: {rules.sources(way)}")
                timeouts = rules.affinity(way) if route.path == "ClusterIP" else set()
                if timeouts - {port.affinity_seconds}:
                    wrong.append(f"{where}: keeps {port.affinity_seconds}, kube-proxy: {timeouts}")
    extra = rules.ways - ours
    return wrong + [f"{routes.node} {family}: only kube-proxy has {way}" for way in sorted(extra)]


async def settled(net: ZoneNet, routes: NodeRoutes, family: str) -> list[str]:
    """The final differences: a proxy may learn its zone after its first write."""
    wrong = [f"{routes.node} {family}: kube-proxy has written nothing"]
    for _ in range(SETTLED):
        rules = Rules(await net.rules(FAMILIES[family]))
        if rules.complete and not (wrong := differences(routes, family, rules)):
            break
        await asyncio.sleep(1)
    return wrong[:20]


async def healthy(net: ZoneNet, routes: NodeRoutes) -> None:
    """Wait until its health checks, opened after its first write, report what ours report."""
    checks = [check for service in routes.services for check in service.health_checks]
    ours = [check.local_endpoints for check in checks]
    for _ in range(SETTLED):
        reported = await net.healthy([(check.family, check.port) for check in checks])
        if reported == ours:
            return
        await asyncio.sleep(1)
    assert reported == ours, routes.node


async def test_kube_proxy_chooses_alike(plane: real.ControlPlane) -> None:
    """On every node and for every way in, kube-proxy's rules equal our routes."""
    async with Client(HttpsTransport(load_config(plane.kubeconfig))) as client:
        planted = Planted(client)
        await planted.make()
        by_node = await planted.routes()
    compared = 0
    for name, routes in by_node.items():
        async with zone_nets(plane, {name: name}) as (net,):
            for family in FAMILIES:
                assert not await settled(net, routes, family)
            await healthy(net, routes)
        compared += sum(len(port.routes) for service in routes.services for port in service.ports)
    assert compared > 10_000
