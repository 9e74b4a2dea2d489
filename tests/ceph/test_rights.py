"""The driver's user on a real Ceph: wrong keys, unreachable monitors, few rights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ceph.scene import CephCaller, calling
from tests.csi.scene import block_capability, mount_capability, refused, requirement, segments
from tools.ceph.cluster import CephCluster

from zonewise.csi.errors import Code
from zonewise.storage.identifiers import StoredKind

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

FEW = {
    "rbd": (
        *("mon", "profile rbd"),
        *("osd", "profile rbd pool=rbd-a, profile rbd pool=rbd-b, allow rwx pool=journal"),
    ),
    "fs": (
        *("mon", "allow r", "mgr", "allow rw", "mds", "allow rw path=/volumes"),
        *("osd", "allow rw tag cephfs data=files, allow rwx pool=journal"),
    ),
}


def in_zone(zone: str) -> Any:
    """The requirement of a single zone."""
    return requirement([segments(zone)], [segments(zone)])


def as_user(ceph: CephCluster, folder: Path, user: str, key: str, **more: Any) -> Any:
    """``clusters`` of a configuration with another user."""
    file = folder / "key"
    file.write_text(key)
    (cluster,) = ceph.clusters()
    return [{**cluster, "user": user, "keyFile": str(file), **more}]


@pytest.fixture(params=["rbd", "fs"])
def few(ceph: CephCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[CephCaller]:
    """A driver whose user has the rights that the docs name, and no more."""
    user = f"few-{request.param}"
    created = ceph.command(
        "auth get-or-create", entity=f"client.{user}", caps=list(FEW[request.param])
    )
    clusters = as_user(ceph, tmp_path, user, created[0]["key"])
    with calling(ceph, tmp_path, kind=request.param, clusters=clusters) as caller:
        yield caller


async def test_few_rights_are_enough(few: CephCaller) -> None:
    """A volume is created, used, snapshotted and deleted; a pool without rights is refused."""
    capability = mount_capability()
    volume = await few.create("pvc-1", topology=in_zone("a"), capability=capability)
    await few.stage(volume.volume_id, capability)
    target = await few.publish(volume.volume_id, capability)
    (target / "marker").write_text("here")
    await few.unpublish(volume.volume_id)
    await few.unstage(volume.volume_id)
    snapshot = await few.snapshot("snap-1", volume.volume_id)
    await few.delete_snapshot(snapshot.snapshot_id)
    await few.delete(volume.volume_id)
    assert await few.volumes() == []
    if few.kind == "rbd":
        code = await refused(few.create("pvc-2", topology=in_zone("c"), capability=capability))
        assert code is Code.PERMISSION_DENIED
        assert not few.storage.journal.list_page(StoredKind.VOLUME).entries


async def test_a_wrong_key(ceph: CephCluster, tmp_path: Path) -> None:
    """The key of another user and an invalid key are UNAUTHENTICATED."""
    for key in (ceph.keys["osd.0"], "nonsense"):
        clusters = as_user(ceph, tmp_path, "zonewise", key)
        with calling(ceph, tmp_path, clusters=clusters) as caller:
            call = caller.create("pvc-1", capability=block_capability())
            assert await refused(call) is Code.UNAUTHENTICATED


async def test_monitors_that_are_away(ceph: CephCluster, tmp_path: Path) -> None:
    """Without a monitor a driver starts, and answers UNAVAILABLE in time."""
    clusters = as_user(
        ceph, tmp_path, "zonewise", ceph.key_file.read_text(), monitors=["127.0.0.1:1"]
    )
    with calling(ceph, tmp_path, clusters=clusters) as caller:
        call = caller.create("pvc-1", capability=block_capability())
        assert await refused(call) in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)
