"""Health checks of load balancers: the addresses that serve them, and ports in use."""

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
from zonewise.proxy.netlink.addresses import interface_addresses
from zonewise.proxy.summary import RoutesSummary
from zonewise.traffic.routes.table import Family

KEY = ("default", "s")
PORT = 31999
PRESENT = ("127.0.0.1", "192.0.2.1", "192.0.2.9", "::1", "2001:db8::1", "fe80::1%2")


@pytest.mark.parametrize(
    ("family", "networks", "expected"),
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
    family: Family, networks: tuple[str, ...], expected: set[str]
) -> None:
    """Node ports are at the node's addresses within the networks; for 0.0.0.0/0 or ::/0, at one
    wildcard address.
    """
    assert listening(family, networks, map(ip_address, PRESENT)) == expected


def test_addresses_of_interfaces(netns: str) -> None:
    """Every address of any interface is listed once; the peer's address is not."""
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
    addresses = sorted(str(address) for address in interface_addresses())
    numbers = {name: number for number, name in socket.if_nameindex()}
    local = {f"fe80::7%{numbers[name]}" for name in ("two", "lo")}
    assert {"127.0.0.1", "192.0.2.1", "192.0.2.9", "::1", "2001:db8::1"} | local <= set(addresses)
    assert "192.0.2.10" not in addresses
    assert len(addresses) == len(set(addresses))


class Node:
    """A node with health checks; ``refused`` has those that could not listen."""

    def __init__(self) -> None:
        self.summary = RoutesSummary()
        self.networks: NodePortNetworks = {}
        self.refused: list[tuple[Key, int, str]] = []

    def ask(self, **networks: tuple[str, ...]) -> None:
        """Have one local endpoint, and node ports in these networks."""
        self.networks = {"IPv4": networks["v4"], "IPv6": networks["v6"]}
        self.summary.checks[KEY] = {("IPv4", PORT): 1, ("IPv6", PORT): 1}
        self.summary.checks_changed.set()


@asynccontextmanager
async def node(monkeypatch: pytest.MonkeyPatch, netns: str) -> AsyncIterator[Node]:
    """A node with two addresses of each family that retries often."""
    monkeypatch.setattr(healthchecks, "PERIOD", 0.02)
    host = Node()
    # Without "nodad" an IPv6 address cannot be bound before duplicate detection is done.
    texts = ("192.0.2.1/32", "192.0.2.9/32", "2001:db8::1/128 nodad", "2001:db8::9/128 nodad")
    ip([f"addr add dev lo {text}" for text in texts], name=netns)
    checks = HealthChecks(
        host.summary,
        networks=lambda: host.networks,
        healthy=lambda: True,
        refused=lambda key, port, why: host.refused.append((key, port, why)),
    )
    task = asyncio.create_task(checks.run())
    try:
        yield host
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
    """Wait until an address answers."""
    await until(lambda: answers(address))


async def served() -> set[str]:
    candidates = ("127.0.0.1", "192.0.2.1", "192.0.2.9", "::1", "2001:db8::1", "2001:db8::9")
    return {address for address in candidates if await answers(address)}


async def settles(*addresses: str) -> None:
    """Wait until exactly these addresses answer."""

    async def only() -> bool:
        return await served() == set(addresses)

    await until(only)


async def test_checks_are_served_at_the_addresses_of_node_ports(
    monkeypatch: pytest.MonkeyPatch, netns: str
) -> None:
    """No other address is listened on, and servers move when the networks change."""
    async with node(monkeypatch, netns) as host:
        host.ask(v4=("192.0.2.1/32",), v6=("2001:db8::/64",))
        await settles("192.0.2.1", "2001:db8::1", "2001:db8::9")
        host.ask(v4=("0.0.0.0/0",), v6=("2001:db8::9/128",))
        await settles("127.0.0.1", "192.0.2.1", "192.0.2.9", "2001:db8::9")
        host.ask(v4=("127.0.0.0/8",), v6=("::/0",))
        await settles("127.0.0.1", "::1", "2001:db8::1", "2001:db8::9")
        host.summary.checks.clear()
        host.summary.checks_changed.set()
        await settles()
    assert host.refused == []


async def test_an_address_that_comes_later_is_served(
    monkeypatch: pytest.MonkeyPatch, netns: str
) -> None:
    """Without an address in the networks nothing listens, until one is added."""
    async with node(monkeypatch, netns) as host:
        host.ask(v4=("198.51.100.0/24",), v6=("2001:db8::1/128",))
        await settles("2001:db8::1")
        ip(["addr add 198.51.100.7/32 dev lo"], name=netns)
        await reached("198.51.100.7")
    assert host.refused == []


async def test_a_port_in_use_is_reported_once_and_served_when_it_is_free(
    monkeypatch: pytest.MonkeyPatch, netns: str
) -> None:
    """A port in use is one event, however often it is tried; other addresses are served."""
    async with node(monkeypatch, netns) as host:
        with socket.create_server(("192.0.2.1", PORT)) as taken:
            host.ask(v4=("192.0.2.0/24",), v6=("2001:db8::1/128",))
            await reached("192.0.2.9")
            ip(["addr add 192.0.2.11/32 dev lo"], name=netns)
            await reached("192.0.2.11")  # so the port in use was tried again
            taken.close()
            await settles("192.0.2.1", "192.0.2.9", "2001:db8::1")
        assert host.refused == [(KEY, PORT, host.refused[0][2])]
        assert "in use" in host.refused[0][2]
