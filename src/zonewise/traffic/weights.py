"""How much of each zone's traffic other zones take: the arithmetic of mode weighted.

With weights endpoints are divisible, so the best is a formula and not a search. A zone with a share
w/W and e of n endpoints keeps as much as these may carry, min(w/W, C·e/n), where C is just below
the limit to add; the rest spills. Receivers are the zones with the lowest load per endpoint,
filled to a common water level: every zone that spills uses them in proportion to the room they have
below it. Since all endpoints together may carry C > 1 times the traffic, the level stays below what
a spilling zone's own endpoints carry; so a zone spills or receives, never both.

Weights belong to *zones*: "for clients in zone a each endpoint in zone b weighs 1000". So the text
does not grow with endpoints and a replaced pod does not change it. They are whole numbers; a zone's
own weight is rounded down, which can only lower the loads that are at the limit.

The text stays while it is good enough: no endpoint above the limit to drop, every zone served, and
at most ``SLACK_PERCENT`` less in zone than the best.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import Any, NamedTuple

import msgspec

from zonewise.topology.shares import Shares
from zonewise.traffic.limits import OverloadLimits

WEIGHTS_ANNOTATION = "zonewise.io/zone-weights"
MAX_WEIGHT = 1_000_000
MAX_TEXT_LENGTH = 8 * 1024
SLACK_PERCENT = 3
"""How much less than the best may stay in zone, in percent of the traffic."""

_ROUNDING_PARTS = 4000
"""Zones keep one part in 4,000 less than they may, so that rounding never reaches the limit."""
_MIN_OWN_WEIGHT = 2000
_GUEST_SCALE = 1000
_ZONE_NAME = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)", re.ASCII)

ZoneWeights = Mapping[str, Mapping[str, int]]
"""Per zone of clients, and per zone of endpoints, what each endpoint weighs."""


def decide_weights(
    own: Mapping[str, int], shares: Shares, limits: OverloadLimits, previous: str
) -> str:
    """The text of the weights, given the ready endpoints in each zone and the text there is."""
    if weights_suffice(previous, own, shares, limits):
        return previous
    return format_weights(compute_weights(own, shares, limits))


def weights_suffice(
    text: str, own: Mapping[str, int], shares: Shares, limits: OverloadLimits
) -> bool:
    """Whether a text of weights may stay.

    Called for every weighted Service when nodes change, so it uses whole numbers only: loads are
    parts of the traffic, multiplied by a common multiple of what rows divide by.
    """
    weighted = _weighted_loads(text, tuple(own.items()))
    if weighted is None:
        return False
    endpoints, total = weighted.endpoints, shares.total
    unit, room = endpoints * 100, (100 + limits.add) * total
    loads = [0] * len(own)
    stays = best = 0
    for zone, weight in shares.weights.items():
        served = weighted.zones.get(zone)
        if served is None:
            return False
        own_count, stays_part, sent = served
        stays += weight * stays_part
        for home, part in sent:
            loads[home] += weight * part
        best += min(weight * unit, room * own_count)
    if max(loads) * unit > (100 + limits.drop) * total * weighted.common:
        return False
    return stays * unit >= (best - SLACK_PERCENT * endpoints * total) * weighted.common


class _SpreadZone(NamedTuple):
    """A zone whose traffic is distributed; parts of it are multiplied by a common number."""

    own_count: int
    """Its own endpoints."""
    stays: int
    """The part that stays."""
    sent: tuple[tuple[int, int], ...]
    """The numbers of the zones it sends to, and the part that each endpoint there gets."""


class _WeightedLoads(NamedTuple):
    """Where traffic goes under weights, whatever the zones' shares are."""

    endpoints: int
    common: int
    zones: Mapping[str, _SpreadZone]


@lru_cache(1 << 14)
def _weighted_loads(text: str, own: tuple[tuple[str, int], ...]) -> _WeightedLoads | None:
    """The loads under a text of weights, given the endpoints in each zone; None if it is invalid.

    Cached: both hardly ever change, and all Services are checked at every node event.
    """
    rows = parse_weights(text)
    if rows is None:
        return None
    counts = dict(own)
    numbers = {home: number for number, (home, count) in enumerate(own) if count}
    weights: dict[str, Mapping[str, int]] = {zone: {zone: 1} for zone in numbers}
    weights.update(rows)
    total_weights = {
        zone: sum(weight * counts.get(home, 0) for home, weight in row.items())
        for zone, row in weights.items()
    }
    common = lcm(*filter(None, total_weights.values()))
    zones = {}
    for zone, row in weights.items():
        if total_weights[zone]:
            each = common // total_weights[zone]
            own_count = counts.get(zone, 0)
            sent = tuple((numbers[home], each * row[home]) for home in row if home in numbers)
            zones[zone] = _SpreadZone(own_count, each * row.get(zone, 0) * own_count, sent)
    return _WeightedLoads(sum(counts.values()), common, zones)


def in_zone_limit_of(own: Mapping[str, int], shares: Shares, limits: OverloadLimits) -> Fraction:
    """The most that could stay in zone at the limit to add, if endpoints were divisible."""
    endpoints = sum(own.values())
    allowed = Fraction(100 + limits.add, 100)
    parts = (
        min(shares.share(zone), allowed * own.get(zone, 0) / endpoints) for zone in shares.weights
    )
    return sum(parts, Fraction(0))


def compute_weights(own: Mapping[str, int], shares: Shares, limits: OverloadLimits) -> ZoneWeights:
    """The weights that keep most in zone, with every load below the limit to add.

    Traffic is counted in parts so small that every number here is whole.
    """
    endpoints = sum(own.values())
    scale = endpoints * 100 * _ROUNDING_PARTS
    sent = {zone: weight * scale for zone, weight in shares.weights.items()}
    limit = (100 + limits.add) * (_ROUNDING_PARTS - 1) * shares.total
    staying = {zone: min(amount, limit * own.get(zone, 0)) for zone, amount in sent.items()}
    spilling = {
        zone: amount - staying[zone] for zone, amount in sent.items() if amount > staying[zone]
    }
    if not spilling:
        return {}
    rooms = _measure_rooms(staying, {home: count for home, count in own.items() if count}, spilling)
    return {
        zone: _compute_row(zone, own, staying[zone], spilling[zone], rooms)
        for zone in sorted(spilling)
    }


def _measure_rooms(
    staying: Mapping[str, int], own: Mapping[str, int], spilling: Mapping[str, int]
) -> dict[str, int]:
    """What each endpoint of a zone takes, in some unit, so that receivers end at one level."""
    common = lcm(*own.values())
    loads = {home: staying.get(home, 0) * (common // count) for home, count in own.items()}
    receivers: list[str] = []
    volume, count = sum(spilling.values()) * common, 0
    for home in sorted(loads, key=lambda home: (loads[home], home)):
        if receivers and volume <= loads[home] * count:
            break
        receivers.append(home)
        count += own[home]
        volume += own[home] * loads[home]
    rooms = {home: volume - loads[home] * count for home in receivers}
    return {home: room for home, room in rooms.items() if room > 0}


def _compute_row(
    zone: str, own: Mapping[str, int], staying: int, spilling: int, rooms: Mapping[str, int]
) -> dict[str, int]:
    """The weights of a zone that spills: guests' by their room, its own rounded down."""
    max_room = max(rooms.values())

    def scale_row(scale: int) -> tuple[dict[str, int], int]:
        guests = {
            home: weight
            for home, room in rooms.items()
            if (weight := (2 * room * scale + max_room) // (2 * max_room))
        }
        if not staying:
            return guests, 0
        away = sum(weight * own[home] for home, weight in guests.items())
        return guests, -(-staying * away // (spilling * own[zone])) - 1

    scale = _GUEST_SCALE
    guests, own_weight = scale_row(scale)
    while staying and own_weight < _MIN_OWN_WEIGHT and scale < MAX_WEIGHT:
        scale *= 10
        guests, own_weight = scale_row(scale)
    while own_weight > MAX_WEIGHT and scale > 1:
        scale //= 10
        guests, own_weight = scale_row(scale)
    row = guests | ({zone: min(own_weight, MAX_WEIGHT)} if own_weight else {})
    return dict(sorted(row.items()))


def format_weights(rows: ZoneWeights) -> str:
    """The annotation's text: sorted, no blanks."""
    return msgspec.json.encode(rows, order="sorted").decode()


def parse_weights(text: str) -> ZoneWeights | None:
    """The weights in an annotation; None if it is not well formed.

    A zone that is named twice, as a row or within one, makes the text ambiguous and so invalid. The
    decoder keeps the last of them; that it dropped one shows in the number of quotation marks, as
    no name can contain one.
    """
    if len(text) > MAX_TEXT_LENGTH:
        return None
    try:
        rows: Any = msgspec.json.decode(text, type=dict[str, dict[str, int]])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    names = {*rows, *(zone for row in rows.values() for zone in row)}
    if not all(_ZONE_NAME.fullmatch(name) for name in names):
        return None
    if text.count('"') != 2 * (len(rows) + sum(map(len, rows.values()))):
        return None
    weights = (weight for row in rows.values() for weight in row.values())
    return rows if all(0 <= weight <= MAX_WEIGHT for weight in weights) else None
