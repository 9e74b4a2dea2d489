"""What slices say: their endpoints, in which group, and the hints of each.

A slice is read once for as long as it does not change: a store hands out the same object until
then. Endpoints are identified by their pod, which is in a family once; one without a pod is not
ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from zonewise.api.objects.discovery import Endpoint, EndpointSlice, LeanEndpointSlice
from zonewise.traffic.endpoint import Hint
from zonewise.traffic.hints import Previous
from zonewise.traffic.slices.endpoint_pods import PortGroup
from zonewise.traffic.weights import WEIGHTS_ANNOTATION


@dataclass(frozen=True, slots=True)
class Reading:
    """One slice, read."""

    slice: EndpointSlice
    group: PortGroup
    endpoints: tuple[Endpoint, ...]
    pods: tuple[str, ...]
    """The pod of each endpoint, "" if it names none."""
    hints: dict[str, Hint]
    """The hints of ready endpoints, by address."""
    hinted: bool
    """Whether every ready endpoint has a zone hint."""
    weights: str
    """The text of the weights, "" if there is none."""


def read(piece: EndpointSlice) -> Reading:
    """What a slice says."""
    endpoints = piece.endpoints or ()
    hints = {
        (endpoint.addresses or ("",))[0]: Hint.read(endpoint.hints)
        for endpoint in endpoints
        if endpoint.conditions.ready
    }
    return Reading(
        slice=piece,
        group=frozenset(piece.ports or ()),
        endpoints=endpoints,
        pods=tuple(_pod(endpoint) for endpoint in endpoints),
        hints=hints,
        hinted=all(hint.zones for hint in hints.values()),
        weights=piece.metadata.annotations.get(WEIGHTS_ANNOTATION, ""),
    )


@dataclass(slots=True)
class Readings:
    """The slices of one Service, by name, as they were last seen."""

    known: dict[str, Reading] = field(default_factory=dict)

    def update(self, slices: Iterable[EndpointSlice]) -> list[Reading]:
        """The readings of these slices, by name."""
        known, self.known = self.known, {}
        for piece in slices:
            reading = known.get(piece.metadata.name)
            if reading is None or reading.slice is not piece:
                reading = read(piece)
            self.known[piece.metadata.name] = reading
        return [self.known[name] for name in sorted(self.known)]


def previous(readings: Iterable[Reading]) -> Previous:
    """The existing hints."""
    hints: dict[str, Hint] = {}
    hinted = True
    known = list(readings)
    for reading in known:
        hints.update(reading.hints)
        hinted = hinted and reading.hinted
    weights = common_weights(reading.slice for reading in known)
    return Previous(hints, hinted and bool(hints), weights)


def common_weights(slices: Iterable[LeanEndpointSlice]) -> str:
    """The text of the weights, if all slices carry the same; "" else."""
    texts = {piece.metadata.annotations.get(WEIGHTS_ANNOTATION, "") for piece in slices}
    return texts.pop() if len(texts) == 1 else ""


def _pod(endpoint: Endpoint) -> str:
    target = endpoint.target_ref
    return target.name if target is not None and target.kind == "Pod" else ""
