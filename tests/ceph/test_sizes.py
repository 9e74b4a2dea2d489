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
    with calling(ceph, tmp_path) as caller:
        yield caller
        assert caller.names() == []


def room(path: Path) -> int:
    """The size of a file system."""
    stats = os.statvfs(path)
    return stats.f_blocks * stats.f_frsize


async def test_xfs_grows_while_it_is_used(caller: CephCaller) -> None:
    """With a file open, and expanded twice, there is more room and the same data."""
    capability = mount_capability(fs_type="xfs")
    volume = await caller.create("pvc-1", size=320 * MIB, capability=capability)
    await caller.stage(volume.volume_id, capability)
    target = await caller.publish(volume.volume_id, capability)
    with (target / "marker").open("w") as file:
        file.write("here")
        file.flush()
        before = room(target)
        for _ in range(2):
            grown = await caller.expand(volume.volume_id, 448 * MIB)
            assert (grown.capacity_bytes, grown.node_expansion_required) == (448 * MIB, True)
            assert await caller.node_expand(volume.volume_id) == 448 * MIB
        assert room(target) - before > 100 * MIB
        file.write(" still")
    assert (target / "marker").read_text() == "here still"
    usage = await caller.stats(volume.volume_id)
    assert usage[0].total > before
    await caller.unpublish(volume.volume_id)
    await caller.unstage(volume.volume_id)
    await settled(partial(caller.delete, volume.volume_id))


async def test_a_device_grows_while_it_is_used(caller: CephCaller) -> None:
    """A pod that has a block device open sees its new size after an expansion."""
    device = block_capability()
    volume = await caller.create("pvc-1", capability=device)
    await caller.stage(volume.volume_id, device)
    target = await caller.publish(volume.volume_id, device)
    descriptor = os.open(target, os.O_RDONLY)
    try:
        assert os.lseek(descriptor, 0, os.SEEK_END) == 16 * MIB
        await caller.expand(volume.volume_id, 24 * MIB)
        await caller.node_expand(volume.volume_id)
        assert os.lseek(descriptor, 0, os.SEEK_END) == 24 * MIB
    finally:
        os.close(descriptor)
    await caller.unpublish(volume.volume_id)
    await caller.unstage(volume.volume_id)
    await settled(partial(caller.delete, volume.volume_id))


async def test_ext4_grows_when_it_is_staged_next(caller: CephCaller) -> None:
    """A volume that was expanded while unstaged has its new size at the next stage."""
    volume = await caller.create("pvc-1")
    await caller.stage(volume.volume_id)
    before = room(caller.staging)
    await caller.unstage(volume.volume_id)
    await settled(partial(caller.expand, volume.volume_id, 64 * MIB))
    await caller.stage(volume.volume_id)
    assert room(caller.staging) - before > 32 * MIB
    await caller.unstage(volume.volume_id)
    await settled(partial(caller.delete, volume.volume_id))


async def test_a_restore_has_the_size_it_asks_for(caller: CephCaller) -> None:
    """A larger restore has the data and a file system that fills it; one smaller than its source is
    OUT_OF_RANGE.
    """
    original = await caller.create("pvc-1")
    await caller.stage(original.volume_id)
    target = await caller.publish(original.volume_id)
    (target / "marker").write_text("here")
    before = room(target)
    await caller.unpublish(original.volume_id)
    await caller.unstage(original.volume_id)
    snapshot = await caller.snapshot("snap-1", original.volume_id)
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
    await settled(partial(caller.delete, original.volume_id))
