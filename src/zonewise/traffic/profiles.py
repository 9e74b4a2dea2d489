"""The best shared hints for a Service that has none: a search over profiles.

A *profile* says how many endpoints serve each zone, and how many of these are its own. A zone of
weight w served by a, o of them its own, keeps w·o/a, whichever the guests are; so the value of a
profile is known before any endpoint is assigned, and what remains is whether the endpoints can be
*packed*: each zone sends w/a to every endpoint that names it, and no endpoint may get more than the
limit. A zone uses its own endpoints first; the guests it needs besides come from other places with
room for what it sends to each. Endpoints in one place and for the same zones are one class. Only
with very few endpoints may a zone lend its own: there a large zone can need the one endpoint of a
tiny zone more than the tiny zone does.

Profiles are tried best first. Each zone has candidates in falling order of value; from a profile
that does not fit, every zone in turn is given each of its candidates, until the value is no better
than that of a profile that fits. What does not fit is ordered by its value less twice what could
not be placed, which leads to profiles that nearly fit. The search is only used while a few dozen
endpoints are too few for single zones (n < 6k at 20 %), and it is bounded in packings. What it
misses with very few endpoints is then looked for one by one: all profiles that are worth more, each
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

from zonewise.traffic.exchange import Zones

MOST_ZONES = 8
"""How many zones the API lets an endpoint name."""
MOST_CANDIDATES = 18
PACKINGS = 200
MOST_SEARCHED = 16
"""From so many zones on the search is given no more packings: a decision must end."""
FEW = 6
"""Up to so many endpoints a zone may lend its own: beyond, it costs more packings than it gains."""
WAYS = 1000
"""So many profiles and ways to pack them are tried for these few when the search is over."""
KNOWN = 1 << 12
"""How many searches are cached: after a node event many Services need the same."""

_FINE = lcm(*range(1, FEW + 1))

ZoneChoice = tuple[int, int]
"""How many endpoints serve a zone, and how many of them are its own."""
Profile = tuple[ZoneChoice, ...]
Counts = tuple[tuple[str, int], ...]
_SeatClass = tuple[int, int, int, int]
"""The load of each, the place they are in, the zones they are for as bits, how many they are."""
_Guests = tuple[int, int, int]
"""What a zone sends to each, negated, the zone, and how many it needs."""


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

    ``own`` are the endpoints in each place, those without a share included. As an endpoint names
    at most ``MOST_ZONES``, few of them in hundreds of zones are not searched at all.
    """
    if sum(minimum.values()) > MOST_ZONES * sum(own.values()):
        return None
    return _searched(_counts(own), _counts(weights), _counts(minimum), add)


def _counts(numbers: Mapping[str, int]) -> Counts:
    return tuple(sorted(numbers.items()))


@lru_cache(KNOWN)
def _searched(own: Counts, weights: Counts, minimum: Counts, add: int) -> Found | None:
    return _Search(dict(own), dict(weights), dict(minimum), add).run()


def packings(zones: int) -> int:
    """How many profiles are packed; one of many zones takes longer, so these are fewer again."""
    if zones < 8:
        return PACKINGS
    most = PACKINGS * min(zones, MOST_SEARCHED) // 4
    return most if zones <= 2 * MOST_SEARCHED else most * MOST_SEARCHED // zones


def choices(own: int, minimum: int, endpoints: int) -> tuple[ZoneChoice, ...]:
    """What a zone may have, best first."""
    full = [(count, min(count, own)) for count in candidates(own, minimum, endpoints)]
    if endpoints > FEW:
        return tuple(full)
    lending = [(count, mine) for count, most in full for mine in range(most)]
    return tuple(sorted(full + lending, key=lambda choice: -choice[1] * _FINE // choice[0]))


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
    """One search: the numbers of one Service, the open list and the best so far.

    Zones and places are numbers in the order of their names.
    """

    def __init__(
        self,
        own: Mapping[str, int],
        weights: Mapping[str, int],
        minimum: Mapping[str, int],
        add: int,
    ) -> None:
        self.zones = list(weights)
        silent = [place for place, count in own.items() if count and place not in weights]
        self.places = self.zones + silent
        self.own = [own.get(zone, 0) for zone in self.zones]
        self.silent: list[_SeatClass] = [
            (0, number, 0, own[place]) for number, place in enumerate(silent, len(self.zones))
        ]
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
        self.fit: list[_SeatClass] | None = None

    def run(self) -> Found | None:
        budget = packings(len(self.zones))
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
        if self.endpoints <= FEW:
            self._complete((), 0, self._value(first), _EveryWay(self.limit, WAYS))
        if self.fit is None:
            return None
        return Found(tuple(sorted(map(self._group, self.fit))), Fraction(self.best, self.whole))

    def _complete(self, profile: Profile, named: int, most: int, every_way: _EveryWay) -> None:
        """Try all profiles that begin like this and are worth more than the best.

        ``named`` counts how often its endpoints are, and ``most`` is what they can be worth.
        """
        index = len(profile)
        if index == len(self.zones):
            fit = every_way.seat(*self._at_home(profile)) if named >= self.endpoints else None
            if fit is not None:
                self.best, self.fit = most, fit
            return
        values = self.values[index]
        without = most - values[self.choices[index][0]]
        for choice, kept in values.items():
            if without + kept <= self.best or not every_way.step():
                break
            self._complete((*profile, choice), named + choice[0], without + kept, every_way)

    def _group(self, seated: _SeatClass) -> Group:
        _, home, named, count = seated
        zones = tuple(zone for number, zone in enumerate(self.zones) if named >> number & 1)
        return Group(self.places[home], zones, count)

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
            for choice, kept in values.items():
                worth = without + kept
                if worth <= self.best:
                    break
                if choice != profile[index]:
                    found.append(((*profile[:index], choice, *profile[index + 1 :]), worth))
        return found

    def _try(self, profile: Profile, value: int, waiting: list[tuple[int, Profile, int]]) -> None:
        if value <= self.best:
            return
        self.packings += 1
        homes, guests = self._at_home(profile)
        unplaced = _seat(classes := homes.copy(), guests, self.limit, self.fair, emptiest=True)
        if unplaced:
            less = _seat(others := homes.copy(), guests, self.limit, self.fair, emptiest=False)
            if less < unplaced:
                unplaced, classes = less, others
        if unplaced:
            heappush(waiting, (2 * unplaced - value * self.scale, profile, value))
        else:
            self.best, self.fit = value, classes

    def _at_home(self, profile: Profile) -> tuple[list[_SeatClass], list[_Guests]]:
        """The classes while every zone has its own endpoints only, and the guests it needs."""
        classes = self.silent.copy()
        guests: list[_Guests] = []
        for zone, (count, staying) in enumerate(profile):
            size, there = self.sizes[zone][count], self.own[zone]
            if staying:
                classes.append((size, zone, 1 << zone, staying))
            if there > staying:
                classes.append((0, zone, 0, there - staying))
            if count > staying:
                guests.append((-size, zone, count - staying))
        guests.sort()
        return classes, guests


def _seat(
    classes: list[_SeatClass], guests: list[_Guests], limit: int, fair: int, *, emptiest: bool
) -> int:
    """Seat all guests, those of the largest size first, in the emptiest or the fullest places.

    Returns what could not be placed: the sizes that are left over, and a fair load for every
    endpoint that is for no zone.
    """
    unplaced = 0
    for negative, zone, wanted in guests:
        classes.sort(reverse=not emptiest)
        room, missing = limit + negative, wanted
        for index in range(len(classes)):
            load, home, named, count = classes[index]
            if load > room:
                if emptiest:
                    break
                continue
            if home == zone or named.bit_count() >= MOST_ZONES:
                continue
            served = (load - negative, home, named | 1 << zone)
            if count > missing:
                classes[index] = (load, home, named, count - missing)
                classes.append((*served, missing))
                missing = 0
                break
            classes[index] = (*served, count)
            missing -= count
            if not missing:
                break
        unplaced -= negative * missing
    for _, _, named, count in classes:
        if not named:
            unplaced += fair * count
    return unplaced


class _EveryWay:
    """Seats guests in every way there is, for a handful of endpoints; so many ways in all."""

    def __init__(self, limit: int, ways: int) -> None:
        self._limit = limit
        self._left = ways

    def step(self) -> bool:
        """Count one more; False when there were enough."""
        self._left -= 1
        return self._left >= 0

    def seat(self, classes: list[_SeatClass], guests: list[_Guests]) -> list[_SeatClass] | None:
        """The classes when all guests have a seat and every endpoint is for some zone, or None."""
        unnamed = sum(count for _, _, named, count in classes if not named)
        if unnamed > sum(wanted for _, _, wanted in guests):
            return None
        if not guests:
            return classes
        (negative, zone, wanted), *later = guests
        room = self._limit + negative
        hosts: list[_SeatClass] = []
        others: list[_SeatClass] = []
        for one in classes:
            load, home, named, _ = one
            fits = home != zone and load <= room and named.bit_count() < MOST_ZONES
            (hosts if fits else others).append(one)
        for taken in product(*(range(min(count, wanted), -1, -1) for *_, count in hosts)):
            if sum(taken) != wanted:
                continue
            if not self.step():
                return None
            after = others.copy()
            for (load, home, named, count), part in zip(hosts, taken, strict=True):
                if part:
                    after.append((load - negative, home, named | 1 << zone, part))
                if count > part:
                    after.append((load, home, named, count - part))
            found = self.seat(after, later)
            if found is not None:
                return found
        return None
