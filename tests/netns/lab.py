"""A packet laboratory: three zones of two nodes, pods with addresses of their own, and an outsider.

::

    outside ──┐   10.99.0.200  fd99::c8
    fabric ───┤   a bridge that is 10.99.0.254 and fd99::fe, with the API server
    node-1 ───┤   10.99.0.11   fd99::b   pods 10.244.1.0/24  fd44:0:0:1::/64    zone a
    …         │
    node-6 ───┘   10.99.0.16   fd99::10  pods 10.244.6.0/24  fd44:0:0:6::/64    zone c

Each node is a namespace with a bridge to which its pods, namespaces too, are joined; it forwards
as a node does. Every pod answers on TCP and UDP, line by line, with its name and the address that
the question came from. The API server and the proxies are processes; the pods and their clients
are sockets of the test's own process.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tests.netns.spaces import inside, ip, remove, sysctl

from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.runtime import Client, HttpsTransport, load_config

PORT = 8080
PATIENCE = 180.0
SILENCE = 1.0
"""After so many seconds without an answer a question counts as unanswered."""

ZONES = "aabbcc"
NODES = tuple(f"node-{i}" for i in range(1, 7))
CLUSTER_CIDRS = "10.244.0.0/16,fd44::/32"
API = "10.99.0.254"

SERVICE = unstructured(Resource("", "v1", "Service", "services"))
SLICE = unstructured(Resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"))
NODE = unstructured(Resource("", "v1", "Node", "nodes", namespaced=False))


@dataclass(frozen=True)
class Answer:
    """The pod that answered and the source address it saw; or the fault instead."""

    pod: str = ""
    source: str = ""
    fault: str = ""


REFUSED = Answer(fault="refused")
SILENT = Answer(fault="silent")


@dataclass(frozen=True)
class Pod:
    """A pod, its node, its zone and its addresses."""

    name: str
    node: str
    zone: str
    ipv4: str
    ipv6: str

    def address(self, family: str = "IPv4") -> str:
        return self.ipv4 if family == "IPv4" else self.ipv6


def _pods() -> dict[str, Pod]:
    return {
        f"pod-{i}{letter}": Pod(
            f"pod-{i}{letter}",
            f"node-{i}",
            ZONES[i - 1],
            f"10.244.{i}.{10 + j}",
            f"fd44:0:0:{i}::{10 + j:x}",
        )
        for i in range(1, 7)
        for j, letter in enumerate("xy", start=1)
    }


PODS = _pods()


def node_address(node: str, family: str = "IPv4") -> str:
    number = 10 + int(node.rpartition("-")[2])
    return f"10.99.0.{number}" if family == "IPv4" else f"fd99::{number:x}"


@dataclass
class Lab:
    """The laboratory; a namespace is named after a node, a pod, ``fabric`` or ``outside``."""

    folder: Path
    prefix: str
    options: tuple[str, ...] = ()
    api: list[subprocess.Popen[bytes]] = field(default_factory=list)
    proxies: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: Iterator[int] = field(default_factory=lambda: iter(range(10_000, 32_000)))
    client: Client = field(init=False)

    def space(self, name: str) -> str:
        """The namespace of that name."""
        return f"{self.prefix}-{name}"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "data" / "kubeconfig"

    # Programs.

    def start_proxy(self, node: str, *options: str) -> None:
        """Run the proxy of a node."""
        words = ("proxy", "--node-name", node, "--kubeconfig", str(self.kubeconfig))
        cidrs = ("--cluster-cidr", CLUSTER_CIDRS, "-v")
        self.proxies[node] = program(
            self.space(node), *words, *cidrs, *self.options, *options, log=self.log(node)
        )

    def start_api(self) -> None:
        """Run the API server, on the state that it stored."""
        words = ("up", "--api-only", "--listen", f"{API}:6443", "--data", str(self.folder / "data"))
        log = self.folder / "api.log"
        self.api.append(program(self.space("fabric"), *words, log=log))

    def kill_api(self) -> None:
        """End the API server at once."""
        process = self.api.pop()
        process.kill()
        process.wait()

    def log(self, node: str) -> Path:
        return self.folder / f"{node}.log"

    def stop_proxy(self, node: str, *, kill: bool = False) -> int:
        """End the proxy of a node."""
        process = self.proxies.pop(node)
        if kill:
            process.kill()
        else:
            process.terminate()
        return process.wait(timeout=PATIENCE)

    async def command(self, name: str, *words: str, before: Sequence[str] = ()) -> tuple[int, str]:
        """Run our program in a namespace to its end: exit code and output."""
        with inside(self.space(name)):
            process = await asyncio.create_subprocess_exec(
                *before,
                *(sys.executable, "-m", "zonewise", *words),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        async with asyncio.timeout(PATIENCE):
            output, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, output.decode()

    # Objects.

    async def node(self, name: str) -> None:
        i = int(name.rpartition("-")[2])
        labels = {"topology.kubernetes.io/zone": ZONES[i - 1], "kubernetes.io/hostname": name}
        spec = {
            "podCIDR": f"10.244.{i}.0/24",
            "podCIDRs": [f"10.244.{i}.0/24", f"fd44:0:0:{i}::/64"],
        }
        await self.client.create(NODE({"metadata": {"name": name, "labels": labels}, "spec": spec}))
        addresses = [
            {"type": "InternalIP", "address": node_address(name, family)}
            for family in ("IPv4", "IPv6")
        ]
        status = {"status": {"addresses": addresses}}
        await self.client.patch(NODE, name, None, status, subresource="status")

    async def label(self, node: str, **labels: str | None) -> None:
        """Change labels of a node; ``__`` stands for a slash."""
        named = {key.replace("__", "/").replace("_", "."): value for key, value in labels.items()}
        await self.client.patch(NODE, node, None, {"metadata": {"labels": named}})

    async def service(
        self,
        name: str,
        *,
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
        protocol: str = "TCP",
        **spec: Any,
    ) -> dict[str, Any]:
        """Create a Service; returns it as it was stored."""
        port = {"name": "p", "port": 80, "targetPort": PORT, "protocol": protocol}
        if "nodePort" in spec:
            port["nodePort"] = spec.pop("nodePort")
        metadata = {"labels": labels or {}, "annotations": annotations or {}}
        service = await self.client.create(
            SERVICE(
                {
                    "metadata": {"name": name, "namespace": "default", **metadata},
                    "spec": {"ports": [port], **spec},
                }
            )
        )
        return service.raw

    async def cluster_ip(self, name: str, **more: Any) -> str:
        """Create a Service; returns its ClusterIP."""
        return str((await self.service(name, **more))["spec"]["clusterIP"])

    async def vip(self, service: str, *addresses: str, mode: str | None = None) -> None:
        """Set the addresses of a Service's load balancer."""
        ingress = [{"ip": address, **({"ipMode": mode} if mode else {})} for address in addresses]
        status = {"status": {"loadBalancer": {"ingress": ingress}}}
        await self.client.patch(SERVICE, service, "default", status, subresource="status")

    async def endpoints(
        self,
        service: str,
        *endpoints: dict[str, Any] | str,
        family: str = "IPv4",
        protocol: str = "TCP",
        weights: str = "",
        part: str = "",
    ) -> None:
        """Make a slice of a Service equal to this; a name is that pod, ready and unhinted."""
        annotations = {"zonewise.io/zone-weights": weights} if weights else {}
        body = {
            "metadata": {
                "labels": {"kubernetes.io/service-name": service},
                "annotations": annotations,
            },
            "addressType": family,
            "endpoints": [
                endpoint(target, family) if isinstance(target, str) else target
                for target in endpoints
            ],
            "ports": [{"name": "p", "port": PORT, "protocol": protocol}],
        }
        name = f"{service}-{family.lower()}{part}"
        await self.client.apply(SLICE, name, "default", body, force=True)

    def route(self, asker: str, network: str, node: str) -> None:
        """Have packets to a network go to a node, as a router outside would."""
        family = "IPv6" if ":" in network else "IPv4"
        ip([f"route replace {network} via {node_address(node, family)}"], name=self.space(asker))

    # Questions.

    def socket(self, asker: str, kind: int, address: str) -> socket.socket:
        """A socket in a namespace, of an address's family."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with inside(self.space(asker)):
            link = socket.socket(family, kind)
        link.setblocking(False)
        return link

    async def ask(
        self, asker: str, address: str, port: int = 80, *, udp: bool = False, local: int = 0
    ) -> Answer:
        """One question by a new connection, or from a given local port.

        A datagram's local port is one that was not used before: the kernel might give one again
        whose flow is still known, and that goes where it went.
        """
        kind = socket.SOCK_DGRAM if udp else socket.SOCK_STREAM
        if udp and not local:
            local = next(self.ports)
        with self.socket(asker, kind, address) as link:
            if local:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                link.bind(("::" if ":" in address else "0.0.0.0", local))
            return await converse(link, (address, port))

    async def spread(
        self, asker: str, address: str, port: int = 80, *, times: int = 24, udp: bool = False
    ) -> set[str]:
        """The pods that answer many questions; faults are in the set by name."""
        questions = [self.ask(asker, address, port, udp=udp) for _ in range(times)]
        return {answer.pod or answer.fault for answer in await asyncio.gather(*questions)}

    async def reaches(
        self, asker: str, address: str, *pods: str, port: int = 80, udp: bool = False
    ) -> None:
        """Wait until exactly these pods or faults answer, then check that it stays so."""
        expected = set(pods)
        times = 1 if expected == {"silent"} else max(24, 12 * len(expected))
        answering: set[str] = set()

        async def now() -> bool:
            nonlocal answering
            answering = await self.spread(asker, address, port, udp=udp, times=times)
            return answering == expected

        await self.until(now, lambda: f"{asker} reaches {answering} at {address}, not {expected}")
        for _ in range(2):
            answering = await self.spread(asker, address, port, udp=udp, times=times)
            assert answering <= expected, (asker, address, answering)

    async def until(self, condition: Callable[[], Any], what: Callable[[], str]) -> None:
        """Wait for a condition while every proxy runs."""
        await until(condition, what, self._alive)

    def _alive(self) -> None:
        for node, process in self.proxies.items():
            assert process.poll() is None, (node, self.log(node).read_text())


async def until(
    condition: Callable[[], Any],
    what: Callable[[], str],
    check: Callable[[], None] = lambda: None,
) -> None:
    """Wait for a condition; ``check`` runs before each look and may fail the test."""
    deadline = time.monotonic() + PATIENCE
    while True:
        check()
        holds = condition()
        if asyncio.iscoroutine(holds):
            holds = await holds
        if holds:
            return
        assert time.monotonic() < deadline, f"not in time: {what()}"
        await asyncio.sleep(0.05)


def endpoint(pod: str, family: str = "IPv4", **more: Any) -> dict[str, Any]:
    """A pod as an endpoint; ``zones`` and ``nodes`` are hints, the rest conditions or fields."""
    known = PODS[pod]
    hints = {
        word: [{"name": name} for name in more.pop(key)]
        for key, word in (("zones", "forZones"), ("nodes", "forNodes"))
        if key in more
    }
    conditions = {"ready": True, "serving": True, "terminating": False}
    conditions |= {key: more.pop(key) for key in conditions if key in more}
    return {
        "addresses": [known.address(family)],
        "nodeName": known.node,
        "zone": known.zone,
        "conditions": conditions,
        **({"hints": hints} if hints else {}),
        **more,
    }


async def converse(link: socket.socket, where: tuple[str, int], *, connect: bool = True) -> Answer:
    """Send a question over a socket; returns the answer or the fault."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(SILENCE):
            if connect:
                await loop.sock_connect(link, where)
            await loop.sock_sendall(link, b"?\n")
            reply = await loop.sock_recv(link, 1000)
    except TimeoutError:
        return SILENT
    except ConnectionRefusedError:
        return REFUSED
    except OSError as error:
        return Answer(fault=str(error))
    pod, _, source = reply.decode().strip().partition(" ")
    return Answer(pod, source.removeprefix("::ffff:"))


def program(space: str, *words: str, log: Path) -> subprocess.Popen[bytes]:
    """Start our program in a namespace."""
    with inside(space), log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "zonewise", *words], stdout=file, stderr=file
        )


def spaces(prefix: str) -> list[str]:
    """The names of all namespaces."""
    return [f"{prefix}-{name}" for name in ("fabric", "outside", *NODES, *PODS)]


def build(prefix: str) -> None:
    """Make all namespaces and wires."""
    ip([f"netns add {name}" for name in spaces(prefix)])
    ip(
        [
            "link set lo up",
            "link add br0 type bridge",
            "link set br0 up",
            f"addr add {API}/24 dev br0",
            "addr add fd99::fe/64 dev br0 nodad",
        ],
        name=f"{prefix}-fabric",
    )
    _join(prefix, "outside", "10.99.0.200", "fd99::c8")
    for node in NODES:
        _join(prefix, node, node_address(node), node_address(node, "IPv6"))
        _node(prefix, node)


def _join(prefix: str, name: str, ipv4: str, ipv6: str) -> None:
    """Connect a namespace to the fabric."""
    space, fabric = f"{prefix}-{name}", f"{prefix}-fabric"
    ip([f"link add eth0 netns {space} type veth peer name {name} netns {fabric}"])
    ip([f"link set {name} master br0 up"], name=fabric)
    ip(
        [
            "link set lo up",
            "link set eth0 up",
            f"addr add {ipv4}/24 dev eth0",
            f"addr add {ipv6}/64 dev eth0 nodad",
            f"route add default via {API}",
            "route add ::/0 via fd99::fe",
        ],
        name=space,
    )


def _node(prefix: str, node: str) -> None:
    space = f"{prefix}-{node}"
    i = int(node.rpartition("-")[2])
    mine = [pod for pod in PODS.values() if pod.node == node]
    others = [other for other in range(1, 7) if other != i]
    ip(
        [
            "link add cni0 type bridge",
            "link set cni0 up",
            f"addr add 10.244.{i}.1/24 dev cni0",
            f"addr add fd44:0:0:{i}::1/64 dev cni0 nodad",
            *(f"route add 10.244.{other}.0/24 via 10.99.0.{10 + other}" for other in others),
            *(f"route add fd44:0:0:{other}::/64 via fd99::{10 + other:x}" for other in others),
        ],
        name=space,
    )
    forwarding = {
        "bridge/bridge-nf-call-iptables": "1",
        "bridge/bridge-nf-call-ip6tables": "1",
        "ipv4/ip_forward": "1",
        "ipv6/conf/all/forwarding": "1",
        "ipv4/conf/all/rp_filter": "0",
        "ipv4/conf/eth0/rp_filter": "0",
    }
    sysctl(space, forwarding)
    for pod in mine:
        home = f"{prefix}-{pod.name}"
        ip([f"link add {pod.name} netns {space} type veth peer name eth0 netns {home}"])
        # A bridge sends a frame back to its port only in hairpin mode, which CNIs set, too.
        hairpin = f"link set {pod.name} type bridge_slave hairpin on"
        ip([f"link set {pod.name} master cni0 up", hairpin], name=space)
        ip(
            [
                "link set lo up",
                "link set eth0 up",
                f"addr add {pod.ipv4}/24 dev eth0",
                f"addr add {pod.ipv6}/64 dev eth0 nodad",
                f"route add default via 10.244.{i}.1",
                f"route add ::/0 via fd44:0:0:{i}::1",
            ],
            name=home,
        )


async def _answer(name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    peer = writer.get_extra_info("peername")[0]
    with suppress(OSError):
        while await reader.readline():
            writer.write(f"{name} {peer}\n".encode())
            await writer.drain()
    writer.close()


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, name: str) -> None:
        self._name = name
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        assert self._transport is not None
        self._transport.sendto(f"{self._name} {addr[0]}\n".encode(), addr)


async def _open_pods(prefix: str, stack: AsyncExitStack) -> None:
    for name in PODS:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            with inside(f"{prefix}-{name}"):
                link = socket.socket(socket.AF_INET6, kind)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            link.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            link.bind(("::", PORT))
            await _open(name, kind, link, stack)


async def _open(name: str, kind: int, link: socket.socket, stack: AsyncExitStack) -> None:
    if kind == socket.SOCK_DGRAM:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(name), sock=link)
        stack.callback(transport.close)
        return

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _answer(name, reader, writer)

    server = await asyncio.start_server(answer, sock=link, backlog=1000)
    stack.callback(server.close)


@asynccontextmanager
async def laboratory(
    folder: Path, *, proxies: Iterable[str] = (), options: Sequence[str] = ()
) -> AsyncIterator[Lab]:
    """A laboratory with an API server, all Nodes, and proxies on some of them."""
    prefix = f"zw{os.getpid()}"
    async with AsyncExitStack() as stack:
        stack.callback(remove, spaces(prefix))
        build(prefix)
        config = folder / "data" / "kubeconfig"
        servers: list[subprocess.Popen[bytes]] = []
        stack.callback(lambda: _end(*servers))
        lab = Lab(folder, prefix, tuple(options), servers)
        lab.start_api()
        await until(config.exists, (folder / "api.log").read_text)
        await _open_pods(prefix, stack)
        stack.enter_context(inside(f"{prefix}-fabric"))
        lab.client = await stack.enter_async_context(
            Client(HttpsTransport(load_config(str(config))))
        )
        for node in NODES:
            await lab.node(node)
        stack.callback(lambda: _end(*lab.proxies.values()))
        for node in proxies:
            lab.start_proxy(node)
        yield lab


def _end(*processes: subprocess.Popen[bytes]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()
