"""Where the API server is, as its own Service ``kubernetes`` says: Endpoints and an EndpointSlice.

The server writes them itself each time it begins to listen, as its Service has no selector.
Endpoint addresses may not be loopback addresses, so a server that listens only there, or
everywhere, names a documentation address that leads nowhere: pods of this cluster do not run
anywhere they could call from.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.runtime.client.client import Client

NOBODY = "192.0.2.1"
NAME = "kubernetes"
ENDPOINTS = unstructured(Resource("", "v1", "Endpoints", "endpoints"))
SLICES = unstructured(Resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"))


async def publish(client: Client, host: str, port: int) -> None:
    """Write where the server listens."""
    address = _address(host)
    ports = [{"name": "https", "port": port, "protocol": "TCP"}]
    endpoints: dict[str, Any] = {
        "metadata": {"labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{"addresses": [{"ip": address}], "ports": ports}],
    }
    await client.apply(ENDPOINTS, NAME, "default", endpoints, force=True)
    piece = {
        "metadata": {"labels": {"kubernetes.io/service-name": NAME}},
        "addressType": "IPv6" if ":" in address else "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": ports,
    }
    await client.apply(SLICES, NAME, "default", piece, force=True)


def _address(host: str) -> str:
    try:
        given = ipaddress.ip_address(host)
    except ValueError:
        return NOBODY
    return NOBODY if given.is_loopback or given.is_unspecified else str(given)
