"""Which endpoints a proxy uses for a client in a location, with every fallback.

One function per kind of traffic, over the endpoints as a proxy reads them. The output keeps the
order of the input.

* ``choose_by_hints``: traffic that may go anywhere. If all ready endpoints have node hints and one
  names this node, those for this node. Else, if all have zone hints and one names this zone, those
  for this zone. Else all ready ones: one endpoint without a hint means that hints are just being
  added or removed, and none for this zone means that the zone is new; filtering would overload
  endpoints or leave clients without any. If nothing is ready, those that still serve while they
  terminate, wherever they are.
* ``choose_by_keys``: the same traffic of a Service with topology keys. In their order, the first
  key for which a ready endpoint's node has the value of this node; if there is none, once more over
  those that still serve while they terminate (``TERMINATING``). ``kubernetes.io/hostname`` stands
  for the node itself; other values are what the slice states, else the labels that are known of the
  node. Endpoints on no node, or on one that is not known, match only ``*``. Without a match there
  is no endpoint. Hints are ignored.
* ``choose_by_weights``: the same traffic of a Service whose slices carry weights. Ready endpoints
  that have a weight for this zone, in proportion to it; a zone that the weights do not name uses
  its own endpoints. If there are none: all ready ones alike, as with hints. Hints are ignored.
* ``choose_local``: traffic that must stay on the node. Ready endpoints there, else terminating ones
  that still serve. Hints and keys are ignored.

``ServicePolicy`` says which of these a Service uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, Protocol, TypeVar

from zonewise.api.gates import TOPOLOGY_AWARE_HINTS
from zonewise.api.objects.core import Node, Service
from zonewise.topology.nodes import HOSTNAME_LABEL, ZONE_LABEL, zone_of
from zonewise.traffic.endpoint import Hint
from zonewise.traffic.modes import counts_zone_hints
from zonewise.traffic.routes.addresses import parse_address
from zonewise.traffic.slices.topology import NodeLabels, StatedLabels, domain_of
from zonewise.traffic.topology_keys import ANY_ENDPOINT, topology_keys_of
from zonewise.traffic.weights import ZoneWeights


def node_addresses(nodes: Iterable[Node]) -> dict[str, str]:
    """The name of the node by each canonical address; of two nodes the first by name."""
    addresses: dict[str, str] = {}
    for node in sorted(nodes, key=lambda node: node.metadata.name):
        for entry in node.status.addresses:
            parsed = parse_address(entry.address)
            if parsed is not None:
                addresses.setdefault(parsed.text, node.metadata.name)
    return addresses


class RouteRule(Enum):
    """Why these endpoints are used."""

    SAME_NODE = "SameNode"
    SAME_ZONE = "SameZone"
    LOCATION_UNKNOWN = "PlaceUnknown"
    UNHINTED = "Unhinted"
    PARTLY_HINTED = "PartlyHinted"
    NO_HINT_FOR_LOCATION = "NotForHere"
    WEIGHTED = "Weighted"
    IGNORED = "HintsIgnored"
    LOCAL = "Local"
    TERMINATING = "Terminating"
    NOTHING = "Nothing"
    TOPOLOGY_KEY = "TopologyKey"
    NO_KEY_MATCHES = "NoKeyMatches"


@dataclass(frozen=True, slots=True)
class ClientLocation:
    """Where a client is; "" is unknown. ``addresses`` are its node's own, one of each family."""

    zone: str = ""
    node: str = ""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    addresses: tuple[str, ...] = ()

    @classmethod
    def of(cls, node: Node) -> ClientLocation:
        """The location of clients on a node."""
        by_family: dict[str, str] = {}
        for kind in ("InternalIP", "ExternalIP"):
            for entry in node.status.addresses:
                parsed = parse_address(entry.address) if entry.type == kind else None
                if parsed is not None:
                    by_family.setdefault(parsed.family, parsed.text)
        labels = node.metadata.labels
        return cls(zone_of(node), node.metadata.name, labels, tuple(by_family.values()))

    @classmethod
    def of_labels(cls, node: str, labels: Mapping[str, str]) -> ClientLocation:
        """The location of clients on a node of which only name and labels are known."""
        return cls(labels.get(ZONE_LABEL, ""), node, labels)

    def domain(self, key: str) -> str | None:
        """The value of a topology key here, None if there is no such label."""
        value = self.labels.get(key)
        return self.node if key == HOSTNAME_LABEL and value is not None else value


class RoutableEndpoint(Protocol):
    """What this module reads of an endpoint."""

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
    """An endpoint with what its slice states of where it is."""

    @property
    def zone(self) -> str: ...
    @property
    def labels(self) -> StatedLabels: ...


EndpointT = TypeVar("EndpointT", bound=RoutableEndpoint)
PlacedEndpointT = TypeVar("PlacedEndpointT", bound=PlacedEndpoint)


@dataclass(frozen=True, slots=True)
class Selection(Generic[EndpointT]):
    """The endpoints for some traffic, the rule that chose them, and the key, if it was one.

    ``weights`` are how often each is used compared with the others; without any, all are alike.
    """

    rule: RouteRule
    endpoints: tuple[EndpointT, ...] = ()
    key: str | None = None
    weights: tuple[int, ...] = ()


def choose_by_hints(
    endpoints: Iterable[EndpointT], location: ClientLocation, *, zone_hints: bool = True
) -> Selection[EndpointT]:
    """The endpoints for traffic that may go anywhere in the cluster.

    Without ``zone_hints`` those for zones are as if they were not there.
    """
    all_endpoints = tuple(endpoints)
    ready = tuple(endpoint for endpoint in all_endpoints if endpoint.ready)
    if not ready:
        return _choose_terminating(all_endpoints)
    if all(endpoint.hint.nodes for endpoint in ready):
        matches = tuple(endpoint for endpoint in ready if location.node in endpoint.hint.nodes)
        if matches:
            return Selection(RouteRule.SAME_NODE, matches)
    if not zone_hints and any(endpoint.hint.zones for endpoint in ready):
        return Selection(RouteRule.IGNORED, ready)
    if all(endpoint.hint.zones for endpoint in ready):
        matches = tuple(endpoint for endpoint in ready if location.zone in endpoint.hint.zones)
        if matches:
            return Selection(RouteRule.SAME_ZONE, matches)
        rule = RouteRule.NO_HINT_FOR_LOCATION if location.zone else RouteRule.LOCATION_UNKNOWN
        return Selection(rule, ready)
    return Selection(_unfiltered_rule(ready, location), ready)


def choose_by_keys(
    endpoints: Iterable[PlacedEndpointT],
    location: ClientLocation,
    keys: Sequence[str],
    node_labels: NodeLabels,
    *,
    elsewhere: bool = False,
) -> Selection[PlacedEndpointT]:
    """The endpoints for traffic that goes where the topology keys say.

    ``elsewhere`` says that there are endpoints which are not in question, so it is the keys that
    leave none: in another family, or on another node.
    """
    all_endpoints = tuple(endpoints)
    ready = tuple(endpoint for endpoint in all_endpoints if endpoint.ready)
    terminating = tuple(
        endpoint for endpoint in all_endpoints if _serves_while_terminating(endpoint)
    )
    for rule, pool in ((RouteRule.TOPOLOGY_KEY, ready), (RouteRule.TERMINATING, terminating)):
        for key in keys:
            matches = pool
            if key != ANY_ENDPOINT:
                matches = _same_domain(pool, location, key, node_labels)
            if matches:
                return Selection(rule, matches, key)
    any_endpoint = ready or terminating or elsewhere
    return Selection(RouteRule.NO_KEY_MATCHES if any_endpoint else RouteRule.NOTHING)


def choose_here_by_keys(
    endpoints: Iterable[PlacedEndpointT],
    location: ClientLocation,
    keys: Sequence[str],
    node_labels: NodeLabels,
    *,
    elsewhere: bool = False,
) -> Selection[PlacedEndpointT]:
    """Those endpoints for such traffic that are on the node itself, whatever the keys are."""
    all_endpoints = tuple(endpoints)
    on_node = (endpoint for endpoint in all_endpoints if endpoint.node == location.node != "")
    elsewhere = elsewhere or any(map(is_usable, all_endpoints))
    return choose_by_keys(on_node, location, keys, node_labels, elsewhere=elsewhere)


def choose_by_weights(
    endpoints: Iterable[PlacedEndpointT], location: ClientLocation, zone_weights: ZoneWeights
) -> Selection[PlacedEndpointT]:
    """The endpoints for traffic that weights divide among zones."""
    all_endpoints = tuple(endpoints)
    ready = tuple(endpoint for endpoint in all_endpoints if endpoint.ready)
    if not ready:
        return _choose_terminating(all_endpoints)
    if not location.zone:
        return Selection(RouteRule.LOCATION_UNKNOWN, ready)
    row = zone_weights.get(location.zone, {location.zone: 1})
    matches = tuple(endpoint for endpoint in ready if row.get(endpoint.zone))
    if not matches:
        return Selection(RouteRule.NO_HINT_FOR_LOCATION, ready)
    weights = tuple(row[endpoint.zone] for endpoint in matches)
    return Selection(RouteRule.WEIGHTED, matches, weights=weights)


def choose_local(endpoints: Iterable[EndpointT], location: ClientLocation) -> Selection[EndpointT]:
    """The endpoints for traffic that must stay on the node."""
    on_node = tuple(endpoint for endpoint in endpoints if endpoint.node == location.node != "")
    ready = tuple(endpoint for endpoint in on_node if endpoint.ready)
    return Selection(RouteRule.LOCAL, ready) if ready else _choose_terminating(on_node)


@dataclass(frozen=True, slots=True)
class ServicePolicy:
    """What of a Service decides: topology keys, else weights and hints.

    ``internal_local`` is for traffic to the ClusterIP, and comes before all of them. Routes of
    proxies, simulated clients and reports on hints that are not written yet all use this class.
    """

    keys: tuple[str, ...] = ()
    zone_hints: bool = True
    weights: bool = True
    internal_local: bool = False

    @classmethod
    def of(cls, service: Service, gates: Mapping[str, bool]) -> ServicePolicy:
        """The policy of a Service; the gate switches weights, and most zone hints."""
        spec = service.spec
        return cls(
            topology_keys_of(service, gates),
            counts_zone_hints(service, gates),
            gates[TOPOLOGY_AWARE_HINTS],
            "Local" in (spec.traffic_policy, spec.internal_traffic_policy),
        )

    def choose_for_cluster(
        self,
        endpoints: Iterable[PlacedEndpointT],
        location: ClientLocation,
        node_labels: NodeLabels,
        zone_weights: ZoneWeights | None,
        *,
        in_other_family: bool = False,
    ) -> Selection[PlacedEndpointT]:
        """The endpoints for traffic that may leave its node."""
        if self.keys:
            elsewhere = in_other_family
            return choose_by_keys(endpoints, location, self.keys, node_labels, elsewhere=elsewhere)
        if self.weights and zone_weights is not None:
            return choose_by_weights(endpoints, location, zone_weights)
        return choose_by_hints(endpoints, location, zone_hints=self.zone_hints)

    def choose_for_cluster_ip(
        self,
        endpoints: Iterable[PlacedEndpointT],
        location: ClientLocation,
        node_labels: NodeLabels,
        zone_weights: ZoneWeights | None,
        *,
        in_other_family: bool = False,
    ) -> Selection[PlacedEndpointT]:
        """The endpoints for traffic to the ClusterIP."""
        if self.internal_local:
            return choose_local(endpoints, location)
        return self.choose_for_cluster(
            endpoints, location, node_labels, zone_weights, in_other_family=in_other_family
        )


def is_usable(endpoint: RoutableEndpoint) -> bool:
    """Whether any proxy could use the endpoint."""
    return endpoint.ready or _serves_while_terminating(endpoint)


def _unfiltered_rule(ready: tuple[EndpointT, ...], location: ClientLocation) -> RouteRule:
    """Why all endpoints are used although no node hint applies and some have no zone hint."""
    if not any(endpoint.hint for endpoint in ready):
        return RouteRule.UNHINTED
    if any(endpoint.hint.zones for endpoint in ready) or not all(
        endpoint.hint.nodes for endpoint in ready
    ):
        return RouteRule.PARTLY_HINTED
    return RouteRule.NO_HINT_FOR_LOCATION if location.node else RouteRule.LOCATION_UNKNOWN


def _same_domain(
    pool: tuple[PlacedEndpointT, ...], location: ClientLocation, key: str, node_labels: NodeLabels
) -> tuple[PlacedEndpointT, ...]:
    value = location.domain(key)
    if value is None:
        return ()
    return tuple(endpoint for endpoint in pool if domain_of(endpoint, key, node_labels) == value)


def _choose_terminating(endpoints: tuple[EndpointT, ...]) -> Selection[EndpointT]:
    terminating = tuple(endpoint for endpoint in endpoints if _serves_while_terminating(endpoint))
    return Selection(RouteRule.TERMINATING if terminating else RouteRule.NOTHING, terminating)


def _serves_while_terminating(endpoint: RoutableEndpoint) -> bool:
    return endpoint.serving and endpoint.terminating
