"""The routes of Services on a node: every frontend, and what happens to its packets.

Each frontend has its own policy:

* Local: endpoints of this node, whatever hints and keys say. If there are none here but some
  elsewhere, packets are dropped: a reset would say that there is no endpoint at all, while health
  checks are about to lead the client elsewhere. If there are none anywhere, they are rejected.
* Cluster, and the Service has topology keys: the endpoints that the keys select. If there are none,
  packets are rejected. If the host is the only key, packets from outside keep their source address,
  so they stay on this node, and are dropped as with Local if there are endpoints elsewhere only.
* Cluster, and all slices carry the same weights: as the weights divide.
* Cluster: the endpoints that the hints select, or every endpoint.

Packets from this node and its pods to an external address whose policy is Local may use the whole
cluster: out to the load balancer and back in, they could have come to any node.

Routes of one Service depend on the Service, its slices and the location, and on labels of other
nodes only if it has keys whose values its slices do not state. These are taken from PodLocators,
and from Nodes with a note. So on a change the routes of one Service are computed again, and
compared.
Other Services matter only through ``claims``: a frontend that belongs to another one gets no route.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from msgspec.structs import replace

from zonewise.api.gates import FeatureGates
from zonewise.api.meta import Key
from zonewise.api.objects.core import Service, ServicePort
from zonewise.api.objects.discovery import LeanEndpointSlice, service_name_of
from zonewise.api.reason import Reason
from zonewise.topology.locator_index import LocatedLabels
from zonewise.topology.nodes import HOSTNAME_LABEL
from zonewise.traffic.routes.addresses import network_contains
from zonewise.traffic.routes.choice import (
    ClientLocation,
    Selection,
    ServicePolicy,
    choose_here_by_keys,
    choose_local,
    is_usable,
)
from zonewise.traffic.routes.claims import Claim, Frontend, FrontendClaims, address_in_use
from zonewise.traffic.routes.endpoints import (
    FAMILIES,
    PortKey,
    RouteEndpoint,
    RouteEndpoints,
    read_route_endpoints,
)
from zonewise.traffic.routes.frontends import (
    NO_ADDRESSES,
    FamilyFrontends,
    NodeAddresses,
    ServiceFrontends,
    has_address,
    health_check_frontend,
    read_frontends,
)
from zonewise.traffic.routes.table import (
    Backend,
    HealthCheck,
    NodeRoutes,
    PortRoutes,
    Route,
    RouteAction,
    RoutePath,
    RouteSource,
    ServiceRoutes,
)
from zonewise.traffic.slices.topology import KeysByNode, NodeLabels, unstated_labels
from zonewise.traffic.topology_keys import ignored_keys_reason, topology_keys_of

PROXY_NAME_LABEL = "service.kubernetes.io/service-proxy-name"


LocatedByNode: TypeAlias = Mapping[str, LocatedLabels]
"""What PodLocators state of nodes, by their names."""


@dataclass(frozen=True, slots=True)
class RouteSettings:
    """Which Services are routed, and which hints count by the gates.

    ``proxy_name`` is the value of the label by which a Service chooses its proxy; "" routes those
    that do not choose. ``node_external_ips`` allows addresses of nodes in ``externalIPs``.
    """

    proxy_name: str = ""
    gates: Mapping[str, bool] = field(default_factory=FeatureGates)
    node_external_ips: bool = False


_DEFAULTS = RouteSettings()


def is_routed(service: Service, settings: RouteSettings = _DEFAULTS) -> bool:
    """Whether a proxy has anything to do with a Service."""
    proxy_name = service.metadata.labels.get(PROXY_NAME_LABEL)
    return proxy_name == (settings.proxy_name or None) and has_address(service)


def read_port_endpoints(
    service: Service, slices: Iterable[LeanEndpointSlice], family: str
) -> dict[PortKey, tuple[RouteEndpoint, ...]]:
    """The endpoints of each port of a Service in a family, as its routes take them."""
    endpoints = read_route_endpoints(slices)
    keys = ((port.name, port.protocol) for port in read_frontends(service).ports)
    return {key: endpoints.of_port(family, key) for key in keys}


def frontend_claims(
    service: Service, settings: RouteSettings = _DEFAULTS, addresses: NodeAddresses = NO_ADDRESSES
) -> Mapping[Frontend, Claim]:
    """Every frontend that a Service names, with its claim; none if it is not routed."""
    if not is_routed(service, settings):
        return {}
    keys = topology_keys_of(service, settings.gates)
    return _read_frontends(service, keys, settings, addresses).claims()


def compute_service_routes(
    service: Service,
    slices: Iterable[LeanEndpointSlice],
    location: ClientLocation,
    node_labels: NodeLabels,
    settings: RouteSettings = _DEFAULTS,
    claims: FrontendClaims | None = None,
    addresses: NodeAddresses = NO_ADDRESSES,
    located_labels: LocatedByNode | None = None,
) -> ServiceRoutes:
    """What the proxy in a location does for one Service, given its slices and the nodes' labels.

    ``located_labels`` are those that PodLocators state. They come before those of Nodes, and where
    these are needed in addition there is a note; without them there is none.
    ``addresses`` are those of all nodes; they matter only to a Service with external IPs. There are
    routes for the frontends that it owns by the claims; without claims, for all of them.
    """
    key = namespace, name = _key(service)
    if not is_routed(service, settings):
        return ServiceRoutes(namespace=namespace, service=name)
    endpoints, policy = read_route_endpoints(slices), ServicePolicy.of(service, settings.gates)
    frontends = _read_frontends(service, policy.keys, settings, addresses)
    labels = _LabelSources(located_labels, node_labels) if located_labels else node_labels
    any_local = frontends.internal_local or frontends.external_local
    ports = []
    taken: dict[Key, list[str]] = {}
    for family in frontends.families:
        for port in frontends.ports:
            owned: list[tuple[RoutePath, Frontend]] = []
            for path, frontend in family.of_port(port):
                owner = key if claims is None else claims.owner(frontend)
                if owner == key:
                    owned.append((path, frontend))
                elif owner is not None:
                    taken.setdefault(owner, []).append(_frontend_text(path, frontend))
            port_endpoints = endpoints.of_port(family.family, (port.name, port.protocol))
            zone_weights = endpoints.weights.get(family.family)
            elsewhere = bool(policy.keys) and _is_in_other_family(endpoints, family.family, port)
            cluster = policy.choose_for_cluster(
                port_endpoints, location, labels, zone_weights, in_other_family=elsewhere
            )
            outside: Selection[RouteEndpoint] | None = None
            if frontends.keyed_to_host:
                outside = choose_here_by_keys(
                    port_endpoints, location, policy.keys, labels, elsewhere=elsewhere
                )
            choices = _Choices(
                cluster=_make_choice(cluster),
                local=_make_choice(choose_local(port_endpoints, location)) if any_local else None,
                outside=_make_choice(outside) if outside is not None else None,
                anywhere=(any_local or outside is not None) and any(map(is_usable, port_endpoints)),
            )
            ports.append(
                PortRoutes(
                    name=port.name,
                    family=family.family,
                    protocol=port.protocol,
                    affinity_seconds=frontends.affinity_seconds,
                    routes=tuple(_port_routes(frontends, family, owned, choices, location)),
                    serving=_serving_backends(port_endpoints) if port.protocol == "UDP" else (),
                )
            )
    health_checks = _health_checks(frontends, endpoints, location)
    if frontends.keyed_to_host and claims is not None:
        health_checks, others = _split_health_checks(key, health_checks, claims)
        for owner, text in others:
            taken.setdefault(owner, []).append(text)
    keys_reason = ignored_keys_reason(service, settings.gates)
    from_nodes = located_labels is not None and not are_located(
        unstated_labels(endpoints, policy.keys), located_labels
    )
    return ServiceRoutes(
        namespace=namespace,
        service=name,
        ports=tuple(ports),
        health_checks=health_checks,
        notes=(
            *((keys_reason,) if keys_reason else ()),
            *((_labels_from_nodes(key),) if from_nodes else ()),
            *frontends.notes,
            *(address_in_use(key, owner, taken[owner]) for owner in sorted(taken)),
            *endpoints.notes,
        ),
        keyed=bool(policy.keys),
    )


def are_located(unstated: KeysByNode, located: LocatedByNode) -> bool:
    """Whether PodLocators state all labels that slices leave out."""
    return all(node in located and located[node].know(keys) for node, keys in unstated.items())


def compute_node_routes(
    services: Iterable[Service],
    slices: Iterable[LeanEndpointSlice],
    location: ClientLocation,
    node_labels: NodeLabels,
    settings: RouteSettings = _DEFAULTS,
    addresses: NodeAddresses = NO_ADDRESSES,
    located_labels: LocatedByNode | None = None,
) -> NodeRoutes:
    """What the proxy in a location does for all Services."""
    slices_by_service: dict[Key, list[LeanEndpointSlice]] = {}
    for endpoint_slice in slices:
        if name := service_name_of(endpoint_slice):
            key = endpoint_slice.metadata.namespace or "default", name
            slices_by_service.setdefault(key, []).append(endpoint_slice)
    routed = sorted((service for service in services if is_routed(service, settings)), key=_key)
    claims = FrontendClaims()
    for service in routed:
        claims.claim(_key(service), frontend_claims(service, settings, addresses))
    routes = (
        compute_service_routes(
            service,
            slices_by_service.get(_key(service), ()),
            location,
            node_labels,
            settings,
            claims,
            addresses,
            located_labels,
        )
        for service in routed
    )
    return NodeRoutes(node=location.node, zone=location.zone, services=tuple(routes))


@dataclass(frozen=True, slots=True)
class _LabelSources(Mapping[str, Mapping[str, str]]):
    """The labels of nodes: those of PodLocators, and of Nodes where these do not know them."""

    located: LocatedByNode
    of_nodes: NodeLabels

    def __getitem__(self, node: str) -> Mapping[str, str]:
        located = self.located.get(node)
        if located is None:
            return self.of_nodes[node]
        return located.completed(self.of_nodes.get(node))

    def __iter__(self) -> Iterator[str]:
        return iter({*self.located, *self.of_nodes})

    def __len__(self) -> int:
        return len({*self.located, *self.of_nodes})


@dataclass(frozen=True, slots=True)
class _Choice:
    """A selection with its endpoints as they are written."""

    selection: Selection[RouteEndpoint]
    backends: tuple[Backend, ...]


@dataclass(frozen=True, slots=True)
class _Choices:
    """The endpoints if packets may leave the node and if not; whether any can be used anywhere.

    ``local`` is None if no frontend has the policy Local, ``outside`` unless the host is the only
    topology key.
    """

    cluster: _Choice
    local: _Choice | None
    outside: _Choice | None
    anywhere: bool


def _port_routes(
    frontends: ServiceFrontends,
    family: FamilyFrontends,
    owned: Iterable[tuple[RoutePath, Frontend]],
    choices: _Choices,
    location: ClientLocation,
) -> Iterator[Route]:
    def route(path: RoutePath, frontend: Frontend, source: RouteSource, *, stay: bool) -> Route:
        choice = choices.cluster
        if stay:
            choice = (choices.outside if source == "outside" else None) or choices.local or choice
        action: RouteAction = "dnat"
        if not choice.backends:
            action = "drop" if stay and choices.anywhere else "reject"
        _, _, address, number = frontend
        ranges = family.source_ranges if address in family.vips else ()
        return Route(
            path=path,
            address=address,
            number=number,
            source=source,
            action=action,
            rule=choice.selection.rule,
            key=choice.selection.key,
            endpoints=choice.backends,
            source_ranges=ranges,
            own_sources=family.vips if _is_node_in_range(location, ranges) else (),
        )

    for path, frontend in owned:
        if path == "ClusterIP":
            yield route(path, frontend, "any", stay=frontends.internal_local)
        elif frontends.shortcut or frontends.keyed_to_host:
            yield route(path, frontend, "inside", stay=False)
            yield route(path, frontend, "outside", stay=True)
        else:
            yield route(path, frontend, "any", stay=frontends.external_local)


def _read_frontends(
    service: Service, keys: tuple[str, ...], settings: RouteSettings, addresses: NodeAddresses
) -> ServiceFrontends:
    anywhere = settings.node_external_ips
    return read_frontends(service, addresses, keys=keys, allow_node_addresses=anywhere)


def _is_in_other_family(endpoints: RouteEndpoints, family: str, port: ServicePort) -> bool:
    """Whether a port has usable endpoints in another family than this one."""
    key = port.name, port.protocol
    return any(
        is_usable(endpoint)
        for other in FAMILIES
        if other != family
        for endpoint in endpoints.of_port(other, key)
    )


def _frontend_text(path: str, frontend: Frontend) -> str:
    _, protocol, address, number = frontend
    host = "*" if address is None else f"[{address}]" if ":" in address else address
    return f"{path} {host}:{number}/{protocol}"


def _make_choice(selection: Selection[RouteEndpoint]) -> _Choice:
    if not selection.weights:
        return _Choice(selection, tuple(endpoint.backend for endpoint in selection.endpoints))
    weighted = zip(selection.endpoints, selection.weights, strict=True)
    backends = (replace(endpoint.backend, weight=weight) for endpoint, weight in weighted)
    return _Choice(selection, tuple(backends))


def _serving_backends(endpoints: Iterable[RouteEndpoint]) -> tuple[Backend, ...]:
    return tuple(endpoint.backend for endpoint in endpoints if endpoint.serving)


def _is_node_in_range(location: ClientLocation, ranges: tuple[str, ...]) -> bool:
    """Whether the node itself is in the source ranges."""
    return any(
        network_contains(network, address)
        for address in location.addresses
        for network in ranges
        if (":" in network) is (":" in address)
    )


def _health_checks(
    frontends: ServiceFrontends, endpoints: RouteEndpoints, location: ClientLocation
) -> tuple[HealthCheck, ...]:
    if not (frontends.health_port and frontends.ports):
        return ()
    # Without the label no packet from outside has an endpoint here.
    is_keyed_away = frontends.keyed_to_host and HOSTNAME_LABEL not in location.labels
    node = "" if is_keyed_away else location.node
    return tuple(
        HealthCheck(
            family=family.family,
            port=frontends.health_port,
            local_endpoints=endpoints.count_local_ready(family.family, node),
        )
        for family in frontends.families
    )


def _split_health_checks(
    key: Key, checks: Iterable[HealthCheck], claims: FrontendClaims
) -> tuple[tuple[HealthCheck, ...], list[tuple[Key, str]]]:
    """The health checks whose port is the Service's, and the owners of the ports of others."""
    served: list[HealthCheck] = []
    others: list[tuple[Key, str]] = []
    for check in checks:
        frontend = health_check_frontend(check.family, check.port)
        owner = claims.owner(frontend)
        if owner == key:
            served.append(check)
        elif owner is not None:
            others.append((owner, _frontend_text("health check", frontend)))
    return tuple(served), others


def _labels_from_nodes(service: Key) -> Reason:
    return Reason(
        code="LabelsFromNodes",
        message="the values of its topology keys are read from Nodes: its slices do not state those"
        " of all endpoints, and no PodLocator on their nodes has these labels",
        object=f"Service/{'/'.join(service)}",
        fix="Have zonewise controller write or adopt its slices, or have it write PodLocators with"
        " these labels.",
    )


def _key(service: Service) -> Key:
    return service.metadata.namespace or "default", service.metadata.name
