"""When a domain is taken over, and given back, without an administrator. Pure.

Off unless the configuration says ``"automatic-takeover": {"by": ["all"], "pause": "5m"}``. A domain
is taken over when the backend has reported it failed for the whole pause without interruption; it
is given back when it was healthy for as long. Every change restarts the pause, so a domain that
flaps moves nothing in either direction: only being down, or up, for the whole pause does.

Where an administrator let the failed domain stand in for another one, ``all`` would be a loop: then
the healthy domains are named instead.

What an administrator has decided is never undone: only domains that were taken over automatically
are given back automatically. And where half of all domains or more seem to have failed, it is more
likely that we are cut off: then nothing is taken over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from zonewise.api.errors import ParseError
from zonewise.api.reason import Reason
from zonewise.api.values import times
from zonewise.storage import strict_json
from zonewise.storage.strict_json import ShapeFault, at
from zonewise.storage.takeover.standing_in import ALL, TakeoverMap, takeover_loop

SHORTEST = 30.0
"""Seconds; a shorter pause would take zones over that only restart."""


@dataclass(frozen=True, slots=True)
class AutomaticTakeover:
    """Which domains stand in, and for how long a domain must have been down or up."""

    by: tuple[str, ...]
    pause: float


@dataclass(frozen=True, slots=True)
class DomainWatch:
    """Since when domains are in their state; in seconds of any monotonic clock."""

    down: Mapping[str, float] = field(default_factory=dict)
    up: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AutomaticDecision:
    """What changes in the map, what is remembered, and when to look again at the latest."""

    changes: Mapping[str, tuple[str, ...] | None]
    watch: DomainWatch
    reasons: tuple[Reason, ...] = ()
    again: float | None = None


def parse_automatic(value: Any, where: str) -> AutomaticTakeover:
    """``{"by": [...], "pause": "5m"}`` as ``strict_json`` read it; raises ShapeFault."""
    found = strict_json.members(value, where, required=("by", "pause"))
    targets: dict[str, None] = {}
    for place, item in strict_json.items(found["by"], at(where, "by")):
        name = strict_json.text(item, place)
        if name in targets:
            raise ShapeFault(place, f"domain {name!r} is given twice")
        targets[name] = None
    if not targets:
        raise ShapeFault(at(where, "by"), f"names no domain that takes over, nor {ALL!r}")
    if ALL in targets and len(targets) > 1:
        raise ShapeFault(at(where, "by"), f"{ALL!r} cannot be combined with others")
    text = strict_json.text(found["pause"], at(where, "pause"))
    try:
        pause = times.seconds(text)
    except (ParseError, ValueError) as error:
        raise ShapeFault(at(where, "pause"), str(error)) from None
    if pause < SHORTEST:
        raise ShapeFault(at(where, "pause"), f"{text!r} is shorter than {SHORTEST:g}s")
    return AutomaticTakeover(tuple(targets), pause)


def decide_automatic(
    settings: AutomaticTakeover,
    failed: Collection[str],
    known: Collection[str],
    takeover: TakeoverMap,
    automatic: Collection[str],
    watch: DomainWatch,
    now: float,
) -> AutomaticDecision:
    """What to do about domains that failed or are back.

    ``known`` are all domains the backend can judge, ``failed`` those of them that have failed,
    ``automatic`` those that were taken over without an administrator.
    """
    down = {name: watch.down.get(name, now) for name in sorted(failed)}
    well = sorted(set(known) - set(failed))
    up = {name: watch.up.get(name, now) for name in well if name in automatic}
    changes: dict[str, tuple[str, ...] | None] = {}
    reasons: list[Reason] = []
    waits: list[float] = []
    cut_off = len(down) * 2 >= len(set(known)) and len(down) > 0
    for name, since in down.items():
        if name in takeover.targets:
            continue
        left = since + settings.pause - now
        if left > 0:
            waits.append(left)
            continue
        if cut_off:
            reasons.append(
                Reason(
                    code="TooManyDown",
                    message=f"{name} has failed and is not taken over: {len(down)} of"
                    f" {len(set(known))} domains seem to have failed",
                    fix="If they really have, take them over by hand: zonewise takeover set.",
                )
            )
            continue
        taken = {*takeover.targets, *(one for one, by in changes.items() if by), *down}
        left_to = settings.by
        if settings.by == (ALL,) and takeover_loop({**takeover.targets, name: settings.by}):
            left_to = tuple(well)
        targets = (
            left_to
            if left_to == (ALL,)
            else tuple(one for one in left_to if one != name and one not in taken)
        )
        if not targets:
            reasons.append(
                Reason(
                    code="NobodyLeft",
                    message=f"{name} has failed, and none of {', '.join(settings.by)} is left to"
                    " stand in",
                    fix="Name more domains in automatic-takeover.by, or all.",
                )
            )
            continue
        changes[name] = targets
        reasons.append(
            Reason(
                code="TakenOverAutomatically",
                message=f"{name} has been down for {now - since:.0f} s: it is taken over by"
                f" {', '.join(targets)}",
            )
        )
    for name, since in up.items():
        if name not in takeover.targets:
            continue
        left = since + settings.pause - now
        if left > 0:
            waits.append(left)
            continue
        changes[name] = None
        reasons.append(
            Reason(
                code="GivenBackAutomatically",
                message=f"{name} has been well for {now - since:.0f} s: it is given back",
            )
        )
    return AutomaticDecision(
        changes, DomainWatch(down, up), tuple(reasons), min(waits, default=None)
    )
