"""Which endpoint goes into which slice, with the fewest writes.

Slices are never repacked to look better: a write costs every proxy in the cluster, a half-full
slice costs nothing. One pass over the slices of a family, by name:

1. endpoints that are no longer desired are removed, changed ones are replaced where they are. A
   slice without any endpoint left, or whose ports no endpoint has any more, is *spare*;
2. new endpoints fill slices that are written anyway, the fullest first;
3. the remaining ones go into spare slices, which would have cost a deletion; then, if they fit,
   into the one other slice that is fullest afterwards; then into new slices.

A new endpoint thus costs a write only when no slice is written anyway, and then one write for a
full slice. That is never more than Kubernetes' own controller, which uses spare slices (step 3)
only instead of creating one.

The address type of a slice cannot change, its ports can. A Service without endpoints keeps one
empty slice, so that a client finds that it has no endpoints rather than no slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from zonewise.api.objects.discovery import Endpoint
from zonewise.traffic.slices.endpoint_pods import PortGroup, Ports
from zonewise.traffic.slices.reading import SliceReading


@dataclass(slots=True)
class PortGroupEndpoints:
    """The endpoints of one group: ports as they are written, endpoints by pod."""

    ports: Ports
    endpoints: dict[str, Endpoint] = field(default_factory=dict)


@dataclass(slots=True)
class SliceWrite:
    """A slice that is written: a new one if there is no ``reading``."""

    ports: Ports
    endpoints: list[Endpoint]
    reading: SliceReading | None = None


@dataclass(slots=True)
class Packing:
    """What is done with the slices of one family."""

    writes: list[SliceWrite] = field(default_factory=list)
    spare: list[SliceReading] = field(default_factory=list)
    """To be deleted."""
    unchanged: int = 0
    """How many stay as they are."""
    added: dict[str, Endpoint] = field(default_factory=dict)
    """Endpoints that were in no slice of their group, by pod."""
    replaced: list[tuple[Endpoint, Endpoint]] = field(default_factory=list)
    """Endpoints before and after."""
    removed: int = 0


def pack_slices(
    groups: Mapping[PortGroup, PortGroupEndpoints],
    readings: Iterable[SliceReading],
    *,
    stale: Iterable[str],
    limit: int,
) -> Packing:
    """The fewest writes that bring the slices to the groups.

    ``readings`` are the slices we own, by name; those named in ``stale`` are written whatever is
    in them, because their metadata are wrong.
    """
    packing = Packing()
    writes_by_group: dict[PortGroup, list[SliceWrite]] = {}
    untouched: dict[PortGroup, list[SliceReading]] = {}
    outdated = frozenset(stale)
    for reading in readings:
        desired = groups.get(reading.group)
        staying = _keep_endpoints(packing, reading, {} if desired is None else desired.endpoints)
        if not staying or desired is None:
            packing.spare.append(reading)
        elif staying is reading.endpoints and reading.slice.metadata.name not in outdated:
            untouched.setdefault(reading.group, []).append(reading)
        else:
            write = SliceWrite(desired.ports, list(staying), reading)
            writes_by_group.setdefault(reading.group, []).append(write)
            packing.writes.append(write)
    for group in sorted(groups, key=_group_order):
        desired = groups[group]
        packing.added |= desired.endpoints
        remaining = [desired.endpoints[pod] for pod in sorted(desired.endpoints, reverse=True)]
        for write in sorted(writes_by_group.get(group, ()), key=_by_fullness):
            _fill(write.endpoints, remaining, limit)
        _place_remaining(packing, desired.ports, remaining, untouched.get(group, []), limit)
    packing.unchanged = sum(len(readings) for readings in untouched.values())
    if not packing.unchanged and not packing.writes:
        _keep_empty_slice(packing, outdated)
    return packing


def _keep_endpoints(
    packing: Packing, reading: SliceReading, desired: dict[str, Endpoint]
) -> tuple[Endpoint, ...] | list[Endpoint]:
    """The endpoints that stay in the slice, updated; the same tuple if nothing changes."""
    staying: list[Endpoint] = []
    changed = False
    pop_desired = desired.pop
    for pod, endpoint in zip(reading.pods, reading.endpoints, strict=True):
        updated = pop_desired(pod, None)
        if updated is None:
            changed = True
            packing.removed += 1
            continue
        staying.append(updated)
        if updated is not endpoint and updated != endpoint:
            changed = True
            packing.replaced.append((endpoint, updated))
    return staying if changed else reading.endpoints


def _place_remaining(
    packing: Packing,
    ports: Ports,
    remaining: list[Endpoint],
    untouched: list[SliceReading],
    limit: int,
) -> None:
    """Find slices for endpoints that fit into none that is written anyway."""
    while remaining:
        if packing.spare:
            write = SliceWrite(ports, [], packing.spare.pop(0))
        else:
            candidates = [
                reading for reading in untouched if len(reading.endpoints) + len(remaining) <= limit
            ]
            if candidates:
                reading = min(candidates, key=lambda reading: -len(reading.endpoints))
                untouched.remove(reading)
                write = SliceWrite(ports, list(reading.endpoints), reading)
            else:
                write = SliceWrite(ports, [])
        _fill(write.endpoints, remaining, limit)
        packing.writes.append(write)


def _keep_empty_slice(packing: Packing, outdated: frozenset[str]) -> None:
    """Keep, or create, the one empty slice of a Service without endpoints."""
    for number, reading in enumerate(packing.spare):
        is_empty = not reading.endpoints and not reading.group
        if is_empty and reading.slice.metadata.name not in outdated:
            del packing.spare[number]
            packing.unchanged = 1
            return
    packing.writes.append(SliceWrite((), [], packing.spare.pop(0) if packing.spare else None))


def _fill(endpoints: list[Endpoint], remaining: list[Endpoint], limit: int) -> None:
    while remaining and len(endpoints) < limit:
        endpoints.append(remaining.pop())


def _by_fullness(write: SliceWrite) -> tuple[int, str]:
    name = "" if write.reading is None else write.reading.slice.metadata.name
    return -len(write.endpoints), name


def _group_order(group: PortGroup) -> list[tuple[str, str, int, str]]:
    return sorted(
        (port.name or "", port.protocol or "", port.port or 0, port.app_protocol or "")
        for port in group
    )
