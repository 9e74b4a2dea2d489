"""The same plays on a real control plane and on ours end in the same observable state.

The plays are YAML files: spread constraints, affinities, taints, preemption, StatefulSets,
DaemonSets, rollouts, rollbacks, scaling, node loss. Both servers run a play at the same time. The
states are compared after each act, and the bounds of a rolling update at every event of a watch.
The kubelets are ours on both.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.kubernetes.stage import Obj, Stage, load

from tools import realkube as real
from zonewise.embedded.components.kubelet.kubelets import Kubelets, KubeletSettings
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config
from zonewise.runtime.program.program import Program

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

PLAYS = sorted((Path(__file__).parent / "plays").glob("*.yaml"))
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
START = 60.0
HEARTBEAT = 2.0
QUICK = ("--node-monitor-grace-period=25s", "--node-monitor-period=1s")


@pytest.fixture(scope="module")
def theirs(real_binaries: real.Binaries) -> Iterator[Path]:
    """A real control plane that notices a dead node soon; its kubeconfig."""
    settings = real.Settings(fsync=False, controller_manager_args=QUICK)
    with real.start(settings, binaries=real_binaries) as plane:
        yield plane.kubeconfig


@pytest.fixture(scope="module")
def ours() -> Iterator[Path]:
    """Our living cluster without nodes; its kubeconfig."""
    with tempfile.TemporaryDirectory(prefix="zonewise-test-", dir=MEMORY) as name:
        flags = ("--empty", "--workload-removal=delete", "--data", name)
        process = subprocess.Popen(
            [sys.executable, "-m", "zonewise", "up", *flags],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            kubeconfig = Path(name) / "kubeconfig"
            deadline = time.monotonic() + START
            while not kubeconfig.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    process.kill()
                    raise AssertionError(process.communicate()[1].decode())
                time.sleep(0.05)
            yield kubeconfig
        finally:
            process.terminate()
            process.communicate(timeout=30)


@asynccontextmanager
async def acting(kubeconfig: Path, play: Obj, name: str, *, kubelets: bool) -> AsyncIterator[Stage]:
    """A stage for one play, cleared afterwards."""
    transport = HttpsTransport(load_config(kubeconfig=kubeconfig))

    def connect(manager: str) -> Client:
        return Client(transport, field_manager=manager)

    components = Program(connect, clock=time.time, rng=random.Random(1))
    if kubelets:
        components.add(
            "kubelets", lambda context: Kubelets(context, KubeletSettings(heartbeat=HEARTBEAT))
        )
    stage = Stage(connect("play"), components.cache, name, exact=not kubelets)
    work = asyncio.create_task(components.run())
    try:
        await components.cache.synced()
        yield stage
        await stage.clear(play)
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await transport.close()


async def act(kubeconfig: Path, file: Path, *, kubelets: bool) -> list[Obj]:
    """Run a play on a server; returns the state after each act."""
    play = load(file)
    async with acting(kubeconfig, play, file.stem, kubelets=kubelets) as stage:
        return await stage.act(play)


@pytest.mark.asyncio
@pytest.mark.parametrize("file", PLAYS, ids=lambda file: file.stem)
async def test_both_servers_act_alike(theirs: Path, ours: Path, file: Path) -> None:
    """After each act workloads, pods, nodes and events of both clusters are the same."""
    expected, actual = await asyncio.gather(
        act(theirs, file, kubelets=True), act(ours, file, kubelets=False)
    )
    for number, (right, mine) in enumerate(zip(expected, actual, strict=True), start=1):
        assert mine == right, f"act {number}"
        assert not right.get("broken"), f"act {number}: {right['broken']}"
