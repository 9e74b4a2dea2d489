"""Volumes on a real Ceph that grow: while they are used, and when they are restored larger."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.ceph.scene import CephCaller, calling
from tests.ceph.waiting import settled
from tests.csi.scene import (
    MIB,
    block_capability,
    mount_capability,
    of_snapshot,
    refused,
)
from tools.ceph.cluster import CephCluster

from zonewise.csi.errors import Code

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


@pytest.fixture
def caller(ceph: CephCluster, tmp_path: Path) -> Iterator[CephCaller]:
    """A driver in zone a; its volumes are gone at the end."""
    with calling(ceph, tmp_path) as made:
        yield made
        assert made.names() == []


def room(path: Path) -> int:
    """The size of a file system."""
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize


async def test_xfs_grows_while_it_is_used(caller: CephCaller) -> None:
    """With a file open, and asked twice: more room, the same data."""
    capability = mount_capability(fs_type="xfs")
    made = await caller.create("pvc-1", size=320 * MIB, capability=capability)
    await caller.stage(made.volume_id, capability)
    target = await caller.publish(made.volume_id, capability)
    with (target / "marker").open("w") as file:
        file.write("here")
        file.flush()
        before = room(target)
        for _ in range(2):
            grown = await caller.expand(made.volume_id, 448 * MIB)
            assert (grown.capacity_bytes, grown.node_expansion_required) == (448 * MIB, True)
            assert await caller.node_expand(made.volume_id) == 448 * MIB
        assert room(target) - before > 100 * MIB
        file.write(" still")
    assert (target / "marker").read_text() == "here still"
    usage = await caller.stats(made.volume_id)
    assert usage[0].total > before
    await caller.unpublish(made.volume_id)
    await caller.unstage(made.volume_id)
    await settled(partial(caller.delete, made.volume_id))


async def test_a_device_grows_while_it_is_used(caller: CephCaller) -> None:
    """A pod that has it open sees its new size."""
    device = block_capability()
    made = await caller.create("pvc-1", capability=device)
    await caller.stage(made.volume_id, device)
    target = await caller.publish(made.volume_id, device)
    descriptor = os.open(target, os.O_RDONLY)
    try:
        assert os.lseek(descriptor, 0, os.SEEK_END) == 16 * MIB
        await caller.expand(made.volume_id, 24 * MIB)
        await caller.node_expand(made.volume_id)
        assert os.lseek(descriptor, 0, os.SEEK_END) == 24 * MIB
    finally:
        os.close(descriptor)
    await caller.unpublish(made.volume_id)
    await caller.unstage(made.volume_id)
    await settled(partial(caller.delete, made.volume_id))


async def test_ext4_grows_when_it_is_staged_next(caller: CephCaller) -> None:
    """What grew while nobody had it is as large as it should be at the next stage."""
    made = await caller.create("pvc-1")
    await caller.stage(made.volume_id)
    before = room(caller.staging)
    await caller.unstage(made.volume_id)
    await settled(partial(caller.expand, made.volume_id, 64 * MIB))
    await caller.stage(made.volume_id)
    assert room(caller.staging) - before > 32 * MIB
    await caller.unstage(made.volume_id)
    await settled(partial(caller.delete, made.volume_id))


async def test_a_restore_has_the_size_it_asks_for(caller: CephCaller) -> None:
    """A larger one has a file system that fills it and the data; a smaller one is OUT_OF_RANGE."""
    made = await caller.create("pvc-1")
    await caller.stage(made.volume_id)
    target = await caller.publish(made.volume_id)
    (target / "marker").write_text("here")
    before = room(target)
    await caller.unpublish(made.volume_id)
    await caller.unstage(made.volume_id)
    snapshot = await caller.snapshot("snap-1", made.volume_id)
    source = of_snapshot(snapshot.snapshot_id)
    code = await refused(caller.create("pvc-2", size=8 * MIB, limit=8 * MIB, source=source))
    assert code is Code.OUT_OF_RANGE
    large = await settled(partial(caller.create, "pvc-3", size=64 * MIB, source=source))
    await caller.stage(large.volume_id)
    await caller.publish(large.volume_id)
    assert room(target) - before > 32 * MIB
    assert (target / "marker").read_text() == "here"
    await caller.unpublish(large.volume_id)
    await caller.unstage(large.volume_id)
    await settled(partial(caller.delete, large.volume_id))
    await settled(partial(caller.delete_snapshot, snapshot.snapshot_id))
    await settled(partial(caller.delete, made.volume_id))
