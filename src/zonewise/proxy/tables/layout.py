"""The elements for the routes of a Service; pure.

An element is a key and its data, as bytes. The first byte of the key says which set or map of which
family it belongs to, so that one dictionary holds them all; a cluster of 10,000 Services has more
than a hundred thousand of them, and bytes take the least memory. ``decode`` makes them readable
again.

A *way* is an address, protocol and port, or a protocol and node port, and belongs to one Service:
routes are made for the ways a Service has. Within a Service two paths may be the same way (an
external IP that is the load balancer's, too); then the first of them leads, and the source ranges
of both hold.

*Slots* are numbered as they were: an endpoint that stays keeps its slot, a new one gets that of one
that is gone, and the last ones move into what is left over. So one endpoint more or less is one or
two elements, however many there are.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from socket import inet_pton
from typing import Literal
from zlib import crc32

from zonewise.proxy.tables import ruleset
from zonewise.proxy.tables.choices import Clients, OwnChain, own_chain, remembering, scaled
from zonewise.proxy.tables.cidrs import merged
from zonewise.proxy.tables.ruleset import (
    CLUSTER_IPS,
    EXTERNALS,
    FIREWALLED,
    FROM_OUTSIDE,
    HAIRPIN,
    KINDS,
    NODEPORT_EXTERNALS,
    NODEPORT_OUTSIDE,
    NODEPORT_REFUSED,
    NODEPORTS,
    REFUSED,
    SERVICES,
    SLOT_KINDS,
    SOURCE_RANGES,
    FamilyName,
    NamedSet,
    SlotKind,
)
from zonewise.traffic.routes.table import PortRoutes, Route, ServiceRoutes

_PROTOCOLS = {"TCP": 6, "UDP": 17, "SCTP": 132}
_PROTOCOL_NAMES = {number: name.lower() for name, number in _PROTOCOLS.items()}
_ORDER: Literal["little", "big"] = sys.byteorder
_AF = {"IPv4": socket.AF_INET, "IPv6": socket.AF_INET6}

_NUMBER = {
    (family, kind.name): bytes((at + index * len(KINDS),))
    for index, family in enumerate(ruleset.FAMILIES)
    for at, kind in enumerate(KINDS)
}


_SHARED_NAMES = {kind.name for kind in KINDS if kind.shared}


@dataclass(frozen=True, slots=True)
class Layout:
    """A Service in the kernel."""

    elements: dict[bytes, bytes] = field(default_factory=dict)
    chains: tuple[tuple[FamilyName, OwnChain], ...] = ()
    """Those that are the Service's own, each once."""


NOTHING = Layout()


SHARED = frozenset(number[0] for (_, name), number in _NUMBER.items() if name in _SHARED_NAMES)
"""The first bytes of keys that several Services may want."""


SLOTTED = frozenset(
    number[0]
    for (_, name), number in _NUMBER.items()
    for kind in KINDS
    if kind.name == name and kind.key[0] in ("slot", "id")
)
"""The first bytes of keys that are found only through what leads to their slots."""


def kind_of(key: bytes) -> tuple[FamilyName, NamedSet]:
    """Where an element belongs."""
    index, at = divmod(key[0], len(KINDS))
    return ruleset.FAMILIES[index], KINDS[at]


def prefix(family: FamilyName, kind: NamedSet) -> bytes:
    """What keys of a set or map of a family begin with."""
    return _NUMBER[family, kind.name]


def lay_out(
    service: ServiceRoutes, node: str, present: Mapping[bytes, bytes] | None = None
) -> Layout:
    """The elements of a Service on this node; slots are numbered as in ``present``."""
    elements: dict[bytes, bytes] = {}
    leading: dict[bytes, str] = {}
    chains: dict[tuple[FamilyName, str], OwnChain] = {}
    owner = f"{service.namespace}/{service.service}"
    for port in service.ports:
        family = port.family
        clients = _clients(owner, port)
        for route in port.routes:
            way = _way(port.protocol, route)
            lead = prefix(family, NODEPORTS if route.address is None else SERVICES) + way
            _fence(elements, family, way, route)
            if route.path == "ClusterIP" and route.address is not None:
                elements[prefix(family, CLUSTER_IPS) + packed(route.address)] = b""
            if leading.setdefault(lead, route.path) != route.path:
                continue
            chain = ""
            if route.endpoints:
                kind = _slot_kind(route)
                groups = _groups(family, route)
                if clients is None:
                    _fill(elements, family, kind.endpoints, kind.first, way, groups, present or {})
                else:
                    ids = _ids(endpoint for group in groups.values() for endpoint in group)
                    known = {
                        weight: [ids[member] for member in groups[weight]] for weight in groups
                    }
                    _fill(elements, family, kind.drawn, kind.first, way, known, present or {})
                    head = prefix(family, kind.members)
                    elements.update((head + name + way, endpoint) for endpoint, name in ids.items())
                counts = {weight: len(group) for weight, group in groups.items()}
                own = own_chain(owner, kind, counts, clients)
                chain = f"{kind.name}-{len(route.endpoints)}" if own is None else own.name
                if own is not None:
                    chains[family, chain] = own
            _lead(elements, family, way, route, chain)
            for backend in route.endpoints:
                if backend.node == node:
                    here = packed(backend.address)
                    elements[prefix(family, HAIRPIN) + here + here] = b""
    return Layout(elements, tuple((family, chain) for (family, _), chain in chains.items()))


def _slot_kind(route: Route) -> SlotKind:
    name = "outside" if route.source == "outside" else "slots"
    return SLOT_KINDS[name if route.address is not None else f"nodeport-{name}"]


def _groups(family: FamilyName, route: Route) -> dict[int, list[bytes]]:
    """The endpoints as the kernel has them, by weight; the lightest first."""
    kind_of_address = _AF[family]
    weights = scaled([backend.weight for backend in route.endpoints])
    groups: dict[int, list[bytes]] = {weight: [] for weight in sorted(set(weights))}
    for backend, weight in zip(route.endpoints, weights, strict=True):
        groups[weight].append(
            inet_pton(kind_of_address, backend.address) + backend.port.to_bytes(2, "big") + b"\0\0"
        )
    return groups


def _ids(endpoints: Iterable[bytes]) -> dict[bytes, bytes]:
    """The id of each endpoint: the same whatever others there are, but for two that would share it.

    It only has to be unique within a Service port, and is no secret.
    """
    ids: dict[bytes, bytes] = {}
    taken: set[int] = set()
    for endpoint in endpoints:
        number = crc32(endpoint) % ruleset.FIRST_ID
        while number in taken:
            number = (number + 1) % ruleset.FIRST_ID
        taken.add(number)
        ids[endpoint] = (ruleset.FIRST_ID + number).to_bytes(4, _ORDER)
    return ids


def _fill(
    elements: dict[bytes, bytes],
    family: FamilyName,
    kind: NamedSet,
    first_slot: int,
    way: bytes,
    groups: Mapping[int, list[bytes]],
    present: Mapping[bytes, bytes],
) -> None:
    """Give every endpoint a slot, which it keeps."""
    head = prefix(family, kind)
    for number, group in enumerate(groups.values()):
        first = first_slot + number * ruleset.GROUP
        keys = [head + slot.to_bytes(4, _ORDER) + way for slot in range(first, first + len(group))]
        new = dict.fromkeys(group)
        stays: dict[bytes, bytes] = {}
        for key in keys:
            before = present.get(key)
            if before is not None and before in new:
                del new[before]
                stays[key] = before
        rest = iter(new)
        elements.update((key, stays[key] if key in stays else next(rest)) for key in keys)


def _way(protocol: str, route: Route) -> bytes:
    tail = struct.pack(">B3xH2x", _PROTOCOLS[protocol], route.number)
    return tail if route.address is None else packed(route.address) + tail


def _lead(
    elements: dict[bytes, bytes], family: FamilyName, way: bytes, route: Route, chain: str
) -> None:
    """Lead packets to a chain, drop them, or refuse them after all other rules."""
    nodeport = route.address is None
    outside = route.source == "outside"
    externals = NODEPORT_EXTERNALS if nodeport else EXTERNALS
    if route.source != "any":
        verdict = b"jump nodeport-from-outside" if nodeport else b"jump from-outside"
        elements[prefix(family, externals) + way] = verdict
    elif route.source_address == "masqueraded" and route.action == "dnat":
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


def _clients(owner: str, port: PortRoutes) -> Clients | None:
    if port.affinity_seconds is None:
        return None
    return remembering(owner, port.name, port.protocol, port.affinity_seconds)


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
    if kind.data == "id":
        target = _id_text(data)
    elif kind.data == "endpoint":
        size = 4 if family == "IPv4" else 16
        address = socket.inet_ntop(_AF[family], data[:size])
        target = f"{address} . {int.from_bytes(data[size : size + 2], 'big')}"
    else:
        target = data.decode()
    return family, kind, " . ".join(texts), target


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
        if name == "id":
            yield _id_text(part)
        elif name == "protocol":
            yield _PROTOCOL_NAMES[part[0]]
        else:
            yield str(int.from_bytes(part, _ORDER) if name == "slot" else part[0] << 8 | part[1])


def _id_text(part: bytes) -> str:
    """As nft writes a packet's priority."""
    number = int.from_bytes(part, _ORDER)
    return f"{number >> 16:x}:{number & 0xFFFF:x}"
