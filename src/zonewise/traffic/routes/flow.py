"""What all proxies together do: how much of the traffic stays in its zone, and how far above the
average the busiest endpoint is. Fractions are exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from zonewise.topology import Shares
from zonewise.traffic.endpoint import TrafficEndpoint
from zonewise.traffic.routes.choice import ProxyLocation, by_weights, nearby
from zonewise.traffic.weights import Rows


@dataclass(frozen=True, slots=True)
class Flow:
    """What becomes of the traffic: the part that stays in its zone, and the overload."""

    in_zone: Fraction
    overload: Fraction


def flow(targets: Iterable[TrafficEndpoint], shares: Shares, rows: Rows | None = None) -> Flow:
    """The flow of a Service's traffic if every zone sends its share through its proxies.

    ``rows`` are weights, if there are some and proxies support them.
    """
    known = tuple(targets)
    load: dict[str, Fraction] = {}
    used: dict[tuple[str, ...], Fraction] = {}
    stays = Fraction(0)
    for zone, weight in shares.weights.items():
        place = ProxyLocation(zone=zone)
        selection = nearby(known, place) if rows is None else by_weights(known, place, rows)
        chosen = selection.targets
        if not chosen:
            return Flow(Fraction(0), Fraction(0))
        if len(set(selection.weights)) > 1:
            whole = sum(selection.weights)
            for target, drawn in zip(chosen, selection.weights, strict=True):
                part = Fraction(weight * drawn, whole)
                load[target.name] = load.get(target.name, Fraction(0)) + part
                if target.zone == zone:
                    stays += part
            continue
        stays += Fraction(weight * sum(target.zone == zone for target in chosen), len(chosen))
        names = tuple(target.name for target in chosen)
        used[names] = used.get(names, Fraction(0)) + Fraction(weight, len(chosen))
    for names, each in used.items():
        for name in names:
            load[name] = load[name] + each if name in load else each
    if not load or not shares.total:
        return Flow(Fraction(0), Fraction(0))
    ready = sum(target.ready for target in known) or len(load)
    return Flow(stays / shares.total, max(load.values()) * ready / shares.total - 1)
