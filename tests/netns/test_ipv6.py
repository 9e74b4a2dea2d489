"""Packets over IPv6: affinity, hairpin, source ranges, policies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.netns.lab import PODS, REFUSED, SILENT, Lab, endpoint, laboratory, node_address
from tests.system_guard import starts_programs

ONLY: dict[str, Any] = {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]}

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
@starts_programs
async def lab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    async with laboratory(tmp_path_factory.mktemp("lab"), proxies=("node-1", "node-2")) as lab:
        yield lab


async def test_affinity(lab: Lab) -> None:
    """A client stays with its endpoint until that endpoint is removed."""
    address = await lab.cluster_ip("sticky", sessionAffinity="ClientIP", **ONLY)
    pods = ["pod-1x", "pod-3x", "pod-5x"]
    await lab.endpoints("sticky", *pods, family="IPv6")

    async def served() -> str:
        return (await lab.ask("pod-2x", address)).pod

    await lab.until(served, lambda: "the Service works")
    first = await served()
    assert await lab.spread("pod-2x", address) == {first}
    rest = [pod for pod in pods if pod != first]
    await lab.endpoints("sticky", *rest, family="IPv6")

    async def moved() -> bool:
        return await served() in rest

    await lab.until(moved, lambda: "another endpoint takes over")
    assert await lab.spread("pod-2x", address) == {await served()}


async def test_hairpin(lab: Lab) -> None:
    """A pod that is the only endpoint of a Service can use that Service."""
    address = await lab.cluster_ip("hairpin", **ONLY)
    await lab.endpoints("hairpin", "pod-2y", family="IPv6")
    await lab.reaches("pod-2y", address, "pod-2y")
    assert (await lab.ask("pod-2x", address)).source == PODS["pod-2x"].ipv6


async def test_source_ranges_and_a_local_policy(lab: Lab) -> None:
    """Clients in range reach the node's endpoints unmasqueraded; others get no answer."""
    await lab.service(
        "ranges",
        type="LoadBalancer",
        externalTrafficPolicy="Local",
        loadBalancerSourceRanges=["fd99::c8/128", "fd44:0:0:2::/64"],
        nodePort=30130,
        **ONLY,
    )
    await lab.vip("ranges", "2001:db8::20")
    await lab.endpoints("ranges", "pod-1x", "pod-5x", family="IPv6")
    lab.route("outside", "2001:db8::20", "node-1")
    await lab.reaches("outside", "2001:db8::20", "pod-1x")
    assert (await lab.ask("outside", "2001:db8::20")).source == "fd99::c8"
    await lab.reaches("pod-2x", "2001:db8::20", "pod-1x", "pod-5x")
    assert await lab.ask("pod-1y", "2001:db8::20") == SILENT
    await lab.reaches("fabric", node_address("node-1", "IPv6"), "pod-1x", port=30130)
    assert await lab.ask("fabric", node_address("node-2", "IPv6"), 30130) == SILENT


async def test_keys_refusals_and_unassigned_addresses(lab: Lab) -> None:
    """A request is refused at once if no key matches or its port is another, and dropped at an
    unassigned ClusterIP.
    """
    keys = {"zonewise.io/topology-keys": "topology.kubernetes.io/zone"}
    address = await lab.cluster_ip("keyed", annotations=keys, **ONLY)
    await lab.endpoints("keyed", "pod-1x", "pod-5x", family="IPv6")
    await lab.reaches("pod-2x", address, "pod-1x")
    assert await lab.ask("pod-2x", address, 81) == REFUSED
    assert await lab.ask("pod-2x", address, udp=True) == REFUSED
    unready = endpoint("pod-1x", "IPv6", ready=False, serving=False)
    await lab.endpoints("keyed", unready, "pod-5x", family="IPv6")
    await lab.reaches("pod-2x", address, "refused")
    await lab.reaches("node-2", address, "refused")
    unassigned = f"{address.rpartition(':')[0]}:fffa"
    assert await lab.ask("pod-2x", unassigned) == SILENT
    # The node's own kernel reports that the datagram was dropped on its way out.
    assert "not permitted" in (await lab.ask("node-2", unassigned, udp=True)).fault
