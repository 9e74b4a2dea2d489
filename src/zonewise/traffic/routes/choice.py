"""Which endpoints a proxy in a place uses, with every fallback.

One function per kind of traffic, over the endpoints as a proxy reads them. The output keeps the
order of the input.

* ``nearby``: traffic that may go anywhere. If all ready endpoints carry node hints and one names
  this node, those for this node. Else, if all carry zone hints and one names this zone, those for
  this zone. Else all ready ones: one endpoint without a hint means that hints are just being added
  or removed, and none for this zone means that the zone is new; filtering would overload or
  black-hole. If nothing is ready, those that still serve while they terminate, wherever they are.
* ``by_keys``: the same traffic of a Service with topology keys. In their order, the first key for
  which a ready endpoint's node has the value of this node; if there is none, once more over those
  that still serve while they terminate. Endpoints on no node, or on one that is not known, match
  only ``*``. No match is an answer: no endpoint. Hints are ignored.
* ``by_weights``: the same traffic of a Service whose slices carry weights. Ready endpoints that
  have a weight for this zone, as often as it says; a zone that the weights do not name uses its
  own. If there is none: all ready ones alike, as with hints. Hints are ignored.
* ``local``: traffic that must stay on the node. Ready ones there, else terminating ones that still
  serve. Hints and keys are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

from zonewise.api.objects.core import Node
from zonewise.topology import ZONE_LABEL, zone_of
from zonewise.traffic.endpoint import Hint
from zonewise.traffic.keys import ANY
from zonewise.traffic.routes.addresses import parse_address
from zonewise.traffic.weights import Rows

NodeLabels = Mapping[str, Mapping[str, str]]
"""The labels of all nodes, by their names."""

_NO_LABELS: Mapping[str, str] = MappingProxyType({})


def node_addresses(nodes: Iterable[Node]) -> dict[str, str]:
    """Every address of these nodes, canonical, and the name of the node; the first of two names."""
    addresses: dict[str, str] = {}
    for node in sorted(nodes, key=lambda one: one.metadata.name):
        for entry in node.status.addresses:
            parsed = parse_address(entry.address)
            if parsed is not None:
                addresses.setdefault(parsed.text, node.metadata.name)
    return addresses


class RouteRule(Enum):
    """Why these endpoints are used."""

    SAME_NODE = "SameNode"
    SAME_ZONE = "SameZone"
    PLACE_UNKNOWN = "PlaceUnknown"
    UNHINTED = "Unhinted"
    PARTLY_HINTED = "PartlyHinted"
    NOT_FOR_HERE = "NotForHere"
    WEIGHTED = "Weighted"
    IGNORED = "HintsIgnored"
    LOCAL = "Local"
    TERMINATING = "Terminating"
    NOTHING = "Nothing"
    TOPOLOGY_KEY = "TopologyKey"
    NO_KEY_MATCHES = "NoKeyMatches"


@dataclass(frozen=True, slots=True)
class ProxyLocation:
    """Where a proxy is; "" is unknown. ``addresses``: the node's own, one of each family."""

    zone: str = ""
    node: str = ""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    addresses: tuple[str, ...] = ()

    @classmethod
    def of(cls, node: Node) -> ProxyLocation:
        """The place of a node."""
        found: dict[str, str] = {}
        for kind in ("InternalIP", "ExternalIP"):
            for entry in node.status.addresses:
                parsed = parse_address(entry.address) if entry.type == kind else None
                if parsed is not None:
                    found.setdefault(parsed.family, parsed.text)
        labels = node.metadata.labels
        return cls(zone_of(node), node.metadata.name, labels, tuple(found.values()))

    @classmethod
    def labelled(cls, node: str, labels: Mapping[str, str]) -> ProxyLocation:
        """The place of a node of which only name and labels are known."""
        return cls(labels.get(ZONE_LABEL, ""), node, labels)


class RoutableEndpoint(Protocol):
    """What the choice reads of an endpoint."""

    @property
    def node(self) -> str: ...
    @property
    def ready(self) -> bool: ...
    @property
    def serving(self) -> bool: ...
    @property
    def terminating(self) -> bool: ...
    @property
    def hint(self) -> Hint: ...


class PlacedEndpoint(RoutableEndpoint, Protocol):
    """One whose zone is known as well."""

    @property
    def zone(self) -> str: ...


T = TypeVar("T", bound=RoutableEndpoint)
P = TypeVar("P", bound=PlacedEndpoint)


@dataclass(frozen=True, slots=True)
class Selection(Generic[T]):
    """The endpoints for some traffic, the rule that chose them, and the key, if it was one.

    ``weights`` are how often each is used compared with the others; without any, all are alike.
    """

    rule: RouteRule
    targets: tuple[T, ...] = ()
    key: str | None = None
    weights: tuple[int, ...] = ()


def nearby(targets: Iterable[T], place: ProxyLocation, *, hints: bool = True) -> Selection[T]:
    """The endpoints for traffic that may go anywhere in the cluster."""
    known = tuple(targets)
    ready = tuple(target for target in known if target.ready)
    if not ready:
        return _terminating(known)
    if not hints:
        return Selection(RouteRule.IGNORED, ready)
    if all(target.hint.nodes for target in ready):
        here = tuple(target for target in ready if place.node in target.hint.nodes)
        if here:
            return Selection(RouteRule.SAME_NODE, here)
    if all(target.hint.zones for target in ready):
        here = tuple(target for target in ready if place.zone in target.hint.zones)
        if here:
            return Selection(RouteRule.SAME_ZONE, here)
        return Selection(RouteRule.NOT_FOR_HERE if place.zone else RouteRule.PLACE_UNKNOWN, ready)
    return Selection(_not_by_zone(ready, place), ready)


def by_keys(
    targets: Iterable[T], place: ProxyLocation, keys: Sequence[str], nodes: NodeLabels
) -> Selection[T]:
    """The endpoints for traffic that goes where the topology keys say."""
    known = tuple(targets)
    ready = tuple(target for target in known if target.ready)
    left = tuple(target for target in known if _still_serves(target))
    for pool in (ready, left):
        for key in keys:
            here = pool if key == ANY else _same_value(pool, place, key, nodes)
            if here:
                return Selection(RouteRule.TOPOLOGY_KEY, here, key)
    return Selection(RouteRule.NO_KEY_MATCHES if ready or left else RouteRule.NOTHING)


def by_weights(targets: Iterable[P], place: ProxyLocation, rows: Rows) -> Selection[P]:
    """The endpoints for traffic that weights divide among zones."""
    known = tuple(targets)
    ready = tuple(target for target in known if target.ready)
    if not ready:
        return _terminating(known)
    if not place.zone:
        return Selection(RouteRule.PLACE_UNKNOWN, ready)
    row = rows.get(place.zone, {place.zone: 1})
    here = tuple(target for target in ready if row.get(target.zone))
    if not here:
        return Selection(RouteRule.NOT_FOR_HERE, ready)
    return Selection(RouteRule.WEIGHTED, here, weights=tuple(row[one.zone] for one in here))


def local(targets: Iterable[T], place: ProxyLocation) -> Selection[T]:
    """The endpoints for traffic that must stay on the node."""
    here = tuple(target for target in targets if target.node == place.node != "")
    ready = tuple(target for target in here if target.ready)
    return Selection(RouteRule.LOCAL, ready) if ready else _terminating(here)


def usable(target: RoutableEndpoint) -> bool:
    """Whether any proxy anywhere could use the endpoint."""
    return target.ready or _still_serves(target)


def _not_by_zone(ready: tuple[T, ...], place: ProxyLocation) -> RouteRule:
    """Why all are used where some have no zone hint, and no node hint helped."""
    if not any(target.hint for target in ready):
        return RouteRule.UNHINTED
    if any(target.hint.zones for target in ready) or not all(t.hint.nodes for t in ready):
        return RouteRule.PARTLY_HINTED
    return RouteRule.NOT_FOR_HERE if place.node else RouteRule.PLACE_UNKNOWN


def _same_value(
    pool: tuple[T, ...], place: ProxyLocation, key: str, nodes: NodeLabels
) -> tuple[T, ...]:
    value = place.labels.get(key)
    if value is None:
        return ()
    return tuple(t for t in pool if t.node and nodes.get(t.node, _NO_LABELS).get(key) == value)


def _terminating(targets: tuple[T, ...]) -> Selection[T]:
    left = tuple(target for target in targets if _still_serves(target))
    return Selection(RouteRule.TERMINATING if left else RouteRule.NOTHING, left)


def _still_serves(target: RoutableEndpoint) -> bool:
    return target.serving and target.terminating
