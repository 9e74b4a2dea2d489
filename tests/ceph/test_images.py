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
    place,
    refused,
    requirement,
)
from tools.ceph.cluster import CephCluster

from zonewise.csi.errors import Code

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


@pytest.fixture
def caller(ceph: CephCluster, tmp_path: Path) -> Iterator[CephCaller]:
    """A driver in zone a; its volumes are gone at the end."""
    with calling(ceph, tmp_path) as made:
        yield made
        assert made.names() == []


async def test_a_life(caller: CephCaller) -> None:
    """A volume is cut from the pool of the zone that is preferred, used, and gone afterwards."""
    topology = requirement([place("a"), place("b")], [place("b"), place("a")])
    made = await caller.create("pvc-1", topology=topology)
    assert made.volume_context["pool"] == "rbd-b"
    assert homes(made) == [place("b")]
    again = await caller.create("pvc-1", topology=requirement([place("a"), place("b")]))
    assert again.volume_id == made.volume_id
    assert caller.names() == ["rbd-b/volume"]
    await caller.stage(made.volume_id)
    target = await caller.publish(made.volume_id)
    (target / "marker").write_text("here")
    assert await refused(caller.delete(made.volume_id)) is Code.ABORTED
    await caller.unpublish(made.volume_id)
    await caller.unstage(made.volume_id)
    await caller.stage(made.volume_id)
    await caller.publish(made.volume_id)
    assert (target / "marker").read_text() == "here"
    await caller.unpublish(made.volume_id)
    await caller.unstage(made.volume_id)
    await caller.delete(made.volume_id)
    await caller.delete(made.volume_id)
    assert await caller.volumes() == []


async def test_copies(caller: CephCaller) -> None:
    """A snapshot and a clone outlive their source, and what is in the trash goes with the last."""
    made = await caller.create("pvc-1", capability=block_capability())
    snapshot = await caller.snapshot("snap-1", made.volume_id)
    clone = await caller.create(
        "pvc-2", source=of_volume(made.volume_id), capability=block_capability()
    )
    restored = await caller.create(
        "pvc-3",
        source=of_snapshot(snapshot.snapshot_id),
        size=32 * MIB,
        capability=block_capability(),
    )
    assert restored.capacity_bytes == 32 * MIB
    await caller.delete(made.volume_id)
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
