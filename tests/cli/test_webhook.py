"""``zonewise webhook`` as a program of its own, asked by an API server."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli.program import environment
from tests.explain.dumps import endpoint, node, part, service

from zonewise.api import EndpointSlice, Node, Service, convert
from zonewise.api.errors import Invalid
from zonewise.api.registration import (
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
)
from zonewise.embedded.server import ApiServer
from zonewise.runtime.client import Client

OURS = {"managed-by": "endpointslice-controller.k8s.io"}


def configuration(cls: type[Any], path: str, group: str, resource: str) -> Any:
    """What lets an API server call a path; where it is comes later."""
    return convert(
        cls,
        {
            "metadata": {"name": "zonewise"},
            "webhooks": [
                {
                    "name": f"{resource}.zonewise.io",
                    "clientConfig": {"url": f"https://127.0.0.1:1{path}"},
                    "rules": [
                        {
                            "operations": ["CREATE", "UPDATE"],
                            "apiGroups": [group],
                            "apiVersions": ["v1"],
                            "resources": [resource],
                        }
                    ],
                    "failurePolicy": "Ignore",
                    "sideEffects": "None",
                    "admissionReviewVersions": ["v1"],
                }
            ],
        },
    )


CONFIGURATIONS = (
    (ValidatingWebhookConfiguration, "/services", "", "services"),
    (MutatingWebhookConfiguration, "/hints", "discovery.k8s.io", "endpointslices"),
)


@asynccontextmanager
async def cluster(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    """An API server with three zones."""
    server = ApiServer(tmp_path / "cluster", clock=time.time, rng=random.Random(5))
    await server.start(0)
    client = server.connect("test")
    try:
        for zone in "abc":
            item = node(f"n-{zone}", zone)
            await client.create(convert(Node, item))
            body = {"status": item["status"]}
            await client.patch(Node, f"n-{zone}", None, body, subresource="status")
        yield server, client
    finally:
        await server.close()


@pytest.mark.parametrize("role", ["adopt", "observe"])
async def test_the_program(tmp_path: Path, role: str) -> None:
    """It makes its certificate, is trusted, refuses bad Services, hints what it adopts, stops."""
    async with cluster(tmp_path) as (server, client):
        for row in CONFIGURATIONS:
            await client.create(configuration(*row))
        await client.create(convert(Service, service()))
        program = started(tmp_path, server.identity.kubeconfig, role)
        try:
            port = (await asyncio.to_thread(heard, program, "webhooks are served"))["port"]
            for cls, path, _, _ in CONFIGURATIONS:
                url = f"https://127.0.0.1:{port}{path}"
                change = [{"op": "replace", "path": "/webhooks/0/clientConfig/url", "value": url}]
                await client.patch(cls, "zonewise", None, change, kind="json")
            await asyncio.to_thread(heard, program, "a certificate is served")
            rows = [endpoint(f"10.0.0.{n}", zone) for n, zone in enumerate("abc")]
            made = await client.create(convert(EndpointSlice, part(rows, **OURS)))
            hinted = {row.hints is not None for row in made.endpoints or ()}
            assert hinted == {role == "adopt"}
            bad = service(
                "bad", annotations={"service.kubernetes.io/topology-mode": "zonewise.io/x"}
            )
            with pytest.raises(Invalid):
                await client.create(convert(Service, bad))
        finally:
            program.terminate()
            await asyncio.to_thread(program.communicate, timeout=30)
        assert program.returncode == 0


def started(home: Path, kubeconfig: Path, role: str) -> subprocess.Popen[bytes]:
    """The program."""
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "zonewise", "webhook", "--endpointslices", role),
            *("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"),
            *("--host", "127.0.0.1", "-v", "--log-format", "json"),
            *("--kubeconfig", str(kubeconfig)),
        ],
        env=environment(home),
        stderr=subprocess.PIPE,
    )


def heard(program: subprocess.Popen[bytes], event: str) -> dict[str, Any]:
    """The line of its log that tells of an event."""
    assert program.stderr is not None
    for line in program.stderr:
        told: dict[str, Any] = msgspec.json.decode(line)
        if told.get("event") == event:
            return told
    raise AssertionError(f"the program ended before {event}")
