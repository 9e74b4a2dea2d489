"""The whole of a Service's slices in one pass: what to create, to update and to delete, and why.

``plan(view, memory)`` is pure: the same view gives the same bytes in any order, with or without the
cache in ``memory``. Hints are decided *before* endpoints are packed, from all endpoints of a
family; so a slice whose hints change takes new endpoints with it, and each slice is written at most
once.

The trigger time, from which proxies measure how long a change took to reach them, is read from the
difference itself: the earliest moment at which readiness of an endpoint that is new or changed
changed, or for the first slices of a Service its creation. Nothing has to be remembered for it
between two passes.

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
from zonewise.topology import Shares
from zonewise.traffic.endpoint import Hint, TrafficEndpoint, as_obeyed
from zonewise.traffic.hints import HintDecision, Previous, ServiceSnapshot, decide
from zonewise.traffic.limits import HintCounts
from zonewise.traffic.modes import HintRequest
from zonewise.traffic.slices import identity
from zonewise.traffic.slices.endpoint_pods import Candidate, Member, Members, PortGroup
from zonewise.traffic.slices.packing import Filling, GroupEndpoints, Packing, pack
from zonewise.traffic.slices.reading import Reading, Readings, previous
from zonewise.traffic.weights import WEIGHTS_ANNOTATION

LIMIT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceView:
    """The input: a Service, the pods it selects, the zones of nodes, every slice in its name.

    ``zones`` has "" for a node without a zone and nothing for a node that does not exist.
    ``node_hints`` is false for servers that do not support them.
    """

    service: Service
    hint_request: HintRequest
    shares: Shares
    pods: Iterable[Pod] = ()
    zones: Mapping[str, str] = field(default_factory=dict)
    slices: Iterable[EndpointSlice] = ()
    limit: int = LIMIT
    node_hints: bool = True


@dataclass(frozen=True, slots=True)
class FamilyPlan:
    """One address family after a pass."""

    decision: HintDecision
    counts: HintCounts
    desired: int
    slices: int
    fewest: int
    """In how many slices the endpoints would fit."""


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """What to write, and why. Updates carry the version they are made from."""

    create: tuple[EndpointSlice, ...] = ()
    update: tuple[EndpointSlice, ...] = ()
    delete: tuple[EndpointSlice, ...] = ()
    families: Mapping[str, FamilyPlan] = field(default_factory=dict)
    lost: tuple[Pod, ...] = ()
    """Pods that are left out because their node does not exist; try again."""
    added: int = 0
    removed: int = 0

    @property
    def writes(self) -> int:
        """How many requests it takes."""
        return len(self.create) + len(self.update) + len(self.delete)

    @property
    def decision(self) -> HintDecision | None:
        """The decision about the primary family."""
        return next((family.decision for family in self.families.values()), None)


@dataclass(slots=True)
class Memory:
    """What is remembered of a Service between two passes; all of it is derived."""

    members: Members = field(default_factory=Members)
    readings: Readings = field(default_factory=Readings)


def plan(view: SliceView, memory: Memory | None = None) -> SlicePlan:
    """Everything to be written so that the slices are right."""
    memory = memory or Memory()
    members, lost = memory.members.update(view.service, view.pods, view.zones)
    ours, old, foreign = _sorted_out(view)
    readings = memory.readings.update(ours)
    metadata = _Metadata(view.service)
    families: dict[str, FamilyPlan] = {}
    written: list[Filling] = []
    kinds: list[str] = []
    wanted_types = identity.families_of(view.service)
    dropped = [r.slice for r in readings if r.slice.address_type not in wanted_types]
    spare: list[EndpointSlice] = [*old, *dropped]
    added = removed = 0
    moments: list[str] = [] if readings else [view.service.metadata.creation_timestamp or ""]
    for kind in wanted_types:
        mine = [reading for reading in readings if reading.slice.address_type == kind]
        theirs = [piece for piece in foreign if piece.address_type == kind]
        family, packing = _family(view, kind, members, mine, theirs, metadata)
        families[kind] = family
        written += packing.fillings
        kinds += [kind] * len(packing.fillings)
        spare += [reading.slice for reading in packing.spare]
        added += len(packing.added)
        removed += packing.removed
        if readings and packing.fillings:
            moments += _moments(members, mine, packing)
    metadata.moment = min(filter(None, moments), default="")
    made = [metadata.finish(kind, filling) for kind, filling in zip(kinds, written, strict=True)]
    deleting = view.service.metadata.deletion_timestamp is not None
    return SlicePlan(
        create=() if deleting else tuple(p for p in made if not p.metadata.name),
        update=tuple(sorted((p for p in made if p.metadata.name), key=_name)),
        delete=tuple(sorted(spare, key=_name)),
        families=families,
        lost=tuple(sorted(lost, key=_name)),
        added=added,
        removed=removed,
    )


def _sorted_out(
    view: SliceView,
) -> tuple[list[EndpointSlice], list[EndpointSlice], list[EndpointSlice]]:
    """Our slices, those of an older Service of this name, and those that others write.

    A terminating one is in none of them: what is written into it is deleted with it.
    """
    uid = view.service.metadata.uid
    ours: list[EndpointSlice] = []
    old: list[EndpointSlice] = []
    foreign: list[EndpointSlice] = []
    for piece in view.slices:
        if piece.metadata.deletion_timestamp is not None:
            continue
        if not identity.is_managed(piece):
            foreign.append(piece)
            continue
        owner = piece.metadata.controller
        (ours if owner is None or owner.uid == uid else old).append(piece)
    return ours, old, foreign


def _family(
    view: SliceView,
    kind: str,
    members: Sequence[Member],
    readings: list[Reading],
    foreign: Iterable[EndpointSlice],
    metadata: _Metadata,
) -> tuple[FamilyPlan, Packing]:
    candidates: list[Candidate] = []
    groups: dict[PortGroup, GroupEndpoints] = {}
    homes: list[dict[str, Endpoint]] = []
    for member in members:
        candidate = member.families.get(kind)
        if candidate is not None:
            wanted = groups.get(member.group)
            if wanted is None:
                wanted = groups[member.group] = GroupEndpoints(member.ports)
            candidates.append(candidate)
            homes.append(wanted.endpoints)
    targets, before = _named(candidates, readings)
    strangers = tuple(as_obeyed(one) for piece in foreign for one in piece.endpoints or ())
    snapshot = ServiceSnapshot(view.hint_request, view.shares, targets, strangers)
    decision = decide(snapshot, before)
    hints = decision.hints if view.node_hints else _without_nodes(decision.hints)
    for candidate, target, home in zip(candidates, targets, homes, strict=True):
        # A pod that ends on a node's network has the address of its successor, not its hint.
        home[candidate.name] = candidate.written(hints.get(target.name) if target.ready else None)
    sizes = [len(wanted.endpoints) for wanted in groups.values()]
    metadata.weights[kind] = decision.weights
    stale = metadata.stale(readings, decision.weights)
    packing = pack(groups, readings, stale=stale, limit=view.limit)
    family = FamilyPlan(
        decision=decision,
        counts=decision.counts(targets),
        desired=len(candidates),
        slices=packing.kept + len(packing.fillings),
        fewest=sum(-(-size // view.limit) for size in sizes) or 1,
    )
    return family, packing


def _named(
    candidates: Sequence[Candidate], readings: Sequence[Reading]
) -> tuple[tuple[TrafficEndpoint, ...], Previous]:
    """The targets under names of their own, and the hints that were, under the same names.

    Addresses are the names. Pods on a node's network may share one; then all but the first of
    those that are ready carry the pod's name as well.
    """
    targets = tuple(candidate.target for candidate in candidates)
    ready = [target.name for target in targets if target.ready]
    if len(set(ready)) == len(ready):
        return targets, previous(readings)
    first: dict[str, str] = {}
    for candidate in candidates:
        if candidate.target.ready:
            address = candidate.target.name
            first[address] = min(first.get(address, candidate.name), candidate.name)
    names = {
        candidate.name: candidate.target.name
        if first.get(candidate.target.name, candidate.name) == candidate.name
        else f"{candidate.target.name} {candidate.name}"
        for candidate in candidates
    }
    hints: dict[str, Hint] = {}
    for reading in readings:
        for pod, endpoint in zip(reading.pods, reading.endpoints, strict=True):
            if endpoint.conditions.ready:
                address = (endpoint.addresses or ("",))[0]
                hints[names.get(pod, address)] = Hint.read(endpoint.hints)
    hinted = bool(hints) and all(hint.zones for hint in hints.values())
    renamed = tuple(replace(one.target, name=names[one.name]) for one in candidates)
    return renamed, replace(previous(readings), hints=hints, hinted=hinted)


def _without_nodes(hints: Mapping[str, Hint]) -> dict[str, Hint]:
    return {name: Hint(hint.zones) for name, hint in hints.items() if hint.zones}


def _moments(members: Iterable[Member], readings: Iterable[Reading], packing: Packing) -> list[str]:
    """When readiness of endpoints that are new here, or whose readiness changed, changed."""
    if not packing.added and not packing.replaced:
        return []
    moved = {pod for reading in readings for pod in reading.pods}
    about = {pod for pod in packing.added if pod not in moved}
    for before, after in packing.replaced:
        if before.conditions.serving != after.conditions.serving and after.target_ref is not None:
            about.add(after.target_ref.name)
    return [member.since for member in members if member.pod.metadata.name in about]


class _Metadata:
    """What slices of a Service are labelled with, owned by and named after."""

    def __init__(self, service: Service) -> None:
        self._labels = identity.labels_of(service)
        self._owners: tuple[OwnerReference, ...] = (identity.owner_of(service),)
        self._new = ObjectMeta(
            generate_name=identity.generate_name(service),
            namespace=service.metadata.namespace,
            labels=self._labels,
            owner_references=self._owners,
        )
        self.moment = ""
        self.weights: dict[str, str] = {}
        """The text of the weights of each address family."""

    def stale(self, readings: Iterable[Reading], weights: str) -> list[str]:
        """The slices whose labels, owner or weights are not what they should be."""
        found = []
        for reading in readings:
            metadata = reading.slice.metadata
            if (
                metadata.labels != self._labels
                or metadata.owner_references != self._owners
                or reading.weights != weights
            ):
                found.append(metadata.name)
        return found

    def finish(self, kind: str, filling: Filling) -> EndpointSlice:
        """The slice as it is written."""
        old = self._new if filling.reading is None else filling.reading.slice.metadata
        annotations = {**old.annotations}
        annotations.pop(TRIGGER_ANNOTATION, None)
        if self.moment:
            annotations[TRIGGER_ANNOTATION] = self.moment
        annotations.pop(WEIGHTS_ANNOTATION, None)
        if weights := self.weights.get(kind, ""):
            annotations[WEIGHTS_ANNOTATION] = weights
        metadata = msgspec.structs.replace(
            old,
            labels=self._labels,
            annotations=dict(sorted(annotations.items())),
            owner_references=self._owners,
        )
        return EndpointSlice(
            metadata=metadata,
            address_type=kind,
            endpoints=tuple(filling.endpoints),
            ports=filling.ports,
        )


def _name(item: EndpointSlice | Pod) -> str:
    return item.metadata.name
