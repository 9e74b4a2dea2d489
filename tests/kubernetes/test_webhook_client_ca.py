"""A real API server that shows its certificate to our webhook, as docs/install.md says.

The two files are those that the page prints; only the paths in them are others. The API server
calls the Service of the manifests by its ClusterIP, because the name of a user in its kubeconfig is
the Service's. So ClusterIPs of this control plane are addresses of loopback, and the webhook
listens on that of its Service, on the port of the Service: that needs root.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import yaml
from tests.kubernetes.budget_scene import ZONE
from tests.kubernetes.installed import PATIENCE, Installed
from tests.kubernetes.stage import node
from tools.realkube.certificates import Authority

from tools import realkube as real
from zonewise.api import Namespace, Node, Pod, Service, convert
from zonewise.api.errors import ServerError, TooManyRequests
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.budgets import TopologyDisruptionBudget
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.install.installation import CLIENT_CA, CLIENT_CA_KEY, WEBHOOK, ClientAuthority
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config

pytestmark = [pytest.mark.real, pytest.mark.timeout(300), pytest.mark.asyncio]

PAGE = Path(__file__).parents[2] / "docs" / "install.md"
PRINTED_FOLDER = "/etc/kubernetes"
ConfigMap = unstructured(Resource("", "v1", "ConfigMap", "configmaps"))


def printed(kind: str, folder: Path) -> str:
    """The file of a kind that the page shows, with paths in a folder of the test."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    text: str = next(block for block in blocks if yaml.safe_load(block).get("kind") == kind)
    return text.replace(PRINTED_FOLDER, str(folder))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """The authority that signs the certificates of API servers."""
    folder = tmp_path / "authority"
    folder.mkdir()
    return Authority(folder)


@pytest.fixture
def plane(
    tmp_path: Path, authority: Authority, real_binaries: real.Binaries
) -> Iterator[real.ControlPlane]:
    """An API server that has a certificate for our webhook."""
    keys = tmp_path / "pki"
    keys.mkdir()
    certificate, key = authority.user("kube-apiserver")
    (keys / "webhook-client.crt").write_bytes(certificate)
    (keys / "webhook-client.key").write_bytes(key)
    (tmp_path / "webhooks.kubeconfig").write_text(printed("Config", tmp_path))
    admission = tmp_path / "admission.yaml"
    admission.write_text(printed("AdmissionConfiguration", tmp_path))
    # No two processes have the same number, so no two tests the same address.
    high, low = divmod(os.getpid() % 2**14, 2**8)
    settings = real.Settings(
        controllers=(),
        scheduler=False,
        fsync=False,
        apiserver_args=(
            f"--admission-control-config-file={admission}",
            f"--service-cluster-ip-range=127.{64 + high}.{low}.0/24",
        ),
    )
    with real.start(settings, binaries=real_binaries) as running:
        yield running


@asynccontextmanager
async def webhook(
    plane: real.ControlPlane, authority: Authority, folder: Path
) -> AsyncIterator[tuple[Client, str]]:
    """The printed manifests, a controller, and a webhook behind its Service; yields an
    administrator's client and the address of the webhook.
    """
    async with Client(HttpsTransport(load_config(plane.kubeconfig))) as client:
        installed = Installed(
            plane,
            client,
            "zonewise",
            role="observe",
            budgets="enforce",
            client_authority=ClientAuthority(certificates=authority.pem.decode()),
        )
        await installed.put()
        wait = ("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        await asyncio.to_thread(plane.kubectl, *wait)
        address = (await client.get(Service, WEBHOOK, "zonewise")).spec.cluster_ip
        mounted = await client.get(ConfigMap, CLIENT_CA, "zonewise")
        file = folder / CLIENT_CA_KEY
        file.write_text(str(mounted.get("data", CLIENT_CA_KEY)))
        name = "webhook-of-a-service"
        try:
            await installed.start(name, "--listen", f"{address}:443", "--client-ca", str(file))
            await installed.heard(name, "a certificate is served")
            await installed.lead()
            yield client, address
        finally:
            for program in list(installed.programs):
                installed.end(program)


async def pods(client: Client) -> None:
    """Two Ready pods on a node of zone a, of which one must stay; waits for the budget's status."""
    labels = {"zonewise.io/budgets": "enforce"}
    await client.create(Namespace(metadata=ObjectMeta(name="shop", labels=labels)))
    await client.create(convert(Node, node({"name": "n1", "zone": "a"})))
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for name in ("web-0", "web-1"):
        spec = {"nodeName": "n1", "containers": [{"name": "c", "image": "c:1"}]}
        meta = {"name": name, "namespace": "shop", "labels": {"app": "web"}}
        await client.create(convert(Pod, {"metadata": meta, "spec": spec}))
        await client.patch(Pod, name, "shop", {"status": ready}, subresource="status")
    allowance = {
        "minAvailable": 1,
        "selector": {"matchLabels": {"app": "web"}},
        "nodeSelectorTerm": {"matchExpressions": [ZONE]},
    }
    body = {"metadata": {"name": "web", "namespace": "shop"}, "spec": allowance}
    budget = await client.create(convert(TopologyDisruptionBudget, body))
    async with asyncio.timeout(PATIENCE):
        while not budget.status.domains:
            await asyncio.sleep(0.1)
            budget = await client.get(TopologyDisruptionBudget, "web", "shop")


async def evicted(client: Client, name: str) -> None:
    """Evict a pod, once the API server trusts the webhook and the webhook knows the cluster."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await client.evict(name, "shop")
            except ServerError:
                await asyncio.sleep(0.1)
            except TooManyRequests as error:
                assert re.search("not know the cluster yet|still being processed", str(error))
                await asyncio.sleep(0.1)


async def call_webhook(
    address: str, certificate: tuple[bytes, bytes] | None, folder: Path
) -> bytes:
    """The webhook's answer to a caller with this certificate. TLS 1.2, because there a client
    learns during the handshake that the server refused its certificate.
    """
    context = ssl.create_default_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        file = folder / "caller.pem"
        file.write_bytes(b"".join(certificate))
        context.load_cert_chain(file)
    async with AsyncExitStack() as stack:
        reader, writer = await asyncio.open_connection(address, 443, ssl=context)
        stack.callback(writer.transport.abort)
        writer.write(b"GET / HTTP/1.1\r\nHost: webhook\r\n\r\n")
        return await reader.readline()


async def test_evictions_are_judged_for_an_api_server_with_a_certificate(
    plane: real.ControlPlane, authority: Authority, tmp_path: Path
) -> None:
    """With the files of the page the webhook accepts an API server and decides on evictions;
    callers without a certificate, or with one of another authority, fail in the TLS handshake.
    """
    other = tmp_path / "other"
    other.mkdir()
    async with webhook(plane, authority, tmp_path) as (client, address):
        await pods(client)
        await evicted(client, "web-0")
        with pytest.raises(
            TooManyRequests, match="web: needs 1 healthy pods in domain a and has 1"
        ):
            await client.evict("web-1", "shop")
        for stranger in (None, Authority(other).user("kube-apiserver")):
            with pytest.raises((ssl.SSLError, ConnectionResetError)):
                await call_webhook(address, stranger, tmp_path)
        answer = await call_webhook(address, authority.user("kube-apiserver"), tmp_path)
        assert answer.startswith(b"HTTP/1.1 405 ")
