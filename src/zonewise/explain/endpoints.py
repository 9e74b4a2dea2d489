"""The endpoints of a Service in one address family: ours, foreign ones, and those before.

Slices are ours if their label says that the EndpointSlice controller writes them. A dump that was
cut down to the essentials has no such label on any slice of a Service; then they all are.

Where pods are known, endpoints are made from them as the controller makes them, and slices give
only the state before. Where they are not, slices give both: the endpoints now, and by their hints
what was decided before. A ready endpoint without a hint among others that have one is then read as
added after the decision.

An endpoint is where its node is; what a slice says counts only once the node is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from zonewise.api.objects.core import Service
from zonewise.api.objects.discovery import LeanEndpointSlice
from zonewise.api.objects.pod import Pod
from zonewise.explain.cluster import ReportedCluster
from zonewise.traffic.endpoint import TrafficEndpoint, read_as_proxy
from zonewise.traffic.hints import PreviousHints
from zonewise.traffic.slices.endpoint_pods import EndpointPods
from zonewise.traffic.slices.identity import MANAGED_BY_LABEL, MANAGER
from zonewise.traffic.slices.reading import common_weights


@dataclass(frozen=True, slots=True)
class ServiceEndpoints:
    """The endpoints of a Service, by address.

    ``ours`` are those whose hints are decided, ``written`` those in our slices as they are,
    ``foreign`` those in slices of others.
    """

    ours: tuple[TrafficEndpoint, ...]
    written: tuple[TrafficEndpoint, ...]
    foreign: tuple[TrafficEndpoint, ...]
    previous: PreviousHints


def ours_and_foreign(
    slices: Iterable[LeanEndpointSlice],
) -> tuple[list[LeanEndpointSlice], list[LeanEndpointSlice]]:
    """The slices of a Service: ours, and those of other controllers."""
    writers = [(part.metadata.labels.get(MANAGED_BY_LABEL, ""), part) for part in slices]
    us = MANAGER if any(writer == MANAGER for writer, _ in writers) else ""
    ours = [part for writer, part in writers if writer == us]
    return ours, [part for writer, part in writers if writer != us]


def endpoints_of(
    cluster: ReportedCluster,
    service: Service,
    ours: Sequence[LeanEndpointSlice],
    foreign: Sequence[LeanEndpointSlice],
    pods: Sequence[Pod] | None,
    family: str,
) -> ServiceEndpoints:
    """The endpoints of one family."""
    written = _in_slices(cluster, ours, family)
    strangers = _in_slices(cluster, foreign, family)
    weights = common_weights(piece for piece in ours if piece.address_type == family)
    if pods is not None:
        made = _from_pods(cluster, service, pods, family)
        return ServiceEndpoints(
            made,
            written,
            strangers,
            replace(PreviousHints.from_endpoints(written), weights=weights),
        )
    hints = {target.name: target.hint for target in written if target.ready}
    were = PreviousHints(hints, any(hint.zones for hint in hints.values()), weights)
    return ServiceEndpoints(written, written, strangers, were)


def _from_pods(
    cluster: ReportedCluster, service: Service, pods: Sequence[Pod], family: str
) -> tuple[TrafficEndpoint, ...]:
    members, _ = EndpointPods().update(service, pods, cluster.zones)
    known = (member.families.get(family) for member in members)
    return _each_once(candidate.traffic_endpoint for candidate in known if candidate is not None)


def _in_slices(
    cluster: ReportedCluster, slices: Iterable[LeanEndpointSlice], family: str
) -> tuple[TrafficEndpoint, ...]:
    endpoints = (
        read_as_proxy(endpoint)
        for part in slices
        if part.address_type == family
        for endpoint in part.endpoints or ()
    )
    return _each_once(_placed(target, cluster.zones) for target in endpoints)


def _placed(target: TrafficEndpoint, zones: Mapping[str, str]) -> TrafficEndpoint:
    zone = zones.get(target.node, target.zone)
    return target if zone == target.zone else replace(target, zone=zone)


def _each_once(targets: Iterable[TrafficEndpoint]) -> tuple[TrafficEndpoint, ...]:
    """Each address once: while an endpoint moves between slices, the one that stays longer."""
    found: dict[str, TrafficEndpoint] = {}
    for target in targets:
        known = found.get(target.name)
        if known is None or _dying(target) < _dying(known):
            found[target.name] = target
    return tuple(found[name] for name in sorted(found))


def _dying(target: TrafficEndpoint) -> tuple[bool, bool]:
    return target.terminating, not target.ready
