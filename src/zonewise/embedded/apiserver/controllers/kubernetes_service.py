"""Endpoints and EndpointSlice of the API server's own Service ``kubernetes``.

The server writes them itself when it starts to listen, as its Service has no selector. Endpoint
addresses may not be loopback addresses, so a server that listens only there, or on all addresses,
writes an address reserved for documentation: pods of this cluster cannot call it anyway.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.runtime.client.client import Client

UNREACHABLE = "192.0.2.1"
NAME = "kubernetes"
ENDPOINTS = unstructured(Resource("", "v1", "Endpoints", "endpoints"))
SLICES = unstructured(Resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"))


async def publish(client: Client, host: str, port: int) -> None:
    """Write the address and port on which the server listens."""
    address = _advertised_address(host)
    ports = [{"name": "https", "port": port, "protocol": "TCP"}]
    endpoints: dict[str, Any] = {
        "metadata": {"labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{"addresses": [{"ip": address}], "ports": ports}],
    }
    await client.apply(ENDPOINTS, NAME, "default", endpoints, force=True)
    slice = {
        "metadata": {"labels": {"kubernetes.io/service-name": NAME}},
        "addressType": "IPv6" if ":" in address else "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": ports,
    }
    await client.apply(SLICES, NAME, "default", slice, force=True)


def _advertised_address(host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return UNREACHABLE
    return UNREACHABLE if address.is_loopback or address.is_unspecified else str(address)
