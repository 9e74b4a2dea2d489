"""Which endpoint goes into which slice, with the fewest writes.

Slices are never repacked to look better: a write costs every proxy in the cluster, a half-full
slice costs nothing. One pass over the slices of a family, by name:

1. endpoints that are no longer wanted go, changed ones are replaced where they are. A slice in
   which nothing is left, or whose ports no endpoint has any more, is *spare*;
2. new endpoints fill slices that are written anyway, the fullest first;
3. what is left goes into spare slices, which would have cost a deletion; then, if it fits, into
   the one other slice that is fullest afterwards; then into new slices.

A new endpoint thus costs a write only when no slice is written anyway, and then one write for a
whole slice's worth. That is never more than Kubernetes' own controller, which takes step 3's
spare slices only instead of creating one.

The address type of a slice cannot change, its ports can. A Service without endpoints keeps one
empty slice, so that a client finds that it has no endpoints rather than no slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from zonewise.api.objects.discovery import Endpoint
from zonewise.traffic.slices.endpoint_pods import PortGroup, Ports
from zonewise.traffic.slices.reading import Reading


@dataclass(slots=True)
class GroupEndpoints:
    """The endpoints of one group: ports as they are written, endpoints by pod."""

    ports: Ports
    endpoints: dict[str, Endpoint] = field(default_factory=dict)


@dataclass(slots=True)
class Filling:
    """A slice that is written: a new one if there is no ``reading``."""

    ports: Ports
    endpoints: list[Endpoint]
    reading: Reading | None = None


@dataclass(slots=True)
class Packing:
    """What becomes of the slices of one family."""

    fillings: list[Filling] = field(default_factory=list)
    spare: list[Reading] = field(default_factory=list)
    """To be deleted."""
    kept: int = 0
    """How many stay as they are."""
    added: dict[str, Endpoint] = field(default_factory=dict)
    """Endpoints that were in no slice of their group, by pod."""
    replaced: list[tuple[Endpoint, Endpoint]] = field(default_factory=list)
    """Endpoints before and after."""
    removed: int = 0


def pack(
    groups: Mapping[PortGroup, GroupEndpoints],
    readings: Iterable[Reading],
    *,
    stale: Iterable[str],
    limit: int,
) -> Packing:
    """The fewest writes that bring the slices to the groups.

    ``readings`` are the slices we own, by name; those named in ``stale`` are written whatever is
    in them, because their metadata are wrong.
    """
    packing = Packing()
    written: dict[PortGroup, list[Filling]] = {}
    untouched: dict[PortGroup, list[Reading]] = {}
    outdated = frozenset(stale)
    for reading in readings:
        wanted = groups.get(reading.group)
        kept = _keep(packing, reading, {} if wanted is None else wanted.endpoints)
        if not kept or wanted is None:
            packing.spare.append(reading)
        elif kept is reading.endpoints and reading.slice.metadata.name not in outdated:
            untouched.setdefault(reading.group, []).append(reading)
        else:
            filling = Filling(wanted.ports, list(kept), reading)
            written.setdefault(reading.group, []).append(filling)
            packing.fillings.append(filling)
    for group in sorted(groups, key=_order):
        wanted = groups[group]
        packing.added |= wanted.endpoints
        rest = [wanted.endpoints[pod] for pod in sorted(wanted.endpoints, reverse=True)]
        for filling in sorted(written.get(group, ()), key=_fullest):
            _fill(filling.endpoints, rest, limit)
        _place(packing, wanted.ports, rest, untouched.get(group, []), limit)
    packing.kept = sum(len(readings) for readings in untouched.values())
    if not packing.kept and not packing.fillings:
        _hold_place(packing, outdated)
    return packing


def _keep(
    packing: Packing, reading: Reading, wanted: dict[str, Endpoint]
) -> tuple[Endpoint, ...] | list[Endpoint]:
    """The slice's endpoints that stay, as they shall be; the same tuple if nothing changes."""
    kept: list[Endpoint] = []
    changed = False
    take = wanted.pop
    for pod, endpoint in zip(reading.pods, reading.endpoints, strict=True):
        after = take(pod, None)
        if after is None:
            changed = True
            packing.removed += 1
            continue
        kept.append(after)
        if after is not endpoint and after != endpoint:
            changed = True
            packing.replaced.append((endpoint, after))
    return kept if changed else reading.endpoints


def _place(
    packing: Packing,
    ports: Ports,
    rest: list[Endpoint],
    untouched: list[Reading],
    limit: int,
) -> None:
    """Find slices for endpoints that fit into none that is written anyway."""
    while rest:
        if packing.spare:
            filling = Filling(ports, [], packing.spare.pop(0))
        else:
            room = [one for one in untouched if len(one.endpoints) + len(rest) <= limit]
            if room:
                reading = min(room, key=lambda one: -len(one.endpoints))
                untouched.remove(reading)
                filling = Filling(ports, list(reading.endpoints), reading)
            else:
                filling = Filling(ports, [])
        _fill(filling.endpoints, rest, limit)
        packing.fillings.append(filling)


def _hold_place(packing: Packing, outdated: frozenset[str]) -> None:
    """Keep, or make, the one empty slice of a Service without endpoints."""
    for number, reading in enumerate(packing.spare):
        right = not reading.endpoints and not reading.group
        if right and reading.slice.metadata.name not in outdated:
            del packing.spare[number]
            packing.kept = 1
            return
    packing.fillings.append(Filling((), [], packing.spare.pop(0) if packing.spare else None))


def _fill(endpoints: list[Endpoint], rest: list[Endpoint], limit: int) -> None:
    while rest and len(endpoints) < limit:
        endpoints.append(rest.pop())


def _fullest(filling: Filling) -> tuple[int, str]:
    name = "" if filling.reading is None else filling.reading.slice.metadata.name
    return -len(filling.endpoints), name


def _order(group: PortGroup) -> list[tuple[str, str, int, str]]:
    return sorted(
        (port.name or "", port.protocol or "", port.port or 0, port.app_protocol or "")
        for port in group
    )
