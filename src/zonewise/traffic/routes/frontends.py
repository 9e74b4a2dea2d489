"""The frontends of a Service, read from the object alone, as kube-proxy 1.36 reads it.

A frontend is an address and a port at which clients reach the Service. An address family counts if
the Service has a ClusterIP in it. A port is reachable from outside by its own node port, by an
external IP, or by an address of a load balancer that forwards packets unchanged (``ipMode: VIP``).
The Service's type decides one thing only: whether ``externalTrafficPolicy`` applies.

Unlike kube-proxy, an external IP that is the address of a node is ignored unless that is allowed:
otherwise whoever may write a Service could take the packets to any port of any node, such as those
of an API server or a kubelet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias

from zonewise.api.objects.core import Service, ServicePort
from zonewise.api.reason import Reason
from zonewise.api.struct import Struct
from zonewise.traffic.host_key import (
    HEALTH_PORT_ANNOTATION,
    PORT_LIMIT,
    health_port_error,
    health_port_of,
    stays_on_host,
)
from zonewise.traffic.routes.addresses import parse_address, parse_network
from zonewise.traffic.routes.claims import Claim, ClaimBasis, Frontend
from zonewise.traffic.routes.table import Family, RoutePath

AFFINITY_SECONDS = 10_800
"""How long a client keeps its endpoint if the Service does not say."""
AFFINITY_LIMIT = 86_400

NodeAddresses: TypeAlias = Mapping[str, str]
"""The name of the node by each canonical address of all nodes."""
NO_ADDRESSES: NodeAddresses = MappingProxyType({})

_FAMILIES: tuple[Literal["IPv4"], Literal["IPv6"]] = ("IPv4", "IPv6")
_PROTOCOLS = ("TCP", "UDP", "SCTP")
_BASES: Mapping[RoutePath, ClaimBasis] = {
    "ClusterIP": ClaimBasis.CLUSTER_IP,
    "LoadBalancer": ClaimBasis.ASSIGNED,
    "NodePort": ClaimBasis.ASSIGNED,
    "ExternalIP": ClaimBasis.NAMED,
}
_NO_ADDRESS = ("", "None")


class FamilyFrontends(Struct):
    """The addresses of a Service in one family. No ``source_ranges``: all sources are allowed."""

    family: Family
    cluster_ip: str
    external_ips: tuple[str, ...]
    vips: tuple[str, ...]
    source_ranges: tuple[str, ...]

    def of_port(self, port: ServicePort) -> Iterator[tuple[RoutePath, Frontend]]:
        """Every frontend of a port, its ClusterIP first; an address may occur with two paths."""
        family, protocol, number = self.family, port.protocol, port.port
        yield "ClusterIP", (family, protocol, self.cluster_ip, number)
        for address in self.external_ips:
            yield "ExternalIP", (family, protocol, address, number)
        for address in self.vips:
            yield "LoadBalancer", (family, protocol, address, number)
        if port.node_port:
            yield "NodePort", (family, protocol, None, port.node_port)


class ServiceFrontends(Struct):
    """Ports, addresses by family, and policies of a Service.

    ``internal_local`` and ``external_local`` say which packets may not leave the node. With
    ``shortcut`` packets to an external address that start on the node may leave it. With
    ``keyed_to_host`` those from outside may not, and all are chosen by the key.
    ``health_basis`` says where the port of health checks comes from.
    """

    ports: tuple[ServicePort, ...]
    families: tuple[FamilyFrontends, ...]
    internal_local: bool
    external_local: bool
    shortcut: bool
    keyed_to_host: bool
    affinity_seconds: int | None
    health_port: int
    health_basis: ClaimBasis
    notes: tuple[Reason, ...]
    created: str | None
    node_addresses: frozenset[str]
    """The external IPs that are addresses of nodes."""

    def claims(self) -> dict[Frontend, Claim]:
        """Every frontend, with the best claim of those by which the Service names it."""
        claims: dict[Frontend, Claim] = {}
        for family in self.families:
            for port in self.ports:
                for path, frontend in family.of_port(port):
                    basis = _BASES[path]
                    if basis is ClaimBasis.NAMED and frontend[2] in self.node_addresses:
                        basis = ClaimBasis.NAMED_ON_NODE
                    claim = Claim.of(basis, self.created)
                    claims[frontend] = min(claim, claims.get(frontend, claim))
            if self.health_port and self.ports:
                frontend = health_check_frontend(family.family, self.health_port)
                claims.setdefault(frontend, Claim.of(self.health_basis, self.created))
        return claims


def health_check_frontend(family: Family, port: int) -> Frontend:
    """The port of nodes on which health checks are answered."""
    return family, "TCP", None, port


def has_address(service: Service) -> bool:
    """Whether a Service has an address of its own: it is neither headless nor an ExternalName."""
    return service.spec.cluster_ip not in _NO_ADDRESS and service.spec.type != "ExternalName"


def read_frontends(
    service: Service,
    node_addresses: NodeAddresses = NO_ADDRESSES,
    *,
    keys: Sequence[str] = (),
    allow_node_addresses: bool = False,
) -> ServiceFrontends:
    """The frontends of a Service with topology keys that count.

    External IPs may be addresses of nodes only if that is allowed.
    """
    spec = service.spec
    reachable_from_outside = spec.type in ("NodePort", "LoadBalancer") or (
        spec.type in ("", "ClusterIP") and bool(spec.external_ips)
    )
    external_local = reachable_from_outside and spec.external_traffic_policy == "Local"
    everything_local = spec.traffic_policy == "Local"
    keyed_to_host = reachable_from_outside and not everything_local and stays_on_host(keys)
    errors: list[str] = []
    refused: NodeAddresses = NO_ADDRESSES if allow_node_addresses else node_addresses
    notes: list[Reason] = []
    health_port = _read_named_health_port(service, keys, errors)
    if external_local and spec.type == "LoadBalancer":
        health_port = _read_health_port(service, errors)
    families = tuple(
        family_frontends
        for family in _FAMILIES
        if (family_frontends := _read_family(service, family, errors, refused, notes))
    )
    return ServiceFrontends(
        ports=_read_ports(service, errors),
        families=families,
        internal_local=everything_local or spec.internal_traffic_policy == "Local",
        external_local=everything_local or external_local,
        shortcut=external_local and not everything_local,
        keyed_to_host=keyed_to_host,
        affinity_seconds=_read_affinity(service, errors),
        health_port=health_port,
        health_basis=(ClaimBasis.HEALTH_CHECK_NAMED if keyed_to_host else ClaimBasis.HEALTH_CHECK),
        notes=(*(_invalid_note(service, error) for error in dict.fromkeys(errors)), *notes),
        created=service.metadata.creation_timestamp,
        node_addresses=frozenset(
            address
            for family_frontends in families
            for address in family_frontends.external_ips
            if address in node_addresses
        ),
    )


def _read_ports(service: Service, errors: list[str]) -> tuple[ServicePort, ...]:
    """The ports, each name and protocol once: of two the later one counts."""
    by_name: dict[tuple[str, str], ServicePort] = {}
    for port in service.spec.ports:
        if error := _port_error(port):
            errors.append(f"port {port.port}/{port.protocol[:16]} is ignored: {error}")
        else:
            by_name[port.name, port.protocol] = port
    return tuple(_each_number_once(by_name.values(), errors))


def _each_number_once(ports: Iterable[ServicePort], errors: list[str]) -> Iterator[ServicePort]:
    """Of two ports with one number, which no API server accepts, only the first."""
    seen: set[tuple[str, str]] = set()
    for port in ports:
        numbers = {("port", f"{port.port}/{port.protocol}")}
        if port.node_port:
            numbers.add(("node port", f"{port.node_port}/{port.protocol}"))
        if duplicates := seen & numbers:
            duplicate = " ".join(min(duplicates))
            errors.append(f"port {port.name[:64]!r} is ignored: another one has {duplicate}")
        else:
            seen |= numbers
            yield port


def _port_error(port: ServicePort) -> str:
    """Why an API server would refuse the port; "" if it would not."""
    if port.protocol not in _PROTOCOLS:
        return f"its protocol is not one of {', '.join(_PROTOCOLS)}"
    if not 0 < port.port <= PORT_LIMIT:
        return f"ports go from 1 to {PORT_LIMIT}"
    if not 0 <= port.node_port <= PORT_LIMIT:
        return f"its node port is {port.node_port}, ports go from 1 to {PORT_LIMIT}"
    return ""


def _read_health_port(service: Service, errors: list[str]) -> int:
    number = service.spec.health_check_node_port
    if 0 <= number <= PORT_LIMIT:
        return number
    errors.append(f"health check node port {number} is ignored: ports go from 1 to {PORT_LIMIT}")
    return 0


def _read_named_health_port(service: Service, keys: Sequence[str], errors: list[str]) -> int:
    if error := health_port_error(service, keys):
        text = service.metadata.annotations[HEALTH_PORT_ANNOTATION]
        errors.append(f"health check node port {text[:64]!r} is ignored: {error}")
    return health_port_of(service, keys)


def _read_family(
    service: Service, family: Family, errors: list[str], refused: NodeAddresses, notes: list[Reason]
) -> FamilyFrontends | None:
    spec = service.spec
    cluster_ip = _read_cluster_ip(service, family, errors)
    if not cluster_ip:
        return None
    vips = (
        entry.ip
        for entry in service.status.load_balancer.ingress
        if entry.ip and entry.ip_mode in (None, "VIP")
    )
    external_ips = _read_addresses(spec.external_ips, family, errors)
    notes += (
        _node_address_note(service, address, refused[address])
        for address in external_ips
        if address in refused
    )
    return FamilyFrontends(
        family=family,
        cluster_ip=cluster_ip,
        external_ips=tuple(address for address in external_ips if address not in refused),
        vips=_read_addresses(vips, family, errors),
        source_ranges=_read_source_ranges(service, family, errors),
    )


def _read_cluster_ip(service: Service, family: Family, errors: list[str]) -> str:
    spec = service.spec
    if spec.ip_families:
        pairs = zip(spec.ip_families, spec.cluster_ips or (spec.cluster_ip,), strict=False)
        text = next((address for ip_family, address in pairs if ip_family == family), "")
    else:
        text = spec.cluster_ip if (":" in spec.cluster_ip) is (family == "IPv6") else ""
    parsed = parse_address(text) if text else None
    if text and (parsed is None or parsed.family != family):
        errors.append(f"ClusterIP {text[:64]!r} is ignored: it is not an {family} address")
        return ""
    return parsed.text if parsed else ""


def _read_addresses(texts: Iterable[str], family: Family, errors: list[str]) -> tuple[str, ...]:
    addresses: dict[str, None] = {}
    for text in texts:
        parsed = parse_address(text)
        if parsed is None:
            if text.strip():
                errors.append(f"{text[:64]!r} is ignored: it is not an address")
        elif parsed.family == family:
            addresses[parsed.text] = None
    return tuple(addresses)


def _read_source_ranges(service: Service, family: Family, errors: list[str]) -> tuple[str, ...]:
    ranges: dict[str, None] = {}
    for text in map(str.strip, service.spec.load_balancer_source_ranges):
        parsed = parse_network(text)
        if parsed is None:
            if text:
                errors.append(f"source range {text[:64]!r} is ignored: it is not a network")
        elif parsed.family == family:
            if not parsed.prefix:
                return ()
            ranges[parsed.text] = None
    return tuple(ranges)


def _read_affinity(service: Service, errors: list[str]) -> int | None:
    spec = service.spec
    if spec.session_affinity != "ClientIP":
        return None
    config = spec.session_affinity_config
    seconds = config.client_ip.timeout_seconds if config and config.client_ip else None
    if seconds is None:
        return AFFINITY_SECONDS
    if not 0 < seconds <= AFFINITY_LIMIT:
        errors.append(
            f"an affinity of {seconds} seconds is ignored: 1 to {AFFINITY_LIMIT} are allowed"
        )
        return AFFINITY_SECONDS
    return seconds


def _invalid_note(service: Service, error: str) -> Reason:
    meta = service.metadata
    return Reason(
        code="InvalidService",
        message=error,
        object=f"Service/{meta.namespace or 'default'}/{meta.name}",
        fix="Correct the Service.",
    )


def _node_address_note(service: Service, address: str, node: str) -> Reason:
    meta = service.metadata
    return Reason(
        code="NodeAddress",
        message=f"external IP {address} is not routed: it is an address of Node {node}",
        object=f"Service/{meta.namespace or 'default'}/{meta.name}",
        fix="Use an address that no node has, or a NodePort; --allow-node-external-ips of the proxy"
        " allows it.",
    )
