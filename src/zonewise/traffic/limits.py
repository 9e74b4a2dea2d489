"""How much overload is allowed, and how many endpoints a zone needs to stay within it.

Two limits, so that hints do not flap: they are added while every zone's overload is *below*
``add``, and dropped when a zone's is *above* ``drop``. A zone with weight w of W and a of n
endpoints has the overload w·n / (W·a) - 1. Whether that is allowed, and how many endpoints are
needed, is calculated with whole numbers only.

``needs_decision`` is what a shell calls for every Service when nodes change. It reads nothing but
``HintCounts``, which are made when hints are decided, so that ten thousand Services are checked in
some hundredths of a second. Only those that cross a limit in either direction, or of which two
endpoints should swap their hints now, are decided again; for all others a decision would change
nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import NamedTuple

from zonewise.api.errors import ParseError
from zonewise.topology.shares import Shares
from zonewise.traffic.swaps import HintClass, Swap, Zones, find_swaps, is_any_worthwhile

MIN_SWAP_GAIN = Fraction(9, 10)
"""The least part of a fair load that two endpoints must bring home to swap hints in mode Auto."""
MIN_SWAP_GAIN_SHARED = Fraction(6, 10)
"""The same in mode shared, where an endpoint's zone is often one of several."""

OVERLOAD_ANNOTATION = "zonewise.io/overload"

_TEXT = re.compile(r"(\d{1,3})%/(\d{1,3})%", re.ASCII)


class ServedZone(NamedTuple):
    """A zone that endpoints are for; both parts are of its traffic times ``HintCounts.common``."""

    each: int
    """The part that each of them gets."""
    stays: int
    """The part that stays in the zone."""


@dataclass(frozen=True, slots=True)
class HintCounts:
    """The ready endpoints of a Service, counted by where they are and which zones they are for."""

    ready: int
    own: Mapping[str, int]
    """How many are in each zone."""
    per_zone_set: Mapping[Zones, int]
    """How many are for each set of zones."""
    per_zone: Mapping[str, int]
    """How many are for each zone."""
    common: int
    """A multiple of all these numbers: with it parts of a zone's traffic are whole."""
    served: Mapping[str, ServedZone]
    """What becomes of the traffic of each zone that endpoints are for."""
    cross_zone: frozenset[tuple[str, str]]
    """The zones of endpoints that are for another zone, each with that other zone."""
    swaps: tuple[Swap, ...]
    """The pairs of which one would return to its own zone."""

    @classmethod
    def of(cls, endpoints: Iterable[HintClass]) -> HintCounts:
        """The counts of ready endpoints, each given as its zone and the zones it is for."""
        classes = Counter(endpoints)
        own: dict[str, int] = {}
        per_zone_set: dict[Zones, int] = {}
        per_zone: dict[str, int] = {}
        at_home: dict[str, int] = {}
        cross_zone = set()
        for (home, zones), count in classes.items():
            own[home] = own.get(home, 0) + count
            if zones:
                per_zone_set[zones] = per_zone_set.get(zones, 0) + count
            for zone in zones:
                per_zone[zone] = per_zone.get(zone, 0) + count
                if zone == home:
                    at_home[zone] = at_home.get(zone, 0) + count
                else:
                    cross_zone.add((home, zone))
        common = lcm(*per_zone.values())
        served = {
            zone: ServedZone(common // count, at_home.get(zone, 0) * (common // count))
            for zone, count in per_zone.items()
        }
        return cls(
            ready=classes.total(),
            own=own,
            per_zone_set=per_zone_set,
            per_zone=per_zone,
            common=common,
            served=served,
            cross_zone=frozenset(cross_zone),
            swaps=find_swaps(classes),
        )

    def has_stray(self, shares: Shares) -> bool:
        """Whether an endpoint in a zone that sends traffic is for a zone that no node has."""
        weights = shares.weights
        for home, zone in self.cross_zone:
            if zone not in weights and home in weights and zone not in shares.silent_zones:
                return True
        return False

    def has_worthwhile_swap(self, shares: Shares, min_gain: Fraction) -> bool:
        """Whether two endpoints that swap hints would bring this part of a fair load home."""
        return bool(self.swaps) and is_any_worthwhile(
            self.swaps, self.per_zone_set, shares.weights, min_gain
        )


@dataclass(frozen=True, slots=True)
class OverloadLimits:
    """Percentages: add hints below ``add``, drop them above ``drop``."""

    add: int = 20
    drop: int = 30

    def __post_init__(self) -> None:
        if not 1 <= self.add <= self.drop <= 100:
            raise ParseError(
                f"overload limits {self.add}%/{self.drop}% are out of range:"
                " the first must be at least 1%, the second at least the first and at most 100%"
            )

    @classmethod
    def parse(cls, text: str) -> OverloadLimits:
        """The limits of ``20%/30%``."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ParseError(f"overload limits {text[:64]!r} are not of the form 20%/30%")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.add}%/{self.drop}%"

    def minimum_to_add(self, shares: Shares, endpoints: int) -> dict[str, int]:
        """The fewest endpoints with which each zone's overload is below ``add``."""
        scale, load = shares.total * (100 + self.add), endpoints * 100
        return {zone: weight * load // scale + 1 for zone, weight in shares.weights.items()}

    def minimum_to_keep(self, shares: Shares, endpoints: int) -> dict[str, int]:
        """The fewest endpoints, at least one, with which each zone's is at most ``drop``."""
        scale, load = shares.total * (100 + self.drop), endpoints * 100
        return {zone: max(1, -(-weight * load // scale)) for zone, weight in shares.weights.items()}

    def is_within_drop(self, shares: Shares, endpoints: int, per_zone: Mapping[str, int]) -> bool:
        """Whether every zone has endpoints, and no zone's overload is above ``drop``."""
        scale, load = shares.total * (100 + self.drop), endpoints * 100
        for zone, weight in shares.weights.items():
            if not 0 < weight * load <= per_zone.get(zone, 0) * scale:
                return False
        return True

    def can_add(self, shares: Shares, endpoints: int) -> bool:
        """Whether some distribution keeps every zone's overload below ``add``."""
        scale, load = shares.total * (100 + self.add), endpoints * 100
        needed = len(shares.weights)
        for weight in shares.weights.values():
            needed += weight * load // scale
        return needed <= endpoints

    def is_shared_within_drop(self, shares: Shares, counts: HintCounts) -> bool:
        """Whether every zone is named and no set of zones sends more than ``drop`` allows."""
        served, weights = counts.served, shares.weights
        if not weights.keys() <= served.keys():
            return False
        limit = shares.total * (100 + self.drop) * counts.common // (counts.ready * 100)
        for zones in counts.per_zone_set:
            load = 0
            for zone in zones:
                if zone in weights:
                    load += weights[zone] * served[zone].each
            if load > limit:
                return False
        return True

    def needs_decision(self, shares: Shares, counts: HintCounts, *, hinted: bool) -> bool:
        """Whether new shares require another decision about a Service in mode Auto."""
        if shares.reason is not None:
            return hinted
        if not hinted:
            return self.can_add(shares, counts.ready)
        if not self.is_within_drop(shares, counts.ready, counts.per_zone):
            return True
        return bool(counts.cross_zone) and (
            counts.has_stray(shares) or counts.has_worthwhile_swap(shares, MIN_SWAP_GAIN)
        )

    def shared_needs_decision(self, shares: Shares, counts: HintCounts, *, hinted: bool) -> bool:
        """The same for mode shared: without hints, every change of shares may bring some."""
        if shares.reason is not None:
            return hinted
        return (
            not hinted
            or not self.is_shared_within_drop(shares, counts)
            or counts.has_stray(shares)
            or counts.has_worthwhile_swap(shares, MIN_SWAP_GAIN_SHARED)
            or self.gains_little(shares, counts)
        )

    def gains_little(self, shares: Shares, counts: HintCounts) -> bool:
        """Whether hints add less to what stays in zone than half of what any hints could.

        Every zone must be named. What hints could add is limited by what the endpoints of each zone
        may carry.
        """
        own, served, common = counts.own, counts.served, counts.common
        load, scale = counts.ready * 100, shares.total * (100 + self.add)
        stays = without = best = 0
        for zone, weight in shares.weights.items():
            own_count = own.get(zone, 0)
            stays += weight * served[zone].stays
            without += weight * own_count
            best += min(weight * load, own_count * scale)
        gained = 100 * (stays * counts.ready - without * common)
        return 2 * gained < (best - 100 * without) * common

    def next_sufficient_count(self, shares: Shares, endpoints: int) -> int:
        """The next number of endpoints, from this one up, for which hints can be added.

        It exists: each zone's minimum is at most one more than its part of n / (1 + add), so n
        suffices once n - n / (1 + add) is the number of zones.
        """
        while not self.can_add(shares, endpoints):
            endpoints += 1
        return endpoints


DEFAULT_LIMITS = OverloadLimits()
