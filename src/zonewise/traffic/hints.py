"""Which zones and nodes each endpoint of a Service is for, and why: the decision.

``decide(snapshot, previous)`` is pure. A snapshot is the present state: what the Service requests,
the shares of the zones, the endpoints of one address family (a dual-stack Service is two
independent snapshots). ``Previous`` is the state before: the hints on the slices. Hints count as
present only if *every* endpoint that was ready had one, since only then proxies obeyed them. So a
controller that died between two slices starts over, and reaches the same hints again.

Mode Auto, in this order:

1. no decision without sound facts: shares, a zone for every ready endpoint, enough endpoints;
2. hints exist: they stay, move or are dropped as ``zonewise.traffic.allocation.retain`` says, and
   endpoints that serve each other's zone swap (``zonewise.traffic.exchange``);
3. no hints: they are added, by ``spread``, if every zone's overload can be below the limit to add.

Mode shared requires the same facts; an endpoint may be for several zones, so it also serves
Services that are too small for Auto (``zonewise.traffic.sharing``). Mode weighted adds weights
(``zonewise.traffic.weights``) for proxies that support them to shared hints, which all proxies
obey.

The other modes hint every endpoint to its own zone, or zone and node. They have no limits.

The reason of a Service that has its hints never changes, so that no event is repeated. That of one
that has none carries numbers; shells report it when its *code* changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from zonewise.api.reason import Reason
from zonewise.topology import Shares
from zonewise.traffic import refusals
from zonewise.traffic.allocation import ZonedEndpoint, retain, spread
from zonewise.traffic.endpoint import NO_HINT, Hint, TrafficEndpoint, ready
from zonewise.traffic.exchange import Hinted, Zones, exchange, swaps
from zonewise.traffic.limits import WORTH, HintCounts, OverloadLimits
from zonewise.traffic.modes import HintRequest, Mode
from zonewise.traffic.routes import Flow, flow
from zonewise.traffic.sharing import share
from zonewise.traffic.weights import (
    LONGEST,
    decide_weights,
    in_zone_limit_of,
    parse_weights,
)

HINTED = "Hinted"


@dataclass(frozen=True, slots=True)
class ServiceSnapshot:
    """The present state of one Service in one address family.

    ``foreign`` are endpoints in slices of the same Service that another controller writes, as a
    proxy reads them; we cannot hint them, but they can cancel our hints.
    """

    hint_request: HintRequest
    shares: Shares
    targets: tuple[TrafficEndpoint, ...] = ()
    foreign: tuple[TrafficEndpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class Previous:
    """What was: the hints of endpoints that were ready, by name, and whether proxies obeyed."""

    hints: Mapping[str, Hint] = field(default_factory=dict)
    hinted: bool = False
    weights: str = ""
    """The text of the weights, if all slices carry the same."""

    @classmethod
    def read(cls, targets: Iterable[TrafficEndpoint]) -> Previous:
        """What the slices say, as their writer meant them."""
        hints = {target.name: target.hint for target in targets if target.ready}
        return cls(hints, bool(hints) and all(hint.zones for hint in hints.values()))


@dataclass(frozen=True, slots=True)
class HintDecision:
    """What to do and why. ``hints`` has the hinted endpoints by name; all others have none."""

    mode: Mode
    hinted: bool
    reason: Reason
    hints: Mapping[str, Hint] = field(default_factory=dict)
    warnings: tuple[Reason, ...] = ()
    weights: str = ""
    """What the slices say about weights, "" if nothing."""

    def hint(self, name: str) -> Hint:
        """The hint of an endpoint."""
        return self.hints.get(name, NO_HINT)

    def applied(self, targets: Iterable[TrafficEndpoint]) -> tuple[TrafficEndpoint, ...]:
        """Endpoints with the hints of this decision."""
        return tuple(replace(target, hint=self.hint(target.name)) for target in targets)

    def after(self, snapshot: ServiceSnapshot) -> Previous:
        """What the next decision finds, once this one is written."""
        return replace(Previous.read(self.applied(snapshot.targets)), weights=self.weights)

    def counts(self, targets: Iterable[TrafficEndpoint]) -> HintCounts:
        """The counts of these endpoints under this decision, for ``limits``."""
        hints = self.hints
        return HintCounts.of(
            (target.zone, hints.get(target.name, NO_HINT).zones)
            for target in targets
            if target.ready
        )

    def flow(self, snapshot: ServiceSnapshot) -> Flow:
        """Where the traffic goes under this decision, through proxies that support weights."""
        return flow_under(self.weights, self.applied(snapshot.targets), snapshot.shares)


def flow_under(weights: str, targets: Iterable[TrafficEndpoint], shares: Shares) -> Flow:
    """Where the traffic goes through proxies that support weights, if there are any."""
    return flow(targets, shares, parse_weights(weights))


def decide(snapshot: ServiceSnapshot, previous: Previous) -> HintDecision:
    """The hints of one Service in one address family."""
    hint_request = snapshot.hint_request
    if hint_request.mode is Mode.OFF:
        return HintDecision(hint_request.mode, False, hint_request.reason or refusals.not_asked())
    targets = ready(snapshot.targets)
    if not targets:
        return HintDecision(hint_request.mode, False, refusals.no_endpoints())
    if hint_request.mode is Mode.AUTO:
        decision = _auto(snapshot, previous, targets)
    elif hint_request.mode is Mode.SHARED:
        decision = _shared(snapshot, previous, targets)
    elif hint_request.mode is Mode.WEIGHTED:
        decision = _weighted(snapshot, previous, targets)
    else:
        decision = _own_place(hint_request.mode, targets)
    strangers = ready(snapshot.foreign)
    stray = [target for target in strangers if not target.hint.zones]
    if decision.hinted and stray:
        return replace(decision, warnings=(refusals.foreign_endpoint(stray),))
    if decision.weights and strangers:
        return replace(decision, warnings=(refusals.foreign_slice(strangers),))
    return decision


def _own_place(mode: Mode, targets: list[TrafficEndpoint]) -> HintDecision:
    same_node = mode is Mode.SAME_NODE
    zoneless = [target for target in targets if not target.zone]
    hints = {
        target.name: Hint(
            (target.zone,) if target.zone else (),
            (target.node,) if target.node and same_node else (),
        )
        for target in targets
    }
    hints = {name: hint for name, hint in hints.items() if hint}
    hinted = len(hints) == len(targets)
    if zoneless:
        return HintDecision(mode, hinted, refusals.endpoint_without_zone(zoneless), hints)
    where = "node, else its zone" if same_node else "zone"
    reason = Reason(code=HINTED, message=f"every endpoint is for its own {where}")
    return HintDecision(mode, hinted, reason, hints)


def _auto(
    snapshot: ServiceSnapshot, previous: Previous, targets: list[TrafficEndpoint]
) -> HintDecision:
    shares, limits = snapshot.shares, snapshot.hint_request.limits
    refusal = _refusal(shares, targets)
    if refusal is not None:
        return HintDecision(Mode.AUTO, False, refusal)
    zones = _zones(shares, limits, previous, targets)
    if zones is None:
        several = share([Hinted(t.name, t.zone) for t in targets], shares, limits, hinted=False)
        kept = several.in_zone if several.zones else None
        return HintDecision(Mode.AUTO, False, refusals.too_few(shares, limits, len(targets), kept))
    shared = {zone: Hint((zone,)) for zone in set(zones.values())}
    hints = {name: shared[zone] for name, zone in zones.items()}
    return HintDecision(Mode.AUTO, True, _hinted(limits), hints)


def _shared(
    snapshot: ServiceSnapshot, previous: Previous, targets: list[TrafficEndpoint]
) -> HintDecision:
    mode, shares, limits = snapshot.hint_request.mode, snapshot.shares, snapshot.hint_request.limits
    refusal = _refusal(shares, targets)
    if refusal is not None:
        return HintDecision(mode, False, refusal)
    endpoints = [Hinted(t.name, t.zone, _before(previous, t, shares)) for t in targets]
    found = share(endpoints, shares, limits, hinted=previous.hinted)
    if not found.zones:
        return HintDecision(mode, False, refusals.nothing_to_gain(found.in_zone, found.without))
    homes = {target.name: target.zone for target in targets}
    hints = {
        name: Hint(_home_first(_there(zones, homes[name], shares), homes[name]))
        for name, zones in found.zones.items()
    }
    return HintDecision(mode, True, _hinted(limits), hints)


def _home_first(zones: Zones, home: str) -> Zones:
    """A proxy that reads only the first zone should find the endpoint's own there."""
    return (home, *(zone for zone in zones if zone != home)) if home in zones else zones


def _weighted(
    snapshot: ServiceSnapshot, previous: Previous, targets: list[TrafficEndpoint]
) -> HintDecision:
    """Shared hints for every proxy, and weights for those that support them."""
    plain = _shared(snapshot, previous, targets)
    if _refusal(snapshot.shares, targets) is not None:
        return plain
    own = Counter(target.zone for target in targets)
    limits = snapshot.hint_request.limits
    text = decide_weights(own, snapshot.shares, limits, previous.weights)
    if len(text) > LONGEST:
        warning = refusals.weights_too_long(len(text), LONGEST)
        return replace(plain, warnings=(warning,))
    reason = Reason(
        code=HINTED,
        message="every zone's traffic is divided among zones by weights",
        numbers={"addBelowPercent": limits.add, "dropAbovePercent": limits.drop},
    )
    return HintDecision(Mode.WEIGHTED, True, reason, plain.hints, weights=text)


def _refusal(shares: Shares, targets: list[TrafficEndpoint]) -> Reason | None:
    if shares.reason is not None:
        return shares.reason
    zoneless = [target for target in targets if not target.zone]
    return refusals.endpoint_without_zone(zoneless) if zoneless else None


def _zones(
    shares: Shares, limits: OverloadLimits, previous: Previous, targets: list[TrafficEndpoint]
) -> dict[str, str] | None:
    count = len(targets)
    endpoints = [ZonedEndpoint(t.name, t.zone, _single(previous, t, shares)) for t in targets]
    aim = limits.to_add(shares, count)
    if previous.hinted and any(endpoint.before for endpoint in endpoints):
        keep = limits.to_keep(shares, count)
        kept = retain(endpoints, shares.weights, keep=keep, aim=aim)
        return None if kept is None else _swapped(endpoints, kept, shares)
    if sum(aim.values()) > count:
        return None
    return spread(endpoints, shares.weights, aim)


def _swapped(
    endpoints: list[ZonedEndpoint], zones: Mapping[str, str], shares: Shares
) -> dict[str, str]:
    """The zone of every endpoint after all swaps that are worth while."""
    classes = {(home, zones[name]) for name, home, _ in endpoints}
    if not swaps((home, (zone,)) for home, zone in classes):
        return dict(zones)
    hinted = (Hinted(name, home, (before,)) for name, home, before in endpoints)
    single = {name: (zone,) for name, zone in zones.items()}
    swapped = exchange(hinted, single, shares.weights, worth=WORTH)
    return {name: zone for name, (zone,) in swapped.items()}


def _single(previous: Previous, target: TrafficEndpoint, shares: Shares) -> str:
    """The one zone an endpoint was for; hints for several are not of mode Auto."""
    zones = previous.hints.get(target.name, NO_HINT).zones
    if not zones:
        return ""
    if len(zones) == 1 and zones[0] in shares.weights:
        return zones[0]
    zones = _before(previous, target, shares)
    return zones[0] if len(zones) == 1 else ""


def _before(previous: Previous, target: TrafficEndpoint, shares: Shares) -> Zones:
    """The zones an endpoint was for, sorted, as far as they are there."""
    zones = previous.hints.get(target.name, NO_HINT).zones
    if len(zones) > 1:
        zones = tuple(sorted(zones))
    return _there(zones, target.zone, shares)


def _there(zones: Zones, home: str, shares: Shares) -> Zones:
    """The zones that an endpoint in this zone may be for.

    A zone that no node has any more was renamed or removed. An endpoint that was for it and is in a
    zone that sends traffic counts as new, or no client would ever reach it.
    """
    if home not in shares.weights or (len(zones) == 1 and zones[0] in shares.weights):
        return zones
    return tuple(zone for zone in zones if zone in shares.weights or zone in shares.silent)


def _hinted(limits: OverloadLimits) -> Reason:
    return Reason(
        code=HINTED,
        message="every zone has endpoints for its share of the traffic",
        numbers={"addBelowPercent": limits.add, "dropAbovePercent": limits.drop},
    )


@dataclass(frozen=True, slots=True)
class ZoneRow:
    """One zone in numbers; ``overload`` is None while nothing is hinted to it."""

    zone: str
    nodes: int
    cpu_milli: int
    share: Fraction
    endpoints: int
    minimum: int
    assigned: int
    overload: Fraction | None


def zone_rows(
    snapshot: ServiceSnapshot, decision: HintDecision, loads: Mapping[str, Fraction]
) -> tuple[ZoneRow, ...]:
    """The zones with a share, by name: what they have, need and get.

    ``loads`` are how far endpoints are above the average, of the flow that the report is about.
    """
    shares, targets = snapshot.shares, ready(snapshot.targets)
    there = Counter(target.zone for target in targets)
    assigned = Counter(zone for hint in decision.hints.values() for zone in hint.zones)
    usable = shares.total > 0
    highest = _highest(decision, targets, loads)
    minimum = snapshot.hint_request.limits.to_add(shares, len(targets)) if usable else {}
    return tuple(
        ZoneRow(
            zone=zone.name,
            nodes=zone.nodes,
            cpu_milli=zone.cpu_milli,
            share=shares.share(zone.name),
            endpoints=there[zone.name],
            minimum=minimum.get(zone.name, 0),
            assigned=assigned[zone.name],
            overload=highest.get(zone.name),
        )
        for zone in shares.zones
    )


def _highest(
    decision: HintDecision, targets: Iterable[TrafficEndpoint], loads: Mapping[str, Fraction]
) -> dict[str, Fraction]:
    """The overload of the busiest endpoint that is for each zone, with all that it gets.

    Weights divide traffic among the zones that endpoints are in, hints among those they name. A
    zone that no endpoint is for uses all of them, and they carry that as well.
    """
    found: dict[str, Fraction] = {}
    for target in targets:
        load = loads.get(target.name, Fraction(-1))
        for zone in (target.zone,) if decision.weights else decision.hint(target.name).zones:
            found[zone] = max(found.get(zone, load), load)
    return found


def in_zone_limit(snapshot: ServiceSnapshot) -> Fraction:
    """The most that could stay in zone at the limit to add, if endpoints were divisible."""
    own = Counter(target.zone for target in ready(snapshot.targets))
    return (
        in_zone_limit_of(own, snapshot.shares, snapshot.hint_request.limits) if own else Fraction(0)
    )
