"""The best shared hints for a Service that has none: a search over profiles.

A *profile* says how many endpoints serve each zone, and how many of these are its own. A zone of
weight w served by a, o of them its own, keeps w·o/a, whichever the guests are; so the value of a
profile is known before any endpoint is assigned, and what remains is whether the endpoints can be
*packed*: each zone sends w/a to every endpoint that names it, and no endpoint may get more than the
limit. A zone uses its own endpoints first; the *guests* it needs besides are endpoints of other
homes with room for what it sends to each. Endpoints of one home that are for the same zones are one
class. Only with very few endpoints may a zone lend its own: there a large zone can need the one
endpoint of a tiny zone more than the tiny zone does.

Profiles are tried best first. Each zone has candidates in falling order of value; from a profile
that does not fit, every zone in turn is given each of its candidates, until the value is no better
than that of a profile that fits. What does not fit is ordered by its value less twice what could
not be placed, which leads to profiles that nearly fit. The search is only used while a few dozen
endpoints are too few for single zones (n < 6k at 20 %), and it is bounded in packings. What it
misses with very few endpoints is then tried exhaustively: all profiles that are worth more, each
packed in every way.

Sizes and values are multiplied by a common multiple of all counts, so every comparison is one of
whole numbers. Ties are broken by name: the order of the input never matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from heapq import heappop, heappush
from itertools import product
from math import lcm
from typing import NamedTuple

from zonewise.traffic.swaps import Zones

MAX_ZONES = 8
"""How many zones the API lets an endpoint name."""
MAX_CANDIDATES = 18
MAX_PACKINGS = 200
MAX_SEARCHED_ZONES = 16
"""Zones beyond this number add no packings: a decision must end."""
MAX_LENDING = 6
"""Up to this many endpoints a zone may lend its own; beyond, packings cost more than it gains."""
MAX_WAYS = 1000
"""How many profiles, and ways to pack them, are tried exhaustively when the search is over."""
CACHED_SEARCHES = 1 << 12
"""How many searches are cached: after a node event many Services need the same."""

_COMMON_MULTIPLE = lcm(*range(1, MAX_LENDING + 1))

ZoneChoice = tuple[int, int]
"""How many endpoints serve a zone, and how many of them are its own."""
Profile = tuple[ZoneChoice, ...]
Counts = tuple[tuple[str, int], ...]
_EndpointClass = tuple[int, int, int, int]
"""The load of each endpoint, their home, the zones they are for as bits, and their number."""
_Guests = tuple[int, int, int]
"""What a zone sends to each, negated, the zone, and how many it needs."""


class Group(NamedTuple):
    """A number of endpoints in one zone that are for the same zones."""

    home: str
    zones: Zones
    size: int


@dataclass(frozen=True, slots=True)
class BestProfile:
    """The groups of the best profile that fits, and the part of the traffic that stays in zone."""

    groups: tuple[Group, ...]
    in_zone: Fraction


def best_profile(
    own: Mapping[str, int], weights: Mapping[str, int], minimum: Mapping[str, int], add: int
) -> BestProfile | None:
    """The most traffic in zone with every load below the limit to add; None if nothing fits.

    ``own`` has the endpoints of each home, also of those without a share. An endpoint names at most
    ``MAX_ZONES``, so nothing is searched for few endpoints in hundreds of zones.
    """
    if sum(minimum.values()) > MAX_ZONES * sum(own.values()):
        return None
    return _search(_sorted_counts(own), _sorted_counts(weights), _sorted_counts(minimum), add)


def _sorted_counts(numbers: Mapping[str, int]) -> Counts:
    return tuple(sorted(numbers.items()))


@lru_cache(CACHED_SEARCHES)
def _search(own: Counts, weights: Counts, minimum: Counts, add: int) -> BestProfile | None:
    return _Search(dict(own), dict(weights), dict(minimum), add).run()


def packing_budget(zones: int) -> int:
    """How many profiles are packed; those of very many zones take longer, so they are fewer."""
    if zones < 8:
        return MAX_PACKINGS
    budget = MAX_PACKINGS * min(zones, MAX_SEARCHED_ZONES) // 4
    return budget if zones <= 2 * MAX_SEARCHED_ZONES else budget * MAX_SEARCHED_ZONES // zones


def zone_choices(own: int, minimum: int, endpoints: int) -> tuple[ZoneChoice, ...]:
    """The choices of a zone, best first."""
    full = [(count, min(count, own)) for count in count_candidates(own, minimum, endpoints)]
    if endpoints > MAX_LENDING:
        return tuple(full)
    lending = [(count, staying) for count, own_count in full for staying in range(own_count)]
    choices = full + lending
    choices.sort(key=lambda choice: -choice[1] * _COMMON_MULTIPLE // choice[0])
    return tuple(choices)


def count_candidates(own: int, minimum: int, endpoints: int) -> tuple[int, ...]:
    """How many endpoints may serve a zone, best first, thinned where there are many."""
    if own == 0:
        ordered = list(range(endpoints, minimum - 1, -1))
    elif own >= minimum:
        ordered = [*range(own, minimum - 1, -1), *range(own + 1, endpoints + 1)]
    else:
        ordered = list(range(minimum, endpoints + 1))
    if len(ordered) <= MAX_CANDIDATES:
        return tuple(ordered)
    chosen = {*ordered[:6], *range(own - 2, own + 3), endpoints, *ordered[:: len(ordered) // 6]}
    return tuple(count for count in ordered if count in chosen)


class _Search:
    """One search: the numbers of one Service, the open list and the best so far.

    Zones and homes are numbered in the order of their names.
    """

    def __init__(
        self,
        own: Mapping[str, int],
        weights: Mapping[str, int],
        minimum: Mapping[str, int],
        add: int,
    ) -> None:
        self.zones = list(weights)
        silent = [home for home, count in own.items() if count and home not in weights]
        self.homes = self.zones + silent
        self.own = [own.get(zone, 0) for zone in self.zones]
        self.silent: list[_EndpointClass] = [
            (0, number, 0, own[home]) for number, home in enumerate(silent, len(self.zones))
        ]
        self.endpoints = sum(own.values())
        self.choices = [
            zone_choices(own_count, minimum[zone], self.endpoints)
            for zone, own_count in zip(self.zones, self.own, strict=True)
        ]
        common = lcm(*(count for choices in self.choices for count, _ in choices))
        total = sum(weights.values())
        self.scale = 100 * self.endpoints
        self.sizes = [
            {count: self.scale * weights[zone] * common // count for count, _ in choices}
            for zone, choices in zip(self.zones, self.choices, strict=True)
        ]
        self.values = [
            {choice: weights[zone] * choice[1] * common // choice[0] for choice in choices}
            for zone, choices in zip(self.zones, self.choices, strict=True)
        ]
        self.fair = 100 * total * common
        self.limit = (100 + add) * total * common - 1
        self.total_value = total * common
        self.packings = 0
        self.best_value = -1
        self.best_classes: list[_EndpointClass] | None = None

    def run(self) -> BestProfile | None:
        budget = packing_budget(len(self.zones))
        first = tuple(choices[0] for choices in self.choices)
        seen: set[Profile] = {first}
        pending: list[tuple[int, Profile, int]] = []
        self._try(first, self._value(first), pending)
        while pending and not self._is_spent(budget):
            _, profile, value = heappop(pending)
            for neighbour, neighbour_value in self._neighbours(profile, value):
                if neighbour not in seen:
                    seen.add(neighbour)
                    self._try(neighbour, neighbour_value, pending)
                    if self._is_spent(budget):
                        break
        if self.endpoints <= MAX_LENDING:
            placement = _ExhaustivePlacement(self.limit, MAX_WAYS)
            self._try_remaining((), 0, self._value(first), placement)
        if self.best_classes is None:
            return None
        classes = tuple(sorted(map(self._group, self.best_classes)))
        return BestProfile(classes, Fraction(self.best_value, self.total_value))

    def _try_remaining(
        self, profile: Profile, count: int, max_value: int, placement: _ExhaustivePlacement
    ) -> None:
        """Try all profiles that begin like this and are worth more than the best.

        ``count`` is how many endpoints serve their zones, and ``max_value`` what they can be worth.
        """
        index = len(profile)
        if index == len(self.zones):
            if count < self.endpoints:
                return
            classes = placement.place_guests(*self._start_classes(profile))
            if classes is not None:
                self.best_value, self.best_classes = max_value, classes
            return
        values = self.values[index]
        without = max_value - values[self.choices[index][0]]
        for choice, stays in values.items():
            if without + stays <= self.best_value or not placement.take_step():
                break
            self._try_remaining((*profile, choice), count + choice[0], without + stays, placement)

    def _group(self, endpoint_class: _EndpointClass) -> Group:
        _, home, zone_bits, count = endpoint_class
        zones = tuple(zone for number, zone in enumerate(self.zones) if zone_bits >> number & 1)
        return Group(self.homes[home], zones, count)

    def _is_spent(self, budget: int) -> bool:
        if self.best_classes is None and len(self.zones) < MAX_SEARCHED_ZONES:
            budget *= 8
        return self.packings >= budget

    def _value(self, profile: Profile) -> int:
        return sum(values[choice] for values, choice in zip(self.values, profile, strict=True))

    def _neighbours(self, profile: Profile, value: int) -> list[tuple[Profile, int]]:
        neighbours = []
        for index, values in enumerate(self.values):
            without = value - values[profile[index]]
            for choice, stays in values.items():
                if without + stays <= self.best_value:
                    break
                if choice != profile[index]:
                    neighbour = (*profile[:index], choice, *profile[index + 1 :])
                    neighbours.append((neighbour, without + stays))
        return neighbours

    def _try(self, profile: Profile, value: int, pending: list[tuple[int, Profile, int]]) -> None:
        if value <= self.best_value:
            return
        self.packings += 1
        start, guests = self._start_classes(profile)
        classes = start.copy()
        unplaced = _place_guests(classes, guests, self.limit, self.fair, emptiest=True)
        if unplaced:
            fullest = start.copy()
            unplaced_fullest = _place_guests(fullest, guests, self.limit, self.fair, emptiest=False)
            if unplaced_fullest < unplaced:
                unplaced, classes = unplaced_fullest, fullest
        if unplaced:
            heappush(pending, (2 * unplaced - value * self.scale, profile, value))
        else:
            self.best_value, self.best_classes = value, classes

    def _start_classes(self, profile: Profile) -> tuple[list[_EndpointClass], list[_Guests]]:
        """The classes while every zone has its own endpoints only, and the guests it needs."""
        classes = self.silent.copy()
        guests: list[_Guests] = []
        for zone, (count, staying) in enumerate(profile):
            size, own_count = self.sizes[zone][count], self.own[zone]
            if staying:
                classes.append((size, zone, 1 << zone, staying))
            if own_count > staying:
                classes.append((0, zone, 0, own_count - staying))
            if count > staying:
                guests.append((-size, zone, count - staying))
        guests.sort()
        return classes, guests


def _place_guests(
    classes: list[_EndpointClass], guests: list[_Guests], limit: int, fair: int, *, emptiest: bool
) -> int:
    """Place all guests, those of the largest size first, in the emptiest or the fullest classes.

    Returns what could not be placed: the sizes that are left over, and a fair load for every
    endpoint that is for no zone.
    """
    unplaced = 0
    for negative, zone, needed in guests:
        classes.sort(reverse=not emptiest)
        room, missing = limit + negative, needed
        for index in range(len(classes)):
            load, home, zone_bits, count = classes[index]
            if load > room:
                if emptiest:
                    break
                continue
            if home == zone or zone_bits.bit_count() >= MAX_ZONES:
                continue
            served = (load - negative, home, zone_bits | 1 << zone)
            if count > missing:
                classes[index] = (load, home, zone_bits, count - missing)
                classes.append((*served, missing))
                missing = 0
                break
            classes[index] = (*served, count)
            missing -= count
            if not missing:
                break
        unplaced -= negative * missing
    for _, _, zone_bits, count in classes:
        if not zone_bits:
            unplaced += fair * count
    return unplaced


class _ExhaustivePlacement:
    """Places guests in every possible way, for a few endpoints; bounded by a number of ways."""

    def __init__(self, limit: int, ways: int) -> None:
        self._limit = limit
        self._remaining = ways

    def take_step(self) -> bool:
        """Count one more way; False once the bound is reached."""
        self._remaining -= 1
        return self._remaining >= 0

    def place_guests(
        self, classes: list[_EndpointClass], guests: list[_Guests]
    ) -> list[_EndpointClass] | None:
        """The classes with all guests placed and every endpoint for a zone, if that is possible."""
        unnamed = sum(count for _, _, zone_bits, count in classes if not zone_bits)
        if unnamed > sum(needed for _, _, needed in guests):
            return None
        if not guests:
            return classes
        (negative, zone, needed), *later = guests
        room = self._limit + negative
        hosts: list[_EndpointClass] = []
        others: list[_EndpointClass] = []
        for endpoint_class in classes:
            load, home, zone_bits, _ = endpoint_class
            fits = home != zone and load <= room and zone_bits.bit_count() < MAX_ZONES
            (hosts if fits else others).append(endpoint_class)
        for parts in product(*(range(min(count, needed), -1, -1) for *_, count in hosts)):
            if sum(parts) != needed:
                continue
            if not self.take_step():
                return None
            classes_after = others.copy()
            for (load, home, zone_bits, count), part in zip(hosts, parts, strict=True):
                if part:
                    classes_after.append((load - negative, home, zone_bits | 1 << zone, part))
                if count > part:
                    classes_after.append((load, home, zone_bits, count - part))
            placed = self.place_guests(classes_after, later)
            if placed is not None:
                return placed
        return None
