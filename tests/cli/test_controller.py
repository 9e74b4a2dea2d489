"""``zonewise controller`` as a program: it leads, writes, follows and releases its lease."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from tests.cli.run_program import environment, here
from tests.contract.embedded import embedded

from zonewise.api import EndpointSlice, Lease, Service, convert
from zonewise.api.errors import NotFound
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config

PATIENCE = 60.0
WEB = {
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
}


@contextmanager
def controller(home: Path, kubeconfig: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """The program; it is killed at the end."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "zonewise", "controller", "--kubeconfig", str(kubeconfig)),
            *("--metrics-listen", "127.0.0.1:0", "--lease-namespace", "default"),
            *("-v", "--log-format", "json", *flags),
        ],
        env=environment(home),
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[Path, Client]]:
    """An embedded API server, and an administrator's client."""
    with embedded() as kubeconfig:
        async with Client(HttpsTransport(load_config(kubeconfig))) as client:
            yield kubeconfig, client


async def holder(client: Client) -> str | None:
    """The holder of the lease; None if there is no lease."""
    try:
        return (await client.get(Lease, "zonewise-hints", "default")).spec.holder_identity
    except NotFound:
        return None


async def slices(client: Client) -> list[EndpointSlice]:
    """The slices of our Service; the API server has some of its own."""
    listed = await client.list(EndpointSlice, "default")
    return [piece for piece in listed if piece.metadata.name.startswith("web-")]


@pytest.mark.system
async def test_it_writes_slices_and_releases_its_lease(tmp_path: Path) -> None:
    """The controller takes the lease, writes slices, and on SIGTERM releases the lease and ends
    with 0.
    """
    async with cluster() as (kubeconfig, client):
        with controller(tmp_path, kubeconfig, "--endpointslices", "own") as program:
            await client.create(convert(Service, WEB))
            async with asyncio.timeout(PATIENCE):
                while not await slices(client):
                    assert program.poll() is None
                    await asyncio.sleep(0.1)
            assert await holder(client)
            program.send_signal(signal.SIGTERM)
            _, log = await asyncio.to_thread(program.communicate, timeout=PATIENCE)
            assert program.returncode == 0, log
            assert not await holder(client)
            events = [json.loads(line)["event"] for line in log.splitlines()]
            assert "leading" in events
            assert "stopping" in events


@pytest.mark.system
async def test_by_default_it_writes_no_slice(tmp_path: Path) -> None:
    """By default the controller observes and writes no slice, and a second replica only follows."""
    async with cluster() as (kubeconfig, client):
        await client.create(convert(Service, WEB))
        with controller(tmp_path, kubeconfig) as first:
            async with asyncio.timeout(PATIENCE):
                while not await holder(client):
                    assert first.poll() is None
                    await asyncio.sleep(0.1)
            with controller(tmp_path, kubeconfig) as second:
                assert second.stderr is not None
                async with asyncio.timeout(PATIENCE):
                    while b"leader seen" not in await asyncio.to_thread(second.stderr.readline):
                        assert second.poll() is None
                second.send_signal(signal.SIGTERM)
                await asyncio.to_thread(second.communicate, timeout=PATIENCE)
                assert second.returncode == 0
            assert first.poll() is None
            assert await slices(client) == []


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--endpoints-per-slice", "1001"), "1001"),
        (("--endpointslices", "steal"), "steal"),
        (("--missing-cpu", "guess"), "guess"),
        (("--lease-duration", "soon"), "soon"),
        (("--service-selector", "a in"), "selector"),
        (("--feature-gates", "Nonsense=true"), "Nonsense"),
        (("--lease-duration", "0s"), "lease"),
    ],
)
def test_bad_flags(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], says: str) -> None:
    """Flags that cannot work are one sentence and exit code 2, before any request."""
    result = here(capsys, "controller", *flags)
    assert result.code == 2
    assert says in result.err
    assert len(result.err.splitlines()) == 1
