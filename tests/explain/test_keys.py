"""What topology keys mean on every node, as reports tell it and as proxies do it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from tests.explain.dumps import Item, cluster, endpoint, explained, node, part, service
from tests.traffic.route_vectors import Vector, vectors

from zonewise.explain.keys import KeysReport
from zonewise.explain.service import explain_service

ZONE = "topology.kubernetes.io/zone"
KEYS = {"zonewise.io/topology-keys": ZONE}
PORT = {"name": "http", "port": 80, "protocol": "TCP"}


def report(*items: Item, nodes: str = "ab", **spec: Any) -> KeysReport:
    """What is told of a Service with keys, on a node in each zone."""
    places = [node(f"n-{zone}", zone) for zone in nodes]
    body = {"clusterIP": "10.96.0.1", "ports": [PORT]} | spec
    found = explained([*places, service(annotations=KEYS, **body), *items]).primary.keys
    assert found is not None
    return found


def piece(*endpoints: Item, name: str = "web-1", port: str = "http", **more: Any) -> Item:
    """A slice of a port."""
    made = part(endpoints, name=name, **more)
    return made | {"ports": [PORT | {"name": port, "port": 8080}]}


def told(found: KeysReport) -> list[tuple[str, tuple[str, ...], str, tuple[str, ...]]]:
    """The verdicts in short."""
    return [(one.node, one.ports, one.rule.value, one.endpoints) for one in found.nodes]


HERE = endpoint("10.0.0.1", "a", on="n-a")


def test_a_slice_of_another_port_has_no_endpoint_for_a_proxy() -> None:
    """Endpoints belong to ports; those of a port that the Service has not are nobody's."""
    found = report(piece(HERE, port="web"))
    assert told(found) == [(f"n-{zone}", ("http",), "Nothing", ()) for zone in "ab"]
    assert (found.in_zone, found.rejected) == (Fraction(0), Fraction(1))


def test_a_slice_that_proxies_ignore_is_ignored_and_named() -> None:
    """Half of a garbled slice is no endpoint; the report says which slice and why."""
    bad = piece(HERE, endpoint("bogus", "a", on="n-a"), name="web-2")
    good = piece(endpoint("10.0.0.2", "a", on="n-a"))
    found = report(good, bad)
    assert told(found)[0] == ("n-a", ("http",), "TopologyKey", ("10.0.0.2",))
    assert [one.object for one in found.ignored] == ["EndpointSlice/default/web-2"]
    whole = explained([node("n-a", "a"), service(annotations=KEYS), bad])
    assert [one for one in whole.notes if "web-2: 'bogus' is not an IPv4 address" in one]


def test_ports_with_other_endpoints_have_verdicts_of_their_own() -> None:
    """A port whose endpoints are elsewhere is decided alone, and counts as one of three."""
    ports = [PORT, PORT | {"name": "admin", "port": 81}, PORT | {"name": "same", "port": 82}]
    far = endpoint("10.0.0.9", "b", on="n-b")
    found = report(
        piece(HERE),
        piece(HERE, name="web-2", port="same"),
        piece(far, port="admin", name="web-3"),
        ports=ports,
    )
    assert told(found) == [
        ("n-a", ("http", "same"), "TopologyKey", ("10.0.0.1",)),
        ("n-a", ("admin",), "NoKeyMatches", ()),
        ("n-b", ("http", "same"), "NoKeyMatches", ()),
        ("n-b", ("admin",), "TopologyKey", ("10.0.0.9",)),
    ]
    assert (found.in_zone, found.rejected) == (Fraction(1, 2), Fraction(1, 2))
    assert found.render()[1:3] == [
        "DECIDED BY                   ON NODES  PORTS       ENDPOINTS",
        "topology.kubernetes.io/zone  n-a       http, same  10.0.0.1",
    ]


def test_names_of_a_headless_service_lead_to_ready_endpoints() -> None:
    """Without an address it is a name server that obeys keys: port or not, ready ones only."""
    leaving = endpoint("10.0.0.2", "b", on="n-b", ready=False, terminating=True)
    leaving["conditions"]["serving"] = True
    slices = piece(HERE, leaving, port="web")
    slices["metadata"]["labels"]["service.kubernetes.io/headless"] = ""
    found = report(slices, clusterIP="None")
    assert [(one.node, one.endpoints) for one in found.nodes] == [
        ("n-a", ("10.0.0.1",)),
        ("n-b", ()),
    ]


def test_a_local_policy_comes_before_the_keys() -> None:
    """Where the proxy drops, no endpoint is told, and the numbers are those of every report."""
    slices = piece(HERE)
    found = report(slices, internalTrafficPolicy="Local")
    assert told(found) == [
        ("n-a", ("http",), "Local", ("10.0.0.1",)),
        ("n-b", ("http",), "Nothing", ()),
    ]
    assert (found.in_zone, found.rejected) == (Fraction(1, 2), Fraction(1, 2))
    assert found.render()[2:] == [
        "policy Local                      n-a       10.0.0.1",
        "dropped: no endpoint on the node  n-b       -",
        "The policy Local comes before the topology keys for traffic to the ClusterIP:"
        " 50.0 % of the traffic stays in its zone and 50.0 % is dropped, on 1 of 2 nodes.",
    ]
    body: Item = {"clusterIP": "10.96.0.1", "ports": [PORT], "internalTrafficPolicy": "Local"}
    whole = explained(
        [node("n-a", "a"), node("n-b", "b"), service(annotations=KEYS, **body), slices]
    ).primary
    assert (whole.decided.in_zone, whole.decided.unanswered) == (Fraction(1), Fraction(1, 2))


def to_cluster_ip(vector: Vector) -> list[tuple[str, Item]]:
    """The routes of each node to the ClusterIP, which reports are about."""
    return [
        (name, row)
        for name, expected in vector.expect.items()
        for row in expected.routes
        if row["path"] == "ClusterIP"
    ]


KEYED = [
    vector
    for vector in vectors()
    if any(
        row["why"] in ("TopologyKey", "NoKeyMatches")
        for expected in vector.expect.values()
        for row in expected.routes
    )
]


@pytest.mark.parametrize("vector", [pytest.param(one, id=one.name) for one in KEYED])
def test_what_is_told_is_what_the_proxy_of_each_node_does(vector: Vector) -> None:
    """For every cluster of the route table that has keys: rule, key and endpoints are the same."""
    made = cluster(vector.objects)
    (only,) = made.services.values()
    parts = {part.family: part.keys for part in explain_service(made, only).families}
    for name, row in to_cluster_ip(vector):
        found = parts[row["family"]]
        assert found is not None
        (one,) = [v for v in found.nodes if v.node == name and row["port"] in v.ports]
        addresses = tuple(end["address"] for end in row["endpoints"])
        assert (one.rule.value, one.key, one.endpoints) == (row["why"], row["key"], addresses)
