"""Topology keys on a real control plane: our proxies' packets.

Three nodes in two zones and two racks, each a network namespace with our proxy (``zonenet``). The
API server knows no field for keys, so they are an annotation. Endpoints are written by hand, some
as Endpoints that the control plane mirrors into slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.kubernetes.kubeproxies import ZoneNet, zone_nets

from tools import realkube as real
from zonewise.api import EndpointSlice, Node, Service
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.runtime import Client, HttpsTransport, load_config

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

CONTROLLERS = ("endpointslice-mirroring-controller",)
SERVICE, SLICE = unstructured(Service.resource), unstructured(EndpointSlice.resource)
NODE = unstructured(Node.resource)
ENDPOINTS = unstructured(Resource("", "v1", "Endpoints", "endpoints"))
HOST, ZONE, RACK = "kubernetes.io/hostname", "topology.kubernetes.io/zone", "example.com/rack"
NODES = {
    "n1": {HOST: "n1", ZONE: "a", RACK: "r1"},
    "n2": {HOST: "n2", ZONE: "a", RACK: "r2"},
    "n3": {HOST: "n3", ZONE: "b", RACK: "r2"},
}
REFUSED = "ConnectionRefusedError"
EACH = 12


@pytest.fixture(scope="module")
def plane(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    settings = real.Settings(controllers=CONTROLLERS, scheduler=False, fsync=False)
    with real.start(settings, binaries=real_binaries) as running:
        yield running


@asynccontextmanager
async def connected(plane: real.ControlPlane) -> AsyncIterator[Client]:
    """A client, and the nodes."""
    async with Client(HttpsTransport(load_config(plane.kubeconfig))) as client:
        for name, labels in NODES.items():
            await client.create(NODE({"metadata": {"name": name, "labels": labels}}))
            address = {"addresses": [{"type": "InternalIP", "address": "10.200.0.1"}]}
            await client.patch(NODE, name, None, {"status": address}, subresource="status")
        try:
            yield client
        finally:
            for name in NODES:
                await client.delete(NODE, name)


async def keyed(client: Client, name: str, keys: str, **spec: Any) -> str:
    """A Service with keys and without selector; returns its address."""
    metadata = {
        "name": name,
        "namespace": "default",
        "annotations": {"zonewise.io/topology-keys": keys},
    }
    ports = [{"name": "p", "port": 80, "targetPort": 80}]
    stored = await client.create(SERVICE({"metadata": metadata, "spec": {"ports": ports} | spec}))
    return str(stored.raw["spec"]["clusterIP"])


async def endpoints(client: Client, name: str, pods: dict[str, str], *, mirrored: bool) -> None:
    """The endpoints of a Service and their nodes, as Endpoints or as a slice."""
    if mirrored:
        addresses = [{"ip": ip, "nodeName": node} for ip, node in pods.items()]
        ports = [{"name": "p", "port": 80}]
        subsets = {"subsets": [{"addresses": addresses, "ports": ports}]}
        await client.apply(ENDPOINTS, name, "default", subsets, force=True)
        return
    body = {
        "metadata": {"labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "p", "port": 80, "protocol": "TCP"}],
        "endpoints": [
            {"addresses": [ip], "nodeName": node, "conditions": {"ready": True}}
            for ip, node in pods.items()
        ],
    }
    await client.apply(SLICE, f"{name}-x", "default", body, force=True)


async def answered(net: ZoneNet, address: str, *expected: str) -> None:
    """Wait until exactly these pods, or this fault, answer at an address."""
    answers: dict[str, int] = {}
    try:
        async with asyncio.timeout(240):
            while True:
                answers = await net.ask(address, EACH * len(expected))
                if set(answers) == set(expected):
                    return
                await asyncio.sleep(0.5)
    except TimeoutError:
        pytest.fail(f"{address} from {net.zone}: {answers}, not {expected}\n{await net.log()}")


@pytest.mark.parametrize("mirrored", [True, False], ids=["Endpoints", "EndpointSlice"])
async def test_packets_follow_hard_and_soft_keys(plane: real.ControlPlane, mirrored: bool) -> None:
    """Our proxies send packets of each node to the endpoints that the keys leave there; without a
    match they are refused, or with a star go to all. Endpoints and labels that change are followed.
    """
    pods = {"10.0.0.1": "n1", "10.0.0.3": "n3"}
    async with connected(plane) as client:
        kind = "mirrored" if mirrored else "slice"
        hard, soft, rack = [
            await keyed(client, f"{name}-{kind}", keys)
            for name, keys in (("hard", HOST), ("soft", f"{HOST},*"), ("rack", f"{RACK},{ZONE}"))
        ]
        for name in ("hard", "soft", "rack"):
            await endpoints(client, f"{name}-{kind}", pods, mirrored=mirrored)
        async with zone_nets(plane, {}, {name: name for name in NODES}) as nets:
            n1, n2, n3 = nets
            await answered(n1, hard, "10.0.0.1")
            await answered(n2, hard, REFUSED)
            await answered(n3, hard, "10.0.0.3")
            await answered(n1, soft, "10.0.0.1")
            await answered(n2, soft, *pods)
            await answered(n3, soft, "10.0.0.3")
            await answered(n1, rack, "10.0.0.1")
            await answered(n2, rack, "10.0.0.3")
            await endpoints(client, f"hard-{kind}", {"10.0.0.2": "n2"} | pods, mirrored=mirrored)
            await answered(n2, hard, "10.0.0.2")
            relabelled = {"metadata": {"labels": {RACK: "r1"}}}
            await client.patch(NODE, "n2", None, relabelled)
            await answered(n2, rack, "10.0.0.1")
        for name in ("hard", "soft", "rack"):
            await client.delete(SERVICE, f"{name}-{kind}", "default")
