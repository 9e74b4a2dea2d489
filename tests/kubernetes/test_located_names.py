"""On a real control plane the name server answers by the client's place, which PodLocators tell."""

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

from tools import realkube as real
from zonewise.api import Namespace, Node, ObjectMeta, Pod, Service, convert
from zonewise.api.objects.locator import PodLocator
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
)
SERVICE, NODE = unstructured(Service.resource), unstructured(Node.resource)
POD = unstructured(Pod.resource)
ZONE, LOCATORS = "topology.kubernetes.io/zone", "podlocators.zonewise.io"
RACK = "example.com/rack"
NODES = {"n1": ("a", "r1"), "n2": ("a", "r1"), "n3": ("b", "r2")}


@pytest.fixture(scope="module")
def plane(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    settings = real.Settings(controllers=CONTROLLERS, scheduler=False, fsync=False)
    with real.start(settings, binaries=real_binaries) as running:
        yield running


async def test_the_name_server_reads_locators(plane: real.ControlPlane) -> None:
    """The controller writes PodLocators, and the name server, which may read neither pods nor
    nodes, answers for a headless Service by the client's place, follows a pod to another node, and
    learns labels that slices do not have: of a rack that is renamed, of a zone that comes late.
    """
    async with Client(HttpsTransport(load_config(plane.kubeconfig))) as client:
        for name, (zone, rack) in NODES.items():
            labels = {ZONE: zone, RACK: rack}
            await client.create(NODE({"metadata": {"name": name, "labels": labels}}))
        await client.create(NODE({"metadata": {"name": "late"}}))
        space = "located"
        await client.create(Namespace(metadata=ObjectMeta(name=space)))
        installed = Installed(plane, client, "zonewise-located", role="observe")
        try:
            await installed.put()
            await put_name_server(plane, installed.namespace)
            await installed.lead()
            await headless(client, space, "db", RACK)
            await headless(client, space, "store", ZONE)
            await pod(client, space, "store-1", "late", "10.0.2.1", app="store")
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
                assert (locator.node_name, locator.node_labels) == ("n3", {ZONE: "b", RACK: "r2"})
                await client.delete(POD, "web-2", space, grace_period=0)
                await pod(client, space, "web-3", "n2", "10.0.1.2")
                await resolves(port, "10.0.1.2", "10.0.0.1", "10.0.0.2")
                await client.patch(NODE, "n1", None, {"metadata": {"labels": {RACK: "r2"}}})
                await resolves(port, "10.0.1.1", "10.0.0.1", "10.0.0.3")
                await resolves(port, "10.0.1.1", name="store")
                await client.patch(NODE, "late", None, {"metadata": {"labels": {ZONE: "a"}}})
                await resolves(port, "10.0.1.1", "10.0.2.1", name="store")
        finally:
            await installed.remove()


async def put_name_server(plane: real.ControlPlane, namespace: str) -> None:
    """The definition of PodLocators, and the name server's account with its rights, as printed."""
    installation = Installation(role="observe", version="test", namespace=namespace, dns=True)
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
    chosen = [
        manifest
        for manifest in render_manifests(installation)
        if manifest["kind"] == "CustomResourceDefinition"
        or (manifest["kind"] in kinds and manifest["metadata"]["name"] == DNS)
    ]
    assert {manifest["kind"] for manifest in chosen} == {*kinds, "CustomResourceDefinition"}
    text = yaml.safe_dump_all(chosen)
    applied = await asyncio.to_thread(plane.kubectl, "apply", "-f", "-", stdin=text)
    assert applied.returncode == 0, applied.stderr
    await asyncio.to_thread(
        plane.kubectl, "wait", "--for=condition=Established", "crd", LOCATORS, "--timeout=60s"
    )


async def headless(client: Client, space: str, name: str, key: str) -> None:
    """A headless Service whose endpoints are for clients with the same value of a key."""
    metadata = {
        "name": name,
        "namespace": space,
        "annotations": {"zonewise.io/topology-keys": key},
    }
    ports = [{"name": "p", "port": 80}]
    spec = {"clusterIP": "None", "selector": {"app": name}, "ports": ports}
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


async def resolves(port: int, client: str, *expected: str, name: str = "db") -> None:
    """Wait until a client gets exactly these addresses for a headless Service."""
    lines = [""]
    try:
        async with asyncio.timeout(240):
            while sorted(lines) != sorted(expected) or lines == [""]:
                process = await asyncio.create_subprocess_exec(
                    *(
                        "dig",
                        "@127.0.0.1",
                        "-p",
                        str(port),
                        f"{name}.located.svc.cluster.local",
                        "+noall",
                        "+comments",
                        "+answer",
                    ),
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
        pytest.fail(f"for {name} {client} gets {lines}, not {expected}")
