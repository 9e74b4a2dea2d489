"""The product runs without the embedded cluster: none of its programs loads a module of it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sys
import time
import urllib.error
import urllib.request
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.run_program import LIMIT, environment
from tests.netns.spaces import inside, space
from tests.system_guard import starts_programs

from zonewise.api import Namespace, Node, ObjectMeta, convert
from zonewise.controllers.locators.definition import definition
from zonewise.disruption.definitions.schemas import resource_definitions
from zonewise.embedded.apiserver.server import ApiServer
from zonewise.topology.nodes import ZONE_LABEL

PORT = 9400
METRICS = f"--metrics-listen=127.0.0.1:{PORT}"
SERVERS = {
    "controller": [METRICS, "--lease-namespace=zonewise", "--budgets=enforce"],
    "webhook": [METRICS, "--listen=127.0.0.1:9443", "-n", "zonewise", "--budgets=enforce"],
    "dns": [METRICS, "--listen=127.0.0.1:5353", "--lameduck=0"],
    "proxy": [
        f"--healthz-bind-address=127.0.0.1:{PORT}",
        "--node-name=n1",
        "--cluster-cidr=10.244.0.0/16",
    ],
    "csi": [
        METRICS,
        "--node-id=n1",
        f"--domain-labels={ZONE_LABEL}",
        "--takeover-controller",
        "--lease-namespace=zonewise",
        "--endpoint=unix:///{folder}/csi.sock",
        "--config=config.json",
        "--data=data",
    ],
}
"""Programs that serve, with everything they can do."""

DUMP = {
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "web",
                "namespace": "default",
                "labels": {"kubernetes.io/service-name": "web"},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.1.0.1"], "nodeName": "n1"}],
        },
    ],
}
IMPORT = re.compile(r"^import time: .*\n", re.MULTILINE)
"""A line of ``python -X importtime``."""
LOADED = re.compile(r"^import time: .*\| +(zonewise[\w.]*)$", re.MULTILINE)
"""Such a line of one of our own modules."""


@pytest.fixture
@starts_programs
def namespace() -> Iterator[None]:
    """Ports and packet rules of the programs are in a network namespace of their own."""
    with space(f"zwwing{os.getpid()}") as name, inside(name):
        yield


async def start(folder: Path, *words: str) -> asyncio.subprocess.Process:
    """A program of its own that reports every module it loads."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-X", "importtime", "-m", "zonewise", *words),
        cwd=folder,
        env=environment(folder),
        stdout=PIPE,
        stderr=PIPE,
    )


def check_loaded(process: asyncio.subprocess.Process, errors: bytes, package: str) -> None:
    """The program did its work with its own package, and loaded nothing of the embedded cluster."""
    printed = IMPORT.sub("", errors.decode())
    assert process.returncode == 0, printed
    loaded = LOADED.findall(errors.decode())
    assert any(module.startswith(f"zonewise.{package}") for module in loaded)
    assert [module for module in loaded if module.startswith("zonewise.embedded")] == []


def is_ready() -> bool:
    """Whether the program says that it works."""
    path = f"http://127.0.0.1:{PORT}"
    try:
        # A proxy has /healthz, as kube-proxy; it is 503 until the first rules are there.
        with urllib.request.urlopen(f"{path}/healthz"), urllib.request.urlopen(f"{path}/readyz"):
            return True
    except urllib.error.HTTPError as error:
        return error.code == 404
    except OSError:
        return False


@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize("name", SERVERS)
async def test_programs_on_a_cluster_load_nothing_of_the_embedded_one(
    name: str, tmp_path: Path
) -> None:
    """Each program of the add-on works and ends without any module of zonewise.embedded."""
    (tmp_path / "config.json").write_text('{"version": 2}')
    server = ApiServer(tmp_path / "cluster", clock=time.time, rng=random.Random(5))
    await server.start(0)
    try:
        client = server.connect("test")
        await client.create(Namespace(metadata=ObjectMeta(name="zonewise")))
        node = {"metadata": {"name": "n1", "labels": {ZONE_LABEL: "a"}}}
        await client.create(convert(Node, node))
        for body in (*resource_definitions(), definition()):
            await client.raw(
                "POST",
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
                body=json.dumps(body).encode(),
                headers={"Content-Type": "application/json"},
            )
        kubeconfig = f"--kubeconfig={server.identity.kubeconfig}"
        words = [word.format(folder=tmp_path) for word in SERVERS[name]]
        process = await start(tmp_path, name, *words, kubeconfig)
        ended = asyncio.create_task(process.communicate())
        try:
            async with asyncio.timeout(LIMIT):
                while not ended.done() and not await asyncio.to_thread(is_ready):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        finally:
            if not ended.done():
                process.terminate()
            _, errors = await ended
        check_loaded(process, errors, "controllers" if name == "controller" else name)
    finally:
        await server.close()


@pytest.mark.system
@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("explain", ["explain", "service", "web", "-f", "dump.json"]),
        ("install", ["install", "--endpointslices=own", "--budgets=enforce", "--dns"]),
        ("traffic.routes", ["proxy", "--dry-run", "-f", "dump.json"]),
    ],
)
async def test_commands_of_the_product_load_nothing_of_the_embedded_cluster(
    package: str, words: list[str], tmp_path: Path
) -> None:
    """Explaining a dump, printing manifests and a proxy's dry run are done by the product alone."""
    (tmp_path / "dump.json").write_text(json.dumps(DUMP))
    process = await start(tmp_path, *words)
    output, errors = await process.communicate()
    assert output
    check_loaded(process, errors, package)
