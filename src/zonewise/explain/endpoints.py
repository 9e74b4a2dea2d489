"""The endpoints of a Service in one address family: ours, foreign ones, and their previous hints.

Slices are ours if their label says that the EndpointSlice controller writes them. If no slice of a
Service has such a label, as in a dump that was cut down to the essentials, all are ours.

Where pods are known, endpoints are made from them as the controller makes them, and slices give
only the previous hints. Where they are not, slices give both. A ready endpoint without a hint among
others that have one is then read as added after the decision.

The zone of an endpoint is that of its node; its slice's zone counts only if there is no such node.
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


def split_slices(
    slices: Iterable[LeanEndpointSlice],
) -> tuple[list[LeanEndpointSlice], list[LeanEndpointSlice]]:
    """The slices of a Service: ours, and those of other controllers."""
    writers = [(part.metadata.labels.get(MANAGED_BY_LABEL, ""), part) for part in slices]
    us = MANAGER if any(writer == MANAGER for writer, _ in writers) else ""
    ours = [part for writer, part in writers if writer == us]
    return ours, [part for writer, part in writers if writer != us]


def collect_endpoints(
    cluster: ReportedCluster,
    service: Service,
    ours: Sequence[LeanEndpointSlice],
    foreign: Sequence[LeanEndpointSlice],
    pods: Sequence[Pod] | None,
    family: str,
) -> ServiceEndpoints:
    """The endpoints of one family."""
    written = _read_slices(cluster, ours, family)
    others = _read_slices(cluster, foreign, family)
    weights = common_weights(piece for piece in ours if piece.address_type == family)
    if pods is not None:
        previous = replace(PreviousHints.from_endpoints(written), weights=weights)
        decided = _make_endpoints(cluster, service, pods, family)
        return ServiceEndpoints(decided, written, others, previous)
    hints = {target.name: target.hint for target in written if target.ready}
    previous = PreviousHints(hints, any(hint.zones for hint in hints.values()), weights)
    return ServiceEndpoints(written, written, others, previous)


def _make_endpoints(
    cluster: ReportedCluster, service: Service, pods: Sequence[Pod], family: str
) -> tuple[TrafficEndpoint, ...]:
    members, _ = EndpointPods().update(service, pods, cluster.zones)
    known = (member.families.get(family) for member in members)
    return _drop_duplicates(member.traffic_endpoint for member in known if member is not None)


def _read_slices(
    cluster: ReportedCluster, slices: Iterable[LeanEndpointSlice], family: str
) -> tuple[TrafficEndpoint, ...]:
    endpoints = (
        read_as_proxy(endpoint)
        for part in slices
        if part.address_type == family
        for endpoint in part.endpoints or ()
    )
    return _drop_duplicates(_locate(target, cluster.zones) for target in endpoints)


def _locate(target: TrafficEndpoint, zones: Mapping[str, str]) -> TrafficEndpoint:
    zone = zones.get(target.node, target.zone)
    return target if zone == target.zone else replace(target, zone=zone)


def _drop_duplicates(targets: Iterable[TrafficEndpoint]) -> tuple[TrafficEndpoint, ...]:
    """Each address once: while an endpoint moves between slices, the one that stays longer."""
    by_name: dict[str, TrafficEndpoint] = {}
    for target in targets:
        known = by_name.get(target.name)
        if known is None or _departure_order(target) < _departure_order(known):
            by_name[target.name] = target
    return tuple(by_name[name] for name in sorted(by_name))


def _departure_order(target: TrafficEndpoint) -> tuple[bool, bool]:
    return target.terminating, not target.ready
