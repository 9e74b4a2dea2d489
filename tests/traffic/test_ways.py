"""What a proxy reads from a Service: addresses, ports, source ranges, affinity."""

from __future__ import annotations

from typing import Any

import pytest

from zonewise.api import FeatureGates, LeanEndpointSlice, Node, Service, convert
from zonewise.traffic.routes.addresses import parse_address, parse_network
from zonewise.traffic.routes.choice import ClientLocation, RouteRule
from zonewise.traffic.routes.endpoints import read_route_endpoints
from zonewise.traffic.routes.service import RouteSettings, compute_service_routes
from zonewise.traffic.routes.table import Route, ServiceRoutes

ENDPOINTS = [
    {"addresses": ["10.1.0.1"], "nodeName": "n1", "hints": {"forZones": [{"name": "a"}]}},
    {"addresses": ["10.1.0.2"], "nodeName": "n2", "hints": {"forZones": [{"name": "b"}]}},
]


def routes(
    endpoints: list[dict[str, Any]] | None = None,
    *,
    location: ClientLocation | None = None,
    settings: RouteSettings | None = None,
    ingress: list[dict[str, Any]] | None = None,
    serves: list[dict[str, Any]] | None = None,
    **spec: Any,
) -> ServiceRoutes:
    """The routes of a Service with one slice."""
    port = {"name": "", "protocol": "TCP", "port": 80}
    base = {"clusterIP": "10.96.0.1", "ports": [port]}
    service = {
        "metadata": {"name": "s", "namespace": "x"},
        "spec": base | spec,
        "status": {"loadBalancer": {"ingress": ingress or []}},
    }
    piece = {
        "metadata": {"name": "s-1", "namespace": "x"},
        "addressType": "IPv4",
        "endpoints": ENDPOINTS if endpoints is None else endpoints,
        "ports": serves or [{"name": "", "protocol": "TCP", "port": 8080}],
    }
    return compute_service_routes(
        convert(Service, service),
        [convert(LeanEndpointSlice, piece)],
        location or ClientLocation("a", "n1"),
        {},
        settings or RouteSettings(),
    )


def ways(computed: ServiceRoutes) -> list[tuple[str, str | None, int]]:
    """The paths, addresses and ports of the routes."""
    return [
        (route.path, route.address, route.number)
        for port in computed.ports
        for route in port.routes
    ]


def only(computed: ServiceRoutes, path: str) -> Route:
    """The only route of a path."""
    (route,) = [
        candidate for port in computed.ports for candidate in port.routes if candidate.path == path
    ]
    return route


@pytest.mark.parametrize(
    ("policy", "gate", "zone", "chosen"),
    [
        ("PreferZone", True, "a", ["10.1.0.1"]),
        ("Local", True, "b", ["10.1.0.1"]),
        ("PreferZone", False, "a", ["10.1.0.1", "10.1.0.2"]),
        ("PreferZone", True, "d", ["10.1.0.1", "10.1.0.2"]),
    ],
)
def test_the_proxy_table(policy: str, gate: bool, zone: str, chosen: list[str]) -> None:
    """KEP-2433: endpoints are filtered if the gate is on and one is hinted for this zone."""
    settings = RouteSettings(gates=FeatureGates({"TopologyAwareHints": gate}))
    computed = routes(trafficPolicy=policy, location=ClientLocation(zone, "n1"), settings=settings)
    assert [endpoint.address for endpoint in only(computed, "ClusterIP").endpoints] == chosen
    if not gate:
        assert only(computed, "ClusterIP").rule is RouteRule.IGNORED


@pytest.mark.parametrize(
    ("requested", "rule"),
    [
        ({}, RouteRule.IGNORED),
        ({"trafficDistribution": "PreferClose"}, RouteRule.SAME_ZONE),
        ({"trafficDistribution": "PreferOther"}, RouteRule.SAME_ZONE),
    ],
)
def test_without_the_gate_zone_hints_count_for_a_traffic_distribution_only(
    requested: dict[str, Any], rule: RouteRule
) -> None:
    """Hints left by a mode that is off, or by another controller, choose no endpoints."""
    settings = RouteSettings(gates=FeatureGates({"TopologyAwareHints": False}))
    computed = routes(location=ClientLocation("a", "n1"), settings=settings, **requested)
    assert only(computed, "ClusterIP").rule is rule


def test_traffic_policy_local_is_for_every_way() -> None:
    """With trafficPolicy Local no packet leaves the node, on any path."""
    computed = routes(
        type="NodePort",
        trafficPolicy="Local",
        ports=[{"port": 80, "nodePort": 30080}],
        location=ClientLocation("c", "n3"),
    )
    assert [(route.path, route.source, route.action) for route in computed.ports[0].routes] == [
        ("ClusterIP", "any", "drop"),
        ("NodePort", "any", "drop"),
    ]


def test_source_ranges() -> None:
    """Spaces are trimmed, hosts masked, other families ignored; only load balancers have them."""
    computed = routes(
        type="LoadBalancer",
        externalIPs=["192.0.2.1"],
        ingress=[{"ip": "198.51.100.1"}],
        loadBalancerSourceRanges=[" 10.0.0.1/8 ", "fd00::/8", "010.0.0.0/8", "192.0.2.7/32"],
    )
    assert only(computed, "LoadBalancer").source_ranges == ("10.0.0.0/8", "192.0.2.7/32")
    assert only(computed, "ExternalIP").source_ranges == ()


def test_source_ranges_apply_to_the_address_on_every_path() -> None:
    """An external IP that is also the load balancer's takes packets from its source ranges only."""
    computed = routes(
        type="LoadBalancer",
        externalIPs=["192.0.2.1", "198.51.100.1"],
        ingress=[{"ip": "198.51.100.1"}],
        loadBalancerSourceRanges=["10.0.0.0/8"],
    )
    ranges = {
        (route.path, route.address): route.source_ranges for route in computed.ports[0].routes
    }
    assert ranges["ExternalIP", "198.51.100.1"] == ("10.0.0.0/8",)
    assert ranges["LoadBalancer", "198.51.100.1"] == ("10.0.0.0/8",)
    assert ranges["ExternalIP", "192.0.2.1"] == ()


@pytest.mark.parametrize("ranges", [["10.0.0.0/8", "0.0.0.0/0"], ["fd00::/8"], []])
def test_without_a_source_range_all_sources_are_allowed(ranges: list[str]) -> None:
    """A range of length 0 allows all, and so does a family without ranges."""
    computed = routes(
        type="LoadBalancer", ingress=[{"ip": "198.51.100.1"}], loadBalancerSourceRanges=ranges
    )
    assert only(computed, "LoadBalancer").source_ranges == ()


def test_a_node_in_range_may_use_its_own_address() -> None:
    """A packet of the node to the VIP has the VIP as its source: allowed if the node is."""
    facts: dict[str, Any] = {
        "type": "LoadBalancer",
        "ingress": [{"ip": "198.51.100.1"}, {"ip": "198.51.100.2"}],
        "loadBalancerSourceRanges": ["10.0.0.0/8"],
    }
    inside = convert(
        Node,
        {
            "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "a"}},
            "status": {
                "addresses": [
                    {"type": "ExternalIP", "address": "203.0.113.1"},
                    {"type": "InternalIP", "address": "10.9.9.9"},
                    {"type": "Hostname", "address": "n1"},
                    {"type": "InternalIP", "address": "fd00::9"},
                ]
            },
        },
    )
    location = ClientLocation.of(inside)
    assert (location.zone, location.addresses) == ("a", ("10.9.9.9", "fd00::9"))
    for here, own in (
        (location, ("198.51.100.1", "198.51.100.2")),
        (ClientLocation("a", "n1"), ()),
    ):
        computed = routes(location=here, **facts)
        balanced = [r for r in computed.ports[0].routes if r.path == "LoadBalancer"]
        assert [route.own_sources for route in balanced] == [own, own]


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        ({}, None),
        ({"sessionAffinity": "None"}, None),
        ({"sessionAffinity": "ClientIP"}, 10800),
        (
            {
                "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 7}},
            },
            7,
        ),
    ],
)
def test_affinity(spec: dict[str, Any], seconds: int | None) -> None:
    """Session affinity lasts as long as the Service says, by default three hours."""
    assert routes(**spec).ports[0].affinity_seconds == seconds


@pytest.mark.parametrize("seconds", [0, -1, 86_401, 1 << 40])
def test_an_affinity_that_no_kernel_takes_is_ignored(seconds: int) -> None:
    """A time that no API server would accept does not block the writing of rules."""
    config = {"clientIP": {"timeoutSeconds": seconds}}
    computed = routes(sessionAffinity="ClientIP", sessionAffinityConfig=config)
    assert computed.ports[0].affinity_seconds == 10_800
    assert [note.code for note in computed.notes] == ["InvalidService"]


@pytest.mark.parametrize(
    "spec",
    [
        {"clusterIP": ""},
        {"clusterIP": "None"},
        {"type": "ExternalName"},
        {"ipFamilies": ["IPv6"], "clusterIPs": ["fd00::1"], "clusterIP": "fd00::1", "ports": []},
    ],
)
def test_not_routed(spec: dict[str, Any]) -> None:
    """A Service without an address or a port has no routes."""
    assert routes(**spec).ports == ()


@pytest.mark.parametrize(
    ("port", "message"),
    [
        ({"port": 0}, "port 0/TCP is ignored: ports go from 1 to 65535"),
        ({"port": 65_536}, "port 65536/TCP is ignored: ports go from 1 to 65535"),
        (
            {"port": 80, "nodePort": 99_999},
            "port 80/TCP is ignored: its node port is 99999, ports go from 1 to 65535",
        ),
        (
            {"port": 80, "protocol": "QUIC"},
            "port 80/QUIC is ignored: its protocol is not one of TCP, UDP, SCTP",
        ),
    ],
)
def test_an_invalid_port_is_ignored_with_a_reason(port: dict[str, Any], message: str) -> None:
    """The note about an ignored port names what is wrong: number, node port or protocol."""
    computed = routes(ports=[{"name": "", "port": 81}, {"name": "b", **port}])
    assert ways(computed) == [("ClusterIP", "10.96.0.1", 81)]
    assert [note.message for note in computed.notes] == [message]


@pytest.mark.parametrize(
    ("number", "checked", "notes"),
    [
        (65_535, [65_535], []),
        (
            65_536,
            [],
            ["health check node port 65536 is ignored: ports go from 1 to 65535"],
        ),
        (-1, [], ["health check node port -1 is ignored: ports go from 1 to 65535"]),
    ],
)
def test_a_health_check_on_an_invalid_port(
    number: int, checked: list[int], notes: list[str]
) -> None:
    """A health check on an invalid port is ignored with a note, and the Service is still served."""
    computed = routes(
        type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=number
    )
    assert [check.port for check in computed.health_checks] == checked
    assert [note.message for note in computed.notes] == notes
    assert ways(computed) == [("ClusterIP", "10.96.0.1", 80)]


def test_of_two_ports_with_one_number_the_first_counts() -> None:
    """The first port has the number, or the node port; the other is ignored, with a note."""
    computed = routes(
        type="NodePort",
        serves=[{"name": "a", "protocol": "TCP", "port": 8080}],
        ports=[
            {"name": "a", "port": 80, "nodePort": 30_001},
            {"name": "b", "port": 80, "nodePort": 30_002},
            {"name": "c", "port": 81, "nodePort": 30_001},
            {"name": "d", "port": 80, "nodePort": 30_001, "protocol": "UDP"},
        ],
    )
    assert [(port.name, port.protocol) for port in computed.ports] == [("a", "TCP"), ("d", "UDP")]
    assert [route.action for route in computed.ports[0].routes] == ["dnat", "dnat"]
    assert [note.message for note in computed.notes] == [
        "port 'b' is ignored: another one has port 80/TCP",
        "port 'c' is ignored: another one has node port 30001/TCP",
    ]


def test_addresses_are_canonical() -> None:
    """Every spelling that Kubernetes accepts is written in one form, without duplicates."""
    computed = routes(
        [{"addresses": ["010.001.0.7"]}],
        clusterIP="010.96.0.1",
        externalIPs=["192.0.2.1", "192.0.2.001", "::ffff:192.0.2.2", "", "2001:db8::1", "what"],
    )
    assert ways(computed) == [
        ("ClusterIP", "10.96.0.1", 80),
        ("ExternalIP", "192.0.2.1", 80),
        ("ExternalIP", "192.0.2.2", 80),
    ]
    assert only(computed, "ClusterIP").endpoints[0].address == "10.1.0.7"
    assert [(note.code, note.object) for note in computed.notes] == [
        ("InvalidService", "Service/x/s")
    ]


@pytest.mark.parametrize(
    ("text", "family", "canonical"),
    [
        ("10.0.0.1", "IPv4", "10.0.0.1"),
        ("FD00:0:0::1", "IPv6", "fd00::1"),
        ("::ffff:10.0.0.1", "IPv4", "10.0.0.1"),
        ("64:ff9b::010.0.0.1", "IPv6", "64:ff9b::a00:1"),
    ],
)
def test_valid_addresses(text: str, family: str, canonical: str) -> None:
    """Addresses are read as Kubernetes reads them."""
    parsed = parse_address(text)
    assert parsed is not None
    assert parsed[:2] == (family, canonical)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0",
        "10.0.0.256",
        "10.0.0.1 ",
        "1.2.3.4.5",
        "fe80::1%eth0",
        ":::",
        "x::1.2.3",
        f"{'9' * 5000}.1.1.1",
    ],
)
def test_invalid_addresses(text: str) -> None:
    """A text that is not exactly an address is refused."""
    assert parse_address(text) is None


@pytest.mark.parametrize("text", ["10.0.0.0", "10.0.0.0/33", "10.0.0.0/", "fd00::/129", "x/8"])
def test_invalid_networks(text: str) -> None:
    """A network is an address, a slash and a valid prefix length."""
    assert parse_network(text) is None


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ({"addresses": ["fd00::1"]}, "'fd00::1' is not an IPv4 address"),
        ({"addresses": ["127.0.0.1"]}, "'127.0.0.1' is not an IPv4 address"),
        ({"addresses": ["0.0.0.0"]}, "'0.0.0.0' is not an IPv4 address"),
        (
            {
                "addresses": ["10.0.0.9"],
                "hints": {"forNodes": [{"name": f"n{i}"} for i in range(9)]},
            },
            "9 hints where 8 are allowed",
        ),
    ],
)
def test_an_invalid_slice_is_ignored(endpoint: dict[str, Any], message: str) -> None:
    """A slice with an invalid address, or with too many hints, is ignored, with a note."""
    computed = routes([*ENDPOINTS, endpoint])
    assert only(computed, "ClusterIP").action == "reject"
    (note,) = computed.notes
    assert (note.code, note.object) == ("InvalidEndpointSlice", "EndpointSlice/x/s-1")
    assert message in note.message


@pytest.mark.parametrize(
    ("more", "messages"),
    [
        ({"addressType": "IPv5"}, ["its address type is not known here: 'IPv5'"]),
        ({"addressType": "FQDN"}, []),
        ({"ports": [{"name": "", "port": 65_536}]}, ["65536 is not a port"]),
        ({"ports": [{"name": "", "port": -1}]}, ["-1 is not a port"]),
        ({"endpoints": [{"addresses": ["10.1.0.1", "169.254.0.1"]}]}, ["'169.254.0.1' is no"]),
    ],
)
def test_what_a_slice_is_ignored_for(more: dict[str, Any], messages: list[str]) -> None:
    """A slice is ignored for an unknown address type, an invalid port or any invalid address."""
    piece = {"metadata": {"name": "s-1"}, "addressType": "IPv4", "endpoints": ENDPOINTS}
    ports = {"ports": [{"name": "", "port": 8080}]}
    read = read_route_endpoints([convert(LeanEndpointSlice, piece | ports | more)])
    assert not any(read.ports.values())
    assert len(read.notes) == len(messages)
    assert all(text in note.message for text, note in zip(messages, read.notes, strict=True))


@pytest.mark.parametrize(
    "endpoint",
    [
        {"addresses": [f"10.2.0.{i}" for i in range(150)]},
        {"addresses": ["10.2.0.0"], "hints": {"forZones": [{"name": "a"}, {"name": "a"}]}},
        {"addresses": ["10.2.0.0"], "hints": {"forZones": [{"name": "no zone!"}]}},
        {"addresses": ["10.2.0.0"], "nodeName": "No Node!"},
    ],
)
def test_what_a_slice_is_not_ignored_for(endpoint: dict[str, Any]) -> None:
    """Other values that an API server refuses do no harm, and cost no endpoint."""
    computed = routes([*ENDPOINTS, endpoint], location=ClientLocation("", "n9"))
    chosen = [endpoint.address for endpoint in only(computed, "ClusterIP").endpoints]
    assert (chosen, computed.notes) == (["10.1.0.1", "10.1.0.2", "10.2.0.0"], ())


def test_ports_without_name_or_number() -> None:
    """Ports without a name or a number are ignored, with a note, and other ports of the slice are
    not.
    """
    good = {"name": "", "protocol": "TCP", "port": 8080}
    computed = routes(
        serves=[{"port": 1, "protocol": "TCP"}, {"name": "x", "protocol": "TCP"}, good]
    )
    assert [endpoint.port for endpoint in only(computed, "ClusterIP").endpoints] == [8080]
    assert [note.code for note in computed.notes] == ["InvalidEndpointSlice"] * 2


def test_serving_endpoints_of_udp() -> None:
    """Flows stay with serving endpoints, local or not, terminating or not."""
    leaving = {"ready": False, "serving": True, "terminating": True}
    gone = {"ready": False, "serving": False, "terminating": True}
    computed = compute_service_routes(
        convert(
            Service,
            {
                "metadata": {"name": "s"},
                "spec": {
                    "clusterIP": "10.96.0.1",
                    "ports": [{"name": "dns", "protocol": "UDP", "port": 53}],
                },
            },
        ),
        [
            convert(
                LeanEndpointSlice,
                {
                    "metadata": {"name": "s-1"},
                    "addressType": "IPv4",
                    "endpoints": [
                        *ENDPOINTS,
                        {"addresses": ["10.1.0.3"], "conditions": leaving},
                        {"addresses": ["10.1.0.4"], "conditions": gone},
                    ],
                    "ports": [{"name": "dns", "protocol": "UDP", "port": 53}],
                },
            )
        ],
        ClientLocation("a", "n1"),
        {},
    )
    assert [endpoint.address for endpoint in computed.ports[0].serving] == [
        "10.1.0.1",
        "10.1.0.2",
        "10.1.0.3",
    ]
    assert [endpoint.address for endpoint in computed.ports[0].routes[0].endpoints] == ["10.1.0.1"]


def test_routes_with_one_choice_share_it() -> None:
    """Routes with the same endpoints share one tuple, which makes comparing cheap."""
    computed = routes(type="NodePort", externalIPs=["192.0.2.1"])
    first, second = computed.ports[0].routes
    assert first.endpoints is second.endpoints


def test_services_may_choose_their_proxy() -> None:
    """A Service that chose a proxy by label is routed by that one only."""
    named = convert(
        Service,
        {
            "metadata": {
                "name": "s",
                "labels": {"service.kubernetes.io/service-proxy-name": "zonewise"},
            },
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]},
        },
    )
    location = ClientLocation("a", "n1")
    assert compute_service_routes(named, [], location, {}).ports == ()
    assert compute_service_routes(named, [], location, {}, RouteSettings("zonewise")).ports
    assert routes(settings=RouteSettings("zonewise")).ports == ()
