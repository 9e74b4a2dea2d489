"""Volumes as CephFS subvolumes, on a real Ceph: placement, layout, quota, copies, the node."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.ceph.scene import CephCaller, CephFsProgram, calling, config, parameters
from tests.ceph.waiting import settled, until
from tests.csi.scene import (
    MIB,
    Mode,
    block_capability,
    homes,
    mount_capability,
    of_snapshot,
    of_volume,
    refused,
    requirement,
    running,
    segments,
)
from tools.ceph.cluster import CephCluster

from zonewise.csi.errors import Code
from zonewise.storage.identifiers import StoredKind

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

SHARED = mount_capability(Mode.MULTI_NODE_MULTI_WRITER)


@pytest.fixture
def caller(ceph: CephCluster, tmp_path: Path) -> Iterator[CephCaller]:
    """A driver in zone a; its volumes are gone at the end."""
    with calling(ceph, tmp_path, kind="fs") as caller:
        yield caller
        assert caller.names() == []


def info(ceph: CephCluster, id: str) -> dict[str, Any]:
    """What Ceph's manager reports about a volume."""
    details: dict[str, Any] = ceph.manager(
        "fs subvolume info",
        vol_name="files",
        group_name="zonewise",
        sub_name=f"zw-vol-{id.split('-')[1]}",
    )
    return details


def in_zone(zone: str) -> Any:
    """The requirement of a single zone."""
    return requirement([segments(zone)], [segments(zone)])


async def test_create_use_and_delete(ceph: CephCluster, caller: CephCaller) -> None:
    """A volume has the pool of its zone as layout and its size as quota; pods see both."""
    topology = requirement([segments("a"), segments("b")], [segments("b"), segments("a")])
    volume = await caller.create("pvc-1", topology=topology, capability=SHARED)
    assert (
        info(ceph, volume.volume_id)["data_pool"],
        info(ceph, volume.volume_id)["bytes_quota"],
    ) == (
        "fs-b",
        16 * MIB,
    )
    assert homes(volume) == [segments("b")]
    await caller.stage(volume.volume_id, SHARED)
    target = await caller.publish(volume.volume_id, SHARED)
    (target / "marker").write_text("here")
    (bytes_,) = await caller.stats(volume.volume_id)
    assert bytes_.total == 16 * MIB
    with pytest.raises(OSError, match="quota"):
        fill(target / "large", 64 * MIB)
    (target / "large").unlink()
    assert await refused(caller.delete(volume.volume_id)) is Code.FAILED_PRECONDITION
    grown = await caller.expand(volume.volume_id, 128 * MIB)
    assert (grown.capacity_bytes, grown.node_expansion_required) == (128 * MIB, False)
    await caller.node_expand(volume.volume_id)
    fill(target / "large", 64 * MIB)
    await caller.unpublish(volume.volume_id)
    await caller.unstage(volume.volume_id)
    with calling(ceph, caller.folder / "other", zone="c", kind="fs") as other:
        await other.stage(volume.volume_id, SHARED)
        await other.publish(volume.volume_id, SHARED)
        assert (other.target / "marker").read_text() == "here"
        await other.unpublish(volume.volume_id)
        await other.unstage(volume.volume_id)
    await caller.delete(volume.volume_id)
    await caller.delete(volume.volume_id)
    assert await caller.volumes() == []


def fill(path: Path, size: int) -> None:
    """Write a file, which fails at the quota; a client notices the quota a little late."""
    with path.open("wb") as file:
        for _ in range(size // MIB):
            file.write(b"x" * MIB)
            file.flush()
            os.fsync(file.fileno())


async def test_a_repeated_create_does_not_move_the_layout(
    ceph: CephCluster, caller: CephCaller
) -> None:
    """A create that is repeated with another preference gives the first pool; with another class it
    fails.
    """
    everywhere = [segments(zone) for zone in "abc"]
    volume = await caller.create("pvc-1", topology=requirement(everywhere, [segments("a")]))
    again = await caller.create("pvc-1", topology=requirement(everywhere, [segments("c")]))
    assert again.volume_id == volume.volume_id
    other = {
        "pool": "journal",
        "topologyConstrainedPools": parameters("fs")["topologyConstrainedPools"].replace(
            "fs-a", "fs-data"
        ),
    }
    assert await refused(caller.create("pvc-1", parameters=other)) is Code.ALREADY_EXISTS
    (entry,) = caller.storage.journal.list_page(StoredKind.VOLUME).entries
    assert caller.storage.backend.make(entry, None) is False
    assert info(ceph, volume.volume_id)["data_pool"] == "fs-a"
    await caller.delete(volume.volume_id)


async def test_a_layout_that_was_moved_is_reported(ceph: CephCluster, tmp_path: Path) -> None:
    """If a layout is changed from outside, check and a repeated create report it."""
    program = CephFsProgram(tmp_path)
    program.config.write_text(config(ceph))
    async with running(program) as plain:
        caller = CephCaller(plain.client, tmp_path)
        caller.kind = "fs"
        volume = await caller.create("pvc-1", topology=in_zone("a"))
        assert program.check()[0] == 0
        name = f"zw-vol-{volume.volume_id.split('-')[1]}"
        where = {"vol_name": "files", "group_name": "zonewise", "sub_name": name}
        ceph.manager("fs subvolume create", **where, pool_layout="fs-b", size=16 * MIB)
        code, report = program.check()
        assert (code, len(report["orphans"]), len(report["missing"])) == (1, 1, 1)
        assert await refused(caller.create("pvc-1", topology=in_zone("a"))) is Code.INTERNAL
        await caller.delete(volume.volume_id)
        assert program.check()[0] == 0


async def test_copies(caller: CephCaller) -> None:
    """A snapshot and copies keep what was written before them, and outlive their source."""
    original = await caller.create("pvc-1")
    await caller.stage(original.volume_id)
    target = await caller.publish(original.volume_id)
    (target / "marker").write_text("before")
    await caller.unpublish(original.volume_id)
    await caller.unstage(original.volume_id)
    snapshot = await caller.snapshot("snap-1", original.volume_id)
    assert (await caller.snapshot("snap-1", original.volume_id)).snapshot_id == snapshot.snapshot_id
    clone = await settled(lambda: caller.create("pvc-2", source=of_volume(original.volume_id)))
    await caller.delete(original.volume_id)
    restored = await settled(
        lambda: caller.create("pvc-3", source=of_snapshot(snapshot.snapshot_id), size=32 * MIB)
    )
    assert restored.capacity_bytes == 32 * MIB
    await settled(lambda: caller.delete_snapshot(snapshot.snapshot_id))
    for copy in (clone, restored):
        await caller.stage(copy.volume_id)
        await caller.publish(copy.volume_id)
        assert (target / "marker").read_text() == "before"
        await caller.unpublish(copy.volume_id)
        await caller.unstage(copy.volume_id)
        await caller.delete(copy.volume_id)


async def test_a_copy_survives_its_sources_zone(ceph: CephCluster, caller: CephCaller) -> None:
    """A restore into another zone reads with its source's zone stopped."""
    given = parameters("fs", crossDomain="copy")
    original = await caller.create("pvc-1", topology=in_zone("b"), parameters=given)
    await caller.stage(original.volume_id)
    target = await caller.publish(original.volume_id)
    (target / "marker").write_text("b" * 4096)
    await caller.unpublish(original.volume_id)
    await caller.unstage(original.volume_id)
    snapshot = await caller.snapshot("snap-1", original.volume_id)
    near = partial(caller.create, "pvc-2", source=of_snapshot(snapshot.snapshot_id))
    assert await refused(near(topology=in_zone("c"))) is Code.RESOURCE_EXHAUSTED
    copy = await settled(lambda: near(topology=in_zone("c"), parameters=given))
    assert copy.volume_context["pool"] == "fs-c"
    ceph.signal("osd.1", signal.SIGSTOP)
    try:
        await until(lambda: ceph.up() == 2)
        await settled(lambda: caller.stage(copy.volume_id))
        await caller.publish(copy.volume_id)
        assert (target / "marker").read_text() == "b" * 4096
        await caller.unpublish(copy.volume_id)
        await caller.unstage(copy.volume_id)
    finally:
        ceph.signal("osd.1", signal.SIGCONT)
        await until(lambda: ceph.up() == 3)
    for remove, id in (
        (caller.delete, copy.volume_id),
        (caller.delete_snapshot, snapshot.snapshot_id),
        (caller.delete, original.volume_id),
    ):
        await settled(partial(remove, id))


async def test_a_client_that_dies(ceph: CephCluster, caller: CephCaller) -> None:
    """When a volume's ceph-fuse dies, stats fail; staged and published again it has its data."""
    volume = await caller.create("pvc-1")
    await caller.stage(volume.volume_id)
    target = await caller.publish(volume.volume_id)
    (target / "marker").write_text("here")
    fd = os.open(target / "marker", os.O_RDONLY)
    os.fsync(fd)
    os.kill(client_of(volume.volume_id), signal.SIGKILL)
    await until(lambda: is_dead(target))
    assert await refused(caller.stats(volume.volume_id)) is Code.INTERNAL
    await caller.stage(volume.volume_id)
    await caller.publish(volume.volume_id)
    with suppress(OSError):
        os.close(fd)
    ceph.evict(volume.volume_id.split("-")[1])
    assert await asyncio.to_thread((target / "marker").read_text) == "here"
    await caller.unpublish(volume.volume_id)
    await caller.unstage(volume.volume_id)
    await caller.delete(volume.volume_id)


def client_of(id: str) -> int:
    """The process that shows a volume."""
    uuid = id.split("-")[1].encode()
    for process in Path("/proc").glob("[0-9]*"):
        line = (process / "cmdline").read_bytes().split(b"\0")
        if line[0] == b"ceph-fuse" and any(word.endswith(uuid) for word in line):
            return int(process.name)
    raise AssertionError("there is no such client")


def is_dead(path: Path) -> bool:
    """Whether a mount no longer answers."""
    try:
        path.stat()
    except OSError:
        return True
    return False


async def test_what_a_class_must_say(caller: CephCaller) -> None:
    """A class of another file system, another kind of pool or of devices is refused."""
    for given in (
        {"topologyConstrainedPools": parameters("fs")["topologyConstrainedPools"]},
        parameters("fs", fsName="another"),
        parameters("fs", dataPool="fs-a"),
        parameters("rbd"),
    ):
        assert await refused(caller.create("pvc-1", parameters=given)) is Code.INVALID_ARGUMENT
    for capability in (block_capability(), mount_capability(fs_type="ext4")):
        assert await refused(caller.create("pvc-1", capability=capability)) is Code.INVALID_ARGUMENT
    volume = await caller.create("pvc-1", parameters=parameters("fs", fsName="files"))
    await caller.delete(volume.volume_id)
