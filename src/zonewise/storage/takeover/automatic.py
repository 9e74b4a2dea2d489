"""When a domain is taken over, and given back, without an administrator. Pure.

Off unless the configuration says ``"automatic-takeover": {"by": ["all"], "pause": "5m"}``. A domain
is taken over when the backend has reported it failed for the whole pause without interruption; it
is given back when it was healthy for as long. Every change restarts the pause, so a domain that
flaps moves nothing in either direction: only being down, or up, for the whole pause does.

Where an administrator let the failed domain stand in for another one, ``all`` would be a loop: then
the healthy domains are named instead.

What an administrator has decided is never undone: only domains that were taken over automatically
are given back automatically. And where half of all domains or more seem to have failed, it is more
likely that this process is cut off from them: then nothing is taken over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from zonewise.api.errors import ParseError
from zonewise.api.reason import Reason
from zonewise.api.values import times
from zonewise.storage import strict_json
from zonewise.storage.strict_json import ShapeError, child
from zonewise.storage.takeover.stand_ins import ALL, TakeoverMap, find_takeover_loop

SHORTEST_PAUSE = 30.0
"""Seconds; with a shorter pause, zones that only restart would be taken over."""


@dataclass(frozen=True, slots=True)
class AutomaticTakeover:
    """Which domains stand in, and for how long a domain must have been down or up."""

    by: tuple[str, ...]
    pause: float


@dataclass(frozen=True, slots=True)
class DomainTimes:
    """Since when domains are down or up, in seconds of any monotonic clock."""

    down_since: Mapping[str, float] = field(default_factory=dict)
    up_since: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AutomaticDecision:
    """Changes of the map, what to remember for the next decision, and seconds until it is due."""

    changes: Mapping[str, tuple[str, ...] | None]
    domain_times: DomainTimes
    reasons: tuple[Reason, ...] = ()
    retry_after: float | None = None


def parse_automatic(value: Any, path: str) -> AutomaticTakeover:
    """Parse ``{"by": [...], "pause": "5m"}``, a value of ``strict_json``; raises ShapeError."""
    members = strict_json.expect_object(value, path, required=("by", "pause"))
    targets: dict[str, None] = {}
    for item_path, item in strict_json.expect_list(members["by"], child(path, "by")):
        name = strict_json.expect_text(item, item_path)
        if name in targets:
            raise ShapeError(item_path, f"domain {name!r} is given twice")
        targets[name] = None
    if not targets:
        raise ShapeError(child(path, "by"), f"names no domain that takes over, nor {ALL!r}")
    if ALL in targets and len(targets) > 1:
        raise ShapeError(child(path, "by"), f"{ALL!r} cannot be combined with others")
    text = strict_json.expect_text(members["pause"], child(path, "pause"))
    try:
        pause = times.parse_duration(text)
    except (ParseError, ValueError) as error:
        raise ShapeError(child(path, "pause"), str(error)) from None
    if pause < SHORTEST_PAUSE:
        raise ShapeError(child(path, "pause"), f"{text!r} is shorter than {SHORTEST_PAUSE:g}s")
    return AutomaticTakeover(tuple(targets), pause)


def decide_automatic(
    settings: AutomaticTakeover,
    failed: Collection[str],
    domains: Collection[str],
    takeover: TakeoverMap,
    taken_automatically: Collection[str],
    previous: DomainTimes,
    now: float,
) -> AutomaticDecision:
    """Decide which domains are taken over or given back now.

    ``domains`` are all that the backend can judge, ``failed`` those of them that have failed,
    ``taken_automatically`` those that were taken over without an administrator.
    """
    down_since = {name: previous.down_since.get(name, now) for name in sorted(failed)}
    healthy = sorted(set(domains) - set(failed))
    up_since = {
        name: previous.up_since.get(name, now) for name in healthy if name in taken_automatically
    }
    changes: dict[str, tuple[str, ...] | None] = {}
    reasons: list[Reason] = []
    waits: list[float] = []
    cut_off = len(down_since) * 2 >= len(set(domains)) and len(down_since) > 0
    for name, since in down_since.items():
        if name in takeover.targets:
            continue
        remaining = since + settings.pause - now
        if remaining > 0:
            waits.append(remaining)
            continue
        if cut_off:
            reasons.append(
                Reason(
                    code="TooManyDown",
                    message=f"{name} has failed and is not taken over: {len(down_since)} of"
                    f" {len(set(domains))} domains seem to have failed",
                    fix="If they really have, take them over by hand: zonewise takeover set.",
                )
            )
            continue
        taken = (domain for domain, by in changes.items() if by)
        unavailable = {*takeover.targets, *taken, *down_since}
        substitutes = settings.by
        if settings.by == (ALL,) and find_takeover_loop({**takeover.targets, name: settings.by}):
            substitutes = tuple(healthy)
        targets = (
            substitutes
            if substitutes == (ALL,)
            else tuple(
                domain for domain in substitutes if domain != name and domain not in unavailable
            )
        )
        if not targets:
            reasons.append(
                Reason(
                    code="NobodyLeft",
                    message=f"{name} has failed, and none of {', '.join(settings.by)} can stand in",
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
    for name, since in up_since.items():
        if name not in takeover.targets:
            continue
        remaining = since + settings.pause - now
        if remaining > 0:
            waits.append(remaining)
            continue
        changes[name] = None
        reasons.append(
            Reason(
                code="GivenBackAutomatically",
                message=f"{name} has been healthy for {now - since:.0f} s: it is given back",
            )
        )
    return AutomaticDecision(
        changes, DomainTimes(down_since, up_since), tuple(reasons), min(waits, default=None)
    )
