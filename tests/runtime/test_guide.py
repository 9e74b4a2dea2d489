"""The program in docs/runtime.md does what the page says, on the embedded server and a real one."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.contract.embedded import embedded
from tests.system_guard import starts_programs

from zonewise.api.errors import AlreadyExists
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.core import Node
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.runtime import Client, HttpsTransport, load_config

GUIDE = Path(__file__).parents[2] / "docs" / "runtime.md"
COUNT = "example.com/pods"
Pod = unstructured(Resource("", "v1", "Pod", "pods"))
ServiceAccount = unstructured(Resource("", "v1", "ServiceAccount", "serviceaccounts"))


def program() -> str:
    block = re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert block is not None
    return block.group(1)


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.real)])
@starts_programs
def kubeconfig(request: pytest.FixtureRequest) -> Iterator[Path]:
    if request.param == "real":
        yield request.getfixturevalue("realapi").kubeconfig
        return
    with embedded() as path:
        yield path


def pod(name: str, node: str) -> Any:
    spec = {"nodeName": node, "containers": [{"name": "c", "image": "example.com/none"}]}
    return Pod({"metadata": {"name": name, "namespace": "default"}, "spec": spec})


async def count_on(client: Client, node: str, expected: str) -> None:
    """Wait until the annotation has a value."""
    selector = f"metadata.name={node}"
    listing = await client.list(Node, field_selector=selector)
    if any(item.metadata.annotations.get(COUNT) == expected for item in listing):
        return
    version = listing.resource_version
    async for event in client.watch(Node, resource_version=version, field_selector=selector):
        if event.object.metadata.annotations.get(COUNT) == expected:
            return


def test_the_program_has_thirty_lines() -> None:
    """The page promises a controller in 30 lines, empty ones included."""
    assert len(program().splitlines()) <= 30


async def test_the_program_counts_pods(kubeconfig: Path, tmp_path: Path) -> None:
    """Pods that are added and removed are counted on their node, and SIGTERM ends the program."""
    script = tmp_path / "counter.py"
    script.write_text(program())
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    async with Client(HttpsTransport(load_config(kubeconfig))) as client:
        account = {"metadata": {"name": "default", "namespace": "default"}}
        with suppress(AlreadyExists):
            await client.create(ServiceAccount(account))
        await client.create(Node(metadata=ObjectMeta(name="guide")))
        await client.create(pod("first", "guide"))
        running = await asyncio.create_subprocess_exec(sys.executable, script, env=environment)
        try:
            await count_on(client, "guide", "1")
            await client.create(pod("second", "guide"))
            await count_on(client, "guide", "2")
            await client.delete(Pod, "first", "default", grace_period=0)
            await count_on(client, "guide", "1")
            running.send_signal(signal.SIGTERM)
            assert await running.wait() == 0
        finally:
            if running.returncode is None:
                running.kill()
                await running.wait()
            await client.delete(Pod, "second", "default", grace_period=0)
            await client.delete(Node, "guide")
