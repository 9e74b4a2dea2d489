"""A tenant with leases on files of its volume delays only itself, and not for long."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.csi.hostile_tenant import attacker, contents, volume_folder
from tests.csi.scene import (
    DRIVER,
    LABELS,
    Caller,
    Mode,
    calling,
    config,
    mount_capability,
    of_volume,
    pool,
)

from zonewise.csi.backends.folders import safe_open, trees
from zonewise.csi.backends.folders.pools import FolderPools
from zonewise.csi.driver import Threads, open_data_folder, open_driver
from zonewise.csi.errors import Code, CsiError
from zonewise.csi.node_domain import FixedDomain
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport import methods
from zonewise.csi.transport.client import InProcessClient
from zonewise.storage.configuration import parse_configuration
from zonewise.storage.domains import parse_domain_labels
from zonewise.storage.journal import JournalEntry

SHARED = mount_capability(Mode.MULTI_NODE_MULTI_WRITER)
FILES = 5
LANE = 2

KEEPER = """
import fcntl, os, signal, sys
folder, count = sys.argv[1:]
os.chdir(folder)
os.setuid(4711)
signal.signal(signal.SIGIO, signal.SIG_IGN)
for number in range(int(count)):
    file = os.open(f"f{number}", os.O_RDWR | os.O_CREAT, 0o600)
    os.write(file, b"data")
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("ready", flush=True)
signal.pause()
"""
"""A tenant that gives up no lease until it is killed; it enters the folder while it is root."""


@pytest.fixture
def caller(tmp_path: Path) -> Iterator[Caller]:
    with calling(tmp_path, config(pool("pool-a", "a", "8Gi"))) as caller:
        yield caller


async def shared(caller: Caller) -> tuple[str, Path]:
    """A shared volume and its folder."""
    created = await caller.create("v", capability=SHARED)
    return created.volume_id, volume_folder(caller, created.volume_id)


def keeper(folder: Path) -> AbstractContextManager[subprocess.Popen[str]]:
    """The process of the tenant."""
    return attacker(KEEPER, folder, Path(str(FILES)))


@pytest.mark.system
async def test_a_copy_waits_for_all_leases_together_and_names_the_file(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many files have leases, a copy pauses a fixed number of times, and leaves nothing."""
    pauses: list[float] = []
    monkeypatch.setattr(trees, "LeaseWait", lambda: safe_open.LeaseWait(pauses.append))
    id, folder = await shared(caller)
    with keeper(folder):
        with pytest.raises(CsiError, match=r"lease on the file 'f\d' of the volume") as refusal:
            await caller.snapshot("s", id)
        assert refusal.value.code is Code.ABORTED
        assert len(pauses) == safe_open.LEASE_PAUSE_LIMIT
        assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    snapshot = await caller.snapshot("s", id)
    assert contents(volume_folder(caller, snapshot.snapshot_id)) == ["data"] * FILES


@pytest.mark.system
async def test_a_lease_that_is_given_up_is_waited_for(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a tenant gives up its lease the copy continues in the same call, with the file."""
    id, folder = await shared(caller)
    with keeper(folder) as process:

        def give_up(_: float) -> None:
            process.kill()
            process.wait()

        monkeypatch.setattr(trees, "LeaseWait", lambda: safe_open.LeaseWait(give_up))
        copy = await caller.create("c", capability=SHARED, source=of_volume(id))
    assert contents(volume_folder(caller, copy.volume_id)) == ["data"] * FILES


async def test_nothing_else_waits_while_every_worker_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Probe and calls for other volumes are answered while all workers copy."""
    go, copying = threading.Event(), threading.Semaphore(0)
    make = FolderPools.make

    def blocked_make(self: FolderPools, entry: JournalEntry, source: JournalEntry | None) -> bool:
        if source is not None:
            copying.release()
            go.wait()
        return make(self, entry, source)

    monkeypatch.setattr(FolderPools, "make", blocked_make)
    labels = parse_domain_labels(LABELS, DRIVER)
    configuration = parse_configuration(config(), labels)
    data, threads = open_data_folder(tmp_path / "data", privileged=False), Threads(LANE)
    driver = open_driver(
        DRIVER,
        data,
        labels,
        lambda: configuration,
        node_id="node-1",
        domain=FixedDomain({"region": "r1", "zone": "a"}),
        worker=threads,
    )
    caller = Caller(InProcessClient(driver.calls), tmp_path)
    copies: list[asyncio.Task[object]] = []
    try:
        source = (await caller.create("v")).volume_id
        for number in range(LANE):
            copies.append(asyncio.create_task(caller.snapshot(f"s{number}", source)))
            clone = caller.create(f"c{number}", source=of_volume(source))
            copies.append(asyncio.create_task(clone))
        for _ in range(LANE):
            await asyncio.to_thread(copying.acquire)
        probe = await caller.client.call(methods.PROBE, csi.ProbeRequest(), timeout=60)
        assert probe.ready.value
        async with asyncio.timeout(60):
            other = await caller.create("other")
            await caller.delete(other.volume_id)
        assert not any(copy.done() for copy in copies)
    finally:
        go.set()
        await asyncio.gather(*copies)
        threads.close()
        data.close()
