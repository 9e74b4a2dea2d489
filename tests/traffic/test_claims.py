"""Which Service owns an address and port that several name, and the notes of the others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.api import Service, convert
from zonewise.api.meta import Key
from zonewise.traffic.routes.choice import ClientLocation
from zonewise.traffic.routes.claims import Claim, ClaimBasis, Frontend, FrontendClaims
from zonewise.traffic.routes.service import RouteSettings, compute_node_routes
from zonewise.traffic.routes.table import NodeRoutes

SHARED = "203.0.113.7"


def service(
    name: str,
    cluster_ip: str,
    *,
    ports: tuple[int, ...] = (80,),
    protocol: str = "TCP",
    node_port: int = 0,
    vips: tuple[str, ...] = (),
    labels: dict[str, str] | None = None,
    created: str | None = None,
    **spec: Any,
) -> Service:
    """A Service of namespace x unless its name has another, with its own address."""
    namespace, _, own = name.rpartition("/")
    more = {"protocol": protocol, "nodePort": node_port}
    listed = [{"name": f"p{port}", "port": port, **more} for port in ports]
    ingress = [{"ip": vip} for vip in vips]
    return convert(
        Service,
        {
            "metadata": {
                "name": own,
                "namespace": namespace or "x",
                "labels": labels or {},
                "creationTimestamp": created,
            },
            "spec": {"clusterIP": cluster_ip, "ports": listed, **spec},
            "status": {"loadBalancer": {"ingress": ingress}},
        },
    )


NODES = {"10.0.0.1": "n1", "10.0.0.2": "n2", "fd00::1": "n1"}


def routes(*services: Service, name: str = "", allow: bool = False) -> NodeRoutes:
    """The routes of a proxy, which do not depend on the order of Services."""
    settings = RouteSettings(name, node_external_ips=allow)
    location = ClientLocation("a", "n1")
    computed = compute_node_routes(services, [], location, {}, settings, NODES)
    assert computed == compute_node_routes(services[::-1], [], location, {}, settings, NODES)
    return computed


def external(node_routes: NodeRoutes) -> list[tuple[str, str, str | None, int]]:
    """The owner of each address and port other than ClusterIPs."""
    return [
        (routes_of_service.service, route.path, route.address, route.number)
        for routes_of_service in node_routes.services
        for port in routes_of_service.ports
        for route in port.routes
        if route.path != "ClusterIP"
    ]


def test_a_shared_address_has_one_route_and_the_other_service_a_note() -> None:
    """Of equal Services the first by name has the route; the others get a note with the owner."""
    computed = routes(
        service("b", "10.96.0.2", externalIPs=[SHARED]),
        service("w/z", "10.96.0.3", externalIPs=[SHARED], vips=(SHARED,)),
        service("a", "10.96.0.1", vips=(SHARED,)),
    )
    assert external(computed) == [
        ("z", "ExternalIP", SHARED, 80),
        ("z", "LoadBalancer", SHARED, 80),
    ]
    notes = [note for entry in computed.services for note in entry.notes]
    assert [(note.code, note.object, note.message) for note in notes] == [
        (
            "AddressInUse",
            "Service/x/a",
            "LoadBalancer 203.0.113.7:80/TCP is not routed: Service w/z has it",
        ),
        (
            "AddressInUse",
            "Service/x/b",
            "ExternalIP 203.0.113.7:80/TCP is not routed: Service w/z has it",
        ),
    ]
    assert all("no other Service has" in note.fix for note in notes)


def test_a_cluster_ip_is_its_services_own() -> None:
    """A Service that names another's ClusterIP gets no route there; other ports are free."""
    computed = routes(
        service("a", "10.96.0.1", ports=(80, 81), externalIPs=["10.96.0.2"]),
        service("b", "10.96.0.2"),
    )
    assert external(computed) == [("a", "ExternalIP", "10.96.0.2", 81)]
    (note,) = computed.services[0].notes
    assert "10.96.0.2:80/TCP is not routed: Service x/b has it" in note.message


def test_services_may_share_an_address_with_different_ports() -> None:
    """Services may share an address if they do not share a port of one protocol."""
    computed = routes(
        service("a", "10.96.0.1", externalIPs=[SHARED]),
        service("b", "10.96.0.2", ports=(81,), externalIPs=[SHARED]),
        service("c", "10.96.0.3", externalIPs=[SHARED]),
        service("d", "10.96.0.4", protocol="UDP", externalIPs=[SHARED]),
    )
    assert [(name, number) for name, _, _, number in external(computed)] == [
        ("a", 80),
        ("b", 81),
        ("d", 80),
    ]
    assert [entry.service for entry in computed.services if entry.notes] == ["c"]


def test_a_node_port_is_one_services_too() -> None:
    """If two Services have a node port, the first gets it, and both ClusterIPs are routed."""
    two = (service(name, f"10.96.0.{i}", node_port=30080) for i, name in enumerate("ab", 1))
    computed = routes(*two)
    assert external(computed) == [("a", "NodePort", None, 30080)]
    (note,) = computed.services[1].notes
    assert note.message == "NodePort *:30080/TCP is not routed: Service x/a has it"


def test_many_conflicts_are_one_note() -> None:
    """One note names some of the conflicts and counts the rest."""
    ports = tuple(range(80, 90))
    computed = routes(
        service("a", "10.96.0.1", ports=ports, externalIPs=["2001:db8::7", SHARED]),
        service("b", "10.96.0.2", ports=ports, externalIPs=[SHARED]),
    )
    (note,) = computed.services[1].notes
    assert note.message.startswith("ExternalIP 203.0.113.7:80/TCP, ")
    assert note.message.endswith(" and 7 more are not routed: Service x/a has them")


@pytest.mark.parametrize("name", ["", "zonewise"])
def test_services_of_another_proxy_claim_nothing(name: str) -> None:
    """A Service that is not routed here owns no address."""
    labels = {"service.kubernetes.io/service-proxy-name": "zonewise"}
    computed = routes(
        service("a", "10.96.0.1", externalIPs=[SHARED], labels={} if name else labels),
        service("b", "10.96.0.2", externalIPs=[SHARED], labels=labels if name else {}),
        name=name,
    )
    assert external(computed) == [("b", "ExternalIP", SHARED, 80)]


@pytest.mark.parametrize(
    "spelling", [SHARED, "203.0.113.007", f"::ffff:{SHARED}", "::ffff:cb00:7107"]
)
def test_an_external_ip_takes_no_load_balancer_address(spelling: str) -> None:
    """An external IP that is a load balancer's address has no route, whatever its spelling."""
    computed = routes(
        service("a", "10.96.0.1", externalIPs=[spelling], created="2020-01-01T00:00:00Z"),
        service("b", "10.96.0.2", vips=(SHARED,), created="2026-01-01T00:00:00Z"),
    )
    assert external(computed) == [("b", "LoadBalancer", SHARED, 80)]
    (note,) = computed.services[0].notes
    assert note.message == "ExternalIP 203.0.113.7:80/TCP is not routed: Service x/b has it"


def test_a_load_balancer_address_of_ipv6_has_many_spellings() -> None:
    """All spellings of an address are the same address."""
    computed = routes(
        service("a", "fd96::1", externalIPs=["2001:DB8:0:0::7"]),
        service("b", "fd96::2", vips=("2001:db8::0007",)),
    )
    assert external(computed) == [("b", "LoadBalancer", "2001:db8::7", 80)]


def test_of_two_external_ips_the_older_service_has_it() -> None:
    """The later Service gets no route, whatever its name; unknown age comes last."""
    computed = routes(
        service("a", "10.96.0.1", externalIPs=[SHARED]),
        service("b", "10.96.0.2", externalIPs=[SHARED], created="2026-01-02T00:00:00Z"),
        service("c", "10.96.0.3", externalIPs=[SHARED], created="2026-01-01T00:00:00Z"),
        service("d", "10.96.0.4", externalIPs=[SHARED], created="2026-01-01T00:00:00Z"),
    )
    assert external(computed) == [("c", "ExternalIP", SHARED, 80)]


@pytest.mark.parametrize("spelling", ["10.0.0.2", "010.0.0.2", "::ffff:10.0.0.2"])
def test_the_address_of_a_node_is_no_external_ip(spelling: str) -> None:
    """An address of any node is ignored with a note that names it, unless that is allowed."""
    offered = service("a", "10.96.0.1", ports=(10250,), externalIPs=[spelling, SHARED])
    computed = routes(offered)
    assert external(computed) == [("a", "ExternalIP", SHARED, 10250)]
    (note,) = computed.services[0].notes
    assert (note.code, note.object) == ("NodeAddress", "Service/x/a")
    assert note.message == "external IP 10.0.0.2 is not routed: it is an address of Node n2"
    assert "--allow-node-external-ips" in note.fix
    allowed = routes(offered, allow=True)
    assert ("a", "ExternalIP", "10.0.0.2", 10250) in external(allowed)
    assert allowed.services[0].notes == ()


def test_an_external_ip_at_a_node_takes_no_node_port() -> None:
    """If node addresses are allowed, a port that is another's node port stays with it."""
    computed = routes(
        service("a", "10.96.0.1", ports=(30080, 80), externalIPs=["10.0.0.1"]),
        service("b", "10.96.0.2", node_port=30080),
        service("c", "10.96.0.3", ports=(30080,), protocol="UDP", externalIPs=["10.0.0.1"]),
        allow=True,
    )
    assert external(computed) == [
        ("a", "ExternalIP", "10.0.0.1", 80),
        ("b", "NodePort", None, 30080),
        ("c", "ExternalIP", "10.0.0.1", 30080),
    ]
    (note,) = computed.services[0].notes
    assert note.message == "ExternalIP 10.0.0.1:30080/TCP is not routed: Service x/b has it"


def test_a_load_balancer_may_have_the_address_of_a_node() -> None:
    """An address that a controller assigned is routed, even that of a node."""
    computed = routes(service("a", "10.96.0.1", vips=("10.0.0.1",)))
    assert external(computed) == [("a", "LoadBalancer", "10.0.0.1", 80)]
    assert computed.services[0].notes == ()


TITLES = st.sampled_from(
    [ClaimBasis.CLUSTER_IP, ClaimBasis.ASSIGNED, ClaimBasis.NAMED, ClaimBasis.NAMED_ON_NODE]
)
CLAIMS = st.builds(Claim.of, TITLES, st.sampled_from([None, "2025", "2026"]))
WAYS = st.one_of(
    st.tuples(st.sampled_from([f"10.0.0.{i}" for i in range(3)]), st.just(80), CLAIMS),
    st.tuples(st.none(), st.just(80), st.just(Claim(ClaimBasis.ASSIGNED))),
)


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.lists(WAYS, max_size=4)), max_size=30))
def test_services_that_gain_or_lose_a_route_are_reported(
    drawn: list[tuple[str, list[tuple[str | None, int, Claim]]]],
) -> None:
    """Owners do not depend on the order of claims, and every change of owner is returned."""
    claims = FrontendClaims()
    known: dict[Key, dict[Frontend, Claim]] = {}
    for name, named in drawn:
        key = ("x", name)
        before = {way: claims.owner(way) for ways in known.values() for way in ways}
        desired: dict[Frontend, Claim] = {
            ("IPv4", "TCP", address, number): claim for address, number, claim in named
        }
        known[key] = desired
        woken = claims.claim(key, desired)
        after = {way: claims.owner(way) for ways in known.values() for way in ways}
        for way in before.keys() | after.keys():
            if before.get(way) != after.get(way):
                touched = {before.get(way), after.get(way)} - {None, key}
                still = {other for other in touched if other is not None and way in known[other]}
                assert still <= woken
        fresh = FrontendClaims()
        for other in sorted(known, reverse=True):
            fresh.claim(other, known[other])
        assert {way: fresh.owner(way) for way in after} == after
        for way, owner in after.items():
            claimants = [(ways[way], other) for other, ways in known.items() if way in ways]
            first, whose = min(claimants)
            if first.basis is ClaimBasis.NAMED_ON_NODE:
                ports = [other for other, ways in known.items() if (*way[:2], None, 80) in ways]
                whose = min(ports) if ports else whose
            assert owner == whose
