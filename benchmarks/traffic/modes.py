"""Processor time of a decision in each mode, and of judging ten thousand after a node event.

*Decisions*: from nothing, endpoints drawn over zones of unequal size. The peer of modes shared and
weighted is mode Auto; each has Services of its own, because searches are remembered. *Weights*: the
formula against a linear programme of HiGHS that finds the same optimum. *Judged*: what
``find_concerned`` costs for Services that stay as they are; the peer is to decide all of them
again, which is what judging saves.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import highspy

from benchmarks.table import Row, Table
from zonewise.api.meta import Key
from zonewise.controllers.hints.decided import DecidedService, find_concerned
from zonewise.topology.shares import Shares, ZoneShare
from zonewise.traffic.endpoint import TrafficEndpoint
from zonewise.traffic.hints import PreviousHints, ServiceSnapshot, decide_hints
from zonewise.traffic.limits import OverloadLimits
from zonewise.traffic.modes import HintRequest, Mode
from zonewise.traffic.slices.planning import FamilyPlan
from zonewise.traffic.weights import compute_weights

MODES = (Mode.AUTO, Mode.SHARED, Mode.WEIGHTED)
SIZES = ((10, 3), (10, 5), (100, 5), (1000, 5))
EACH = 100
SERVICES = 10_000
KINDS = 50
LIMITS = OverloadLimits()


def _shares(draw: random.Random, zones: int) -> Shares:
    cpus = [draw.randint(4, 12) * 1000 for _ in range(zones)]
    return Shares(tuple(ZoneShare(f"zone-{n}", 1, cpu, cpu) for n, cpu in enumerate(cpus)))


def _views(endpoints: int, zones: int, seed: int = 0) -> list[ServiceSnapshot]:
    draw = random.Random(f"{endpoints} {zones} {seed}")
    snapshots = []
    for _ in range(EACH):
        targets = tuple(
            TrafficEndpoint(f"10.0.{n >> 8}.{n & 255}", zone=f"zone-{draw.randrange(zones)}")
            for n in range(endpoints)
        )
        snapshots.append(ServiceSnapshot(HintRequest(Mode.AUTO), _shares(draw, zones), targets))
    return snapshots


def _timed(work: Callable[[], object]) -> float:
    began = time.process_time_ns()
    work()
    return (time.process_time_ns() - began) / 1e6


def decisions() -> Iterator[Table]:
    """The median of many Services."""
    for endpoints, zones in SIZES:
        rows = []
        for seed, mode in enumerate(MODES):
            views = [
                replace(view, hint_request=HintRequest(mode))
                for view in _views(endpoints, zones, seed)
            ]
            times = [_timed(partial(decide_hints, view, PreviousHints())) for view in views]
            rows.append(
                Row(
                    name=mode.value,
                    value=statistics.median(times) * 1000,
                    ours=mode is not Mode.AUTO,
                )
            )
        yield Table(
            title=f"a decision from nothing: {endpoints:,} endpoints, {zones} zones (median)",
            unit="µs",
            higher_is_better=False,
            rows=tuple(rows),
        )


def _solved(own: Mapping[str, int], shares: Shares) -> float:
    create_solver: Callable[[], Any] = highspy.Highs
    solver = create_solver()
    solver.silent()
    endpoints = sum(own.values())
    sent = {(z, p): solver.addVariable(lb=0.0) for z in shares.weights for p in own}
    for zone in shares.weights:
        solver.addConstr(sum(sent[zone, target] for target in own) == float(shares.share(zone)))
    for target, count in own.items():
        most = (1 + LIMITS.add / 100) * count / endpoints
        solver.addConstr(sum(sent[zone, target] for zone in shares.weights) <= most)
    solver.maximize(sum(sent[z, z] for z in shares.weights if z in own))
    return float(solver.getInfo().objective_function_value)


def weights() -> Iterator[Table]:
    """The formula and a solver, on the same clusters."""
    views = _views(30, 5)
    clusters = [(Counter(t.zone for t in view.endpoints), view.shares) for view in views]
    formula = _median(lambda own, shares: compute_weights(own, shares, LIMITS), clusters)
    solver = _median(_solved, clusters)
    yield Table(
        title="weights of a Service: 30 endpoints, 5 zones (median)",
        unit="µs",
        higher_is_better=False,
        rows=(
            Row(name="formula", value=formula, ours=True),
            Row(name="linear programme (HiGHS)", value=solver),
        ),
        goal=2,
    )


def _median(
    work: Callable[[Mapping[str, int], Shares], object],
    clusters: Sequence[tuple[Mapping[str, int], Shares]],
) -> float:
    times = [_timed(partial(work, own, shares)) for own, shares in clusters]
    return statistics.median(times) * 1000


def judged() -> Iterator[Table]:
    """Services that a node event leaves as they are."""
    yield from map(_judged, MODES)


def _judged(mode: Mode) -> Table:
    standings, views, now = _standing(mode)
    judging = min(_timed(lambda: list(find_concerned(standings, lambda _: now))) for _ in range(3))
    again = _timed(lambda: [decide_hints(view, before) for view, before in views])
    return Table(
        title=f"a node event: {SERVICES:,} Services in mode {mode.value}",
        unit="ms",
        higher_is_better=False,
        rows=(
            Row(name="judged", value=judging, ours=True),
            Row(name="decided again", value=again * SERVICES / len(views)),
        ),
        goal=2,
    )


def _standing(
    mode: Mode,
) -> tuple[dict[Key, DecidedService], list[tuple[ServiceSnapshot, PreviousHints]], Shares]:
    draw = random.Random(17)
    shares = _shares(draw, 3)
    now = Shares(tuple(replace(zone, weight=zone.weight + 10) for zone in shares.zones))
    decided: list[DecidedService] = []
    views: list[tuple[ServiceSnapshot, PreviousHints]] = []
    while len(decided) < KINDS:
        homes = [f"zone-{draw.randrange(3)}" for _ in range(draw.choice((4, 6, 9, 15, 30)))]
        targets = tuple(TrafficEndpoint(f"10.0.0.{n}", zone=z) for n, z in enumerate(homes))
        view = ServiceSnapshot(HintRequest(mode), shares, targets)
        decision = decide_hints(view, PreviousHints())
        family = FamilyPlan(decision, decision.counts(targets), len(targets), 1, 1)
        standing = DecidedService("u", view.hint_request, {"IPv4": family}, None, "", "")
        if not list(find_concerned({("n", "s"): standing}, lambda _: now)):
            decided.append(standing)
            views.append((replace(view, shares=now), decision.as_previous(view)))
    standings = {("n", f"s{n}"): decided[n % KINDS] for n in range(SERVICES)}
    return standings, views, now
