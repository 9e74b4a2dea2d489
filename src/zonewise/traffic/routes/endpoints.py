"""The endpoints of a Service as a proxy reads them: by family, by port, each once.

An endpoint is an address and a port, of one port of the Service. It is ready and serving unless its
slice says otherwise. An endpoint that is listed twice (it moves between slices, or its address was
assigned to a new pod while the old one terminates) counts once, and the entry that does not
terminate wins. Within a slice the last such entry wins, as the slice's writer ordered them; between
slices the one that is ready.

Weights, if there are any, belong to a family. They count if every slice that has a ready endpoint
carries the same text and the text is well formed; while a writer is between two slices, or if a
slice of another controller carries none, they do not.

A slice is ignored as a whole and noted if its address type is unknown, a port is not valid, an
address is not one that an endpoint can have, or an endpoint has more than eight hints of a kind:
half of an invalid list is not what its author meant. Ports without a name or a number are ignored,
as every proxy does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TypeAlias

from zonewise.api.objects.discovery import HEADLESS_LABEL, LeanEndpoint, LeanEndpointSlice
from zonewise.api.reason import Reason
from zonewise.api.struct import Struct
from zonewise.traffic.endpoint import NO_HINT, Hint
from zonewise.traffic.host_key import PORT_LIMIT
from zonewise.traffic.routes.addresses import parse_address
from zonewise.traffic.routes.table import Backend
from zonewise.traffic.slices.topology import StatedLabels, StatedTopology
from zonewise.traffic.weights import WEIGHTS_ANNOTATION, ZoneWeights, parse_weights

HINTS_LIMIT = 8
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
    labels: StatedLabels


class RouteEndpoints(Struct):
    """All endpoints of a Service, sorted, and what was ignored."""

    ports: Mapping[str, Mapping[PortKey, tuple[RouteEndpoint, ...]]]
    weights: Mapping[str, ZoneWeights]
    """The weights of each family that has some."""
    notes: tuple[Reason, ...] = ()

    def of_port(self, family: str, port: PortKey) -> tuple[RouteEndpoint, ...]:
        """The endpoints of a port in a family."""
        return self.ports[family].get(port, ())

    def __iter__(self) -> Iterator[RouteEndpoint]:
        """The endpoints of all ports and families."""
        for by_port in self.ports.values():
            for port in by_port.values():
                yield from port

    def count_local_ready(self, family: str, node: str) -> int:
        """How many addresses on a node are ready, on whichever port."""
        return len(
            {
                endpoint.backend.address
                for port in self.ports[family].values()
                for endpoint in port
                if endpoint.ready and endpoint.node == node != ""
            }
        )


def read_route_endpoints(slices: Iterable[LeanEndpointSlice]) -> RouteEndpoints:
    """The endpoints in the slices of one Service."""
    by_family: dict[str, dict[PortKey, dict[tuple[str, int], RouteEndpoint]]] = {
        family: {} for family in FAMILIES
    }
    notes: list[Reason] = []
    weight_texts: dict[str, set[str]] = {}
    for endpoint_slice in sorted(slices, key=lambda endpoint_slice: endpoint_slice.metadata.name):
        family, metadata = endpoint_slice.address_type, endpoint_slice.metadata
        if HEADLESS_LABEL in metadata.labels or family == "FQDN":
            continue
        error = _slice_error(endpoint_slice)
        if error:
            notes.append(_ignored_note(endpoint_slice, f"{error}; the slice is ignored"))
            continue
        endpoints = endpoint_slice.endpoints or ()
        if any(endpoint.conditions.ready is not False for endpoint in endpoints):
            text = metadata.annotations.get(WEIGHTS_ANNOTATION, "")
            weight_texts.setdefault(family, set()).add(text)
        stated = StatedTopology.of(endpoint_slice)
        for port in endpoint_slice.ports or ():
            if port.name is None or not port.port:
                message = "a port without name or number is ignored"
                notes.append(_ignored_note(endpoint_slice, message))
                continue
            by_address = by_family[family].setdefault((port.name, port.protocol or "TCP"), {})
            _merge(by_address, _read_slice(endpoints, port.port, stated))
    ports = {
        family: {
            key: tuple(by_address[address] for address in sorted(by_address))
            for key, by_address in ports.items()
        }
        for family, ports in by_family.items()
    }
    weights = {
        family: zone_weights
        for family, texts in weight_texts.items()
        if len(texts) == 1 and (zone_weights := _parse_weights(min(texts))) is not None
    }
    return RouteEndpoints(ports=ports, weights=weights, notes=tuple(notes))


def _read_slice(
    endpoints: Iterable[LeanEndpoint], port: int, stated: StatedTopology
) -> dict[tuple[str, int], RouteEndpoint]:
    by_address: dict[tuple[str, int], RouteEndpoint] = {}
    for endpoint in endpoints:
        if not endpoint.addresses:
            continue
        parsed = parse_address(endpoint.addresses[0])
        conditions = endpoint.conditions
        terminating = bool(conditions.terminating)
        if parsed is None or (terminating and (parsed.text, port) in by_address):
            continue
        node = endpoint.node_name or ""
        by_address[parsed.text, port] = RouteEndpoint(
            backend=Backend(address=parsed.text, port=port, node=node),
            zone=endpoint.zone or "",
            node=node,
            ready=conditions.ready is not False,
            serving=conditions.serving is not False,
            terminating=terminating,
            hint=NO_HINT if endpoint.hints is None else _read_hint(endpoint.hints),
            labels=stated.labels(endpoint),
        )
    return by_address


_read_hint = lru_cache(maxsize=4096)(Hint.from_object)
"""There are few different hints in a cluster, and many endpoints."""

_parse_weights = lru_cache(maxsize=1024)(parse_weights)
"""A Service's weights change less often than its endpoints."""


def _merge(
    by_address: dict[tuple[str, int], RouteEndpoint], added: Mapping[tuple[str, int], RouteEndpoint]
) -> None:
    if not by_address:
        by_address.update(added)
        return
    for address, endpoint in added.items():
        other = by_address.get(address)
        if other is None or _merge_rank(endpoint) < _merge_rank(other):
            by_address[address] = endpoint


def _merge_rank(endpoint: RouteEndpoint) -> tuple[bool, bool, bool]:
    return endpoint.terminating, not endpoint.ready, not endpoint.serving


def _slice_error(endpoint_slice: LeanEndpointSlice) -> str:
    """Why the slice is ignored: an error that an API server would refuse; "" if there is none."""
    family = endpoint_slice.address_type
    if family not in FAMILIES:
        return f"its address type is not known here: {family[:32]!r}"
    for port in endpoint_slice.ports or ():
        if port.port is not None and not 0 <= port.port <= PORT_LIMIT:
            return f"{port.port} is not a port"
    for endpoint in endpoint_slice.endpoints or ():
        for text in endpoint.addresses or ():
            parsed = parse_address(text)
            if parsed is None or parsed.family != family or parsed.special:
                return f"{text[:64]!r} is not an {family} address of an endpoint"
        if endpoint.hints is not None:
            count = max(len(endpoint.hints.for_zones), len(endpoint.hints.for_nodes))
            if count > HINTS_LIMIT:
                return f"an endpoint has {count} hints where {HINTS_LIMIT} are allowed"
    return ""


def _ignored_note(endpoint_slice: LeanEndpointSlice, message: str) -> Reason:
    meta = endpoint_slice.metadata
    return Reason(
        code="InvalidEndpointSlice",
        message=message,
        object=f"EndpointSlice/{meta.namespace or 'default'}/{meta.name}",
        fix="Correct the slice where it is written.",
    )
