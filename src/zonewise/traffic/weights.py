"""How much of each zone's traffic its neighbours take: the arithmetic of mode weighted.

With weights endpoints are divisible, so the best is a formula and not a search. A zone with a
share w/W and e of n endpoints keeps as much as these may carry, min(w/W, C·e/n), where C is just
below the limit to add; the rest spills. Receivers are the places with the lowest load per endpoint,
filled like vessels with a common water level: everybody who spills uses them in proportion to the
room they have below it. Since all endpoints together may carry C > 1 times the traffic, the level
stays below what a spilling zone's own endpoints carry; so a zone spills or receives, never both.

Weights belong to *zones*: "for clients in zone a each endpoint in zone b weighs 1000". So the text
does not grow with endpoints and a replaced pod does not change it. They are whole numbers; a zone's
own weight is rounded down, which can only lower the loads that are at the limit.

The text stays while it is good enough: nobody above the limit to drop, every zone served, and at
most ``SLACK`` less in zone than the best.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import Any

import msgspec

from zonewise.topology import Shares
from zonewise.traffic.limits import OverloadLimits

WEIGHTS_ANNOTATION = "zonewise.io/zone-weights"
LARGEST = 1_000_000
LONGEST = 8 * 1024
SLACK = 3
"""Percent of the traffic."""

_MARGIN = Fraction(3999, 4000)
_LEAST = 2000
_GUEST = 1000
_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)", re.ASCII)

Rows = Mapping[str, Mapping[str, int]]
"""Per zone of clients, and per zone of endpoints, what each endpoint weighs."""


def decide_weights(
    own: Mapping[str, int], shares: Shares, limits: OverloadLimits, before: str
) -> str:
    """The text of the weights, given the ready endpoints in each place and the text there is."""
    if weights_good(before, own, shares, limits):
        return before
    return format_weights(zone_weights(own, shares, limits))


def weights_good(text: str, own: Mapping[str, int], shares: Shares, limits: OverloadLimits) -> bool:
    """Whether a text of weights may stay.

    Asked of every weighted Service when nodes change, so in whole numbers: loads are counted in
    parts of the traffic times a common multiple of what rows divide by.
    """
    rows = _known_rows(text)
    if rows is None:
        return False
    wholes: list[int] = []
    for zone in shares.weights:
        row = rows.get(zone)
        if row is None:
            whole = own.get(zone, 0)
        else:
            whole = 0
            for place, drawn in row.items():
                whole += drawn * own.get(place, 0)
        if not whole:
            return False
        wholes.append(whole)
    common = lcm(*wholes)
    endpoints, total = sum(own.values()), shares.total
    unit, room = endpoints * 100, (100 + limits.add) * total
    loads = dict.fromkeys(own, 0)
    stays = best = 0
    for (zone, weight), whole in zip(shares.weights.items(), wholes, strict=True):
        each = weight * (common // whole)
        row = rows.get(zone)
        here = own.get(zone, 0)
        if row is None:
            loads[zone] += each
            stays += each * here
        else:
            for place, drawn in row.items():
                if place in loads:
                    loads[place] += each * drawn
            stays += each * row.get(zone, 0) * here
        best += min(weight * unit, room * here)
    highest = max(load for place, load in loads.items() if own[place])
    if highest * unit > (100 + limits.drop) * total * common:
        return False
    return stays * unit >= (best - SLACK * endpoints * total) * common


def in_zone_limit_of(own: Mapping[str, int], shares: Shares, limits: OverloadLimits) -> Fraction:
    """The most that could stay in zone at the limit to add, if endpoints were divisible."""
    endpoints = sum(own.values())
    allowed = Fraction(100 + limits.add, 100)
    return sum(
        (min(shares.share(z), allowed * own.get(z, 0) / endpoints) for z in shares.weights),
        Fraction(0),
    )


def zone_weights(own: Mapping[str, int], shares: Shares, limits: OverloadLimits) -> Rows:
    """The weights that keep most in zone, with every load below the limit to add."""
    endpoints = sum(own.values())
    most = Fraction(100 + limits.add, 100) * _MARGIN / endpoints
    kept = {zone: min(shares.share(zone), most * own.get(zone, 0)) for zone in shares.weights}
    spilt = {zone: shares.share(zone) - kept[zone] for zone in shares.weights}
    loads = {place: kept.get(place, Fraction(0)) / count for place, count in own.items() if count}
    rooms = _rooms(loads, own, sum(spilt.values(), Fraction(0)))
    return {
        zone: _row(zone, own, kept[zone], spilt[zone], rooms)
        for zone in sorted(shares.weights)
        if spilt[zone]
    }


def _rooms(
    loads: Mapping[str, Fraction], own: Mapping[str, int], spill: Fraction
) -> dict[str, Fraction]:
    """What each endpoint of a place takes, so that all receivers end at one level."""
    receivers: list[str] = []
    level = volume = Fraction(0)
    count = 0
    for place in sorted(loads, key=lambda one: (loads[one], one)):
        if receivers and level <= loads[place]:
            break
        receivers.append(place)
        count += own[place]
        volume += own[place] * loads[place]
        level = (spill + volume) / count
    return {place: level - loads[place] for place in receivers if level > loads[place]}


def _row(
    zone: str,
    own: Mapping[str, int],
    kept: Fraction,
    spilt: Fraction,
    rooms: Mapping[str, Fraction],
) -> dict[str, int]:
    """The weights of a zone that spills: guests' in proportion, its own just below its due."""
    most = max(rooms.values())

    def scaled(scale: int) -> tuple[dict[str, int], int]:
        guests = {
            place: weight
            for place, room in sorted(rooms.items())
            if (weight := int(room / most * scale + Fraction(1, 2)))
        }
        if not kept:
            return guests, 0
        away = sum(weight * own[place] for place, weight in guests.items())
        exact = kept * away / (spilt * own[zone])
        return guests, -(-exact.numerator // exact.denominator) - 1

    scale = _GUEST
    guests, mine = scaled(scale)
    while kept and mine < _LEAST and scale < LARGEST:
        scale *= 10
        guests, mine = scaled(scale)
    while mine > LARGEST and scale > 1:
        scale //= 10
        guests, mine = scaled(scale)
    row = guests | ({zone: min(mine, LARGEST)} if mine else {})
    return dict(sorted(row.items()))


def format_weights(rows: Rows) -> str:
    """The annotation's text: sorted, no blanks."""
    return json.dumps(rows, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def parse_weights(text: str) -> Rows | None:
    """The weights in an annotation; None if it is not well formed."""
    if len(text) > LONGEST:
        return None
    try:
        rows: Any = msgspec.json.decode(text, type=dict[str, dict[str, int]])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    names = {*rows, *(zone for row in rows.values() for zone in row)}
    if not all(_VALUE.fullmatch(name) for name in names):
        return None
    weights = (weight for row in rows.values() for weight in row.values())
    return rows if all(0 <= weight <= LARGEST for weight in weights) else None


_known_rows = lru_cache(maxsize=1 << 14)(parse_weights)
"""A text is judged at every node event and hardly ever changes."""
