"""One endpoint as traffic sees it, and which zones and nodes it is for.

The writer of hints and a proxy read the same slice differently: a missing ``ready`` is *not ready*
for the writer, because nothing confirms it, and *ready* for a proxy, because the API says so. Both
readings are here, next to each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from zonewise.api.objects.discovery import EndpointHints, ForNode, ForZone, LeanEndpoint


@dataclass(frozen=True, slots=True)
class Hint:
    """The zones and nodes an endpoint is for; none is no hint."""

    zones: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.zones or self.nodes)

    @classmethod
    def read(cls, hints: EndpointHints | None) -> Hint:
        """The hint in a slice."""
        if hints is None:
            return NO_HINT
        return cls(
            tuple(zone.name for zone in hints.for_zones),
            tuple(node.name for node in hints.for_nodes),
        )

    def written(self) -> EndpointHints | None:
        """The hint as a slice carries it."""
        if not self:
            return None
        return EndpointHints(
            for_zones=tuple(ForZone(name=zone) for zone in self.zones),
            for_nodes=tuple(ForNode(name=node) for node in self.nodes),
        )


NO_HINT = Hint()


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


def as_written(endpoint: LeanEndpoint) -> TrafficEndpoint:
    """An endpoint as its writer means it: ready only if it says so."""
    return _target(endpoint, unknown=False)


def as_obeyed(endpoint: LeanEndpoint) -> TrafficEndpoint:
    """An endpoint as a proxy takes it: ready and serving unless it says no."""
    return _target(endpoint, unknown=True)


def _target(endpoint: LeanEndpoint, *, unknown: bool) -> TrafficEndpoint:
    conditions = endpoint.conditions
    addresses = endpoint.addresses or ("",)
    return TrafficEndpoint(
        name=addresses[0],
        zone=endpoint.zone or "",
        node=endpoint.node_name or "",
        ready=unknown if conditions.ready is None else conditions.ready,
        serving=unknown if conditions.serving is None else conditions.serving,
        terminating=bool(conditions.terminating),
        hint=Hint.read(endpoint.hints),
    )


def ready(targets: Iterable[TrafficEndpoint]) -> list[TrafficEndpoint]:
    """Those that take traffic, by name."""
    return sorted((target for target in targets if target.ready), key=lambda target: target.name)
