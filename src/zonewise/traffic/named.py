"""What the names of a Service resolve to: its own addresses, or its ready endpoints. Pure.

Clients of a name server cache the answer for a while, so only endpoints that are ready have names;
an unknown readiness is ready, as the API says. All addresses of an endpoint count. Slices of the
type FQDN have no defined meaning and are left out.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from zonewise.api.objects.core import Service
from zonewise.api.objects.discovery import LeanEndpointSlice
from zonewise.traffic.endpoint import NO_HINT, Hint
from zonewise.traffic.keys import topology_keys
from zonewise.traffic.names import address_label
from zonewise.traffic.routes.addresses import Address, parse_address

FAMILIES = ("IPv4", "IPv6")
NO_PORT = -1
"""The number of a port that stands for "no port at all"."""


@dataclass(frozen=True, slots=True)
class Port:
    """A port by the names it is queried by, in lower case."""

    name: str
    protocol: str
    number: int

    def matches(self, name: str, protocol: str) -> bool:
        """Whether a query matches it; "" matches any."""
        return name in ("", self.name) and protocol in ("", self.protocol)


class NamedEndpoint(NamedTuple):
    """One address of one ready endpoint, under the label it is called by."""

    address: str
    packed: bytes
    host: str
    ports: tuple[Port, ...]
    zone: str
    node: str
    hint: Hint

    @property
    def ready(self) -> bool:
        """Those that are not ready have no names."""
        return True

    @property
    def serving(self) -> bool:
        """See ``ready``."""
        return True

    @property
    def terminating(self) -> bool:
        """Plays no part for endpoints that are ready."""
        return False


@dataclass(frozen=True, slots=True)
class NamedService:
    """What names of a Service lead to."""

    namespace: str
    name: str
    headless: bool = False
    external: str | None = None
    addresses: tuple[bytes, ...] = ()
    ports: tuple[Port, ...] = ()
    keys: tuple[str, ...] = ()
    peers: bool = False


def read_service(service: Service) -> NamedService:
    """What names of a Service lead to."""
    spec, meta = service.spec, service.metadata
    if spec.type == "ExternalName":
        return NamedService(meta.namespace, meta.name, external=spec.external_name)
    listed = spec.cluster_ips or (spec.cluster_ip,)
    headless = listed[0] == "None"
    ports = tuple(
        Port(port.name.lower(), port.protocol.lower(), port.port) for port in spec.ports
    ) or (Port("", "", NO_PORT),)
    return NamedService(
        meta.namespace,
        meta.name,
        headless=headless,
        addresses=() if headless else tuple(filter(None, map(packed, listed))),
        ports=ports,
        keys=topology_keys(service) if headless else (),
        peers=spec.publish_not_ready_addresses,
    )


def read_endpoints(slices: Iterable[LeanEndpointSlice]) -> tuple[NamedEndpoint, ...]:
    """The ready endpoints in slices of one Service; an unknown readiness is ready."""
    found: list[NamedEndpoint] = []
    for piece in sorted(slices, key=lambda piece: piece.metadata.name):
        if piece.address_type not in FAMILIES:
            continue
        ports = tuple(
            Port(
                (port.name or "").lower(),
                (port.protocol or "").lower(),
                NO_PORT if port.port is None else port.port,
            )
            for port in piece.ports or ()
        ) or (Port("", "", NO_PORT),)
        ready = [one for one in piece.endpoints or () if one.conditions.ready is not False]
        # An address that a slice lists twice is in the zone that is listed last, as for CoreDNS.
        zones = {
            text: one.zone.lower()
            for one in ready
            if one.zone is not None
            for text in one.addresses or ()
        }
        for one in ready:
            hint = NO_HINT if one.hints is None else Hint.read(one.hints)
            host, node = (one.hostname or "").lower(), one.node_name or ""
            for text in one.addresses or ():
                address = parse_address(text)
                if address is None:
                    continue
                found.append(
                    NamedEndpoint(
                        address.text,
                        _bytes_of(address),
                        host or address_label(address.text),
                        ports,
                        zones.get(text, ""),
                        node,
                        hint,
                    )
                )
    return tuple(found)


def packed(text: str) -> bytes:
    """An address as bytes, empty if the text is none."""
    address = parse_address(text)
    return b"" if address is None else _bytes_of(address)


def _bytes_of(address: Address) -> bytes:
    if address.family == "IPv4":
        return bytes(map(int, address.text.split(".")))
    return ipaddress.IPv6Address(address.text).packed


def canonical_texts(texts: Iterable[str]) -> Iterator[str]:
    """Those texts that are addresses, as addresses are compared."""
    return (address.text for address in map(parse_address, texts) if address is not None)


def slice_addresses(piece: LeanEndpointSlice) -> set[str]:
    """The addresses of all endpoints of a slice, ready or not."""
    if piece.address_type not in FAMILIES:
        return set()
    return {text for one in piece.endpoints or () for text in canonical_texts(one.addresses or ())}
