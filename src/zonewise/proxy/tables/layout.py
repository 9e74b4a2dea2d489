"""The elements for the routes of a Service; pure.

An element is a key and its data, as bytes. The first byte of the key says which set or map of which
family it belongs to, so that one dictionary holds them all; a cluster of 10,000 Services has more
than a hundred thousand of them, and bytes take the least memory. ``decode`` makes them readable
again.

A *way* is an address, protocol and port, or a protocol and node port, and belongs to one Service:
routes are made for the ways a Service has. Within a Service two paths may be the same way (an
external IP that is the load balancer's, too); then the first of them leads, and the source ranges
of both hold.
"""

from __future__ import annotations

import hashlib
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from socket import inet_pton
from typing import Literal

from zonewise.proxy.tables import ruleset
from zonewise.proxy.tables.choices import EndpointChoice, Sticky, Weighted, scaled
from zonewise.proxy.tables.cidrs import merged
from zonewise.proxy.tables.ruleset import (
    CLUSTER_IPS,
    ENDPOINTS,
    EXTERNALS,
    FIREWALLED,
    FROM_OUTSIDE,
    HAIRPIN,
    KINDS,
    NODEPORT_ENDPOINTS,
    NODEPORT_EXTERNALS,
    NODEPORT_OUTSIDE,
    NODEPORT_REFUSED,
    NODEPORTS,
    OUTSIDE,
    REFUSED,
    SERVICES,
    SOURCE_RANGES,
    FamilyName,
    NamedSet,
)
from zonewise.traffic.routes import Backend, PortRoutes, Route, ServiceRoutes

_PROTOCOLS = {"TCP": 6, "UDP": 17, "SCTP": 132}
_PROTOCOL_NAMES = {number: name.lower() for name, number in _PROTOCOLS.items()}
_ORDER: Literal["little", "big"] = sys.byteorder
_AF = {"IPv4": socket.AF_INET, "IPv6": socket.AF_INET6}

_NUMBER = {
    (family, kind.name): bytes((at + place * len(KINDS),))
    for place, family in enumerate(ruleset.FAMILIES)
    for at, kind in enumerate(KINDS)
}


_SHARED_NAMES = {kind.name for kind in KINDS if kind.shared}


@dataclass(frozen=True, slots=True)
class Layout:
    """A Service in the kernel."""

    elements: dict[bytes, bytes] = field(default_factory=dict)
    choices: tuple[tuple[FamilyName, EndpointChoice], ...] = ()
    """Those that are the Service's own, each once."""


NOTHING = Layout()


SHARED = frozenset(number[0] for (_, name), number in _NUMBER.items() if name in _SHARED_NAMES)
"""The first bytes of keys that several Services may want."""


def kind_of(key: bytes) -> tuple[FamilyName, NamedSet]:
    """Where an element belongs."""
    place, at = divmod(key[0], len(KINDS))
    return ruleset.FAMILIES[place], KINDS[at]


def prefix(family: FamilyName, kind: NamedSet) -> bytes:
    """What keys of a set or map of a family begin with."""
    return _NUMBER[family, kind.name]


def lay_out(service: ServiceRoutes, node: str) -> Layout:
    """The elements of a Service on this node."""
    elements: dict[bytes, bytes] = {}
    leading: dict[bytes, str] = {}
    choices: dict[tuple[FamilyName, str], EndpointChoice] = {}
    for port in service.ports:
        family = port.family
        for route in port.routes:
            way = _way(port.protocol, route)
            lead = prefix(family, NODEPORTS if route.address is None else SERVICES) + way
            _fence(elements, family, way, route)
            if route.path == "ClusterIP" and route.address is not None:
                elements[prefix(family, CLUSTER_IPS) + packed(route.address)] = b""
            if leading.setdefault(lead, route.path) != route.path:
                continue
            chain = ""
            choice = _own_choice(service, port, route.endpoints) if route.endpoints else None
            if choice is not None:
                choices[family, choice.name] = choice
                chain = choice.name
            _lead(elements, family, way, route, chain)
            for backend in route.endpoints:
                if backend.node == node:
                    here = packed(backend.address)
                    elements[prefix(family, HAIRPIN) + here + here] = b""
    return Layout(elements, tuple((family, one) for (family, _), one in choices.items()))


def _way(protocol: str, route: Route) -> bytes:
    tail = struct.pack(">B3xH2x", _PROTOCOLS[protocol], route.number)
    return tail if route.address is None else packed(route.address) + tail


def _lead(
    elements: dict[bytes, bytes], family: FamilyName, way: bytes, route: Route, chain: str
) -> None:
    """What becomes of packets: led to a chain, dropped, or refused after all else."""
    nodeport = route.address is None
    outside = route.source == "outside"
    externals = NODEPORT_EXTERNALS if nodeport else EXTERNALS
    if route.source != "any":
        verdict = b"jump nodeport-from-outside" if nodeport else b"jump from-outside"
        elements[prefix(family, externals) + way] = verdict
    elif route.path != "ClusterIP" and route.action == "dnat":
        elements[prefix(family, externals) + way] = b"jump mark-masquerade"
    if route.action == "reject":
        elements[prefix(family, NODEPORT_REFUSED if nodeport else REFUSED) + way] = b""
        return
    if outside:
        leads = NODEPORT_OUTSIDE if nodeport else FROM_OUTSIDE
    else:
        leads = NODEPORTS if nodeport else SERVICES
    if route.action == "drop":
        elements[prefix(family, leads) + way] = b"drop"
        return
    if not chain:
        kind = "outside" if outside else "slots"
        chain = f"{'nodeport-' if nodeport else ''}{kind}-{len(route.endpoints)}"
        head = prefix(family, NODEPORT_ENDPOINTS if nodeport else ENDPOINTS)
        first = OUTSIDE if outside else 0
        kind_of_address = _AF[family]
        for slot, backend in enumerate(route.endpoints, start=first):
            elements[head + slot.to_bytes(4, _ORDER) + way] = (
                inet_pton(kind_of_address, backend.address)
                + backend.port.to_bytes(2, "big")
                + b"\0\0"
            )
    elements[prefix(family, leads) + way] = _goto(chain)


def _fence(elements: dict[bytes, bytes], family: FamilyName, way: bytes, route: Route) -> None:
    """The sources of a load balancer's address; networks that overlap or touch are merged."""
    if not route.source_ranges:
        return
    elements[prefix(family, FIREWALLED) + way] = b""
    head = prefix(family, SOURCE_RANGES)
    texts = (*route.source_ranges, *route.own_sources)
    for network in merged(family, texts):
        ends = (network.network_address.packed, network.broadcast_address.packed)
        elements[head + way + ends[0] + way + ends[1]] = b""


def _own_choice(
    service: ServiceRoutes, port: PortRoutes, backends: tuple[Backend, ...]
) -> EndpointChoice | None:
    """The choice that is this Service's own; None if drawing a slot is all there is to it."""
    if port.affinity_seconds is not None:
        return _sticky(service, port, backends)
    weights = scaled([backend.weight for backend in backends])
    if len(set(weights)) == 1:
        return None
    targets = tuple(f"{backend.address} . {backend.port}" for backend in backends)
    digest = _digest(port.protocol, *targets, *map(str, weights))
    name = f"weighted-{digest}-{service.namespace}/{service.service}"
    return Weighted(name, port.protocol.lower(), targets, weights)


def _sticky(service: ServiceRoutes, port: PortRoutes, backends: tuple[Backend, ...]) -> Sticky:
    """The chains of a choice with session affinity, named by what they do.

    The chain of an endpoint is named by the Service port too, and so is the set of its clients:
    whichever way a client comes in it keeps its endpoint, and other Services are unaffected.
    """
    seconds = port.affinity_seconds or 0
    owner = f"{service.namespace}/{service.service}"
    endpoints = []
    for backend in backends:
        address = backend.address if port.family == "IPv4" else f"[{backend.address}]"
        target = f"{address}:{backend.port}"
        digest = _digest(owner, port.name, port.protocol, target, str(seconds))
        endpoints.append((f"endpoint-{digest}-{owner}", target))
    weights = scaled([backend.weight for backend in backends])
    drawn = () if set(weights) == {1} else map(str, weights)
    digest = _digest(*(name for name, _ in endpoints), *drawn)
    name = f"affinity-{digest}-{owner}"
    return Sticky(name, port.protocol.lower(), seconds, tuple(endpoints), weights)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def packed(address: str) -> bytes:
    """An address as the kernel has it."""
    return inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


@lru_cache(maxsize=1024)
def _goto(chain: str) -> bytes:
    return f"goto {chain}".encode()


def decode(key: bytes, data: bytes) -> tuple[FamilyName, NamedSet, str, str]:
    """An element for people, as nft writes its key and its data."""
    family, kind = kind_of(key)
    rest = key[1:]
    if kind.ranges:
        half = len(rest) // 2
        low, high = (list(_fields(family, kind, part)) for part in (rest[:half], rest[half:]))
        texts = [a if a == b else f"{a}-{b}" for a, b in zip(low, high, strict=True)]
    else:
        texts = list(_fields(family, kind, rest))
    if kind.data == "value":
        size = 4 if family == "IPv4" else 16
        address = socket.inet_ntop(_AF[family], data[:size])
        said = f"{address} . {int.from_bytes(data[size : size + 2], 'big')}"
    else:
        said = data.decode()
    return family, kind, " . ".join(texts), said


def _fields(family: FamilyName, kind: NamedSet, rest: bytes) -> Iterator[str]:
    at = 0
    for name in kind.key:
        if name == "address":
            size = 4 if family == "IPv4" else 16
            yield socket.inet_ntop(_AF[family], rest[at : at + size])
            at += size
            continue
        part = rest[at : at + 4]
        at += 4
        if name == "protocol":
            yield _PROTOCOL_NAMES[part[0]]
        else:
            yield str(int.from_bytes(part, _ORDER) if name == "slot" else part[0] << 8 | part[1])
