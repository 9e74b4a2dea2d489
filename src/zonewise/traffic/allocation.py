"""Which endpoint is for which zone: the arithmetic of mode Auto.

Everything is counted in whole endpoints and integer weights. A zone with weight w that is served
by a endpoints, k of them its own, keeps w·k/a of its traffic in the zone.

``spread`` starts from nothing and keeps as much traffic in its zone as any assignment to single
zones can. Let e be a zone's own endpoints and m the fewest it needs. Own endpoints come first, so
the zone keeps w·min(1, e/a); that is flat while a <= e and falls, ever more slowly, beyond. Hence

* a zone with too few own endpoints (0 < e < m) gets exactly m, one more would only dilute it;
* a zone with enough may have anything from m to e at no loss, and one with none (e = 0) anything
  from m up: within these ranges endpoints go, one by one, to the zone with the highest overload,
  which gives the lowest worst overload;
* what is left then comes from places that send no traffic. A falling curve that flattens is cut
  least in one place, so all of it goes to the one zone that loses least.

No flow and no search: the ranges are the proof of optimality, and a test compares with all
possible assignments of small clusters.

``retain`` starts from existing hints. While new endpoints alone can keep every zone within the
limit, no hint changes: they fill zones that are short, the others serve their own zone. A hint for
a zone that sends no traffic any more stays as well. That zone may come back, and pods on machines
that just disappeared are the wrong ones to send more traffic to. (Hints for a zone that no node has
any more are left out by ``hints``.) Otherwise every zone is brought to the aim. The number of moves
is what all zones together lack, less the new endpoints: no method needs fewer. Which endpoint moves
is chosen by what the traffic loses: first endpoints that return to their own zone, then guests,
then residents; each time from the zone with the lowest overload.

Ties are broken by name, so the order of the input never matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class ZonedEndpoint(NamedTuple):
    """A ready endpoint: its unique name, its zone, and the zone it was for ("" if none)."""

    name: str
    zone: str
    before: str = ""


Weights = Mapping[str, int]
Counts = Mapping[str, int]


def spread(endpoints: Iterable[ZonedEndpoint], weights: Weights, minimum: Counts) -> dict[str, str]:
    """The zone each endpoint is for, from nothing; the minima must fit."""
    ordered = sorted(endpoints)
    by_zone: dict[str, list[ZonedEndpoint]] = {}
    for endpoint in ordered:
        by_zone.setdefault(endpoint.zone, []).append(endpoint)
    own = {zone: len(by_zone.get(zone, ())) for zone in sorted(weights)}
    assigned = quotas(own, weights, minimum, len(ordered))
    needs = {zone: max(0, count - own[zone]) for zone, count in assigned.items()}
    return _settle(by_zone, assigned, needs)


def quotas(own: Counts, weights: Weights, minimum: Counts, endpoints: int) -> dict[str, int]:
    """How many endpoints each zone gets, given how many it has."""
    zones = sorted(weights)
    assigned = {zone: minimum[zone] for zone in zones}
    room = {zone: max(0, own[zone] - minimum[zone]) if own[zone] else endpoints for zone in zones}
    left = endpoints - sum(assigned.values())
    open_zones = [zone for zone in zones if room[zone]]
    while left and open_zones:
        zone = neediest(open_zones, weights, assigned)
        assigned[zone] += 1
        room[zone] -= 1
        left -= 1
        if not room[zone]:
            open_zones.remove(zone)
    if left:
        assigned[_least_diluted(zones, own, weights, assigned, left)] += left
    return assigned


def _least_diluted(
    zones: list[str], own: Counts, weights: Weights, assigned: Counts, extra: int
) -> str:
    """The zone that loses least by ``extra`` guests: w·e/a - w·e/(a + extra), as a fraction."""
    best, loss, over = "", 0, 1
    for zone in zones:
        count = assigned[zone]
        this, under = weights[zone] * own[zone] * extra, count * (count + extra)
        if not best or this * over < loss * under:
            best, loss, over = zone, this, under
    return best


def _settle(
    by_zone: Mapping[str, list[ZonedEndpoint]], assigned: Counts, needs: dict[str, int]
) -> dict[str, str]:
    """Names for the counts; an endpoint with a fitting hint keeps it."""
    result: dict[str, str] = {}
    leaving: list[str] = []
    for zone in sorted(by_zone):
        spare = len(by_zone[zone]) - assigned.get(zone, 0)
        for name, _, before in by_zone[zone]:
            if spare > 0 and before != zone and needs.get(before, 0):
                result[name] = before
                needs[before] -= 1
                spare -= 1
        rest = [placed for placed in by_zone[zone] if placed.name not in result]
        rest.sort(key=lambda placed: placed.before != zone)
        staying = len(rest) - max(0, spare)
        result.update((placed.name, zone) for placed in rest[:staying])
        leaving += [placed.name for placed in rest[staying:]]
    takers = (zone for zone, need in needs.items() for _ in range(need))
    result.update(zip(leaving, takers, strict=True))
    return result


def retain(
    endpoints: Iterable[ZonedEndpoint], weights: Weights, *, keep: Counts, aim: Counts
) -> dict[str, str] | None:
    """The zone each endpoint is for, from the existing hints; None if no zone can be.

    ``keep`` are the fewest endpoints per zone that hints may stay with, ``aim`` the fewest to reach
    when they may not.
    """
    state = _Hints(endpoints, weights)
    if state.lacking(keep) <= state.new:
        state.fill(keep)
        state.settle()
        return state.result
    count = len(state.result) + state.new
    target = next((goal for goal in (aim, keep) if sum(goal.values()) <= count), None)
    if target is None:
        return None
    state.fill(target)
    state.settle()
    state.move(target)
    return state.result


class _Hints:
    """Hints while they change: which zone each endpoint is for, and how many each zone has."""

    __slots__ = ("count", "fresh", "held", "new", "result", "weights", "zones")

    def __init__(self, endpoints: Iterable[ZonedEndpoint], weights: Weights) -> None:
        self.weights = weights
        self.zones = sorted(weights)
        self.count = dict.fromkeys(self.zones, 0)
        self.result: dict[str, str] = {}
        self.fresh: dict[str, list[str]] = {}
        self.held: dict[str, dict[str, list[str]]] = {}
        """Names by the zone they are for and the zone they are in, last name first."""
        self.new = 0
        for name, zone, before in sorted(endpoints, reverse=True):
            if not before:
                self.fresh.setdefault(zone, []).append(name)
                self.new += 1
                continue
            self.held.setdefault(before, {}).setdefault(zone, []).append(name)
            self.result[name] = before
            if before in self.count:
                self.count[before] += 1

    def lacking(self, minimum: Counts) -> int:
        """How many endpoints all zones together lack."""
        return sum(max(0, minimum[zone] - self.count[zone]) for zone in self.zones)

    def _short(self, minimum: Counts) -> list[str]:
        return [zone for zone in self.zones if self.count[zone] < minimum[zone]]

    def _give(self, source: str, zone: str) -> None:
        """One new endpoint that is in ``source`` becomes one for ``zone``."""
        name = self.fresh[source].pop()
        if not self.fresh[source]:
            del self.fresh[source]
        self.new -= 1
        self.result[name] = zone
        self.count[zone] += 1
        self.held.setdefault(zone, {}).setdefault(source, []).append(name)

    def fill(self, minimum: Counts) -> None:
        """New endpoints go where they are lacking: home first, then to the neediest zone."""
        for zone in self._short(minimum):
            while zone in self.fresh and self.count[zone] < minimum[zone]:
                self._give(zone, zone)
        while self.fresh and (short := self._short(minimum)):
            self._give(self._spare_place(), neediest(short, self.weights, self.count))

    def _spare_place(self) -> str:
        """Where a new endpoint is missed least: in a place that sends nothing, else the fullest."""
        silent = [place for place in self.fresh if place not in self.weights]
        if silent:
            return min(silent)
        after = {place: self.count[place] + len(names) for place, names in self.fresh.items()}
        return _fullest(sorted(after), self.weights, after)

    def settle(self) -> None:
        """What is new and not needed elsewhere serves its own zone, or the neediest."""
        for place in [place for place in self.fresh if place in self.weights]:
            while place in self.fresh:
                self._give(place, place)
        for place in sorted(self.fresh):
            while place in self.fresh:
                self._give(place, neediest(self.zones, self.weights, self.count))

    def move(self, minimum: Counts) -> None:
        """Bring every zone to the minimum, which must fit, with the fewest moves."""
        while short := self._short(minimum):
            zone = neediest(short, self.weights, self.count)
            giver, place = self._donor(zone, minimum)
            name = self.held[giver][place].pop()
            if not self.held[giver][place]:
                del self.held[giver][place]
            if giver in self.count:
                self.count[giver] -= 1
            self.count[zone] += 1
            self.result[name] = zone
            self.held.setdefault(zone, {}).setdefault(place, []).append(name)

    def _donor(self, zone: str, minimum: Counts) -> tuple[str, str]:
        """The zone that gives an endpoint to ``zone``, and the place this endpoint is in."""
        givers = [
            giver
            for giver in sorted(self.held)
            if self.held[giver] and self.count.get(giver, 1) > minimum.get(giver, 0)
        ]
        home = [giver for giver in givers if zone in self.held[giver]]
        if home:
            return self._roomiest(home), zone
        guests = [giver for giver in givers if self.held[giver].keys() != {giver}]
        if guests:
            giver = self._roomiest(guests)
            return giver, min(place for place in self.held[giver] if place != giver)
        giver = self._roomiest(givers)
        return giver, giver

    def _roomiest(self, givers: list[str]) -> str:
        silent = [giver for giver in givers if giver not in self.weights]
        return silent[0] if silent else _fullest(givers, self.weights, self.count)


def neediest(zones: Iterable[str], weights: Weights, count: Counts) -> str:
    """The zone with the highest overload, w/a; the first of equals."""
    best, weight, size = "", 0, 1
    for zone in zones:
        this, there = weights[zone], count[zone]
        ahead = this * size - weight * there
        if ahead > 0 or (not size and not there and this > weight):
            best, weight, size = zone, this, there
    return best


def _fullest(zones: Iterable[str], weights: Weights, count: Counts) -> str:
    """The zone with the lowest overload; the first of equals."""
    best, weight, size = "", 1, 0
    for zone in zones:
        this, there = weights[zone], count[zone]
        if not best or this * size < weight * there:
            best, weight, size = zone, this, there
    return best
