"""The ways into a Service, read from the object alone, as kube-proxy 1.36 reads it.

An address family counts if the Service has a ClusterIP in it. A port is reachable from outside if
*it* is: by its node port, by an external IP, or by an address of a load balancer that hands packets
over unchanged (``ipMode: VIP``). The Service's type matters for one thing only: whether
``externalTrafficPolicy`` means anything.

Other than kube-proxy, an external IP that is the address of a node is ignored unless that is
allowed: who may write a Service could take the packets to any port of any node, an API server's or
a kubelet's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

from zonewise.api.objects.core import Service, ServicePort
from zonewise.api.reason import Reason
from zonewise.api.struct import Struct
from zonewise.traffic.routes.addresses import parse_address, parse_network
from zonewise.traffic.routes.claims import Claim, Title, Way
from zonewise.traffic.routes.endpoints import PORT_LIMIT
from zonewise.traffic.routes.table import Family, Path

AFFINITY_SECONDS = 10_800
"""How long a client keeps its endpoint if the Service does not say."""
AFFINITY_LIMIT = 86_400

NodeAddresses: TypeAlias = Mapping[str, str]
"""The addresses of all nodes, canonical, and whose each is."""
NO_ADDRESSES: NodeAddresses = MappingProxyType({})

_FAMILIES: tuple[Literal["IPv4"], Literal["IPv6"]] = ("IPv4", "IPv6")
_PROTOCOLS = ("TCP", "UDP", "SCTP")
_TITLES: Mapping[Path, Title] = {
    "ClusterIP": Title.CLUSTER_IP,
    "LoadBalancer": Title.ASSIGNED,
    "NodePort": Title.ASSIGNED,
    "ExternalIP": Title.NAMED,
}
_NO_ADDRESS = ("", "None")


class WaysIn(Struct):
    """The addresses of a Service in one family. No ``source_ranges``: all sources are allowed."""

    family: Family
    cluster_ip: str
    external_ips: tuple[str, ...]
    vips: tuple[str, ...]
    source_ranges: tuple[str, ...]

    def into(self, port: ServicePort) -> Iterator[tuple[Path, Way]]:
        """Every way into a port, its ClusterIP first; one address may be there by two paths."""
        family, protocol, number = self.family, port.protocol, port.port
        yield "ClusterIP", (family, protocol, self.cluster_ip, number)
        for address in self.external_ips:
            yield "ExternalIP", (family, protocol, address, number)
        for address in self.vips:
            yield "LoadBalancer", (family, protocol, address, number)
        if port.node_port:
            yield "NodePort", (family, protocol, None, port.node_port)


class Entrance(Struct):
    """What a Service offers: its ports, its addresses by family, its policies.

    ``internal_local`` and ``external_local`` say which packets may not leave the node. With
    ``short_cut`` those that start on it may, on their way to an external address.
    """

    ports: tuple[ServicePort, ...]
    ways: tuple[WaysIn, ...]
    internal_local: bool
    external_local: bool
    short_cut: bool
    affinity_seconds: int | None
    health_port: int
    notes: tuple[Reason, ...]
    created: str | None
    on_nodes: frozenset[str]
    """The external IPs that are addresses of nodes."""

    def wanted(self) -> dict[Way, Claim]:
        """Every way in, with the best claim of those by which the Service names it."""
        wanted: dict[Way, Claim] = {}
        for ways in self.ways:
            for port in self.ports:
                for path, way in ways.into(port):
                    title = _TITLES[path]
                    if title is Title.NAMED and way[2] in self.on_nodes:
                        title = Title.NAMED_ON_NODE
                    claim = Claim.of(title, self.created)
                    wanted[way] = min(claim, wanted.get(way, claim))
        return wanted


def has_address(service: Service) -> bool:
    """Whether a Service has an address of its own: it is neither headless nor a mere name."""
    return service.spec.cluster_ip not in _NO_ADDRESS and service.spec.type != "ExternalName"


def entrance(
    service: Service, nodes: NodeAddresses = NO_ADDRESSES, *, on_nodes: bool = False
) -> Entrance:
    """What a Service offers; external IPs that are addresses of nodes only ``on_nodes``."""
    spec = service.spec
    outside = spec.type in ("NodePort", "LoadBalancer") or (
        spec.type in ("", "ClusterIP") and bool(spec.external_ips)
    )
    external_local = outside and spec.external_traffic_policy == "Local"
    everything_local = spec.traffic_policy == "Local"
    faults: list[str] = []
    refused: NodeAddresses = NO_ADDRESSES if on_nodes else nodes
    notes: list[Reason] = []
    ways = tuple(
        way for family in _FAMILIES if (way := _ways(service, family, faults, refused, notes))
    )
    return Entrance(
        ports=_ports(service, faults),
        ways=ways,
        internal_local=everything_local or spec.internal_traffic_policy == "Local",
        external_local=everything_local or external_local,
        short_cut=external_local and not everything_local,
        affinity_seconds=_affinity(service, faults),
        health_port=(
            _health_port(service, faults) if external_local and spec.type == "LoadBalancer" else 0
        ),
        notes=(*(_note(service, fault) for fault in dict.fromkeys(faults)), *notes),
        created=service.metadata.creation_timestamp,
        on_nodes=frozenset(
            address for way in ways for address in way.external_ips if address in nodes
        ),
    )


def _ports(service: Service, faults: list[str]) -> tuple[ServicePort, ...]:
    """The ports, each name and protocol once: of two the later one counts."""
    found: dict[tuple[str, str], ServicePort] = {}
    for port in service.spec.ports:
        if fault := _port_fault(port):
            faults.append(f"port {port.port}/{port.protocol[:16]} is ignored: {fault}")
        else:
            found[port.name, port.protocol] = port
    return tuple(_each_number_once(found.values(), faults))


def _each_number_once(ports: Iterable[ServicePort], faults: list[str]) -> Iterator[ServicePort]:
    """Of two ports with one number, which no API server takes, the first: one way in, one route."""
    seen: set[tuple[str, str]] = set()
    for port in ports:
        numbers = {("port", f"{port.port}/{port.protocol}")}
        if port.node_port:
            numbers.add(("node port", f"{port.node_port}/{port.protocol}"))
        if twice := seen & numbers:
            had = " ".join(min(twice))
            faults.append(f"port {port.name[:64]!r} is ignored: another one has {had}")
        else:
            seen |= numbers
            yield port


def _port_fault(port: ServicePort) -> str:
    """What an API server would not have taken."""
    if port.protocol not in _PROTOCOLS:
        return f"its protocol is none of {', '.join(_PROTOCOLS)}"
    if not 0 < port.port <= PORT_LIMIT:
        return f"ports go from 1 to {PORT_LIMIT}"
    if not 0 <= port.node_port <= PORT_LIMIT:
        return f"its node port is {port.node_port}, ports go from 1 to {PORT_LIMIT}"
    return ""


def _health_port(service: Service, faults: list[str]) -> int:
    number = service.spec.health_check_node_port
    if 0 <= number <= PORT_LIMIT:
        return number
    faults.append(f"health check node port {number} is ignored: ports go from 1 to {PORT_LIMIT}")
    return 0


def _ways(
    service: Service,
    family: Family,
    faults: list[str],
    refused: NodeAddresses,
    notes: list[Reason],
) -> WaysIn | None:
    spec = service.spec
    cluster_ip = _cluster_ip(service, family, faults)
    if not cluster_ip:
        return None
    vips = (
        entry.ip
        for entry in service.status.load_balancer.ingress
        if entry.ip and entry.ip_mode in (None, "VIP")
    )
    named = _addresses(spec.external_ips, family, faults)
    notes += (_of_node(service, one, refused[one]) for one in named if one in refused)
    return WaysIn(
        family=family,
        cluster_ip=cluster_ip,
        external_ips=tuple(one for one in named if one not in refused),
        vips=_addresses(vips, family, faults),
        source_ranges=_ranges(service, family, faults),
    )


def _cluster_ip(service: Service, family: Family, faults: list[str]) -> str:
    spec = service.spec
    if spec.ip_families:
        pairs = zip(spec.ip_families, spec.cluster_ips or (spec.cluster_ip,), strict=False)
        text = next((address for named, address in pairs if named == family), "")
    else:
        text = spec.cluster_ip if (":" in spec.cluster_ip) is (family == "IPv6") else ""
    parsed = parse_address(text) if text else None
    if text and (parsed is None or parsed.family != family):
        faults.append(f"ClusterIP {text[:64]!r} is ignored: it is not an {family} address")
        return ""
    return parsed.text if parsed else ""


def _addresses(texts: Iterable[str], family: Family, faults: list[str]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for text in texts:
        parsed = parse_address(text)
        if parsed is None:
            if text.strip():
                faults.append(f"{text[:64]!r} is ignored: it is not an address")
        elif parsed.family == family:
            found[parsed.text] = None
    return tuple(found)


def _ranges(service: Service, family: Family, faults: list[str]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for text in map(str.strip, service.spec.load_balancer_source_ranges):
        parsed = parse_network(text)
        if parsed is None:
            if text:
                faults.append(f"source range {text[:64]!r} is ignored: it is not a network")
        elif parsed.family == family:
            if not parsed.prefix:
                return ()
            found[parsed.text] = None
    return tuple(found)


def _affinity(service: Service, faults: list[str]) -> int | None:
    spec = service.spec
    if spec.session_affinity != "ClientIP":
        return None
    config = spec.session_affinity_config
    said = config.client_ip.timeout_seconds if config and config.client_ip else None
    if said is None:
        return AFFINITY_SECONDS
    if not 0 < said <= AFFINITY_LIMIT:
        faults.append(
            f"an affinity of {said} seconds is ignored: 1 to {AFFINITY_LIMIT} are allowed"
        )
        return AFFINITY_SECONDS
    return said


def _note(service: Service, fault: str) -> Reason:
    meta = service.metadata
    return Reason(
        code="InvalidService",
        message=fault,
        object=f"Service/{meta.namespace or 'default'}/{meta.name}",
        fix="Correct the Service.",
    )


def _of_node(service: Service, address: str, node: str) -> Reason:
    meta = service.metadata
    return Reason(
        code="NodeAddress",
        message=f"external IP {address} is not routed: it is an address of Node {node}",
        object=f"Service/{meta.namespace or 'default'}/{meta.name}",
        fix="Use an address that no node has, or a NodePort; --allow-node-external-ips of the proxy"
        " allows it.",
    )
