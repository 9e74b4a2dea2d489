"""The endpoints of a Service in one address family: ours, somebody else's, and what was there.

Slices are ours if their label says that the EndpointSlice controller writes them. A dump that was
cut down to the essentials has no such label on any slice of a Service; then they all are.

A slice says who is an endpoint now, and its hints say what was decided before. A ready endpoint
without a hint among others that have one is therefore read as one that came after the decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from zonewise.api.core import Service
from zonewise.api.discovery import LeanEndpointSlice
from zonewise.explain.cluster import Cluster
from zonewise.traffic import Previous, Target, as_obeyed

MANAGED_BY_LABEL = "endpointslice.kubernetes.io/managed-by"
CONTROLLER = "endpointslice-controller.k8s.io"
FAMILIES = ("IPv4", "IPv6")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The endpoints of a Service: those whose hints are decided here, and all others."""

    ours: tuple[Target, ...] = ()
    foreign: tuple[Target, ...] = ()

    @property
    def previous(self) -> Previous:
        """The hints that are there."""
        hints = {target.name: target.hint for target in self.ours if target.ready}
        return Previous(hints, any(hint.zones for hint in hints.values()))

    @property
    def everyone(self) -> tuple[Target, ...]:
        """All endpoints as they are."""
        return self.ours + self.foreign


def families_of(service: Service, slices: Iterable[LeanEndpointSlice]) -> tuple[str, ...]:
    """The address families of a Service, the primary one first."""
    said = tuple(family for family in service.spec.ip_families if family in FAMILIES)
    there = {part.address_type for part in slices}
    return said or tuple(family for family in FAMILIES if family in there) or FAMILIES[:1]


def ours_and_foreign(
    slices: Iterable[LeanEndpointSlice],
) -> tuple[list[LeanEndpointSlice], list[LeanEndpointSlice]]:
    """The slices of a Service by who writes them."""
    parts = list(slices)
    writers = {part.metadata.labels.get(MANAGED_BY_LABEL, "") for part in parts}
    writer = CONTROLLER if CONTROLLER in writers else ""
    ours = [part for part in parts if part.metadata.labels.get(MANAGED_BY_LABEL, "") == writer]
    return ours, [part for part in parts if part not in ours]


def endpoints_of(
    cluster: Cluster, slices: Iterable[LeanEndpointSlice], family: str
) -> tuple[Target, ...]:
    """The endpoints in slices, each address once, by address.

    While an endpoint moves from one slice to another it is in both; the one that lives longer
    counts.
    """
    found: dict[str, Target] = {}
    for part in slices:
        for endpoint in part.endpoints or () if part.address_type == family else ():
            target = as_obeyed(endpoint)
            known = found.get(target.name)
            if known is None or (known.terminating, not known.ready) > (
                target.terminating,
                not target.ready,
            ):
                zone = cluster.zone(target.node, otherwise=target.zone)
                found[target.name] = replace(target, zone=zone)
    return tuple(found[name] for name in sorted(found))
