"""Decisions of upstream and ours, on the recorded clusters and histories.

Both files are explained in benchmarks/traffic/README.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any

import pytest
from tests.traffic.clusters import NOTHING, fresh, overloads, per_zone
from tests.traffic.recorded_clusters import cluster, state
from tests.vectors.recorded import lines

from zonewise.traffic.hints import HintDecision, PreviousHints, ServiceSnapshot, decide_hints
from zonewise.traffic.routes.flow import compute_flow

ADD, DROP = Fraction(20, 100), Fraction(30, 100)
ROUNDING = Fraction(2, 10**6)


def test_clusters_without_hints() -> None:
    """Hints are given exactly where below 20 % is possible, and keep more than upstream's."""
    ours: list[Fraction] = []
    theirs: list[float] = []
    for row in lines("hints.jsonl.gz"):
        view = cluster(row)
        if len(view.shares.zones) < 2:
            pytest.fail("a cluster of one zone")
        decision = fresh(view)
        assert decision.hinted == row["expect_hinted"], row
        if not decision.hinted:
            continue
        assert len(decision.hints) == len(view.endpoints)
        assert all(overload < ADD for overload in overloads(view, decision).values()), row
        result = decision.flow(view)
        assert result.overload == max(overloads(view, decision).values())
        if row["upstream"]["hinted"]:
            ours.append(result.in_zone)
            theirs.append(row["upstream"]["in_zone"])
            assert result.in_zone >= Fraction(theirs[-1]) - ROUNDING, row
    assert len(ours) == 405
    assert sum(ours) / len(ours) >= Fraction(8074, 10000)
    assert sum(theirs) / len(theirs) < 0.786


def test_the_measures_are_the_recorded_ones() -> None:
    """In-zone without hints, computed through the routes, equals the recorded value."""
    for row in lines("hints.jsonl.gz"):
        view = cluster(row)
        assert float(compute_flow(view.endpoints, view.shares).in_zone) == pytest.approx(
            row["no_hints_in_zone"], abs=2e-6
        )


@dataclass
class Tally:
    """Counts over all histories."""

    steps: int = 0
    hinted: int = 0
    moved: int = 0
    dropped: int = 0
    added: int = 0
    in_zone: Fraction = Fraction(0)
    faults: list[str] = field(default_factory=list)
    theirs: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def changes(self) -> int:
        """All changes of the hints of endpoints that were ready and are ready."""
        return self.moved + self.dropped + self.added


@cache
def lived() -> Tally:
    """Our hints over all histories."""
    tally = Tally()
    for life in lines("churn.jsonl.gz"):
        previous, before = NOTHING, dict[str, tuple[str, ...]]()
        for number, step in enumerate(life["steps"]):
            view = state(step)
            decision = decide_hints(view, previous)
            name = f"{life['name']} step {number} {step['event']}"
            tally.faults += [f"{name}: {fault}" for fault in faults(view, decision, previous, step)]
            ready = {t.name: decision.hint(t.name).zones for t in view.endpoints if t.ready}
            for target in ready.keys() & before.keys():
                old, new = before[target], ready[target]
                tally.moved += bool(old and new and old != new)
                tally.dropped += bool(old and not new)
                tally.added += bool(new and not old)
            tally.steps += 1
            tally.hinted += decision.hinted
            tally.in_zone += decision.flow(view).in_zone
            previous, before = decision.as_previous(view), ready
            assert decide_hints(view, previous).hints == decision.hints, name
        for step in life["steps"]:
            tally.theirs["changes"] += step["upstream"]["hint_changes"]["mean"]
            tally.theirs["moved"] += step["upstream"]["moved"]
            tally.theirs["in_zone"] += step["upstream"]["in_zone"]["mean"]
    return tally


def faults(
    view: ServiceSnapshot, decision: HintDecision, previous: PreviousHints, step: dict[str, Any]
) -> Iterator[str]:
    """Violations of the rules by a decision."""
    allowed = step["allowed"]
    if allowed == "add" and not decision.hinted:
        yield "no hints where below 20 % is reachable"
    if allowed == "none" and decision.hinted:
        yield "hints where none are allowed"
    if allowed == "keep" and decision.hinted != previous.hinted:
        yield "hints came or went between the limits"
    if not decision.hinted:
        if decision.hints:
            yield "some hints"
        return
    worst = max(overloads(view, decision).values())
    if worst > DROP:
        yield f"overload {float(worst)}"
    if not previous.hinted and worst >= ADD:
        yield f"added at {float(worst)}"
    if set(view.shares.weights) - set(per_zone(decision)):
        yield "a zone has nothing"
    if {t.name for t in view.endpoints if t.ready} != decision.hints.keys():
        yield "not all ready endpoints, or others, have hints"


@pytest.mark.slow
def test_lives_keep_the_limits() -> None:
    """Over 1,640 states no limit is broken and no possible hint is missing."""
    tally = lived()
    assert tally.steps == 1640
    assert tally.faults == []


def test_lives_change_few_hints() -> None:
    """Hints change at most 0.39 times as often as upstream's, and move 0.25 times as often."""
    tally = lived()
    assert 2000 < tally.theirs["moved"] < tally.theirs["changes"] < 3400
    assert tally.changes <= 0.39 * tally.theirs["changes"]
    assert tally.moved <= 0.25 * tally.theirs["moved"]


def test_lives_keep_traffic_in_zone() -> None:
    """The mean in-zone part is at least 0.05 above upstream's, and 0.81."""
    tally = lived()
    assert float(tally.in_zone) >= tally.theirs["in_zone"] + 0.05 * tally.steps
    assert tally.in_zone >= Fraction(81, 100) * tally.steps
