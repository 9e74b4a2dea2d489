"""Deciding after each event only the Services it concerns equals deciding all of them each time.

A controller that runs asks ``find_concerned`` after a node event and decides the Services it names.
One that starts anew decides all of them. Both must come to the same slices, or a restart changes
hints without a reason.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.traffic.clusters import NOTHING, ZONES, fresh, shares, snapshot

from zonewise.api.reason import Reason
from zonewise.controllers.hints.decided import DecidedService, find_concerned
from zonewise.topology.shares import Shares, ZoneShare
from zonewise.traffic.endpoint import Hint, TrafficEndpoint
from zonewise.traffic.hints import HintDecision, PreviousHints, ServiceSnapshot, decide_hints
from zonewise.traffic.limits import HintCounts, OverloadLimits
from zonewise.traffic.modes import HintRequest, Mode
from zonewise.traffic.routes.flow import compute_flow
from zonewise.traffic.slices.planning import FamilyPlan

KEY = ("n", "s")
MODES = st.sampled_from([Mode.AUTO, Mode.SHARED, Mode.WEIGHTED])
CPU = st.lists(st.integers(0, 12), min_size=2, max_size=4)
HOMES = st.lists(st.sampled_from("abcdx"), min_size=1, max_size=8)


def known(cpu: list[int]) -> Shares:
    """Shares of zones a, b, c…; a zone without cores is gone, or not Ready if it has a node."""
    zones = tuple(
        ZoneShare(ZONES[n], 1, cores * 1000, cores * 1000) for n, cores in enumerate(cpu) if cores
    )
    silent = frozenset(ZONES[n] for n, cores in enumerate(cpu) if not cores and n % 2)
    reason = Reason(code="OneZone", message="one zone") if len(zones) < 2 else None
    return Shares(zones, reason, silent)


def standing(view: ServiceSnapshot, decision: HintDecision) -> DecidedService:
    """What the controller remembers of a Service."""
    family = FamilyPlan(decision, decision.counts(view.endpoints), len(view.endpoints), 1, 1)
    reason = view.shares.reason
    return DecidedService(
        "u", view.hint_request, {"IPv4": family}, None, "", "" if reason is None else reason.code
    )


def judged(remembered: DecidedService, now: Shares) -> bool:
    """Whether new shares require a new decision for a Service."""
    return list(find_concerned({KEY: remembered}, lambda _: now)) == [KEY]


@st.composite
def lives(draw: st.DrawFn) -> tuple[HintRequest, list[tuple[list[int], list[str] | None]]]:
    """Node events, and now and then other endpoints (None: the same as before)."""
    hint_request = HintRequest(
        draw(MODES), OverloadLimits(*draw(st.sampled_from([(20, 30), (5, 80)])))
    )
    events = draw(
        st.lists(st.tuples(CPU, st.none() | HOMES), min_size=1, max_size=5).filter(
            lambda events: events[0][1] is not None
        )
    )
    return hint_request, events


@settings(max_examples=150)
@given(lives())
def test_a_restart_decides_what_was_decided_step_by_step(
    life: tuple[HintRequest, list[tuple[list[int], list[str] | None]]],
) -> None:
    """After every event, a controller that starts now would change nothing."""
    hint_request, events = life
    targets: tuple[TrafficEndpoint, ...] = ()
    previous = NOTHING
    remembered: DecidedService | None = None
    decision = HintDecision(
        hint_request.mode, False, Reason(code="NotYet", message="not yet decided")
    )
    for cpu, homes in events:
        if homes is not None:
            targets = tuple(TrafficEndpoint(f"e{n:02}", zone=h) for n, h in enumerate(homes))
        there = ServiceSnapshot(hint_request, known(cpu), targets)
        rejudged = homes is not None or remembered is None or judged(remembered, there.shares)
        restarted = decide_hints(there, previous)
        if rejudged:
            decision, previous = restarted, restarted.as_previous(there)
            remembered = standing(there, decision)
        assert restarted.hints == decision.hints
        assert restarted.weights == decision.weights
        assert restarted.hinted == decision.hinted
        again = decide_hints(there, previous)
        assert (again.hints, again.weights) == (decision.hints, decision.weights)


def test_a_node_event_alone_makes_two_endpoints_swap() -> None:
    """A swap that gained too little gains enough once its zone has grown; loads stay."""
    homes, served = "abbbbbbccc", "caabbbbccc"
    names = [f"e{n:02}" for n in range(len(homes))]
    targets = tuple(TrafficEndpoint(n, zone=home) for n, home in zip(names, homes, strict=True))
    hints = dict(zip(names, (Hint((zone,)) for zone in served), strict=True))
    previous = PreviousHints(hints, hinted=True)
    small = ServiceSnapshot(HintRequest(Mode.AUTO), shares(3, 8, 8), targets)
    unchanged = decide_hints(small, previous)
    assert unchanged.hints == hints
    grown = replace(small, shares=shares(5, 8, 8))
    assert not judged(standing(small, unchanged), small.shares)
    assert judged(standing(small, unchanged), grown.shares)
    swapped = decide_hints(grown, previous)
    assert swapped.hint("e00").zones == ("a",)
    assert Counter(h.zones for h in swapped.hints.values()) == Counter(
        h.zones for h in hints.values()
    )
    old = compute_flow((replace(t, hint=hints[t.name]) for t in targets), grown.shares)
    new = swapped.flow(grown)
    assert new.overload == old.overload
    assert new.in_zone > old.in_zone


def test_a_renamed_zone_is_noticed_by_counts() -> None:
    """Hints for a zone without nodes are decided again, whatever the limits."""
    counts = HintCounts.of([("a", ("a",)), ("a", ("old",)), ("b", ("b",)), ("b", ("b",))])
    limits = OverloadLimits(20, 100)
    assert limits.needs_decision(shares(1, 1), counts, hinted=True)
    silent = Shares(shares(1, 1).zones, silent_zones=frozenset({"old"}))
    assert not limits.needs_decision(silent, counts, hinted=True)


def test_fresh_hints_leave_nothing_to_swap() -> None:
    """In a new decision no endpoint is away from its zone while another is for that zone."""
    view = snapshot((3, 5, 2), (1, 9, 4))
    assert fresh(view).counts(view.endpoints).swaps == ()
    assert fresh(view).flow(view).overload < Fraction(1, 5)
