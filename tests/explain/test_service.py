"""What is told about a Service."""

from __future__ import annotations

from typing import Any

import pytest
from tests.explain.dumps import (
    AUTO,
    Item,
    cluster,
    endpoint,
    explained,
    node,
    part,
    pod,
    service,
)

from zonewise.explain.cluster import ReportSettings
from zonewise.explain.service import explain_service
from zonewise.explain.service_page import render_service, render_services
from zonewise.topology.shares import MissingCpu, MissingZone

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
    """So many endpoints in zones a, b, c."""
    return [
        endpoint(f"10.0.{ord(zone)}.{n}", zone, on=f"n{place}", hints=[zone] if hints else [])
        for place, (zone, count) in enumerate(zip("abc", counts, strict=False), start=1)
        for n in range(count)
    ]


def test_a_service_with_hints() -> None:
    """The decision is told with all its numbers, and beside it what the slices carry."""
    told = explained([*THREE, service(), part(spread(2, 1, 0))]).to_dict()
    assert told.keys() == FIELDS
    assert (told["service"], told["namespace"], told["mode"]) == ("web", "default", "Auto")
    assert told["hinted"] is True
    assert told["reason"] == {
        "code": "Hinted",
        "message": "every zone has endpoints for its share of the traffic",
        "fix": "",
    }
    assert told["zones"][0] == {
        "zone": "a",
        "nodes": 1,
        "cpuMilli": 1000,
        "share": 0.333333,
        "endpoints": 2,
        "minimum": 1,
        "assigned": 1,
        "overload": 0.0,
    }
    assert [row["forZones"] for row in told["endpoints"]] == [["a"], ["c"], ["b"]]
    assert told["endpoints"][1] == {
        "address": "10.0.97.1",
        "zone": "a",
        "ready": True,
        "forZones": ["c"],
        "forNodes": [],
    }
    assert told["inZone"] == 0.666667
    assert told["inZoneWithoutHints"] == 0.333333
    assert told["inZoneLimit"] == 0.666667
    assert told["overload"] == 0.0
    assert told["applied"] == {"hinted": False, "inZone": 0.333333, "overload": 0.0}
    (family,) = told["families"]
    assert family["family"] == "IPv4"
    assert {key: family[key] for key in family if key != "family"} == {
        key: told[key] for key in family if key != "family"
    }


def test_a_service_without_hints() -> None:
    """A refusal has its code, its numbers and a remedy; overload is nought."""
    told = explained([*THREE, service(), part(spread(2, 1, 1))]).to_dict()
    assert told["hinted"] is False
    assert told["reason"]["code"] == "Overload"
    assert "needs 6, has 4" in told["reason"]["message"]
    assert told["reason"]["fix"].startswith("Scale to 6 endpoints.")
    assert told["overload"] == 0.0
    assert all(row["overload"] == 0.0 and row["assigned"] == 0 for row in told["zones"])
    assert all(row["forZones"] == [] for row in told["endpoints"])


def test_hints_on_slices_are_what_was_before() -> None:
    """Between the limits hints stay where they were, and are not added where they were not."""
    items = [*THREE, service()]
    before = explained([*items, part(spread(4, 4, 3, hints=True))])
    assert before.primary.decided.hinted
    assert before.primary.up_to_date
    assert before.primary.applied == before.primary.decided
    assert not explained([*items, part(spread(4, 4, 3))]).primary.decided.hinted


def test_an_endpoint_that_came_later() -> None:
    """One without a hint among hinted ones is new: the others keep theirs, proxies ignore all."""
    endpoints = [*spread(4, 4, 2, hints=True), endpoint("10.0.9.9", "c", on="n3")]
    told = explained([*THREE, service(), part(endpoints)])
    assert told.primary.decided.hinted
    assert not told.primary.applied.hinted
    assert not told.primary.up_to_date


def test_the_place_of_an_endpoint_is_its_nodes() -> None:
    """A node's label counts; what a slice says counts only for nodes that are gone."""
    endpoints = [endpoint("10.0.0.1", "z", on="n1"), endpoint("10.0.0.2", "z", on="gone")]
    told = explained([*THREE, service(), part(endpoints)]).to_dict()
    assert [row["zone"] for row in told["endpoints"]] == ["a", "z"]
    bare = [node("n1"), *THREE[1:]]
    told = explained(
        [*bare, service(), part(endpoints[:1])], ReportSettings(missing_zone=MissingZone.SKIP_NODE)
    ).to_dict()
    assert told["reason"]["code"] == "EndpointWithoutZone"


def test_endpoints_in_two_slices_count_once() -> None:
    """While an endpoint moves to another slice, the one that lives longer counts."""
    dying = endpoint("10.0.97.0", "a", ready=False, terminating=True)
    told = explained([*THREE, service(), part([dying]), part(spread(1, 1, 1), name="web-2")])
    assert [target.ready for target in told.primary.endpoints] == [True, True, True]
    assert told.primary.decided.hinted


def test_slices_of_others() -> None:
    """An endpoint in somebody else's slice cancels the hints; that is the reason told."""
    ours = part(spread(1, 1, 1), **{"managed-by": "endpointslice-controller.k8s.io"})
    for label in ({}, {"managed-by": "somebody.example.com"}):
        theirs = part([endpoint("192.0.2.1", "a")], name="hand-made", **label)
        told = explained([*THREE, service(), ours, theirs])
        assert told.primary.reason.code == "ForeignEndpoint"
        assert told.primary.decided.hinted
        assert told.primary.decided.in_zone == told.primary.in_zone_without_hints
        assert len(told.primary.endpoints) == 4


def test_services_without_a_selector() -> None:
    """Where somebody else writes the endpoints, nobody decides here."""
    theirs = part(spread(1, 1, 1), **{"managed-by": "endpointslicemirroring-controller.k8s.io"})
    told = explained([*THREE, service(selector=None), theirs]).to_dict()
    assert (told["mode"], told["reason"]["code"]) == ("Off", "NoSelector")
    assert len(told["endpoints"]) == 3
    told = explained([service(type="ExternalName", selector=None)]).to_dict()
    assert told["reason"]["code"] == "ExternalName"


@pytest.mark.parametrize(
    ("annotations", "spec", "code", "mode"),
    [
        ({}, {}, "NotAsked", "Off"),
        ({"service.kubernetes.io/topology-mode": "AUTO"}, {}, "UnknownMode", "Off"),
        ({}, {"trafficDistribution": "PreferClose"}, "Hinted", "PreferSameZone"),
        ({}, {"trafficDistribution": "PreferSameNode"}, "Hinted", "PreferSameNode"),
        (AUTO, {"topologyKeys": ["*"]}, "TopologyKeys", "Off"),
        (AUTO, {"internalTrafficPolicy": "Local"}, "LocalPolicy", "Off"),
        (AUTO | {"zonewise.io/overload": "0%/30%"}, {}, "InvalidOverload", "Off"),
    ],
)
def test_modes(annotations: dict[str, str], spec: dict[str, Any], code: str, mode: str) -> None:
    """Every way to ask for hints, or not to, is told by its name."""
    told = explained([*THREE, service(annotations=annotations, **spec), part(spread(3, 0, 1))])
    assert (told.primary.reason.code, told.mode.value) == (code, mode)
    if mode == "PreferSameNode":
        assert told.primary.endpoints[0].hint.nodes == ("n1",)
    if mode == "PreferSameZone":
        overloads = [row["overload"] for row in told.to_dict()["zones"]]
        assert overloads == [-0.222222, None, 0.666667]


def test_the_service_of_the_api_servers_is_given_no_advice() -> None:
    """They write its slices, and are in no zone: neither a remedy nor a number makes sense."""
    api = service("kubernetes", annotations={}, selector=None)
    report = explained([*THREE, api, part([endpoint("192.0.2.1")], of="kubernetes")])
    assert (report.primary.reason.code, report.primary.reason.fix) == ("NoSelector", "")
    page = render_service(report)
    assert "What would help" not in page
    assert "expected now" not in page
    assert report.to_dict()["inZone"] == 0


def test_an_external_name_has_no_zones() -> None:
    """Nobody is sent to endpoints by it: there is no table, no number, and nothing unanswered."""
    report = explained([*THREE, service(type="ExternalName", selector=None, externalName="a.b")])
    told = report.to_dict()
    assert (told["zones"], told["inZone"], told.get("unanswered")) == ([], 0, None)
    assert "MINIMUM" not in render_service(report)


def test_a_limit_that_does_not_apply_is_null() -> None:
    """Without endpoints nothing is in zone, and where no limit applies there is none."""
    told = explained([*THREE, service()]).to_dict()
    numbers = ("inZone", "inZoneWithoutHints", "inZoneLimit")
    assert [told[name] for name in numbers] == [0, 0, 0]
    assert told["applied"]["inZone"] == 0
    local = service(annotations={}, internalTrafficPolicy="Local")
    told = explained([*THREE, local, part(spread(2, 1, 1))]).to_dict()
    assert (told["inZone"], told["inZoneLimit"]) == (1.0, None)
    near = service(annotations={}, trafficDistribution="PreferClose")
    told = explained([*THREE, near, part(spread(2, 1, 1))]).to_dict()
    assert (told["inZone"], told["inZoneLimit"]) == (1.0, None)


@pytest.mark.parametrize("annotations", [AUTO, {}])
def test_a_service_without_endpoints_answers_nothing(annotations: dict[str, str]) -> None:
    """Proxies reject all of its traffic, and all reports say so."""
    report = explained([*THREE, service(annotations=annotations)])
    assert report.to_dict()["unanswered"] == 1.0
    assert render_services([("", report)]).endswith(" 100.0 %")
    assert "No traffic gets an answer: the Service has no ready endpoint." in render_service(report)


def test_dual_stack() -> None:
    """Families are decided apart; the first that the Service names stands for it."""
    six = [endpoint(f"fd00::{n}", zone) for n, zone in enumerate("aab")]
    items = [
        *THREE,
        service(ipFamilies=["IPv6", "IPv4"]),
        part(spread(1, 1, 0)),
        part(six, name="web-6", family="IPv6"),
    ]
    told = explained(items).to_dict()
    assert [family["family"] for family in told["families"]] == ["IPv6", "IPv4"]
    assert told["hinted"] is True
    assert told["families"][1]["reason"]["code"] == "TooFewEndpoints"
    assert {row["address"] for row in told["endpoints"]} == {"fd00::0", "fd00::1", "fd00::2"}


def test_settings_of_the_controller() -> None:
    """What a node without CPU or zone means is a setting, as it is for the controller."""
    items = [*THREE, node("n4", "a", milli=0), service(), part(spread(2, 1, 1))]
    assert explained(items).primary.reason.code == "NodeWithoutCpu"
    told = explained(items, ReportSettings(missing_cpu=MissingCpu.EQUAL))
    assert told.primary.decided.hinted
    items = [*THREE, node("n4"), service(), part(spread(1, 1, 1))]
    assert explained(items).primary.reason.message == "node n4 has no zone label"
    assert explained(
        items, ReportSettings(missing_zone=MissingZone.SKIP_NODE)
    ).primary.decided.hinted


def test_nothing_there() -> None:
    """No nodes and no slices are reasons, not faults."""
    told = explained([service()]).to_dict()
    assert (told["reason"]["code"], told["inZone"], told["inZoneLimit"]) == ("NoEndpoints", 0, 0)
    told = explained([service(), part(spread(1))]).to_dict()
    assert told["reason"]["code"] == "NoNodes"


def test_namespaces() -> None:
    """Slices belong to the Service of their own namespace; no namespace is the default one."""
    bare = service()
    del bare["metadata"]["namespace"]
    made = cluster(
        [*THREE, bare, service(namespace="b"), part(spread(1, 1, 1)), part([], namespace="b")]
    )
    first, second = (
        explain_service(made, made.services[place, "web"]) for place in ("default", "b")
    )
    assert (len(first.primary.endpoints), len(second.primary.endpoints)) == (3, 0)


def test_endpoints_from_pods() -> None:
    """Pods are the truth where they are known; slices then only say what was there."""
    pods = [pod("10.0.0.1", "n1"), pod("10.0.0.2", "n2"), pod("10.0.0.3", "n3")]
    other = pod("10.0.0.4", "n1", of="other")
    told = explained([*THREE, service(), part(spread(2, 2, 2, hints=True)), *pods, other])
    assert [target.name for target in told.primary.endpoints] == [
        "10.0.0.1",
        "10.0.0.2",
        "10.0.0.3",
    ]
    assert told.primary.decided.hinted
    assert told.primary.applied.hinted
    assert not told.primary.up_to_date
    empty = explained([*THREE, service(), other, part(spread(1, 1, 1))])
    assert empty.primary.reason.code == "NoEndpoints"


def test_shares_of_tolerated_nodes() -> None:
    """A pool that pods cannot run on does not count for a Service that says so."""
    pool: Item = node("n4", "a", milli=90_000)
    pool["spec"] = {"taints": [{"key": "gpu", "effect": "NoSchedule"}]}
    annotations = AUTO | {"zonewise.io/share-nodes": "tolerated"}
    items = [*THREE, pool, service(annotations=annotations), part(spread(1, 1, 1))]
    pods = [pod(f"10.0.{ord(zone)}.0", f"n{n}") for n, zone in enumerate("abc", start=1)]
    told = explained([*items, *pods])
    assert told.primary.decided.hinted
    assert told.notes == ()
    blind = explained(items)
    assert blind.primary.reason.code == "Overload"
    assert "all nodes" in blind.notes[0]


def test_headless_services_have_no_proxy() -> None:
    """Hints of a headless Service are shown, with a word on who reads them."""
    items = [*THREE, service(clusterIP="None"), part(spread(1, 1, 1))]
    (note,) = explained(items).notes
    assert "headless" in note


def test_a_weighted_service_tells_weights_and_what_stock_proxies_do() -> None:
    """``zoneWeights`` is the text as JSON, ``stock`` is for proxies that know hints only."""
    mode = {"service.kubernetes.io/topology-mode": "zonewise.io/weighted"}
    told = explained([*THREE, service(annotations=mode), part(spread(2, 1, 1))]).to_dict()
    assert told["mode"] == "zonewise.io/weighted"
    assert told["zoneWeights"].keys() == {"b", "c"}
    assert told["stock"].keys() == {"inZone", "overload"}
    assert told["stock"]["inZone"] == 0.611111
    assert told["inZone"] > told["stock"]["inZone"]
    assert told["inZone"] <= told["inZoneLimit"]


def test_weights_on_the_slices_are_what_is_applied() -> None:
    """``applied`` follows a text that proxies obey; a stranger's slice without one cancels it."""
    mode = {"service.kubernetes.io/topology-mode": "zonewise.io/weighted"}
    ours = part(spread(2, 1, 1), **{"managed-by": "endpointslice-controller.k8s.io"})
    ours["metadata"]["annotations"] = {
        "zonewise.io/zone-weights": '{"b":{"a":1,"b":2},"c":{"a":1,"c":2}}'
    }
    told = explained([*THREE, service(annotations=mode), ours]).to_dict()
    assert told["applied"]["inZone"] == pytest.approx((1 + 0.5 + 0.5) / 3, abs=1e-6)
    stranger = part(
        [endpoint("10.9.9.9", "a", hints=["a"])], name="x", **{"managed-by": "somebody"}
    )
    told = explained([*THREE, service(annotations=mode), ours, stranger]).to_dict()
    assert told["inZone"] == told["stock"]["inZone"]
    assert told["reason"]["code"] == "ForeignEndpoint"
    assert "10.9.9.9" in told["reason"]["message"]


def test_a_shared_service_counts_endpoints_per_zone_they_name() -> None:
    """``assigned`` sums to more than the endpoints, since one may be for several zones."""
    mode = {"service.kubernetes.io/topology-mode": "zonewise.io/shared"}
    told = explained([*THREE, service(annotations=mode), part(spread(2, 1, 1))]).to_dict()
    assert told["hinted"] is True
    assert sum(zone["assigned"] for zone in told["zones"]) > 4
    assert max(zone["overload"] for zone in told["zones"]) == told["overload"]
    assert "zoneWeights" not in told
