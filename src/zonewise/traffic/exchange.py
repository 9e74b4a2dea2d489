"""Two endpoints that serve each other's zone swap their hints.

Pods change, and a hint that was the best choice when it was set may no longer be: an endpoint
serves a foreign zone while a foreign one serves its own. A swap of two hints changes no load,
because each zone is named by as many endpoints as before, so no limit has to be checked. It costs
two changed hints, so a swap must bring a good part of a fair load back into its zone; the caller
says how much.

Endpoints of one home with one hint are alike: they are counted in classes, and a pair of classes
swaps as many as both have at once. A pair brings traffic back only if one side is away, that is,
does not name its own zone; where none is away there is nothing to do. Each swap brings back more
than it takes away, so the loop ends.

The gain of a swap depends on the shares, so a node event alone can make one worthwhile. Which pairs
exist does not: ``swaps`` finds them once, and ``worthwhile`` judges them, mostly none, whenever
shares change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from math import lcm
from typing import NamedTuple

Zones = tuple[str, ...]
"""The zones an endpoint is for, sorted."""
HintClass = tuple[str, Zones]
"""Endpoints in one zone that are for the same zones."""


class Hinted(NamedTuple):
    """A ready endpoint: its unique name, its zone, and the zones it was for."""

    name: str
    home: str
    before: Zones = ()


class Swap(NamedTuple):
    """One that does not serve its home, and one from elsewhere that does."""

    away: HintClass
    guest: HintClass


def exchange(
    endpoints: Iterable[Hinted],
    zones: Mapping[str, Zones],
    weights: Mapping[str, int],
    *,
    worth: Fraction,
) -> dict[str, Zones]:
    """The zones of every endpoint after all swaps that bring home so much of a fair load."""
    result = dict(zones)
    known = list(endpoints)
    if not swaps({(endpoint.home, result[endpoint.name]) for endpoint in known}):
        return result
    classes: dict[HintClass, list[str]] = {}
    # Endpoints whose hint changes anyway swap first: they are taken from the end.
    for name, home, _ in sorted(known, key=lambda e: (result[e.name] != e.before, e.name)):
        classes.setdefault((home, result[name]), []).append(name)
    market = _Market(classes, _Loads.of(Counter(result.values()), weights), worth)
    while (pair := market.best()) is not None:
        (home, left), (other, right) = pair
        mine, theirs = classes[home, left], classes[other, right]
        for _ in range(min(len(mine), len(theirs))):
            one, two = mine.pop(), theirs.pop()
            result[one], result[two] = right, left
            market.join((home, right), one)
            market.join((other, left), two)
        market.leave(pair)
    return result


class _Market:
    """The classes and the pairs of them that may swap, best first.

    A swap changes no load, so the gain of a pair never changes: each is queued once both its
    classes have an endpoint, and is skipped if one is empty when its turn comes.
    """

    def __init__(self, classes: dict[HintClass, list[str]], loads: _Loads, worth: Fraction) -> None:
        self._classes = classes
        self._loads = loads
        self._least = loads.least(worth)
        self._waiting: list[tuple[int, Swap]] = []
        self._away: dict[str, set[HintClass]] = {}
        self._guests: dict[str, set[HintClass]] = {}
        for one in classes:
            self._enter(one)
        self._offer(swaps(classes))

    def best(self) -> Swap | None:
        """The pair whose swap gains most, if that is enough; the first of equals."""
        while self._waiting:
            _, pair = heappop(self._waiting)
            if pair.away in self._classes and pair.guest in self._classes:
                return pair
        return None

    def join(self, one: HintClass, name: str) -> None:
        """This class has this endpoint now."""
        if one in self._classes:
            self._classes[one].append(name)
            return
        self._classes[one] = [name]
        self._enter(one)
        home, zones = one
        if home not in zones:
            self._offer(Swap(one, guest) for guest in self._guests.get(home, ()))
        for zone in zones:
            if zone != home:
                self._offer(Swap(away, one) for away in self._away.get(zone, ()))

    def leave(self, pair: Swap) -> None:
        """Remove those of the two classes that are empty now."""
        for one in pair:
            if not self._classes[one]:
                del self._classes[one]
                self._away.get(one[0], set()).discard(one)
                for zone in one[1]:
                    self._guests.get(zone, set()).discard(one)

    def _enter(self, one: HintClass) -> None:
        home, zones = one
        if home not in zones:
            self._away.setdefault(home, set()).add(one)
        for zone in zones:
            if zone != home:
                self._guests.setdefault(zone, set()).add(one)

    def _offer(self, pairs: Iterable[Swap]) -> None:
        for pair in pairs:
            gain = self._loads.gain(pair)
            if gain >= self._least:
                heappush(self._waiting, (-gain, pair))


def swaps(classes: Iterable[HintClass]) -> tuple[Swap, ...]:
    """The pairs of which one would return to its own zone, whatever the shares are; in order."""
    ordered = sorted(classes)
    guests: dict[str, list[HintClass]] = {}
    for one in ordered:
        for zone in one[1]:
            if zone != one[0]:
                guests.setdefault(zone, []).append(one)
    return tuple(
        Swap(away, guest)
        for away in ordered
        if away[0] not in away[1]
        for guest in guests.get(away[0], ())
    )


def worthwhile(
    pairs: Iterable[Swap], per_set: Mapping[Zones, int], weights: Mapping[str, int], worth: Fraction
) -> bool:
    """Whether one of the pairs now brings home so much of a fair load."""
    loads = _Loads.of(per_set, weights)
    least = loads.least(worth)
    return any(loads.gain(pair) >= least for pair in pairs)


@dataclass(frozen=True, slots=True)
class _Loads:
    """What a zone sends to each of its endpoints, and a fair load, in a common unit."""

    each: Mapping[str, int]
    fair: int

    @classmethod
    def of(cls, per_set: Mapping[Zones, int], weights: Mapping[str, int]) -> _Loads:
        named = dict.fromkeys(weights, 0)
        endpoints = 0
        for zones, count in per_set.items():
            endpoints += count
            for zone in zones:
                if zone in named:
                    named[zone] += count
        common = lcm(*filter(None, named.values()))
        each = {
            zone: weights[zone] * endpoints * common // count
            for zone, count in named.items()
            if count
        }
        return cls(each, sum(weights.values()) * common)

    def least(self, worth: Fraction) -> int:
        """What a swap must bring home to be worth so much of a fair load."""
        return -(-worth.numerator * self.fair // worth.denominator)

    def gain(self, pair: Swap) -> int:
        """What a swap brings back into its zone, less what it takes away."""
        (home, left), (other, right) = pair
        if home not in self.each:
            return 0
        here, there = self.each[home], self.each.get(other, 0)
        return here + there * ((other in left) - (other in right))
