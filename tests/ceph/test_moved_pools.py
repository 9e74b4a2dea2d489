"""Pools that are deleted or renamed under existing volumes, on a real Ceph.

Each test has a pool of its own, which is gone afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.ceph.scene import (
    CephCaller,
    CephProgram,
    calling,
    config,
    delete_pool,
    make_pool,
    parameters,
)
from tests.ceph.waiting import settled
from tests.csi.scene import MIB, block_capability, of_volume, refused, requirement, segments
from tools.ceph.cluster import CephCluster

from zonewise.csi.errors import Code
from zonewise.storage.identifiers import StoredKind
from zonewise.storage.journal import EntryState

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

POOL = "moved"
OTHER = "moved-on"
DEVICE = block_capability()
LOST = (Code.INTERNAL, Code.FAILED_PRECONDITION, Code.RESOURCE_EXHAUSTED)
IN_A = requirement([segments("a")], [segments("a")])


def rename(ceph: CephCluster, before: str, after: str) -> None:
    """Rename a pool."""
    ceph.command("osd pool rename", srcpool=before, destpool=after)


def named(pool: str = POOL, **more: str) -> dict[str, str]:
    """A class with that pool in zone a."""
    return {k: v.replace("rbd-a", pool) for k, v in parameters(**more).items()}


@pytest.fixture
def pool(ceph: CephCluster) -> Iterator[CephCluster]:
    """The cluster with one more pool in zone a."""
    make_pool(ceph, POOL)
    yield ceph
    for name in (POOL, OTHER):
        delete_pool(ceph, name)


@pytest.fixture
def caller(pool: CephCluster, tmp_path: Path) -> Iterator[CephCaller]:
    """A driver in zone a; nothing is reserved at the end."""
    with calling(pool, tmp_path) as caller:
        yield caller
        for stored in StoredKind:
            assert caller.storage.journal.list_page(stored).entries == ()


async def create_volume(caller: CephCaller, name: str) -> str:
    """Create a volume in the pool of the test."""
    volume = await settled(
        partial(caller.create, name, capability=DEVICE, topology=IN_A, parameters=named())
    )
    assert volume.volume_context["pool"] == POOL
    return str(volume.volume_id)


def checked(ceph: CephCluster, folder: Path) -> tuple[int, list[dict[str, str]], int]:
    """Exit code, moved pools and number of missing images of ``zonewise csi check``."""
    folder.mkdir(exist_ok=True)
    program = CephProgram(folder)
    program.config.write_text(config(ceph))
    code, report = program.check()
    return code, report["pools"], len(report["missing"])


async def test_a_renamed_pool(pool: CephCluster, caller: CephCaller, tmp_path: Path) -> None:
    """Volumes of a renamed pool are found by its new name, grow, are copied, staged and deleted."""
    id = await create_volume(caller, "pvc-1")
    rename(pool, POOL, OTHER)
    assert await asyncio.to_thread(checked, pool, tmp_path / "check") == (
        1,
        [{"pool": POOL, "is": f"called {OTHER} now"}],
        0,
    )
    # A driver that starts now has never seen the old name, the running one has.
    with calling(pool, tmp_path / "fresh") as fresh:
        for driver in (fresh, caller):
            assert await driver.volumes() == [id]
            await settled(partial(driver.stage, id, DEVICE))
            await driver.publish(id, DEVICE)
            await driver.unpublish(id)
            await driver.unstage(id)
        grown = await fresh.expand(id, 24 * MIB)
        assert grown.capacity_bytes == 24 * MIB
        snapshot = await settled(partial(fresh.snapshot, "snap-1", id))
        copy = await settled(
            partial(
                fresh.create,
                "pvc-2",
                capability=DEVICE,
                topology=IN_A,
                parameters=named(OTHER),
                source=of_volume(id),
                size=24 * MIB,
            )
        )
        assert copy.volume_context["pool"] == OTHER
        # The class still has the old name: nothing new is made, nothing is reserved.
        new = fresh.create("pvc-3", capability=DEVICE, topology=IN_A, parameters=named())
        assert await refused(new) is Code.RESOURCE_EXHAUSTED
        await settled(partial(fresh.delete_snapshot, snapshot.snapshot_id))
        for volume in (copy.volume_id, id):
            await settled(partial(fresh.delete, volume))
        assert fresh.names() == []


async def test_a_new_pool_with_the_old_name(
    pool: CephCluster, caller: CephCaller, tmp_path: Path
) -> None:
    """A new pool with the former name of a renamed one is not confused with it."""
    id = await create_volume(caller, "pvc-1")
    rename(pool, POOL, OTHER)
    make_pool(pool, POOL)
    with calling(pool, tmp_path / "fresh") as fresh:
        await settled(partial(fresh.delete, id))
        assert fresh.names() == []
        await settled(partial(fresh.delete, await create_volume(fresh, "pvc-1")))


async def test_a_deleted_pool(pool: CephCluster, caller: CephCaller, tmp_path: Path) -> None:
    """Volumes of a deleted pool are lost: calls fail without hanging, and they can be deleted."""
    ids = [await create_volume(caller, f"pvc-{number}") for number in range(3)]
    recorded = caller.storage.journal.list_page(StoredKind.VOLUME).entries
    assert {entry.state for entry in recorded} == {EntryState.CREATED}
    delete_pool(pool, POOL)
    report = await asyncio.to_thread(checked, pool, tmp_path / "check")
    assert report == (1, [{"pool": POOL, "is": "gone"}], 3)
    with calling(pool, tmp_path / "fresh") as fresh:
        request: Any = {"capability": DEVICE, "topology": IN_A, "parameters": named()}
        for number, (driver, id) in enumerate(((caller, ids[0]), (fresh, ids[1]))):
            again = driver.create(f"pvc-{number}", **request)
            assert await refused(again) is Code.INTERNAL
            assert await refused(driver.stage(id, DEVICE)) is Code.INTERNAL
            # Whether the pool or only the image is missed first depends on the age of Ceph's maps.
            copy = driver.create("copy", source=of_volume(id), **request)
            assert await refused(copy) in LOST
            assert await refused(driver.snapshot("snap", id)) in LOST
            assert await refused(driver.expand(id, 32 * MIB)) in LOST
            await driver.unstage(id)
            await driver.delete(id)
        assert await fresh.volumes() == [ids[2]]
        # Created again, it is another pool, without the old volumes.
        make_pool(pool, POOL)
        await asyncio.to_thread(pool.wait, "pools", lambda: POOL in caller.storage.backend.pools())
        await fresh.delete(ids[2])
        await settled(partial(caller.delete, await create_volume(caller, "pvc-1")))


async def test_a_pool_deleted_under_staged_volumes(
    pool: CephCluster, caller: CephCaller, tmp_path: Path
) -> None:
    """When the pool of staged volumes is deleted nothing hangs: they cannot be staged elsewhere,
    and are unstaged and deleted.
    """
    volume = await settled(partial(caller.create, "pvc-1", topology=IN_A, parameters=named()))
    device, staging, target = (
        await create_volume(caller, "pvc-2"),
        tmp_path / "two",
        tmp_path / "dev",
    )
    await caller.stage(volume.volume_id)
    (await caller.publish(volume.volume_id) / "marker").write_text("lost")
    await caller.stage(device, DEVICE, staging)
    await caller.publish(device, DEVICE, staging=staging, target=target)
    delete_pool(pool, POOL)
    with calling(pool, tmp_path / "fresh", "b") as fresh:
        for id, capability in ((volume.volume_id, None), (device, DEVICE)):
            assert await refused(fresh.stage(id, capability)) is Code.INTERNAL
    await caller.unpublish(volume.volume_id)
    await caller.unpublish(device, target)
    await caller.unstage(volume.volume_id)
    await caller.unstage(device, staging)
    for id in (volume.volume_id, device):
        await caller.delete(id)


async def test_a_file_systems_pool(ceph: CephCluster, tmp_path: Path) -> None:
    """Volumes in a deleted pool of a file system are lost, though they are still listed; they are
    unstaged and deleted.
    """
    ceph.pool(POOL, "zone-a", application="cephfs")
    ceph.command("fs add_data_pool", fs_name="files", pool=POOL)
    ceph.wait("numbers", ceph.counted)
    given = {key: value.replace("fs-a", POOL) for key, value in parameters("fs").items()}
    with calling(ceph, tmp_path, kind="fs") as caller:
        create = partial(caller.create, topology=IN_A, parameters=given)
        ids = [(await settled(partial(create, name))).volume_id for name in ("pvc-1", "pvc-2")]
        snapshot = await settled(partial(caller.snapshot, "snap-1", ids[1]))
        await caller.stage(ids[0])
        (await caller.publish(ids[0]) / "marker").write_text("lost")
        # Ceph does not delete a pool of a file system: it must be taken out of it first.
        with pytest.raises(RuntimeError, match="in use by CephFS"):
            delete_pool(ceph, POOL)
        ceph.command("fs rm_data_pool", fs_name="files", pool=POOL)
        delete_pool(ceph, POOL)
        caller.storage.ceph.wait_for_newest_map()  # the driver would learn of it later
        assert await refused(create("pvc-1")) is Code.INTERNAL
        assert await refused(create("pvc-3")) in (Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED)
        assert await refused(caller.snapshot("snap-2", ids[0])) in LOST
        assert await refused(caller.expand(ids[0], 32 * MIB)) in LOST
        assert await refused(caller.stage(ids[1], staging=tmp_path / "two")) is Code.INTERNAL
        caller.storage.backend._states.invalidate()
        assert caller.storage.check_pools(())["pools"] == [{"pool": POOL, "is": "gone"}]
        await caller.unpublish(ids[0])
        await caller.unstage(ids[0])
        await caller.delete_snapshot(snapshot.snapshot_id)
        for id in ids:
            await settled(partial(caller.delete, id))
        assert caller.names() == []


async def test_a_journals_pool(pool: CephCluster, tmp_path: Path) -> None:
    """A journal is found under its pool's new name, once; after a deletion a new one begins."""
    class_ = {**parameters(), "pool": POOL}
    with calling(pool, tmp_path / "one") as caller:
        create = partial(caller.create, capability=DEVICE, topology=IN_A)
        id = (await settled(partial(create, "pvc-1", parameters=class_))).volume_id
        rename(pool, POOL, OTHER)
        with calling(pool, tmp_path / "two") as fresh:
            assert await fresh.volumes() == [id]
            old = fresh.create("pvc-3", capability=DEVICE, topology=IN_A, parameters=class_)
            assert await refused(old) is Code.INVALID_ARGUMENT
        second = await settled(partial(create, "pvc-2", parameters={**class_, "pool": OTHER}))
        assert sorted(await caller.volumes()) == sorted([id, second.volume_id])
        for volume_id in (id, second.volume_id):
            await settled(partial(caller.delete, volume_id))
        delete_pool(pool, OTHER)
        make_pool(pool, POOL)
        third = await settled(partial(create, "pvc-4", parameters=class_))
        assert await caller.volumes() == [third.volume_id]
        await settled(partial(caller.delete, third.volume_id))
        assert caller.names() == []
