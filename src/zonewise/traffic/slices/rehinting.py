"""Hints on slices that another controller fills.

On a cluster whose own controller cannot be switched off, that controller decides which endpoints
are in which slice, and we decide their hints. ``rehint`` takes the slices as they are and gives
those whose hints are to change. ``rehint_one`` is what admission calls when one of them is about to
be written: the others are as they are stored, this one is as its writer sends it, and its version
``before`` says which hints it had, because its writer has stripped or replaced them. Hints in the
other slices that would have to move are left to ``rehint``, which sees the write.

Both decide as ``plan`` does, from the same endpoints under the same names, so what one writes the
other leaves unchanged. A Service that does not request hints keeps whatever hints its slices have:
another controller may have written them. Only we write weights, and they would be obeyed forever,
so they are removed; unless the Service is not ours, for then another controller may manage it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.discovery import Endpoint, EndpointSlice
from zonewise.topology import Shares
from zonewise.traffic.endpoint import NO_HINT, Hint, TrafficEndpoint, as_obeyed, as_written
from zonewise.traffic.hints import HintDecision, Previous, ServiceSnapshot, decide
from zonewise.traffic.modes import HintRequest, Mode
from zonewise.traffic.slices import identity
from zonewise.traffic.slices.identity import IPV4, IPV6
from zonewise.traffic.slices.planning import FamilyPlan, SlicePlan
from zonewise.traffic.slices.reading import common_weights
from zonewise.traffic.weights import WEIGHTS_ANNOTATION

_NOT_OURS = "NotSelected"
_SILENT = ("NotAsked", _NOT_OURS)


def asks(hint_request: HintRequest) -> bool:
    """Whether a Service requests hints, even if it gets none."""
    return hint_request.mode is not Mode.OFF or (
        hint_request.reason is not None and hint_request.reason.code not in _SILENT
    )


def rehint(
    slices: Iterable[EndpointSlice],
    hint_request: HintRequest,
    shares: Shares,
    *,
    before: Iterable[EndpointSlice] | None = None,
    families: Iterable[str] = (IPV4, IPV6),
    node_hints: bool = True,
) -> SlicePlan:
    """The slices whose hints change; ``before`` are the slices whose hints count as existing."""
    known = sorted(slices, key=_name)
    earlier = known if before is None else sorted(before, key=_name)
    ours = [piece for piece in known if identity.is_managed(piece)]
    update: list[EndpointSlice] = []
    decided: dict[str, FamilyPlan] = {}
    present = {piece.address_type for piece in known}
    for kind in filter(present.__contains__, families):
        mine = [piece for piece in ours if piece.address_type == kind]
        names = _Names()
        targets = [(piece, [names.target(one) for one in piece.endpoints or ()]) for piece in mine]
        past = _Names()
        theirs = [p for p in earlier if p.address_type == kind and identity.is_managed(p)]
        previous = replace(
            Previous.read(past.target(one) for piece in theirs for one in piece.endpoints or ()),
            weights=common_weights(theirs),
        )
        strangers = tuple(
            as_obeyed(endpoint)
            for piece in known
            if piece.address_type == kind and not identity.is_managed(piece)
            for endpoint in piece.endpoints or ()
        )
        flat = tuple(target for _, some in targets for target in some)
        decision = decide(ServiceSnapshot(hint_request, shares, flat, strangers), previous)
        decided[kind] = _family(decision, flat, len(mine))
        if hint_request.reason is not None and hint_request.reason.code == _NOT_OURS:
            continue
        for piece, some in targets:
            changed = (
                _hinted(piece, some, decision, node_hints=node_hints)
                if asks(hint_request)
                else _unweighted(piece)
            )
            if changed is not piece:
                update.append(changed)
    return SlicePlan(update=tuple(update), families=decided)


def rehint_one(
    piece: EndpointSlice,
    *,
    before: EndpointSlice | None,
    others: Iterable[EndpointSlice],
    hint_request: HintRequest,
    shares: Shares,
) -> EndpointSlice:
    """One slice with its hints, the same object if they are right."""
    rest = [other for other in others if other.key != piece.key]
    earlier = rest if before is None else [*rest, before]
    decided = rehint([*rest, piece], hint_request, shares, before=earlier)
    return next((one for one in decided.update if one.key == piece.key), piece)


@dataclass(slots=True)
class _Names:
    """Names of their own for endpoints: addresses, and the pod as well where one is shared."""

    used: set[str] = field(default_factory=set)

    def target(self, endpoint: Endpoint) -> TrafficEndpoint:
        target = as_written(endpoint)
        if not target.ready:
            return target
        if target.name in self.used and endpoint.target_ref is not None:
            target = replace(target, name=f"{target.name} {endpoint.target_ref.name}")
        self.used.add(target.name)
        return target


def _family(
    decision: HintDecision, targets: tuple[TrafficEndpoint, ...], slices: int
) -> FamilyPlan:
    return FamilyPlan(
        decision=decision,
        counts=decision.counts(targets),
        desired=len(targets),
        slices=slices,
        fewest=slices,
    )


def _hinted(
    piece: EndpointSlice,
    targets: list[TrafficEndpoint],
    decision: HintDecision,
    *,
    node_hints: bool,
) -> EndpointSlice:
    endpoints = piece.endpoints or ()
    hints = [_allowed(decision.hints, target, node_hints=node_hints) for target in targets]
    metadata = _weighted(piece.metadata, decision.weights)
    hinted = all(target.hint == hint for target, hint in zip(targets, hints, strict=True))
    if hinted and metadata is piece.metadata:
        return piece
    return msgspec.structs.replace(
        piece,
        metadata=metadata,
        endpoints=tuple(
            msgspec.structs.replace(endpoint, hints=hint.written())
            for endpoint, hint in zip(endpoints, hints, strict=True)
        ),
    )


def _unweighted(piece: EndpointSlice) -> EndpointSlice:
    metadata = _weighted(piece.metadata, "")
    return (
        piece if metadata is piece.metadata else msgspec.structs.replace(piece, metadata=metadata)
    )


def _weighted(metadata: ObjectMeta, weights: str) -> ObjectMeta:
    """The metadata with the text of the weights, the same object if it is unchanged."""
    if metadata.annotations.get(WEIGHTS_ANNOTATION, "") == weights:
        return metadata
    annotations = {k: v for k, v in metadata.annotations.items() if k != WEIGHTS_ANNOTATION}
    if weights:
        annotations[WEIGHTS_ANNOTATION] = weights
    return msgspec.structs.replace(metadata, annotations=annotations)


def _allowed(hints: Mapping[str, Hint], target: TrafficEndpoint, *, node_hints: bool) -> Hint:
    hint = hints.get(target.name, NO_HINT) if target.ready else NO_HINT
    return hint if node_hints or not hint.nodes else Hint(hint.zones)


def _name(piece: EndpointSlice) -> str:
    return piece.metadata.name
