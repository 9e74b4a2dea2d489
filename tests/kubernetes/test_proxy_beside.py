"""Our proxy and a real kube-proxy in one network namespace, each with its own Services."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from tests.kubernetes.kubeproxies import ZoneNet, zone_nets

from tools import realkube as real
from zonewise.api import EndpointSlice, Node, Service
from zonewise.api.unstructured import unstructured
from zonewise.runtime import Client, HttpsTransport, load_config

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

SERVICE, SLICE = unstructured(Service.resource), unstructured(EndpointSlice.resource)
NODE = unstructured(Node.resource)
LABEL = "service.kubernetes.io/service-proxy-name"


@pytest.fixture(scope="module")
def plane(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    settings = real.Settings(controllers=(), scheduler=False, fsync=False)
    with real.start(settings, binaries=real_binaries) as running:
        yield running


async def service(client: Client, name: str, pods: list[str], **labels: str) -> str:
    metadata = {"name": name, "namespace": "default", "labels": labels}
    ports = [{"name": "p", "port": 80, "targetPort": 80}]
    stored = await client.create(SERVICE({"metadata": metadata, "spec": {"ports": ports}}))
    body: dict[str, Any] = {
        "metadata": {"labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "p", "port": 80, "protocol": "TCP"}],
        "endpoints": [{"addresses": [pod], "conditions": {"ready": True}} for pod in pods],
    }
    await client.apply(SLICE, f"{name}-x", "default", body, force=True)
    return str(stored.raw["spec"]["clusterIP"])


@asynccontextmanager
async def our_proxy(plane: real.ControlPlane, net: ZoneNet, node: str) -> AsyncIterator[None]:
    """Our proxy in the namespace of a kube-proxy, for Services that are labelled for it."""
    log = plane.folder / "zonewise.log"
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *("nsenter", "--net", "--target", str(net.pid), "--"),
            *(sys.executable, "-m", "zonewise", "proxy", "--node-name", node),
            *("--kubeconfig", str(plane.folder / f"proxy-{net.zone}.kubeconfig")),
            *("--service-proxy-name", "zonewise"),
            *("--healthz-bind-address", "", "--metrics-bind-address", ""),
            stdout=file,
            stderr=file,
            env=os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
        )
    try:
        yield
        assert process.returncode is None, log.read_text()
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def answered(net: ZoneNet, address: str, pods: set[str]) -> None:
    async with asyncio.timeout(180):
        while True:
            if set(await net.ask(address, 12 * len(pods))) == pods:
                return
            await asyncio.sleep(0.2)


async def listed(net: ZoneNet, address: str) -> None:
    async with asyncio.timeout(180):
        while True:
            if address in await net.listing("ip", "zonewise"):
                return
            await asyncio.sleep(0.2)


async def test_each_proxy_serves_its_own_services(plane: real.ControlPlane) -> None:
    """Labelled Services are ours, the others kube-proxy's; changing the label moves a Service."""
    async with Client(HttpsTransport(load_config(plane.kubeconfig))) as client:
        await client.create(NODE({"metadata": {"name": "n1"}}))
        address = {"addresses": [{"type": "InternalIP", "address": "10.200.0.1"}]}
        await client.patch(NODE, "n1", None, {"status": address}, subresource="status")
        theirs = await service(client, "theirs", ["10.0.0.1", "10.0.0.2"])
        ours = await service(client, "ours", ["10.0.0.3", "10.0.0.4"], **{LABEL: "zonewise"})
        async with zone_nets(plane, {"a": "n1"}) as (net,), our_proxy(plane, net, "n1"):
            await answered(net, theirs, {"10.0.0.1", "10.0.0.2"})
            await answered(net, ours, {"10.0.0.3", "10.0.0.4"})
            assert theirs not in await net.listing("ip", "zonewise")
            assert ours not in await net.listing("ip", "kube-proxy")
            labels = {"metadata": {"labels": {LABEL: "zonewise"}}}
            await client.patch(SERVICE, "theirs", "default", labels)
            await client.patch(SLICE, "theirs-x", "default", labels)
            await listed(net, theirs)
            await answered(net, theirs, {"10.0.0.1", "10.0.0.2"})
