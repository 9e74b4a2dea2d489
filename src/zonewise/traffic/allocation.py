"""Which endpoint is for which zone: the arithmetic of mode Auto.

Everything is counted in whole endpoints and integer weights. A zone with weight w that is served
by a endpoints, k of them its own, keeps w·k/a of its traffic in the zone. The zone that an endpoint
is in is its *home*; it may be a zone that sends no traffic.

``spread_endpoints`` starts from nothing and keeps as much traffic in its zone as any assignment to
single zones can. Let e be a zone's own endpoints and m the fewest it needs. Own endpoints come
first, so the zone keeps w·min(1, e/a); that is flat while a <= e and falls, ever more slowly,
beyond. Hence

* a zone with too few own endpoints (0 < e < m) gets exactly m, one more would only dilute it;
* a zone with enough may have anything from m to e at no loss, and one with none (e = 0) anything
  from m up: within these ranges endpoints go, one by one, to the zone with the highest overload,
  which gives the lowest worst overload;
* the endpoints that remain are in zones that send no traffic. The more guests a zone has, the less
  one more costs it, so all of them go to the one zone that loses least.

The ranges are the proof of optimality, so no search is needed; a test compares with all possible
assignments of small clusters.

``retain_hints`` starts from existing hints. While new endpoints alone can keep every zone within
the limit, no hint changes: they fill zones that are short, the others serve their own zone. A hint
for a zone that sends no traffic any more stays as well: that zone may come back, and pods on
machines that just disappeared are the wrong ones to send more traffic to. (Hints for a zone that no
node has any more are left out by ``hints``.) Otherwise every zone is brought to the minimum to add.
The number of moves is what all zones together lack, less the new endpoints: no method needs fewer.
Which endpoint moves is chosen by what the traffic loses: first endpoints that return to their own
zone, then guests, then residents; each time from the zone with the lowest overload.

Ties are broken by name, so the order of the input never matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class ZonedEndpoint(NamedTuple):
    """A ready endpoint: its unique name, its zone, and the zone it was for ("" if none)."""

    name: str
    zone: str
    previous_zone: str = ""


Weights = Mapping[str, int]
Counts = Mapping[str, int]


def spread_endpoints(
    endpoints: Iterable[ZonedEndpoint], weights: Weights, minimum: Counts
) -> dict[str, str]:
    """The zone each endpoint is for, without regard to hints; the minima must fit."""
    ordered = sorted(endpoints)
    by_zone: dict[str, list[ZonedEndpoint]] = {}
    for endpoint in ordered:
        by_zone.setdefault(endpoint.zone, []).append(endpoint)
    own = {zone: len(by_zone.get(zone, ())) for zone in sorted(weights)}
    assigned = zone_quotas(own, weights, minimum, len(ordered))
    needs = {zone: max(0, count - own[zone]) for zone, count in assigned.items()}
    return _assign_names(by_zone, assigned, needs)


def zone_quotas(own: Counts, weights: Weights, minimum: Counts, endpoints: int) -> dict[str, int]:
    """How many endpoints each zone gets, given how many it has."""
    zones = sorted(weights)
    assigned = {zone: minimum[zone] for zone in zones}
    room = {zone: max(0, own[zone] - minimum[zone]) if own[zone] else endpoints for zone in zones}
    remaining = endpoints - sum(assigned.values())
    open_zones = [zone for zone in zones if room[zone]]
    while remaining and open_zones:
        zone = neediest_zone(open_zones, weights, assigned)
        assigned[zone] += 1
        room[zone] -= 1
        remaining -= 1
        if not room[zone]:
            open_zones.remove(zone)
    if remaining:
        assigned[_least_diluted(zones, own, weights, assigned, remaining)] += remaining
    return assigned


def _least_diluted(
    zones: list[str], own: Counts, weights: Weights, assigned: Counts, extra: int
) -> str:
    """The zone that loses least by ``extra`` guests: w·e/a - w·e/(a + extra), as a fraction."""
    best, best_loss, best_divisor = "", 0, 1
    for zone in zones:
        count = assigned[zone]
        loss, divisor = weights[zone] * own[zone] * extra, count * (count + extra)
        if not best or loss * best_divisor < best_loss * divisor:
            best, best_loss, best_divisor = zone, loss, divisor
    return best


def _assign_names(
    by_zone: Mapping[str, list[ZonedEndpoint]], assigned: Counts, needs: dict[str, int]
) -> dict[str, str]:
    """The zone of each endpoint, given how many each zone gets; a hint that fits stays."""
    result: dict[str, str] = {}
    leaving: list[str] = []
    for zone in sorted(by_zone):
        spare = len(by_zone[zone]) - assigned.get(zone, 0)
        for name, _, previous_zone in by_zone[zone]:
            if spare > 0 and previous_zone != zone and needs.get(previous_zone, 0):
                result[name] = previous_zone
                needs[previous_zone] -= 1
                spare -= 1
        remaining = [endpoint for endpoint in by_zone[zone] if endpoint.name not in result]
        remaining.sort(key=lambda endpoint: endpoint.previous_zone != zone)
        staying = len(remaining) - max(0, spare)
        result.update((endpoint.name, zone) for endpoint in remaining[:staying])
        leaving += [endpoint.name for endpoint in remaining[staying:]]
    takers = (zone for zone, need in needs.items() for _ in range(need))
    result.update(zip(leaving, takers, strict=True))
    return result


def retain_hints(
    endpoints: Iterable[ZonedEndpoint],
    weights: Weights,
    *,
    minimum_to_keep: Counts,
    minimum_to_add: Counts,
) -> dict[str, str] | None:
    """The zone each endpoint is for, from the existing hints; None if no hints are possible.

    Hints stay while every zone has its minimum to keep; otherwise zones are brought to the minimum
    to add.
    """
    state = _ChangingHints(endpoints, weights)
    if state.count_lacking(minimum_to_keep) <= state.new_count:
        state.fill(minimum_to_keep)
        state.assign_rest()
        return state.result
    count = len(state.result) + state.new_count
    minimum = minimum_to_add if sum(minimum_to_add.values()) <= count else minimum_to_keep
    if sum(minimum.values()) > count:
        return None
    state.fill(minimum)
    state.assign_rest()
    state.move(minimum)
    return state.result


class _ChangingHints:
    """Hints while they change: which zone each endpoint is for, and how many each zone has."""

    __slots__ = ("count", "names_by_zone", "new_count", "new_names", "result", "weights", "zones")

    def __init__(self, endpoints: Iterable[ZonedEndpoint], weights: Weights) -> None:
        self.weights = weights
        self.zones = sorted(weights)
        self.count = dict.fromkeys(self.zones, 0)
        self.result: dict[str, str] = {}
        self.new_names: dict[str, list[str]] = {}
        self.names_by_zone: dict[str, dict[str, list[str]]] = {}
        """Names by the zone they are for and the zone they are in, last name first."""
        self.new_count = 0
        for name, zone, previous_zone in sorted(endpoints, reverse=True):
            if not previous_zone:
                self.new_names.setdefault(zone, []).append(name)
                self.new_count += 1
                continue
            self.names_by_zone.setdefault(previous_zone, {}).setdefault(zone, []).append(name)
            self.result[name] = previous_zone
            if previous_zone in self.count:
                self.count[previous_zone] += 1

    def count_lacking(self, minimum: Counts) -> int:
        """How many endpoints all zones together lack."""
        return sum(max(0, minimum[zone] - self.count[zone]) for zone in self.zones)

    def _short_zones(self, minimum: Counts) -> list[str]:
        return [zone for zone in self.zones if self.count[zone] < minimum[zone]]

    def _assign_new(self, home: str, zone: str) -> None:
        """Assign one new endpoint that is in ``home`` to ``zone``."""
        name = self.new_names[home].pop()
        if not self.new_names[home]:
            del self.new_names[home]
        self.new_count -= 1
        self.result[name] = zone
        self.count[zone] += 1
        self.names_by_zone.setdefault(zone, {}).setdefault(home, []).append(name)

    def fill(self, minimum: Counts) -> None:
        """Assign new endpoints to zones that are short: their home first, then the neediest."""
        for zone in self._short_zones(minimum):
            while zone in self.new_names and self.count[zone] < minimum[zone]:
                self._assign_new(zone, zone)
        while self.new_names and (short := self._short_zones(minimum)):
            self._assign_new(self._spare_home(), neediest_zone(short, self.weights, self.count))

    def _spare_home(self) -> str:
        """The home that needs its new endpoints least: one without traffic, else the fullest."""
        silent_homes = [home for home in self.new_names if home not in self.weights]
        if silent_homes:
            return min(silent_homes)
        counts = {home: self.count[home] + len(names) for home, names in self.new_names.items()}
        return _fullest_zone(sorted(counts), self.weights, counts)

    def assign_rest(self) -> None:
        """Assign the other new endpoints: to their home, or else to the neediest zone."""
        for home in [home for home in self.new_names if home in self.weights]:
            while home in self.new_names:
                self._assign_new(home, home)
        for home in sorted(self.new_names):
            while home in self.new_names:
                self._assign_new(home, neediest_zone(self.zones, self.weights, self.count))

    def move(self, minimum: Counts) -> None:
        """Bring every zone to the minimum, which must fit, with the fewest moves."""
        while short := self._short_zones(minimum):
            zone = neediest_zone(short, self.weights, self.count)
            giver, home = self._donor(zone, minimum)
            name = self.names_by_zone[giver][home].pop()
            if not self.names_by_zone[giver][home]:
                del self.names_by_zone[giver][home]
            if giver in self.count:
                self.count[giver] -= 1
            self.count[zone] += 1
            self.result[name] = zone
            self.names_by_zone.setdefault(zone, {}).setdefault(home, []).append(name)

    def _donor(self, zone: str, minimum: Counts) -> tuple[str, str]:
        """The zone that gives an endpoint to ``zone``, and the home of this endpoint."""
        givers = [
            giver
            for giver in sorted(self.names_by_zone)
            if self.names_by_zone[giver] and self.count.get(giver, 1) > minimum.get(giver, 0)
        ]
        returning = [giver for giver in givers if zone in self.names_by_zone[giver]]
        if returning:
            return self._roomiest(returning), zone
        with_guests = [giver for giver in givers if self.names_by_zone[giver].keys() != {giver}]
        if with_guests:
            giver = self._roomiest(with_guests)
            return giver, min(home for home in self.names_by_zone[giver] if home != giver)
        giver = self._roomiest(givers)
        return giver, giver

    def _roomiest(self, givers: list[str]) -> str:
        silent = [giver for giver in givers if giver not in self.weights]
        return silent[0] if silent else _fullest_zone(givers, self.weights, self.count)


def neediest_zone(zones: Iterable[str], weights: Weights, count: Counts) -> str:
    """The zone with the highest overload, w/a; the first of equals."""
    best, best_weight, best_count = "", 0, 1
    for zone in zones:
        zone_weight, zone_count = weights[zone], count[zone]
        ahead = zone_weight * best_count - best_weight * zone_count
        if ahead > 0 or (not best_count and not zone_count and zone_weight > best_weight):
            best, best_weight, best_count = zone, zone_weight, zone_count
    return best


def _fullest_zone(zones: Iterable[str], weights: Weights, count: Counts) -> str:
    """The zone with the lowest overload; the first of equals."""
    best, best_weight, best_count = "", 1, 0
    for zone in zones:
        zone_weight, zone_count = weights[zone], count[zone]
        if not best or zone_weight * best_count < best_weight * zone_count:
            best, best_weight, best_count = zone, zone_weight, zone_count
    return best
