"""How much of each zone's traffic its neighbours take: the arithmetic of mode weighted.

With weights endpoints are divisible, so the best is a formula and not a search. A zone with a share
w/W and e of n endpoints keeps as much as these may carry, min(w/W, C·e/n), where C is just below
the limit to add; the rest spills. Receivers are the places with the lowest load per endpoint,
filled to a common water level: every zone that spills uses them in proportion to the room they have
below it. Since all endpoints together may carry C > 1 times the traffic, the level stays below what
a spilling zone's own endpoints carry; so a zone spills or receives, never both.

Weights belong to *zones*: "for clients in zone a each endpoint in zone b weighs 1000". So the text
does not grow with endpoints and a replaced pod does not change it. They are whole numbers; a zone's
own weight is rounded down, which can only lower the loads that are at the limit.

The text stays while it is good enough: no endpoint above the limit to drop, every zone served, and
at most ``SLACK`` less in zone than the best.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import Any, NamedTuple

import msgspec

from zonewise.topology import Shares
from zonewise.traffic.limits import OverloadLimits

WEIGHTS_ANNOTATION = "zonewise.io/zone-weights"
LARGEST = 1_000_000
LONGEST = 8 * 1024
SLACK = 3
"""Percent of the traffic."""

_PARTS = 4000
"""Zones keep one part of so many less than they may: rounding must not reach the limit."""
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

    Called for every weighted Service when nodes change, so in whole numbers: loads are counted in
    parts of the traffic times a common multiple of what rows divide by.
    """
    known = _weighted_loads(text, tuple(own.items()))
    if known is None:
        return False
    endpoints, total = known.endpoints, shares.total
    unit, room = endpoints * 100, (100 + limits.add) * total
    loads = [0] * len(own)
    stays = best = 0
    for zone, weight in shares.weights.items():
        served = known.zones.get(zone)
        if served is None:
            return False
        here, kept, sent = served
        stays += weight * kept
        for place, part in sent:
            loads[place] += weight * part
        best += min(weight * unit, room * here)
    if max(loads) * unit > (100 + limits.drop) * total * known.common:
        return False
    return stays * unit >= (best - SLACK * endpoints * total) * known.common


class _SpreadZone(NamedTuple):
    """A zone whose traffic is distributed; parts of it are multiplied by a common number."""

    here: int
    """Its own endpoints."""
    stays: int
    """The part that stays."""
    sent: tuple[tuple[int, int], ...]
    """The numbers of the places it sends to, and the part that each endpoint there gets."""


class _WeightedLoads(NamedTuple):
    """What weights do, whatever the zones' shares are."""

    endpoints: int
    common: int
    zones: Mapping[str, _SpreadZone]


@lru_cache(1 << 14)
def _weighted_loads(text: str, own: tuple[tuple[str, int], ...]) -> _WeightedLoads | None:
    """What a text of weights does to endpoints that are in these places; None if it is no text.

    Both hardly ever change, and all Services are judged at every node event.
    """
    rows = parse_weights(text)
    if rows is None:
        return None
    counts = dict(own)
    numbers = {place: number for number, (place, count) in enumerate(own) if count}
    drawn: dict[str, Mapping[str, int]] = {zone: {zone: 1} for zone in numbers}
    drawn.update(rows)
    wholes = {
        zone: sum(weight * counts.get(place, 0) for place, weight in row.items())
        for zone, row in drawn.items()
    }
    common = lcm(*filter(None, wholes.values()))
    zones = {}
    for zone, row in drawn.items():
        if wholes[zone]:
            each = common // wholes[zone]
            here = counts.get(zone, 0)
            sent = tuple((numbers[p], each * row[p]) for p in row if p in numbers)
            zones[zone] = _SpreadZone(here, each * row.get(zone, 0) * here, sent)
    return _WeightedLoads(sum(counts.values()), common, zones)


def in_zone_limit_of(own: Mapping[str, int], shares: Shares, limits: OverloadLimits) -> Fraction:
    """The most that could stay in zone at the limit to add, if endpoints were divisible."""
    endpoints = sum(own.values())
    allowed = Fraction(100 + limits.add, 100)
    return sum(
        (min(shares.share(z), allowed * own.get(z, 0) / endpoints) for z in shares.weights),
        Fraction(0),
    )


def zone_weights(own: Mapping[str, int], shares: Shares, limits: OverloadLimits) -> Rows:
    """The weights that keep most in zone, with every load below the limit to add.

    Traffic is counted in parts so small that every number here is whole.
    """
    endpoints = sum(own.values())
    sent = {zone: weight * endpoints * 100 * _PARTS for zone, weight in shares.weights.items()}
    most = (100 + limits.add) * (_PARTS - 1) * shares.total
    kept = {zone: min(amount, most * own.get(zone, 0)) for zone, amount in sent.items()}
    spilt = {zone: amount - kept[zone] for zone, amount in sent.items() if amount > kept[zone]}
    if not spilt:
        return {}
    rooms = _rooms(kept, {place: count for place, count in own.items() if count}, spilt)
    return {zone: _row(zone, own, kept[zone], spilt[zone], rooms) for zone in sorted(spilt)}


def _rooms(
    kept: Mapping[str, int], own: Mapping[str, int], spilt: Mapping[str, int]
) -> dict[str, int]:
    """What each endpoint of a place takes, in some unit, so that receivers end at one level."""
    common = lcm(*own.values())
    loads = {place: kept.get(place, 0) * (common // count) for place, count in own.items()}
    receivers: list[str] = []
    volume, count = sum(spilt.values()) * common, 0
    for place in sorted(loads, key=lambda one: (loads[one], one)):
        if receivers and volume <= loads[place] * count:
            break
        receivers.append(place)
        count += own[place]
        volume += own[place] * loads[place]
    rooms = {place: volume - loads[place] * count for place in receivers}
    return {place: room for place, room in rooms.items() if room > 0}


def _row(
    zone: str, own: Mapping[str, int], kept: int, spilt: int, rooms: Mapping[str, int]
) -> dict[str, int]:
    """The weights of a zone that spills: guests' in proportion, its own just below its due."""
    most = max(rooms.values())

    def scaled(scale: int) -> tuple[dict[str, int], int]:
        guests = {
            place: weight
            for place, room in rooms.items()
            if (weight := (2 * room * scale + most) // (2 * most))
        }
        if not kept:
            return guests, 0
        away = sum(weight * own[place] for place, weight in guests.items())
        return guests, -(-kept * away // (spilt * own[zone])) - 1

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
    return msgspec.json.encode(rows, order="sorted").decode()


def parse_weights(text: str) -> Rows | None:
    """The weights in an annotation; None if it is not well formed.

    A zone that is named twice, as a row or within one, says two things, so the text says nothing.
    The decoder keeps the last of them: what it dropped is seen by quotation marks that are left
    over, since no name can hold one.
    """
    if len(text) > LONGEST:
        return None
    try:
        rows: Any = msgspec.json.decode(text, type=dict[str, dict[str, int]])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    names = {*rows, *(zone for row in rows.values() for zone in row)}
    if not all(_VALUE.fullmatch(name) for name in names):
        return None
    if text.count('"') != 2 * (len(rows) + sum(map(len, rows.values()))):
        return None
    weights = (weight for row in rows.values() for weight in row.values())
    return rows if all(0 <= weight <= LARGEST for weight in weights) else None
