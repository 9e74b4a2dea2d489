"""The endpoints of a Service as a proxy reads them: by family, by port, each once.

An endpoint is an address and a port, of one port of the Service. It is ready and serving unless its
slice says otherwise. The same one in two slices (it moves, or its address was assigned to a new pod
while the old one terminates) counts once, and one that does not terminate wins. Within a slice the
last such one wins, as the slice's writer ordered them; between slices the one that is ready.

Weights, if there are any, belong to a family. They count if every slice that has a ready endpoint
carries the same text and the text is well formed; while a writer is between two slices, or if a
slice of another controller carries none, they do not.

A slice is ignored as a whole and noted if its address type is unknown, a port is not valid, an
address is not one that an endpoint can have, or an endpoint has more than eight hints of a kind:
half of an invalid list is not what its author meant. Ports without a name or a number are ignored,
as every proxy does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeAlias

from zonewise.api.objects.discovery import HEADLESS_LABEL, LeanEndpoint, LeanEndpointSlice
from zonewise.api.reason import Reason
from zonewise.api.struct import Struct
from zonewise.traffic.endpoint import NO_HINT, Hint
from zonewise.traffic.routes.addresses import parse_address
from zonewise.traffic.routes.table import Backend
from zonewise.traffic.weights import WEIGHTS_ANNOTATION, Rows, parse_weights

HINTS_LIMIT = 8
PORT_LIMIT = 65_535
FAMILIES = ("IPv4", "IPv6")

PortKey: TypeAlias = tuple[str, str]
"""Name and protocol: what a port of a Service and a port of a slice have in common."""


class RouteEndpoint(Struct):
    """An endpoint of a port, with what decides whether it is used."""

    backend: Backend
    zone: str
    node: str
    ready: bool
    serving: bool
    terminating: bool
    hint: Hint


class RouteEndpoints(Struct):
    """All endpoints of a Service, sorted, and what was ignored."""

    ports: Mapping[str, Mapping[PortKey, tuple[RouteEndpoint, ...]]]
    weights: Mapping[str, Rows]
    """The weights of each family that has some."""
    notes: tuple[Reason, ...] = ()

    def of(self, family: str, port: PortKey) -> tuple[RouteEndpoint, ...]:
        """The endpoints of a port in a family."""
        return self.ports[family].get(port, ())

    def local_ready(self, family: str, node: str) -> int:
        """How many addresses on a node are ready, on whichever port."""
        return len(
            {
                one.backend.address
                for port in self.ports[family].values()
                for one in port
                if one.ready and one.node == node != ""
            }
        )


def read_endpoints(slices: Iterable[LeanEndpointSlice]) -> RouteEndpoints:
    """The endpoints in the slices of one Service."""
    found: dict[str, dict[PortKey, dict[tuple[str, int], RouteEndpoint]]] = {
        f: {} for f in FAMILIES
    }
    notes: list[Reason] = []
    texts: dict[str, set[str]] = {}
    for piece in sorted(slices, key=lambda piece: piece.metadata.name):
        if HEADLESS_LABEL in piece.metadata.labels or piece.address_type == "FQDN":
            continue
        wrong = _fault(piece)
        if wrong:
            notes.append(_ignored(piece, f"{wrong}; the slice is ignored"))
            continue
        if any(entry.conditions.ready is not False for entry in piece.endpoints or ()):
            text = piece.metadata.annotations.get(WEIGHTS_ANNOTATION, "")
            texts.setdefault(piece.address_type, set()).add(text)
        for port in piece.ports or ():
            if port.name is None or not port.port:
                notes.append(_ignored(piece, "a port without name or number is ignored"))
                continue
            known = found[piece.address_type].setdefault((port.name, port.protocol or "TCP"), {})
            _merge(known, _read(piece.endpoints or (), port.port))
    ports = {
        family: {key: tuple(known[one] for one in sorted(known)) for key, known in ports.items()}
        for family, ports in found.items()
    }
    weights = {
        family: rows
        for family, said in texts.items()
        if len(said) == 1 and (rows := _rows(min(said))) is not None
    }
    return RouteEndpoints(ports=ports, weights=weights, notes=tuple(notes))


def _read(endpoints: Iterable[LeanEndpoint], port: int) -> dict[tuple[str, int], RouteEndpoint]:
    found: dict[tuple[str, int], RouteEndpoint] = {}
    for entry in endpoints:
        if not entry.addresses:
            continue
        parsed = parse_address(entry.addresses[0])
        conditions = entry.conditions
        terminating = bool(conditions.terminating)
        if parsed is None or (terminating and (parsed.text, port) in found):
            continue
        node = entry.node_name or ""
        found[parsed.text, port] = RouteEndpoint(
            backend=Backend(address=parsed.text, port=port, node=node),
            zone=entry.zone or "",
            node=node,
            ready=conditions.ready is not False,
            serving=conditions.serving is not False,
            terminating=terminating,
            hint=NO_HINT if entry.hints is None else _hint(entry.hints),
        )
    return found


_hint = lru_cache(maxsize=4096)(Hint.read)
"""There are few different hints in a cluster, and many endpoints."""

_rows = lru_cache(maxsize=1024)(parse_weights)
"""A Service's weights change less often than its endpoints."""


def _merge(
    known: dict[tuple[str, int], RouteEndpoint], more: Mapping[tuple[str, int], RouteEndpoint]
) -> None:
    if not known:
        known.update(more)
        return
    for key, one in more.items():
        other = known.get(key)
        if other is None or _dying(one) < _dying(other):
            known[key] = one


def _dying(one: RouteEndpoint) -> tuple[bool, bool, bool]:
    return one.terminating, not one.ready, not one.serving


def _fault(piece: LeanEndpointSlice) -> str:
    """What an API server would refuse the slice for, as far as a proxy could be misled."""
    family = piece.address_type
    if family not in FAMILIES:
        return f"its address type is not known here: {family[:32]!r}"
    for port in piece.ports or ():
        if port.port is not None and not 0 <= port.port <= PORT_LIMIT:
            return f"{port.port} is not a port"
    for entry in piece.endpoints or ():
        for text in entry.addresses or ():
            parsed = parse_address(text)
            if parsed is None or parsed.family != family or parsed.special:
                return f"{text[:64]!r} is not an {family} address of an endpoint"
        if entry.hints is not None:
            most = max(len(entry.hints.for_zones), len(entry.hints.for_nodes))
            if most > HINTS_LIMIT:
                return f"an endpoint has {most} hints where {HINTS_LIMIT} are allowed"
    return ""


def _ignored(piece: LeanEndpointSlice, message: str) -> Reason:
    meta = piece.metadata
    return Reason(
        code="InvalidEndpointSlice",
        message=message,
        object=f"EndpointSlice/{meta.namespace or 'default'}/{meta.name}",
        fix="Correct the slice where it is written.",
    )
