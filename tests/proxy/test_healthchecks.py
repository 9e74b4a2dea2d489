"""Health checks of load balancers: where they are served, and what happens where they cannot be."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address

import pytest
from tests.netns.spaces import ip

from zonewise.api.meta import Key
from zonewise.proxy import healthchecks
from zonewise.proxy.healthchecks import HealthChecks, NodePortNetworks, listening
from zonewise.proxy.netlink import interface_addresses
from zonewise.proxy.summary import RoutesSummary
from zonewise.traffic.routes.table import Family

KEY = ("default", "s")
PORT = 31999
PRESENT = ("127.0.0.1", "192.0.2.1", "192.0.2.9", "::1", "2001:db8::1", "fe80::1%2")


@pytest.mark.parametrize(
    ("family", "networks", "found"),
    [
        ("IPv4", ("192.0.2.1/32",), {"192.0.2.1"}),
        ("IPv4", ("192.0.2.0/24", "127.0.0.0/8"), {"127.0.0.1", "192.0.2.1", "192.0.2.9"}),
        ("IPv4", ("198.51.100.0/24",), set()),
        ("IPv4", ("0.0.0.0/0",), {"0.0.0.0"}),
        ("IPv6", ("2001:db8::/32",), {"2001:db8::1"}),
        ("IPv6", ("fe80::/10",), {"fe80::1%2"}),
        ("IPv6", ("::/0",), {"::"}),
    ],
)
def test_addresses_of_node_ports(
    family: Family, networks: tuple[str, ...], found: set[str]
) -> None:
    """Those of the node within the networks; a network of everything is one address for all."""
    assert listening(family, networks, map(ip_address, PRESENT)) == found


def test_addresses_of_interfaces(netns: str) -> None:
    """Every address is found once, on whichever interface; the peer of a link is somebody else."""
    ip(
        [
            "link add one type veth peer name two",
            "link set one up",
            "addr add 192.0.2.1/24 dev one",
            "addr add 192.0.2.9 peer 192.0.2.10 dev two",
            "addr add 2001:db8::1/64 dev one nodad",
            "addr add fe80::7/64 dev two nodad",
            "addr add fe80::7/64 dev lo nodad",
        ],
        name=netns,
    )
    found = sorted(str(one) for one in interface_addresses())
    numbers = {name: number for number, name in socket.if_nameindex()}
    local = {f"fe80::7%{numbers[name]}" for name in ("two", "lo")}
    assert {"127.0.0.1", "192.0.2.1", "192.0.2.9", "::1", "2001:db8::1"} | local <= set(found)
    assert "192.0.2.10" not in found
    assert len(found) == len(set(found))


class Node:
    """A node whose health checks are asked for; ``refused`` is what its Service was told."""

    def __init__(self) -> None:
        self.summary = RoutesSummary()
        self.networks: NodePortNetworks = {}
        self.refused: list[tuple[Key, int, str]] = []

    def ask(self, **networks: tuple[str, ...]) -> None:
        """One endpoint is here, and node ports are at these."""
        self.networks = {"IPv4": networks["v4"], "IPv6": networks["v6"]}
        self.summary.checks[KEY] = {("IPv4", PORT): 1, ("IPv6", PORT): 1}
        self.summary.checks_changed.set()


@asynccontextmanager
async def node(monkeypatch: pytest.MonkeyPatch, netns: str) -> AsyncIterator[Node]:
    """A node with two addresses of each family, and little patience."""
    monkeypatch.setattr(healthchecks, "PERIOD", 0.02)
    made = Node()
    # An address of IPv6 cannot be bound before the kernel has tried it, but for "nodad".
    texts = ("192.0.2.1/32", "192.0.2.9/32", "2001:db8::1/128 nodad", "2001:db8::9/128 nodad")
    ip([f"addr add dev lo {text}" for text in texts], name=netns)
    checks = HealthChecks(
        made.summary,
        networks=lambda: made.networks,
        healthy=lambda: True,
        refused=lambda key, port, why: made.refused.append((key, port, why)),
    )
    task = asyncio.create_task(checks.run())
    try:
        yield made
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def answers(address: str) -> bool:
    try:
        _, writer = await asyncio.open_connection(address, PORT)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def reached(address: str) -> None:
    """Wait until this one answers."""
    await until(lambda: answers(address))


async def served() -> set[str]:
    asked = ("127.0.0.1", "192.0.2.1", "192.0.2.9", "::1", "2001:db8::1", "2001:db8::9")
    return {address for address in asked if await answers(address)}


async def settles(*addresses: str) -> None:
    """Wait until it is these that answer, and no other."""

    async def only() -> bool:
        return await served() == set(addresses)

    await until(only)


async def test_checks_are_served_where_node_ports_are(
    monkeypatch: pytest.MonkeyPatch, netns: str
) -> None:
    """Nobody listens at other addresses, and servers move when the networks do."""
    async with node(monkeypatch, netns) as made:
        made.ask(v4=("192.0.2.1/32",), v6=("2001:db8::/64",))
        await settles("192.0.2.1", "2001:db8::1", "2001:db8::9")
        made.ask(v4=("0.0.0.0/0",), v6=("2001:db8::9/128",))
        await settles("127.0.0.1", "192.0.2.1", "192.0.2.9", "2001:db8::9")
        made.ask(v4=("127.0.0.0/8",), v6=("::/0",))
        await settles("127.0.0.1", "::1", "2001:db8::1", "2001:db8::9")
        made.summary.checks.clear()
        made.summary.checks_changed.set()
        await settles()
    assert made.refused == []


async def test_an_address_that_comes_later_is_served(
    monkeypatch: pytest.MonkeyPatch, netns: str
) -> None:
    """Where no address is of the networks nobody listens, until one comes."""
    async with node(monkeypatch, netns) as made:
        made.ask(v4=("198.51.100.0/24",), v6=("2001:db8::1/128",))
        await settles("2001:db8::1")
        ip(["addr add 198.51.100.7/32 dev lo"], name=netns)
        await reached("198.51.100.7")
    assert made.refused == []


async def test_a_port_that_is_taken_is_told_once_and_had_when_it_is_free(
    monkeypatch: pytest.MonkeyPatch, netns: str
) -> None:
    """One taken address is one event however often it is tried; the others are served."""
    async with node(monkeypatch, netns) as made:
        with socket.create_server(("192.0.2.1", PORT)) as taken:
            made.ask(v4=("192.0.2.0/24",), v6=("2001:db8::1/128",))
            await reached("192.0.2.9")
            ip(["addr add 192.0.2.11/32 dev lo"], name=netns)
            await reached("192.0.2.11")  # so the taken one was tried again
            taken.close()
            await settles("192.0.2.1", "192.0.2.9", "2001:db8::1")
        assert made.refused == [(KEY, PORT, made.refused[0][2])]
        assert "in use" in made.refused[0][2]
