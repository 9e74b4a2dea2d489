"""Endpoints for several zones: the arithmetic of mode shared.

A stock proxy of a zone spreads evenly over the endpoints that name it. With a endpoints named, each
gets w/(W·a) of all traffic from this zone, and an endpoint's load is the sum over the zones it
names. Wanted: the most traffic in zone, with every load within the limits, every zone named, and
every ready endpoint naming at least one zone.

*From nothing*: where the zones' minima fit into the endpoints, mode Auto reaches what any hints can
and its ``spread`` decides; where they do not, ``best_profile`` searches.

*From existing hints*: remaining endpoints keep theirs and new ones name their own zone. If then an
endpoint is above the limit to drop, or a zone is not named, new endpoints change, one at a time; if
that is not enough, any endpoint may, a few of them (*repair*), or everything is decided from
nothing, whichever is worth more: a fair load in zone is worth four changed hints. The same holds
for hints that may stay but add less than half of what hints can, as an outage leaves them
(``gains_little``). In the end endpoints that serve each other's zones swap. A Service with single
zones only is mode Auto's ``retain`` first.

Loads are compared as whole numbers of 2⁻⁴⁰, rounded up, while changes are ranked; whether hints may
stay is computed exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from zonewise.topology import Shares
from zonewise.traffic.allocation import ZonedEndpoint, retain, spread
from zonewise.traffic.exchange import Hinted, Zones, exchange
from zonewise.traffic.limits import WORTH_SHARED, HintCounts, OverloadLimits
from zonewise.traffic.profiles import MOST_ZONES, Found, best_profile

NEW_CHANGES = 16
REPAIRS = 4
MOST_COMPARED = 20_000
"""Changes, times the zones and sets over which each is measured: some tens of milliseconds."""
_BITS = 40


@dataclass(frozen=True, slots=True)
class Shared:
    """The zones of every endpoint, none if nothing is gained, and what stays in zone."""

    zones: Mapping[str, Zones]
    in_zone: Fraction
    """The part that stays in zone under the best hints that were found."""
    without: Fraction
    """The part that stays in zone without hints."""


def share(
    endpoints: Sequence[Hinted], shares: Shares, limits: OverloadLimits, *, hinted: bool
) -> Shared:
    """The zones each endpoint is for; ``hinted`` says whether proxies obeyed the existing hints."""
    ordered = sorted(endpoints)
    without = _without_hints(ordered, shares)
    if hinted and any(endpoint.before for endpoint in ordered):
        kept = _kept(ordered, shares, limits)
        if kept is not None:
            zones = exchange(ordered, kept, shares.weights, worth=WORTH_SHARED)
            in_zone = in_zone_of(ordered, zones, shares)
            if in_zone >= without:
                return Shared(zones, in_zone, without)
    return _afresh(ordered, shares, limits, without)


def _afresh(
    endpoints: Sequence[Hinted], shares: Shares, limits: OverloadLimits, without: Fraction
) -> Shared:
    minimum = limits.to_add(shares, len(endpoints))
    if sum(minimum.values()) <= len(endpoints):
        placed = [ZonedEndpoint(e.name, e.home, _single(e.before)) for e in endpoints]
        single = spread(placed, shares.weights, minimum)
        zones = {name: (zone,) for name, zone in single.items()}
        return Shared(zones, in_zone_of(endpoints, zones, shares), without)
    own = Counter(endpoint.home for endpoint in endpoints)
    found = best_profile(own, shares.weights, minimum, limits.add)
    if found is None or found.in_zone <= without:
        return Shared({}, without if found is None else found.in_zone, without)
    return Shared(_matched(endpoints, found), found.in_zone, without)


def _single(zones: Zones) -> str:
    return zones[0] if len(zones) == 1 else ""


def _matched(endpoints: Iterable[Hinted], found: Found) -> dict[str, Zones]:
    """Names for the groups: an endpoint with a fitting hint keeps it, the others follow by name."""
    by_home: dict[str, list[Hinted]] = {}
    for endpoint in endpoints:
        by_home.setdefault(endpoint.home, []).append(endpoint)
    result: dict[str, Zones] = {}
    wanted: dict[str, Counter[Zones]] = {}
    for home, zones, size in found.groups:
        wanted.setdefault(home, Counter())[zones] += size
    for home, there in by_home.items():
        left = wanted[home]
        for name, _, before in there:
            if left[before] > 0:
                result[name] = before
                left[before] -= 1
        rest = (endpoint.name for endpoint in there if endpoint.name not in result)
        result.update(zip(rest, sorted(left.elements()), strict=True))
    return result


def _kept(
    endpoints: Sequence[Hinted], shares: Shares, limits: OverloadLimits
) -> dict[str, Zones] | None:
    """The existing hints, changed as little as the limits require; None: decide from nothing."""
    if all(len(endpoint.before) <= 1 for endpoint in endpoints):
        count = len(endpoints)
        placed = [ZonedEndpoint(e.name, e.home, _single(e.before)) for e in endpoints]
        keep, aim = limits.to_keep(shares, count), limits.to_add(shares, count)
        single = retain(placed, shares.weights, keep=keep, aim=aim)
        if single is not None:
            return {name: (zone,) for name, zone in single.items()}
    first = min(shares.weights)
    zones = {
        e.name: e.before or ((e.home,) if e.home in shares.weights else (first,)) for e in endpoints
    }
    state = _State(endpoints, zones, shares)
    new = {endpoint.name for endpoint in endpoints if not endpoint.before}
    if state.improve(limits.drop, new, NEW_CHANGES, strict=False):
        counts = HintCounts.of((e.home, state.zones[e.name]) for e in endpoints)
        if not limits.gains_little(shares, counts):
            return state.zones
        return _or_afresh(endpoints, state.zones, shares, limits)
    everybody = {endpoint.name for endpoint in endpoints}
    below = state.improve(limits.add, everybody, REPAIRS, strict=True)
    if not below and not state.within(limits.drop):
        return None
    return _or_afresh(endpoints, state.zones, shares, limits)


def _or_afresh(
    endpoints: Sequence[Hinted],
    kept: dict[str, Zones],
    shares: Shares,
    limits: OverloadLimits,
) -> dict[str, Zones]:
    """These hints, or others that are worth more although they change some."""
    other = _afresh(endpoints, shares, limits, Fraction(0))
    if not other.zones:
        return kept

    def worth(zones: Mapping[str, Zones]) -> Fraction:
        changed = sum(bool(e.before) and zones[e.name] != e.before for e in endpoints)
        return len(endpoints) * in_zone_of(endpoints, zones, shares) - Fraction(changed, 4)

    return kept if worth(kept) >= worth(other.zones) else dict(other.zones)


def in_zone_of(endpoints: Iterable[Hinted], zones: Mapping[str, Zones], shares: Shares) -> Fraction:
    """The part of the traffic that stays in zone; every zone must be named."""
    named: Counter[str] = Counter()
    home: Counter[str] = Counter()
    for endpoint in endpoints:
        named.update(zones[endpoint.name])
        if endpoint.home in zones[endpoint.name]:
            home[endpoint.home] += 1
    kept = (Fraction(w * home[zone], named[zone]) for zone, w in shares.weights.items())
    return sum(kept, Fraction(0)) / shares.total


def _without_hints(endpoints: Sequence[Hinted], shares: Shares) -> Fraction:
    home = sum(shares.weights.get(endpoint.home, 0) for endpoint in endpoints)
    return Fraction(home, shares.total * len(endpoints))


class _State:
    """Hints while they change, counted by home and zones."""

    def __init__(
        self, endpoints: Sequence[Hinted], zones: Mapping[str, Zones], shares: Shares
    ) -> None:
        self.zones = dict(zones)
        self._before = {endpoint.name: endpoint.before for endpoint in endpoints}
        self._homes = {endpoint.name: endpoint.home for endpoint in endpoints}
        self._weights = shares.weights
        self._total = shares.total
        self._endpoints = len(endpoints)
        self._sets = Counter(self.zones.values())
        self._home: Counter[str] = Counter()
        for endpoint in endpoints:
            if endpoint.home in self.zones[endpoint.name]:
                self._home[endpoint.home] += 1

    def within(self, drop: int) -> bool:
        """Whether every zone is named and no endpoint is above the limit to drop, exactly."""
        named = self._named()
        if not all(named[zone] for zone in self._weights):
            return False
        each = {
            zone: Fraction(weight * self._endpoints, named[zone] * self._total)
            for zone, weight in self._weights.items()
        }
        limit = Fraction(100 + drop, 100)
        return all(sum(each.get(zone, 0) for zone in zones) <= limit for zones in self._sets)

    def improve(self, percent: int, movable: set[str], most: int, *, strict: bool) -> bool:
        """Change at most so many endpoints until all are within a limit; whether they are."""
        limit = ((100 + percent) * self._total << _BITS) - strict
        sound: Callable[[], bool] = (
            (lambda: not self._excess(limit)) if strict else (lambda: self.within(percent))
        )
        for _ in range(most):
            if sound():
                return True
            if not self._change_one(limit, movable):
                return False
        return sound()

    def _named(self) -> Counter[str]:
        named: Counter[str] = Counter()
        for zones, count in self._sets.items():
            for zone in zones:
                named[zone] += count
        return named

    def _excess(self, limit: int) -> int:
        return self._measure(limit)[0]

    def _measure(self, limit: int) -> tuple[int, int]:
        """How far all endpoints together are above a limit, and what does not stay in zone."""
        named = self._named()
        sizes: dict[str, int] = {}
        excess = away = 0
        for zone, weight in self._weights.items():
            whole = 100 * weight * self._endpoints << _BITS
            if not named[zone]:
                excess += whole
                continue
            sizes[zone] = -(-whole // named[zone])
            away -= (weight * self._home[zone] << _BITS) // named[zone]
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
        for name in sorted(movable, key=lambda n: (self.zones[n] == self._before[n], n)):
            groups.setdefault((self._homes[name], self.zones[name]), name)
        zones, sets = len(self._weights), len(self._sets)
        if len(groups) * (2 * zones + sets) * (zones + sets) > MOST_COMPARED:
            return False
        best: tuple[int, int, int, str, Zones, Zones] | None = None
        chosen = ""
        for (home, old), name in sorted(groups.items()):
            for new in self._options(old):
                self._swap(home, old, new)
                key = (*self._measure(limit), len(new), home, old, new)
                self._swap(home, new, old)
                if best is None or key < best:
                    best, chosen = key, name
        if best is None or best[0] >= self._excess(limit):
            return False
        *_, home, old, new = best
        self._swap(home, old, new)
        self.zones[chosen] = new
        return True

    def _options(self, old: Zones) -> Iterator[Zones]:
        """One zone more or less, a single zone, or a set that is in use."""
        seen = {old}
        options: list[Zones] = [*((zone,) for zone in self._weights), *self._sets]
        if len(old) < MOST_ZONES:
            options += [tuple(sorted((*old, z))) for z in self._weights if z not in old]
        if len(old) > 1:
            options += [tuple(one for one in old if one != zone) for zone in old]
        for new in options:
            if new not in seen:
                seen.add(new)
                yield new

    def _swap(self, home: str, old: Zones, new: Zones) -> None:
        self._sets[old] -= 1
        if not self._sets[old]:
            del self._sets[old]
        self._sets[new] += 1
        self._home[home] += (home in new) - (home in old)
