"""Hints on slices that another controller fills.

On a cluster whose own controller cannot be switched off, that controller decides which endpoints
are in which slice, and we decide their hints. ``rehint`` takes the slices as they are and returns
those whose hints change. ``rehint_slice`` is what admission calls when one of them is about to be
written: the others are as they are stored, this one is as its writer sends it, and its ``previous``
version says which hints it had, because its writer has stripped or replaced them. Hints in the
other slices that would have to move are left to ``rehint``, which sees the write.

Both decide as ``plan_slices`` does, from the same endpoints under the same names, so what one
writes the other leaves unchanged. A Service that does not request hints keeps whatever hints its
slices have: another controller may have written them. Only we write weights, and they would be
obeyed forever, so they are removed; unless the Service is not ours, for then another controller may
manage it. The values of topology keys are written whether hints are requested or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.discovery import Endpoint, EndpointSlice
from zonewise.topology.shares import Shares
from zonewise.traffic.endpoint import NO_HINT, Hint, TrafficEndpoint, read_as_proxy, read_as_writer
from zonewise.traffic.hints import HintDecision, PreviousHints, ServiceSnapshot, decide_hints
from zonewise.traffic.modes import NOT_REQUESTED, HintRequest, Mode
from zonewise.traffic.slices import identity
from zonewise.traffic.slices.identity import IPV4, IPV6
from zonewise.traffic.slices.planning import FamilyPlan, SlicePlan
from zonewise.traffic.slices.reading import common_weights
from zonewise.traffic.slices.topology import TOPOLOGY_ANNOTATION, SliceTopology
from zonewise.traffic.weights import WEIGHTS_ANNOTATION

_NOT_SELECTED = "NotSelected"
_NOT_REQUESTED_CODES = (NOT_REQUESTED, _NOT_SELECTED)


def requests_hints(request: HintRequest) -> bool:
    """Whether a Service requests hints, even if it gets none."""
    return request.mode is not Mode.OFF or (
        request.reason is not None and request.reason.code not in _NOT_REQUESTED_CODES
    )


def rehint(
    slices: Iterable[EndpointSlice],
    request: HintRequest,
    shares: Shares,
    *,
    previous_slices: Iterable[EndpointSlice] | None = None,
    families: Iterable[str] = (IPV4, IPV6),
    node_hints: bool = True,
    topology: SliceTopology | None = None,
) -> SlicePlan:
    """The slices whose hints change, or the values of topology keys.

    Hints on the ``previous_slices`` count as existing.
    """
    topology = topology or SliceTopology()
    ordered = sorted(slices, key=_name)
    previous = ordered if previous_slices is None else sorted(previous_slices, key=_name)
    managed = [endpoint_slice for endpoint_slice in ordered if identity.is_managed(endpoint_slice)]
    update: list[EndpointSlice] = []
    family_plans: dict[str, FamilyPlan] = {}
    present = {endpoint_slice.address_type for endpoint_slice in ordered}
    for address_type in filter(present.__contains__, families):
        family_slices = [
            endpoint_slice
            for endpoint_slice in managed
            if endpoint_slice.address_type == address_type
        ]
        names = _UniqueNames()
        endpoints_by_slice = [
            (endpoint_slice, [names.read(endpoint) for endpoint in endpoint_slice.endpoints or ()])
            for endpoint_slice in family_slices
        ]
        previous_names = _UniqueNames()
        previous_managed = [
            endpoint_slice
            for endpoint_slice in previous
            if endpoint_slice.address_type == address_type and identity.is_managed(endpoint_slice)
        ]
        previous_hints = replace(
            PreviousHints.from_endpoints(
                previous_names.read(endpoint)
                for endpoint_slice in previous_managed
                for endpoint in endpoint_slice.endpoints or ()
            ),
            weights=common_weights(previous_managed),
        )
        foreign_endpoints = tuple(
            read_as_proxy(endpoint)
            for endpoint_slice in ordered
            if endpoint_slice.address_type == address_type
            and not identity.is_managed(endpoint_slice)
            for endpoint in endpoint_slice.endpoints or ()
        )
        all_endpoints = tuple(
            endpoint for _, slice_endpoints in endpoints_by_slice for endpoint in slice_endpoints
        )
        snapshot = ServiceSnapshot(request, shares, all_endpoints, foreign_endpoints)
        decision = decide_hints(snapshot, previous_hints)
        family_plans[address_type] = _family_plan(decision, all_endpoints, len(family_slices))
        if request.reason is not None and request.reason.code == _NOT_SELECTED:
            continue
        for endpoint_slice, slice_endpoints in endpoints_by_slice:
            changed = (
                _with_hints(endpoint_slice, slice_endpoints, decision, node_hints=node_hints)
                if requests_hints(request)
                else _without_weights(endpoint_slice)
            )
            changed = with_topology(changed, topology)
            if changed is not endpoint_slice:
                update.append(changed)
    return SlicePlan(update=tuple(update), families=family_plans, topology_reason=topology.reason)


def rehint_slice(
    endpoint_slice: EndpointSlice,
    *,
    previous: EndpointSlice | None,
    others: Iterable[EndpointSlice],
    request: HintRequest,
    shares: Shares,
    topology: SliceTopology | None = None,
) -> EndpointSlice:
    """One slice with its hints and the values of topology keys, the same object if all is right."""
    key = endpoint_slice.key
    stored = [other for other in others if other.key != key]
    previous_slices = stored if previous is None else [*stored, previous]
    slices = [*stored, endpoint_slice]
    plan = rehint(slices, request, shares, previous_slices=previous_slices, topology=topology)
    return next((changed for changed in plan.update if changed.key == key), endpoint_slice)


@dataclass(slots=True)
class _UniqueNames:
    """Gives endpoints unique names: addresses, with the pod's name where pods share one."""

    used: set[str] = field(default_factory=set)

    def read(self, endpoint: Endpoint) -> TrafficEndpoint:
        traffic_endpoint = read_as_writer(endpoint)
        if not traffic_endpoint.ready:
            return traffic_endpoint
        if traffic_endpoint.name in self.used and endpoint.target_ref is not None:
            name = f"{traffic_endpoint.name} {endpoint.target_ref.name}"
            traffic_endpoint = replace(traffic_endpoint, name=name)
        self.used.add(traffic_endpoint.name)
        return traffic_endpoint


def _family_plan(
    decision: HintDecision, endpoints: tuple[TrafficEndpoint, ...], slices: int
) -> FamilyPlan:
    return FamilyPlan(
        decision=decision,
        counts=decision.counts(endpoints),
        desired_endpoints=len(endpoints),
        slices=slices,
        desired_slices=slices,
    )


def _with_hints(
    endpoint_slice: EndpointSlice,
    traffic_endpoints: list[TrafficEndpoint],
    decision: HintDecision,
    *,
    node_hints: bool,
) -> EndpointSlice:
    endpoints = endpoint_slice.endpoints or ()
    hints = [
        _hint_for(decision.hints, traffic_endpoint, node_hints=node_hints)
        for traffic_endpoint in traffic_endpoints
    ]
    metadata = _with_annotation(endpoint_slice.metadata, WEIGHTS_ANNOTATION, decision.weights)
    hinted = all(
        traffic_endpoint.hint == hint
        for traffic_endpoint, hint in zip(traffic_endpoints, hints, strict=True)
    )
    if hinted and metadata is endpoint_slice.metadata:
        return endpoint_slice
    return msgspec.structs.replace(
        endpoint_slice,
        metadata=metadata,
        endpoints=tuple(
            msgspec.structs.replace(endpoint, hints=hint.to_object())
            for endpoint, hint in zip(endpoints, hints, strict=True)
        ),
    )


def _without_weights(endpoint_slice: EndpointSlice) -> EndpointSlice:
    return _with_metadata(
        endpoint_slice, _with_annotation(endpoint_slice.metadata, WEIGHTS_ANNOTATION, "")
    )


def with_topology(endpoint_slice: EndpointSlice, topology: SliceTopology) -> EndpointSlice:
    """A slice with the values of topology keys, the same object if they are right."""
    text = topology.text(endpoint_slice.endpoints or ())
    return _with_metadata(
        endpoint_slice, _with_annotation(endpoint_slice.metadata, TOPOLOGY_ANNOTATION, text)
    )


def _with_metadata(endpoint_slice: EndpointSlice, metadata: ObjectMeta) -> EndpointSlice:
    if metadata is endpoint_slice.metadata:
        return endpoint_slice
    return msgspec.structs.replace(endpoint_slice, metadata=metadata)


def _with_annotation(metadata: ObjectMeta, name: str, text: str) -> ObjectMeta:
    """The metadata with an annotation, "" for none; the same object if it is unchanged."""
    if metadata.annotations.get(name, "") == text:
        return metadata
    annotations = dict(metadata.annotations)
    annotations.pop(name, None)
    if text:
        annotations[name] = text
    return msgspec.structs.replace(metadata, annotations=annotations)


def _hint_for(hints: Mapping[str, Hint], endpoint: TrafficEndpoint, *, node_hints: bool) -> Hint:
    hint = hints.get(endpoint.name, NO_HINT) if endpoint.ready else NO_HINT
    return hint if node_hints or not hint.nodes else Hint(hint.zones)


def _name(endpoint_slice: EndpointSlice) -> str:
    return endpoint_slice.metadata.name
