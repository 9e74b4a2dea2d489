"""What all proxies together do: how much of the traffic stays in its zone, how much gets no answer,
and how far above the average the busiest endpoint is. Fractions are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

from zonewise.topology import Shares
from zonewise.traffic.endpoint import TrafficEndpoint
from zonewise.traffic.routes.choice import ProxyLocation, Selection, by_weights, nearby
from zonewise.traffic.weights import Rows

ProxyChoice: TypeAlias = Callable[
    [tuple[TrafficEndpoint, ...], ProxyLocation], Selection[TrafficEndpoint]
]
"""What a proxy in a place chooses among endpoints."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What becomes of the traffic.

    ``in_zone`` is the part of the answered traffic that stays in its zone, ``unanswered`` the part
    of all that finds no endpoint, and ``silent`` how many senders that is.
    """

    in_zone: Fraction
    overload: Fraction
    unanswered: Fraction = Fraction(0)
    silent: int = 0
    loads: Mapping[str, Fraction] = field(default_factory=dict, compare=False, repr=False)
    """How far each endpoint is above the average."""


def flow(targets: Iterable[TrafficEndpoint], shares: Shares, rows: Rows | None = None) -> Flow:
    """The flow of a Service's traffic if every zone sends its share through its proxies.

    ``rows`` are weights, if there are some and proxies support them.
    """
    senders = ((ProxyLocation(zone=zone), weight) for zone, weight in shares.weights.items())
    if rows is None:
        return flow_from(targets, senders, nearby)
    return flow_from(targets, senders, lambda known, place: by_weights(known, place, rows))


def flow_from(
    targets: Iterable[TrafficEndpoint],
    senders: Iterable[tuple[ProxyLocation, int]],
    choose: ProxyChoice,
) -> Flow:
    """The flow of a Service's traffic if every sender sends its part through the proxy there."""
    known = tuple(targets)
    load: dict[str, Fraction] = {}
    used: dict[tuple[str, ...], Fraction] = {}
    stays = Fraction(0)
    total = lost = silent = 0
    for place, weight in senders:
        total += weight
        selection = choose(known, place)
        chosen = selection.targets
        if not chosen:
            lost += weight
            silent += 1
            continue
        if len(set(selection.weights)) > 1:
            whole = sum(selection.weights)
            for target, drawn in zip(chosen, selection.weights, strict=True):
                part = Fraction(weight * drawn, whole)
                load[target.name] = load.get(target.name, Fraction(0)) + part
                if target.zone == place.zone != "":
                    stays += part
            continue
        near = sum(target.zone == place.zone != "" for target in chosen)
        stays += Fraction(weight * near, len(chosen))
        names = tuple(target.name for target in chosen)
        used[names] = used.get(names, Fraction(0)) + Fraction(weight, len(chosen))
    for names, each in used.items():
        for name in names:
            load[name] = load[name] + each if name in load else each
    answered = total - lost
    if not load or not answered:
        return Flow(Fraction(0), Fraction(0), Fraction(lost, total or 1), silent)
    ready = sum(target.ready for target in known) or len(load)
    scale = Fraction(ready, answered)
    return Flow(
        in_zone=stays / answered,
        overload=max(load.values()) * scale - 1,
        unanswered=Fraction(lost, total),
        silent=silent,
        loads={name: part * scale - 1 for name, part in load.items()},
    )
