"""Endpoints written by hand are mirrored into EndpointSlices."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.embedded.virtual_cluster import VirtualCluster, until, virtual_cluster

from zonewise.api.objects.core import Service
from zonewise.api.objects.discovery import EndpointSlice
from zonewise.embedded.components.endpointslices.mirroring import (
    Endpoints,
    EndpointSliceMirroringController,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

PARTS = {"endpointslicemirroring-controller": EndpointSliceMirroringController}


async def put(cluster: VirtualCluster, resource: str, method: str = "POST", **body: Any) -> None:
    """Write a Service or Endpoints named ``db``."""
    path = f"/api/v1/namespaces/default/{resource}" + ("/db" if method == "PUT" else "")
    meta = {"name": "db", **body.pop("metadata", {})}
    await cluster.client.raw(method, path, body=msgspec.json.encode({"metadata": meta, **body}))


def subset(*addresses: str, port: int = 5432, down: tuple[str, ...] = ()) -> dict[str, Any]:
    """Addresses with a port."""
    return {
        "addresses": [{"ip": address} for address in addresses],
        "notReadyAddresses": [{"ip": address} for address in down],
        "ports": [{"port": port}],
    }


def summarize(
    cluster: VirtualCluster,
) -> list[tuple[str, list[tuple[str, bool | None]], list[int | None]]]:
    """The addresses and ports of the slices."""
    slices = cluster.program.cache.store(EndpointSlice)
    return sorted(
        (
            piece.address_type,
            [((e.addresses or ("",))[0], e.conditions.ready) for e in piece.endpoints or ()],
            [port.port for port in piece.ports or ()],
        )
        for piece in slices
    )


@pytest.mark.slow
async def test_slices_follow_their_endpoints() -> None:
    """Endpoints get one slice per family and ports, which is changed and deleted with them."""
    async with virtual_cluster(PARTS) as cluster:
        await put(cluster, "services", spec={"ports": [{"port": 5432}]})
        subsets = [subset("10.0.0.2", "fd00::2", down=("10.0.0.1",))]
        await put(cluster, "endpoints", subsets=subsets, metadata={"labels": {"a": "b"}})
        first = ("IPv4", [("10.0.0.1", False), ("10.0.0.2", True)], [5432])
        await until(lambda: summarize(cluster) == [first, ("IPv6", [("fd00::2", True)], [5432])])
        first_slice = cluster.program.cache.store(EndpointSlice).values()[0]
        assert first_slice.metadata.labels == {
            "a": "b",
            "kubernetes.io/service-name": "db",
            "endpointslice.kubernetes.io/managed-by": "endpointslicemirroring-controller.k8s.io",
        }
        assert first_slice.metadata.owner_references[0].kind == "Endpoints"
        await put(cluster, "endpoints", "PUT", subsets=[subset("10.0.0.9")])
        await until(lambda: summarize(cluster) == [("IPv4", [("10.0.0.9", True)], [5432])])
        assert cluster.program.cache.store(EndpointSlice).values()[0].metadata.name == (
            first_slice.metadata.name
        )
        await put(cluster, "endpoints", "PUT", subsets=[subset("10.0.0.9", port=1)])
        await until(lambda: summarize(cluster) == [("IPv4", [("10.0.0.9", True)], [1])])
        await cluster.client.delete(Endpoints, "db", "default")
        await until(lambda: not summarize(cluster))


async def test_what_is_not_mirrored() -> None:
    """Nothing is mirrored for a Service with a selector, without a Service, or with the label that
    forbids it.
    """
    async with virtual_cluster(PARTS) as cluster:
        await put(cluster, "endpoints", subsets=[subset("10.0.0.2")])
        await asyncio.sleep(5)
        assert not summarize(cluster)
        ports = [{"port": 5432}]
        await put(cluster, "services", spec={"selector": {"app": "db"}, "ports": ports})
        await asyncio.sleep(5)
        assert not summarize(cluster)
        await cluster.client.patch(Service, "db", "default", {"spec": {"selector": None}})
        await until(lambda: len(summarize(cluster)) == 1)
        skip = {"metadata": {"labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}}}
        await cluster.client.patch(Endpoints, "db", "default", skip)
        await until(lambda: not summarize(cluster))
