"""Endpoints and EndpointSlices that a user writes are chosen by topology keys (KEP-536)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.embedded.virtual_cluster import VirtualCluster, until, virtual_cluster

from zonewise.api import LeanEndpointSlice, Node, Service
from zonewise.embedded.components.endpointslices.mirroring import (
    EndpointSliceMirroringController,
)
from zonewise.traffic.routes.choice import ClientLocation
from zonewise.traffic.routes.service import compute_node_routes

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

PARTS = {"endpointslicemirroring-controller": EndpointSliceMirroringController}
HOST, ZONE, RACK = "kubernetes.io/hostname", "topology.kubernetes.io/zone", "example.com/rack"
NODES = {
    "n1": {HOST: "n1", ZONE: "a", RACK: "r1"},
    "n2": {HOST: "n2", ZONE: "a", RACK: "r2"},
    "n3": {HOST: "n3", ZONE: "b", RACK: "r2"},
    "n4": {HOST: "n4", ZONE: "c"},
}
ADDRESSES = {"10.0.0.1": "n1", "10.0.0.3": "n3", "10.0.0.9": None}
"""The endpoints and their nodes; one is on none, as a server outside of the cluster."""

FIRST, THIRD, ALL = ["10.0.0.1"], ["10.0.0.3"], sorted(ADDRESSES)
LISTS: dict[str, dict[str, list[str]]] = {
    HOST: {"n1": FIRST, "n2": [], "n3": THIRD, "n4": []},
    f"{HOST},{ZONE}": {"n1": FIRST, "n2": FIRST, "n3": THIRD, "n4": []},
    RACK: {"n1": FIRST, "n2": THIRD, "n3": THIRD, "n4": []},
    f"{HOST},*": {"n1": FIRST, "n2": ALL, "n3": THIRD, "n4": ALL},
    f"{RACK},{ZONE},*": {"n1": FIRST, "n2": THIRD, "n3": THIRD, "n4": ALL},
}
"""Hard and soft keys, and for each node the endpoints that they leave."""


async def create(cluster: VirtualCluster, path: str, **body: Any) -> None:
    await cluster.client.raw("POST", path, body=msgspec.json.encode(body))


async def write_endpoints(cluster: VirtualCluster, name: str, *, mirrored: bool) -> None:
    """The endpoints of a Service, as Endpoints or as an EndpointSlice."""
    if mirrored:
        addresses = [
            {"ip": ip} | ({"nodeName": node} if node else {}) for ip, node in ADDRESSES.items()
        ]
        subsets = [{"addresses": addresses, "ports": [{"name": "p", "port": 8080}]}]
        path = "/api/v1/namespaces/default/endpoints"
        await create(cluster, path, metadata={"name": name}, subsets=subsets)
        return
    endpoints = [
        {"addresses": [ip], "conditions": {"ready": True}} | ({"nodeName": node} if node else {})
        for ip, node in ADDRESSES.items()
    ]
    await create(
        cluster,
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
        metadata={"name": f"{name}-x", "labels": {"kubernetes.io/service-name": name}},
        addressType="IPv4",
        endpoints=endpoints,
        ports=[{"name": "p", "port": 8080, "protocol": "TCP"}],
    )


def chosen(cluster: VirtualCluster, node: str) -> dict[str, tuple[str, list[str]]]:
    """What the proxy of a node does for each Service with keys: the action and the endpoints."""
    cache = cluster.program.cache
    nodes = {each.metadata.name: each for each in cache.store(Node)}
    labels = {name: each.metadata.labels for name, each in nodes.items()}
    routes = compute_node_routes(
        cache.store(Service), cache.store(LeanEndpointSlice), ClientLocation.of(nodes[node]), labels
    )
    return {
        row["service"]: (row["action"], [end["address"] for end in row["endpoints"]])
        for row in routes.to_dict()["routes"]
        if row["service"].startswith("keyed")
    }


@pytest.mark.parametrize("mirrored", [True, False], ids=["Endpoints", "EndpointSlice"])
async def test_hard_and_soft_keys_with_endpoints_written_by_hand(mirrored: bool) -> None:
    """A Service without selector: on each node exactly the endpoints that its keys leave; without
    any it rejects, unless the keys end with a star.
    """
    async with virtual_cluster(PARTS) as cluster:
        cache = cluster.program.cache
        for kind in (Node, Service, LeanEndpointSlice):
            cache.store(kind)
        for name, labels in NODES.items():
            await create(cluster, "/api/v1/nodes", metadata={"name": name, "labels": labels})
        names = {f"keyed-{number}": keys for number, keys in enumerate(LISTS)}
        for name, keys in names.items():
            await create(
                cluster,
                "/api/v1/namespaces/default/services",
                metadata={"name": name, "annotations": {"zonewise.io/topology-keys": keys}},
                spec={"ports": [{"name": "p", "port": 80, "targetPort": 8080}]},
            )
            await write_endpoints(cluster, name, mirrored=mirrored)

        def agrees() -> bool:
            return len(cache.store(Node)) == len(NODES) and all(
                chosen(cluster, node)
                == {
                    name: ("dnat" if LISTS[keys][node] else "reject", LISTS[keys][node])
                    for name, keys in names.items()
                }
                for node in NODES
            )

        await until(agrees)
