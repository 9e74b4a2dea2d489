"""Small clusters in one line: ``cpu 1:1:1`` and ``endpoints 2/1/0`` of zones a, b, c."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction

import msgspec

from zonewise.api import ObjectMeta, Service
from zonewise.api.objects.core import ServiceSpec
from zonewise.topology.shares import Shares, ZoneShare
from zonewise.traffic.endpoint import TrafficEndpoint
from zonewise.traffic.hints import HintDecision, PreviousHints, ServiceSnapshot, decide_hints
from zonewise.traffic.limits import OverloadLimits
from zonewise.traffic.modes import HintRequest, Mode
from zonewise.traffic.routes.flow import Flow

ZONES = "abcdefghij"
NOTHING = PreviousHints()
OLD = "service.kubernetes.io/topology-aware-hints"
NEW = "service.kubernetes.io/topology-mode"
OVERLOAD = "zonewise.io/overload"
LIMITS = OverloadLimits()


def shares(*cpu: int) -> Shares:
    """Zones a, b, c… with these numbers of cores."""
    return Shares(
        tuple(ZoneShare(ZONES[n], 1, c * 1000, c * 1000) for n, c in enumerate(cpu)),
    )


def targets(*counts: int, start: int = 0) -> tuple[TrafficEndpoint, ...]:
    """These numbers of ready endpoints in zones a, b, c…, named by their zone."""
    return tuple(
        TrafficEndpoint(f"{ZONES[n]}{start + i:04}", zone=ZONES[n], node=f"node-{ZONES[n]}")
        for n, count in enumerate(counts)
        for i in range(count)
    )


def snapshot(
    cpu: Sequence[int] | Shares,
    endpoints: Sequence[int | TrafficEndpoint],
    *,
    mode: Mode = Mode.AUTO,
    limits: OverloadLimits | None = None,
) -> ServiceSnapshot:
    """A Service, by default in mode Auto."""
    known = cpu if isinstance(cpu, Shares) else shares(*cpu)
    there: list[TrafficEndpoint] = []
    for n, entry in enumerate(endpoints):
        there += targets(*([0] * n), entry) if isinstance(entry, int) else [entry]
    return ServiceSnapshot(HintRequest(mode, limits or OverloadLimits()), known, tuple(there))


def per_zone(decision: HintDecision) -> Mapping[str, int]:
    """How many endpoints are for each zone."""
    return dict(Counter(zone for hint in decision.hints.values() for zone in hint.zones))


def weighted_flow(
    rows: Mapping[str, Mapping[str, int]], own: Mapping[str, int], known: Shares
) -> Flow | None:
    """The traffic that weights make, by definition; None if a zone has no weighted endpoint."""
    loads = dict.fromkeys(own, Fraction(0))
    stays = Fraction(0)
    for zone in known.weights:
        row = rows.get(zone, {zone: 1})
        whole = sum(row.get(target, 0) * count for target, count in own.items())
        if not whole:
            return None
        share = known.share(zone)
        stays += share * row.get(zone, 0) * own.get(zone, 0) / whole
        for target, count in own.items():
            if count and target in row:
                loads[target] += share * row[target] / whole
    return Flow(stays, max(loads.values()) * sum(own.values()) - 1)


def overloads(view: ServiceSnapshot, decision: HintDecision) -> dict[str, Fraction]:
    """The overload of each zone, by definition."""
    count = per_zone(decision)
    ready = sum(target.ready for target in view.endpoints)
    return {
        zone: view.shares.share(zone) * ready / count[zone] - 1
        if zone in count
        else Fraction(10**9)
        for zone in view.shares.weights
    }


def moved(decision: HintDecision, view: ServiceSnapshot) -> list[str]:
    """Endpoints that are for another zone than theirs."""
    return [
        target.name
        for target in view.endpoints
        if target.ready and decision.hint(target.name).zones != (target.zone,)
    ]


def changed(before: HintDecision, after: HintDecision) -> list[str]:
    """Endpoints that both decisions hint, differently."""
    both = before.hints.keys() & after.hints.keys()
    return sorted(name for name in both if before.hint(name) != after.hint(name))


def fresh(view: ServiceSnapshot) -> HintDecision:
    """The decision for a Service without hints."""
    return decide_hints(view, NOTHING)


def service(annotations: Mapping[str, str] | None = None, **spec: object) -> Service:
    """A Service named s."""
    return Service(
        metadata=ObjectMeta(name="s", namespace="x", annotations=dict(annotations or {})),
        spec=msgspec.structs.replace(ServiceSpec(), **spec),
    )


def counts(*numbers: int) -> dict[str, int]:
    """These numbers of endpoints in zones a, b, c…"""
    return dict(zip(ZONES, numbers, strict=False))
