"""What the names of a Service resolve to: its own addresses, or ready endpoints. Pure.

Clients of a name server cache the answer for a while, so only endpoints that are ready have names,
and a terminating endpoint is never returned; an unknown readiness is ready, as the API says. All
addresses of an endpoint count. Slices of the type FQDN have no defined meaning and are left out.

Which endpoints of a headless Service a client gets depends on its location, by the rules of a proxy
(``zonewise.traffic.routes.choice``): topology keys decide if there are any, and if none of them
matches the answer is empty; otherwise hints decide. Weights are not used: an answer has none. A
Service that publishes addresses which are not ready is for peer discovery, and every peer has to be
found: its hints are ignored, and only its topology keys, which were set on purpose, leave endpoints
out. Hints are ignored, too, where a gate says so (``zonewise.traffic.modes.counts_zone_hints``).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from zonewise.api.objects.core import Service
from zonewise.api.objects.discovery import LeanEndpointSlice
from zonewise.traffic.dns_names import address_to_label
from zonewise.traffic.endpoint import NO_HINT, Hint
from zonewise.traffic.modes import counts_zone_hints
from zonewise.traffic.routes.addresses import Address, parse_address
from zonewise.traffic.routes.choice import (
    ClientLocation,
    PlacedEndpointT,
    RoutableEndpoint,
    RouteRule,
    Selection,
    choose_by_hints,
    choose_by_keys,
)
from zonewise.traffic.slices.topology import (
    NOTHING_STATED,
    NodeLabels,
    StatedLabels,
    StatedTopology,
)
from zonewise.traffic.topology_keys import topology_keys_of

FAMILIES = ("IPv4", "IPv6")
NO_PORT = -1
"""The number of a port that stands for "no port at all"."""


@dataclass(frozen=True, slots=True)
class NamedPort:
    """A port with the names by which it is queried, in lower case."""

    name: str
    protocol: str
    number: int

    def matches(self, name: str, protocol: str) -> bool:
        """Whether a query matches it; "" matches any."""
        return name in ("", self.name) and protocol in ("", self.protocol)


class NamedEndpoint(NamedTuple):
    """One address of one ready endpoint; ``host`` is the label of its name."""

    address: str
    packed: bytes
    host: str
    ports: tuple[NamedPort, ...]
    zone: str
    node: str
    hint: Hint
    labels: StatedLabels = NOTHING_STATED

    @property
    def ready(self) -> bool:
        """Always: endpoints that are not ready have no names."""
        return True

    @property
    def serving(self) -> bool:
        """Always, see ``ready``."""
        return True

    @property
    def terminating(self) -> bool:
        """Never read for endpoints that are ready."""
        return False


@dataclass(frozen=True, slots=True)
class NamedService:
    """What the names of a Service resolve to."""

    namespace: str
    name: str
    headless: bool = False
    external_name: str | None = None
    addresses: tuple[bytes, ...] = ()
    ports: tuple[NamedPort, ...] = ()
    topology_keys: tuple[str, ...] = ()
    peer_discovery: bool = False
    gate_is_on: bool = True

    @property
    def hints(self) -> bool:
        """Whether hints leave endpoints out."""
        return self.gate_is_on and not self.peer_discovery


def read_named_service(service: Service, gates: Mapping[str, bool]) -> NamedService:
    """What the names of a Service resolve to."""
    spec, meta = service.spec, service.metadata
    if spec.type == "ExternalName":
        return NamedService(meta.namespace, meta.name, external_name=spec.external_name)
    cluster_ips = spec.cluster_ips or (spec.cluster_ip,)
    headless = cluster_ips[0] == "None"
    ports = tuple(
        NamedPort(port.name.lower(), port.protocol.lower(), port.port) for port in spec.ports
    ) or (NamedPort("", "", NO_PORT),)
    return NamedService(
        meta.namespace,
        meta.name,
        headless=headless,
        addresses=() if headless else tuple(filter(None, map(pack_address, cluster_ips))),
        ports=ports,
        topology_keys=topology_keys_of(service, gates) if headless else (),
        peer_discovery=spec.publish_not_ready_addresses,
        gate_is_on=counts_zone_hints(service, gates),
    )


def read_named_endpoints(slices: Iterable[LeanEndpointSlice]) -> tuple[NamedEndpoint, ...]:
    """The ready endpoints in slices of one Service; an unknown readiness is ready."""
    endpoints: list[NamedEndpoint] = []
    for endpoint_slice in sorted(slices, key=lambda endpoint_slice: endpoint_slice.metadata.name):
        if endpoint_slice.address_type not in FAMILIES:
            continue
        ports = tuple(
            NamedPort(
                (port.name or "").lower(),
                (port.protocol or "").lower(),
                NO_PORT if port.port is None else port.port,
            )
            for port in endpoint_slice.ports or ()
        ) or (NamedPort("", "", NO_PORT),)
        ready = [
            endpoint
            for endpoint in endpoint_slice.endpoints or ()
            if endpoint.conditions.ready is not False
        ]
        stated = StatedTopology.of(endpoint_slice)
        # An address that a slice lists twice is in the zone that is listed last, as for CoreDNS.
        zones = {
            text: endpoint.zone.lower()
            for endpoint in ready
            if endpoint.zone is not None
            for text in endpoint.addresses or ()
        }
        for endpoint in ready:
            hint = NO_HINT if endpoint.hints is None else Hint.from_object(endpoint.hints)
            host, node = (endpoint.hostname or "").lower(), endpoint.node_name or ""
            labels = stated.labels(endpoint)
            for text in endpoint.addresses or ():
                address = parse_address(text)
                if address is None:
                    continue
                endpoints.append(
                    NamedEndpoint(
                        address.text,
                        _pack(address),
                        host or address_to_label(address.text),
                        ports,
                        zones.get(text, ""),
                        node,
                        hint,
                        labels,
                    )
                )
    return tuple(endpoints)


def pack_address(text: str) -> bytes:
    """An address as bytes, empty if the text is not an address."""
    address = parse_address(text)
    return b"" if address is None else _pack(address)


def _pack(address: Address) -> bytes:
    if address.family == "IPv4":
        return bytes(map(int, address.text.split(".")))
    return ipaddress.IPv6Address(address.text).packed


def canonical_addresses(texts: Iterable[str]) -> Iterator[str]:
    """The canonical text of those texts that are addresses."""
    return (address.text for address in map(parse_address, texts) if address is not None)


def slice_addresses(endpoint_slice: LeanEndpointSlice) -> set[str]:
    """The addresses of all endpoints of a slice, ready or not."""
    if endpoint_slice.address_type not in FAMILIES:
        return set()
    return {
        text
        for endpoint in endpoint_slice.endpoints or ()
        for text in canonical_addresses(endpoint.addresses or ())
    }


def depends_on_location(
    endpoints: Iterable[RoutableEndpoint], keys: Sequence[str], *, hints: bool
) -> bool:
    """Whether clients in different locations may get different endpoints."""
    return bool(keys) or (hints and any(endpoint.hint for endpoint in endpoints if endpoint.ready))


def choose_for_client(
    endpoints: Iterable[PlacedEndpointT],
    location: ClientLocation,
    keys: Sequence[str],
    node_labels: NodeLabels,
    *,
    hints: bool,
) -> Selection[PlacedEndpointT]:
    """The endpoints of one address family that a client in this location gets."""
    ready = tuple(endpoint for endpoint in endpoints if endpoint.ready)
    if keys:
        return choose_by_keys(ready, location, keys, node_labels)
    if not hints:
        return Selection(RouteRule.IGNORED if ready else RouteRule.NOTHING, ready)
    return choose_by_hints(ready, location)
