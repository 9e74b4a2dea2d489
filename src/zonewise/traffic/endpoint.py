"""An endpoint of a Service, and which zones and nodes it is for.

The writer of hints and a proxy read the same slice differently: a missing ``ready`` is *not ready*
for the writer, because nothing confirms it, and *ready* for a proxy, because the API says so. Both
readings are here, next to each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from zonewise.api.objects.discovery import EndpointHints, ForNode, ForZone, LeanEndpoint


@dataclass(frozen=True, slots=True)
class Hint:
    """The zones and nodes an endpoint is for; without any it is no hint."""

    zones: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.zones or self.nodes)

    @classmethod
    def from_object(cls, hints: EndpointHints | None) -> Hint:
        """The hint in a slice."""
        if hints is None:
            return NO_HINT
        zones = tuple(zone.name for zone in hints.for_zones)
        return cls(zones, tuple(node.name for node in hints.for_nodes))

    def to_object(self) -> EndpointHints | None:
        """The hint as it is written into a slice."""
        if not self:
            return None
        return EndpointHints(
            for_zones=tuple(ForZone(name=zone) for zone in self.zones),
            for_nodes=tuple(ForNode(name=node) for node in self.nodes),
        )


NO_HINT = Hint()
_NOTHING_STATED: Mapping[str, str | None] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TrafficEndpoint:
    """One endpoint of one address family; its name, an address, is unique in its Service."""

    name: str
    zone: str = ""
    node: str = ""
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    hint: Hint = NO_HINT
    labels: Mapping[str, str | None] = field(default_factory=lambda: _NOTHING_STATED, hash=False)
    """Labels of its node as its slice states them; see ``slices.topology``."""


def read_as_writer(endpoint: LeanEndpoint) -> TrafficEndpoint:
    """An endpoint as its writer reads it: ready only if the slice says so."""
    return _read(endpoint, unknown=False)


def read_as_proxy(endpoint: LeanEndpoint) -> TrafficEndpoint:
    """An endpoint as a proxy reads it: ready and serving unless the slice says otherwise."""
    return _read(endpoint, unknown=True)


def _read(endpoint: LeanEndpoint, *, unknown: bool) -> TrafficEndpoint:
    conditions = endpoint.conditions
    addresses = endpoint.addresses or ("",)
    return TrafficEndpoint(
        name=addresses[0],
        zone=endpoint.zone or "",
        node=endpoint.node_name or "",
        ready=unknown if conditions.ready is None else conditions.ready,
        serving=unknown if conditions.serving is None else conditions.serving,
        terminating=bool(conditions.terminating),
        hint=Hint.from_object(endpoint.hints),
    )


def ready_endpoints(endpoints: Iterable[TrafficEndpoint]) -> list[TrafficEndpoint]:
    """Those that take traffic, by name."""
    ready = (endpoint for endpoint in endpoints if endpoint.ready)
    return sorted(ready, key=lambda endpoint: endpoint.name)
