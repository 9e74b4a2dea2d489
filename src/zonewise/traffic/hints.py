"""For whom each endpoint of a Service is, and why: the decision.

``decide(snapshot, previous)`` is pure. A snapshot is what is: the wish of the Service, the shares
of the zones, the endpoints of one address family (a dual-stack Service is two snapshots that know
nothing of each other). ``Previous`` is what was: the hints on the slices. Hints are there only if
*every* endpoint that was ready had one, since only then proxies obeyed them. So a controller that
died between two slices starts afresh, and what it had written fits again.

Mode Auto, in this order:

1. no decision without sound facts: shares, a zone for every ready endpoint, enough endpoints;
2. hints are there: they stay, move or fall as ``zonewise.traffic.allocation.retain`` says;
3. no hints: they are added, by ``spread``, if every zone's overload can be below the limit to add.

The other modes hint every endpoint to its own zone, or zone and node. They know no limits.

The reason of a Service that has its hints never changes, so that nobody is told twice. That of one
that has none carries numbers; shells tell it when its *code* changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from zonewise.api.reason import Reason
from zonewise.topology import Shares
from zonewise.traffic import refusals
from zonewise.traffic.allocation import Placed, retain, spread
from zonewise.traffic.limits import Limits
from zonewise.traffic.modes import Mode, Wish
from zonewise.traffic.routes import Flow, flow
from zonewise.traffic.targets import NO_HINT, Hint, Target, ready

HINTED = "Hinted"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is: one Service, one address family.

    ``foreign`` are endpoints in slices of the same Service that somebody else writes, as a proxy
    takes them; we cannot hint them, but they can cancel our hints.
    """

    wish: Wish
    shares: Shares
    targets: tuple[Target, ...] = ()
    foreign: tuple[Target, ...] = ()


@dataclass(frozen=True, slots=True)
class Previous:
    """What was: the hints of endpoints that were ready, by name, and whether proxies obeyed."""

    hints: Mapping[str, Hint] = field(default_factory=dict)
    hinted: bool = False

    @classmethod
    def read(cls, targets: Iterable[Target]) -> Previous:
        """What the slices say, as their writer meant them."""
        hints = {target.name: target.hint for target in targets if target.ready}
        return cls(hints, bool(hints) and all(hint.zones for hint in hints.values()))


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do and why. ``hints`` has the hinted endpoints by name; all others have none."""

    mode: Mode
    hinted: bool
    reason: Reason
    hints: Mapping[str, Hint] = field(default_factory=dict)
    warnings: tuple[Reason, ...] = ()

    def hint(self, name: str) -> Hint:
        """The hint of an endpoint."""
        return self.hints.get(name, NO_HINT)

    def applied(self, targets: Iterable[Target]) -> tuple[Target, ...]:
        """Endpoints with the hints of this decision."""
        return tuple(replace(target, hint=self.hint(target.name)) for target in targets)

    def after(self, snapshot: Snapshot) -> Previous:
        """What the next decision finds, once this one is written."""
        return Previous.read(self.applied(snapshot.targets))

    def flow(self, snapshot: Snapshot) -> Flow:
        """What becomes of the traffic under this decision."""
        return flow(self.applied(snapshot.targets), snapshot.shares)


def decide(snapshot: Snapshot, previous: Previous) -> Decision:
    """The hints of one Service in one address family."""
    wish = snapshot.wish
    if wish.mode is Mode.OFF:
        return Decision(wish.mode, False, wish.reason or refusals.not_asked())
    targets = ready(snapshot.targets)
    if not targets:
        return Decision(wish.mode, False, refusals.no_endpoints())
    if wish.mode is Mode.AUTO:
        decision = _auto(snapshot, previous, targets)
    else:
        decision = _own_place(wish.mode, targets)
    stray = [target for target in ready(snapshot.foreign) if not target.hint.zones]
    if decision.hinted and stray:
        return replace(decision, warnings=(refusals.foreign_endpoint(stray),))
    return decision


def _own_place(mode: Mode, targets: list[Target]) -> Decision:
    same_node = mode is Mode.SAME_NODE
    zoneless = [target for target in targets if not target.zone]
    hints = {
        target.name: Hint(
            (target.zone,) if target.zone else (),
            (target.node,) if target.node and same_node else (),
        )
        for target in targets
    }
    hints = {name: hint for name, hint in hints.items() if hint}
    hinted = len(hints) == len(targets)
    if zoneless:
        return Decision(mode, hinted, refusals.endpoint_without_zone(zoneless), hints)
    where = "node, else its zone" if same_node else "zone"
    reason = Reason(code=HINTED, message=f"every endpoint is for its own {where}")
    return Decision(mode, hinted, reason, hints)


def _auto(snapshot: Snapshot, previous: Previous, targets: list[Target]) -> Decision:
    shares, limits = snapshot.shares, snapshot.wish.limits
    refusal = _refusal(shares, targets)
    if refusal is not None:
        return Decision(Mode.AUTO, False, refusal)
    zones = _zones(shares, limits, previous, targets)
    if zones is None:
        known = len(targets) < len(shares.weights)
        refusal = refusals.too_few(shares, limits, len(targets), fewer_than_zones=known)
        return Decision(Mode.AUTO, False, refusal)
    shared = {zone: Hint((zone,)) for zone in set(zones.values())}
    hints = {name: shared[zone] for name, zone in zones.items()}
    return Decision(Mode.AUTO, True, _hinted(limits), hints)


def _refusal(shares: Shares, targets: list[Target]) -> Reason | None:
    if shares.reason is not None:
        return shares.reason
    zoneless = [target for target in targets if not target.zone]
    return refusals.endpoint_without_zone(zoneless) if zoneless else None


def _zones(
    shares: Shares, limits: Limits, previous: Previous, targets: list[Target]
) -> dict[str, str] | None:
    count = len(targets)
    endpoints = [Placed(t.name, t.zone, _before(previous, t.name)) for t in targets]
    aim = limits.to_add(shares, count)
    if previous.hinted and any(endpoint.before for endpoint in endpoints):
        return retain(endpoints, shares.weights, keep=limits.to_keep(shares, count), aim=aim)
    if sum(aim.values()) > count:
        return None
    return spread(endpoints, shares.weights, aim)


def _before(previous: Previous, name: str) -> str:
    """The one zone an endpoint was for; hints for several are not of this mode."""
    zones = previous.hints.get(name, NO_HINT).zones
    return zones[0] if len(zones) == 1 else ""


def _hinted(limits: Limits) -> Reason:
    return Reason(
        code=HINTED,
        message="every zone has endpoints for its share of the traffic",
        numbers={"addBelowPercent": limits.add, "dropAbovePercent": limits.drop},
    )


@dataclass(frozen=True, slots=True)
class ZoneRow:
    """One zone in numbers; ``overload`` is None while nothing is hinted to it."""

    zone: str
    nodes: int
    cpu_milli: int
    share: Fraction
    endpoints: int
    minimum: int
    assigned: int
    overload: Fraction | None


def zone_rows(snapshot: Snapshot, decision: Decision) -> tuple[ZoneRow, ...]:
    """The zones with a share, by name: what they have, need and get."""
    shares, targets = snapshot.shares, ready(snapshot.targets)
    there = Counter(target.zone for target in targets)
    assigned = Counter(zone for hint in decision.hints.values() for zone in hint.zones)
    usable = shares.total > 0
    minimum = snapshot.wish.limits.to_add(shares, len(targets)) if usable else {}
    return tuple(
        ZoneRow(
            zone=zone.name,
            nodes=zone.nodes,
            cpu_milli=zone.cpu_milli,
            share=shares.share(zone.name),
            endpoints=there[zone.name],
            minimum=minimum.get(zone.name, 0),
            assigned=assigned[zone.name],
            overload=(
                shares.share(zone.name) * len(targets) / assigned[zone.name] - 1
                if assigned[zone.name]
                else None
            ),
        )
        for zone in shares.zones
    )


def in_zone_limit(snapshot: Snapshot) -> Fraction:
    """The most that could stay in zone at the limit to add, if endpoints were divisible."""
    targets = ready(snapshot.targets)
    there = Counter(target.zone for target in targets)
    allowed = Fraction(100 + snapshot.wish.limits.add, 100)
    shares = snapshot.shares
    return sum(
        (
            min(shares.share(zone), allowed * there[zone] / len(targets))
            for zone in shares.weights
            if targets
        ),
        Fraction(0),
    )
