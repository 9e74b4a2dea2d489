"""Hints on slices that somebody else fills.

On a cluster whose own controller cannot be switched off, that controller decides which endpoints
are in which slice, and we decide for whom they are. ``rehint`` takes the slices as they are and
gives those whose hints are to change. ``rehint_one`` is what admission asks when one of them is
about to be written: the others are as they are stored, this one is as its writer wants it, and
what it was ``before`` says which hints it had, because its writer has stripped or replaced them.
Hints in the other slices that would have to move are left to ``rehint``, which sees the write.

Both decide as ``plan`` does, from the same endpoints under the same names, so what one writes the
other leaves alone. A Service that does not ask keeps whatever its slices say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from zonewise.api.discovery import Endpoint, EndpointSlice
from zonewise.topology import Shares
from zonewise.traffic.hints import Decision, Previous, Snapshot, decide
from zonewise.traffic.modes import Mode, Wish
from zonewise.traffic.slices import identity
from zonewise.traffic.slices.identity import IPV4, IPV6
from zonewise.traffic.slices.planning import Family, Plan
from zonewise.traffic.targets import NO_HINT, Hint, Target, as_obeyed, as_written

_SILENT = ("NotAsked", "NotSelected")


def asks(wish: Wish) -> bool:
    """Whether a Service asks for hints, be it in vain."""
    return wish.mode is not Mode.OFF or (
        wish.reason is not None and wish.reason.code not in _SILENT
    )


def rehint(
    slices: Iterable[EndpointSlice],
    wish: Wish,
    shares: Shares,
    *,
    before: Iterable[EndpointSlice] | None = None,
    families: Iterable[str] = (IPV4, IPV6),
    node_hints: bool = True,
) -> Plan:
    """The slices whose hints change; ``before`` are the slices whose hints count as being there."""
    known = sorted(slices, key=_name)
    earlier = known if before is None else sorted(before, key=_name)
    ours = [piece for piece in known if identity.is_managed(piece)]
    update: list[EndpointSlice] = []
    decided: dict[str, Family] = {}
    present = {piece.address_type for piece in known}
    for kind in filter(present.__contains__, families):
        mine = [piece for piece in ours if piece.address_type == kind]
        names = _Names()
        targets = [(piece, [names.target(one) for one in piece.endpoints or ()]) for piece in mine]
        past = _Names()
        previous = Previous.read(
            past.target(endpoint)
            for piece in earlier
            if piece.address_type == kind and identity.is_managed(piece)
            for endpoint in piece.endpoints or ()
        )
        strangers = tuple(
            as_obeyed(endpoint)
            for piece in known
            if piece.address_type == kind and not identity.is_managed(piece)
            for endpoint in piece.endpoints or ()
        )
        flat = tuple(target for _, some in targets for target in some)
        decision = decide(Snapshot(wish, shares, flat, strangers), previous)
        decided[kind] = _family(decision, flat, len(mine))
        if asks(wish):
            for piece, some in targets:
                changed = _hinted(piece, some, decision, node_hints=node_hints)
                if changed is not piece:
                    update.append(changed)
    return Plan(update=tuple(update), families=decided)


def rehint_one(
    piece: EndpointSlice,
    *,
    before: EndpointSlice | None,
    others: Iterable[EndpointSlice],
    wish: Wish,
    shares: Shares,
) -> EndpointSlice:
    """One slice with its hints, the same object if they are right."""
    rest = [other for other in others if other.key != piece.key]
    earlier = rest if before is None else [*rest, before]
    decided = rehint([*rest, piece], wish, shares, before=earlier)
    return next((one for one in decided.update if one.key == piece.key), piece)


@dataclass(slots=True)
class _Names:
    """Names of their own for endpoints: addresses, and the pod as well where one is shared."""

    used: set[str] = field(default_factory=set)

    def target(self, endpoint: Endpoint) -> Target:
        target = as_written(endpoint)
        if not target.ready:
            return target
        if target.name in self.used and endpoint.target_ref is not None:
            target = replace(target, name=f"{target.name} {endpoint.target_ref.name}")
        self.used.add(target.name)
        return target


def _family(decision: Decision, targets: tuple[Target, ...], slices: int) -> Family:
    return Family(
        decision=decision,
        ready=sum(target.ready for target in targets),
        per_zone=Counter(zone for hint in decision.hints.values() for zone in hint.zones),
        desired=len(targets),
        slices=slices,
        fewest=slices,
    )


def _hinted(
    piece: EndpointSlice, targets: list[Target], decision: Decision, *, node_hints: bool
) -> EndpointSlice:
    endpoints = piece.endpoints or ()
    hints = [_allowed(decision.hints, target, node_hints=node_hints) for target in targets]
    if all(target.hint == hint for target, hint in zip(targets, hints, strict=True)):
        return piece
    return msgspec.structs.replace(
        piece,
        endpoints=tuple(
            msgspec.structs.replace(endpoint, hints=hint.written())
            for endpoint, hint in zip(endpoints, hints, strict=True)
        ),
    )


def _allowed(hints: Mapping[str, Hint], target: Target, *, node_hints: bool) -> Hint:
    hint = hints.get(target.name, NO_HINT) if target.ready else NO_HINT
    return hint if node_hints or not hint.nodes else Hint(hint.zones)


def _name(piece: EndpointSlice) -> str:
    return piece.metadata.name
