"""Real kube-proxies (nftables), each in a network namespace of its own; see ``zonenet``.

On request the proxy of a namespace is ours instead.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.kubernetes.zonenet import API, HERE, HERE_TOO, relay

from tools import realkube as real
from zonewise.topology.nodes import ZONE_LABEL

_ENVIRONMENT = os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
LOOKED = b"Starting node config controller"
HEARD = b"Updated proxier node topology labels"
"""What kube-proxy logs when it starts to watch its node, and when its rules know the zone."""
LOOKS = 20
"""How often the log is read before a kube-proxy is restarted; restarting a slow one is harmless."""
_GET = """
import sys, urllib.error, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
for url in sys.argv[1:]:
    try:
        answer = opener.open(url, timeout=5).read().decode()
    except urllib.error.HTTPError as error:
        answer = error.read().decode()
    except OSError:
        answer = "{}"
    print(" ".join(answer.split()))
"""


class ZoneNet:
    """One zone: its namespace and the proxy of one of its nodes."""

    def __init__(
        self, zone: str, network: Process, proxy: Process, log: Path, *, ours: bool
    ) -> None:
        self.zone = zone
        self._log = log
        self.ours = ours
        self._network = network
        self._proxy = proxy

    @property
    def pid(self) -> int:
        """A process in the namespace."""
        return self._network.pid

    async def ask(self, address: str, count: int) -> dict[str, int]:
        """How often each pod answers at a Service's address."""
        assert self._network.stdin is not None
        assert self._network.stdout is not None
        self._network.stdin.write(f"{address} 80 {count}\n".encode())
        counts: dict[str, int] = json.loads(await self._network.stdout.readline())
        return counts

    async def log(self) -> str:
        """The end of the proxy's log, and its return code."""
        text = await asyncio.to_thread(self._log.read_text)
        return f"{text[-4000:]}\nreturn code {self._proxy.returncode}"

    async def rules(self, family: str) -> str:
        """The table that the proxy wrote for a family, ``ip`` or ``ip6``; "" if none yet."""
        return await self.listing(family, "kube-proxy")

    async def listing(self, family: str, table: str) -> str:
        """A table of the namespace, "" if there is none."""
        return (await self._inside("nft", "list", "table", family, table)).decode()

    async def healthy(self, checks: Sequence[tuple[str, int]]) -> list[int]:
        """How many endpoints each health check, a family and a port, reports; -1: no answer."""
        hosts = {"IPv4": HERE, "IPv6": f"[{HERE_TOO}]"}
        urls = [f"http://{hosts[family]}:{port}/" for family, port in checks]
        answers = await self._inside(sys.executable, "-c", _GET, *urls)
        return [json.loads(line).get("localEndpoints", -1) for line in answers.splitlines()]

    async def _inside(self, *command: str) -> bytes:
        enter = ("nsenter", "--net", "--target", str(self._network.pid), "--")
        process = await asyncio.create_subprocess_exec(
            *enter, *command, stdout=PIPE, stderr=PIPE, env=_ENVIRONMENT
        )
        out, _ = await process.communicate()
        return out

    async def end(self) -> None:
        """End the proxy, then its namespace."""
        for process in (self._proxy, self._network):
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


@asynccontextmanager
async def zone_nets(
    plane: real.ControlPlane, nodes: dict[str, str], ours: dict[str, str] | None = None
) -> AsyncIterator[list[ZoneNet]]:
    """A network for every zone, with the kube-proxy of its node; in ``ours`` with our proxy."""
    socket = str(plane.folder / "api.sock")
    port = int(plane.url.rpartition(":")[2])

    async def to_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await relay((reader, writer), await asyncio.open_connection("127.0.0.1", port))

    server = await asyncio.start_unix_server(to_server, socket)
    nets: list[ZoneNet] = []
    try:
        for zone, node in nodes.items():
            nets.append(await zone_net(plane, zone, node, socket))
        for zone, node in (ours or {}).items():
            nets.append(await zone_net(plane, zone, node, socket, ours=True))
        yield nets
    finally:
        for net in nets:
            await net.end()
        server.close()


async def zone_net(
    plane: real.ControlPlane, zone: str, node: str, socket: str, *, ours: bool = False
) -> ZoneNet:
    """The network of one zone, and its proxy."""
    command = (sys.executable, "-m", "tests.kubernetes.zonenet", socket)
    network = await asyncio.create_subprocess_exec(
        "unshare", "--net", *command, stdin=PIPE, stdout=PIPE
    )
    assert network.stdout is not None
    assert await network.stdout.readline() == b"ready\n"
    config = json.loads(plane.kubeconfig_for("system:kube-proxy").read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{API}"
    name = f"{'ours' if ours else 'proxy'}-{zone}"
    kubeconfig = plane.folder / f"{name}.kubeconfig"
    kubeconfig.write_text(json.dumps(config))
    stock = (
        *(str(plane.binaries.path("kube-proxy")), f"--kubeconfig={kubeconfig}"),
        *(f"--hostname-override={node}", "--proxy-mode=nftables"),
        *("--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s"),
        *("--conntrack-tcp-timeout-close-wait=0s", "--iptables-min-sync-period=0s"),
        "--v=4",
    )
    own = (
        *(sys.executable, "-m", "zonewise", "proxy", f"--node-name={node}"),
        *(f"--kubeconfig={kubeconfig}", "--healthz-bind-address=", "--metrics-bind-address="),
    )
    log = plane.folder / f"{name}.log"
    output = await asyncio.to_thread(plane.kubectl, "get", "node", node, "-o=json")
    labels = json.loads(output.stdout)["metadata"].get("labels", {})
    while True:
        with await asyncio.to_thread(Path.open, log, "wb") as file:
            proxy = await asyncio.create_subprocess_exec(
                *("nsenter", "--net", "--target", str(network.pid), "--"),
                *(own if ours else stock),
                stderr=file,
                env=_ENVIRONMENT,
            )
        if ours or ZONE_LABEL not in labels or await _knows_its_zone(log):
            return ZoneNet(zone, network, proxy, log, ours=ours)
        proxy.kill()
        await proxy.wait()


async def _knows_its_zone(log: Path) -> bool:
    """Whether a kube-proxy knows its node's zone.

    Version 1.36 lists its node before the handlers are registered: now and then the zone reaches
    no handler, and never does later, since it does not change.
    """
    async with asyncio.timeout(60):
        while LOOKED not in await asyncio.to_thread(log.read_bytes):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    for _ in range(LOOKS):
        if HEARD in await asyncio.to_thread(log.read_bytes):
            return True
        await asyncio.sleep(0.1)
    return False
