"""Every --detect-local-mode, checked by the source address that endpoints see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import pytest_asyncio
from tests.netns.lab import PODS, SERVICE, SILENT, Lab, laboratory, node_address
from tests.netns.spaces import inside, ip
from tests.system_guard import starts_programs

Obj = dict[str, Any]
HERE, ELSEWHERE = "node-6", "node-1"
VIPS = {"IPv4": "203.0.113.60", "IPv6": "2001:db8::60"}
MODES = {
    "ClusterCIDR": (),
    "NodeCIDR": (),
    "BridgeInterface": ("--pod-bridge-interface", "cni0"),
    "InterfaceNamePrefix": ("--pod-interface-name-prefix", "cn"),
}

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
@starts_programs
async def lab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    async with laboratory(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@contextmanager
def proxy(lab: Lab, *options: str) -> Iterator[None]:
    """The proxy of the node, with options of its own, for the length of a block."""
    lab.start_proxy(HERE, *options)
    try:
        yield
    finally:
        lab.stop_proxy(HERE)


async def source(lab: Lab, asker: str, address: str, port: int = 80) -> str:
    """The source address that an endpoint sees; the fault if none answered."""
    answer = await lab.ask(asker, address, port)
    return answer.source or answer.fault


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
@pytest.mark.parametrize("mode", list(MODES))
async def test_pods_are_recognised_by(lab: Lab, mode: str, family: str) -> None:
    """A pod of the node is never masqueraded; another node's pod is, except in mode ClusterCIDR."""
    with proxy(lab, "--detect-local-mode", mode, *MODES[mode]):
        await check_detection(lab, mode, family)


async def check_detection(lab: Lab, mode: str, family: str) -> None:
    name = f"{mode}-{family}".lower()
    only: Obj = {"ipFamilyPolicy": "SingleStack", "ipFamilies": [family]}
    address = await lab.cluster_ip(name, **only)
    await lab.endpoints(name, "pod-6y", family=family)
    for asker in ("outside", ELSEWHERE):
        lab.route(asker, address, HERE)
    await lab.reaches("pod-6x", address, "pod-6y")
    mine, guest = PODS["pod-6x"].address(family), PODS["pod-1x"].address(family)
    gateway = PODS["pod-6y"].address(family).rpartition(":" if family == "IPv6" else ".")[0]
    node = f"{gateway}{':' if family == 'IPv6' else '.'}1"
    assert await source(lab, "pod-6x", address) == mine
    assert await source(lab, HERE, address) == node
    assert await source(lab, "outside", address) == node
    # A pod of another node whose packets come this way is a pod only by the cluster's network.
    assert await source(lab, "pod-1x", address) == (guest if mode == "ClusterCIDR" else node)

    vip = VIPS[family]
    local: Obj = {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}
    await lab.service(f"{name}-vip", **local, **only)
    await lab.vip(f"{name}-vip", vip)
    await lab.endpoints(f"{name}-vip", "pod-4x", family=family)
    for asker in ("outside", ELSEWHERE):
        lab.route(asker, vip, HERE)
    await lab.reaches("pod-6x", vip, "pod-4x")
    assert await source(lab, "pod-6x", vip) == mine
    assert await source(lab, HERE, vip) == node_address(HERE, family)
    assert await lab.ask("outside", vip) == SILENT
    if mode != "ClusterCIDR":
        assert await lab.ask("pod-1x", vip) == SILENT
    await lab.client.delete(SERVICE, f"{name}-vip", "default")


async def test_networks_of_one_family_leave_the_other_ones_node_ports_alone(lab: Lab) -> None:
    """NodePorts are at the networks given for a family, and at every address of the other."""
    for family, port in (("IPv4", 30120), ("IPv6", 30121)):
        name = f"ports-{family.lower()}"
        only: Obj = {"ipFamilyPolicy": "SingleStack", "ipFamilies": [family]}
        await lab.service(name, type="NodePort", nodePort=port, **only)
        await lab.endpoints(name, "pod-4x", family=family)
    with proxy(lab, "--nodeport-addresses", "10.244.0.0/16"):
        await lab.reaches("pod-6x", "10.244.6.1", "pod-4x", port=30120)
        await lab.reaches("outside", node_address(HERE), "refused", port=30120)
        for address in ("fd44:0:0:6::1", node_address(HERE, "IPv6")):
            await lab.reaches("pod-6x", address, "pod-4x", port=30121)
        await lab.reaches(HERE, "::1", "refused", port=30121)


async def test_a_cluster_ip_of_the_node_itself_is_answered_by_its_listener(lab: Lab) -> None:
    """Other ports of a ClusterIP are refused, but not those a process of the node listens on."""
    address = await lab.cluster_ip("cached")
    await lab.endpoints("cached", "pod-4x")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"node 0\n")
        await writer.drain()
        writer.close()

    with proxy(lab):
        await lab.reaches("pod-6x", address, "pod-4x")
        await lab.reaches("pod-6x", address, "refused", port=9153)
        ip([f"addr add {address}/32 dev lo"], name=lab.space(HERE))
        with inside(lab.space(HERE)):
            server = await asyncio.start_server(answer, address, 9153)
        async with server:
            await lab.reaches("pod-6x", address, "node", port=9153)
            await lab.reaches("pod-6x", address, "pod-4x")
        ip([f"addr del {address}/32 dev lo"], name=lab.space(HERE))
