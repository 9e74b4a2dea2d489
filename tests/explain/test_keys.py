"""What topology keys mean on every node: reports agree with what proxies do."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from tests.explain.dumps import AUTO, Item, cluster, endpoint, explain, node, part, service
from tests.traffic.route_vectors import Vector, vectors

from zonewise.api import FeatureGates
from zonewise.explain.cluster import ReportSettings
from zonewise.explain.keys import KeysReport
from zonewise.explain.service import explain_service
from zonewise.explain.service_page import render_service

HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
KEYS = {"zonewise.io/topology-keys": ZONE}
PORT = {"name": "http", "port": 80, "protocol": "TCP"}


def report_keys(*items: Item, nodes: str = "ab", **spec: Any) -> KeysReport:
    """The report on a Service with keys, with a node in each zone."""
    located = [node(f"n-{zone}", zone) for zone in nodes]
    body = {"clusterIP": "10.96.0.1", "ports": [PORT]} | spec
    report = explain([*located, service(annotations=KEYS, **body), *items]).primary.keys
    assert report is not None
    return report


def piece(*endpoints: Item, name: str = "web-1", port: str = "http", **more: Any) -> Item:
    """A slice of a port."""
    body = part(endpoints, name=name, **more)
    return body | {"ports": [PORT | {"name": port, "port": 8080}]}


def summarize(report: KeysReport) -> list[tuple[str, tuple[str, ...], str, tuple[str, ...]]]:
    """The verdicts as tuples."""
    return [(row.node, row.ports, row.rule.value, row.endpoints) for row in report.nodes]


HERE = endpoint("10.0.0.1", "a", on="n-a")


def test_a_slice_of_another_port_has_no_endpoint_for_a_proxy() -> None:
    """Endpoints belong to ports; those of a port that the Service does not have are not used."""
    report = report_keys(piece(HERE, port="web"))
    assert summarize(report) == [(f"n-{zone}", ("http",), "Nothing", ()) for zone in "ab"]
    assert (report.in_zone, report.rejected) == (Fraction(0), Fraction(1))


def test_a_slice_that_proxies_ignore_is_ignored_and_named() -> None:
    """No endpoint of an invalid slice is used; the report says which slice it is and why."""
    bad = piece(HERE, endpoint("bogus", "a", on="n-a"), name="web-2")
    good = piece(endpoint("10.0.0.2", "a", on="n-a"))
    report = report_keys(good, bad)
    assert summarize(report)[0] == ("n-a", ("http",), "TopologyKey", ("10.0.0.2",))
    assert [reason.object for reason in report.ignored] == ["EndpointSlice/default/web-2"]
    whole = explain([node("n-a", "a"), service(annotations=KEYS), bad])
    assert [note for note in whole.notes if "web-2: 'bogus' is not an IPv4 address" in note]


def test_ports_with_other_endpoints_have_verdicts_of_their_own() -> None:
    """A port whose endpoints are elsewhere is decided alone, and counts as one of three."""
    ports = [PORT, PORT | {"name": "admin", "port": 81}, PORT | {"name": "same", "port": 82}]
    far = endpoint("10.0.0.9", "b", on="n-b")
    report = report_keys(
        piece(HERE),
        piece(HERE, name="web-2", port="same"),
        piece(far, port="admin", name="web-3"),
        ports=ports,
    )
    assert summarize(report) == [
        ("n-a", ("http", "same"), "TopologyKey", ("10.0.0.1",)),
        ("n-a", ("admin",), "NoKeyMatches", ()),
        ("n-b", ("http", "same"), "NoKeyMatches", ()),
        ("n-b", ("admin",), "TopologyKey", ("10.0.0.9",)),
    ]
    assert (report.in_zone, report.rejected) == (Fraction(1, 2), Fraction(1, 2))
    assert report.render()[1:3] == [
        "DECIDED BY                   ON NODES  PORTS       ENDPOINTS",
        "topology.kubernetes.io/zone  n-a       http, same  10.0.0.1",
    ]


def test_names_of_a_headless_service_lead_to_ready_endpoints() -> None:
    """Without a ClusterIP the DNS server obeys keys: for ready endpoints, whatever their port."""
    leaving = endpoint("10.0.0.2", "b", on="n-b", ready=False, terminating=True)
    leaving["conditions"]["serving"] = True
    slices = piece(HERE, leaving, port="web")
    slices["metadata"]["labels"]["service.kubernetes.io/headless"] = ""
    report = report_keys(slices, clusterIP="None")
    assert [(verdict.node, verdict.endpoints) for verdict in report.nodes] == [
        ("n-a", ("10.0.0.1",)),
        ("n-b", ()),
    ]


def test_a_local_policy_comes_before_the_keys() -> None:
    """Where the proxy drops, no endpoint is listed; the numbers are those of the whole report."""
    slices = piece(HERE)
    report = report_keys(slices, internalTrafficPolicy="Local")
    assert summarize(report) == [
        ("n-a", ("http",), "Local", ("10.0.0.1",)),
        ("n-b", ("http",), "Nothing", ()),
    ]
    assert (report.in_zone, report.rejected) == (Fraction(1, 2), Fraction(1, 2))
    assert report.render()[2:] == [
        "policy Local                      n-a       10.0.0.1",
        "dropped: no endpoint on the node  n-b       -",
        "The policy Local comes before the topology keys for traffic to the ClusterIP:"
        " 50.0 % of the traffic stays in its zone and 50.0 % is dropped, on 1 of 2 nodes.",
    ]
    body: Item = {"clusterIP": "10.96.0.1", "ports": [PORT], "internalTrafficPolicy": "Local"}
    whole = explain(
        [node("n-a", "a"), node("n-b", "b"), service(annotations=KEYS, **body), slices]
    ).primary
    assert (whole.decided.in_zone, whole.decided.unanswered) == (Fraction(1), Fraction(1, 2))


def to_cluster_ip(vector: Vector) -> list[tuple[str, Item]]:
    """The routes of each node to the ClusterIP, which reports are about."""
    return [
        (name, row)
        for name, expected in vector.expect.items()
        for row in expected.routes
        if row["path"] == "ClusterIP" and row["service"] == "s"
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


@pytest.mark.parametrize("vector", [pytest.param(vector, id=vector.name) for vector in KEYED])
def test_the_report_is_what_the_proxy_of_each_node_does(vector: Vector) -> None:
    """For every cluster of the route table that has keys: rule, key and endpoints are the same."""
    settings = ReportSettings(gates=vector.gates)
    source = cluster(vector.objects, settings)
    only = next(each for each in source.services.values() if each.metadata.name == "s")
    parts = {part.family: part.keys for part in explain_service(source, only).families}
    for name, row in to_cluster_ip(vector):
        report = parts[row["family"]]
        assert report is not None
        mine = [each for each in report.nodes if each.node == name]
        (verdict,) = [each for each in mine if row["port"] in each.ports]
        assert (verdict.rule.value, verdict.key) == (row["why"], row["key"])
        assert verdict.endpoints == tuple(end["address"] for end in row["endpoints"])


@pytest.mark.parametrize(
    ("keys", "mode", "gates", "advice"),
    [
        (
            ZONE,
            {},
            {},
            f"Run an endpoint that matches {ZONE} of n-b. Or end the topology keys with *",
        ),
        (f"{ZONE},*", {}, {}, f"For nearer endpoints run one that matches {ZONE} of n-b."),
        ("rack", {}, {}, "Label n-a, n-b: no key matches on a node without rack. Or end"),
        ("*", {}, {}, ""),
        (f"{ZONE},*", AUTO, {}, "of n-b. Remove the request for hints: the keys decide."),
        (ZONE, AUTO, {"TopologyAwareHints": False}, f"Run an endpoint that matches {ZONE} of n-b."),
    ],
)
def test_advice_is_about_the_keys(
    keys: str, mode: dict[str, str], gates: dict[str, bool], advice: str
) -> None:
    """What would help a Service with keys is an endpoint, a label or a star, and never hints."""
    items = [
        node("n-a", "a"),
        node("n-b", "b"),
        service(
            annotations=mode | {"zonewise.io/topology-keys": keys},
            clusterIP="10.96.0.1",
            ports=[PORT],
        ),
        piece(HERE),
    ]
    source = cluster(items, ReportSettings(gates=FeatureGates(gates)))
    (only,) = source.services.values()
    report = explain_service(source, only)
    assert advice in report.primary.reason.fix
    assert bool(advice) == bool(report.primary.reason.fix)
    page = render_service(report)
    assert ("What would help:" in page) == bool(advice)
    assert "Auto" not in report.primary.reason.fix
    assert "trafficDistribution" not in report.primary.reason.fix


@pytest.mark.parametrize(
    ("changed", "port", "advice"),
    [
        (
            {"type": "NodePort"},
            "31000",
            "Or leave it so, if clients in the cluster are to reach their own node only: that key"
            " alone keeps the addresses of clients outside. By the health check port load balancers"
            " leave out nodes without an endpoint.",
        ),
        (
            {"externalIPs": ["192.0.2.1"]},
            "",
            "With annotation zonewise.io/health-check-node-port load balancers can leave out nodes"
            " without an endpoint.",
        ),
        ({}, "", "Or end the topology keys with *: all others are used then."),
    ],
)
def test_advice_keeps_the_host_as_the_only_key(changed: Item, port: str, advice: str) -> None:
    """A Service that is reached from outside by the key of the host is not advised to end it with
    a star, which would change the addresses that its endpoints see.
    """
    keyed = {"zonewise.io/topology-keys": HOST}
    checked = {"zonewise.io/health-check-node-port": port} if port else {}
    located = [node(f"n-{zone}", zone) for zone in "ab"]
    for item in located:
        item["metadata"]["labels"][HOST] = item["metadata"]["name"]
    body: Item = {"clusterIP": "10.96.0.1", "ports": [PORT]} | changed
    web = service(annotations=keyed | checked, **body)
    fix = explain([*located, web, piece(HERE)]).primary.reason.fix
    assert fix.startswith("Run an endpoint on n-b, for example with a DaemonSet. ")
    assert fix.endswith(advice)
    assert ("*" in fix) == (not changed)


@pytest.mark.parametrize("mode", [{}, AUTO])
def test_the_verdict_leads_with_what_the_keys_do(mode: dict[str, str]) -> None:
    """The first sentence about a Service with keys is their result, not that it has no hints."""
    web = service(annotations=mode | KEYS, clusterIP="10.96.0.1", ports=[PORT])
    report = explain([node("n-a", "a"), node("n-b", "b"), web, piece(HERE)])
    assert report.verdict == (
        "Service default/web has topology keys instead of hints: 50.0 % of the traffic stays in"
        " its zone and 50.0 % is rejected."
    )
    assert report.primary.reason.message.startswith("the Service has topology keys, which exclude")


def test_a_live_field_counts_without_a_flag() -> None:
    """A Service with spec.topologyKeys is reported with its keys, and hints are not advised."""
    web = service(annotations={}, clusterIP="10.96.0.1", ports=[PORT], topologyKeys=[ZONE])
    source = cluster([node("n-a", "a"), node("n-b", "b"), web, piece(HERE)], ReportSettings())
    (only,) = source.services.values()
    report = explain_service(source, only)
    assert f"Run an endpoint that matches {ZONE} of n-b." in report.primary.reason.fix
    assert "Auto" not in render_service(report)


def test_an_endpoint_that_is_not_ready_is_what_is_missing() -> None:
    """Without any ready endpoint the advice is to have one."""
    report = report_keys(piece(endpoint("10.0.0.1", "a", on="n-a", ready=False)))
    assert report.advice == "Run an endpoint that is ready."
