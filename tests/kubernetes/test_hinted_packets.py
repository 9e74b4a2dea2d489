"""Real kube-proxies, one per zone, send real connections where our hints say.

Each zone is a network namespace with kube-proxy (nftables) of a node there; see ``zonenet``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from tests.kubernetes.crowd import ZONES, Crowd
from tests.kubernetes.installed import Installed, cluster, complete
from tests.kubernetes.zonenet import API, relay

from tools import realkube as real
from zonewise.api import EndpointSlice, Node, Service
from zonewise.runtime.cache import Cache
from zonewise.traffic import Place, Rule, Selection, as_obeyed, nearby
from zonewise.traffic.slices import service_of

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

CONTROLLERS = ("serviceaccount-controller", "namespace-controller")
EACH = 12
"""Connections per endpoint: one that is in use is missed once in a hundred thousand times."""


@pytest.fixture(scope="module")
def plane(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    """A control plane that fills no EndpointSlices."""
    settings = real.Settings(controllers=CONTROLLERS, scheduler=False, fsync=False)
    with real.start(settings, binaries=real_binaries) as running:
        yield running


class ZoneNet:
    """One zone: its namespace and the kube-proxy of one of its nodes."""

    def __init__(self, zone: str, network: Process, proxy: Process) -> None:
        self.zone = zone
        self._network = network
        self._proxy = proxy

    async def ask(self, address: str, count: int) -> dict[str, int]:
        """Who answers how often at a Service's address."""
        assert self._network.stdin is not None
        assert self._network.stdout is not None
        self._network.stdin.write(f"{address} 80 {count}\n".encode())
        found: dict[str, int] = json.loads(await self._network.stdout.readline())
        return found

    async def end(self) -> None:
        """End the proxy, then its namespace."""
        for process in (self._proxy, self._network):
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


@asynccontextmanager
async def zone_nets(
    plane: real.ControlPlane, nodes: dict[str, str]
) -> AsyncIterator[list[ZoneNet]]:
    """A network for every zone, with the proxy of the node named for it."""
    socket = str(plane.folder / "api.sock")
    port = int(plane.url.rpartition(":")[2])

    async def to_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await relay((reader, writer), await asyncio.open_connection("127.0.0.1", port))

    server = await asyncio.start_unix_server(to_server, socket)
    nets: list[ZoneNet] = []
    try:
        for zone, node in nodes.items():
            nets.append(await zone_net(plane, zone, node, socket))
        yield nets
    finally:
        for net in nets:
            await net.end()
        server.close()


async def zone_net(plane: real.ControlPlane, zone: str, node: str, socket: str) -> ZoneNet:
    """The network of one zone, and its proxy."""
    command = (sys.executable, "-m", "tests.kubernetes.zonenet", socket)
    network = await asyncio.create_subprocess_exec(
        "unshare", "--net", *command, stdin=PIPE, stdout=PIPE
    )
    assert network.stdout is not None
    assert await network.stdout.readline() == b"ready\n"
    config = json.loads(plane.kubeconfig_for("system:kube-proxy").read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{API}"
    kubeconfig = plane.folder / f"proxy-{zone}.kubeconfig"
    kubeconfig.write_text(json.dumps(config))
    with await asyncio.to_thread(Path.open, plane.folder / f"proxy-{zone}.log", "wb") as file:
        proxy = await asyncio.create_subprocess_exec(
            *("nsenter", "--net", "--target", str(network.pid), "--"),
            *(str(plane.binaries.path("kube-proxy")), f"--kubeconfig={kubeconfig}"),
            *(f"--hostname-override={node}", "--proxy-mode=nftables"),
            *("--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s"),
            *("--conntrack-tcp-timeout-close-wait=0s", "--iptables-min-sync-period=0s"),
            stderr=file,
            env=os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
        )
    return ZoneNet(zone, network, proxy)


def expected(cache: Cache, crowd: Crowd, service: str, zone: str) -> Selection:
    """The endpoints a proxy of a zone should use, by the slices as they are."""
    targets = [
        as_obeyed(endpoint)
        for piece in cache.store(EndpointSlice)
        if piece.metadata.namespace == crowd.namespace and service_of(piece) == service
        for endpoint in piece.endpoints or ()
    ]
    return nearby(targets, Place(zone))


async def packets_follow(nets: list[ZoneNet], cache: Cache, crowd: Crowd) -> set[Rule]:
    """Wait until every zone's connections go exactly where the slices say; the rules seen."""
    rules: set[Rule] = set()
    for service in sorted(crowd.pods):
        found = cache.store(Service).get((crowd.namespace, service))
        assert found is not None
        for net in nets:
            async with asyncio.timeout(60):
                while True:
                    selection = expected(cache, crowd, service, net.zone)
                    names = {target.name for target in selection.targets}
                    answers = await net.ask(found.spec.cluster_ip, EACH * len(names))
                    if set(answers) == names:
                        break
                    await asyncio.sleep(0.5)
            rules.add(selection.rule)
    return rules


async def test_connections_go_where_hints_say(plane: real.ControlPlane) -> None:
    """In three zones, before and after pods and nodes change, packets go only where they may."""
    async with cluster(plane, "packets") as (crowd, cache):
        installed = Installed(plane, crowd.client, "zonewise-packets", role="own")
        try:
            await installed.apply()
            await crowd.settle(services=8, most=12)
            nodes = {}
            for zone in ZONES:
                name = f"{crowd.namespace}-{zone}-0"
                address = {"addresses": [{"type": "InternalIP", "address": "10.200.0.1"}]}
                await crowd.client.patch(
                    Node, name, None, {"status": address}, subresource="status"
                )
                nodes[zone] = name
            await complete(crowd, cache)
            async with zone_nets(plane, nodes) as nets:
                rules = await packets_follow(nets, cache, crowd)
                for _ in range(40):
                    await crowd.step()
                await complete(crowd, cache)
                rules |= await packets_follow(nets, cache, crowd)
            assert Rule.SAME_ZONE in rules
        finally:
            await installed.remove()
