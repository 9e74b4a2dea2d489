"""Takeover on a real Ceph: the OSDs themselves block a dead node's client."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.ceph import rbd_stand_in
from tests.ceph.scene import CephCaller, calling, parameters
from tests.csi.scene import MIB, mount_capability, refused, requirement, segments
from tools.ceph.cluster import JOURNAL, CephCluster

from zonewise.csi.errors import Code

pytestmark = [pytest.mark.real, pytest.mark.asyncio, pytest.mark.timeout(300)]

TAKEN = {"topology-takeover": {"a": ["b"]}}


def everywhere(mounter: str) -> dict[str, str]:
    """A class whose volumes belong to a zone and have replicas in all of them."""
    pools = parameters()["topologyConstrainedPools"]
    for zone in "abc":
        pools = pools.replace(f"rbd-{zone}", "shared" if zone == "a" else f"rbd-{zone}")
    return {"pool": JOURNAL, "topologyConstrainedPools": pools, "mounter": mounter}


@pytest.fixture(scope="module")
def shared(ceph: CephCluster) -> CephCluster:
    """The cluster, with a pool that has replicas in all zones."""
    ceph.pool("shared", "zones", size=3)

    def counted() -> bool:
        pools = {pool["name"]: pool["stats"] for pool in ceph.command("df")["pools"]}
        return bool(pools.get("shared", {}).get("max_avail"))

    ceph.wait("numbers", counted)
    return ceph


@contextmanager
def nodes(ceph: CephCluster, folder: Path) -> Iterator[tuple[CephCaller, CephCaller]]:
    """A node in zone a that knows of no takeover, and one in b that does."""
    with ExitStack() as stack:
        callers = []
        for zone, more in (("a", {}), ("b", TAKEN)):
            where = folder / zone
            where.mkdir()
            callers.append(stack.enter_context(calling(ceph, where, zone, **more)))
        yield callers[0], callers[1]


async def create_in_a(caller: CephCaller, capability: Any, name: str, mounter: str) -> str:
    """Create a volume that belongs to zone a."""
    volume = await caller.create(
        name,
        size=32 * MIB,
        capability=capability,
        topology=requirement([segments("a")]),
        parameters=everywhere(mounter),
    )
    return str(volume.volume_id)


async def used(caller: CephCaller, id: str, capability: Any) -> Path:
    """Stage and publish."""
    await caller.stage(id, capability)
    await caller.publish(id, capability)
    return caller.target


async def released(caller: CephCaller, id: str) -> None:
    """Unpublish and unstage."""
    await caller.unpublish(id)
    await caller.unstage(id)


@pytest.mark.parametrize("mounter", ["rbd-fuse", "krbd", "rbd-nbd"])
async def test_a_fenced_writers_late_write_is_refused(
    shared: CephCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounter: str
) -> None:
    """Data written in zone a is read in b, and later writes of a are refused; then the volume
    returns to a.
    """
    program = rbd_stand_in.installed(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    capability = mount_capability()
    before = len(shared.command("osd dump")["blocklist"])
    with nodes(shared, tmp_path) as (a, b):
        id = await create_in_a(a, capability, f"taken-{mounter}", mounter)
        there = await used(a, id, capability)
        (there / "marker").write_text("from a")
        os.sync()
        with (there / "late").open("wb", buffering=0) as late:
            target = await used(b, id, capability)
            assert (target / "marker").read_text() == "from a"
            (target / "marker").write_text("from b")
            with pytest.raises(OSError, match="Errno"):
                for _ in range(64):
                    late.write(b"x" * MIB)
                    os.fsync(late.fileno())
        listed = shared.command("osd dump")["blocklist"]
        assert len(listed) == before + 1
        rbd_stand_in.fail_requests(a.folder / "data-a")
        # The home zone does not take it back while the stand-in uses it.
        assert await refused(a.stage(id, capability)) is Code.FAILED_PRECONDITION
        await released(a, id)
        assert (target / "marker").read_text() == "from b"
        await released(b, id)
        again = await used(a, id, capability)
        assert (again / "marker").read_text() == "from b"
        assert not (again / "late").exists() or (again / "late").stat().st_size == 0
        await released(a, id)
        await a.delete(id)
