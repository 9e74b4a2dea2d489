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
        route("ClusterIP", "10.96.0.1", *(backend(one) for one in serving[:chosen])),
        route("NodePort", None, *(backend(one) for one in serving[:chosen]), number=30000),
        protocol="UDP",
        serving=tuple(backend(one) for one in serving),
    )


def udp(*serving: int) -> dict[tuple[str, str | None, int], frozenset[tuple[str, int]]]:
    return ways_of(datagrams(*serving))


@pytest.mark.parametrize(
    ("told", "stale"),
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
def test_a_flow_is_stale_if_nobody_who_serves_answers_it(told: UdpFlow, stale: bool) -> None:
    """Whoever serves may keep its flows, chosen or not; flows of others are left alone."""
    assert is_stale(told, "IPv4", udp(5, 6), node=NODE) is stale
    assert not is_stale(told, "IPv6", udp(5, 6), node=NODE)


def test_when_nobody_serves_every_flow_is_stale() -> None:
    """Scaled to zero, flows of the Service lead to nobody."""
    assert is_stale(flow("10.96.0.1", 80, "10.244.0.5"), "IPv4", udp(), node=NODE)


def test_a_node_port_has_nothing_to_do_with_the_same_port_of_another_address() -> None:
    """A flow to an address that a Service has is that Service's, whatever else its port is."""
    theirs = flow("10.96.0.2", 30000, "10.244.0.9")
    others = {("IPv4", "10.96.0.2", 30000)}
    assert is_stale(theirs, "IPv4", udp(5), node=NODE)
    assert not is_stale(theirs, "IPv4", udp(5), owned=others, node=NODE)


def test_only_udp_ports_have_ways() -> None:
    """TCP connections notice by themselves."""
    assert ways_of(service("s", route("ClusterIP", "10.96.0.1", backend(5)))) == {}
    assert ways_of(None) == {}


KEY = ("default", "s")


def everywhere() -> dict[FamilyName, tuple[str, ...]]:
    return {"IPv4": ("0.0.0.0/0",), "IPv6": ("::/0",)}


def sync(*, first: bool = False, full: bool = False) -> Sync:
    return Sync(first=first, full=full, services=1, removed=0, put=1, seconds=0.0, triggers=())


@pytest.fixture
def removed(netns: str, monkeypatch: pytest.MonkeyPatch) -> list[UdpFlow]:
    """The flows that were removed, of a kernel that holds one to each of three endpoints.

    And some to a node's port that were never rewritten.
    """
    gone: list[UdpFlow] = []
    held = [flow("10.96.0.1", 80, f"10.244.0.{last}") for last in (5, 6, 7)]
    held += [
        flow(one, 30000, one, rewritten=False) for one in ("192.0.2.9", "127.0.0.1", "8.8.8.8")
    ]

    def flows(_link: object, _family: int, *, target: str | None, port: int) -> Iterator[UdpFlow]:
        yield from (one for one in held if target in (None, one.target) and port == one.target_port)

    def remove(_link: object, _family: int, one: UdpFlow) -> bool:
        gone.append(one)
        return True

    monkeypatch.setattr(conntrack, "flows", flows)
    monkeypatch.setattr(conntrack, "remove", remove)
    return gone


def test_nothing_is_removed_at_a_restart(removed: list[UdpFlow]) -> None:
    """What the first write changed nobody knows, so it removes nothing; nor does a comparison."""
    flows = StaleFlows(everywhere)
    flows.routed(KEY, datagrams(5))
    flows.synced(sync(first=True, full=True))
    flows.routed(KEY, datagrams(5))
    flows.synced(sync(full=True))
    assert removed == []


def test_flows_go_when_who_serves_changes_and_not_when_the_choice_does(
    removed: list[UdpFlow],
) -> None:
    """Another choice removes nothing; an endpoint that leaves, or the last one, its flows."""
    told: list[tuple[str, int]] = []
    flows = StaleFlows(everywhere, count=lambda family, count, _: told.append((family, count)))
    flows.routed(KEY, datagrams(5, 6, 7))
    flows.synced(sync(first=True))
    flows.routed(KEY, datagrams(5, 6, 7, chosen=3))
    flows.synced(sync())
    assert removed == []
    flows.routed(KEY, datagrams(5, 6))
    flows.synced(sync())
    assert [one.answered_by for one in removed] == ["10.244.0.7"]
    assert ("IPv4", 1) in told
    removed.clear()
    flows.routed(KEY, datagrams())
    flows.synced(sync())
    assert len(removed) == 3
    removed.clear()
    flows.routed(KEY, None)
    flows.synced(sync())
    assert len(removed) == 3


@pytest.mark.parametrize("first", ["giver", "taker"])
def test_a_way_that_passes_to_another_service_is_judged_by_the_new_one(
    removed: list[UdpFlow], first: str
) -> None:
    """Whichever of the two is told first, flows to whom the new owner serves stay."""
    flows = StaleFlows(everywhere)
    flows.routed(("default", "giver"), datagrams(5, 6))
    flows.synced(sync(first=True))
    told = {"giver": None, "taker": datagrams(6, 7)}
    for name in sorted(told, reverse=first == "taker"):
        flows.routed(("default", name), told[name])
    flows.synced(sync())
    assert [one.answered_by for one in removed] == ["10.244.0.5"]
    removed.clear()
    flows.routed(("default", "giver"), None)
    flows.synced(sync())
    assert removed == []


@pytest.mark.parametrize("network", ["0.0.0.0/0", "192.0.2.0/24"])
def test_a_node_port_takes_over_flows_to_every_address_it_is_at(
    removed: list[UdpFlow], network: str
) -> None:
    """Flows that began before the Service: to the node's own addresses, not to the loopback."""
    ip(["addr add 192.0.2.9/24 dev lo"])
    flows = StaleFlows(lambda: {"IPv4": (network,), "IPv6": ("::/0",)})
    flows.synced(sync(first=True))
    flows.routed(KEY, datagrams(5, 6, 7))
    flows.synced(sync())
    assert [one.target for one in removed] == ["192.0.2.9"]
