"""Judging after each event and deciding only what is judged is deciding everything each time.

A controller that runs asks ``concerned`` after a node event and decides the Services it names. One
that starts anew decides all of them. Both must come to the same slices, or a restart changes hints
for no reason anybody could tell.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.traffic.clusters import NOTHING, ZONES, fresh, shares, snapshot

from zonewise.api.reason import Reason
from zonewise.controllers.hints.decided import DecidedService, concerned
from zonewise.topology import Shares, ZoneShare
from zonewise.traffic import (
    Hint,
    HintCounts,
    HintDecision,
    HintRequest,
    Mode,
    OverloadLimits,
    Previous,
    ServiceSnapshot,
    TrafficEndpoint,
    decide,
    flow,
)
from zonewise.traffic.slices import FamilyPlan

KEY = ("n", "s")
MODES = st.sampled_from([Mode.AUTO, Mode.SHARED, Mode.WEIGHTED])
CPU = st.lists(st.integers(0, 12), min_size=2, max_size=4)
HOMES = st.lists(st.sampled_from("abcdx"), min_size=1, max_size=8)


def known(cpu: list[int]) -> Shares:
    """Shares of zones a, b, c…; one without a core is gone, or silent if its node is there."""
    zones = tuple(
        ZoneShare(ZONES[n], 1, cores * 1000, cores * 1000) for n, cores in enumerate(cpu) if cores
    )
    silent = frozenset(ZONES[n] for n, cores in enumerate(cpu) if not cores and n % 2)
    reason = Reason(code="OneZone", message="one zone") if len(zones) < 2 else None
    return Shares(zones, reason, silent)


def standing(view: ServiceSnapshot, decision: HintDecision) -> DecidedService:
    """How the controller remembers a Service."""
    family = FamilyPlan(decision, decision.counts(view.targets), len(view.targets), 1, 1)
    reason = view.shares.reason
    return DecidedService(
        "u", view.hint_request, {"IPv4": family}, None, "", "" if reason is None else reason.code
    )


def judged(remembered: DecidedService, now: Shares) -> bool:
    """Whether new shares ask to decide a Service again."""
    return list(concerned({KEY: remembered}, lambda _: now)) == [KEY]


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
    """After every event, what is written is what a controller that starts now would leave alone."""
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
        asked = homes is not None or remembered is None or judged(remembered, there.shares)
        restarted = decide(there, previous)
        if asked:
            decision, previous = restarted, restarted.after(there)
            remembered = standing(there, decision)
        assert restarted.hints == decision.hints
        assert restarted.weights == decision.weights
        assert restarted.hinted == decision.hinted
        again = decide(there, previous)
        assert (again.hints, again.weights) == (decision.hints, decision.weights)


def test_a_node_event_alone_makes_two_endpoints_swap() -> None:
    """A swap that brought too little home brings enough once its zone has grown; loads stay."""
    homes, served = "abbbbbbccc", "caabbbbccc"
    names = [f"e{n:02}" for n in range(len(homes))]
    targets = tuple(TrafficEndpoint(n, zone=home) for n, home in zip(names, homes, strict=True))
    hints = dict(zip(names, (Hint((zone,)) for zone in served), strict=True))
    previous = Previous(hints, hinted=True)
    small = ServiceSnapshot(HintRequest(Mode.AUTO), shares(3, 8, 8), targets)
    kept = decide(small, previous)
    assert kept.hints == hints
    grown = replace(small, shares=shares(5, 8, 8))
    assert not judged(standing(small, kept), small.shares)
    assert judged(standing(small, kept), grown.shares)
    swapped = decide(grown, previous)
    assert swapped.hint("e00").zones == ("a",)
    assert Counter(h.zones for h in swapped.hints.values()) == Counter(
        h.zones for h in hints.values()
    )
    old = flow((replace(t, hint=hints[t.name]) for t in targets), grown.shares)
    new = swapped.flow(grown)
    assert new.overload == old.overload
    assert new.in_zone > old.in_zone


def test_a_renamed_zone_is_noticed_by_counts() -> None:
    """Hints for a zone that no node bears any more are decided again, limits or not."""
    counts = HintCounts.of([("a", ("a",)), ("a", ("old",)), ("b", ("b",)), ("b", ("b",))])
    limits = OverloadLimits(20, 100)
    assert limits.crosses(shares(1, 1), counts, hinted=True)
    silent = Shares(shares(1, 1).zones, silent=frozenset({"old"}))
    assert not limits.crosses(silent, counts, hinted=True)


def test_fresh_hints_leave_nothing_to_swap() -> None:
    """What is decided from nothing has nobody away while a guest is at home."""
    view = snapshot((3, 5, 2), (1, 9, 4))
    assert fresh(view).counts(view.targets).swaps == ()
    assert fresh(view).flow(view).overload < Fraction(1, 5)
