"""Two endpoints that serve each other's zone swap their hints.

Pods come and go, and a hint that was the best choice when it was given may no longer be: an
endpoint serves a foreign zone while a foreign one serves its own. A swap of two hints changes
nobody's load, because each zone is named by as many endpoints as before, so no limit has to be
asked. It costs two changed hints, so a swap must bring home a good part of a fair load; how much is
the caller's to say.

Endpoints of one home with one hint are alike: they are counted in classes, and a pair of classes
swaps as many as both have at once. A pair brings something home only if one side is away, that is,
does not name its home; where nobody is away there is nothing to do. Each swap brings home more than
it takes away, so the loop ends.

What a swap brings depends on the shares, so a node event alone can make one worth while. Which
pairs there are does not: ``swaps`` finds them once, and ``worthwhile`` judges them, mostly none,
whenever shares change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
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
    loads = _Loads.of(Counter(result.values()), weights)
    while (pair := _best(swaps(classes), loads, worth)) is not None:
        (home, left), (other, right) = pair
        mine, theirs = classes[home, left], classes[other, right]
        for _ in range(min(len(mine), len(theirs))):
            one, two = mine.pop(), theirs.pop()
            result[one], result[two] = right, left
            classes.setdefault((home, right), []).append(one)
            classes.setdefault((other, left), []).append(two)
        classes = {key: names for key, names in classes.items() if names}
    return result


def swaps(classes: Iterable[HintClass]) -> tuple[Swap, ...]:
    """The pairs of which one would come home, whatever the shares are; in order."""
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
    return _best(pairs, _Loads.of(per_set, weights), worth) is not None


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

    def gain(self, pair: Swap) -> int:
        """What a swap brings home, less what it takes away."""
        (home, left), (other, right) = pair
        if home not in self.each:
            return 0
        here, there = self.each[home], self.each.get(other, 0)
        return here + there * ((other in left) - (other in right))


def _best(pairs: Iterable[Swap], loads: _Loads, worth: Fraction) -> Swap | None:
    """The pair whose swap brings most home, if that is enough; the first of equals."""
    best, found = -(-worth.numerator * loads.fair // worth.denominator) - 1, None
    for pair in pairs:
        gain = loads.gain(pair)
        if gain > best:
            best, found = gain, pair
    return found
