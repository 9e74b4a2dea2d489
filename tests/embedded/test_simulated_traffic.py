"""Simulated clients: their requests follow the current slices."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.embedded.virtual_cluster import VirtualCluster, until, virtual_cluster

from zonewise.api import Node, Service
from zonewise.embedded.components.kubelet.node_status import FAILED_ANNOTATION
from zonewise.embedded.seed.seed_marker import NAMESPACE, ConfigMap
from zonewise.embedded.simulated_traffic import CONFIG_MAP_NAME, SimulatedTraffic, read_traffic
from zonewise.explain.status import ServiceTraffic
from zonewise.runtime.program.context import ControllerContext

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

WEB = ("default", "web")


async def post(cluster: VirtualCluster, path: str, body: dict[str, Any]) -> None:
    """Create an object."""
    await cluster.client.raw("POST", path, body=msgspec.json.encode(body))


async def node(cluster: VirtualCluster, name: str, zone: str, cpu: str) -> None:
    """A Ready node."""
    meta = {"name": name, "labels": {"topology.kubernetes.io/zone": zone}}
    status = {
        "allocatable": {"cpu": cpu},
        "capacity": {"cpu": cpu},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    await post(cluster, "/api/v1/nodes", {"metadata": meta, "status": status})
    await cluster.client.patch(Node, name, None, {"spec": {"taints": None}})


async def service(cluster: VirtualCluster, **spec: Any) -> None:
    """The Service that receives the requests."""
    spec = {"selector": {"app": "web"}, "ports": [{"port": 80}], **spec}
    path = "/api/v1/namespaces/default/services"
    await post(cluster, path, {"metadata": {"name": "web"}, "spec": spec})


async def endpoints(
    cluster: VirtualCluster, *, hints: bool = False, weights: str = "", **zones: int
) -> None:
    """A slice with a number of endpoints in each zone."""
    endpoints = [
        {
            "addresses": [f"10.0.{ord(zone) - 97}.{number}"],
            "zone": zone,
            "nodeName": f"{zone}1",
            **({"hints": {"forZones": [{"name": zone}]}} if hints else {}),
        }
        for zone, count in zones.items()
        for number in range(count)
    ]
    labels = {"kubernetes.io/service-name": "web"}
    notes = {"zonewise.io/zone-weights": weights} if weights else {}
    metadata = {"name": "web", "labels": labels, "annotations": notes}
    body = {"metadata": metadata, "addressType": "IPv4"}
    path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
    await post(cluster, path, {**body, "endpoints": endpoints, "ports": [{"port": 80}]})


class Here:
    """The simulated clients of a test."""

    def __init__(self) -> None:
        self.clients: SimulatedTraffic | None = None

    def __call__(self, context: ControllerContext) -> SimulatedTraffic:
        self.clients = SimulatedTraffic(context)
        return self.clients

    def seen(self) -> ServiceTraffic | None:
        """The counts of the Service's requests."""
        assert self.clients is not None
        return self.clients.service_traffic().get(WEB)


async def test_hints_keep_requests_in_their_zone() -> None:
    """With hints all requests stay in their zone; without, only a random part."""
    here = Here()
    async with virtual_cluster({"clients": here}) as cluster:
        await node(cluster, "a1", "a", "4")
        await node(cluster, "b1", "b", "4")
        await service(cluster)
        await endpoints(cluster, hints=True, a=2, b=2)
        await asyncio.sleep(70)
        seen = here.seen()
        assert seen is not None
        assert (seen.in_zone, seen.failed, seen.requests) == (1.0, 0.0, 1200)
        await cluster.client.raw(
            "DELETE", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/web"
        )
        await endpoints(cluster, a=2, b=2)
        await asyncio.sleep(70)
        seen = here.seen()
        assert seen is not None
        assert seen.in_zone is not None
        assert 0.4 < seen.in_zone < 0.6


async def test_weights_divide_requests() -> None:
    """A tenth of zone a's requests leaves by its weights; zone b has no weights, and its requests
    stay.
    """
    here = Here()
    async with virtual_cluster({"clients": here}) as cluster:
        await node(cluster, "a1", "a", "4")
        await node(cluster, "b1", "b", "4")
        await service(cluster)
        await endpoints(cluster, a=1, b=1, weights='{"a":{"a":9000,"b":1000}}')
        await asyncio.sleep(70)
        seen = here.seen()
        assert seen is not None
        assert seen.in_zone is not None
        assert 0.92 < seen.in_zone < 0.98


async def test_zones_send_by_their_cpu() -> None:
    """A zone with three quarters of the CPU sends three quarters of the requests."""
    here = Here()
    async with virtual_cluster({"clients": here}) as cluster:
        await node(cluster, "a1", "a", "6")
        await node(cluster, "b1", "b", "2")
        await service(cluster)
        await endpoints(cluster, a=3)
        await asyncio.sleep(70)
        seen = here.seen()
        assert seen is not None
        assert seen.in_zone is not None
        assert 0.7 < seen.in_zone < 0.8


async def test_a_node_may_be_of_any_size() -> None:
    """A node may have a CPU of hundreds of digits; requests then start there."""
    here = Here()
    async with virtual_cluster({"clients": here}) as cluster:
        await node(cluster, "a1", "a", "1e400")
        await node(cluster, "b1", "b", "2")
        await service(cluster)
        await endpoints(cluster, a=3)
        await asyncio.sleep(70)
        seen = here.seen()
        assert seen is not None
        assert seen.in_zone == 1


async def test_requests_without_endpoints_fail() -> None:
    """Requests fail without endpoints; those before the first endpoint are not counted later."""
    here = Here()
    async with virtual_cluster({"clients": here}) as cluster:
        await node(cluster, "a1", "a", "4")
        await service(cluster)
        await asyncio.sleep(30)
        waiting = here.seen()
        assert waiting is not None
        assert (waiting.failed, waiting.in_zone) == (1, None)
        assert here.clients is not None
        assert not here.clients.has_answered(WEB)
        await endpoints(cluster, a=1)
        await until(lambda: (seen := here.seen()) is not None and seen.in_zone == 1)
        answered = here.seen()
        assert answered is not None
        assert answered.failed == 0
        assert here.clients.has_answered(WEB)
        await cluster.client.raw(
            "DELETE", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/web"
        )
        await asyncio.sleep(59)
        seen = here.seen()
        assert seen is not None
        assert seen.failed > 0.9


async def test_failed_nodes_neither_send_nor_answer() -> None:
    """Until the cluster notices that a node failed, requests that go there are unanswered."""
    here = Here()
    async with virtual_cluster({"clients": here}) as cluster:
        await node(cluster, "a1", "a", "4")
        await node(cluster, "b1", "b", "4")
        await service(cluster)
        await endpoints(cluster, a=2, b=2)
        failed = {"metadata": {"annotations": {FAILED_ANNOTATION: "zone a"}}}
        await cluster.client.patch(Node, "a1", None, failed)
        await asyncio.sleep(70)
        seen = here.seen()
        assert seen is not None
        assert 0.4 < seen.failed < 0.6
        assert seen.in_zone == 1.0


async def test_headless_services_get_no_requests() -> None:
    """A Service without a ClusterIP gets no simulated requests."""
    here = Here()
    async with virtual_cluster({"clients": here}) as cluster:
        await node(cluster, "a1", "a", "4")
        await service(cluster, clusterIP="None")
        await endpoints(cluster, a=1)
        await asyncio.sleep(30)
        assert here.seen() is None


async def test_the_numbers_are_published_and_read() -> None:
    """The ConfigMap has the counts, and is not written when nothing changes."""
    here = Here()
    async with virtual_cluster({"clients": here}) as cluster:
        await node(cluster, "a1", "a", "4")
        await service(cluster)
        await endpoints(cluster, a=1)
        await asyncio.sleep(90)
        config_map = await cluster.client.get(ConfigMap, CONFIG_MAP_NAME, NAMESPACE)
        assert read_traffic(config_map.get("data")) == {
            WEB: ServiceTraffic(requests=1200, failed=0.0, in_zone=1.0)
        }
        await asyncio.sleep(300)
        later = await cluster.client.get(ConfigMap, CONFIG_MAP_NAME, NAMESPACE)
        assert later.metadata.resource_version == config_map.metadata.resource_version


async def test_invalid_entries_are_ignored() -> None:
    """Invalid entries of the ConfigMap are ignored, and the rest is read."""
    good = '{"requests":1,"failed":0.0}'
    traffic = read_traffic({"a.b": good, "nodot": good, "c.d": "{", "e.f": '{"requests":"x"}'})
    assert traffic == {("a", "b"): ServiceTraffic(requests=1, failed=0.0)}


async def test_the_same_seed_draws_the_same() -> None:
    """Two simulations with one seed have the same counts."""

    async def once() -> ServiceTraffic | None:
        here = Here()
        async with virtual_cluster({"clients": here}) as cluster:
            await node(cluster, "a1", "a", "4")
            await node(cluster, "b1", "b", "4")
            await service(cluster)
            await endpoints(cluster, a=2, b=1)
            await asyncio.sleep(70)
            return here.seen()

    assert await once() == await once()


async def test_a_local_policy_fails_without_local_endpoints() -> None:
    """internalTrafficPolicy Local on a NodePort Service: no request leaves its node."""
    here = Here()
    async with virtual_cluster({"clients": here}) as cluster:
        await node(cluster, "a1", "a", "4")
        await node(cluster, "b1", "b", "4")
        await service(cluster, type="NodePort", internalTrafficPolicy="Local")
        await endpoints(cluster, a=2)
        await asyncio.sleep(70)
        seen = here.seen()
        assert seen is not None
        assert seen.in_zone == 1.0
        assert 0.4 < seen.failed < 0.6


async def test_topology_keys_and_labels_that_change() -> None:
    """Without a matching endpoint requests fail, until a node's label changes."""
    here = Here()
    async with virtual_cluster({"clients": here}) as cluster:
        await node(cluster, "a1", "a", "4")
        await node(cluster, "b1", "b", "4")
        await service(cluster)
        keys = {"metadata": {"annotations": {"zonewise.io/topology-keys": "example.com/rack"}}}
        await cluster.client.patch(Service, "web", "default", keys)
        for name in ("a1", "b1"):
            labels = {"metadata": {"labels": {"example.com/rack": name}}}
            await cluster.client.patch(Node, name, None, labels)
        await endpoints(cluster, a=2)
        await asyncio.sleep(70)
        seen = here.seen()
        assert seen is not None
        assert 0.4 < seen.failed < 0.6
        moved = {"metadata": {"labels": {"example.com/rack": "a1"}}}
        await cluster.client.patch(Node, "b1", None, moved)
        await asyncio.sleep(70)
        seen = here.seen()
        assert seen is not None
        assert (seen.failed, seen.requests) == (0.0, 1200)
