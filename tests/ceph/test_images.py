"""Volumes as RBD images, on a real Ceph: placement, names, copies, the node, the trash."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ceph.scene import CephCaller, calling, parameters
from tests.csi.scene import (
    MIB,
    block_capability,
    homes,
    of_snapshot,
    of_volume,
    refused,
    requirement,
    segments,
)
from tools.ceph.cluster import CephCluster

from zonewise.csi.errors import Code

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


@pytest.fixture
def caller(ceph: CephCluster, tmp_path: Path) -> Iterator[CephCaller]:
    """A driver in zone a; its volumes are gone at the end."""
    with calling(ceph, tmp_path) as caller:
        yield caller
        assert caller.names() == []


async def test_create_use_and_delete(caller: CephCaller) -> None:
    """A volume is made in the pool of the preferred zone, used, and deleted."""
    topology = requirement([segments("a"), segments("b")], [segments("b"), segments("a")])
    volume = await caller.create("pvc-1", topology=topology)
    assert volume.volume_context["pool"] == "rbd-b"
    assert homes(volume) == [segments("b")]
    again = await caller.create("pvc-1", topology=requirement([segments("a"), segments("b")]))
    assert again.volume_id == volume.volume_id
    assert caller.names() == ["rbd-b/volume"]
    await caller.stage(volume.volume_id)
    target = await caller.publish(volume.volume_id)
    (target / "marker").write_text("here")
    assert await refused(caller.delete(volume.volume_id)) is Code.ABORTED
    await caller.unpublish(volume.volume_id)
    await caller.unstage(volume.volume_id)
    await caller.stage(volume.volume_id)
    await caller.publish(volume.volume_id)
    assert (target / "marker").read_text() == "here"
    await caller.unpublish(volume.volume_id)
    await caller.unstage(volume.volume_id)
    await caller.delete(volume.volume_id)
    await caller.delete(volume.volume_id)
    assert await caller.volumes() == []


async def test_copies(caller: CephCaller) -> None:
    """A snapshot and a clone outlive their source, and in the end the trash can be emptied."""
    original = await caller.create("pvc-1", capability=block_capability())
    snapshot = await caller.snapshot("snap-1", original.volume_id)
    clone = await caller.create(
        "pvc-2", source=of_volume(original.volume_id), capability=block_capability()
    )
    restored = await caller.create(
        "pvc-3",
        source=of_snapshot(snapshot.snapshot_id),
        size=32 * MIB,
        capability=block_capability(),
    )
    assert restored.capacity_bytes == 32 * MIB
    await caller.delete(original.volume_id)
    await caller.delete_snapshot(snapshot.snapshot_id)
    await caller.delete(clone.volume_id)
    await caller.delete(restored.volume_id)
    images = caller.storage.backend
    while images.list_trash():
        images.purge()


async def test_what_a_class_must_say(caller: CephCaller) -> None:
    """Without a journal pool, with an unknown pool or feature, nothing is made."""
    for given in (
        {"topologyConstrainedPools": parameters()["topologyConstrainedPools"]},
        parameters(pool="nowhere"),
        parameters(imageFeatures="layering,magic"),
        parameters(imageFeatures="object-map"),
        parameters(imageFeatures="exclusive-lock,fast-diff"),
        parameters(clusterID="another"),
    ):
        assert await refused(caller.create("pvc-1", parameters=given)) is Code.INVALID_ARGUMENT
