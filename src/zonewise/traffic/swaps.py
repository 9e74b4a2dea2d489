"""Two endpoints that serve each other's zone swap their hints.

Pods change, and a hint that was the best choice when it was set may no longer be: an endpoint
serves another zone while one of another zone serves its own. A swap of two hints changes no load,
because each zone is named by as many endpoints as before, so no limit has to be checked. It costs
two changed hints, so a swap must bring a good part of a fair load back into its zone; the caller
says how much.

Endpoints in one zone, their home, with one hint are alike: they are counted in classes, and a pair
of classes swaps as many as both have at once. A pair brings traffic back only if one side is away,
that is, does not name its home; where none is away there is nothing to do. Each swap brings back
more than it takes away, so the loop ends.

The gain of a swap depends on the shares, so a node event alone can make one worthwhile. Which pairs
exist does not: ``find_swaps`` finds them once, and ``is_any_worthwhile`` checks them, mostly none,
whenever shares change.
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


class HintedEndpoint(NamedTuple):
    """A ready endpoint: its unique name, its zone, and the zones it was for."""

    name: str
    home: str
    previous_zones: Zones = ()


class Swap(NamedTuple):
    """Endpoints that do not serve their home, and endpoints from elsewhere that do."""

    away: HintClass
    guest: HintClass


def swap_hints(
    endpoints: Iterable[HintedEndpoint],
    zones: Mapping[str, Zones],
    weights: Mapping[str, int],
    *,
    min_gain: Fraction,
) -> dict[str, Zones]:
    """The zones of every endpoint after all worthwhile swaps.

    ``min_gain`` is the part of a fair load that a swap must bring back into its zone.
    """
    result = dict(zones)
    ordered = list(endpoints)
    if not find_swaps({(endpoint.home, result[endpoint.name]) for endpoint in ordered}):
        return result
    classes: dict[HintClass, list[str]] = {}
    # Endpoints whose hint changes anyway swap first: they are taken from the end.
    ordered.sort(key=lambda endpoint: (result[endpoint.name] != endpoint.previous_zones, endpoint))
    for name, home, _ in ordered:
        classes.setdefault((home, result[name]), []).append(name)
    queue = _SwapQueue(classes, _Loads.of(Counter(result.values()), weights), min_gain)
    while (pair := queue.pop_best()) is not None:
        (away_home, away_zones), (guest_home, guest_zones) = pair
        away_names, guest_names = classes[pair.away], classes[pair.guest]
        for _ in range(min(len(away_names), len(guest_names))):
            away_name, guest_name = away_names.pop(), guest_names.pop()
            result[away_name], result[guest_name] = guest_zones, away_zones
            queue.add((away_home, guest_zones), away_name)
            queue.add((guest_home, away_zones), guest_name)
        queue.drop_empty(pair)
    return result


class _SwapQueue:
    """The classes and the pairs of them that may swap, best first.

    A swap changes no load, so the gain of a pair never changes: each is queued once both its
    classes have an endpoint, and is skipped if one is empty when its turn comes.
    """

    def __init__(
        self, classes: dict[HintClass, list[str]], loads: _Loads, min_gain: Fraction
    ) -> None:
        self._classes = classes
        self._loads = loads
        self._min_gain = loads.least_gain(min_gain)
        self._pending: list[tuple[int, Swap]] = []
        self._away: dict[str, set[HintClass]] = {}
        self._guests: dict[str, set[HintClass]] = {}
        for hint_class in classes:
            self._index(hint_class)
        self._push(find_swaps(classes))

    def pop_best(self) -> Swap | None:
        """The pair whose swap gains most, if that is enough; the first of equals."""
        while self._pending:
            _, pair = heappop(self._pending)
            if pair.away in self._classes and pair.guest in self._classes:
                return pair
        return None

    def add(self, hint_class: HintClass, name: str) -> None:
        """Add an endpoint to a class, and queue the swaps of a new class."""
        if hint_class in self._classes:
            self._classes[hint_class].append(name)
            return
        self._classes[hint_class] = [name]
        self._index(hint_class)
        home, zones = hint_class
        if home not in zones:
            self._push(Swap(hint_class, guest) for guest in self._guests.get(home, ()))
        for zone in zones:
            if zone != home:
                self._push(Swap(away, hint_class) for away in self._away.get(zone, ()))

    def drop_empty(self, pair: Swap) -> None:
        """Remove those of the two classes that have no endpoint left."""
        for hint_class in pair:
            if not self._classes[hint_class]:
                del self._classes[hint_class]
                self._away.get(hint_class[0], set()).discard(hint_class)
                for zone in hint_class[1]:
                    self._guests.get(zone, set()).discard(hint_class)

    def _index(self, hint_class: HintClass) -> None:
        home, zones = hint_class
        if home not in zones:
            self._away.setdefault(home, set()).add(hint_class)
        for zone in zones:
            if zone != home:
                self._guests.setdefault(zone, set()).add(hint_class)

    def _push(self, pairs: Iterable[Swap]) -> None:
        for pair in pairs:
            gain = self._loads.gain(pair)
            if gain >= self._min_gain:
                heappush(self._pending, (-gain, pair))


def find_swaps(classes: Iterable[HintClass]) -> tuple[Swap, ...]:
    """The pairs of which one would return to its own zone, whatever the shares are; in order."""
    ordered = sorted(classes)
    guests: dict[str, list[HintClass]] = {}
    for hint_class in ordered:
        for zone in hint_class[1]:
            if zone != hint_class[0]:
                guests.setdefault(zone, []).append(hint_class)
    return tuple(
        Swap(away, guest)
        for away in ordered
        if away[0] not in away[1]
        for guest in guests.get(away[0], ())
    )


def is_any_worthwhile(
    pairs: Iterable[Swap],
    per_zone_set: Mapping[Zones, int],
    weights: Mapping[str, int],
    min_gain: Fraction,
) -> bool:
    """Whether the swap of one of the pairs gains enough with these weights."""
    loads = _Loads.of(per_zone_set, weights)
    least_gain = loads.least_gain(min_gain)
    return any(loads.gain(pair) >= least_gain for pair in pairs)


@dataclass(frozen=True, slots=True)
class _Loads:
    """What a zone sends to each of its endpoints, and a fair load, in a common unit."""

    each: Mapping[str, int]
    fair: int

    @classmethod
    def of(cls, per_zone_set: Mapping[Zones, int], weights: Mapping[str, int]) -> _Loads:
        per_zone = dict.fromkeys(weights, 0)
        endpoints = 0
        for zones, count in per_zone_set.items():
            endpoints += count
            for zone in zones:
                if zone in per_zone:
                    per_zone[zone] += count
        common = lcm(*filter(None, per_zone.values()))
        each = {
            zone: weights[zone] * endpoints * common // count
            for zone, count in per_zone.items()
            if count
        }
        return cls(each, sum(weights.values()) * common)

    def least_gain(self, min_gain: Fraction) -> int:
        """The gain, in the common unit, that is this part of a fair load."""
        return -(-min_gain.numerator * self.fair // min_gain.denominator)

    def gain(self, pair: Swap) -> int:
        """What a swap brings back into its zone, less what it takes away."""
        (home, away_zones), (guest_home, guest_zones) = pair
        if home not in self.each:
            return 0
        guest_load = self.each.get(guest_home, 0)
        back = (guest_home in away_zones) - (guest_home in guest_zones)
        return self.each[home] + guest_load * back
