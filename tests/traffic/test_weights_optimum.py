"""The formula of weights compared with a linear programme: none keeps more in zone at the limit.

Variables are what each zone sends to each endpoint of each zone. The programme maximises what
stays, with all traffic of every zone sent and no endpoint above the limit; HiGHS solves it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import highspy
import pytest
from tests.traffic.clusters import LIMITS, ZONES, counts, shares, weighted_flow

from zonewise.topology.shares import Shares
from zonewise.traffic.limits import OverloadLimits
from zonewise.traffic.weights import compute_weights, in_zone_limit_of

CLUSTERS = 120
NEAR = 1e-7
MARGIN = Fraction(1, 4000)
ROUNDING = Fraction(1, 1000)


def optimum(own: Mapping[str, int], known: Shares, limits: OverloadLimits) -> float:
    """The most that can stay in zone."""
    places = sorted(target for target, count in own.items() if count)
    endpoints = sum(own.values())
    create_solver: Callable[[], Any] = highspy.Highs
    solver = create_solver()
    solver.silent()
    sent = {
        (zone, target): solver.addVariable(lb=0.0) for zone in known.weights for target in places
    }
    for zone in known.weights:
        solver.addConstr(sum(sent[zone, target] for target in places) == float(known.share(zone)))
    for target in places:
        most = (1 + limits.add / 100) * own[target] / endpoints
        solver.addConstr(sum(sent[zone, target] for zone in known.weights) <= most)
    home = [sent[zone, zone] for zone in known.weights if (zone, zone) in sent]
    if home:
        solver.maximize(sum(home))
    else:
        solver.minimize(sent[min(sent)])
        return 0.0
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return float(solver.getInfo().objective_function_value)


def generated() -> Iterator[tuple[dict[str, int], Shares, OverloadLimits]]:
    """Clusters of two to eight zones, some without endpoints, some endpoints without a zone."""
    draw = random.Random(1707)
    for _ in range(CLUSTERS):
        zones = draw.randint(2, 8)
        there = [draw.choice((0, 1, 1, 2, 3, draw.randint(0, 40))) for _ in range(zones)]
        own = counts(*there) | {"nowhere": draw.choice((0, 0, 1, 5))}
        if not sum(own.values()):
            own["a"] = 1
        limits = OverloadLimits(draw.choice((1, 5, 20, 20, 60)), 100)
        yield own, shares(*(draw.randint(1, 60) for _ in range(zones))), limits


def test_no_programme_keeps_more() -> None:
    """The limit in closed form is the programme's optimum, and whole weights come near to it."""
    for own, known, limits in generated():
        best = optimum(own, known, limits)
        formula = in_zone_limit_of(own, known, limits)
        assert float(formula) == pytest.approx(best, abs=NEAR), (own, known.weights)
        flow = weighted_flow(compute_weights(own, known, limits), own, known)
        assert flow is not None
        assert flow.overload < Fraction(limits.add, 100)
        assert flow.in_zone <= formula
        assert flow.in_zone >= formula * (1 - MARGIN - ROUNDING), (own, known.weights)


def test_a_programme_by_hand() -> None:
    """Two thirds of the traffic in a zone with one of three endpoints: 40 % of all stays there."""
    own, known = counts(1, 2), shares(2, 1)
    assert optimum(own, known, LIMITS) == pytest.approx(0.4 + 1 / 3)
    assert in_zone_limit_of(own, known, LIMITS) == Fraction(2, 5) + Fraction(1, 3)
    assert set(known.weights) == set(ZONES[:2])
