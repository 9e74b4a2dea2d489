"""The EndpointSlice mirroring controller: EndpointSlices of Endpoints that users write.

A Service without a selector has the endpoints its user writes. An Endpoints object for it is
mirrored: one slice per subset and address family, owned by the Endpoints, so that it is deleted
with them. Endpoints with the ``skip-mirror`` label, those that are leader election records, and
those of Services with a selector are ignored.

An existing slice with the same address family and ports is updated, a missing one is created, and
all others are deleted. A sync waits until the store shows what the one before wrote.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from contextlib import suppress
from typing import ClassVar

from zonewise.api.errors import NotFound
from zonewise.api.meta import Key, Object, ObjectMeta, ObjectReference
from zonewise.api.objects.core import Service
from zonewise.api.objects.discovery import (
    SERVICE_LABEL,
    Endpoint,
    EndpointConditions,
    EndpointPort,
    EndpointSlice,
)
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct
from zonewise.embedded.components.workloads.creation import owner_reference
from zonewise.runtime.controller.controller import own_key
from zonewise.runtime.controller.expectations import GLANCE, Expectations
from zonewise.runtime.program.context import ControllerContext
from zonewise.traffic.slices.identity import MANAGED_BY_LABEL

MANAGED_BY = "endpointslicemirroring-controller.k8s.io"
SKIP_MIRROR_LABEL = "endpointslice.kubernetes.io/skip-mirror"
LEADER_ANNOTATION = "control-plane.alpha.kubernetes.io/leader"
UNMIRRORED_ANNOTATIONS = frozenset(
    {
        "endpoints.kubernetes.io/last-change-trigger-time",
        "kubectl.kubernetes.io/last-applied-configuration",
    }
)
MAX_ENDPOINTS_PER_SUBSET = 1000
BY_SERVICE = "mirroring/service"


class EndpointAddress(Struct):
    """One address, with the node and the object behind it."""

    ip: str = ""
    hostname: str = ""
    node_name: str | None = None
    target_ref: ObjectReference | None = None


class EndpointSubset(Struct):
    """Addresses with the same ports."""

    addresses: tuple[EndpointAddress, ...] = ()
    not_ready_addresses: tuple[EndpointAddress, ...] = ()
    ports: tuple[EndpointPort, ...] = ()


class Endpoints(Object):
    """The endpoints of a Service, all in one object."""

    resource: ClassVar = Resource("", "v1", "Endpoints", "endpoints")

    subsets: tuple[EndpointSubset, ...] = ()


Ports = tuple[EndpointPort, ...]
DesiredSlices = dict[tuple[str, Ports], tuple[Endpoint, ...]]


def mirror_subsets(subsets: Iterable[EndpointSubset]) -> DesiredSlices:
    """The endpoints of each slice, by address family and ports."""
    endpoints_by_slice: dict[tuple[str, Ports], dict[str, Endpoint]] = {}
    for subset in subsets:
        ports = tuple(sorted(subset.ports, key=lambda port: (port.name or "", port.port or 0)))
        slice_ports = tuple(
            EndpointPort(
                name=port.name or "",
                protocol=port.protocol,
                port=port.port,
                app_protocol=port.app_protocol,
            )
            for port in ports
        )
        addresses = [
            *((address, True) for address in subset.addresses),
            *((address, False) for address in subset.not_ready_addresses),
        ]
        remaining = MAX_ENDPOINTS_PER_SUBSET
        for address, ready in addresses:
            try:
                version = ipaddress.ip_address(address.ip).version
            except ValueError:
                continue
            if remaining:
                remaining -= 1
                endpoints = endpoints_by_slice.setdefault((f"IPv{version}", slice_ports), {})
                endpoints.setdefault(address.ip, _make_endpoint(address, ready=ready))
    return {
        key: tuple(endpoint for _, endpoint in sorted(group.items()))
        for key, group in endpoints_by_slice.items()
    }


class EndpointSliceMirroringController:
    """Mirrors Endpoints."""

    def __init__(self, context: ControllerContext) -> None:
        self._client = context.client
        self._controller = context.controller("mirroring", self._sync)
        self.run = self._controller.run
        self._endpoints = self._controller.watches(Endpoints, own_key)
        self._services = self._controller.watches(Service, own_key)
        self._slices = self._controller.watches(
            EndpointSlice, _endpoints_key, indexes={BY_SERVICE: _endpoints_key}
        )
        self._expectations: Expectations[Key, EndpointSlice] = Expectations(self._slices)

    async def _sync(self, key: Key) -> float | None:
        if not self._expectations.settled(key):
            return GLANCE
        endpoints, service = self._endpoints.get(key), self._services.get(key)
        desired: DesiredSlices = {}
        has_no_selector = service is not None and not service.spec.selector
        if has_no_selector and endpoints is not None and _should_mirror(endpoints):
            desired = mirror_subsets(endpoints.subsets)
        current = {
            (endpoint_slice.address_type, endpoint_slice.ports or ()): endpoint_slice
            for endpoint_slice in sorted(
                self._slices.by(BY_SERVICE, key),
                key=lambda endpoint_slice: endpoint_slice.metadata.name,
            )
        }
        for endpoint_slice in self._slices.by(BY_SERVICE, key):
            slice_key = (endpoint_slice.address_type, endpoint_slice.ports or ())
            if slice_key not in desired or current[slice_key] is not endpoint_slice:
                await self._delete(key, endpoint_slice)
        if endpoints is not None:
            for slice_key, slice_endpoints in desired.items():
                await self._write(
                    key, endpoints, slice_key, slice_endpoints, current.get(slice_key)
                )
        return None

    async def _write(
        self,
        key: Key,
        endpoints: Endpoints,
        slice_key: tuple[str, Ports],
        slice_endpoints: tuple[Endpoint, ...],
        current: EndpointSlice | None,
    ) -> None:
        meta = endpoints.metadata
        labels = {**meta.labels, SERVICE_LABEL: meta.name, MANAGED_BY_LABEL: MANAGED_BY}
        annotations = {k: v for k, v in meta.annotations.items() if k not in UNMIRRORED_ANNOTATIONS}
        draft = EndpointSlice(
            metadata=ObjectMeta(
                name=current.metadata.name if current else "",
                generate_name="" if current else f"{meta.name}-",
                namespace=meta.namespace,
                resource_version=current.metadata.resource_version if current else "",
                labels=labels,
                annotations=annotations,
                owner_references=(owner_reference(endpoints),),
            ),
            address_type=slice_key[0],
            ports=slice_key[1],
            endpoints=slice_endpoints,
        )
        if current is None:
            self._expectations.wrote(key, await self._client.create(draft))
        elif (
            current.endpoints != slice_endpoints
            or current.metadata.labels != labels
            or current.metadata.annotations != annotations
            or current.metadata.owner_references != draft.metadata.owner_references
        ):
            self._expectations.wrote(key, await self._client.replace(draft))

    async def _delete(self, key: Key, endpoint_slice: EndpointSlice) -> None:
        meta = endpoint_slice.metadata
        with suppress(NotFound):
            await self._client.delete(EndpointSlice, meta.name, meta.namespace, uid=meta.uid)
        self._expectations.removed(key, endpoint_slice)


def _make_endpoint(address: EndpointAddress, *, ready: bool) -> Endpoint:
    return Endpoint(
        addresses=(address.ip,),
        conditions=EndpointConditions(ready=ready),
        hostname=address.hostname or None,
        node_name=address.node_name,
        target_ref=address.target_ref,
    )


def _should_mirror(endpoints: Endpoints) -> bool:
    meta = endpoints.metadata
    return (
        meta.deletion_timestamp is None
        and meta.labels.get(SKIP_MIRROR_LABEL) != "true"
        and LEADER_ANNOTATION not in meta.annotations
    )


def _endpoints_key(endpoint_slice: EndpointSlice) -> tuple[Key, ...]:
    """The Endpoints a slice mirrors."""
    labels = endpoint_slice.metadata.labels
    if labels.get(MANAGED_BY_LABEL) != MANAGED_BY:
        return ()
    return ((endpoint_slice.metadata.namespace, labels.get(SERVICE_LABEL, "")),)
