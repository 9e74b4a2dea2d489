"""Which zones and nodes each endpoint of a Service is for, and why: the decision.

``decide_hints(snapshot, previous)`` is pure. A snapshot is the present state: what the Service
requests, the shares of the zones, the endpoints of one address family (a dual-stack Service is two
independent snapshots). ``PreviousHints`` are those on the slices. They count as present only if
*every* endpoint that was ready had one, since only then proxies obeyed them. So a controller that
died between two slices starts over, and reaches the same hints again.

Mode Auto, in this order:

1. without shares, a zone for every ready endpoint and enough endpoints there are no hints;
2. hints exist: they stay, move or are dropped (``zonewise.traffic.allocation.retain_hints``), and
   endpoints that serve each other's zone swap (``zonewise.traffic.swaps``);
3. no hints: they are added (``spread_endpoints``) if every zone's overload can be below the limit
   to add.

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
from zonewise.topology.shares import Shares
from zonewise.traffic import refusals
from zonewise.traffic.allocation import ZonedEndpoint, retain_hints, spread_endpoints
from zonewise.traffic.endpoint import NO_HINT, Hint, TrafficEndpoint, ready_endpoints
from zonewise.traffic.limits import MIN_SWAP_GAIN, HintCounts, OverloadLimits
from zonewise.traffic.modes import HintRequest, Mode
from zonewise.traffic.routes.flow import Flow, compute_flow
from zonewise.traffic.sharing import share_endpoints
from zonewise.traffic.swaps import HintedEndpoint, Zones, find_swaps, swap_hints
from zonewise.traffic.weights import (
    MAX_TEXT_LENGTH,
    decide_weights,
    in_zone_limit_of,
    parse_weights,
)

HINTED = "Hinted"


@dataclass(frozen=True, slots=True)
class ServiceSnapshot:
    """The present state of one Service in one address family.

    ``foreign_endpoints`` are in slices of the same Service that another controller writes, as a
    proxy reads them; we cannot hint them, but they can cancel our hints.
    """

    hint_request: HintRequest
    shares: Shares
    endpoints: tuple[TrafficEndpoint, ...] = ()
    foreign_endpoints: tuple[TrafficEndpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class PreviousHints:
    """The hints that endpoints had while they were ready, by name, and whether proxies obeyed."""

    hints: Mapping[str, Hint] = field(default_factory=dict)
    hinted: bool = False
    weights: str = ""
    """The text of the weights, if all slices carry the same."""

    @classmethod
    def from_endpoints(cls, endpoints: Iterable[TrafficEndpoint]) -> PreviousHints:
        """The hints of endpoints as their writer reads them."""
        hints = {endpoint.name: endpoint.hint for endpoint in endpoints if endpoint.ready}
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
    """The text of the weights on the slices, "" if there are none."""

    def hint(self, name: str) -> Hint:
        """The hint of an endpoint."""
        return self.hints.get(name, NO_HINT)

    def apply(self, endpoints: Iterable[TrafficEndpoint]) -> tuple[TrafficEndpoint, ...]:
        """Endpoints with the hints of this decision."""
        return tuple(replace(endpoint, hint=self.hint(endpoint.name)) for endpoint in endpoints)

    def as_previous(self, snapshot: ServiceSnapshot) -> PreviousHints:
        """The hints that the next decision starts from, once this one is written."""
        previous = PreviousHints.from_endpoints(self.apply(snapshot.endpoints))
        return replace(previous, weights=self.weights)

    def counts(self, endpoints: Iterable[TrafficEndpoint]) -> HintCounts:
        """The counts of these endpoints under this decision, for ``limits``."""
        hints = self.hints
        return HintCounts.of(
            (endpoint.zone, hints.get(endpoint.name, NO_HINT).zones)
            for endpoint in endpoints
            if endpoint.ready
        )

    def flow(self, snapshot: ServiceSnapshot) -> Flow:
        """Where the traffic goes under this decision, through proxies that support weights."""
        return weighted_flow(self.weights, self.apply(snapshot.endpoints), snapshot.shares)


def weighted_flow(weights: str, endpoints: Iterable[TrafficEndpoint], shares: Shares) -> Flow:
    """Where the traffic goes through proxies that support weights, if there are any."""
    return compute_flow(endpoints, shares, parse_weights(weights))


def decide_hints(snapshot: ServiceSnapshot, previous: PreviousHints) -> HintDecision:
    """The hints of one Service in one address family."""
    request = snapshot.hint_request
    if request.mode is Mode.OFF:
        return HintDecision(request.mode, False, request.reason or refusals.not_requested())
    endpoints = ready_endpoints(snapshot.endpoints)
    if not endpoints:
        return HintDecision(request.mode, False, refusals.no_endpoints())
    if request.mode is Mode.AUTO:
        decision = _auto(snapshot, previous, endpoints)
    elif request.mode is Mode.SHARED:
        decision = _shared(snapshot, previous, endpoints)
    elif request.mode is Mode.WEIGHTED:
        decision = _weighted(snapshot, previous, endpoints)
    else:
        decision = _hint_own_location(request.mode, endpoints)
    foreign_endpoints = ready_endpoints(snapshot.foreign_endpoints)
    unhinted = [endpoint for endpoint in foreign_endpoints if not endpoint.hint.zones]
    if decision.hinted and unhinted:
        return replace(decision, warnings=(refusals.foreign_endpoint(unhinted),))
    if decision.weights and foreign_endpoints:
        return replace(decision, warnings=(refusals.foreign_slice(foreign_endpoints),))
    return decision


def _hint_own_location(mode: Mode, endpoints: list[TrafficEndpoint]) -> HintDecision:
    same_node = mode is Mode.SAME_NODE
    zoneless = [endpoint for endpoint in endpoints if not endpoint.zone]
    hints = {
        endpoint.name: Hint(
            (endpoint.zone,) if endpoint.zone else (),
            (endpoint.node,) if endpoint.node and same_node else (),
        )
        for endpoint in endpoints
    }
    hints = {name: hint for name, hint in hints.items() if hint}
    hinted = len(hints) == len(endpoints)
    if zoneless:
        return HintDecision(mode, hinted, refusals.endpoint_without_zone(zoneless), hints)
    own = "node, else its zone" if same_node else "zone"
    reason = Reason(code=HINTED, message=f"every endpoint is for its own {own}")
    return HintDecision(mode, hinted, reason, hints)


def _auto(
    snapshot: ServiceSnapshot, previous: PreviousHints, endpoints: list[TrafficEndpoint]
) -> HintDecision:
    shares, limits = snapshot.shares, snapshot.hint_request.limits
    refusal = _refusal(shares, endpoints)
    if refusal is not None:
        return HintDecision(Mode.AUTO, False, refusal)
    zones = _assign_zones(shares, limits, previous, endpoints)
    if zones is None:
        unhinted = [HintedEndpoint(endpoint.name, endpoint.zone) for endpoint in endpoints]
        shared = share_endpoints(unhinted, shares, limits, hinted=False)
        in_zone = shared.in_zone if shared.zones else None
        refusal = refusals.too_few(shares, limits, len(endpoints), in_zone)
        return HintDecision(Mode.AUTO, False, refusal)
    hint_by_zone = {zone: Hint((zone,)) for zone in set(zones.values())}
    hints = {name: hint_by_zone[zone] for name, zone in zones.items()}
    return HintDecision(Mode.AUTO, True, _hinted_reason(limits), hints)


def _shared(
    snapshot: ServiceSnapshot, previous: PreviousHints, endpoints: list[TrafficEndpoint]
) -> HintDecision:
    mode, shares, limits = snapshot.hint_request.mode, snapshot.shares, snapshot.hint_request.limits
    refusal = _refusal(shares, endpoints)
    if refusal is not None:
        return HintDecision(mode, False, refusal)
    hinted = [
        HintedEndpoint(endpoint.name, endpoint.zone, _previous_zones(previous, endpoint, shares))
        for endpoint in endpoints
    ]
    shared = share_endpoints(hinted, shares, limits, hinted=previous.hinted)
    if not shared.zones:
        return HintDecision(mode, False, refusals.nothing_to_gain(shared.in_zone, shared.without))
    homes = {endpoint.name: endpoint.zone for endpoint in endpoints}
    hints = {
        name: Hint(_home_first(_existing_zones(zones, homes[name], shares), homes[name]))
        for name, zones in shared.zones.items()
    }
    return HintDecision(mode, True, _hinted_reason(limits), hints)


def _home_first(zones: Zones, home: str) -> Zones:
    """The same zones, home first: that is what a proxy obeys that reads only the first one."""
    return (home, *(zone for zone in zones if zone != home)) if home in zones else zones


def _weighted(
    snapshot: ServiceSnapshot, previous: PreviousHints, endpoints: list[TrafficEndpoint]
) -> HintDecision:
    """Shared hints for every proxy, and weights for those that support them."""
    shared = _shared(snapshot, previous, endpoints)
    if _refusal(snapshot.shares, endpoints) is not None:
        return shared
    own = Counter(endpoint.zone for endpoint in endpoints)
    limits = snapshot.hint_request.limits
    text = decide_weights(own, snapshot.shares, limits, previous.weights)
    if len(text) > MAX_TEXT_LENGTH:
        warning = refusals.weights_too_long(len(text), MAX_TEXT_LENGTH)
        return replace(shared, warnings=(warning,))
    reason = Reason(
        code=HINTED,
        message="every zone's traffic is divided among zones by weights",
        numbers={"addBelowPercent": limits.add, "dropAbovePercent": limits.drop},
    )
    return HintDecision(Mode.WEIGHTED, True, reason, shared.hints, weights=text)


def _refusal(shares: Shares, endpoints: list[TrafficEndpoint]) -> Reason | None:
    if shares.reason is not None:
        return shares.reason
    zoneless = [endpoint for endpoint in endpoints if not endpoint.zone]
    return refusals.endpoint_without_zone(zoneless) if zoneless else None


def _assign_zones(
    shares: Shares,
    limits: OverloadLimits,
    previous: PreviousHints,
    endpoints: list[TrafficEndpoint],
) -> dict[str, str] | None:
    count = len(endpoints)
    zoned = [
        ZonedEndpoint(endpoint.name, endpoint.zone, _previous_zone(previous, endpoint, shares))
        for endpoint in endpoints
    ]
    minimum_to_add = limits.minimum_to_add(shares, count)
    if previous.hinted and any(endpoint.previous_zone for endpoint in zoned):
        zones = retain_hints(
            zoned,
            shares.weights,
            minimum_to_keep=limits.minimum_to_keep(shares, count),
            minimum_to_add=minimum_to_add,
        )
        return None if zones is None else _swap(zoned, zones, shares)
    if sum(minimum_to_add.values()) > count:
        return None
    return spread_endpoints(zoned, shares.weights, minimum_to_add)


def _swap(
    endpoints: list[ZonedEndpoint], zones: Mapping[str, str], shares: Shares
) -> dict[str, str]:
    """The zone of every endpoint after all worthwhile swaps."""
    classes = {(home, zones[name]) for name, home, _ in endpoints}
    if not find_swaps((home, (zone,)) for home, zone in classes):
        return dict(zones)
    hinted = (HintedEndpoint(name, home, (before,)) for name, home, before in endpoints)
    zone_tuples = {name: (zone,) for name, zone in zones.items()}
    swapped = swap_hints(hinted, zone_tuples, shares.weights, min_gain=MIN_SWAP_GAIN)
    return {name: zone for name, (zone,) in swapped.items()}


def _previous_zone(previous: PreviousHints, endpoint: TrafficEndpoint, shares: Shares) -> str:
    """The one zone an endpoint was for; hints for several are not of mode Auto."""
    zones = previous.hints.get(endpoint.name, NO_HINT).zones
    if not zones:
        return ""
    if len(zones) == 1 and zones[0] in shares.weights:
        return zones[0]
    zones = _previous_zones(previous, endpoint, shares)
    return zones[0] if len(zones) == 1 else ""


def _previous_zones(previous: PreviousHints, endpoint: TrafficEndpoint, shares: Shares) -> Zones:
    """The zones an endpoint was for, sorted, without those that no node has any more."""
    zones = previous.hints.get(endpoint.name, NO_HINT).zones
    if len(zones) > 1:
        zones = tuple(sorted(zones))
    return _existing_zones(zones, endpoint.zone, shares)


def _existing_zones(zones: Zones, home: str, shares: Shares) -> Zones:
    """Those of the zones that an endpoint in this home may be for.

    A zone that no node has any more was renamed or removed. An endpoint that was for it and is in a
    zone that sends traffic counts as new, or no client would ever reach it.
    """
    if home not in shares.weights or (len(zones) == 1 and zones[0] in shares.weights):
        return zones
    return tuple(zone for zone in zones if zone in shares.weights or zone in shares.silent_zones)


def _hinted_reason(limits: OverloadLimits) -> Reason:
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
    shares, endpoints = snapshot.shares, ready_endpoints(snapshot.endpoints)
    own = Counter(endpoint.zone for endpoint in endpoints)
    assigned = Counter(zone for hint in decision.hints.values() for zone in hint.zones)
    overloads = _highest_overloads(decision, endpoints, loads)
    limits = snapshot.hint_request.limits
    minimum = limits.minimum_to_add(shares, len(endpoints)) if shares.total > 0 else {}
    return tuple(
        ZoneRow(
            zone=zone.name,
            nodes=zone.nodes,
            cpu_milli=zone.cpu_milli,
            share=shares.share(zone.name),
            endpoints=own[zone.name],
            minimum=minimum.get(zone.name, 0),
            assigned=assigned[zone.name],
            overload=overloads.get(zone.name),
        )
        for zone in shares.zones
    )


def _highest_overloads(
    decision: HintDecision, endpoints: Iterable[TrafficEndpoint], loads: Mapping[str, Fraction]
) -> dict[str, Fraction]:
    """The overload of the busiest endpoint that is for each zone, with all that it gets.

    Weights divide traffic among the zones that endpoints are in, hints among those they name. A
    zone that no endpoint is for uses all of them, and they carry that as well.
    """
    overloads: dict[str, Fraction] = {}
    for endpoint in endpoints:
        load = loads.get(endpoint.name, Fraction(-1))
        for zone in (endpoint.zone,) if decision.weights else decision.hint(endpoint.name).zones:
            overloads[zone] = max(overloads.get(zone, load), load)
    return overloads


def in_zone_limit(snapshot: ServiceSnapshot) -> Fraction:
    """The most that could stay in zone at the limit to add, if endpoints were divisible."""
    own = Counter(endpoint.zone for endpoint in ready_endpoints(snapshot.endpoints))
    if not own:
        return Fraction(0)
    return in_zone_limit_of(own, snapshot.shares, snapshot.hint_request.limits)
