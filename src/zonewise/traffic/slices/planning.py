"""All slices of a Service in one pass: what to create, to update and to delete, and why.

``plan_slices(snapshot, cache)`` is pure: the same snapshot gives the same bytes in any order, with
or without a cache. Hints are decided *before* endpoints are packed, from all endpoints of a family;
so a slice whose hints change takes new endpoints with it, and each slice is written at most once.

The trigger time, from which proxies measure how long a change took to reach them, is derived from
the difference itself: it is the earliest change of readiness of an endpoint that is new or changed,
or for the first slices of a Service its creation. Nothing has to be remembered for it between two
passes.

Order of writes: what is created or updated first, deletions last, so that an endpoint that moves
between slices is listed twice rather than not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from zonewise.api.meta import ObjectMeta, OwnerReference
from zonewise.api.objects.core import Service
from zonewise.api.objects.discovery import TRIGGER_ANNOTATION, Endpoint, EndpointSlice
from zonewise.api.objects.pod import Pod
from zonewise.api.reason import Reason
from zonewise.topology.shares import Shares
from zonewise.traffic.endpoint import Hint, TrafficEndpoint, read_as_proxy
from zonewise.traffic.hints import HintDecision, PreviousHints, ServiceSnapshot, decide_hints
from zonewise.traffic.limits import HintCounts
from zonewise.traffic.modes import HintRequest
from zonewise.traffic.slices import identity
from zonewise.traffic.slices.endpoint_pods import EndpointPod, EndpointPods, PodEndpoint, PortGroup
from zonewise.traffic.slices.packing import Packing, PortGroupEndpoints, SliceWrite, pack_slices
from zonewise.traffic.slices.reading import SliceReading, SliceReadings, previous_hints
from zonewise.traffic.slices.topology import (
    TOPOLOGY_ANNOTATION,
    NodeLabels,
    SliceTopology,
)
from zonewise.traffic.weights import WEIGHTS_ANNOTATION

MAX_ENDPOINTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceSnapshot:
    """A Service, the pods it selects, the zones of nodes, and every slice that names it.

    ``zones`` has "" for a node without a zone and nothing for a node that does not exist;
    ``topology_keys`` are those whose values slices state in their annotation, from ``node_labels``.
    ``node_hints`` is false for servers that do not support them.
    """

    service: Service
    hint_request: HintRequest
    shares: Shares
    pods: Iterable[Pod] = ()
    zones: Mapping[str, str] = field(default_factory=dict)
    topology_keys: tuple[str, ...] = ()
    node_labels: NodeLabels = field(default_factory=dict)
    slices: Iterable[EndpointSlice] = ()
    limit: int = MAX_ENDPOINTS
    node_hints: bool = True


@dataclass(frozen=True, slots=True)
class FamilyPlan:
    """The plan for one address family."""

    decision: HintDecision
    counts: HintCounts
    desired_endpoints: int
    slices: int
    desired_slices: int
    """In how many slices the endpoints would fit."""


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """What to write, and why. Updates carry the version they are made from."""

    create: tuple[EndpointSlice, ...] = ()
    update: tuple[EndpointSlice, ...] = ()
    delete: tuple[EndpointSlice, ...] = ()
    families: Mapping[str, FamilyPlan] = field(default_factory=dict)
    without_node: tuple[Pod, ...] = ()
    """Pods that are left out because their node does not exist; try again."""
    added: int = 0
    removed: int = 0
    topology_reason: Reason | None = None
    """Why a slice does not have the values of the Service's topology keys, if it does not."""

    @property
    def writes(self) -> int:
        """How many requests it takes."""
        return len(self.create) + len(self.update) + len(self.delete)

    @property
    def decision(self) -> HintDecision | None:
        """The decision about the primary family."""
        return next((family.decision for family in self.families.values()), None)


@dataclass(slots=True)
class PlanCache:
    """What is kept of a Service between two passes; all of it is derived."""

    endpoint_pods: EndpointPods = field(default_factory=EndpointPods)
    readings: SliceReadings = field(default_factory=SliceReadings)


def plan_slices(snapshot: SliceSnapshot, cache: PlanCache | None = None) -> SlicePlan:
    """Everything that must be written to bring the slices to the desired state."""
    cache = cache or PlanCache()
    endpoint_pods, without_node = cache.endpoint_pods.update(
        snapshot.service, snapshot.pods, snapshot.zones
    )
    own, outdated, foreign = _split_slices(snapshot)
    readings = cache.readings.update(own)
    topology = SliceTopology(snapshot.topology_keys, snapshot.node_labels)
    metadata = _SliceMetadata(snapshot.service, topology)
    families: dict[str, FamilyPlan] = {}
    writes: list[tuple[str, SliceWrite]] = []
    address_types = identity.families_of(snapshot.service)
    dropped = [item.slice for item in readings if item.slice.address_type not in address_types]
    spare: list[EndpointSlice] = [*outdated, *dropped]
    added = removed = 0
    created = snapshot.service.metadata.creation_timestamp or ""
    trigger_times: list[str] = [] if readings else [created]
    for address_type in address_types:
        family_readings = [item for item in readings if item.slice.address_type == address_type]
        family_foreign = [
            endpoint_slice
            for endpoint_slice in foreign
            if endpoint_slice.address_type == address_type
        ]
        family, packing = _plan_family(
            snapshot, address_type, endpoint_pods, family_readings, family_foreign, metadata
        )
        families[address_type] = family
        writes += ((address_type, write) for write in packing.writes)
        spare += [reading.slice for reading in packing.spare]
        added += len(packing.added)
        removed += packing.removed
        if readings and packing.writes:
            trigger_times += _trigger_times(endpoint_pods, family_readings, packing)
    metadata.trigger_time = min(filter(None, trigger_times), default="")
    slices = [metadata.finish(address_type, write) for address_type, write in writes]
    deleting = snapshot.service.metadata.deletion_timestamp is not None
    return SlicePlan(
        create=() if deleting else tuple(new for new in slices if not _name(new)),
        update=tuple(sorted(filter(_name, slices), key=_name)),
        delete=tuple(sorted(spare, key=_name)),
        families=families,
        without_node=tuple(sorted(without_node, key=_name)),
        added=added,
        removed=removed,
        topology_reason=topology.reason,
    )


def _split_slices(
    snapshot: SliceSnapshot,
) -> tuple[list[EndpointSlice], list[EndpointSlice], list[EndpointSlice]]:
    """Our slices, those of an older Service of this name, and those of other controllers.

    A terminating slice is in none of them: what is written into it is deleted with it.
    """
    uid = snapshot.service.metadata.uid
    own: list[EndpointSlice] = []
    outdated: list[EndpointSlice] = []
    foreign: list[EndpointSlice] = []
    for endpoint_slice in snapshot.slices:
        if endpoint_slice.metadata.deletion_timestamp is not None:
            continue
        if not identity.is_managed(endpoint_slice):
            foreign.append(endpoint_slice)
            continue
        owner = endpoint_slice.metadata.controller
        (own if owner is None or owner.uid == uid else outdated).append(endpoint_slice)
    return own, outdated, foreign


def _plan_family(
    snapshot: SliceSnapshot,
    address_type: str,
    endpoint_pods: Sequence[EndpointPod],
    readings: list[SliceReading],
    foreign: Iterable[EndpointSlice],
    metadata: _SliceMetadata,
) -> tuple[FamilyPlan, Packing]:
    candidates: list[PodEndpoint] = []
    groups: dict[PortGroup, PortGroupEndpoints] = {}
    group_endpoints: list[dict[str, Endpoint]] = []
    for endpoint_pod in endpoint_pods:
        candidate = endpoint_pod.families.get(address_type)
        if candidate is not None:
            group = groups.get(endpoint_pod.group)
            if group is None:
                group = groups[endpoint_pod.group] = PortGroupEndpoints(endpoint_pod.ports)
            candidates.append(candidate)
            group_endpoints.append(group.endpoints)
    traffic_endpoints, previous = _name_endpoints(candidates, readings)
    foreign_endpoints = tuple(
        read_as_proxy(endpoint)
        for endpoint_slice in foreign
        for endpoint in endpoint_slice.endpoints or ()
    )
    service_snapshot = ServiceSnapshot(
        snapshot.hint_request, snapshot.shares, traffic_endpoints, foreign_endpoints
    )
    decision = decide_hints(service_snapshot, previous)
    hints = decision.hints if snapshot.node_hints else _without_nodes(decision.hints)
    for candidate, traffic_endpoint, by_pod in zip(
        candidates, traffic_endpoints, group_endpoints, strict=True
    ):
        # A pod that ends on a node's network has the address of its successor, not its hint.
        hint = hints.get(traffic_endpoint.name) if traffic_endpoint.ready else None
        by_pod[candidate.name] = candidate.with_hint(hint)
    sizes = [len(group.endpoints) for group in groups.values()]
    metadata.weights[address_type] = decision.weights
    stale = metadata.find_stale(readings, decision.weights)
    packing = pack_slices(groups, readings, stale=stale, limit=snapshot.limit)
    family = FamilyPlan(
        decision=decision,
        counts=decision.counts(traffic_endpoints),
        desired_endpoints=len(candidates),
        slices=packing.unchanged + len(packing.writes),
        desired_slices=sum(-(-size // snapshot.limit) for size in sizes) or 1,
    )
    return family, packing


def _name_endpoints(
    candidates: Sequence[PodEndpoint], readings: Sequence[SliceReading]
) -> tuple[tuple[TrafficEndpoint, ...], PreviousHints]:
    """The endpoints under unique names, and the existing hints under the same names.

    Addresses are the names. Pods on a node's network may share one; then the names of all but the
    first of those that are ready include the pod's name.
    """
    traffic_endpoints = tuple(candidate.traffic_endpoint for candidate in candidates)
    ready = [endpoint.name for endpoint in traffic_endpoints if endpoint.ready]
    if len(set(ready)) == len(ready):
        return traffic_endpoints, previous_hints(readings)
    first: dict[str, str] = {}
    for candidate in candidates:
        if candidate.traffic_endpoint.ready:
            address = candidate.traffic_endpoint.name
            first[address] = min(first.get(address, candidate.name), candidate.name)
    names = {
        candidate.name: candidate.traffic_endpoint.name
        if first.get(candidate.traffic_endpoint.name, candidate.name) == candidate.name
        else f"{candidate.traffic_endpoint.name} {candidate.name}"
        for candidate in candidates
    }
    hints: dict[str, Hint] = {}
    for reading in readings:
        for pod, endpoint in zip(reading.pods, reading.endpoints, strict=True):
            if endpoint.conditions.ready:
                address = (endpoint.addresses or ("",))[0]
                hints[names.get(pod, address)] = Hint.from_object(endpoint.hints)
    hinted = bool(hints) and all(hint.zones for hint in hints.values())
    renamed = tuple(
        replace(candidate.traffic_endpoint, name=names[candidate.name]) for candidate in candidates
    )
    return renamed, replace(previous_hints(readings), hints=hints, hinted=hinted)


def _without_nodes(hints: Mapping[str, Hint]) -> dict[str, Hint]:
    return {name: Hint(hint.zones) for name, hint in hints.items() if hint.zones}


def _trigger_times(
    endpoint_pods: Iterable[EndpointPod], readings: Iterable[SliceReading], packing: Packing
) -> list[str]:
    """When the readiness changed of endpoints that are new here, or whose readiness is new."""
    if not packing.added and not packing.replaced:
        return []
    listed = {pod for reading in readings for pod in reading.pods}
    changed = {pod for pod in packing.added if pod not in listed}
    for old, new in packing.replaced:
        if old.conditions.serving != new.conditions.serving and new.target_ref is not None:
            changed.add(new.target_ref.name)
    return [
        endpoint_pod.ready_since
        for endpoint_pod in endpoint_pods
        if endpoint_pod.pod.metadata.name in changed
    ]


class _SliceMetadata:
    """The labels, owner, name and annotations of the slices of a Service."""

    def __init__(self, service: Service, topology: SliceTopology) -> None:
        self._topology = topology
        self._labels = identity.labels_of(service)
        self._owners: tuple[OwnerReference, ...] = (identity.owner_of(service),)
        self._new = ObjectMeta(
            generate_name=identity.name_prefix(service),
            namespace=service.metadata.namespace,
            labels=self._labels,
            owner_references=self._owners,
        )
        self.trigger_time = ""
        self.weights: dict[str, str] = {}
        """The text of the weights of each address family."""

    def find_stale(self, readings: Iterable[SliceReading], weights: str) -> list[str]:
        """The slices whose metadata are not what they should be, given that endpoints stay."""
        names = []
        for reading in readings:
            metadata = reading.slice.metadata
            if (
                metadata.labels != self._labels
                or metadata.owner_references != self._owners
                or reading.weights != weights
                or reading.topology != self._topology.text(reading.endpoints)
            ):
                names.append(metadata.name)
        return names

    def finish(self, address_type: str, write: SliceWrite) -> EndpointSlice:
        """The slice as it is written."""
        old = self._new if write.reading is None else write.reading.slice.metadata
        annotations = {**old.annotations}
        annotations.pop(TRIGGER_ANNOTATION, None)
        if self.trigger_time:
            annotations[TRIGGER_ANNOTATION] = self.trigger_time
        annotations.pop(WEIGHTS_ANNOTATION, None)
        if weights := self.weights.get(address_type, ""):
            annotations[WEIGHTS_ANNOTATION] = weights
        annotations.pop(TOPOLOGY_ANNOTATION, None)
        if topology := self._topology.text(write.endpoints):
            annotations[TOPOLOGY_ANNOTATION] = topology
        metadata = msgspec.structs.replace(
            old,
            labels=self._labels,
            annotations=dict(sorted(annotations.items())),
            owner_references=self._owners,
        )
        return EndpointSlice(
            metadata=metadata,
            address_type=address_type,
            endpoints=tuple(write.endpoints),
            ports=write.ports,
        )


def _name(obj: EndpointSlice | Pod) -> str:
    return obj.metadata.name
