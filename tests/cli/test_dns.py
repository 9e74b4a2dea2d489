"""``zonewise dns`` as a program: flags, readiness, shutdown, loss of the API server."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import dns.asyncquery
import dns.edns
import dns.message
import dns.rcode
import pytest
from tests.cli.dns_cluster import ZONE, api, client_pod, free_port, objects
from tests.cli.run_program import here
from tests.dns.clusters import Obj, texts
from tests.embedded.virtual_cluster import until
from tools.coredns.recording import plant

from zonewise.api.objects.apiextensions import CustomResourceDefinition
from zonewise.api.objects.locator import PodLocator
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.controllers.locators.definition import definition

pytestmark = pytest.mark.asyncio

DB = "db.shop.svc.cluster.local."
READER = "reader"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--listen", "nonsense"),
        ("--listen", "example.com:53"),
        ("--upstream", "nonsense"),
        ("--upstream", "10.0.0.1:99999"),
        ("--upstream", f"10.0.0.1:{'9' * 5000}"),
        ("--ecs-from", "10.0.0.0/99"),
        ("--cluster-domain", "."),
        ("--cluster-domain", "in-addr.arpa"),
        ("--cluster-domain", "a..b"),
        ("--cluster-domain", "a b"),
        ("--stub-domain", "corp/example=10.0.0.53:53"),
        ("--metrics-listen", "foo"),
        ("--stub-domain", "corp.example"),
        ("--stub-domain", "corp.example=nonsense"),
        ("--lameduck", "soon"),
    ],
)
async def test_bad_flags_get_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    """Wrong values are refused before anything is started."""
    result = await asyncio.to_thread(here, capsys, "dns", *arguments)
    assert result.code == 2
    assert arguments[0] in result.sentence()


class Running:
    """The running program."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, health: int) -> None:
        self.process = process
        self.port = port
        self.health = health

    async def ready(self) -> bool:
        """Whether /readyz answers 200."""
        return (await self.get("/readyz"))[0] == 200

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text of a page of its HTTP server; 0 while it does not answer."""
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self.health}{path}") as answer,
            ):
                return answer.status, await answer.text()
        except aiohttp.ClientError:
            return 0, ""

    async def ask(self, name: str = DB, kind: str = "A", subnet: str = "") -> dns.message.Message:
        """The answer to a query."""
        options: list[dns.edns.Option] = [dns.edns.ECSOption(subnet, 32)] if subnet else []
        query = dns.message.make_query(name, kind, use_edns=0, options=options)
        return await dns.asyncquery.udp(query, "127.0.0.1", timeout=10, port=self.port)

    async def addresses(self, subnet: str = "") -> list[str]:
        """The addresses of the headless Service."""
        return texts(await self.ask(subnet=subnet))


@asynccontextmanager
async def program(kubeconfig: Path, *more: str, ready: bool = True) -> AsyncIterator[Running]:
    """``zonewise dns`` in a process of its own, ended at the end."""
    port, health = free_port(), free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "zonewise", "dns", "--kubeconfig", str(kubeconfig)),
        *("--listen", f"127.0.0.1:{port}", "--metrics-listen", f"127.0.0.1:{health}"),
        *("--upstream", "127.0.0.1:1", *more),
        stderr=asyncio.subprocess.PIPE,
    )
    running = Running(process, port, health)
    try:
        if ready:
            async with asyncio.timeout(180):
                while True:
                    if await running.ready():
                        break
                    await asyncio.sleep(0.05)
        yield running
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        _, errors = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 0, errors.decode()


async def follows(running: Running, expected: list[str], subnet: str = "") -> None:
    """Wait until the addresses are as expected."""
    async with asyncio.timeout(180):
        while True:
            if await running.addresses(subnet) == expected:
                return
            await asyncio.sleep(0.02)


@pytest.mark.system
async def test_from_pods_and_nodes(tmp_path: Path) -> None:
    """Without PodLocators the source address leads to a pod, its node and the node's labels."""
    async with api(tmp_path) as server:
        client = server.connect("test")
        await plant(client, objects())
        state = server.state
        await until(lambda: state.latest("/serviceaccounts", "shop", "default") is not None)
        await plant(client, [client_pod("me", "n-b", "127.0.0.1")])
        async with program(server.identity.kubeconfig) as running:
            assert await running.addresses() == ["10.0.0.2"]
            assert await running.addresses("127.0.0.1") == ["10.0.0.2"]
            await client.patch(
                unstructured(Resource("", "v1", "Node", "nodes", namespaced=False)),
                "n-b",
                None,
                {"metadata": {"labels": {ZONE: "a"}}},
            )
            await follows(running, ["10.0.0.1", "10.0.0.2"])
            status, text = await running.get("/metrics")
            assert status == 200
            assert "coredns_dns_requests_total{" in text
            assert "zonewise_dns_locators 1.0" in text


@pytest.mark.system
async def test_from_locators_under_an_account_that_sees_neither_pods_nor_nodes(
    tmp_path: Path,
) -> None:
    """PodLocators alone are enough; client subnets count where they are trusted."""
    async with api(tmp_path) as server:
        client = server.connect("test")
        crd = definition()
        await client.apply(CustomResourceDefinition, crd["metadata"]["name"], None, crd)
        await plant(client, objects())
        await until(
            lambda: server.registry.by_kind("zonewise.io/v1alpha1", "PodLocator") is not None
        )
        for name, zone, ip in (("me", "a", "127.0.0.1"), ("other", "b", "10.0.1.2")):
            body = {
                "metadata": {"name": name, "namespace": "shop"},
                "ips": [{"ip": ip}],
                "nodeName": f"n-{zone}",
                "nodeLabels": {ZONE: zone},
            }
            await client.create(unstructured(PodLocator.resource)(body))
        for role in reader():
            kind: str = role["kind"]
            names = (kind, f"{kind.lower()}s")
            resource = Resource("rbac.authorization.k8s.io", "v1", *names, namespaced=False)
            await client.create(unstructured(resource)(role))
        config = server.identity.kubeconfig
        trust = ("--ecs-from", "127.0.0.0/8")
        async with program(config, "--as", READER, *trust) as running:
            assert await running.addresses() == ["10.0.0.1"]
            assert await running.addresses("10.0.1.2") == ["10.0.0.2"]
            moved: list[Obj] = [
                {"op": "add", "path": "/nodeName", "value": "n-b"},
                {"op": "add", "path": "/nodeLabels", "value": {ZONE: "b"}},
            ]
            await client.patch(PodLocator, "me", "shop", moved, kind="json")
            await follows(running, ["10.0.0.2"])


def reader() -> list[Obj]:
    """A role that may read what the name server needs, and nothing else, and its binding."""
    rules = [
        {"apiGroups": [group], "resources": names, "verbs": ["list", "watch"]}
        for group, names in (
            ("", ["services", "namespaces"]),
            ("discovery.k8s.io", ["endpointslices"]),
            ("zonewise.io", ["podlocators"]),
        )
    ]
    group = "rbac.authorization.k8s.io"
    return [
        {"kind": "ClusterRole", "metadata": {"name": READER}, "rules": rules},
        {
            "kind": "ClusterRoleBinding",
            "metadata": {"name": READER},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": READER},
            "subjects": [{"kind": "User", "name": READER, "apiGroup": group}],
        },
    ]


@pytest.mark.system
async def test_names_are_served_without_the_api_server(tmp_path: Path) -> None:
    """Before the first lists SERVFAIL and not ready; afterwards answers without an API server."""
    async with api(tmp_path) as server:
        await plant(server.connect("test"), objects())
        config = server.identity.kubeconfig
    async with program(config, ready=False) as running:
        async with asyncio.timeout(180):
            while True:
                if (await running.get("/livez"))[0] == 200:
                    break
                await asyncio.sleep(0.05)
        assert not await running.ready()
        assert (await running.ask()).rcode() == dns.rcode.SERVFAIL
    async with api(tmp_path) as server, program(server.identity.kubeconfig) as running:
        before = await running.addresses()
        await server.close()
        assert await running.addresses() == before == ["10.0.0.1", "10.0.0.2"]
        assert await running.ready()


@pytest.mark.system
async def test_lameduck_answers_while_not_ready(tmp_path: Path) -> None:
    """After a stop signal /readyz fails, and queries are answered for a while."""
    async with api(tmp_path) as server:
        await plant(server.connect("test"), objects())
        config = server.identity.kubeconfig
        async with program(config, "--lameduck", "2s") as running:
            running.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(180):
                while True:
                    if not await running.ready():
                        break
                    await asyncio.sleep(0.02)
            assert len(await running.addresses()) == 2
            await asyncio.wait_for(running.process.wait(), 30)
