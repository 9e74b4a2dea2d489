"""Routes of a Service whose slices have weights, and every reason to ignore them."""

from __future__ import annotations

from typing import Any

import pytest

from zonewise.api import LeanEndpointSlice, Service, convert
from zonewise.api.gates import FeatureGates
from zonewise.traffic.routes.choice import ClientLocation, RouteRule
from zonewise.traffic.routes.service import RouteSettings, compute_service_routes
from zonewise.traffic.routes.table import Route
from zonewise.traffic.weights import WEIGHTS_ANNOTATION

ROWS = '{"a":{"a":5000,"b":1000},"c":{"a":0,"b":7}}'
HERE = {"a": ClientLocation("a", "n-a"), "b": ClientLocation("b", "n-b")}


def service(**spec: Any) -> Service:
    """A Service with one port."""
    metadata = {"name": "s", "namespace": "default", **spec.pop("metadata", {})}
    ports = [{"name": "p", "port": 80, "protocol": "TCP"}]
    base = {"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ipFamilies": ["IPv4"]}
    return convert(Service, {"metadata": metadata, "spec": {**base, "ports": ports, **spec}})


def piece(number: int, *homes: str, text: str | None = ROWS, **more: Any) -> LeanEndpointSlice:
    """A slice with an endpoint in each zone of a word, all for zone b."""
    endpoints = [
        {
            "addresses": [f"10.0.{number}.{at}"],
            "zone": home,
            "nodeName": f"n-{home}",
            "conditions": {"ready": True},
            "hints": {"forZones": [{"name": "b"}]},
            **more,
        }
        for at, home in enumerate(homes)
    ]
    labels = {"kubernetes.io/service-name": "s"}
    notes = {} if text is None else {WEIGHTS_ANNOTATION: text}
    metadata = {"name": f"s-{number}", "labels": labels, "annotations": notes}
    ports = [{"name": "p", "port": 8080, "protocol": "TCP"}]
    body = {"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints, "ports": ports}
    return convert(LeanEndpointSlice, body)


def routed(
    location: ClientLocation,
    *slices: LeanEndpointSlice,
    routed_service: Service | None = None,
    **gates: bool,
) -> Route:
    """The route of the ClusterIP."""
    settings = RouteSettings(gates=FeatureGates(gates))
    computed = compute_service_routes(routed_service or service(), slices, location, {}, settings)
    return computed.ports[0].routes[0]


def weights(route: Route) -> dict[str, int]:
    """The weight of each endpoint."""
    return {backend.address: backend.weight for backend in route.endpoints}


def test_a_row_says_how_often_each_endpoint_is_used() -> None:
    """Endpoints have the weight of their zone in the row; those without one are left out."""
    route = routed(HERE["a"], piece(0, "a", "a", "b"), piece(1, "b", "c"))
    assert route.rule is RouteRule.WEIGHTED
    assert weights(route) == {
        "10.0.0.0": 5000,
        "10.0.0.1": 5000,
        "10.0.0.2": 1000,
        "10.0.1.0": 1000,
    }


def test_a_zone_without_a_row_keeps_to_itself() -> None:
    """Without a row the zone's own endpoints are used equally, whatever the hints."""
    route = routed(HERE["b"], piece(0, "a", "b", "b"))
    assert route.rule is RouteRule.WEIGHTED
    assert weights(route) == {"10.0.0.1": 1, "10.0.0.2": 1}


@pytest.mark.parametrize(
    ("zone", "homes", "rule"),
    [
        ("a", "cc", RouteRule.NO_HINT_FOR_LOCATION),
        ("c", "aac", RouteRule.NO_HINT_FOR_LOCATION),
        ("d", "ab", RouteRule.NO_HINT_FOR_LOCATION),
        ("", "abc", RouteRule.LOCATION_UNKNOWN),
    ],
)
def test_without_a_weighted_endpoint_all_are_used(zone: str, homes: str, rule: RouteRule) -> None:
    """A zone without a ready endpoint of weight uses all, and so does an unknown zone."""
    route = routed(ClientLocation(zone, "n"), piece(0, *homes))
    assert (route.rule, set(weights(route).values())) == (rule, {1})
    assert len(route.endpoints) == len(homes)


def test_without_ready_endpoints_serving_ones_are_used() -> None:
    """Weights are for ready endpoints; the last resort are all that still serve."""
    ending = {"conditions": {"ready": False, "serving": True, "terminating": True}}
    route = routed(HERE["a"], piece(0, "a", "c", text=ROWS, **ending))
    assert (route.rule, len(route.endpoints)) == (RouteRule.TERMINATING, 2)


@pytest.mark.parametrize(
    "other",
    [None, "", "{}", ROWS + " ", ROWS.replace("5000", "5001")],
    ids=["missing", "empty", "other rows", "other bytes", "other number"],
)
def test_hints_count_if_slices_have_different_weights(other: str | None) -> None:
    """While a writer is between two slices, hints are used."""
    route = routed(HERE["a"], piece(0, "a", "b"), piece(1, "a", text=other))
    assert (route.rule, set(weights(route).values())) == (RouteRule.NO_HINT_FOR_LOCATION, {1})
    route = routed(HERE["b"], piece(0, "a", "b"), piece(1, "a", text=other))
    assert (route.rule, len(route.endpoints)) == (RouteRule.SAME_ZONE, 3)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        '{"a":5}',
        '{"a":{"a":-1}}',
        '{"a":{"a":1000001}}',
        '{"a":{"a":1.5}}',
        '{"a":{"a":true}}',
        '{"a":{"a":"1"}}',
        '{"a":{"a":1}',
        '{"a":{"no zone!":1}}',
        '{"":{"a":1}}',
        '{"a":{"a":1}}' + " " * 8192,
        '{"b":{"b":1},"b":{"a":1}}',
        '{"b":{"a":1,"a":1}}',
    ],
)
def test_an_invalid_text_is_ignored(text: str) -> None:
    """Anything but an object of objects of whole numbers falls back to hints."""
    assert routed(HERE["b"], piece(0, "a", "b", text=text)).rule is RouteRule.SAME_ZONE


def test_a_slice_without_ready_endpoints_says_nothing() -> None:
    """A slice without ready endpoints and without weights does not cancel those of others."""
    idle = piece(1, "a", text=None, conditions={"ready": False})
    empty = piece(2, text="nonsense")
    assert routed(HERE["a"], piece(0, "a", "b"), idle, empty).rule is RouteRule.WEIGHTED


def test_families_are_independent() -> None:
    """Weights on IPv6 slices have no effect on IPv4."""
    six = convert(
        LeanEndpointSlice,
        {
            "metadata": {"name": "six", "annotations": {WEIGHTS_ANNOTATION: "nonsense"}},
            "addressType": "IPv6",
            "endpoints": [{"addresses": ["fd00::1"], "zone": "a"}],
            "ports": [{"name": "p", "port": 8080}],
        },
    )
    assert routed(HERE["a"], piece(0, "a", "b"), six).rule is RouteRule.WEIGHTED


def test_policies_and_keys_come_first() -> None:
    """Local stays on the node, keys decide alone, and without the gate there are no hints."""
    pieces = (piece(0, "a", "a", "b"),)
    local = routed(HERE["b"], *pieces, routed_service=service(internalTrafficPolicy="Local"))
    assert (local.rule, weights(local)) == (RouteRule.LOCAL, {"10.0.0.2": 1})
    keyed = service(metadata={"annotations": {"zonewise.io/topology-keys": "*"}})
    route = routed(HERE["a"], *pieces, routed_service=keyed)
    assert (route.rule, set(weights(route).values())) == (RouteRule.TOPOLOGY_KEY, {1})
    zone = service(trafficPolicy="PreferZone")
    off = routed(HERE["a"], *pieces, routed_service=zone, TopologyAwareHints=False)
    assert off.rule is RouteRule.IGNORED
    close = service(trafficDistribution="PreferClose")
    left = routed(HERE["a"], *pieces, routed_service=close, TopologyAwareHints=False)
    assert (left.rule, set(weights(left).values())) == (RouteRule.NO_HINT_FOR_LOCATION, {1})
