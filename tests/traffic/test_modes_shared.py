"""The modes shared and weighted of a Service: decided, written, kept and removed."""

from __future__ import annotations

from fractions import Fraction

import pytest
from msgspec.structs import replace
from tests.traffic.clusters import NOTHING, fresh, shares, snapshot
from tests.traffic.slice_server import SliceServer, pod, pods

from zonewise.api import EndpointSlice
from zonewise.topology.shares import Shares, ZoneShare
from zonewise.traffic.endpoint import Hint, TrafficEndpoint
from zonewise.traffic.hints import PreviousHints, ServiceSnapshot, decide_hints, zone_rows
from zonewise.traffic.limits import HintCounts, OverloadLimits
from zonewise.traffic.modes import HintRequest, Mode
from zonewise.traffic.slices.rehinting import rehint, rehint_slice
from zonewise.traffic.weights import WEIGHTS_ANNOTATION, weights_suffice

SHARED, WEIGHTED = HintRequest(Mode.SHARED), HintRequest(Mode.WEIGHTED)


def texts(server: SliceServer) -> set[str]:
    """The weights on the slices."""
    return {
        piece.metadata.annotations.get(WEIGHTS_ANNOTATION, "") for piece in server.slices.values()
    }


def test_a_small_service_is_hinted_where_auto_refuses() -> None:
    """Four endpoints in three zones: Auto has no hints and says what shared would keep."""
    auto = fresh(snapshot((1, 1, 1), (2, 1, 1)))
    assert (auto.hinted, auto.reason.code) == (False, "Overload")
    assert "zonewise.io/shared, which keeps 61.1 % of the traffic" in auto.reason.fix
    view = snapshot((1, 1, 1), (2, 1, 1), mode=Mode.SHARED)
    decision = fresh(view)
    assert decision.hinted
    assert decision.flow(view).in_zone == Fraction(11, 18)
    assert decision.flow(view).overload < Fraction(1, 5)


def test_an_endpoint_names_its_own_zone_first() -> None:
    """A proxy that reads only the first zone finds the endpoint's own there, if it is for it."""
    view = snapshot((1, 1, 1), (2, 1, 1), mode=Mode.SHARED)
    homes = {target.name: target.zone for target in view.endpoints}
    for name, hint in fresh(view).hints.items():
        assert homes[name] not in hint.zones[1:]


def test_a_changed_hint_names_no_zone_that_is_gone() -> None:
    """Zone c has no node any more: its endpoint is for b again, and c is removed."""
    view = snapshot(shares(2, 1), (2, 2, 1), mode=Mode.SHARED)
    before = {"a0000": "c", "a0001": "c", "b0000": "b", "c0000": "bc"}
    decision = decide_hints(
        view, PreviousHints({name: Hint(tuple(z)) for name, z in before.items()}, True)
    )
    assert decision.hints["b0001"] == Hint(("b",))
    assert decide_hints(view, PreviousHints(decision.hints, True)).hints == decision.hints


def test_nothing_to_gain_has_both_numbers() -> None:
    """Without a gain there are no hints, and the reason has both in-zone parts."""
    decision = fresh(snapshot((1, 1), (1, 0), mode=Mode.SHARED))
    assert decision.reason.code == "NothingToGain"
    assert decision.reason.numbers == {"inZone": "1/2", "inZoneWithoutHints": "1/2"}


def test_rows_tell_the_busiest_endpoint_of_each_zone() -> None:
    """``assigned`` counts endpoints that name the zone; their highest load is the overload."""
    view = snapshot((1, 1, 1), (2, 1, 1), mode=Mode.SHARED)
    decision = fresh(view)
    rows = zone_rows(view, decision, decision.flow(view).loads)
    assert sum(row.assigned for row in rows) == sum(len(h.zones) for h in decision.hints.values())
    assert max(row.overload or 0 for row in rows) == decision.flow(view).overload


def test_crossing_is_judged_by_sets_of_zones() -> None:
    """Shares that push one set of zones above the limit need a decision; others do not."""
    homes = (("a", ("a",)), ("a", ("a", "c")), ("b", ("b", "c")), ("c", ("c", "b")))
    counts, limits = HintCounts.of(homes), OverloadLimits()
    assert limits.is_shared_within_drop(shares(1, 1, 1), counts)
    assert not limits.is_shared_within_drop(shares(3, 1, 1), counts)
    assert not limits.is_shared_within_drop(shares(1, 1, 1, 1), counts)
    bare = HintCounts.of((home, ()) for home, _ in homes)
    assert limits.shared_needs_decision(shares(1, 1), bare, hinted=False)


def test_weights_are_the_same_text_on_every_slice() -> None:
    """All slices of a Service have the weights, a repeat writes nothing, and off removes them."""
    server = SliceServer(hint_request=WEIGHTED, limit=4)
    server.put(pods(6, 3, 1))
    server.sync()
    assert len(server.slices) == 3
    (text,) = texts(server)
    assert text.startswith('{"c":{')
    assert server.settled()
    server.hint_request = SHARED
    server.sync()
    assert texts(server) == {""}


def test_a_replaced_pod_leaves_the_weights_alone() -> None:
    """Weights belong to zones: one pod for another writes one slice."""
    server = SliceServer(hint_request=WEIGHTED, limit=4)
    server.put(pods(6, 3, 1))
    server.sync()
    before = texts(server)
    server.drop(0)
    server.put([pod(900, "a")])
    assert server.sync().writes <= 2
    assert texts(server) == before


def test_half_written_weights_are_decided_again() -> None:
    """Different texts on slices mean that a writer crashed: one text is written on all."""
    server = SliceServer(hint_request=WEIGHTED, limit=4)
    server.put(pods(6, 3, 1))
    server.sync()
    (text,) = texts(server)
    name, first = min(server.slices.items())
    server.slices[name] = replace(first, metadata=replace(first.metadata, annotations={}))
    assert server.sync().writes == 1
    assert texts(server) == {text}


def test_foreign_slices_get_weights_too() -> None:
    """On slices that others fill, hints and weights are added to what they write."""
    server = SliceServer(hint_request=HintRequest(), limit=100)
    server.put(pods(6, 3, 1))
    server.sync()
    (bare,) = server.slices.values()
    known = shares(1, 1, 1)
    (hinted,) = rehint([bare], WEIGHTED, known).update
    assert weights_suffice(
        hinted.metadata.annotations[WEIGHTS_ANNOTATION],
        {"a": 6, "b": 3, "c": 1},
        known,
        OverloadLimits(),
    )
    stripped: EndpointSlice = bare
    again = rehint_slice(stripped, previous=hinted, others=[], request=WEIGHTED, shares=known)
    assert again.metadata.annotations == hinted.metadata.annotations
    assert again.endpoints == hinted.endpoints


def test_weights_that_are_too_long_are_left_out() -> None:
    """Hundreds of zones do not fit into an annotation: plain hints, and a warning that says so."""
    zones = tuple(ZoneShare(f"{n:03}" + "z" * 50, 1, 1000, 1000 * (1 + n % 7)) for n in range(60))
    targets = tuple(
        TrafficEndpoint(f"10.0.0.{n}", zone=zone.name) for n, zone in enumerate(zones[:30])
    )
    decision = decide_hints(ServiceSnapshot(WEIGHTED, Shares(zones), targets), NOTHING)
    assert decision.weights == ""
    assert [warning.code for warning in decision.warnings] == ["WeightsTooLong"]


@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.WEIGHTED])
def test_an_endpoint_without_a_zone_removes_hints_and_weights(mode: Mode) -> None:
    """With an endpoint without a zone there are no hints and no weights, as in mode Auto."""
    view = snapshot((1, 1, 1), (2, 1, 1), mode=mode)
    nowhere = (TrafficEndpoint("a0000"), *view.endpoints[1:])
    decision = decide_hints(
        ServiceSnapshot(view.hint_request, view.shares, nowhere), fresh(view).as_previous(view)
    )
    assert (decision.hinted, decision.weights, dict(decision.hints)) == (False, "", {})
    assert decision.reason.code == "EndpointWithoutZone"
