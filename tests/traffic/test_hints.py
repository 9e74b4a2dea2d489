"""The decision: both tables of KEP-2433, the safeguards of the docs page, and other scenarios."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import msgspec
import pytest
from tests.traffic.clusters import (
    NOTHING,
    changed,
    fresh,
    moved,
    overloads,
    per_zone,
    shares,
    snapshot,
    targets,
)

from zonewise.api import FeatureGates, ObjectMeta, Reason, Service
from zonewise.api.objects.core import ServiceSpec
from zonewise.topology.shares import Shares, ZoneShare
from zonewise.traffic.endpoint import Hint, TrafficEndpoint
from zonewise.traffic.hints import (
    HINTED,
    HintDecision,
    PreviousHints,
    ServiceSnapshot,
    decide_hints,
    in_zone_limit,
    zone_rows,
)
from zonewise.traffic.limits import OverloadLimits
from zonewise.traffic.modes import HintRequest, Mode, hint_request_of
from zonewise.traffic.routes.choice import ClientLocation, RouteRule, choose_by_hints

ON = FeatureGates()
OFF = FeatureGates({"TopologyAwareHints": False})


def service(
    policy: str | None = None, *, annotations: Mapping[str, str] | None = None, **spec: object
) -> Service:
    """A Service named s."""
    known = msgspec.structs.replace(ServiceSpec(traffic_policy=policy), **spec)
    meta = ObjectMeta(name="s", namespace="default", annotations=dict(annotations or {}))
    return Service(metadata=meta, spec=known)


def decide(
    hint_request: HintRequest, cpu: tuple[int, ...], endpoints: tuple[int, ...]
) -> HintDecision:
    """The decision for a mode."""
    return fresh(replace(snapshot(cpu, endpoints), hint_request=hint_request))


# KEP-2433, table of controller tests.


def test_prefer_zone_with_two_zones_is_hinted() -> None:
    """With the gate on, a Service with PreferZone in two zones is hinted."""
    decision = decide(hint_request_of(service("PreferZone"), ON), (1, 1), (2, 2))
    assert decision.hinted
    assert decision.reason.code == HINTED


def test_prefer_zone_with_one_zone_is_not() -> None:
    """With the gate on, a Service with PreferZone in one zone is not hinted, and the reason is the
    one zone.
    """
    reason = Reason(code="OneZone", message="all Ready nodes that count are in zone a")
    one_zone = Shares((ZoneShare("a", 2, 2000, 2000),), reason)
    decision = decide_hints(
        ServiceSnapshot(hint_request_of(service("PreferZone"), ON), one_zone, targets(4)), NOTHING
    )
    assert not decision.hinted
    assert decision.hints == {}
    assert decision.reason.code == "OneZone"


@pytest.mark.parametrize(
    ("policy", "gates", "code"),
    [
        ("Local", ON, "NotAsked"),
        (None, ON, "NotAsked"),
        ("PreferZone", OFF, "GateOff"),
        (None, OFF, "NotAsked"),
        ("Cluster", ON, "NotAsked"),
    ],
)
def test_other_policies_and_gates(policy: str | None, gates: FeatureGates, code: str) -> None:
    """Without the gate or without PreferZone there are no hints, and existing ones are removed."""
    hint_request = hint_request_of(service(policy), gates)
    view = replace(snapshot((1, 1), (2, 2)), hint_request=hint_request)
    hinted = fresh(snapshot((1, 1), (2, 2)))
    decision = decide_hints(view, hinted.as_previous(view))
    assert (decision.hinted, decision.hints) == (False, {})
    assert decision.reason.code == code


@pytest.mark.parametrize(
    ("cpu", "endpoints", "hinted"),
    [
        ((1, 1, 1), (1, 1, 0), False),
        ((1, 1, 1), (1, 1, 1), True),
        ((1, 1, 1), (2, 1, 1), False),
        ((1, 1), (2, 2), True),
        ((1, 1), (4, 0), True),
        ((2, 1, 1), (2, 1, 1), True),
        ((98, 100, 101, 103), (100, 100, 100, 100), True),
    ],
)
def test_numbers_of_the_table(
    cpu: tuple[int, ...], endpoints: tuple[int, ...], hinted: bool
) -> None:
    """Each row of KEP-2433's table of numbers is hinted, or not, as it says."""
    view = snapshot(cpu, endpoints)
    decision = fresh(view)
    assert decision.hinted == hinted
    if hinted:
        assert max(overloads(view, decision).values()) < Fraction(1, 5)


def test_node_removal_without_transition() -> None:
    """Shares that move within the limits change no hint."""
    before = snapshot((4, 4, 4), (4, 4, 4))
    first = fresh(before)
    after = snapshot((4, 4, 3), (4, 4, 4))
    assert not OverloadLimits().needs_decision(
        after.shares, first.counts(before.endpoints), hinted=True
    )
    assert decide_hints(after, first.as_previous(before)) == first


def test_node_removal_with_transition() -> None:
    """Shares that leave a zone above 30 % move as few hints as needed."""
    before = snapshot((4, 4, 4), (4, 4, 4))
    first = fresh(before)
    after = snapshot((8, 4, 4), (4, 4, 4))
    assert OverloadLimits().needs_decision(
        after.shares, first.counts(before.endpoints), hinted=True
    )
    second = decide_hints(after, first.as_previous(before))
    assert per_zone(second) == {"a": 6, "b": 3, "c": 3}
    assert len(changed(first, second)) == 2


def test_additions_that_require_redistribution() -> None:
    """New endpoints of one zone serve the zone that would be short."""
    before = snapshot((1, 1), (2, 2))
    first = fresh(before)
    after = snapshot((1, 1), (8, 2))
    second = decide_hints(after, first.as_previous(before))
    assert max(overloads(after, second).values()) <= Fraction(3, 10)
    assert changed(first, second) == []


def test_removals_that_require_redistribution() -> None:
    """When a zone loses endpoints another one gives some of its own."""
    before = snapshot((1, 1), (6, 6))
    first = fresh(before)
    after = snapshot((1, 1), (6, 2))
    second = decide_hints(after, first.as_previous(before))
    assert per_zone(second) == {"a": 4, "b": 4}
    assert len(changed(first, second)) == 2


# The docs page: safeguards.


def test_safeguard_1_too_few_endpoints() -> None:
    """With fewer endpoints than zones there are no hints, and the reason counts both."""
    reason = fresh(snapshot((1, 1, 1), (1, 1, 0))).reason
    assert reason.code == "TooFewEndpoints"
    assert "2 endpoints, 3 zones" in reason.message
    assert reason.numbers["needed"] == 3


def test_safeguard_2_no_balance() -> None:
    """With two endpoints, and one zone twice as large, the overload cannot be low enough."""
    reason = fresh(snapshot((2, 1), (1, 1))).reason
    assert reason.code == "Overload"
    assert reason.numbers["overload"] == "1/3"
    assert reason.numbers["needed"] == 3
    assert reason.message.endswith("needs 3, has 2")


def test_safeguard_3_a_node_lacks_information() -> None:
    """If shares have a reason there are no hints, existing ones are removed, with that reason."""
    good = snapshot((1, 1), (2, 2))
    reason = Reason(code="NodeWithoutZone", message="node n3 has no zone label", object="Node/n3")
    bad = replace(good, shares=Shares(good.shares.zones, reason))
    decision = decide_hints(bad, fresh(good).as_previous(good))
    assert (decision.hinted, decision.hints, decision.reason) == (False, {}, reason)
    there = fresh(good).counts(good.endpoints)
    assert OverloadLimits().needs_decision(bad.shares, there, hinted=True)
    assert not OverloadLimits().needs_decision(
        bad.shares, decision.counts(bad.endpoints), hinted=False
    )


def test_safeguard_4_an_endpoint_without_hint() -> None:
    """If one ready endpoint has no hint, a proxy uses all."""
    hinted = TrafficEndpoint("x", hint=Hint(("a",)))
    chosen = choose_by_hints([hinted, TrafficEndpoint("y")], ClientLocation("a"))
    assert (chosen.rule, len(chosen.endpoints)) == (RouteRule.PARTLY_HINTED, 2)


def test_safeguard_5_a_zone_without_hints() -> None:
    """If no hint is for its zone, a proxy uses all endpoints."""
    chosen = choose_by_hints([TrafficEndpoint("x", hint=Hint(("a",)))], ClientLocation("d"))
    assert (chosen.rule, len(chosen.endpoints)) == (RouteRule.NO_HINT_FOR_LOCATION, 1)


# Scenarios.


def test_one_endpoint_is_lent_to_the_empty_zone() -> None:
    """With 2/1/0 endpoints in three equal zones, one of zone a's is for c."""
    view = snapshot((1, 1, 1), (2, 1, 0))
    decision = fresh(view)
    assert per_zone(decision) == {"a": 1, "b": 1, "c": 1}
    assert len(moved(decision, view)) == 1


@pytest.mark.parametrize("count", [1, 2, 4, 5, 8, 11])
def test_three_equal_zones_cannot_be_served(count: int) -> None:
    """Numbers of endpoints that cannot serve three equal zones are refused, wherever they are."""
    assert not fresh(snapshot((1, 1, 1), (count, 0, 0))).hinted


def test_twice_the_cores() -> None:
    """With CPU 2:1:1 endpoints at 2/1/1 serve their own zones; at 0/2/2 two are lent to a."""
    view = snapshot((2, 1, 1), (2, 1, 1))
    assert moved(fresh(view), view) == []
    view = snapshot((2, 1, 1), (0, 2, 2))
    assert per_zone(fresh(view)) == {"a": 2, "b": 1, "c": 1}


def test_all_endpoints_in_one_of_two_zones() -> None:
    """With 4/0 endpoints in two equal zones, two are for each."""
    assert per_zone(fresh(snapshot((1, 1), (4, 0)))) == {"a": 2, "b": 2}


def test_hints_stay_between_the_limits() -> None:
    """12 endpoints are hinted, 11 keep their hints at 22 %, 8 lose them at 33 %."""
    start = snapshot((1, 1, 1), (4, 4, 4))
    first = fresh(start)
    eleven = snapshot((1, 1, 1), (4, 4, 3))
    second = decide_hints(eleven, first.as_previous(start))
    assert second.hinted
    assert changed(first, second) == []
    assert not fresh(eleven).hinted
    eight = snapshot((1, 1, 1), (3, 3, 2))
    third = decide_hints(eight, second.as_previous(eleven))
    assert (third.hinted, third.hints) == (False, {})
    assert third.reason.code == "Overload"


def test_hints_stay_between_the_limits_in_two_zones() -> None:
    """5 endpoints get no hints, 6 that become 5 keep them, 3 lose them."""
    assert not fresh(snapshot((1, 1), (3, 2))).hinted
    six = snapshot((1, 1), (3, 3))
    five = snapshot((1, 1), (3, 2))
    second = decide_hints(five, fresh(six).as_previous(six))
    assert second.hinted
    three = snapshot((1, 1), (2, 1))
    assert not decide_hints(three, second.as_previous(five)).hinted


def test_the_example_of_the_source() -> None:
    """With CPU 20:16:14, 10 endpoints in a become 4/3/3, 5/3/2 moves one, and 3 are refused at
    exactly 20 %.
    """
    assert per_zone(fresh(snapshot((20, 16, 14), (10, 0, 0)))) == {"a": 4, "b": 3, "c": 3}
    view = snapshot((20, 16, 14), (5, 3, 2))
    decision = fresh(view)
    assert [decision.hint(name).zones for name in moved(decision, view)] == [("c",)]
    assert not fresh(snapshot((20, 16, 14), (1, 1, 1))).hinted


def test_exactly_twenty_percent_is_refused() -> None:
    """CPU 3:7 with 4 endpoints and 2:3 with 3 are both exactly at the limit, and both refused."""
    for cpu, endpoints in (((3, 7), (2, 2)), ((2, 3), (1, 2)), ((1, 4), (1, 2))):
        assert not fresh(snapshot(cpu, endpoints)).hinted


def test_no_zone_is_left_empty() -> None:
    """A small zone gets its minimum from another; if exactly 20 % is the best, no zone does."""
    assert not fresh(snapshot((1, 3, 6), (0, 2, 4))).hinted
    allowed = snapshot((1, 3, 6), (0, 2, 4), limits=OverloadLimits(21, 30))
    assert per_zone(fresh(allowed)) == {"a": 1, "b": 2, "c": 3}
    assert per_zone(fresh(snapshot((56, 56, 56, 12), (6, 6, 6, 0))))["d"] >= 1


def test_400_endpoints() -> None:
    """Four zones of nearly equal CPU: no endpoint crosses zones, and a repeat changes nothing."""
    view = snapshot((98, 100, 101, 103), (100, 100, 100, 100))
    decision = fresh(view)
    assert len(moved(decision, view)) <= 2
    assert decide_hints(view, decision.as_previous(view)) == decision


def test_any_order_gives_the_same_bytes() -> None:
    """The same input in a hundred orders gives identical hints."""
    rng = random.Random(7)
    view = snapshot((7, 3, 5, 2), (9, 0, 4, 11))
    expected = msgspec.json.encode(sorted_hints(fresh(view)))
    for _ in range(100):
        zones, ends = list(view.shares.zones), list(view.endpoints)
        rng.shuffle(zones)
        rng.shuffle(ends)
        decision = fresh(ServiceSnapshot(view.hint_request, Shares(tuple(zones)), tuple(ends)))
        assert msgspec.json.encode(sorted_hints(decision)) == expected


def sorted_hints(decision: HintDecision) -> list[tuple[str, tuple[str, ...]]]:
    """Hints in one order."""
    return sorted((name, hint.zones) for name, hint in decision.hints.items())


def test_a_zone_below_its_minimum_is_corrected_by_one_move() -> None:
    """With hints 1/3/3 in three equal zones one endpoint moves."""
    view = snapshot((1, 1, 1), (1, 3, 3))
    before = PreviousHints.from_endpoints(replace(t, hint=Hint((t.zone,))) for t in view.endpoints)
    decision = decide_hints(view, before)
    assert sorted(per_zone(decision).values()) == [2, 2, 3]
    assert len(moved(decision, view)) == 1


def test_hints_appear_by_a_node_event_alone() -> None:
    """A Service without hints gets them when new nodes make an overload below 20 % possible."""
    view = snapshot((1, 1, 1), (2, 1, 1))
    counts = fresh(view).counts(view.endpoints)
    assert not OverloadLimits().needs_decision(view.shares, counts, hinted=False)
    grown = snapshot((2, 1, 1), (2, 1, 1))
    assert OverloadLimits().needs_decision(grown.shares, counts, hinted=False)
    assert decide_hints(grown, fresh(view).as_previous(view)).hinted


def test_endpoints_in_a_zone_without_share_are_given_away() -> None:
    """Endpoints of a zone with only control-plane nodes serve zones that send traffic."""
    view = ServiceSnapshot(HintRequest(Mode.AUTO), shares(1, 1), targets(2, 2, 2))
    decision = fresh(view)
    assert per_zone(decision) == {"a": 3, "b": 3}
    assert decide_hints(view, decision.as_previous(view)) == decision
    more = replace(view, endpoints=targets(2, 2, 4))
    assert set(per_zone(decide_hints(more, decision.as_previous(view)))) == {"a", "b"}


def test_hints_for_a_lost_zone_wait_for_it() -> None:
    """While the others stay within the limit, hints for a zone that is gone do not move."""
    before = snapshot((5, 5, 1), (5, 5, 1))
    first = fresh(before)
    lost = snapshot(Shares(before.shares.zones[:2]), (5, 5, 1))
    assert decide_hints(lost, first.as_previous(before)) == first
    short = snapshot(Shares(before.shares.zones[:2]), (5, 3, 1))
    second = decide_hints(short, first.as_previous(before))
    assert second.hint("c0000").zones == ("b",)
    assert changed(first, second) == ["c0000"]


def test_endpoints_for_a_zone_that_was_renamed_serve_their_own() -> None:
    """A zone without nodes does not come back; one whose nodes are not Ready may."""
    view = snapshot((1, 1), (10, 10))
    was = {
        target.name: Hint(("old",) if target.name in ("a0000", "a0001") else (target.zone,))
        for target in view.endpoints
    }
    before = PreviousHints(was, hinted=True)
    assert per_zone(decide_hints(view, before)) == {"a": 10, "b": 10}
    waiting = replace(view, shares=replace(view.shares, silent_zones=frozenset({"old"})))
    assert per_zone(decide_hints(waiting, before)) == {"a": 8, "b": 10, "old": 2}


def test_an_endpoint_without_zone_is_named() -> None:
    """If a ready endpoint has no zone there are no hints; the reason names it and its node."""
    view = snapshot(
        (1, 1), [*targets(2, 2), TrafficEndpoint("10.0.0.9", node="n3"), TrafficEndpoint("z")]
    )
    decision = decide_hints(view, fresh(snapshot((1, 1), (2, 2))).as_previous(view))
    assert (decision.hinted, decision.hints) == (False, {})
    assert decision.reason.object == "Node/n3"
    assert "10.0.0.9" in decision.reason.message
    assert "(and 1 more)" in decision.reason.message
    nowhere = fresh(snapshot((1, 1), [*targets(2, 2), TrafficEndpoint("10.0.0.9")]))
    assert nowhere.reason.object == "Endpoint/10.0.0.9"


def test_endpoints_that_are_not_ready_do_not_count() -> None:
    """Not ready and terminating endpoints carry no hint and change no number."""
    view = snapshot((1, 1, 1), (1, 1, 1))
    dying = TrafficEndpoint("t", zone="a", ready=False, terminating=True)
    waiting = TrafficEndpoint("w", ready=False, serving=False)
    more = replace(view, endpoints=(*view.endpoints, dying, waiting))
    assert fresh(more) == fresh(view)


def test_nothing_is_ready() -> None:
    """Without ready endpoints there is nothing to hint and that is the reason."""
    assert (
        fresh(snapshot((1, 1), [TrafficEndpoint("t", zone="a", ready=False)])).reason.code
        == "NoEndpoints"
    )


def test_foreign_endpoints_that_cancel_hints_are_reported() -> None:
    """A ready endpoint without a hint in a slice of others is a warning."""
    view = snapshot((1, 1), (2, 2))
    foreign = (
        TrafficEndpoint("f", zone="a"),
        TrafficEndpoint("g", ready=False),
        TrafficEndpoint("h", hint=Hint(("a",))),
    )
    decision = fresh(replace(view, foreign_endpoints=foreign))
    assert decision.hinted
    assert [(w.code, w.object) for w in decision.warnings] == [("ForeignEndpoint", "Endpoint/f")]
    assert fresh(replace(view, foreign_endpoints=foreign[1:])).warnings == ()


def test_same_zone_knows_no_limits() -> None:
    """In mode PreferSameZone every endpoint is for its own zone, whatever the shares are."""
    view = snapshot((1, 1, 1), (5, 0, 1), mode=Mode.SAME_ZONE)
    decision = fresh(replace(view, shares=Shares()))
    assert per_zone(decision) == {"a": 5, "c": 1}
    assert decision.hinted
    assert all(not hint.nodes for hint in decision.hints.values())


def test_same_node_hints_zone_and_node() -> None:
    """Endpoints are for their node and zone; without a zone only for the node."""
    view = snapshot((1, 1), [*targets(1, 1), TrafficEndpoint("x", node="n9")], mode=Mode.SAME_NODE)
    decision = fresh(view)
    assert decision.hint("a0000") == Hint(("a",), ("node-a",))
    assert decision.hint("x") == Hint((), ("n9",))
    assert decision.hinted
    assert decision.reason.code == "EndpointWithoutZone"


def test_same_zone_leaves_endpoints_without_zone_alone() -> None:
    """An endpoint without a zone has no hint, so proxies ignore hints, and the reason says so."""
    view = snapshot((1, 1), [*targets(1, 1), TrafficEndpoint("x", node="n9")], mode=Mode.SAME_ZONE)
    decision = fresh(view)
    assert not decision.hinted
    assert set(decision.hints) == {"a0000", "b0000"}
    assert decision.reason.object == "Node/n9"


def test_half_written_hints_are_completed_without_a_change() -> None:
    """A controller that crashed after some slices starts again and keeps what it had written."""
    view = snapshot((7, 3, 5), (12, 0, 9))
    whole = fresh(view)
    for written in (5, 10, 20):
        some = set(sorted(whole.hints)[:written])
        half = PreviousHints.from_endpoints(
            replace(t, hint=whole.hint(t.name) if t.name in some else Hint())
            for t in view.endpoints
        )
        assert not half.hinted
        again = decide_hints(view, half)
        assert all(again.hint(name) == whole.hint(name) for name in some)
        assert again.flow(view) == whole.flow(view)


def test_half_written_hints_are_not_added_above_the_limit() -> None:
    """Incomplete hints, which no proxy used, do not count as hints: 11 endpoints get none."""
    view = snapshot((1, 1, 1), (4, 4, 3))
    half = PreviousHints.from_endpoints(
        replace(t, hint=Hint((t.zone,)) if t.zone != "c" else Hint()) for t in view.endpoints
    )
    assert not decide_hints(view, half).hinted


def test_hints_for_several_zones_are_replaced() -> None:
    """A hint for two zones is not valid in this mode; the endpoint gets a hint for one."""
    view = snapshot((1, 1), (2, 2))
    before = PreviousHints.from_endpoints(replace(t, hint=Hint(("a", "b"))) for t in view.endpoints)
    assert before.hinted
    assert per_zone(decide_hints(view, before)) == {"a": 2, "b": 2}


def test_limits_of_the_service_count() -> None:
    """With 40 % allowed, four endpoints in three equal zones are hinted; at 1 % not even seven."""
    four = snapshot((1, 1, 1), (2, 1, 1), limits=OverloadLimits(40, 50))
    assert fresh(four).hinted
    assert not fresh(snapshot((1, 1, 1), (3, 2, 2), limits=OverloadLimits(1, 1))).hinted


def test_rows_and_limit_for_reports() -> None:
    """Per zone the share, its endpoints, the minimum, what it gets and its overload."""
    view = snapshot((1, 1), (6, 3))
    decision = fresh(view)
    rows = zone_rows(view, decision, decision.flow(view).loads)
    assert [(row.zone, row.endpoints, row.minimum, row.assigned) for row in rows] == [
        ("a", 6, 4, 5),
        ("b", 3, 4, 4),
    ]
    assert [row.overload for row in rows] == [Fraction(-1, 10), Fraction(1, 8)]
    assert decision.flow(view).in_zone == Fraction(7, 8)
    assert in_zone_limit(view) == Fraction(9, 10)
    bare = replace(decision, hinted=False, hints={})
    assert [row.overload for row in zone_rows(view, bare, bare.flow(view).loads)] == [None, None]
    assert zone_rows(replace(view, shares=Shares()), bare, {}) == ()
