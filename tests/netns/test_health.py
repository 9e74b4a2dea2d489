"""What a proxy reports: its health, health checks of load balancers, metrics, events."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.netns.lab import NODE, SERVICE, Lab, endpoint, laboratory, node_address
from tests.system_guard import starts_programs

from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

EVENT = unstructured(Resource("events.k8s.io", "v1", "Event", "events"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
@starts_programs
async def lab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    async with laboratory(tmp_path_factory.mktemp("lab"), proxies=["node-1", "node-2"]) as lab:
        yield lab


async def get(lab: Lab, asker: str, address: str, port: int, path: str) -> tuple[int, str, str]:
    """Status, head and body of a page; status 0 if there is no answer."""
    with lab.socket(asker, socket.SOCK_STREAM, address) as link:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(5):
                await loop.sock_connect(link, (address, port))
                request = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
                await loop.sock_sendall(link, request.encode())
                response = b""
                while data := await loop.sock_recv(link, 1 << 16):
                    response += data
        except OSError:
            return 0, "", ""
    if not response:  # a server that is just being stopped
        return 0, "", ""
    head, _, body = response.decode().partition("\r\n\r\n")
    return int(head.split()[1]), head, body


async def healthz(lab: Lab, node: str, path: str = "/healthz") -> tuple[int, dict[str, Any]]:
    status, _, body = await get(lab, "outside", node_address(node), 10256, path)
    return status, json.loads(body) if body else {}


async def is_status(lab: Lab, node: str, status: int, path: str = "/healthz") -> bool:
    return (await healthz(lab, node, path))[0] == status


async def test_health_follows_the_node(lab: Lab) -> None:
    """A node that is about to be removed is not healthy for load balancers, but alive."""
    await lab.until(lambda: is_status(lab, "node-1", 200), lambda: "healthy")
    assert (await healthz(lab, "node-1"))[1]["nodeEligible"] is True
    taint = {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule", "value": "1"}
    await lab.client.patch(NODE, "node-1", None, {"spec": {"taints": [taint]}})
    await lab.until(lambda: is_status(lab, "node-1", 503), lambda: "not eligible")
    assert (await healthz(lab, "node-1", "/livez"))[0] == 200
    await lab.client.patch(NODE, "node-1", None, {"spec": {"taints": None}})
    await lab.until(lambda: is_status(lab, "node-1", 200), lambda: "healthy again")


async def test_metrics_have_the_names_dashboards_know(lab: Lab) -> None:
    """Metrics, mode and routes are served to the node itself."""
    address = await lab.cluster_ip("counted", trafficDistribution="PreferClose")
    await lab.endpoints("counted", endpoint("pod-1x", zones=["a"]))
    await lab.reaches("pod-1y", address, "pod-1x")
    status, _, text = await get(lab, "node-1", "127.0.0.1", 10249, "/metrics")
    assert status == 200
    for name in (
        "kubeproxy_sync_proxy_rules_duration_seconds_count",
        "kubeproxy_sync_full_proxy_rules_duration_seconds_count",
        "kubeproxy_sync_partial_proxy_rules_duration_seconds_count",
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
        "kubeproxy_sync_proxy_rules_endpoint_changes_total",
        "kubeproxy_sync_proxy_rules_service_changes_pending",
        "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
        "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
        "kubeproxy_conntrack_reconciler_deleted_entries_total",
        "kubeproxy_network_programming_duration_seconds",
        "kubeproxy_proxy_healthz_total",
    ):
        assert name in text, name
    assert 'zonewise_proxy_service_ports{rule="SameZone"} 1.0' in text
    assert (await get(lab, "node-1", "127.0.0.1", 10249, "/proxyMode"))[2] == "nftables"
    routes = json.loads((await get(lab, "node-1", "127.0.0.1", 10249, "/routes"))[2])["routes"]
    mine = [row for row in routes if row["service"] == "counted"]
    assert [(row["why"], row["mode"]) for row in mine] == [("SameZone", "PreferSameZone")]
    assert (await get(lab, "outside", node_address("node-1"), 10249, "/metrics"))[0] == 0


async def test_health_checks_of_load_balancers_count_endpoints_here(lab: Lab) -> None:
    """A node answers 200 for a Service while it has ready endpoints of it, with their number."""
    service = await lab.service(
        "checked", type="LoadBalancer", externalTrafficPolicy="Local", nodePort=30100
    )
    port = service["spec"]["healthCheckNodePort"]
    await lab.endpoints("checked", "pod-1x", "pod-1y")

    async def says(node: str, status: int) -> bool:
        return (await get(lab, "outside", node_address(node), port, "/"))[0] == status

    await lab.until(lambda: says("node-1", 200), lambda: "node-1 has endpoints")
    _, head, body = await get(lab, "outside", node_address("node-1"), port, "/")
    assert "X-Load-Balancing-Endpoint-Weight: 2" in head
    assert json.loads(body) == {
        "service": {"namespace": "default", "name": "checked"},
        "localEndpoints": 2,
        "serviceProxyHealthy": True,
    }
    await lab.until(lambda: says("node-2", 503), lambda: "node-2 has none")
    await lab.endpoints("checked", endpoint("pod-1x", ready=False, terminating=True))
    await lab.until(lambda: says("node-1", 503), lambda: "nobody is ready on node-1")
    await lab.client.delete(SERVICE, "checked", "default")
    await lab.until(lambda: says("node-1", 0), lambda: "nobody listens any more")


async def test_health_checks_answer_for_the_family_that_asks(lab: Lab) -> None:
    """Health checks count each family alone; a family that the Service lacks has no listener."""
    service = await lab.service(
        "twofold",
        type="LoadBalancer",
        externalTrafficPolicy="Local",
        ipFamilyPolicy="RequireDualStack",
        nodePort=30102,
    )
    port = service["spec"]["healthCheckNodePort"]
    await lab.endpoints("twofold", "pod-3x")
    await lab.endpoints("twofold", "pod-1x", "pod-1y", family="IPv6")

    async def says(family: str, status: int, weight: int) -> bool:
        address = node_address("node-1", family)
        code, head, body = await get(lab, "outside", address, port, "/")
        count = json.loads(body)["localEndpoints"] if body else 0
        header = f"X-Load-Balancing-Endpoint-Weight: {weight}"
        return (code, count) == (status, weight) and (not code or header in head)

    await lab.until(lambda: says("IPv6", 200, 2), lambda: "two IPv6 endpoints are here")
    await lab.until(lambda: says("IPv4", 503, 0), lambda: "no IPv4 endpoint is here")
    await lab.endpoints("twofold", "pod-1x")
    await lab.until(lambda: says("IPv4", 200, 1), lambda: "an IPv4 endpoint is here")
    assert await says("IPv6", 200, 2)
    single = {"spec": {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"]}}
    single["spec"]["clusterIPs"] = service["spec"]["clusterIPs"][:1]
    await lab.client.patch(SERVICE, "twofold", "default", single)
    await lab.until(lambda: says("IPv6", 0, 0), lambda: "nobody listens for IPv6")
    assert await says("IPv4", 200, 1)


async def test_health_checks_are_where_node_ports_are(lab: Lab) -> None:
    """Health checks listen at the Node's addresses, or within --nodeport-addresses only."""
    service = await lab.service(
        "placed", type="LoadBalancer", externalTrafficPolicy="Local", nodePort=30103
    )
    port = service["spec"]["healthCheckNodePort"]
    await lab.endpoints("placed", "pod-1x", "pod-2x")

    async def answered() -> list[str]:
        askers = (
            ("outside", node_address("node-1")),
            ("pod-1x", "10.244.1.1"),
            ("node-1", "127.0.0.1"),
        )
        return [
            address
            for asker, address in askers
            if (await get(lab, asker, address, port, "/"))[0] == 200
        ]

    async def only(address: str) -> bool:
        return await answered() == [address]

    await lab.until(lambda: only(node_address("node-1")), lambda: "at the Node's address")
    lab.stop_proxy("node-1")
    lab.start_proxy("node-1", "--nodeport-addresses", "10.244.0.0/16")
    await lab.until(lambda: only("10.244.1.1"), lambda: "at the address within the network")
    lab.stop_proxy("node-1")
    lab.start_proxy("node-1")
    await lab.until(lambda: only(node_address("node-1")), lambda: "as before")


async def events(lab: Lab, service: str) -> list[str]:
    """The reasons of the events about a Service."""
    stored = [event.raw for event in await lab.client.list(EVENT, "default")]
    return [event["reason"] for event in stored if event["regarding"].get("name") == service]


async def test_a_port_that_is_taken_is_an_event(lab: Lab) -> None:
    """A health check that cannot listen is an event about the Service."""
    with lab.socket("node-1", socket.SOCK_STREAM, "::") as taken:
        taken.bind(("::", 31999))
        taken.listen()
        await lab.service(
            "taken",
            type="LoadBalancer",
            externalTrafficPolicy="Local",
            healthCheckNodePort=31999,
            nodePort=30101,
        )

        async def reported() -> bool:
            return await events(lab, "taken") == ["FailedToStartServiceHealthcheck"]

        await lab.until(reported, lambda: "the event is there")
