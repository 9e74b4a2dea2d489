"""Which UDP flows are stale."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.netns.spaces import ip
from tests.proxy.services import backend, route, service

from zonewise.proxy.flows import StaleFlows, is_stale, ways_of
from zonewise.proxy.netlink import conntrack
from zonewise.proxy.netlink.conntrack import UdpFlow
from zonewise.proxy.observer import Sync
from zonewise.proxy.tables.ruleset import FamilyName
from zonewise.traffic.routes.table import ServiceRoutes

NODE = ("10.0.0.1",)


def flow(target: str, port: int, by: str, *, rewritten: bool = True) -> UdpFlow:
    return UdpFlow(target, port, by, 8080, rewritten, b"")


def datagrams(*serving: int, chosen: int = 1) -> ServiceRoutes:
    return service(
        "s",
        route("ClusterIP", "10.96.0.1", *(backend(last) for last in serving[:chosen])),
        route("NodePort", None, *(backend(last) for last in serving[:chosen]), number=30000),
        protocol="UDP",
        serving=tuple(backend(last) for last in serving),
    )


def udp(*serving: int) -> dict[tuple[str, str | None, int], frozenset[tuple[str, int]]]:
    return ways_of(datagrams(*serving))


@pytest.mark.parametrize(
    ("udp_flow", "stale"),
    [
        (flow("10.96.0.1", 80, "10.244.0.5"), False),
        (flow("10.96.0.1", 80, "10.244.0.6"), False),
        (flow("10.96.0.1", 80, "10.244.0.7"), True),
        (flow("10.96.0.1", 80, "10.96.0.1", rewritten=False), True),
        (flow("10.96.0.1", 81, "10.244.0.7"), False),
        (flow("10.0.0.1", 30000, "10.244.0.5"), False),
        (flow("10.0.0.1", 30000, "10.244.0.7"), True),
        (flow("192.0.2.7", 30000, "10.244.0.7"), True),
        (flow("10.0.0.1", 30000, "10.0.0.1", rewritten=False), True),
        (flow("8.8.8.8", 30000, "8.8.8.8", rewritten=False), False),
    ],
)
def test_a_flow_is_stale_if_no_serving_endpoint_answers_it(udp_flow: UdpFlow, stale: bool) -> None:
    """A serving endpoint keeps its flows, chosen or not; flows to other ports are left alone."""
    assert is_stale(udp_flow, "IPv4", udp(5, 6), node=NODE) is stale
    assert not is_stale(udp_flow, "IPv6", udp(5, 6), node=NODE)


def test_without_serving_endpoints_every_flow_is_stale() -> None:
    """The flows of a Service that was scaled to zero are stale."""
    assert is_stale(flow("10.96.0.1", 80, "10.244.0.5"), "IPv4", udp(), node=NODE)


def test_a_node_port_does_not_own_the_same_port_of_another_service() -> None:
    """A flow to an address of a Service belongs to that Service, not to a node port."""
    theirs = flow("10.96.0.2", 30000, "10.244.0.9")
    others = {("IPv4", "10.96.0.2", 30000)}
    assert is_stale(theirs, "IPv4", udp(5), node=NODE)
    assert not is_stale(theirs, "IPv4", udp(5), owned=others, node=NODE)


def test_only_udp_ports_are_tracked() -> None:
    """TCP clients notice themselves that an endpoint is gone."""
    assert ways_of(service("s", route("ClusterIP", "10.96.0.1", backend(5)))) == {}
    assert ways_of(None) == {}


KEY = ("default", "s")


def everywhere() -> dict[FamilyName, tuple[str, ...]]:
    return {"IPv4": ("0.0.0.0/0",), "IPv6": ("::/0",)}


def sync(*, first: bool = False, full: bool = False) -> Sync:
    return Sync(first=first, full=full, services=1, removed=0, put=1, seconds=0.0, triggers=())


@pytest.fixture
def removed(netns: str, monkeypatch: pytest.MonkeyPatch) -> list[UdpFlow]:
    """The flows that were removed from a kernel that has one to each of three endpoints.

    It also has flows to a node port that were never rewritten.
    """
    gone: list[UdpFlow] = []
    tracked = [flow("10.96.0.1", 80, f"10.244.0.{last}") for last in (5, 6, 7)]
    tracked += [
        flow(address, 30000, address, rewritten=False)
        for address in ("192.0.2.9", "127.0.0.1", "8.8.8.8")
    ]

    def flows(_link: object, _family: int, *, target: str | None, port: int) -> Iterator[UdpFlow]:
        yield from (
            entry
            for entry in tracked
            if target in (None, entry.target) and port == entry.target_port
        )

    def remove(_link: object, _family: int, stale: UdpFlow) -> bool:
        gone.append(stale)
        return True

    monkeypatch.setattr(conntrack, "flows", flows)
    monkeypatch.setattr(conntrack, "remove", remove)
    return gone


def test_nothing_is_removed_at_a_restart(removed: list[UdpFlow]) -> None:
    """The first write removes no flow, as it is unknown what it changed; nor does a comparison."""
    flows = StaleFlows(everywhere)
    flows.routed(KEY, datagrams(5))
    flows.synced(sync(first=True, full=True))
    flows.routed(KEY, datagrams(5))
    flows.synced(sync(full=True))
    assert removed == []


def test_flows_are_removed_with_their_endpoint_and_not_by_another_choice(
    removed: list[UdpFlow],
) -> None:
    """Choosing other endpoints removes no flow; removing an endpoint removes its flows."""
    counts: list[tuple[str, int]] = []
    flows = StaleFlows(everywhere, count=lambda family, count, _: counts.append((family, count)))
    flows.routed(KEY, datagrams(5, 6, 7))
    flows.synced(sync(first=True))
    flows.routed(KEY, datagrams(5, 6, 7, chosen=3))
    flows.synced(sync())
    assert removed == []
    flows.routed(KEY, datagrams(5, 6))
    flows.synced(sync())
    assert [stale.answered_by for stale in removed] == ["10.244.0.7"]
    assert ("IPv4", 1) in counts
    removed.clear()
    flows.routed(KEY, datagrams())
    flows.synced(sync())
    assert len(removed) == 3
    removed.clear()
    flows.routed(KEY, None)
    flows.synced(sync())
    assert len(removed) == 3


@pytest.mark.parametrize("first", ["giver", "taker"])
def test_flows_of_an_address_that_moves_are_checked_against_its_new_service(
    removed: list[UdpFlow], first: str
) -> None:
    """Flows to endpoints of the new owner stay, whichever Service is updated first."""
    flows = StaleFlows(everywhere)
    flows.routed(("default", "giver"), datagrams(5, 6))
    flows.synced(sync(first=True))
    routes = {"giver": None, "taker": datagrams(6, 7)}
    for name in sorted(routes, reverse=first == "taker"):
        flows.routed(("default", name), routes[name])
    flows.synced(sync())
    assert [stale.answered_by for stale in removed] == ["10.244.0.5"]
    removed.clear()
    flows.routed(("default", "giver"), None)
    flows.synced(sync())
    assert removed == []


@pytest.mark.parametrize("network", ["0.0.0.0/0", "192.0.2.0/24"])
def test_a_new_node_port_removes_flows_to_the_addresses_it_listens_on(
    removed: list[UdpFlow], network: str
) -> None:
    """Flows from before the Service are removed if they go to the node, but not to loopback."""
    ip(["addr add 192.0.2.9/24 dev lo"])
    flows = StaleFlows(lambda: {"IPv4": (network,), "IPv6": ("::/0",)})
    flows.synced(sync(first=True))
    flows.routed(KEY, datagrams(5, 6, 7))
    flows.synced(sync())
    assert [stale.target for stale in removed] == ["192.0.2.9"]
