"""EndpointSlices, in full.

The API server treats ``endpoints`` and ``ports`` as one atomic value each: whoever writes one
endpoint writes them all. So these Structs have every field of discovery.k8s.io/v1 (Kubernetes
1.36); decoding a slice and encoding it again loses nothing inside the two lists.
"""

from __future__ import annotations

from typing import ClassVar

from zonewise.api.meta import Object, ObjectReference
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct


class EndpointConditions(Struct):
    """Whether an endpoint takes traffic; None is unknown, which readers take as stated there."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class ForZone(Struct):
    """A zone an endpoint is for."""

    name: str = ""


class ForNode(Struct):
    """A node an endpoint is for."""

    name: str = ""


class EndpointHints(Struct):
    """For whom an endpoint is."""

    for_zones: tuple[ForZone, ...] = ()
    for_nodes: tuple[ForNode, ...] = ()


class Endpoint(Struct):
    """Addresses of one thing that answers; all of them are the same thing."""

    addresses: tuple[str, ...] | None = ()
    conditions: EndpointConditions = EndpointConditions()
    hostname: str | None = None
    target_ref: ObjectReference | None = None
    deprecated_topology: dict[str, str] | None = None
    node_name: str | None = None
    zone: str | None = None
    hints: EndpointHints | None = None


class EndpointPort(Struct):
    """A port of all endpoints of a slice; no number means all ports."""

    name: str | None = None
    protocol: str | None = None
    port: int | None = None
    app_protocol: str | None = None


class EndpointSlice(Object):
    """A part of a Service's endpoints."""

    resource: ClassVar = Resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")

    address_type: str = ""
    endpoints: tuple[Endpoint, ...] | None = ()
    ports: tuple[EndpointPort, ...] | None = ()
