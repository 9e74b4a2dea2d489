"""Which mode a Service asks for: spellings, precedence, refusals."""

from __future__ import annotations

import pytest
from msgspec import structs
from tests.traffic.clusters import NEW, OLD, OVERLOAD, service

from zonewise.api import FeatureGates, ParseError, Service
from zonewise.api.meta import Condition
from zonewise.traffic.limits import OverloadLimits
from zonewise.traffic.modes import (
    HintRequest,
    Mode,
    ShareNodes,
    counts_zone_hints,
    hint_request_of,
    is_all_local,
    reported_gates,
)

GATES = FeatureGates()


def code(hint_request: HintRequest) -> str:
    """The reason why there are no hints."""
    assert hint_request.mode is Mode.OFF
    assert hint_request.reason is not None
    return hint_request.reason.code


@pytest.mark.parametrize(
    ("annotated", "mode"),
    [
        (service({OLD: "auto"}), Mode.AUTO),
        (service({OLD: "Auto"}), Mode.AUTO),
        (service({NEW: "Auto"}), Mode.AUTO),
        (service({NEW: "auto"}), Mode.AUTO),
        (service({OLD: "Auto", NEW: "Disabled"}), Mode.AUTO),
        (service(traffic_policy="PreferZone"), Mode.AUTO),
        (service(traffic_distribution="PreferClose"), Mode.SAME_ZONE),
        (service(traffic_distribution="PreferSameZone"), Mode.SAME_ZONE),
        (service(traffic_distribution="PreferSameNode"), Mode.SAME_NODE),
        (service({NEW: "Auto"}, traffic_distribution="PreferClose"), Mode.AUTO),
        (service({NEW: "Disabled"}, traffic_distribution="PreferClose"), Mode.SAME_ZONE),
        (service({NEW: "x.y/z"}, traffic_distribution="PreferClose"), Mode.SAME_ZONE),
    ],
)
def test_spellings(annotated: Service, mode: Mode) -> None:
    """Every spelling of every source is understood, and annotations win over fields."""
    hint_request = hint_request_of(annotated, GATES)
    assert (hint_request.mode, hint_request.reason) == (mode, None)


@pytest.mark.parametrize(
    ("annotated", "expected"),
    [
        (service(), "NotAsked"),
        (service({OLD: ""}), "NotAsked"),
        (service({OLD: "Disabled", NEW: "Auto"}), "NotAsked"),
        (service({NEW: "AUTO"}), "UnknownMode"),
        (service({NEW: "example.com/mine"}), "UnknownMode"),
        (service({NEW: "zonewise.io/unheard-of"}), "UnknownMode"),
        (service(traffic_distribution="PreferFar"), "UnknownMode"),
        (service({NEW: "Auto", "zonewise.io/topology-keys": "*"}), "TopologyKeys"),
        (service({NEW: "Auto"}, traffic_policy="Local"), "LocalPolicy"),
        (service({NEW: "Auto"}, internal_traffic_policy="Local"), "LocalPolicy"),
        (
            service(
                {NEW: "Auto"},
                type="LoadBalancer",
                internal_traffic_policy="Local",
                external_traffic_policy="Local",
            ),
            "LocalPolicy",
        ),
        (service({NEW: "Auto", OVERLOAD: "20"}), "InvalidOverload"),
        (service({NEW: "Auto", OVERLOAD: "30%/20%"}), "InvalidOverload"),
        (service({NEW: "Auto", "zonewise.io/share-nodes": "some"}), "InvalidShareNodes"),
    ],
)
def test_refusals(annotated: Service, expected: str) -> None:
    """What excludes hints, or is invalid, gives no hints and a reason that names the Service."""
    hint_request = hint_request_of(annotated, GATES)
    assert code(hint_request) == expected
    assert hint_request.reason is not None
    assert hint_request.reason.object == "Service/x/s"
    assert hint_request.reason.fix


FIELD_COUNTS = FeatureGates({"TopologyAwareHints": False, "ServiceTopology": True})


def test_keys_that_do_not_count_exclude_no_hints() -> None:
    """A field whose gate is off, and a blank annotation, are no topology keys for hints either."""
    stored = service({NEW: "Auto"}, topology_keys=("*",))
    assert hint_request_of(stored, GATES).mode is Mode.AUTO
    blank = service({NEW: "Auto", "zonewise.io/topology-keys": " "})
    assert hint_request_of(blank, GATES).mode is Mode.AUTO
    near = service(traffic_distribution="PreferClose", topology_keys=("*",))
    assert code(hint_request_of(near, FIELD_COUNTS)) == "TopologyKeys"
    assert hint_request_of(near, GATES).mode is not Mode.OFF


def test_a_field_shows_that_its_gate_is_on() -> None:
    """The gate is taken to be on where a Service has the field, unless the controller decided its
    hints, which the gate excludes.
    """
    stored = service({NEW: "Auto"}, topology_keys=("*",))
    assert reported_gates(stored) == FIELD_COUNTS
    for reason, expected in (("GateOff", FIELD_COUNTS), ("Overload", GATES), ("Hinted", GATES)):
        condition = Condition(type="zonewise.io/Hints", status="False", reason=reason)
        status = structs.replace(stored.status, conditions=(condition,))
        assert reported_gates(structs.replace(stored, status=status)) == expected
    assert reported_gates(service({NEW: "Auto"})) == GATES


@pytest.mark.parametrize(
    "partly_local",
    [
        service({NEW: "Auto"}, type="LoadBalancer", external_traffic_policy="Local"),
        service({NEW: "Auto"}, type="NodePort", internal_traffic_policy="Local"),
        service({NEW: "Auto"}, external_ips=("192.0.2.1",), internal_traffic_policy="Local"),
        service({NEW: "Auto"}, internal_traffic_policy="Cluster"),
    ],
)
def test_one_path_that_is_not_local_is_enough(partly_local: Service) -> None:
    """Local on some paths only leaves the choice per path to the proxy."""
    assert not is_all_local(partly_local)
    assert hint_request_of(partly_local, GATES).mode is Mode.AUTO


GATE_IS_OFF = FeatureGates({"TopologyAwareHints": False})


@pytest.mark.parametrize(
    ("requesting", "setting"),
    [
        (service(traffic_policy="PreferZone"), "spec.trafficPolicy: PreferZone"),
        (service({OLD: "auto"}), f"annotation {OLD}: auto"),
        (service({NEW: "Auto"}, traffic_policy="PreferZone"), f"annotation {NEW}: Auto"),
        (service({NEW: "zonewise.io/shared"}), f"annotation {NEW}: zonewise.io/shared"),
        (service({NEW: "zonewise.io/weighted"}), f"annotation {NEW}: zonewise.io/weighted"),
    ],
)
def test_the_gate_is_the_switch_for_every_mode_with_limits(
    requesting: Service, setting: str
) -> None:
    """KEP-2433: turning off the gate disables hints universally, however they are requested."""
    assert hint_request_of(requesting, GATES).mode is not Mode.OFF
    off = hint_request_of(requesting, GATE_IS_OFF)
    assert code(off) == "GateOff"
    assert off.reason is not None
    assert off.reason.message == (
        f"{setting} has no effect while the feature gate TopologyAwareHints is off"
    )
    assert not counts_zone_hints(requesting, GATE_IS_OFF)


@pytest.mark.parametrize("annotations", [{}, {NEW: "Auto"}, {NEW: "zonewise.io/weighted"}])
def test_a_traffic_distribution_needs_no_gate(annotations: dict[str, str]) -> None:
    """Without the gate a trafficDistribution still counts, beside an annotation that does not."""
    near = service(annotations, traffic_distribution="PreferSameNode")
    assert hint_request_of(near, GATE_IS_OFF).mode is Mode.SAME_NODE
    assert counts_zone_hints(near, GATE_IS_OFF)


def test_limits_of_the_annotation() -> None:
    """The limits come from the annotation."""
    assert hint_request_of(
        service({NEW: "Auto", OVERLOAD: "10%/15%"}), GATES
    ).limits == OverloadLimits(10, 15)
    assert hint_request_of(service({NEW: "Auto"}), GATES).limits == OverloadLimits(20, 30)
    assert str(OverloadLimits(1, 100)) == "1%/100%"
    assert OverloadLimits.parse(" 1%/100% ") == OverloadLimits(1, 100)


@pytest.mark.parametrize(
    "text",
    ["", "20", "20%", "20/30", "0%/30%", "31%/30%", "20%/101%", "-1%/5%", "2.5%/5%", "٢%/٣%"],
)
def test_bad_limits(text: str) -> None:
    """Limits are two whole percentages, 1 ≤ add ≤ drop ≤ 100."""
    with pytest.raises(ParseError):
        OverloadLimits.parse(text)


def test_share_nodes() -> None:
    """Shares count all nodes unless a Service asks for those that its pods tolerate."""
    key = "zonewise.io/share-nodes"
    services = [service({NEW: "Auto"} | more) for more in ({}, {key: "all"}, {key: "tolerated"})]
    modes = [hint_request_of(candidate, GATES).share_nodes for candidate in services]
    assert modes == [ShareNodes.ALL, ShareNodes.ALL, ShareNodes.TOLERATED]
