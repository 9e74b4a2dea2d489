"""What all proxies together do: how much of the traffic stays in its zone, how much gets no answer,
and how far above the average the busiest endpoint is. Fractions are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import TypeAlias

from zonewise.topology.shares import Shares
from zonewise.traffic.endpoint import TrafficEndpoint
from zonewise.traffic.routes.choice import (
    ClientLocation,
    Selection,
    choose_by_hints,
    choose_by_weights,
)
from zonewise.traffic.weights import ZoneWeights

ProxyChoice: TypeAlias = Callable[
    [tuple[TrafficEndpoint, ...], ClientLocation], Selection[TrafficEndpoint]
]
"""How a proxy chooses among endpoints for clients in a location."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What becomes of the traffic.

    ``in_zone`` is the part of the answered traffic that stays in its zone, ``unanswered`` the part
    of all that finds no endpoint, and ``unanswered_senders`` how many senders that is.
    """

    in_zone: Fraction
    overload: Fraction
    unanswered: Fraction = Fraction(0)
    unanswered_senders: int = 0
    loads: Mapping[str, Fraction] = field(default_factory=dict, compare=False, repr=False)
    """How far each endpoint is above the average."""


def compute_flow(
    endpoints: Iterable[TrafficEndpoint], shares: Shares, zone_weights: ZoneWeights | None = None
) -> Flow:
    """The flow of a Service's traffic if every zone sends its share through its proxies.

    ``zone_weights`` are for proxies that support them.
    """
    senders = ((ClientLocation(zone=zone), weight) for zone, weight in shares.weights.items())
    if zone_weights is None:
        return compute_flow_from(endpoints, senders, choose_by_hints)
    choose = partial(choose_by_weights, zone_weights=zone_weights)
    return compute_flow_from(endpoints, senders, choose)


def compute_flow_from(
    endpoints: Iterable[TrafficEndpoint],
    senders: Iterable[tuple[ClientLocation, int]],
    choose: ProxyChoice,
) -> Flow:
    """The flow of a Service's traffic if every sender sends its part through the proxy there."""
    all_endpoints = tuple(endpoints)
    load: dict[str, Fraction] = {}
    load_by_names: dict[tuple[str, ...], Fraction] = {}
    stays = Fraction(0)
    total = unanswered = unanswered_senders = 0
    for location, weight in senders:
        total += weight
        selection = choose(all_endpoints, location)
        chosen = selection.endpoints
        if not chosen:
            unanswered += weight
            unanswered_senders += 1
            continue
        if len(set(selection.weights)) > 1:
            total_weight = sum(selection.weights)
            for endpoint, drawn_weight in zip(chosen, selection.weights, strict=True):
                part = Fraction(weight * drawn_weight, total_weight)
                load[endpoint.name] = load.get(endpoint.name, Fraction(0)) + part
                if endpoint.zone == location.zone != "":
                    stays += part
            continue
        in_zone = sum(endpoint.zone == location.zone != "" for endpoint in chosen)
        stays += Fraction(weight * in_zone, len(chosen))
        names = tuple(endpoint.name for endpoint in chosen)
        load_by_names[names] = load_by_names.get(names, Fraction(0)) + Fraction(weight, len(chosen))
    for names, each in load_by_names.items():
        for name in names:
            load[name] = load[name] + each if name in load else each
    answered = total - unanswered
    if not load or not answered:
        return Flow(Fraction(0), Fraction(0), Fraction(unanswered, total or 1), unanswered_senders)
    ready = sum(endpoint.ready for endpoint in all_endpoints) or len(load)
    scale = Fraction(ready, answered)
    return Flow(
        in_zone=stays / answered,
        overload=max(load.values()) * scale - 1,
        unanswered=Fraction(unanswered, total),
        unanswered_senders=unanswered_senders,
        loads={name: part * scale - 1 for name, part in load.items()},
    )
