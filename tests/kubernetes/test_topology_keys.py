"""Topology keys on a real control plane: our proxies' packets, and our name server's answers.

Three nodes in two zones and two racks, each a network namespace with our proxy (``zonenet``). The
API server knows no field for keys, so they are an annotation. Endpoints are written by hand, some
as Endpoints that the control plane mirrors into slices.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import yaml
from tests.kubernetes.installed import Installed
from tests.kubernetes.kubeproxies import ZoneNet, zone_nets

from tools import realkube as real
from zonewise.api import EndpointSlice, Namespace, Node, ObjectMeta, Pod, Service, convert
from zonewise.api.objects.locator import PodLocator
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.install.installation import DNS, Installation
from zonewise.install.manifests import render_manifests
from zonewise.runtime import Client, HttpsTransport, load_config

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

CONTROLLERS = (
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "root-ca-certificate-publisher-controller",
    "namespace-controller",
    "endpointslice-controller",
    "endpointslice-mirroring-controller",
)
SERVICE, SLICE = unstructured(Service.resource), unstructured(EndpointSlice.resource)
NODE, POD = unstructured(Node.resource), unstructured(Pod.resource)
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
        body = {"subsets": [{"addresses": addresses, "ports": [{"name": "p", "port": 80}]}]}
        await client.apply(ENDPOINTS, name, "default", body, force=True)
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


async def test_the_name_server_reads_locators(plane: real.ControlPlane) -> None:
    """The controller writes PodLocators, and the name server, which may read neither pods nor
    nodes, answers for a headless Service by the client's place, and follows a pod to another node.
    """
    async with connected(plane) as client:
        space = "located"
        await client.create(Namespace(metadata=ObjectMeta(name=space)))
        installed = Installed(plane, client, "zonewise-located", role="observe")
        manifests = render_manifests(
            Installation(role="observe", version="test", namespace="zonewise-located", dns=True)
        )
        try:
            await installed.apply()
            accounts = [
                manifest
                for manifest in manifests
                if DNS in manifest["metadata"]["name"]
                and manifest["kind"] in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
            ]
            assert len(accounts) == 3
            applied = await asyncio.to_thread(
                plane.kubectl, "apply", "-f", "-", stdin=yaml.safe_dump_all(accounts)
            )
            assert applied.returncode == 0, applied.stderr
            await headless(client, space)
            for number, node in enumerate(("n1", "n2", "n3"), start=1):
                await pod(client, space, f"db-{number}", node, f"10.0.0.{number}", app="db")
            for number, node in enumerate(("n1", "n3"), start=1):
                await pod(client, space, f"web-{number}", node, f"10.0.1.{number}")
            kubeconfig = await installed.kubeconfig(DNS)
            async with name_server(plane, str(kubeconfig)) as port:
                await resolves(port, "10.0.1.1", "10.0.0.1", "10.0.0.2")
                await resolves(port, "10.0.1.2", "10.0.0.3")
                await resolves(port, "10.9.9.9")
                locator = await client.get(PodLocator, "web-2", space)
                assert (locator.node_name, locator.node_labels[ZONE]) == ("n3", "b")
                await client.delete(POD, "web-2", space, grace_period=0)
                await pod(client, space, "web-3", "n2", "10.0.1.2")
                await resolves(port, "10.0.1.2", "10.0.0.1", "10.0.0.2")
                await client.patch(NODE, "n1", None, {"metadata": {"labels": {ZONE: "b"}}})
                await resolves(port, "10.0.1.1", "10.0.0.1", "10.0.0.3")
        finally:
            await installed.remove()


async def headless(client: Client, space: str) -> None:
    """A headless Service whose endpoints are for clients in their zone."""
    metadata = {
        "name": "db",
        "namespace": space,
        "annotations": {"zonewise.io/topology-keys": ZONE},
    }
    ports = [{"name": "p", "port": 80}]
    spec = {"clusterIP": "None", "selector": {"app": "db"}, "ports": ports}
    await client.create(SERVICE({"metadata": metadata, "spec": spec}))


async def pod(client: Client, space: str, name: str, node: str, ip: str, **labels: str) -> None:
    """A ready pod on a node."""
    body: dict[str, Any] = {
        "metadata": {"name": name, "namespace": space, "labels": labels},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "box", "image": "box"}],
            "terminationGracePeriodSeconds": 0,
        },
    }
    await client.create(convert(Pod, body))
    status = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "podIP": ip,
        "podIPs": [{"ip": ip}],
    }
    await client.patch(Pod, name, space, {"status": status}, kind="strategic", subresource="status")


@asynccontextmanager
async def name_server(plane: real.ControlPlane, kubeconfig: str) -> AsyncIterator[int]:
    """Our name server as its own account; yields its port."""
    port = free_port()
    log = plane.folder / "dns.log"
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "zonewise", "dns", "--kubeconfig", kubeconfig),
            *("--listen", f"127.0.0.1:{port}", "--metrics-listen", "127.0.0.1:0"),
            *("--ecs-from", "127.0.0.0/8"),
            stderr=file,
        )
    try:
        yield port
        assert process.returncode is None, log.read_text()
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def free_port() -> int:
    """A port that nobody has, over UDP and TCP."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as link:
        link.bind(("127.0.0.1", 0))
        return int(link.getsockname()[1])


async def resolves(port: int, client: str, *expected: str) -> None:
    """Wait until a client gets exactly these addresses for the headless Service."""
    name, lines = "db.located.svc.cluster.local", [""]
    try:
        async with asyncio.timeout(240):
            while sorted(lines) != sorted(expected) or lines == [""]:
                process = await asyncio.create_subprocess_exec(
                    *("dig", "@127.0.0.1", "-p", str(port), name, "+noall", "+comments", "+answer"),
                    *(f"+subnet={client}/32", "+tries=1", "+time=5"),
                    stdout=subprocess.PIPE,
                )
                out, _ = await process.communicate()
                text = out.decode()
                answers = [line for line in text.splitlines() if "IN\tA\t" in line]
                lines = [line.split()[-1] for line in answers]
                if "status: NOERROR" not in text:
                    lines = [""]
                await asyncio.sleep(0.3)
    except TimeoutError:
        pytest.fail(f"{client} gets {lines}, not {expected}")
