"""Which elements of maps and sets routes are laid out as."""

from __future__ import annotations

from tests.proxy.services import HERE, backend, route, service

from zonewise.proxy.netlink.draws import Draw
from zonewise.proxy.tables.layout import Layout, decode, lay_out
from zonewise.traffic.routes.table import ServiceRoutes


def rows_by_map(layout: Layout) -> dict[str, dict[str, str]]:
    """The elements of each map, as nft prints them."""
    maps: dict[str, dict[str, str]] = {}
    for key, data in layout.elements.items():
        _, kind, found_by, leads_to = decode(key, data)
        maps.setdefault(kind.name, {})[found_by] = leads_to
    return maps


def laid(routes: ServiceRoutes) -> dict[str, dict[str, str]]:
    return rows_by_map(lay_out(routes, HERE))


def test_a_cluster_ip_is_a_choice_and_its_slots() -> None:
    """A ClusterIP leads to a chain for its number of endpoints, and each endpoint has a slot."""
    maps = laid(service("s", route("ClusterIP", "10.96.0.1", backend(5), backend(6, node=HERE))))
    assert maps == {
        "services": {"10.96.0.1 . tcp . 80": "goto slots-2"},
        "endpoints": {
            "0 . 10.96.0.1 . tcp . 80": "10.244.0.5 . 8080",
            "1 . 10.96.0.1 . tcp . 80": "10.244.0.6 . 8080",
        },
        "cluster-ips": {"10.96.0.1": ""},
        "hairpin": {"10.244.0.6 . 10.244.0.6": ""},
    }


def test_services_without_endpoints_reject_and_a_local_policy_drops() -> None:
    """Reject is an element of the set "refused"; drop is a verdict instead of a chain."""
    assert laid(service("s", route("ClusterIP", "10.96.0.1"))) == {
        "refused": {"10.96.0.1 . tcp . 80": ""},
        "cluster-ips": {"10.96.0.1": ""},
    }
    assert laid(service("s", route("ClusterIP", "10.96.0.1", action="drop"))) == {
        "services": {"10.96.0.1 . tcp . 80": "drop"},
        "cluster-ips": {"10.96.0.1": ""},
    }
    assert laid(service("s", route("NodePort", None, number=30000), protocol="UDP")) == {
        "nodeport-refused": {"udp . 30000": ""}
    }


def test_an_external_address_is_masqueraded() -> None:
    """External addresses and node ports with the policy Cluster are marked first."""
    maps = laid(
        service(
            "s",
            route("ExternalIP", "203.0.113.1", backend(5)),
            route("NodePort", None, backend(5), number=30000),
        )
    )
    assert maps["externals"] == {"203.0.113.1 . tcp . 80": "jump mark-masquerade"}
    assert maps["nodeport-externals"] == {"tcp . 30000": "jump mark-masquerade"}
    assert maps["nodeports"] == {"tcp . 30000": "goto nodeport-slots-1"}
    assert maps["nodeport-endpoints"] == {"0 . tcp . 30000": "10.244.0.5 . 8080"}


def test_a_local_policy_has_different_endpoints_for_outside_and_inside() -> None:
    """Packets from outside draw from separate slots, packets from inside from the usual ones."""
    maps = laid(
        service(
            "s",
            route("LoadBalancer", "203.0.113.1", backend(5), backend(6), source="inside"),
            route("LoadBalancer", "203.0.113.1", backend(5), source="outside"),
            route("NodePort", None, backend(5), backend(6), number=30000, source="inside"),
            route("NodePort", None, number=30000, source="outside", action="drop"),
        )
    )
    assert maps["externals"] == {"203.0.113.1 . tcp . 80": "jump from-outside"}
    assert maps["services"] == {"203.0.113.1 . tcp . 80": "goto slots-2"}
    assert maps["outside"] == {"203.0.113.1 . tcp . 80": "goto outside-1"}
    assert maps["endpoints"][f"{1 << 31} . 203.0.113.1 . tcp . 80"] == "10.244.0.5 . 8080"
    assert maps["nodeport-outside"] == {"tcp . 30000": "drop"}
    assert maps["nodeports"] == {"tcp . 30000": "goto nodeport-slots-2"}


def test_source_ranges_are_merged_and_own_sources_added() -> None:
    """Ranges that overlap become one, since the kernel's set refuses them otherwise."""
    ranges = ("10.0.0.0/8", "10.1.0.0/16", "192.168.0.0/24")
    maps = laid(
        service(
            "s",
            route("LoadBalancer", "203.0.113.1", backend(5), ranges=ranges, own=("203.0.113.1",)),
        )
    )
    assert maps["firewalled"] == {"203.0.113.1 . tcp . 80": ""}
    assert set(maps["source-ranges"]) == {
        "203.0.113.1 . tcp . 80 . 10.0.0.0-10.255.255.255",
        "203.0.113.1 . tcp . 80 . 192.168.0.0-192.168.0.255",
        "203.0.113.1 . tcp . 80 . 203.0.113.1",
    }


def test_one_address_by_two_paths_is_laid_out_once_with_its_ranges() -> None:
    """An external IP that is also the load balancer's has the first choice and the ranges."""
    maps = laid(
        service(
            "s",
            route("ExternalIP", "203.0.113.1", backend(5)),
            route("LoadBalancer", "203.0.113.1", backend(6), ranges=("10.0.0.0/8",)),
        )
    )
    assert maps["endpoints"] == {"0 . 203.0.113.1 . tcp . 80": "10.244.0.5 . 8080"}
    assert maps["firewalled"] == {"203.0.113.1 . tcp . 80": ""}


def test_affinity_is_a_chain_of_few_rules_and_one_map_of_clients() -> None:
    """All addresses and ports share one map of clients, in which an endpoint has one id."""
    two = (backend(5), backend(6))
    first = lay_out(
        service(
            "s",
            route("ClusterIP", "10.96.0.1", *two),
            route("NodePort", None, *two, number=30000),
            affinity=600,
        ),
        HERE,
    )
    (_, by_address), (_, by_port) = first.chains
    assert by_address.clients == by_port.clients
    assert by_address.clients is not None
    assert by_address.clients.seconds == 600
    maps = rows_by_map(first)
    assert set(maps["services"].values()) == {f"goto {by_address.name}"}
    assert set(maps["nodeports"].values()) == {f"goto {by_port.name}"}
    assert "endpoints" not in maps
    ids = {way.partition(" ")[0]: end for way, end in maps["members"].items()}
    assert set(maps["drawn"].values()) == set(maps["nodeport-drawn"].values()) == ids.keys()
    assert sorted(ids.values()) == ["10.244.0.5 . 8080", "10.244.0.6 . 8080"]
    other = lay_out(service("s", route("ClusterIP", "10.96.0.1", two[1]), affinity=600), HERE)
    assert other.chains[0][1].name != by_address.name
    assert other.chains[0][1].clients == by_address.clients
    assert rows_by_map(other)["members"].items() <= maps["members"].items()
    longer = lay_out(service("s", route("ClusterIP", "10.96.0.1", *two), affinity=601), HERE)
    elsewhere = lay_out(service("t", route("ClusterIP", "10.96.0.2", *two), affinity=600), HERE)
    for layout in (longer, elsewhere):
        assert layout.chains[0][1].clients != by_address.clients
        assert layout.chains[0][1].name != by_address.name


def test_weights_are_groups_of_slots() -> None:
    """Each weight has a rule that draws from its slots in proportion; equal weights need none."""
    three = (backend(5, weight=3000), backend(6, weight=1), backend(7, weight=3000))
    first = lay_out(service("s", route("ClusterIP", "10.96.0.1", *three)), HERE)
    ((family, chain),) = first.chains
    assert family == "IPv4"
    assert chain.draws == (Draw(1, 0, 1, 6001), Draw(2, 1 << 20), Draw(1, 0))
    maps = rows_by_map(first)
    assert set(maps["services"].values()) == {f"goto {chain.name}"}
    assert maps["endpoints"] == {
        "0 . 10.96.0.1 . tcp . 80": "10.244.0.6 . 8080",
        f"{1 << 20} . 10.96.0.1 . tcp . 80": "10.244.0.5 . 8080",
        f"{(1 << 20) + 1} . 10.96.0.1 . tcp . 80": "10.244.0.7 . 8080",
    }
    assert "numgen random mod 6001 < 1 dnat ip to" in chain.text("IPv4")
    alike = (backend(5, weight=9), backend(6, weight=9))
    assert lay_out(service("s", route("ClusterIP", "10.96.0.1", *alike)), HERE) == lay_out(
        service("s", route("ClusterIP", "10.96.0.1", backend(5), backend(6))), HERE
    )


def test_affinity_with_weights_draws_by_weight_and_keeps_clients() -> None:
    """New weights make a new chain with the same map of clients and the same endpoint ids."""
    even = lay_out(
        service("s", route("ClusterIP", "10.96.0.1", backend(5), backend(6)), affinity=60), HERE
    )
    heavy = (backend(5, weight=30), backend(6, weight=10))
    uneven = lay_out(service("s", route("ClusterIP", "10.96.0.1", *heavy), affinity=60), HERE)
    ((_, before),), ((_, after),) = even.chains, uneven.chains
    assert before.name != after.name
    assert before.clients == after.clients
    assert rows_by_map(even)["members"] == rows_by_map(uneven)["members"]
    assert "mod 40 < 10 meta priority set" in after.text("IPv4")


def test_ipv6_has_tables_of_its_own() -> None:
    """IPv6 routes become elements of the IPv6 table only."""
    six = service("s", route("ClusterIP", "fd00::1", backend(5, family="IPv6")), family="IPv6")
    layout = lay_out(six, HERE)
    families = {decode(key, data)[0] for key, data in layout.elements.items()}
    assert families == {"IPv6"}
    assert rows_by_map(layout)["endpoints"] == {"0 . fd00::1 . tcp . 80": "fd44::5 . 8080"}
