"""CreateVolume and NodeStageVolume over the socket, against what they cannot do without.

*Create*: one image file, truncated and synced, between two durable SQLite commits: that is the
least a driver with a journal does. *Stage*: truncate, mkfs.ext4, mount through a loop device, by
the programs that a person would use. Both sides take turns, one volume each, so that whatever else
the disk does meanwhile hits both. The driver is the program itself behind its socket.

Needs root for the second, like the driver.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.csi.socket_client import SocketClient

from benchmarks.table import Row, Table
from zonewise.csi.errors import CsiError
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport import methods

CREATES = 300
STAGES = 30
BYTES = 64 << 20
CAPABILITY = csi.VolumeCapability(
    mount=csi.VolumeCapability.MountVolume(fs_type="ext4"),
    access_mode=csi.VolumeCapability.AccessMode(
        mode=csi.VolumeCapability.AccessMode.SINGLE_NODE_WRITER
    ),
)


def create() -> Iterator[Table]:
    """Volumes made, one after the other."""
    ours, bare = asyncio.run(_creates())
    yield _table("CreateVolume", "truncate + fsync + 2 SQLite commits", CREATES, ours, bare, 0.5)


def stage() -> Iterator[Table]:
    """Volumes made, formatted and mounted."""
    ours, bare = asyncio.run(_stages())
    yield _table("create + stage", "truncate + mkfs.ext4 + mount", STAGES, ours, bare, 0.8)


def _table(name: str, peer: str, count: int, ours: float, bare: float, goal: float) -> Table:
    return Table(
        title=f"{name}, {count} volumes of {BYTES >> 20} MiB, over the socket",
        unit="1/s",
        higher_is_better=True,
        rows=(
            Row(name=name, value=count / ours, ours=True),
            Row(name=peer, value=count / bare),
        ),
        goal=goal,
        note="in turns, in one run, on one disk",
    )


async def _creates() -> tuple[float, float]:
    async with _driver() as (client, folder):
        database = sqlite3.connect(folder / "bare.db", isolation_level=None)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE volumes (name TEXT PRIMARY KEY, state TEXT) WITHOUT ROWID")

        async def ours(number: int) -> None:
            await client.call(methods.CREATE_VOLUME, _request(f"v{number}"))

        async def bare(number: int) -> None:
            database.execute("INSERT INTO volumes VALUES (?, 'reserved')", (f"v{number}",))
            with (folder / f"bare-{number}").open("wb") as file:
                file.truncate(BYTES)
                os.fsync(file.fileno())
            database.execute("UPDATE volumes SET state = 'created' WHERE name = ?", (f"v{number}",))

        try:
            return await _turns(CREATES, ours, bare)
        finally:
            database.close()


async def _stages() -> tuple[float, float]:
    async with _driver() as (client, folder):
        staged: list[tuple[str, Path]] = []

        async def ours(number: int) -> None:
            created = await client.call(methods.CREATE_VOLUME, _request(f"v{number}"))
            staging = folder / f"staging-{number}"
            await client.call(
                methods.NODE_STAGE_VOLUME,
                csi.NodeStageVolumeRequest(
                    volume_id=created.volume.volume_id,
                    staging_target_path=str(staging),
                    volume_capability=CAPABILITY,
                ),
            )
            staged.append((created.volume.volume_id, staging))

        async def bare(number: int) -> None:
            image, target = folder / f"bare-{number}", folder / f"mount-{number}"
            target.mkdir()
            for command in (
                ["truncate", "-s", str(BYTES), str(image)],
                ["mkfs.ext4", "-q", "-F", str(image)],
                ["mount", "-o", "loop", str(image), str(target)],
            ):
                _run(*command)

        try:
            return await _turns(STAGES, ours, bare)
        finally:
            for target in folder.glob("mount-*"):
                _run("umount", str(target))
            for id, staging in staged:
                await client.call(
                    methods.NODE_UNSTAGE_VOLUME,
                    csi.NodeUnstageVolumeRequest(volume_id=id, staging_target_path=str(staging)),
                )


async def _turns(
    count: int, ours: Callable[[int], Awaitable[None]], bare: Callable[[int], Awaitable[None]]
) -> tuple[float, float]:
    """The seconds of each; one of both beforehand is for files, caches and connections."""
    spent = [0.0, 0.0]
    for number in range(-1, count):
        for side, work in enumerate((ours, bare)):
            began = time.perf_counter()
            await work(number)
            if number >= 0:
                spent[side] += time.perf_counter() - began
    return spent[0], spent[1]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _request(name: str) -> csi.CreateVolumeRequest:
    return csi.CreateVolumeRequest(
        name=name,
        capacity_range=csi.CapacityRange(required_bytes=BYTES),
        volume_capabilities=[CAPABILITY],
    )


@asynccontextmanager
async def _driver() -> AsyncIterator[tuple[SocketClient, Path]]:
    """The program in a folder of its own; stopped by its pid."""
    with tempfile.TemporaryDirectory(prefix="zonewise-csi-") as name:
        folder = Path(name)
        pool = {"poolName": "p", "capacity": "1Ti"}
        (folder / "config.json").write_text(json.dumps({"version": 2, "pools": [pool]}))
        command = [sys.executable, "-m", "zonewise", "csi", "--node-id", "n"]
        command += ["--endpoint", f"unix://{folder}/csi.sock", "--config", f"{folder}/config.json"]
        process = started_program([*command, "--data", f"{folder}/data"], folder / "log")
        client = SocketClient(folder / "csi.sock")
        try:
            await answers(client)
            yield client, folder
        finally:
            await client.close()
            process.terminate()
            process.wait()


def started_program(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(command, stderr=file)


async def answers(client: SocketClient) -> None:
    for _ in range(600):
        try:
            await client.call(methods.PROBE, csi.ProbeRequest())
        except CsiError:
            await asyncio.sleep(0.05)
        else:
            return
    raise RuntimeError("the driver does not answer")
