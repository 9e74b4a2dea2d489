"""Endpoints for several zones: the arithmetic of mode shared.

A stock proxy of a zone spreads evenly over the endpoints that name it. With a endpoints named, each
gets w/(W·a) of all traffic from this zone, and an endpoint's load is the sum over the zones it
names. The goal is the most traffic in zone, with every load within the limits, every zone named,
and every ready endpoint naming at least one zone.

*From nothing*: where the zones' minima fit into the endpoints, mode Auto reaches what any hints can
and its ``spread_endpoints`` decides; where they do not, ``best_profile`` searches.

*From existing hints*: remaining endpoints keep theirs and new ones name their own zone. If then an
endpoint is above the limit to drop, or a zone is not named, new endpoints change, one at a time; if
that is not enough, any endpoint may, a few of them (*repair*), or everything is decided from
nothing, whichever is worth more: a fair load in zone is worth four changed hints. The same holds
for hints that may stay but add less than half of what hints can, as an outage leaves them
(``gains_little``). In the end endpoints that serve each other's zones swap. For a Service with
single zones only, mode Auto's ``retain_hints`` is tried first.

Loads are compared as whole numbers of 2⁻⁴⁰, rounded up, while changes are ranked; whether hints may
stay is computed exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from zonewise.topology.shares import Shares
from zonewise.traffic.allocation import ZonedEndpoint, retain_hints, spread_endpoints
from zonewise.traffic.limits import MIN_SWAP_GAIN_SHARED, HintCounts, OverloadLimits
from zonewise.traffic.profiles import MAX_ZONES, BestProfile, best_profile
from zonewise.traffic.swaps import HintedEndpoint, Zones, swap_hints

NEW_CHANGES = 16
REPAIRS = 4
MAX_COMPARED = 20_000
"""Changes, times the zones and sets over which each is measured: some tens of milliseconds."""
_BITS = 40


@dataclass(frozen=True, slots=True)
class SharedZones:
    """The zones of every endpoint, none if nothing is gained, and what stays in zone."""

    zones: Mapping[str, Zones]
    in_zone: Fraction
    """The part that stays in zone under the best hints that were found."""
    without: Fraction
    """The part that stays in zone without hints."""


def share_endpoints(
    endpoints: Sequence[HintedEndpoint], shares: Shares, limits: OverloadLimits, *, hinted: bool
) -> SharedZones:
    """The zones each endpoint is for; ``hinted`` says whether proxies obeyed the existing hints."""
    ordered = sorted(endpoints)
    without = _without_hints(ordered, shares)
    if hinted and any(endpoint.previous_zones for endpoint in ordered):
        retained = _retain(ordered, shares, limits)
        if retained is not None:
            zones = swap_hints(ordered, retained, shares.weights, min_gain=MIN_SWAP_GAIN_SHARED)
            in_zone = in_zone_of(ordered, zones, shares)
            if in_zone >= without:
                return SharedZones(zones, in_zone, without)
    return _share_from_nothing(ordered, shares, limits, without)


def _share_from_nothing(
    endpoints: Sequence[HintedEndpoint], shares: Shares, limits: OverloadLimits, without: Fraction
) -> SharedZones:
    minimum = limits.minimum_to_add(shares, len(endpoints))
    if sum(minimum.values()) <= len(endpoints):
        single = spread_endpoints(map(_to_zoned, endpoints), shares.weights, minimum)
        zones = {name: (zone,) for name, zone in single.items()}
        return SharedZones(zones, in_zone_of(endpoints, zones, shares), without)
    own = Counter(endpoint.home for endpoint in endpoints)
    best = best_profile(own, shares.weights, minimum, limits.add)
    if best is None or best.in_zone <= without:
        return SharedZones({}, without if best is None else best.in_zone, without)
    return SharedZones(_assign_groups(endpoints, best), best.in_zone, without)


def _to_zoned(endpoint: HintedEndpoint) -> ZonedEndpoint:
    """The endpoint as mode Auto takes it: a hint for several zones does not count."""
    name, home, previous_zones = endpoint
    return ZonedEndpoint(name, home, previous_zones[0] if len(previous_zones) == 1 else "")


def _assign_groups(endpoints: Iterable[HintedEndpoint], profile: BestProfile) -> dict[str, Zones]:
    """The zones of each endpoint: a hint that fits its group stays, the others follow by name."""
    by_home: dict[str, list[HintedEndpoint]] = {}
    for endpoint in endpoints:
        by_home.setdefault(endpoint.home, []).append(endpoint)
    result: dict[str, Zones] = {}
    sizes_by_home: dict[str, Counter[Zones]] = {}
    for home, zones, size in profile.groups:
        sizes_by_home.setdefault(home, Counter())[zones] += size
    for home, residents in by_home.items():
        remaining = sizes_by_home[home]
        for name, _, previous_zones in residents:
            if remaining[previous_zones] > 0:
                result[name] = previous_zones
                remaining[previous_zones] -= 1
        others = (endpoint.name for endpoint in residents if endpoint.name not in result)
        result.update(zip(others, sorted(remaining.elements()), strict=True))
    return result


def _retain(
    endpoints: Sequence[HintedEndpoint], shares: Shares, limits: OverloadLimits
) -> dict[str, Zones] | None:
    """The existing hints, changed as little as the limits require; None: decide from nothing."""
    if all(len(endpoint.previous_zones) <= 1 for endpoint in endpoints):
        count = len(endpoints)
        single = retain_hints(
            map(_to_zoned, endpoints),
            shares.weights,
            minimum_to_keep=limits.minimum_to_keep(shares, count),
            minimum_to_add=limits.minimum_to_add(shares, count),
        )
        if single is not None:
            return {name: (zone,) for name, zone in single.items()}
    first = min(shares.weights)
    zones = {
        name: previous_zones or ((home,) if home in shares.weights else (first,))
        for name, home, previous_zones in endpoints
    }
    state = _SharedHints(endpoints, zones, shares)
    new = {endpoint.name for endpoint in endpoints if not endpoint.previous_zones}
    if state.improve(limits.drop, new, NEW_CHANGES, strict=False):
        counts = HintCounts.of((home, state.zones[name]) for name, home, _ in endpoints)
        if not limits.gains_little(shares, counts):
            return state.zones
        return _choose_better(endpoints, state.zones, shares, limits)
    all_names = {endpoint.name for endpoint in endpoints}
    below = state.improve(limits.add, all_names, REPAIRS, strict=True)
    if not below and not state.is_within_drop(limits.drop):
        return None
    return _choose_better(endpoints, state.zones, shares, limits)


def _choose_better(
    endpoints: Sequence[HintedEndpoint],
    retained: dict[str, Zones],
    shares: Shares,
    limits: OverloadLimits,
) -> dict[str, Zones]:
    """These hints, or others that are worth more although they change some."""
    other = _share_from_nothing(endpoints, shares, limits, Fraction(0))
    if not other.zones:
        return retained

    def value(zones: Mapping[str, Zones]) -> Fraction:
        changed = sum(
            bool(previous_zones) and zones[name] != previous_zones
            for name, _, previous_zones in endpoints
        )
        return len(endpoints) * in_zone_of(endpoints, zones, shares) - Fraction(changed, 4)

    return retained if value(retained) >= value(other.zones) else dict(other.zones)


def in_zone_of(
    endpoints: Iterable[HintedEndpoint], zones: Mapping[str, Zones], shares: Shares
) -> Fraction:
    """The part of the traffic that stays in zone; every zone must be named."""
    per_zone: Counter[str] = Counter()
    staying: Counter[str] = Counter()
    for endpoint in endpoints:
        per_zone.update(zones[endpoint.name])
        if endpoint.home in zones[endpoint.name]:
            staying[endpoint.home] += 1
    weights = shares.weights.items()
    parts = (Fraction(weight * staying[zone], per_zone[zone]) for zone, weight in weights)
    return sum(parts, Fraction(0)) / shares.total


def _without_hints(endpoints: Sequence[HintedEndpoint], shares: Shares) -> Fraction:
    weight = sum(shares.weights.get(endpoint.home, 0) for endpoint in endpoints)
    return Fraction(weight, shares.total * len(endpoints))


class _SharedHints:
    """Hints while they change, counted by home and zones."""

    def __init__(
        self, endpoints: Sequence[HintedEndpoint], zones: Mapping[str, Zones], shares: Shares
    ) -> None:
        self.zones = dict(zones)
        self._previous_zones = {endpoint.name: endpoint.previous_zones for endpoint in endpoints}
        self._homes = {endpoint.name: endpoint.home for endpoint in endpoints}
        self._weights = shares.weights
        self._total = shares.total
        self._endpoints = len(endpoints)
        self._sets = Counter(self.zones.values())
        self._staying: Counter[str] = Counter()
        for endpoint in endpoints:
            if endpoint.home in self.zones[endpoint.name]:
                self._staying[endpoint.home] += 1

    def is_within_drop(self, drop: int) -> bool:
        """Whether every zone is named and no endpoint is above the limit to drop, exactly."""
        per_zone = self._count_per_zone()
        if not all(per_zone[zone] for zone in self._weights):
            return False
        each = {
            zone: Fraction(weight * self._endpoints, per_zone[zone] * self._total)
            for zone, weight in self._weights.items()
        }
        limit = Fraction(100 + drop, 100)
        return all(sum(each.get(zone, 0) for zone in zones) <= limit for zones in self._sets)

    def improve(self, percent: int, movable: set[str], max_changes: int, *, strict: bool) -> bool:
        """Change endpoints until all are within a limit; returns whether they are."""
        limit = ((100 + percent) * self._total << _BITS) - strict
        is_within: Callable[[], bool] = (
            (lambda: not self._excess(limit)) if strict else (lambda: self.is_within_drop(percent))
        )
        for _ in range(max_changes):
            if is_within():
                return True
            if not self._change_one(limit, movable):
                return False
        return is_within()

    def _count_per_zone(self) -> Counter[str]:
        per_zone: Counter[str] = Counter()
        for zones, count in self._sets.items():
            for zone in zones:
                per_zone[zone] += count
        return per_zone

    def _excess(self, limit: int) -> int:
        return self._measure(limit)[0]

    def _measure(self, limit: int) -> tuple[int, int]:
        """How far all endpoints together are above a limit, and what does not stay in zone."""
        per_zone = self._count_per_zone()
        sizes: dict[str, int] = {}
        excess = away = 0
        for zone, weight in self._weights.items():
            load = 100 * weight * self._endpoints << _BITS
            if not per_zone[zone]:
                excess += load
                continue
            sizes[zone] = -(-load // per_zone[zone])
            away -= (weight * self._staying[zone] << _BITS) // per_zone[zone]
        for zones, count in self._sets.items():
            above = sum(sizes.get(zone, 0) for zone in zones) - limit
            if above > 0:
                excess += count * above
        return excess, away

    def _change_one(self, limit: int, movable: set[str]) -> bool:
        """Make the change that leaves least above the limit; False if none leaves less.

        Every change is measured over all zones and sets. Where that takes too long, as with hints
        of another controller, none is made.
        """
        groups: dict[tuple[str, Zones], str] = {}
        for name in sorted(movable, key=self._change_order):
            groups.setdefault((self._homes[name], self.zones[name]), name)
        zones, sets = len(self._weights), len(self._sets)
        if len(groups) * (2 * zones + sets) * (zones + sets) > MAX_COMPARED:
            return False
        best: tuple[int, int, int, str, Zones, Zones] | None = None
        chosen = ""
        for (home, old), name in sorted(groups.items()):
            for new in self._zone_options(old):
                self._replace(home, old, new)
                key = (*self._measure(limit), len(new), home, old, new)
                self._replace(home, new, old)
                if best is None or key < best:
                    best, chosen = key, name
        if best is None or best[0] >= self._excess(limit):
            return False
        *_, home, old, new = best
        self._replace(home, old, new)
        self.zones[chosen] = new
        return True

    def _change_order(self, name: str) -> tuple[bool, str]:
        return self.zones[name] == self._previous_zones[name], name

    def _zone_options(self, old: Zones) -> Iterator[Zones]:
        """One zone more or less, a single zone, or a set that is in use."""
        seen = {old}
        options: list[Zones] = [*((zone,) for zone in self._weights), *self._sets]
        if len(old) < MAX_ZONES:
            options += [tuple(sorted((*old, zone))) for zone in self._weights if zone not in old]
        if len(old) > 1:
            options += [tuple(other for other in old if other != zone) for zone in old]
        for new in options:
            if new not in seen:
                seen.add(new)
                yield new

    def _replace(self, home: str, old: Zones, new: Zones) -> None:
        self._sets[old] -= 1
        if not self._sets[old]:
            del self._sets[old]
        self._sets[new] += 1
        self._staying[home] += (home in new) - (home in old)
