"""The best shared hints for a Service that has none: a search over profiles.

A *profile* says how many endpoints serve each zone, and how many of these are its own. A zone of
weight w served by a, o of them its own, keeps w·o/a, whoever the guests are; so the value of a
profile is known before anybody is assigned, and what remains is whether the endpoints can be
*packed*: each zone sends w/a to every endpoint that names it, and no endpoint may get more than the
limit. A zone uses its own endpoints first. Only with very few endpoints may it lend them: there a
large zone can need the one endpoint of a tiny zone more than the tiny zone does.

Profiles are tried best first. Each zone has candidates in falling order of value; from a profile
that does not fit, every zone in turn is given each of its candidates, until the value is no better
than that of a profile that fits. What does not fit is ordered by its value less twice what could
not be placed, which leads to profiles that nearly fit. The search is only asked while a few dozen
endpoints are too few for single zones (n < 6k at 20 %), and it is bounded in packings.

Sizes and values are multiplied by a common multiple of all counts, so every comparison is one of
whole numbers. Names decide what remains equal: the order of the input never matters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from math import lcm
from typing import NamedTuple

from zonewise.traffic.exchange import Zones

MOST_ZONES = 8
"""How many zones the API lets an endpoint name."""
MOST_CANDIDATES = 18
PACKINGS = 200
MOST_SEARCHED = 16
"""From so many zones on the search is given no more packings: a decision must end."""
FEW = 6
"""Up to so many endpoints a zone may lend its own: beyond, it costs more packings than it gains."""

Choice = tuple[int, int]
"""How many endpoints serve a zone, and how many of them are its own."""
Profile = tuple[Choice, ...]


class Group(NamedTuple):
    """So many endpoints in one zone that are for the same zones."""

    home: str
    zones: Zones
    size: int


@dataclass(frozen=True, slots=True)
class Found:
    """The groups of the best profile that fits, and the part of the traffic that stays in zone."""

    groups: tuple[Group, ...]
    in_zone: Fraction


def best_profile(
    own: Mapping[str, int], weights: Mapping[str, int], minimum: Mapping[str, int], add: int
) -> Found | None:
    """The most traffic in zone with every load below the limit to add; None if nothing fits.

    ``own`` are the endpoints in each place, those without a share included.
    """
    return _Search(own, weights, minimum, add).run()


def choices(own: int, minimum: int, endpoints: int) -> tuple[Choice, ...]:
    """What a zone may have, best first."""
    full = [(count, min(count, own)) for count in candidates(own, minimum, endpoints)]
    if endpoints > FEW:
        return tuple(full)
    lending = [(count, mine) for count, most in full for mine in range(most)]
    return tuple(sorted(full + lending, key=lambda choice: Fraction(-choice[1], choice[0])))


def candidates(own: int, minimum: int, endpoints: int) -> tuple[int, ...]:
    """How many endpoints may serve a zone, best first, thinned where there are many."""
    if own == 0:
        ordered = list(range(endpoints, minimum - 1, -1))
    elif own >= minimum:
        ordered = [*range(own, minimum - 1, -1), *range(own + 1, endpoints + 1)]
    else:
        ordered = list(range(minimum, endpoints + 1))
    if len(ordered) <= MOST_CANDIDATES:
        return tuple(ordered)
    wanted = {*ordered[:6], *range(own - 2, own + 3), endpoints, *ordered[:: len(ordered) // 6]}
    return tuple(count for count in ordered if count in wanted)


class _Search:
    """One search: the numbers of one Service, the open list and the best so far."""

    def __init__(
        self,
        own: Mapping[str, int],
        weights: Mapping[str, int],
        minimum: Mapping[str, int],
        add: int,
    ) -> None:
        self.zones = sorted(weights)
        self.own = [own.get(zone, 0) for zone in self.zones]
        self.silent = sorted(place for place in own if place not in weights and own[place])
        self.places = own
        self.endpoints = sum(own.values())
        self.choices = [
            choices(there, minimum[zone], self.endpoints)
            for zone, there in zip(self.zones, self.own, strict=True)
        ]
        common = lcm(*(count for known in self.choices for count, _ in known))
        total = sum(weights.values())
        self.scale = 100 * self.endpoints
        self.sizes = [
            {count: self.scale * weights[zone] * common // count for count, _ in known}
            for zone, known in zip(self.zones, self.choices, strict=True)
        ]
        self.values = [
            {choice: weights[zone] * choice[1] * common // choice[0] for choice in known}
            for zone, known in zip(self.zones, self.choices, strict=True)
        ]
        self.fair = 100 * total * common
        self.limit = (100 + add) * total * common - 1
        self.whole = total * common
        self.packings = 0
        self.best = -1
        self.fit: list[Group] | None = None

    def run(self) -> Found | None:
        zones = len(self.zones)
        budget = PACKINGS * min(zones, MOST_SEARCHED) // 4 if zones >= 8 else PACKINGS
        first = tuple(known[0] for known in self.choices)
        seen: set[Profile] = {first}
        waiting: list[tuple[int, Profile, int]] = []
        self._try(first, self._value(first), waiting)
        while waiting and not self._spent(budget):
            _, profile, value = heappop(waiting)
            for following, worth in self._neighbours(profile, value):
                if following not in seen:
                    seen.add(following)
                    self._try(following, worth, waiting)
                    if self._spent(budget):
                        break
        if self.fit is None:
            return None
        return Found(tuple(sorted(self.fit)), Fraction(self.best, self.whole))

    def _spent(self, budget: int) -> bool:
        if self.fit is None and len(self.zones) < MOST_SEARCHED:
            budget *= 8
        return self.packings >= budget

    def _value(self, profile: Profile) -> int:
        return sum(values[choice] for values, choice in zip(self.values, profile, strict=True))

    def _neighbours(self, profile: Profile, value: int) -> list[tuple[Profile, int]]:
        found = []
        for index, values in enumerate(self.values):
            without = value - values[profile[index]]
            for choice in self.choices[index]:
                worth = without + values[choice]
                if worth <= self.best:
                    break
                if choice != profile[index]:
                    found.append(((*profile[:index], choice, *profile[index + 1 :]), worth))
        return found

    def _try(self, profile: Profile, value: int, waiting: list[tuple[int, Profile, int]]) -> None:
        if value <= self.best:
            return
        self.packings += 1
        unplaced, groups = self._pack(profile, emptiest=True)
        if unplaced:
            less, others = self._pack(profile, emptiest=False)
            unplaced, groups = min((unplaced, groups), (less, others), key=lambda pair: pair[0])
        if unplaced:
            heappush(waiting, (2 * unplaced - value * self.scale, profile, value))
        else:
            self.best, self.fit = value, groups

    def _pack(self, profile: Profile, *, emptiest: bool) -> tuple[int, list[Group]]:
        """What could not be placed, and who is for whom."""
        groups: list[tuple[int, str, Zones, int]] = []
        guests: list[tuple[int, str, int]] = []
        for zone, there, (count, staying), sizes in zip(
            self.zones, self.own, profile, self.sizes, strict=True
        ):
            if staying:
                groups.append((sizes[count], zone, (zone,), staying))
            if there > staying:
                groups.append((0, zone, (), there - staying))
            if count > staying:
                guests.append((-sizes[count], zone, count - staying))
        groups += [(0, place, (), self.places[place]) for place in self.silent]
        unplaced = 0
        for negative, zone, wanted in sorted(guests):
            groups, left = self._seat(groups, -negative, zone, wanted, emptiest=emptiest)
            unplaced -= negative * left
        unplaced += self.fair * sum(count for _, _, zones, count in groups if not zones)
        return unplaced, [Group(home, tuple(sorted(zones)), n) for _, home, zones, n in groups]

    def _seat(
        self,
        groups: Sequence[tuple[int, str, Zones, int]],
        size: int,
        zone: str,
        wanted: int,
        *,
        emptiest: bool,
    ) -> tuple[list[tuple[int, str, Zones, int]], int]:
        """The groups after a zone has taken its guests from them, and how many it still lacks."""
        room = self.limit - size
        order = sorted(groups) if emptiest else sorted(groups, key=lambda g: (-g[0], g[1], g[2]))
        after = []
        for group in order:
            load, home, zones, count = group
            if not wanted or load > room or home == zone or len(zones) >= MOST_ZONES:
                after.append(group)
                continue
            taken = min(wanted, count)
            wanted -= taken
            after.append((load + size, home, (*zones, zone), taken))
            if count > taken:
                after.append((load, home, zones, count - taken))
        return after, wanted
