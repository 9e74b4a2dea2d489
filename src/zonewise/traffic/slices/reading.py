"""The content of slices: their endpoints, in which group, and the hints of each.

A slice is read once for as long as it does not change: a store hands out the same object until
then. Endpoints are identified by their pod, which is in a family once; an endpoint without a pod is
not ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from zonewise.api.objects.discovery import Endpoint, EndpointSlice, LeanEndpointSlice
from zonewise.traffic.endpoint import Hint
from zonewise.traffic.hints import PreviousHints
from zonewise.traffic.slices.endpoint_pods import PortGroup
from zonewise.traffic.slices.topology import TOPOLOGY_ANNOTATION
from zonewise.traffic.weights import WEIGHTS_ANNOTATION


@dataclass(frozen=True, slots=True)
class SliceReading:
    """The content of one slice."""

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
    topology: str
    """The text of the values of topology keys, "" if there is none."""


def read_slice(endpoint_slice: EndpointSlice) -> SliceReading:
    """The content of a slice."""
    endpoints = endpoint_slice.endpoints or ()
    hints = {
        (endpoint.addresses or ("",))[0]: Hint.from_object(endpoint.hints)
        for endpoint in endpoints
        if endpoint.conditions.ready
    }
    return SliceReading(
        slice=endpoint_slice,
        group=frozenset(endpoint_slice.ports or ()),
        endpoints=endpoints,
        pods=tuple(_pod_name(endpoint) for endpoint in endpoints),
        hints=hints,
        hinted=all(hint.zones for hint in hints.values()),
        weights=endpoint_slice.metadata.annotations.get(WEIGHTS_ANNOTATION, ""),
        topology=endpoint_slice.metadata.annotations.get(TOPOLOGY_ANNOTATION, ""),
    )


@dataclass(slots=True)
class SliceReadings:
    """The slices of one Service by name, cached while they do not change."""

    by_name: dict[str, SliceReading] = field(default_factory=dict)

    def update(self, slices: Iterable[EndpointSlice]) -> list[SliceReading]:
        """The readings of these slices, by name."""
        cached, self.by_name = self.by_name, {}
        for endpoint_slice in slices:
            reading = cached.get(endpoint_slice.metadata.name)
            if reading is None or reading.slice is not endpoint_slice:
                reading = read_slice(endpoint_slice)
            self.by_name[endpoint_slice.metadata.name] = reading
        return [self.by_name[name] for name in sorted(self.by_name)]


def previous_hints(readings: Sequence[SliceReading]) -> PreviousHints:
    """The existing hints."""
    hints: dict[str, Hint] = {}
    hinted = True
    for reading in readings:
        hints.update(reading.hints)
        hinted = hinted and reading.hinted
    weights = common_weights(reading.slice for reading in readings)
    return PreviousHints(hints, hinted and bool(hints), weights)


def common_weights(slices: Iterable[LeanEndpointSlice]) -> str:
    """The text of the weights, if all slices carry the same; "" else."""
    texts = {
        endpoint_slice.metadata.annotations.get(WEIGHTS_ANNOTATION, "") for endpoint_slice in slices
    }
    return texts.pop() if len(texts) == 1 else ""


def _pod_name(endpoint: Endpoint) -> str:
    target_ref = endpoint.target_ref
    return target_ref.name if target_ref is not None and target_ref.kind == "Pod" else ""
