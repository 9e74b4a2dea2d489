"""How much overload is allowed, and how many endpoints a zone needs to stay within it.

Two limits, so that hints do not flap: they are added while every zone's overload is *below*
``add``, and dropped when a zone's is *above* ``drop``. A zone with weight w of W and a of n
endpoints has the overload w·n / (W·a) - 1. Both questions ("is this allowed?", "how many are
needed?") are answered with whole numbers only.

``crosses`` is what a shell calls for every Service when nodes change. It reads nothing but
``HintCounts``, which are made when hints are decided, so that ten thousand Services are judged in
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
from zonewise.topology import Shares
from zonewise.traffic.exchange import HintClass, Swap, Zones, swaps, worthwhile

WORTH = Fraction(9, 10)
"""The least part of a fair load that two endpoints must bring home to swap hints in mode Auto."""
WORTH_SHARED = Fraction(6, 10)
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
    per_set: Mapping[Zones, int]
    """How many are for each set of zones."""
    named: Mapping[str, int]
    """How many are for each zone."""
    common: int
    """A multiple of all these numbers: with it parts of a zone's traffic are whole."""
    served: Mapping[str, ServedZone]
    """What becomes of the traffic of each zone that endpoints are for."""
    abroad: frozenset[tuple[str, str]]
    """Where endpoints are that are for another zone, and this zone."""
    swaps: tuple[Swap, ...]
    """The pairs of which one would return to its own zone."""

    @classmethod
    def of(cls, endpoints: Iterable[HintClass]) -> HintCounts:
        """Those of ready endpoints, each with its zone and the zones it is for."""
        classes = Counter(endpoints)
        own: dict[str, int] = {}
        per_set: dict[Zones, int] = {}
        named: dict[str, int] = {}
        at_home: dict[str, int] = {}
        abroad = set()
        for (home, zones), count in classes.items():
            own[home] = own.get(home, 0) + count
            if zones:
                per_set[zones] = per_set.get(zones, 0) + count
            for zone in zones:
                named[zone] = named.get(zone, 0) + count
                if zone == home:
                    at_home[zone] = at_home.get(zone, 0) + count
                else:
                    abroad.add((home, zone))
        common = lcm(*named.values())
        served = {
            zone: ServedZone(common // count, at_home.get(zone, 0) * (common // count))
            for zone, count in named.items()
        }
        return cls(
            ready=classes.total(),
            own=own,
            per_set=per_set,
            named=named,
            common=common,
            served=served,
            abroad=frozenset(abroad),
            swaps=swaps(classes),
        )

    def stray(self, shares: Shares) -> bool:
        """Whether an endpoint in a zone that sends traffic is for one that no node bears."""
        weights = shares.weights
        for home, zone in self.abroad:
            if zone not in weights and home in weights and zone not in shares.silent:
                return True
        return False

    def swap_brings(self, shares: Shares, worth: Fraction) -> bool:
        """Whether two endpoints would bring home so much of a fair load if they swapped hints."""
        return bool(self.swaps) and worthwhile(self.swaps, self.per_set, shares.weights, worth)


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

    def to_add(self, shares: Shares, endpoints: int) -> dict[str, int]:
        """The fewest endpoints with which each zone's overload is below ``add``."""
        scale, load = shares.total * (100 + self.add), endpoints * 100
        return {zone: weight * load // scale + 1 for zone, weight in shares.weights.items()}

    def to_keep(self, shares: Shares, endpoints: int) -> dict[str, int]:
        """The fewest endpoints, at least one, with which each zone's is at most ``drop``."""
        scale, load = shares.total * (100 + self.drop), endpoints * 100
        return {zone: max(1, -(-weight * load // scale)) for zone, weight in shares.weights.items()}

    def within(self, shares: Shares, endpoints: int, per_zone: Mapping[str, int]) -> bool:
        """Whether no zone's overload is above ``drop``; a zone without endpoints is."""
        scale, load = shares.total * (100 + self.drop), endpoints * 100
        for zone, weight in shares.weights.items():
            if not 0 < weight * load <= per_zone.get(zone, 0) * scale:
                return False
        return True

    def reachable(self, shares: Shares, endpoints: int) -> bool:
        """Whether some distribution keeps every zone's overload below ``add``."""
        scale, load = shares.total * (100 + self.add), endpoints * 100
        needed = len(shares.weights)
        for weight in shares.weights.values():
            needed += weight * load // scale
        return needed <= endpoints

    def shared_within(self, shares: Shares, counts: HintCounts) -> bool:
        """Whether every zone is named and no set of zones sends more than ``drop`` allows."""
        served, weights = counts.served, shares.weights
        if not weights.keys() <= served.keys():
            return False
        most = shares.total * (100 + self.drop) * counts.common // (counts.ready * 100)
        for zones in counts.per_set:
            load = 0
            for zone in zones:
                if zone in weights:
                    load += weights[zone] * served[zone].each
            if load > most:
                return False
        return True

    def crosses(self, shares: Shares, counts: HintCounts, *, hinted: bool) -> bool:
        """Whether new shares require another decision about a Service in mode Auto."""
        if shares.reason is not None:
            return hinted
        if not hinted:
            return self.reachable(shares, counts.ready)
        if not self.within(shares, counts.ready, counts.named):
            return True
        return bool(counts.abroad) and (counts.stray(shares) or counts.swap_brings(shares, WORTH))

    def shared_crosses(self, shares: Shares, counts: HintCounts, *, hinted: bool) -> bool:
        """The same for mode shared: without hints, every change of shares may bring some."""
        if shares.reason is not None:
            return hinted
        return (
            not hinted
            or not self.shared_within(shares, counts)
            or counts.stray(shares)
            or counts.swap_brings(shares, WORTH_SHARED)
            or self.gains_little(shares, counts)
        )

    def gains_little(self, shares: Shares, counts: HintCounts) -> bool:
        """Whether hints add less to what stays in zone than half of what any hints could.

        Every zone must be named. That is at most what the endpoints of each zone may carry.
        """
        own, served, common = counts.own, counts.served, counts.common
        sent, carried = counts.ready * 100, shares.total * (100 + self.add)
        kept = without = most = 0
        for zone, weight in shares.weights.items():
            here = own.get(zone, 0)
            kept += weight * served[zone].stays
            without += weight * here
            most += min(weight * sent, here * carried)
        gained = 100 * (kept * counts.ready - without * common)
        return 2 * gained < (most - 100 * without) * common

    def enough(self, shares: Shares, endpoints: int) -> int:
        """The next number of endpoints, from this one up, for which hints can be added.

        It exists: each zone's minimum is at most one more than its part of n / (1 + add), so n
        suffices once n - n / (1 + add) is the number of zones.
        """
        while not self.reachable(shares, endpoints):
            endpoints += 1
        return endpoints


DEFAULT_LIMITS = OverloadLimits()
