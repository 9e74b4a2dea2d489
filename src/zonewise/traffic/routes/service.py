"""The routes of Services on a node: every way in, and what happens to its packets.

Each way in is decided by its own policy:

* Local: endpoints of this node, whatever hints and keys say. None here but some elsewhere: packets
  are dropped, since a reset would tell the client that there is no endpoint at all while health
  checks are about to lead it elsewhere. None anywhere: they are rejected.
* Cluster, and the Service has topology keys: the endpoints that the keys select. None: rejected at
  once.
* Cluster, and all slices carry the same weights: as the weights divide.
* Cluster: the endpoints that the hints select, or every endpoint.

From this node and its pods, an external address whose policy is Local is short-cut to the whole
cluster: out to the load balancer and back in, such a packet could have come to any node.

Pure and cheap: routes of one Service depend on the Service, its slices and the place, and on labels
of other nodes only if it has keys. So on a change the routes of one Service are made again and
compared. Other Services matter only through ``claims``: a way in that belongs to another one gets
no route.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from zonewise.api.gates import FeatureGates
from zonewise.api.meta import Key
from zonewise.api.objects.core import Service
from zonewise.api.objects.discovery import LeanEndpointSlice, service_of
from zonewise.traffic.keys import invalid_keys
from zonewise.traffic.routes.addresses import contains
from zonewise.traffic.routes.choice import (
    NodeLabels,
    ProxyLocation,
    Selection,
    local,
    usable,
)
from zonewise.traffic.routes.claims import Claim, Way, WayClaims, taken
from zonewise.traffic.routes.endpoints import (
    PortKey,
    RouteEndpoint,
    RouteEndpoints,
    read_endpoints,
)
from zonewise.traffic.routes.policy import ServicePolicy
from zonewise.traffic.routes.table import (
    Backend,
    HealthCheck,
    NodeRoutes,
    Path,
    PortRoutes,
    Route,
    RouteAction,
    ServiceRoutes,
    Source,
)
from zonewise.traffic.routes.ways import (
    NO_ADDRESSES,
    Entrance,
    NodeAddresses,
    WaysIn,
    entrance,
    has_address,
)

PROXY_NAME_LABEL = "service.kubernetes.io/service-proxy-name"


@dataclass(frozen=True, slots=True)
class RouteSettings:
    """Which Services are routed, and whether the gate enables PreferZone.

    ``proxy_name`` is the value of the label by which a Service chooses its proxy; "" routes those
    that do not choose. ``node_external_ips`` allows addresses of nodes in ``externalIPs``.
    """

    proxy_name: str = ""
    gates: Mapping[str, bool] = field(default_factory=FeatureGates)
    node_external_ips: bool = False


_DEFAULTS = RouteSettings()


def is_routed(service: Service, settings: RouteSettings = _DEFAULTS) -> bool:
    """Whether a proxy has anything to do with a Service."""
    chosen = service.metadata.labels.get(PROXY_NAME_LABEL)
    return chosen == (settings.proxy_name or None) and has_address(service)


def port_endpoints(
    service: Service, slices: Iterable[LeanEndpointSlice], family: str
) -> dict[PortKey, tuple[RouteEndpoint, ...]]:
    """The endpoints of each port of a Service in a family, as its routes take them."""
    known = read_endpoints(slices)
    keys = ((port.name, port.protocol) for port in entrance(service).ports)
    return {key: known.of(family, key) for key in keys}


def ways_wanted(
    service: Service,
    settings: RouteSettings = _DEFAULTS,
    addresses: NodeAddresses = NO_ADDRESSES,
) -> Mapping[Way, Claim]:
    """Every way in that a Service names, as ``WayClaims`` take it; none if it is not routed."""
    if not is_routed(service, settings):
        return {}
    return entrance(service, addresses, on_nodes=settings.node_external_ips).wanted()


def service_routes(
    service: Service,
    slices: Iterable[LeanEndpointSlice],
    place: ProxyLocation,
    nodes: NodeLabels,
    settings: RouteSettings = _DEFAULTS,
    claims: WayClaims | None = None,
    addresses: NodeAddresses = NO_ADDRESSES,
) -> ServiceRoutes:
    """What the proxy in a place does for one Service, given its slices and the nodes' labels.

    ``addresses`` are those of all nodes; they matter only to a Service with external IPs. It has
    those of its ways in that are its own by the claims; without claims, all of them.
    """
    key = namespace, name = _key(service)
    if not is_routed(service, settings):
        return ServiceRoutes(namespace=namespace, service=name)
    offered = entrance(service, addresses, on_nodes=settings.node_external_ips)
    endpoints, policy = read_endpoints(slices), ServicePolicy.of(service, settings.gates)
    stays = offered.internal_local or offered.external_local
    ports = []
    lost: dict[Key, list[str]] = {}
    for ways in offered.ways:
        for port in offered.ports:
            there: list[tuple[Path, Way]] = []
            for path, way in ways.into(port):
                owner = key if claims is None else claims.owner(way)
                if owner == key:
                    there.append((path, way))
                elif owner is not None:
                    lost.setdefault(owner, []).append(_words(path, way))
            known = endpoints.of(ways.family, (port.name, port.protocol))
            rows = endpoints.weights.get(ways.family)
            choices = _Choices(
                cluster=_choice(policy.cluster(known, place, nodes, rows)),
                local=_choice(local(known, place)) if stays else None,
                anywhere=stays and any(map(usable, known)),
            )
            ports.append(
                PortRoutes(
                    name=port.name,
                    family=ways.family,
                    protocol=port.protocol,
                    affinity_seconds=offered.affinity_seconds,
                    routes=tuple(_routes(offered, ways, there, choices, place)),
                    serving=_serving(known) if port.protocol == "UDP" else (),
                )
            )
    ignored = invalid_keys(service)
    return ServiceRoutes(
        namespace=namespace,
        service=name,
        ports=tuple(ports),
        health_checks=_health_checks(offered, endpoints, place),
        notes=(
            *((ignored,) if ignored else ()),
            *offered.notes,
            *(taken(key, owner, lost[owner]) for owner in sorted(lost)),
            *endpoints.notes,
        ),
        keyed=bool(policy.keys),
    )


def node_routes(
    services: Iterable[Service],
    slices: Iterable[LeanEndpointSlice],
    place: ProxyLocation,
    nodes: NodeLabels,
    settings: RouteSettings = _DEFAULTS,
    addresses: NodeAddresses = NO_ADDRESSES,
) -> NodeRoutes:
    """What the proxy in a place does for all Services."""
    pieces: dict[Key, list[LeanEndpointSlice]] = {}
    for piece in slices:
        if name := service_of(piece):
            pieces.setdefault((piece.metadata.namespace or "default", name), []).append(piece)
    routed = sorted((one for one in services if is_routed(one, settings)), key=_key)
    claims = WayClaims()
    for service in routed:
        claims.claim(_key(service), ways_wanted(service, settings, addresses))
    made = (
        service_routes(
            service, pieces.get(_key(service), ()), place, nodes, settings, claims, addresses
        )
        for service in routed
    )
    return NodeRoutes(node=place.node, zone=place.zone, services=tuple(made))


@dataclass(frozen=True, slots=True)
class _Choice:
    """A selection with its endpoints as they are written."""

    selection: Selection[RouteEndpoint]
    backends: tuple[Backend, ...]


@dataclass(frozen=True, slots=True)
class _Choices:
    """The endpoints to choose from, if packets may leave the node and if not; any ``anywhere``?

    ``local`` is None if no way in has the policy Local.
    """

    cluster: _Choice
    local: _Choice | None
    anywhere: bool


def _routes(
    offered: Entrance,
    ways: WaysIn,
    there: Iterable[tuple[Path, Way]],
    choices: _Choices,
    place: ProxyLocation,
) -> Iterator[Route]:
    def route(path: Path, way: Way, source: Source, *, stay: bool) -> Route:
        choice = choices.local if stay and choices.local else choices.cluster
        action: RouteAction = "dnat"
        if not choice.backends:
            action = "drop" if stay and choices.anywhere else "reject"
        _, _, address, number = way
        ranges = ways.source_ranges if address in ways.vips else ()
        return Route(
            path=path,
            address=address,
            number=number,
            source=source,
            action=action,
            why=choice.selection.rule,
            key=choice.selection.key,
            endpoints=choice.backends,
            source_ranges=ranges,
            own_sources=ways.vips if _in_range(place, ranges) else (),
        )

    for path, way in there:
        if path == "ClusterIP":
            yield route(path, way, "any", stay=offered.internal_local)
        elif offered.short_cut:
            yield route(path, way, "inside", stay=False)
            yield route(path, way, "outside", stay=True)
        else:
            yield route(path, way, "any", stay=offered.external_local)


def _words(path: Path, way: Way) -> str:
    _, protocol, address, number = way
    where = "*" if address is None else f"[{address}]" if ":" in address else address
    return f"{path} {where}:{number}/{protocol}"


def _choice(selection: Selection[RouteEndpoint]) -> _Choice:
    if not selection.weights:
        return _Choice(selection, tuple(one.backend for one in selection.targets))
    weighed = zip(selection.targets, selection.weights, strict=True)
    return _Choice(selection, tuple(replace(one.backend, weight=weight) for one, weight in weighed))


def _serving(known: Iterable[RouteEndpoint]) -> tuple[Backend, ...]:
    return tuple(one.backend for one in known if one.serving)


def _in_range(place: ProxyLocation, ranges: tuple[str, ...]) -> bool:
    """Whether the node itself is in the source ranges."""
    return any(
        contains(network, address)
        for address in place.addresses
        for network in ranges
        if (":" in network) is (":" in address)
    )


def _health_checks(
    offered: Entrance, endpoints: RouteEndpoints, place: ProxyLocation
) -> tuple[HealthCheck, ...]:
    if not (offered.health_port and offered.ports):
        return ()
    return tuple(
        HealthCheck(
            family=ways.family,
            port=offered.health_port,
            local_endpoints=endpoints.local_ready(ways.family, place.node),
        )
        for ways in offered.ways
    )


def _key(service: Service) -> Key:
    return service.metadata.namespace or "default", service.metadata.name
