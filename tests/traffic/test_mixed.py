"""Clusters in which some proxies use weights and others only hints.

Both are within the limits by themselves. Mixed equally in every zone, their loads are a mean of
both, so the mixture is within them, too. A node that differs from the others of its zone adds at
most its own part of the traffic to an endpoint; that is measured here, not proved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction

from tests.traffic.clusters import fresh
from tests.traffic.recorded_clusters import cluster
from tests.vectors.recorded import lines

from zonewise.traffic.endpoint import TrafficEndpoint
from zonewise.traffic.hints import ServiceSnapshot
from zonewise.traffic.modes import HintRequest, Mode
from zonewise.traffic.routes.choice import (
    ClientLocation,
    Selection,
    choose_by_hints,
    choose_by_weights,
)
from zonewise.traffic.weights import parse_weights

Loads = dict[str, dict[str, Fraction]]
"""What each zone sends to each endpoint, as parts of all traffic."""
EVERY = 4
"""One in this many of the recorded clusters is used."""


def sent(
    view: ServiceSnapshot, zone: str, selection: Selection[TrafficEndpoint]
) -> dict[str, Fraction]:
    """What a zone sends to each chosen endpoint."""
    weights = selection.weights or (1,) * len(selection.endpoints)
    part = view.shares.share(zone) / sum(weights)
    return {t.name: part * w for t, w in zip(selection.endpoints, weights, strict=True)}


def both() -> Iterator[tuple[ServiceSnapshot, Loads, Loads]]:
    """Recorded clusters with what our proxies send, and what stock proxies do."""
    for row in list(lines("hints.jsonl.gz"))[::EVERY]:
        view = replace(cluster(row), hint_request=HintRequest(Mode.WEIGHTED))
        decision = fresh(view)
        targets, rows = decision.apply(view.endpoints), parse_weights(decision.weights)
        assert rows is not None
        places = {zone: ClientLocation(zone) for zone in view.shares.weights}
        yield (
            view,
            {
                zone: sent(view, zone, choose_by_weights(targets, p, rows))
                for zone, p in places.items()
            },
            {zone: sent(view, zone, choose_by_hints(targets, p)) for zone, p in places.items()},
        )


def overload(
    view: ServiceSnapshot, ours: Loads, stock: Loads, part: Mapping[str, Fraction]
) -> Fraction:
    """How far the busiest endpoint is above the average, if stock proxies send these parts."""
    sums = {target.name: Fraction(0) for target in view.endpoints}
    for zone in view.shares.weights:
        theirs = part.get(zone, Fraction(0))
        for name, load in stock[zone].items():
            sums[name] += theirs * load
        for name, load in ours[zone].items():
            sums[name] += (1 - theirs) * load
    return max(sums.values()) * len(view.endpoints) - 1


def test_mixed_alike_in_every_zone() -> None:
    """Whatever part of each zone's traffic uses a stock proxy, no endpoint reaches 20 %."""
    for view, ours, stock in both():
        for tenths in (0, 1, 5, 9, 10):
            part = dict.fromkeys(view.shares.weights, Fraction(tenths, 10))
            assert overload(view, ours, stock, part) < Fraction(20, 100)


def test_one_stock_node_of_ten_in_a_zone() -> None:
    """If a tenth of one zone's traffic uses a stock proxy, every endpoint is below 30 %."""
    for view, ours, stock in both():
        for zone in view.shares.weights:
            part = {zone: Fraction(1, 10)}
            assert overload(view, ours, stock, part) < Fraction(30, 100)
