"""Which endpoints a proxy in a place uses, with every fallback.

One function per kind of traffic, over the endpoints as a proxy takes them:

* ``nearby``: traffic that may go anywhere. If all ready endpoints carry node hints and one names
  this node, those for this node. Else, if all carry zone hints and one names this zone, those for
  this zone. Else all ready ones: one endpoint without a hint means that hints are just being
  added or removed, and nobody for this zone means that the zone is new; filtering would overload
  or black-hole. If nothing is ready, those that still serve while they terminate, wherever they
  are.
* ``local``: traffic that must stay on the node. Ready ones there, else terminating ones that
  still serve. Hints play no part.

``flow`` adds up what all proxies together do: how much of the traffic stays in its zone, and how
far above the average the busiest endpoint is. Fractions are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from zonewise.api.core import Service
from zonewise.api.gates import TOPOLOGY_AWARE_HINTS
from zonewise.topology import Shares
from zonewise.traffic.modes import reachable_from_outside
from zonewise.traffic.targets import Target


class Rule(Enum):
    """Why these endpoints are used."""

    SAME_NODE = "SameNode"
    SAME_ZONE = "SameZone"
    PLACE_UNKNOWN = "PlaceUnknown"
    UNHINTED = "Unhinted"
    PARTLY_HINTED = "PartlyHinted"
    NOT_FOR_HERE = "NotForHere"
    IGNORED = "HintsIgnored"
    LOCAL = "Local"
    TERMINATING = "Terminating"
    NOTHING = "Nothing"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a proxy is; "" is unknown."""

    zone: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """The endpoints for some traffic, by name, and the rule that chose them."""

    rule: Rule
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True, slots=True)
class Paths:
    """Which kinds of traffic reach a Service, and whether hints count for it."""

    cluster: bool = True
    local: bool = False
    hints: bool = True

    @classmethod
    def of(cls, service: Service, gates: Mapping[str, bool]) -> Paths:
        """The paths of a Service.

        From a pod, an external address with the policy Local is short-cut to the whole cluster,
        so such a Service has both kinds of traffic.
        """
        spec = service.spec
        if spec.traffic_policy == "Local":
            return cls(cluster=False, local=True)
        outside = reachable_from_outside(service)
        inside_local = spec.internal_traffic_policy == "Local"
        return cls(
            cluster=not inside_local or outside,
            local=inside_local or (outside and spec.external_traffic_policy == "Local"),
            hints=spec.traffic_policy != "PreferZone" or gates[TOPOLOGY_AWARE_HINTS],
        )


@dataclass(frozen=True, slots=True)
class Routes:
    """What a proxy does for a Service; None where the Service has no such traffic.

    With an empty selection packets are dropped if the Service has endpoints ``anywhere``, and
    rejected if it has none.
    """

    cluster: Selection | None
    local: Selection | None
    anywhere: bool

    @property
    def reachable(self) -> tuple[Target, ...]:
        """All endpoints a proxy needs to know, each once, by name."""
        both = (part.targets for part in (self.cluster, self.local) if part)
        unique = {target.name: target for targets in both for target in targets}
        return tuple(unique[name] for name in sorted(unique))


def routes(targets: Iterable[Target], place: Place, paths: Paths) -> Routes:
    """Everything a proxy in a place does for a Service."""
    known = sorted(targets, key=_name)
    cluster = nearby(known, place, hints=paths.hints) if paths.cluster else None
    anywhere = any(target.ready or (target.serving and target.terminating) for target in known)
    return Routes(cluster, local(known, place) if paths.local else None, anywhere)


def nearby(targets: Iterable[Target], place: Place, *, hints: bool = True) -> Selection:
    """The endpoints for traffic that may go anywhere in the cluster."""
    known = sorted(targets, key=_name)
    ready = [target for target in known if target.ready]
    if not ready:
        return _terminating(known)
    if not hints:
        return Selection(Rule.IGNORED, tuple(ready))
    if place.node and all(target.hint.nodes for target in ready):
        here = tuple(target for target in ready if place.node in target.hint.nodes)
        if here:
            return Selection(Rule.SAME_NODE, here)
    if not all(target.hint.zones for target in ready):
        partly = any(target.hint for target in ready)
        return Selection(Rule.PARTLY_HINTED if partly else Rule.UNHINTED, tuple(ready))
    if not place.zone:
        return Selection(Rule.PLACE_UNKNOWN, tuple(ready))
    here = tuple(target for target in ready if place.zone in target.hint.zones)
    return Selection(Rule.SAME_ZONE, here) if here else Selection(Rule.NOT_FOR_HERE, tuple(ready))


def local(targets: Iterable[Target], place: Place) -> Selection:
    """The endpoints for traffic that must stay on the node."""
    here = [target for target in sorted(targets, key=_name) if target.node == place.node != ""]
    ready = tuple(target for target in here if target.ready)
    return Selection(Rule.LOCAL, ready) if ready else _terminating(here)


def _terminating(targets: Sequence[Target]) -> Selection:
    left = tuple(target for target in targets if target.serving and target.terminating)
    return Selection(Rule.TERMINATING if left else Rule.NOTHING, left)


def _name(target: Target) -> str:
    return target.name


@dataclass(frozen=True, slots=True)
class Flow:
    """What becomes of the traffic: the part that stays in its zone, and the overload."""

    in_zone: Fraction
    overload: Fraction


def flow(targets: Iterable[Target], shares: Shares) -> Flow:
    """The flow of a Service's traffic if every zone sends its share through its proxies."""
    known = tuple(targets)
    load: dict[str, Fraction] = {}
    used: dict[tuple[str, ...], Fraction] = {}
    stays = Fraction(0)
    for zone, weight in shares.weights.items():
        chosen = nearby(known, Place(zone=zone)).targets
        if not chosen:
            return Flow(Fraction(0), Fraction(0))
        stays += Fraction(weight * sum(target.zone == zone for target in chosen), len(chosen))
        names = tuple(target.name for target in chosen)
        used[names] = used.get(names, Fraction(0)) + Fraction(weight, len(chosen))
    for names, each in used.items():
        for name in names:
            load[name] = load[name] + each if name in load else each
    if not load or not shares.total:
        return Flow(Fraction(0), Fraction(0))
    ready = sum(target.ready for target in known) or len(load)
    return Flow(stays / shares.total, max(load.values()) * ready / shares.total - 1)
