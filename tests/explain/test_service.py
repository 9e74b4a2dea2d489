"""The report on a Service."""

from __future__ import annotations

from typing import Any

import pytest
from tests.explain.dumps import (
    AUTO,
    Item,
    cluster,
    endpoint,
    explain,
    node,
    part,
    pod,
    service,
)

from zonewise.api import FeatureGates
from zonewise.explain.cluster import ReportSettings
from zonewise.explain.service import explain_service
from zonewise.explain.service_page import render_service, render_services
from zonewise.topology.shares import MissingCpu, MissingZone
from zonewise.traffic.modes import MODE_ANNOTATION

THREE = [node("n1", "a"), node("n2", "b"), node("n3", "c")]
FIELDS = {
    "service",
    "namespace",
    "mode",
    "hinted",
    "reason",
    "zones",
    "endpoints",
    "inZone",
    "inZoneWithoutHints",
    "inZoneLimit",
    "overload",
    "applied",
    "families",
}


def spread(*counts: int, hints: bool = False) -> list[dict[str, Any]]:
    """These numbers of endpoints in zones a, b, c."""
    return [
        endpoint(f"10.0.{ord(zone)}.{n}", zone, on=f"n{number}", hints=[zone] if hints else [])
        for number, (zone, count) in enumerate(zip("abc", counts, strict=False), start=1)
        for n in range(count)
    ]


def test_a_service_with_hints() -> None:
    """The decision is reported with all its numbers, and beside it what the slices carry."""
    report = explain([*THREE, service(), part(spread(2, 1, 0))]).to_dict()
    assert report.keys() == FIELDS
    assert (report["service"], report["namespace"], report["mode"]) == ("web", "default", "Auto")
    assert report["hinted"] is True
    assert report["reason"] == {
        "code": "Hinted",
        "message": "every zone has endpoints for its share of the traffic",
        "fix": "",
    }
    assert report["zones"][0] == {
        "zone": "a",
        "nodes": 1,
        "cpuMilli": 1000,
        "share": 0.333333,
        "endpoints": 2,
        "minimum": 1,
        "assigned": 1,
        "overload": 0.0,
    }
    assert [row["forZones"] for row in report["endpoints"]] == [["a"], ["c"], ["b"]]
    assert report["endpoints"][1] == {
        "address": "10.0.97.1",
        "zone": "a",
        "ready": True,
        "forZones": ["c"],
        "forNodes": [],
    }
    assert report["inZone"] == 0.666667
    assert report["inZoneWithoutHints"] == 0.333333
    assert report["inZoneLimit"] == 0.666667
    assert report["overload"] == 0.0
    assert report["applied"] == {"hinted": False, "inZone": 0.333333, "overload": 0.0}
    (family,) = report["families"]
    assert family["family"] == "IPv4"
    assert {key: family[key] for key in family if key != "family"} == {
        key: report[key] for key in family if key != "family"
    }


def test_a_service_without_hints() -> None:
    """A refusal has its code, its numbers and a remedy; overload is zero."""
    report = explain([*THREE, service(), part(spread(2, 1, 1))]).to_dict()
    assert report["hinted"] is False
    assert report["reason"]["code"] == "Overload"
    assert "needs 6, has 4" in report["reason"]["message"]
    assert report["reason"]["fix"].startswith("Scale to 6 endpoints.")
    assert report["overload"] == 0.0
    assert all(row["overload"] == 0.0 and row["assigned"] == 0 for row in report["zones"])
    assert all(row["forZones"] == [] for row in report["endpoints"])


def test_hints_on_slices_are_the_previous_state() -> None:
    """Between the limits hints stay where they were, and are not added where they were not."""
    items = [*THREE, service()]
    before = explain([*items, part(spread(4, 4, 3, hints=True))])
    assert before.primary.decided.hinted
    assert before.primary.up_to_date
    assert before.primary.applied == before.primary.decided
    assert not explain([*items, part(spread(4, 4, 3))]).primary.decided.hinted


def test_an_endpoint_that_came_later() -> None:
    """An endpoint without a hint among hinted ones is new: the others keep theirs, and proxies
    ignore all.
    """
    endpoints = [*spread(4, 4, 2, hints=True), endpoint("10.0.9.9", "c", on="n3")]
    report = explain([*THREE, service(), part(endpoints)])
    assert report.primary.decided.hinted
    assert not report.primary.applied.hinted
    assert not report.primary.up_to_date


def test_the_zone_of_an_endpoint_is_that_of_its_node() -> None:
    """The node's label counts; the zone in the slice counts only if there is no such node."""
    endpoints = [endpoint("10.0.0.1", "z", on="n1"), endpoint("10.0.0.2", "z", on="gone")]
    report = explain([*THREE, service(), part(endpoints)]).to_dict()
    assert [row["zone"] for row in report["endpoints"]] == ["a", "z"]
    bare = [node("n1"), *THREE[1:]]
    report = explain(
        [*bare, service(), part(endpoints[:1])], ReportSettings(missing_zone=MissingZone.SKIP_NODE)
    ).to_dict()
    assert report["reason"]["code"] == "EndpointWithoutZone"


def test_endpoints_in_two_slices_count_once() -> None:
    """While an endpoint moves to another slice, the one that lives longer counts."""
    dying = endpoint("10.0.97.0", "a", ready=False, terminating=True)
    report = explain([*THREE, service(), part([dying]), part(spread(1, 1, 1), name="web-2")])
    assert [target.ready for target in report.primary.endpoints] == [True, True, True]
    assert report.primary.decided.hinted


def test_slices_of_others() -> None:
    """An endpoint in a slice of another controller cancels the hints, and the reason says so."""
    ours = part(spread(1, 1, 1), **{"managed-by": "endpointslice-controller.k8s.io"})
    for label in ({}, {"managed-by": "somebody.example.com"}):
        theirs = part([endpoint("192.0.2.1", "a")], name="hand-made", **label)
        report = explain([*THREE, service(), ours, theirs])
        assert report.primary.reason.code == "ForeignEndpoint"
        assert report.primary.decided.hinted
        assert report.primary.decided.in_zone == report.primary.in_zone_without_hints
        assert len(report.primary.endpoints) == 4


def test_services_without_a_selector() -> None:
    """Where another controller writes the endpoints, no hints are decided."""
    theirs = part(spread(1, 1, 1), **{"managed-by": "endpointslicemirroring-controller.k8s.io"})
    report = explain([*THREE, service(selector=None), theirs]).to_dict()
    assert (report["mode"], report["reason"]["code"]) == ("Off", "NoSelector")
    assert len(report["endpoints"]) == 3
    report = explain([service(type="ExternalName", selector=None)]).to_dict()
    assert report["reason"]["code"] == "ExternalName"


@pytest.mark.parametrize(
    ("annotations", "spec", "code", "mode"),
    [
        ({}, {}, "NotAsked", "Off"),
        ({"service.kubernetes.io/topology-mode": "AUTO"}, {}, "UnknownMode", "Off"),
        ({}, {"trafficDistribution": "PreferClose"}, "Hinted", "PreferSameZone"),
        ({}, {"trafficDistribution": "PreferSameNode"}, "Hinted", "PreferSameNode"),
        (AUTO, {"topologyKeys": ["*"]}, "GateOff", "Off"),
        (AUTO | {"zonewise.io/topology-keys": "*"}, {}, "TopologyKeys", "Off"),
        (AUTO, {"internalTrafficPolicy": "Local"}, "LocalPolicy", "Off"),
        (AUTO | {"zonewise.io/overload": "0%/30%"}, {}, "InvalidOverload", "Off"),
    ],
)
def test_modes(annotations: dict[str, str], spec: dict[str, Any], code: str, mode: str) -> None:
    """Every way to request hints, or not to, has its code and mode."""
    report = explain([*THREE, service(annotations=annotations, **spec), part(spread(3, 0, 1))])
    assert (report.primary.reason.code, report.mode.value) == (code, mode)
    if mode == "PreferSameNode":
        assert report.primary.endpoints[0].hint.nodes == ("n1",)
    if mode == "PreferSameZone":
        overloads = [row["overload"] for row in report.to_dict()["zones"]]
        assert overloads == [-0.222222, None, 0.666667]


def test_the_service_of_the_api_servers_gets_no_advice() -> None:
    """API servers write the slices of their Service, and are in no zone: there is neither a remedy
    nor a number.
    """
    api = service("kubernetes", annotations={}, selector=None)
    report = explain([*THREE, api, part([endpoint("192.0.2.1")], of="kubernetes")])
    assert (report.primary.reason.code, report.primary.reason.fix) == ("NoSelector", "")
    page = render_service(report)
    assert "What would help" not in page
    assert "expected now" not in page
    assert report.to_dict()["inZone"] == 0


def test_an_external_name_has_no_zones() -> None:
    """Traffic to an ExternalName goes to no endpoint: there is no table, no number, and nothing
    unanswered.
    """
    report = explain([*THREE, service(type="ExternalName", selector=None, externalName="a.b")])
    body = report.to_dict()
    assert (body["zones"], body["inZone"], body.get("unanswered")) == ([], 0, None)
    assert "MINIMUM" not in render_service(report)


def test_a_limit_that_does_not_apply_is_null() -> None:
    """Without endpoints the numbers are 0, and where no limit applies the limit is null."""
    report = explain([*THREE, service()]).to_dict()
    numbers = ("inZone", "inZoneWithoutHints", "inZoneLimit")
    assert [report[name] for name in numbers] == [0, 0, 0]
    assert report["applied"]["inZone"] == 0
    local = service(annotations={}, internalTrafficPolicy="Local")
    report = explain([*THREE, local, part(spread(2, 1, 1))]).to_dict()
    assert (report["inZone"], report["inZoneLimit"]) == (1.0, None)
    near = service(annotations={}, trafficDistribution="PreferClose")
    report = explain([*THREE, near, part(spread(2, 1, 1))]).to_dict()
    assert (report["inZone"], report["inZoneLimit"]) == (1.0, None)


@pytest.mark.parametrize("annotations", [AUTO, {}])
def test_a_service_without_endpoints_answers_nothing(annotations: dict[str, str]) -> None:
    """Proxies reject all of its traffic, and all reports say so."""
    report = explain([*THREE, service(annotations=annotations)])
    assert report.to_dict()["unanswered"] == 1.0
    assert render_services([("", report)]).endswith(" 100.0 %")
    assert "No traffic gets an answer: the Service has no ready endpoint." in render_service(report)


def test_dual_stack() -> None:
    """Families are decided separately; the first that the Service names is the primary one."""
    six = [endpoint(f"fd00::{n}", zone) for n, zone in enumerate("aab")]
    items = [
        *THREE,
        service(ipFamilies=["IPv6", "IPv4"]),
        part(spread(1, 1, 0)),
        part(six, name="web-6", family="IPv6"),
    ]
    report = explain(items).to_dict()
    assert [family["family"] for family in report["families"]] == ["IPv6", "IPv4"]
    assert report["hinted"] is True
    assert report["families"][1]["reason"]["code"] == "TooFewEndpoints"
    assert {row["address"] for row in report["endpoints"]} == {"fd00::0", "fd00::1", "fd00::2"}


def test_settings_of_the_controller() -> None:
    """What a node without CPU or zone means is a setting, as it is for the controller."""
    items = [*THREE, node("n4", "a", milli=0), service(), part(spread(2, 1, 1))]
    assert explain(items).primary.reason.code == "NodeWithoutCpu"
    report = explain(items, ReportSettings(missing_cpu=MissingCpu.EQUAL))
    assert report.primary.decided.hinted
    items = [*THREE, node("n4"), service(), part(spread(1, 1, 1))]
    assert explain(items).primary.reason.message == "node n4 has no zone label"
    assert explain(items, ReportSettings(missing_zone=MissingZone.SKIP_NODE)).primary.decided.hinted


def test_an_empty_cluster() -> None:
    """No nodes and no slices are reasons, not errors."""
    report = explain([service()]).to_dict()
    assert report["reason"]["code"] == "NoEndpoints"
    assert (report["inZone"], report["inZoneLimit"]) == (0, 0)
    report = explain([service(), part(spread(1))]).to_dict()
    assert report["reason"]["code"] == "NoNodes"


def test_namespaces() -> None:
    """Slices belong to the Service of their own namespace; no namespace is the default one."""
    bare = service()
    del bare["metadata"]["namespace"]
    source = cluster(
        [*THREE, bare, service(namespace="b"), part(spread(1, 1, 1)), part([], namespace="b")]
    )
    first, second = (
        explain_service(source, source.services[namespace, "web"]) for namespace in ("default", "b")
    )
    assert (len(first.primary.endpoints), len(second.primary.endpoints)) == (3, 0)


def test_endpoints_from_pods() -> None:
    """Where pods are known endpoints come from them; slices then give only the previous state."""
    pods = [pod("10.0.0.1", "n1"), pod("10.0.0.2", "n2"), pod("10.0.0.3", "n3")]
    other = pod("10.0.0.4", "n1", of="other")
    report = explain([*THREE, service(), part(spread(2, 2, 2, hints=True)), *pods, other])
    assert [target.name for target in report.primary.endpoints] == [
        "10.0.0.1",
        "10.0.0.2",
        "10.0.0.3",
    ]
    assert report.primary.decided.hinted
    assert report.primary.applied.hinted
    assert not report.primary.up_to_date
    empty = explain([*THREE, service(), other, part(spread(1, 1, 1))])
    assert empty.primary.reason.code == "NoEndpoints"


def test_shares_of_tolerated_nodes() -> None:
    """Nodes that its pods do not tolerate do not count, for a Service that says so."""
    pool: Item = node("n4", "a", milli=90_000)
    pool["spec"] = {"taints": [{"key": "gpu", "effect": "NoSchedule"}]}
    annotations = AUTO | {"zonewise.io/share-nodes": "tolerated"}
    items = [*THREE, pool, service(annotations=annotations), part(spread(1, 1, 1))]
    pods = [pod(f"10.0.{ord(zone)}.0", f"n{n}") for n, zone in enumerate("abc", start=1)]
    report = explain([*items, *pods])
    assert report.primary.decided.hinted
    assert report.notes == ()
    blind = explain(items)
    assert blind.primary.reason.code == "Overload"
    assert "all nodes" in blind.notes[0]


def test_headless_services_have_no_proxy() -> None:
    """Hints of a headless Service are reported, with a note on what reads them."""
    items = [*THREE, service(clusterIP="None"), part(spread(1, 1, 1))]
    (note,) = explain(items).notes
    assert "headless" in note


def test_a_weighted_service_reports_weights_and_what_stock_proxies_do() -> None:
    """``zoneWeights`` is the text as JSON, ``stock`` is for proxies that know hints only."""
    mode = {"service.kubernetes.io/topology-mode": "zonewise.io/weighted"}
    report = explain([*THREE, service(annotations=mode), part(spread(2, 1, 1))]).to_dict()
    assert report["mode"] == "zonewise.io/weighted"
    assert report["zoneWeights"].keys() == {"b", "c"}
    assert report["stock"].keys() == {"inZone", "overload"}
    assert report["stock"]["inZone"] == 0.611111
    assert report["inZone"] > report["stock"]["inZone"]
    assert report["inZone"] <= report["inZoneLimit"]


def test_weights_on_the_slices_are_what_is_applied() -> None:
    """``applied`` follows weights that proxies obey; a foreign slice without them cancels them."""
    mode = {"service.kubernetes.io/topology-mode": "zonewise.io/weighted"}
    ours = part(spread(2, 1, 1), **{"managed-by": "endpointslice-controller.k8s.io"})
    ours["metadata"]["annotations"] = {
        "zonewise.io/zone-weights": '{"b":{"a":1,"b":2},"c":{"a":1,"c":2}}'
    }
    report = explain([*THREE, service(annotations=mode), ours]).to_dict()
    assert report["applied"]["inZone"] == pytest.approx((1 + 0.5 + 0.5) / 3, abs=1e-6)
    foreign = part([endpoint("10.9.9.9", "a", hints=["a"])], name="x", **{"managed-by": "somebody"})
    report = explain([*THREE, service(annotations=mode), ours, foreign]).to_dict()
    assert report["inZone"] == report["stock"]["inZone"]
    assert report["reason"]["code"] == "ForeignEndpoint"
    assert "10.9.9.9" in report["reason"]["message"]


def test_a_shared_service_counts_endpoints_per_zone_they_name() -> None:
    """``assigned`` sums to more than the endpoints, since one may be for several zones."""
    mode = {"service.kubernetes.io/topology-mode": "zonewise.io/shared"}
    report = explain([*THREE, service(annotations=mode), part(spread(2, 1, 1))]).to_dict()
    assert report["hinted"] is True
    assert sum(zone["assigned"] for zone in report["zones"]) > 4
    assert max(zone["overload"] for zone in report["zones"]) == report["overload"]
    assert "zoneWeights" not in report


@pytest.mark.parametrize("mode", ["Auto", "zonewise.io/shared", "zonewise.io/weighted"])
def test_without_the_gate_hints_that_are_there_choose_nothing(mode: str) -> None:
    """The report says that the gate is off, and what proxies without it do with old hints."""
    settings = ReportSettings(gates=FeatureGates({"TopologyAwareHints": False}))
    web = service(annotations={MODE_ANNOTATION: mode})
    items = [*THREE, web, part(spread(2, 2, 2, hints=True))]
    report = explain(items, settings).to_dict()
    assert (report["mode"], report["reason"]["code"]) == ("Off", "GateOff")
    assert report["applied"]["hinted"] is False
    assert report["applied"]["inZone"] == report["inZoneWithoutHints"]
    assert explain(items).to_dict()["applied"]["hinted"] is True


@pytest.mark.parametrize("mode", ["Auto", "zonewise.io/weighted"])
def test_the_condition_says_that_the_gate_is_off(mode: str) -> None:
    """A controller that runs with the gate off says so in its condition; unless gates are given,
    the report is what that controller decides.
    """
    status = {"conditions": [{"type": "zonewise.io/Hints", "status": "False", "reason": "GateOff"}]}
    web = {**service(annotations={MODE_ANNOTATION: mode}), "status": status}
    items = [*THREE, web, part(spread(2, 2, 2))]
    report = explain(items).to_dict()
    assert (report["mode"], report["reason"]["code"]) == ("Off", "GateOff")
    assert report["hinted"] is False
    given = explain(items, ReportSettings(gates=FeatureGates())).to_dict()
    assert (given["mode"], given["hinted"]) == (mode, True)
