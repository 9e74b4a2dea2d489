"""The endpoints of a Service in one address family: ours, somebody else's, and what was there.

Slices are ours if their label says that the EndpointSlice controller writes them. A dump that was
cut down to the essentials has no such label on any slice of a Service; then they all are.

Where pods are known, endpoints are made from them as the controller makes them, and slices tell
only what was there before. Where they are not, slices tell both: who is an endpoint now, and by
their hints what was decided before. A ready endpoint without a hint among others that have one is
then read as one that came after the decision.

An endpoint is where its node is; what a slice says counts only once the node is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from zonewise.api.core import Service
from zonewise.api.discovery import LeanEndpointSlice
from zonewise.api.pod import Pod
from zonewise.explain.cluster import Cluster
from zonewise.traffic import Previous, Target, as_obeyed
from zonewise.traffic.slices import MANAGED_BY_LABEL, MANAGER, Members

FAMILIES = ("IPv4", "IPv6")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The endpoints of a Service, by address.

    ``ours`` are those whose hints are decided, ``written`` those in our slices as they are,
    ``foreign`` those in slices of others.
    """

    ours: tuple[Target, ...]
    written: tuple[Target, ...]
    foreign: tuple[Target, ...]
    previous: Previous


def families_of(service: Service, slices: Iterable[LeanEndpointSlice]) -> tuple[str, ...]:
    """The address families of a Service, the primary one first."""
    said = tuple(family for family in service.spec.ip_families if family in FAMILIES)
    there = {part.address_type for part in slices}
    return said or tuple(family for family in FAMILIES if family in there) or FAMILIES[:1]


def ours_and_foreign(
    slices: Iterable[LeanEndpointSlice],
) -> tuple[list[LeanEndpointSlice], list[LeanEndpointSlice]]:
    """The slices of a Service by who writes them."""
    writers = [(part.metadata.labels.get(MANAGED_BY_LABEL, ""), part) for part in slices]
    us = MANAGER if any(writer == MANAGER for writer, _ in writers) else ""
    ours = [part for writer, part in writers if writer == us]
    return ours, [part for writer, part in writers if writer != us]


def endpoints_of(
    cluster: Cluster,
    service: Service,
    ours: Sequence[LeanEndpointSlice],
    foreign: Sequence[LeanEndpointSlice],
    pods: Sequence[Pod] | None,
    family: str,
) -> Endpoints:
    """The endpoints of one family."""
    written = _in_slices(cluster, ours, family)
    strangers = _in_slices(cluster, foreign, family)
    if pods is not None:
        made = _from_pods(cluster, service, pods, family)
        return Endpoints(made, written, strangers, Previous.read(written))
    hints = {target.name: target.hint for target in written if target.ready}
    were = Previous(hints, any(hint.zones for hint in hints.values()))
    return Endpoints(written, written, strangers, were)


def _from_pods(
    cluster: Cluster, service: Service, pods: Sequence[Pod], family: str
) -> tuple[Target, ...]:
    members, _ = Members().update(service, pods, cluster.zones)
    known = (member.families.get(family) for member in members)
    return _each_once(candidate.target for candidate in known if candidate is not None)


def _in_slices(
    cluster: Cluster, slices: Iterable[LeanEndpointSlice], family: str
) -> tuple[Target, ...]:
    endpoints = (
        as_obeyed(endpoint)
        for part in slices
        if part.address_type == family
        for endpoint in part.endpoints or ()
    )
    return _each_once(_placed(target, cluster.zones) for target in endpoints)


def _placed(target: Target, zones: Mapping[str, str]) -> Target:
    zone = zones.get(target.node, target.zone)
    return target if zone == target.zone else replace(target, zone=zone)


def _each_once(targets: Iterable[Target]) -> tuple[Target, ...]:
    """Each address once: while an endpoint moves between slices, the one that lives longer."""
    found: dict[str, Target] = {}
    for target in targets:
        known = found.get(target.name)
        if known is None or _dying(target) < _dying(known):
            found[target.name] = target
    return tuple(found[name] for name in sorted(found))


def _dying(target: Target) -> tuple[bool, bool]:
    return target.terminating, not target.ready
