"""Small clusters in a line: ``cpu 1:1:1`` and ``endpoints 2/1/0`` of zones a, b, c."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction

from zonewise.topology import Shares, Zone
from zonewise.traffic import Decision, Limits, Mode, Previous, Snapshot, Target, Wish, decide

ZONES = "abcdefghij"
NOTHING = Previous()


def shares(*cpu: int) -> Shares:
    """Zones a, b, c… with so many cores."""
    return Shares(
        tuple(Zone(ZONES[n], 1, c * 1000, c * 1000) for n, c in enumerate(cpu)),
    )


def targets(*counts: int, start: int = 0) -> tuple[Target, ...]:
    """So many ready endpoints in zones a, b, c…, named by their zone."""
    return tuple(
        Target(f"{ZONES[n]}{start + i:04}", zone=ZONES[n], node=f"node-{ZONES[n]}")
        for n, count in enumerate(counts)
        for i in range(count)
    )


def snapshot(
    cpu: Sequence[int] | Shares,
    endpoints: Sequence[int | Target],
    *,
    mode: Mode = Mode.AUTO,
    limits: Limits | None = None,
) -> Snapshot:
    """A Service in mode Auto, unless told otherwise."""
    known = cpu if isinstance(cpu, Shares) else shares(*cpu)
    there: list[Target] = []
    for n, entry in enumerate(endpoints):
        there += targets(*([0] * n), entry) if isinstance(entry, int) else [entry]
    return Snapshot(Wish(mode, limits or Limits()), known, tuple(there))


def per_zone(decision: Decision) -> Mapping[str, int]:
    """How many endpoints are for each zone."""
    return dict(Counter(zone for hint in decision.hints.values() for zone in hint.zones))


def overloads(view: Snapshot, decision: Decision) -> dict[str, Fraction]:
    """The overload of each zone, by the book."""
    count = per_zone(decision)
    ready = sum(target.ready for target in view.targets)
    return {
        zone: view.shares.share(zone) * ready / count[zone] - 1
        if zone in count
        else Fraction(10**9)
        for zone in view.shares.weights
    }


def moved(decision: Decision, view: Snapshot) -> list[str]:
    """Endpoints that are for another zone than theirs."""
    return [
        target.name
        for target in view.targets
        if target.ready and decision.hint(target.name).zones != (target.zone,)
    ]


def changed(before: Decision, after: Decision) -> list[str]:
    """Endpoints that both decisions hint, differently."""
    both = before.hints.keys() & after.hints.keys()
    return sorted(name for name in both if before.hint(name) != after.hint(name))


def fresh(view: Snapshot) -> Decision:
    """The decision for a Service without hints."""
    return decide(view, NOTHING)
