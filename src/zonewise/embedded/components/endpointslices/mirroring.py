"""EndpointSlices of Endpoints that are written by hand.

A Service without a selector has the endpoints its user writes. An Endpoints object for it is
mirrored: one slice per subset and address family, owned by the Endpoints, so that it is deleted
with them. Endpoints with the ``skip-mirror`` label, those that are leader election records, and
those of Services with a selector are ignored.

A slice is *rewritten* where its ports are still wanted, made where there is none, and deleted where
it is not. A pass waits until the store shows what the one before wrote.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from contextlib import suppress
from typing import ClassVar

from zonewise.api.errors import NotFound
from zonewise.api.meta import Key, Object, ObjectMeta, ObjectReference
from zonewise.api.objects.core import Service
from zonewise.api.objects.discovery import Endpoint, EndpointConditions, EndpointPort, EndpointSlice
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct
from zonewise.embedded.components.workloads.creation import owner_reference
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.controller.controller import Controller, own_key
from zonewise.runtime.controller.expectations import GLANCE, Expectations
from zonewise.traffic.slices import MANAGED_BY_LABEL, SERVICE_LABEL

MANAGER = "endpointslicemirroring-controller.k8s.io"
SKIP = "endpointslice.kubernetes.io/skip-mirror"
LEADER = "control-plane.alpha.kubernetes.io/leader"
NOT_MIRRORED = frozenset(
    {
        "endpoints.kubernetes.io/last-change-trigger-time",
        "kubectl.kubernetes.io/last-applied-configuration",
    }
)
MOST = 1000
MIRRORS = "mirroring/service"


class EndpointAddress(Struct):
    """One address, and what is behind it."""

    ip: str = ""
    hostname: str = ""
    node_name: str | None = None
    target_ref: ObjectReference | None = None


class EndpointSubset(Struct):
    """Addresses that have the same ports."""

    addresses: tuple[EndpointAddress, ...] = ()
    not_ready_addresses: tuple[EndpointAddress, ...] = ()
    ports: tuple[EndpointPort, ...] = ()


class Endpoints(Object):
    """The endpoints of a Service, all in one object."""

    resource: ClassVar = Resource("", "v1", "Endpoints", "endpoints")

    subsets: tuple[EndpointSubset, ...] = ()


Ports = tuple[EndpointPort, ...]
WantedSlices = dict[tuple[str, Ports], tuple[Endpoint, ...]]


def mirrored(subsets: Iterable[EndpointSubset]) -> WantedSlices:
    """The endpoints of each slice, by address family and ports."""
    found: dict[tuple[str, Ports], dict[str, Endpoint]] = {}
    for subset in subsets:
        ports = tuple(sorted(subset.ports, key=lambda port: (port.name or "", port.port or 0)))
        named = tuple(
            EndpointPort(
                name=port.name or "",
                protocol=port.protocol,
                port=port.port,
                app_protocol=port.app_protocol,
            )
            for port in ports
        )
        both = ((subset.addresses, True), (subset.not_ready_addresses, False))
        left = MOST
        for address, ready in ((one, ready) for some, ready in both for one in some):
            try:
                version = ipaddress.ip_address(address.ip).version
            except ValueError:
                continue
            if left:
                left -= 1
                group = found.setdefault((f"IPv{version}", named), {})
                group.setdefault(address.ip, _endpoint(address, ready=ready))
    return {
        key: tuple(endpoint for _, endpoint in sorted(group.items()))
        for key, group in found.items()
    }


class Mirroring:
    """Mirrors Endpoints."""

    def __init__(self, context: ComponentContext) -> None:
        self._client = context.client
        self._controller = Controller("mirroring", self._sync, cache=context.cache, rng=context.rng)
        self._endpoints = self._controller.watches(Endpoints, own_key)
        self._services = self._controller.watches(Service, own_key)
        self._slices = self._controller.watches(
            EndpointSlice, _mirror_of, indexes={MIRRORS: _mirror_of}
        )
        self._wrote: Expectations[Key, EndpointSlice] = Expectations(self._slices)

    async def run(self) -> None:
        """Mirror until cancelled."""
        await self._controller.run()

    async def _sync(self, key: Key) -> float | None:
        if not self._wrote.settled(key):
            return GLANCE
        endpoints, service = self._endpoints.get(key), self._services.get(key)
        wanted: WantedSlices = {}
        by_hand = service is not None and not service.spec.selector
        if by_hand and endpoints is not None and _meant(endpoints):
            wanted = mirrored(endpoints.subsets)
        there = {
            (one.address_type, one.ports or ()): one
            for one in sorted(self._slices.by(MIRRORS, key), key=lambda one: one.metadata.name)
        }
        for one in self._slices.by(MIRRORS, key):
            place = (one.address_type, one.ports or ())
            if place not in wanted or there[place] is not one:
                await self._delete(key, one)
        if endpoints is not None:
            for place, group in wanted.items():
                await self._write(key, endpoints, place, group, there.get(place))
        return None

    async def _write(
        self,
        key: Key,
        endpoints: Endpoints,
        place: tuple[str, Ports],
        group: tuple[Endpoint, ...],
        known: EndpointSlice | None,
    ) -> None:
        meta = endpoints.metadata
        labels = {**meta.labels, SERVICE_LABEL: meta.name, MANAGED_BY_LABEL: MANAGER}
        annotations = {k: v for k, v in meta.annotations.items() if k not in NOT_MIRRORED}
        draft = EndpointSlice(
            metadata=ObjectMeta(
                name=known.metadata.name if known else "",
                generate_name="" if known else f"{meta.name}-",
                namespace=meta.namespace,
                resource_version=known.metadata.resource_version if known else "",
                labels=labels,
                annotations=annotations,
                owner_references=(owner_reference(endpoints),),
            ),
            address_type=place[0],
            ports=place[1],
            endpoints=group,
        )
        if known is None:
            self._wrote.wrote(key, await self._client.create(draft))
        elif (
            known.endpoints != group
            or known.metadata.labels != labels
            or known.metadata.annotations != annotations
            or known.metadata.owner_references != draft.metadata.owner_references
        ):
            self._wrote.wrote(key, await self._client.replace(draft))

    async def _delete(self, key: Key, one: EndpointSlice) -> None:
        meta = one.metadata
        with suppress(NotFound):
            await self._client.delete(EndpointSlice, meta.name, meta.namespace, uid=meta.uid)
        self._wrote.removed(key, one)


def _endpoint(address: EndpointAddress, *, ready: bool) -> Endpoint:
    return Endpoint(
        addresses=(address.ip,),
        conditions=EndpointConditions(ready=ready),
        hostname=address.hostname or None,
        node_name=address.node_name,
        target_ref=address.target_ref,
    )


def _meant(endpoints: Endpoints) -> bool:
    meta = endpoints.metadata
    return (
        meta.deletion_timestamp is None
        and meta.labels.get(SKIP) != "true"
        and LEADER not in meta.annotations
    )


def _mirror_of(piece: EndpointSlice) -> tuple[Key, ...]:
    """The Endpoints a slice mirrors."""
    labels = piece.metadata.labels
    if labels.get(MANAGED_BY_LABEL) != MANAGER:
        return ()
    return ((piece.metadata.namespace, labels.get(SERVICE_LABEL, "")),)
