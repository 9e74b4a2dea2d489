"""Volumes on a node, as root: devices, file systems and folders at paths, nothing left behind."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from tests.csi.scene import (
    MIB,
    Caller,
    Mode,
    block_capability,
    calling,
    config,
    driver,
    mount_capability,
    of_snapshot,
    of_volume,
    pool,
    refused,
)

from zonewise.csi.backends.folders import copies, fencing, filesystems, loops, mounts
from zonewise.csi.errors import Code, CsiError
from zonewise.csi.node_domain import FixedDomain
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport import methods
from zonewise.csi.transport.client import InProcessClient

XFS = 300 * MIB
SHARED = mount_capability(Mode.MULTI_NODE_MULTI_WRITER)


@pytest.fixture
def caller(tmp_path: Path) -> Iterator[Caller]:
    with calling(tmp_path, config(pool("pool-a", "a", "8Gi"))) as caller:
        yield caller


async def used(caller: Caller, id: str, capability: csi.VolumeCapability | None = None) -> Path:
    """Stage and publish a volume at the default paths."""
    await caller.stage(id, capability)
    return await caller.publish(id, capability)


async def released(caller: Caller, id: str) -> None:
    """Unpublish and unstage a volume."""
    await caller.unpublish(id)
    await caller.unstage(id)


def image(caller: Caller) -> Path:
    """The only image."""
    (path,) = (caller.folder / "data" / "pools").glob("*/vol-*")
    return path


@pytest.mark.system
@pytest.mark.parametrize(
    ("capability", "size", "kind"),
    [
        (mount_capability(), 16 * MIB, "ext4"),
        (mount_capability(fs_type="ext4", flags=["noatime"]), 16 * MIB, "ext4"),
        (mount_capability(fs_type="xfs"), 16 * MIB, "xfs"),
        (SHARED, 16 * MIB, ""),
    ],
)
async def test_what_is_written_survives_a_move_to_other_paths(
    caller: Caller, capability: csi.VolumeCapability, size: int, kind: str
) -> None:
    """A file written by one pod is read by the next, with every kind of volume."""
    volume = await caller.create("v", size=size, capability=capability)
    target = await used(caller, volume.volume_id, capability)
    mount = mounts.at(target)
    assert mount is not None
    assert not kind or mount.file_system == kind
    (target / "marker").write_text("here")
    await released(caller, volume.volume_id)
    assert not target.exists()
    elsewhere, other = caller.folder / "s2", caller.folder / "t2"
    await caller.stage(volume.volume_id, capability, elsewhere)
    await caller.publish(volume.volume_id, capability, target=other, staging=elsewhere)
    assert (other / "marker").read_text() == "here"
    await caller.unpublish(volume.volume_id, other)
    await caller.unstage(volume.volume_id, elsewhere)
    await caller.delete(volume.volume_id)


@pytest.mark.system
async def test_a_block_volume_is_a_device_at_the_path(caller: Caller) -> None:
    """The path is a block device of the right size, and what is written to it stays."""
    capability = block_capability()
    volume = await caller.create("v", capability=capability)
    target = await used(caller, volume.volume_id, capability)
    assert stat.S_ISBLK(target.stat().st_mode)
    with target.open("r+b", buffering=0) as device:
        assert device.seek(0, os.SEEK_END) == 16 * MIB
        device.seek(0)
        device.write(b"x" * 4096)
        os.fsync(device.fileno())
    (usage,) = await caller.stats(volume.volume_id)
    assert usage.total == 16 * MIB
    await released(caller, volume.volume_id)
    with image(caller).open("rb") as file:
        assert file.read(4096) == b"x" * 4096
    await caller.delete(volume.volume_id)


@pytest.mark.system
async def test_every_node_call_may_be_repeated(caller: Caller) -> None:
    """Stage, publish, unpublish and unstage can be repeated."""
    for capability in (mount_capability(), block_capability(), SHARED):
        name = capability.WhichOneof("access_type") + str(capability.access_mode.mode)
        volume = await caller.create(name, capability=capability)
        for _ in range(2):
            await caller.stage(volume.volume_id, capability)
        for _ in range(2):
            await caller.publish(volume.volume_id, capability)
        assert len([mount for mount in mounts.read_table() if mount.target == caller.target]) == 1
        for _ in range(2):
            await caller.unpublish(volume.volume_id)
        for _ in range(2):
            await caller.unstage(volume.volume_id)
        await caller.delete(volume.volume_id)


@pytest.mark.system
async def test_a_volume_in_use_is_not_deleted(caller: Caller) -> None:
    """Deleting a staged volume is FAILED_PRECONDITION; afterwards it can be deleted."""
    for number, capability in enumerate((mount_capability(), block_capability(), SHARED)):
        volume = await caller.create(f"v{number}", capability=capability)
        await caller.stage(volume.volume_id, capability)
        assert await refused(caller.delete(volume.volume_id)) is Code.FAILED_PRECONDITION
        await caller.unstage(volume.volume_id)
        await caller.delete(volume.volume_id)


@contextmanager
def copied_mounts() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a mount namespace of its own, as ``ip netns exec`` makes them."""
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec cat"]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n", "everything is mounted there, too"
        yield process


@pytest.mark.system
async def test_a_volume_that_is_mounted_elsewhere_is_not_released(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unstaging is ABORTED while another mount namespace has the volume; then it can be unstaged
    and deleted.
    """
    monkeypatch.setattr(loops, "RELEASE_SECONDS", 0.0)
    volume = await caller.create("v")
    await used(caller, volume.volume_id)
    with copied_mounts():
        await caller.unpublish(volume.volume_id)
        assert await refused(caller.unstage(volume.volume_id)) is Code.ABORTED
        assert await refused(caller.delete(volume.volume_id)) is Code.FAILED_PRECONDITION
        assert image(caller).exists()
    monkeypatch.undo()
    await caller.unstage(volume.volume_id)
    await caller.delete(volume.volume_id)


@pytest.mark.system
async def test_a_volume_that_is_still_in_use_gets_no_second_device(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume that is staged again while in use has the same device; two file systems on one image
    would destroy it.
    """
    monkeypatch.setattr(loops, "RELEASE_SECONDS", 0.0)
    volume = await caller.create("v")
    target = await used(caller, volume.volume_id)
    (target / "first").write_text("1")
    with copied_mounts():
        await caller.unpublish(volume.volume_id)
        assert await refused(caller.unstage(volume.volume_id)) is Code.ABORTED
        await used(caller, volume.volume_id)
        assert len(loops.find(image(caller))) == 1
        (target / "second").write_text("2")
    assert sorted(path.name for path in target.iterdir()) == ["first", "lost+found", "second"]
    monkeypatch.undo()
    await released(caller, volume.volume_id)
    assert loops.find(image(caller)) == []
    await caller.delete(volume.volume_id)


@pytest.mark.system
async def test_a_device_that_is_being_detached_is_not_published(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that is being detached is not staged: it would vanish from its pod when the last
    user closes it.
    """
    monkeypatch.setattr(loops, "RELEASE_SECONDS", 0.0)
    capability = block_capability()
    volume = await caller.create("v", capability=capability)
    target = await used(caller, volume.volume_id, capability)
    (device,) = loops.find(image(caller))
    with device.open("rb"):
        await caller.unpublish(volume.volume_id)
        assert await refused(caller.unstage(volume.volume_id)) is Code.ABORTED
        assert await refused(caller.stage(volume.volume_id, capability)) is Code.ABORTED
    monkeypatch.undo()
    await used(caller, volume.volume_id, capability)
    target.write_bytes(b"x" * 4096)
    assert not any(loops.is_autoclear(device) for device in loops.find(image(caller)))
    await released(caller, volume.volume_id)
    await caller.delete(volume.volume_id)


@pytest.mark.system
async def test_unstaging_waits_for_a_short_lived_mount_namespace(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unstaging ends when the other namespace does, and the volume can be deleted at once."""
    volume = await caller.create("v")
    await used(caller, volume.volume_id)
    with copied_mounts() as process:
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if process.poll() is None:
                process.communicate()

        monkeypatch.setattr(time, "sleep", pause)
        await released(caller, volume.volume_id)
        monkeypatch.undo()
    assert pauses
    await caller.delete(volume.volume_id)


@pytest.mark.system
async def test_a_read_only_publish_cannot_be_written(caller: Caller) -> None:
    """The kernel refuses writes through the read-only path, and only there."""
    volume = await caller.create("v")
    await caller.stage(volume.volume_id)
    reading = await caller.publish(volume.volume_id, target=caller.folder / "r", readonly=True)
    writing = await caller.publish(volume.volume_id, target=caller.folder / "w")
    (writing / "file").write_text("x")
    assert (reading / "file").read_text() == "x"
    with pytest.raises(OSError, match="Read-only"):
        (reading / "other").touch()
    code = await refused(caller.publish(volume.volume_id, target=reading))
    assert code is Code.ALREADY_EXISTS
    for target in (reading, writing):
        await caller.unpublish(volume.volume_id, target)
    await caller.unstage(volume.volume_id)


@pytest.mark.system
async def test_a_single_writer_has_one_path(caller: Caller) -> None:
    """A second target of a SINGLE_NODE_SINGLE_WRITER volume is refused."""
    for number, make in enumerate((mount_capability, block_capability)):
        capability = make(Mode.SINGLE_NODE_SINGLE_WRITER)
        volume = await caller.create(f"v{number}", capability=capability)
        await used(caller, volume.volume_id, capability)
        second = caller.publish(volume.volume_id, capability, target=caller.folder / "second")
        assert await refused(second) is Code.FAILED_PRECONDITION
        await released(caller, volume.volume_id)


@pytest.mark.system
async def test_two_staging_paths_never_mount_one_image_twice(caller: Caller) -> None:
    """On one machine a volume that is staged for one node is not mounted for another."""
    volume = await caller.create("v")
    await caller.stage(volume.volume_id)
    second = caller.stage(volume.volume_id, staging=caller.folder / "other")
    assert await refused(second) is Code.FAILED_PRECONDITION
    await caller.unstage(volume.volume_id)


async def test_publishing_needs_staging(caller: Caller) -> None:
    """A volume that is not staged at the path is FAILED_PRECONDITION, and no path is made."""
    for number, capability in enumerate((mount_capability(), block_capability())):
        volume = await caller.create(f"v{number}", capability=capability)
        code = await refused(caller.publish(volume.volume_id, capability))
        assert code is Code.FAILED_PRECONDITION
    assert not caller.target.exists()


async def test_what_is_not_ours_is_left_alone(caller: Caller) -> None:
    """Files at a target that is not mounted, and unknown data on an image, are not destroyed."""
    volume = await caller.create("v")
    caller.target.mkdir()
    (caller.target / "precious").write_text("x")
    assert await refused(caller.unpublish(volume.volume_id)) is Code.FAILED_PRECONDITION
    with image(caller).open("r+b") as file:
        file.write(b"somebody's data")
    assert await refused(caller.stage(volume.volume_id)) is Code.FAILED_PRECONDITION
    assert image(caller).read_bytes()[:15] == b"somebody's data"
    assert (caller.target / "precious").read_text() == "x"


@pytest.mark.system
async def test_a_killed_mkfs_leaves_an_empty_image(caller: Caller) -> None:
    """What a killed stage left beside the image is replaced, and deleted with the image."""
    volume = await caller.create("v")
    half = image(caller)
    half.with_name(half.name + ".mkfs").write_bytes(b"half a file system")
    target = await used(caller, volume.volume_id)
    assert mounts.at(target) is not None
    assert [path.name for path in half.parent.iterdir()] == [half.name]
    await released(caller, volume.volume_id)
    half.with_name(half.name + ".mkfs").write_bytes(b"again")
    await caller.delete(volume.volume_id)
    assert list(half.parent.iterdir()) == []


@pytest.mark.system
@pytest.mark.parametrize(
    ("capability", "size"),
    [
        (mount_capability(fs_type="ext4"), 64 * MIB),
        (mount_capability(fs_type="xfs"), XFS),
        (block_capability(), 64 * MIB),
    ],
)
async def test_a_published_volume_grows(
    caller: Caller, capability: csi.VolumeCapability, size: int
) -> None:
    """Controller, then node: device and file system are larger, and the files are there."""
    volume = await caller.create("v", size=size, capability=capability)
    target = await used(caller, volume.volume_id, capability)
    block = capability.HasField("block")
    if not block:
        (target / "file").write_text("x")
    answer = await caller.expand(volume.volume_id, 2 * size)
    assert (answer.capacity_bytes, answer.node_expansion_required) == (2 * size, True)
    assert await caller.node_expand(volume.volume_id) == 2 * size
    usage = (await caller.stats(volume.volume_id))[0]
    assert usage.total == 2 * size if block else usage.total > 1.6 * size
    if not block:
        assert (target / "file").read_text() == "x"
    assert await caller.node_expand(volume.volume_id) == 2 * size
    await released(caller, volume.volume_id)


@pytest.mark.system
async def test_a_file_system_that_is_in_use_is_not_unmounted_to_grow(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If ext4 cannot grow while mounted, with an open file it grows at the next stage."""
    monkeypatch.setattr(filesystems, "grow_mounted", lambda *_: False)
    volume = await caller.create("v", size=64 * MIB)
    target = await used(caller, volume.volume_id)
    before = (await caller.stats(volume.volume_id))[0].total
    await caller.expand(volume.volume_id, 128 * MIB)
    with (target / "open").open("w") as file:
        code = await refused(caller.node_expand(volume.volume_id))
        assert code is Code.FAILED_PRECONDITION
        file.write("still here")
    assert (target / "open").read_text() == "still here"
    assert (await caller.stats(volume.volume_id))[0].total == before
    await released(caller, volume.volume_id)
    await used(caller, volume.volume_id)
    assert (await caller.stats(volume.volume_id))[0].total > 1.6 * before
    await released(caller, volume.volume_id)


@pytest.mark.system
@pytest.mark.parametrize(("fs_type", "size"), [("ext4", 32 * MIB), ("xfs", XFS)])
async def test_copies_of_a_mounted_volume_mount_beside_it(
    caller: Caller, fs_type: str, size: int
) -> None:
    """Snapshot and clone are taken under writers, restored larger, and used at the same time."""
    capability = mount_capability(fs_type=fs_type)
    volume = await caller.create("v", size=size, capability=capability)
    target = await used(caller, volume.volume_id, capability)
    (target / "file").write_text("x" * 1000)
    snapshot = await caller.snapshot("s", volume.volume_id)
    restored = await caller.create(
        "r", size=2 * size, capability=capability, source=of_snapshot(snapshot.snapshot_id)
    )
    clone = await caller.create(
        "c", size=size, capability=mount_capability(), source=of_volume(volume.volume_id)
    )
    for number, (copy, least) in enumerate(((restored, 1.6 * size), (clone, 0.7 * size))):
        staging, path = caller.folder / f"s{number}", caller.folder / f"t{number}"
        await caller.stage(copy.volume_id, staging=staging)
        await caller.publish(copy.volume_id, target=path, staging=staging)
        assert (path / "file").read_text() == "x" * 1000
        assert (await caller.stats(copy.volume_id, path))[0].total > least
        await caller.unpublish(copy.volume_id, path)
        await caller.unstage(copy.volume_id, staging)
    (target / "more").write_text("it is not frozen any more")
    await released(caller, volume.volume_id)


async def test_a_copy_is_not_smaller_than_its_source(caller: Caller) -> None:
    """A clone smaller than its source, or a limit below what the file system needs, is
    OUT_OF_RANGE.
    """
    volume = await caller.create("v", size=32 * MIB)
    source = of_volume(volume.volume_id)
    assert await refused(caller.create("c", size=16 * MIB, source=source)) is Code.OUT_OF_RANGE
    small = caller.create(
        "x", size=16 * MIB, limit=32 * MIB, capability=mount_capability(fs_type="xfs")
    )
    assert await refused(small) is Code.OUT_OF_RANGE


def mounted(target: Path) -> list[mounts.Mount]:
    """The mount at a path."""
    mount = mounts.at(target)
    assert mount is not None
    return [mount]


@pytest.mark.system
async def test_a_volume_is_not_unmounted_while_a_copy_holds_its_writers(caller: Caller) -> None:
    """Unpublishing a frozen volume is refused: frozen and unmounted it would be stuck forever,
    since nothing could be thawed.
    """
    volume = await caller.create("v")
    target = await used(caller, volume.volume_id)
    with copies.freeze(mounted(target)):
        assert await refused(caller.unpublish(volume.volume_id)) is Code.FAILED_PRECONDITION
    await released(caller, volume.volume_id)
    assert loops.find(image(caller)) == []
    await caller.delete(volume.volume_id)


@pytest.mark.system
async def test_only_the_given_mount_is_frozen(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a volume was unmounted meanwhile, its path is on the machine's own disk, which is not
    frozen.
    """
    volume = await caller.create("v")
    gone = mounted(await used(caller, volume.volume_id))
    await released(caller, volume.volume_id)
    caller.target.mkdir()
    requests: list[int] = []
    monkeypatch.setattr(fcntl, "ioctl", lambda _, request, *__: requests.append(request))
    with copies.freeze(gone):
        assert requests == []
    assert requests == []


@pytest.mark.system
async def test_a_volume_that_was_left_frozen_and_unmounted_can_be_used_again(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume that a killed controller left frozen, and that was unmounted then, can be used
    again.
    """
    monkeypatch.setattr(loops, "RELEASE_SECONDS", 0.0)
    volume = await caller.create("v")
    target = await used(caller, volume.volume_id)
    (target / "first").write_text("1")
    freeze = ["fsfreeze", "--freeze", str(target)]
    await asyncio.to_thread(subprocess.run, freeze, check=True)
    await caller.unpublish(volume.volume_id)
    assert await refused(caller.unstage(volume.volume_id)) is Code.ABORTED
    monkeypatch.undo()
    await used(caller, volume.volume_id)
    (target / "second").write_text((target / "first").read_text())
    await released(caller, volume.volume_id)
    assert loops.find(image(caller)) == []
    await caller.delete(volume.volume_id)


@pytest.mark.system
async def test_a_frozen_file_system_is_thawed_by_the_next_start(caller: Caller) -> None:
    """After a controller was killed during a copy, its restart lets writers continue."""
    volume = await caller.create("v")
    target = await used(caller, volume.volume_id)
    freeze = copies.freeze(mounted(target))
    freeze.__enter__()
    with driver(caller.folder) as again:
        assert again.calls is not None
        (target / "file").write_text("written")
    freeze.__exit__(None, None, None)
    await released(caller, volume.volume_id)


def is_frozen(target: Path) -> bool:
    """Whether a file system is frozen; leaves it as it is."""
    done = subprocess.run(["fsfreeze", "--freeze", target], check=False, capture_output=True)
    if done.returncode == 0:
        subprocess.run(["fsfreeze", "--unfreeze", target], check=True)
    return done.returncode != 0


@pytest.mark.system
async def test_a_file_system_stays_frozen_until_its_copy_ends(caller: Caller) -> None:
    """A frozen file system is thawed neither by another copy that ends earlier nor by another
    controller that starts.
    """
    volume = await caller.create("v")
    target = await used(caller, volume.volume_id)
    with copies.lock_image(image(caller)), copies.freeze(mounted(target)):
        with copies.freeze(mounted(target)):
            pass
        assert is_frozen(target)
        with driver(caller.folder):
            assert is_frozen(target)
    assert not is_frozen(target)
    await released(caller, volume.volume_id)


@pytest.mark.system
async def test_copies_of_a_mounted_volume_take_turns(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a copy thaws the file system for all, so a second copy is ABORTED meanwhile."""
    monkeypatch.setattr(copies, "LOCK_SECONDS", 0.0)
    volume = await caller.create("v")
    await used(caller, volume.volume_id)
    with copies.lock_image(image(caller)):
        assert await refused(caller.snapshot("s", volume.volume_id)) is Code.ABORTED
    taken = await caller.snapshot("s", volume.volume_id)
    await released(caller, volume.volume_id)
    await caller.delete_snapshot(taken.snapshot_id)


@pytest.mark.system
async def test_stats_and_expand_know_where_a_volume_is(caller: Caller) -> None:
    """Stats and expand are NOT_FOUND for an unknown volume and for a path where it is not."""
    volume = await caller.create("v")
    await used(caller, volume.volume_id)
    assert {usage.unit for usage in await caller.stats(volume.volume_id)} == {1, 2}
    elsewhere = caller.folder
    for call in (caller.stats, caller.node_expand):
        assert await refused(call(volume.volume_id, elsewhere)) is Code.NOT_FOUND
        assert await refused(call("nothing", caller.target)) is Code.NOT_FOUND
        assert await refused(call("", caller.target)) is Code.INVALID_ARGUMENT
    await released(caller, volume.volume_id)


@pytest.mark.system
async def test_devices_are_found_again_after_a_restart(tmp_path: Path) -> None:
    """A node that was killed with a staged device unstages it after its restart."""
    capability = block_capability()
    with driver(tmp_path) as first:
        caller = Caller(InProcessClient(first.calls), tmp_path)
        volume = await caller.create("v", capability=capability)
        await used(caller, volume.volume_id, capability)
    with calling(tmp_path) as caller:
        assert len(loops.find(image(caller))) == 1
        await released(caller, volume.volume_id)
        assert loops.find(image(caller)) == []


@pytest.mark.system
async def test_bad_node_requests_are_refused(caller: Caller) -> None:
    """Missing fields, relative paths and unknown volumes each have their code."""
    volume = await caller.create("v")
    call, id, path = caller.client.call, volume.volume_id, str(caller.target)
    capability = mount_capability()
    stage, publish = csi.NodeStageVolumeRequest, csi.NodePublishVolumeRequest
    for request in (
        stage(staging_target_path=path, volume_capability=capability),
        stage(volume_id=id, volume_capability=capability),
        stage(volume_id=id, staging_target_path=path),
        stage(volume_id=id, staging_target_path="relative", volume_capability=capability),
        stage(volume_id=id, staging_target_path=path, volume_capability=block_capability()),
    ):
        assert await refused(call(methods.NODE_STAGE_VOLUME, request)) is Code.INVALID_ARGUMENT
    unknown = stage(volume_id="x", staging_target_path=path, volume_capability=capability)
    assert await refused(call(methods.NODE_STAGE_VOLUME, unknown)) is Code.NOT_FOUND
    without = publish(volume_id=id, target_path=path, volume_capability=capability)
    code = await refused(call(methods.NODE_PUBLISH_VOLUME, without))
    assert code is Code.FAILED_PRECONDITION
    bad = mount_capability(flags=["no-such-option"])
    assert await refused(caller.stage(id, bad)) is Code.INVALID_ARGUMENT


@pytest.mark.system
async def test_on_a_full_disk_nothing_is_made_and_volumes_can_be_deleted(
    tmp_path: Path,
) -> None:
    """Without a free byte no reservation is left, and a delete frees the room it needs."""
    data = tmp_path / "data"
    data.mkdir()
    mounts.mount(Path("none"), data, "tmpfs", ["size=8m"])
    try:
        with driver(tmp_path, config(pool("pool-a", "a", "1Gi"))) as served:
            caller = Caller(InProcessClient(served.calls), tmp_path)
            volume = await caller.create("v", capability=block_capability())
            before = await caller.free()
            with image(caller).open("r+b", buffering=0) as file, pytest.raises(OSError):
                while True:
                    file.write(os.urandom(1 << 12))
            for _ in range(2):
                assert await refused(caller.create("w")) is Code.RESOURCE_EXHAUSTED
                code = await refused(caller.snapshot("s", volume.volume_id))
                assert code is Code.RESOURCE_EXHAUSTED
            assert (await caller.free(), await caller.volumes()) == (before, [volume.volume_id])
            await caller.delete(volume.volume_id)
            assert not list(data.glob("pools/*/*"))
            await caller.delete((await caller.create("w")).volume_id)
    finally:
        mounts.unmount(data)


@pytest.mark.system
async def test_a_full_disk_leaves_nothing_of_a_copy(tmp_path: Path) -> None:
    """If the disk is full before the pool, a snapshot is RESOURCE_EXHAUSTED and leaves no file and
    no promised bytes.
    """
    data = tmp_path / "data"
    data.mkdir()
    mounts.mount(Path("none"), data, "tmpfs", ["size=8m"])
    try:
        with driver(tmp_path, config(pool("pool-a", "a", "1Gi"))) as served:
            caller = Caller(InProcessClient(served.calls), tmp_path)
            volume = await caller.create("v", capability=block_capability())
            with image(caller).open("r+b") as file:
                file.write(os.urandom(5 * MIB))
            before = await caller.free()
            assert await refused(caller.snapshot("s", volume.volume_id)) is Code.RESOURCE_EXHAUSTED
            assert await caller.free() == before
            assert not list(data.glob("pools/*/snap-*"))
            await caller.delete(volume.volume_id)
    finally:
        mounts.unmount(data)


@pytest.mark.system
async def test_blocks_are_shared_where_the_file_system_can(tmp_path: Path) -> None:
    """On xfs with reflink a clone of a full image takes no second room."""
    disk, data = tmp_path / "disk", tmp_path / "data"
    data.mkdir()
    with disk.open("wb") as file:
        file.truncate(XFS)
    filesystems.make("xfs", disk)
    with loops.attach(disk) as device:
        mounts.mount(device, data, "xfs", [])
    try:
        with driver(tmp_path, config(pool("pool-a", "a", "1Gi"))) as served:
            caller = Caller(InProcessClient(served.calls), tmp_path)
            capability = block_capability()
            volume = await caller.create("v", size=64 * MIB, capability=capability)
            with image(caller).open("r+b") as file:
                file.write(os.urandom(64 * MIB))
                os.fsync(file.fileno())
            free = os.statvfs(data).f_bavail
            await caller.create(
                "c", size=64 * MIB, capability=capability, source=of_volume(volume.volume_id)
            )
            assert (free - os.statvfs(data).f_bavail) * 4096 < 8 * MIB
    finally:
        mounts.unmount(data)


@pytest.mark.system
async def test_what_others_mounted_is_left_alone(caller: Caller, tmp_path: Path) -> None:
    """With a wrong path another program's mount is not unmounted."""
    id = (await caller.create("v")).volume_id
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    mounts.mount(Path("none"), foreign, "tmpfs", ())
    try:
        assert await refused(caller.unpublish(id, foreign)) is Code.FAILED_PRECONDITION
        assert await refused(caller.unstage(id, foreign)) is Code.FAILED_PRECONDITION
        assert mounts.at(foreign) is not None
    finally:
        mounts.unmount(foreign)


@pytest.mark.system
async def test_nothing_is_mounted_through_a_link(caller: Caller, tmp_path: Path) -> None:
    """Nothing is mounted through a link, since the mount would outlive it; files instead of folders
    are refused as well.
    """
    id = (await caller.create("v")).volume_id
    behind = tmp_path / "behind"
    behind.mkdir()
    link, dangling, file = tmp_path / "link", tmp_path / "dangling", tmp_path / "file"
    link.symlink_to(behind)
    dangling.symlink_to(tmp_path / "nowhere")
    file.write_text("mine")
    wrong = (link, dangling, file, file / "below")
    for path in wrong:
        assert await refused(caller.stage(id, staging=path)) is Code.FAILED_PRECONDITION
    long = tmp_path / ("x" * 300)
    assert await refused(caller.stage(id, staging=long)) is Code.INVALID_ARGUMENT
    await caller.stage(id)
    for path in wrong:
        assert await refused(caller.publish(id, target=path)) is Code.FAILED_PRECONDITION
    await caller.unstage(id)
    assert mounts.at(behind) is None
    assert file.read_text() == "mine"


@pytest.mark.parametrize("privileged", [True, False])
async def test_only_links_of_our_own_are_removed(tmp_path: Path, privileged: bool) -> None:
    """A foreign link at a wrong path stays; a link to a volume, also at an old path, is ours."""
    with calling(tmp_path, privileged=privileged) as caller:
        id = (await caller.create("v")).volume_id
        behind, link = tmp_path / "behind", tmp_path / "link"
        behind.mkdir()
        for to in (behind, tmp_path / "nowhere", Path("..", "data"), tmp_path / "data" / ".."):
            link.symlink_to(to)
            for volume in (id, "vol-x"):
                assert await refused(caller.unpublish(volume, link)) is Code.FAILED_PRECONDITION
            assert link.readlink() == to
            link.unlink()
        for to in (Path("/moved", "pools", "pool-a", id), image(caller), Path("/moved", id)):
            link.symlink_to(to)
            await caller.unpublish(id, link)
            assert not link.is_symlink()
        await caller.delete(id)


UNKNOWN = ("vol-x", "somebody's", f"vol-{0:032x}")


@pytest.mark.parametrize("privileged", [True, False])
async def test_an_unknown_id_removes_nothing(tmp_path: Path, privileged: bool) -> None:
    """Unpublishing an unknown volume removes nothing at the path."""
    with calling(tmp_path, privileged=privileged) as caller:
        known = (await caller.create("v")).volume_id
        folder, file, link = tmp_path / "folder", tmp_path / "file", tmp_path / "link"
        folder.mkdir()
        file.touch()
        for id in (*UNKNOWN, known):
            for path in (folder, file):
                await caller.unpublish(id, path)
                assert path.exists()
        for id in UNKNOWN:
            link.symlink_to(image(caller))
            assert await refused(caller.unpublish(id, link)) is Code.FAILED_PRECONDITION
            assert link.is_symlink()
            link.unlink()
        await caller.delete(known)


@pytest.mark.system
@pytest.mark.parametrize("capability", [mount_capability(), SHARED, block_capability()])
async def test_only_the_volume_itself_is_unpublished(
    caller: Caller, capability: csi.VolumeCapability
) -> None:
    """With the id of another volume, or of none, a published volume stays where it is."""
    other = (await caller.create("other", capability=capability)).volume_id
    id = (await caller.create("v", capability=capability)).volume_id
    await used(caller, id, capability)
    for wrong in (*UNKNOWN, other):
        assert await refused(caller.unpublish(wrong)) is Code.FAILED_PRECONDITION
        if capability.HasField("mount"):
            assert await refused(caller.unstage(wrong)) is Code.FAILED_PRECONDITION
    await caller.stats(id)
    await released(caller, id)
    assert not caller.target.exists()


@pytest.mark.system
async def test_a_mount_of_the_pools_own_disk_is_not_ours(caller: Caller, tmp_path: Path) -> None:
    """A foreign mount of the same file system, or of another loop device, stays."""
    id = (await caller.create("v")).volume_id
    foreign, mountpoint = tmp_path / "foreign", tmp_path / "mountpoint"
    foreign.mkdir()
    mountpoint.mkdir()
    mounts.bind(foreign, mountpoint, readonly=False)
    try:
        for wrong in (*UNKNOWN, id):
            assert await refused(caller.unpublish(wrong, mountpoint)) is Code.FAILED_PRECONDITION
            assert await refused(caller.unstage(wrong, mountpoint)) is Code.FAILED_PRECONDITION
        assert mounts.at(mountpoint) is not None
    finally:
        mounts.unmount(mountpoint)
    disk = tmp_path / "disk"
    with disk.open("wb") as file:
        file.truncate(16 * MIB)
    filesystems.make("ext4", disk)
    with loops.attach(disk) as device:
        mounts.mount(device, mountpoint, "ext4", ())
    try:
        for wrong in (*UNKNOWN, id):
            assert await refused(caller.unpublish(wrong, mountpoint)) is Code.FAILED_PRECONDITION
        assert mounts.at(mountpoint) is not None
    finally:
        mounts.unmount(mountpoint)


@pytest.mark.system
@pytest.mark.parametrize("capability", [mount_capability(), SHARED, block_capability()])
async def test_an_own_path_is_removed_also_if_it_is_no_longer_mounted(
    caller: Caller, capability: csi.VolumeCapability
) -> None:
    """After a reboot the empty path remains: only its own volume's unpublish removes it."""
    id = (await caller.create("v", capability=capability)).volume_id
    other = (await caller.create("other", capability=capability)).volume_id
    target = await used(caller, id, capability)
    mounts.unmount(target)
    for wrong in (*UNKNOWN, other):
        await caller.unpublish(wrong)
        assert target.exists()
    await released(caller, id)
    assert not target.exists()


@pytest.mark.system
@pytest.mark.parametrize("where", ["data", "data/pools", "data/pools/pool-a/x", "."])
@pytest.mark.parametrize("capability", [mount_capability(), SHARED, block_capability()])
async def test_nothing_is_mounted_over_the_drivers_own_data(
    caller: Caller, tmp_path: Path, where: str, capability: csi.VolumeCapability
) -> None:
    """Nothing is mounted over the driver's own data, since it would hide all other volumes."""
    path = tmp_path / where
    volume = await caller.create("v", capability=capability)
    if capability.HasField("mount"):
        assert await refused(caller.stage(volume.volume_id, capability, path)) is (
            Code.INVALID_ARGUMENT
        )
    await caller.stage(volume.volume_id, capability)
    with pytest.raises(CsiError, match="own data"):
        await caller.publish(volume.volume_id, capability, target=path)
    await caller.unstage(volume.volume_id)
    await caller.delete(volume.volume_id)


async def test_only_regular_empty_files_are_removed(caller: Caller, tmp_path: Path) -> None:
    """A pipe at a wrong path is not removed: it has no size either, and is not ours."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert await refused(caller.unpublish("vol-x", pipe)) is Code.FAILED_PRECONDITION
    assert pipe.is_fifo()


async def test_impossible_paths(caller: Caller, tmp_path: Path) -> None:
    """A path that is too long is refused; below a file there is nothing to unpublish."""
    volume = await caller.create("v")
    for text in ("/" + "a" * 256, "/a" * 2048):
        for call in (
            caller.stage(volume.volume_id, staging=Path(text)),
            caller.unstage(volume.volume_id, Path(text)),
            caller.unpublish(volume.volume_id, Path(text)),
            caller.stats(volume.volume_id, Path(text)),
        ):
            assert await refused(call) is Code.INVALID_ARGUMENT
    (tmp_path / "file").write_text("x")
    await caller.unpublish(volume.volume_id, tmp_path / "file" / "below")
    await caller.delete(volume.volume_id)


@pytest.mark.system
async def test_a_refused_staging_makes_no_folder(caller: Caller, tmp_path: Path) -> None:
    """Staging that is refused leaves nothing at the path."""
    id = (await caller.create("v")).volume_id
    await caller.stage(id)
    second = tmp_path / "second"
    assert await refused(caller.stage(id, staging=second)) is Code.FAILED_PRECONDITION
    assert not second.exists()
    await caller.unstage(id)


def open_files() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def fails(number: int, outcome: int) -> Callable[..., Any]:
    """An ``ioctl`` whose given request fails with an error (below 0) or returns a number."""
    real = fcntl.ioctl

    def ioctl(descriptor: int, request: int, *more: Any) -> Any:
        if request != number:
            return real(descriptor, request, *more)
        if outcome < 0:
            raise OSError(-outcome, os.strerror(-outcome))
        return outcome

    return ioctl


@pytest.mark.system
@pytest.mark.parametrize(
    ("request_number", "outcome", "sentence"),
    [
        (loops._LOOP_CTL_GET_FREE, -errno.ENOSPC, "unstage a volume on this node"),
        (
            loops._LOOP_CTL_GET_FREE,
            987_654,
            "/dev/loop987654, which the kernel offers, cannot be opened",
        ),
        (loops._LOOP_CONFIGURE, -errno.EBUSY, "other processes took the free one"),
    ],
    ids=["none", "no-node", "taken"],
)
@pytest.mark.parametrize(
    "capability", [mount_capability(), block_capability()], ids=["mount", "block"]
)
async def test_without_a_free_loop_device_nothing_is_staged_until_there_is_one(
    caller: Caller,
    monkeypatch: pytest.MonkeyPatch,
    capability: csi.VolumeCapability,
    request_number: int,
    outcome: int,
    sentence: str,
) -> None:
    """Without a free loop device staging is refused with advice and leaves nothing behind; it works
    as soon as one is free.
    """
    id = (await caller.create("v", capability=capability)).volume_id
    before = open_files()
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "ioctl", fails(request_number, outcome))
        for _ in range(2):
            with pytest.raises(CsiError, match=sentence) as raised:
                await caller.stage(id, capability)
            assert raised.value.code is Code.RESOURCE_EXHAUSTED
    assert not caller.staging.exists()
    assert loops.find(image(caller)) == []
    assert fencing.read_holder(image(caller)) is None
    assert open_files() == before
    await used(caller, id, capability)
    assert fencing.read_holder(image(caller)) is not None
    await released(caller, id)
    await caller.delete(id)


@pytest.mark.system
async def test_without_devices_the_error_says_what_to_do(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any loop devices, as in a container, the error says what the driver needs."""
    id = (await caller.create("v")).volume_id
    with monkeypatch.context() as patch:
        patch.setattr(loops, "_CONTROL", "/dev/no-loop-control")
        with pytest.raises(CsiError, match="give the driver the node's own /dev") as raised:
            await caller.stage(id)
    assert raised.value.code is Code.RESOURCE_EXHAUSTED
    await caller.stage(id)
    await caller.unstage(id)


async def test_texts_with_a_null_are_refused(caller: Caller) -> None:
    """Texts with a null character are refused: the kernel would read only the part before it."""
    id = (await caller.create("v")).volume_id
    capability = mount_capability(flags=["ro\0x"])
    assert await refused(caller.stage(id, capability)) is Code.INVALID_ARGUMENT
    assert await refused(caller.stats(id, Path("/a\0b"))) is Code.INVALID_ARGUMENT


@pytest.mark.system
async def test_a_device_that_was_read_only_can_be_written_by_the_next(caller: Caller) -> None:
    """The read-only flag of a device is not kept for the next volume on it."""
    reading = block_capability(Mode.SINGLE_NODE_READER_ONLY)
    first = await caller.create("first", capability=reading)
    await used(caller, first.volume_id, reading)
    await released(caller, first.volume_id)
    second = await caller.create("second")
    target = await used(caller, second.volume_id)
    (target / "file").write_text("x")
    assert (target / "file").read_text() == "x"
    await released(caller, second.volume_id)


@pytest.mark.system
async def test_a_node_out_of_service_gets_no_volume(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one for a single writer nor one that others have as well: it would be fenced again;
    what it has may be unstaged, and without the taint it gets both.
    """
    alone = await caller.create("alone")
    shared = await caller.create("shared", capability=SHARED)
    for volume, capability in ((alone, None), (shared, SHARED)):
        with monkeypatch.context() as patch:
            patch.setattr(FixedDomain, "is_out_of_service", lambda _: True)
            call = caller.stage(volume.volume_id, capability)
            with pytest.raises(CsiError, match="is out of service"):
                await call
            await caller.unstage(volume.volume_id)
        await caller.stage(volume.volume_id, capability)
        await caller.unstage(volume.volume_id)
