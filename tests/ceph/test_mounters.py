"""Images that krbd or rbd-nbd map on a node: the whole flow, with a replacement for ``rbd``.

The kernel's own devices are not tested: there are none here. Everything else is real: the image on
a real Ceph, its client, the block device, mounts, kills.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from tests.ceph import rbd_stand_in
from tests.ceph.scene import CephCaller, CephProgram, calling, config, parameters
from tests.ceph.waiting import settled
from tests.csi.scene import (
    MIB,
    Mode,
    block_capability,
    left_behind,
    mount_capability,
    refused,
    running,
)
from tools.ceph.cluster import USER, CephCluster

from zonewise.csi.backends.folders import filesystems, loops, mounts
from zonewise.csi.errors import Code, CsiError
from zonewise.csi.protocol import csi_pb2 as csi

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

XFS = 300 * MIB
TYPES = {"krbd": "krbd", "rbd-nbd": "nbd"}
mapped = pytest.mark.parametrize("mounter", ["krbd", "rbd-nbd"])
every_capability = pytest.mark.parametrize(
    ("capability", "size"),
    [
        (mount_capability(), 64 * MIB),
        (mount_capability(fs_type="xfs"), XFS),
        (block_capability(), 64 * MIB),
    ],
    ids=["ext4", "xfs", "block"],
)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The replacement for ``rbd``, first in PATH."""
    program = rbd_stand_in.installed(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return program


@pytest.fixture
def caller(ceph: CephCluster, tmp_path: Path, stand_in: Path) -> Iterator[CephCaller]:
    """A driver in zone a; its volumes are gone at the end."""
    with calling(ceph, tmp_path) as caller:
        yield caller
        assert caller.names() == []


def machine(folder: Path) -> Path:
    """The folder in which the stand-in records a driver's mapped devices."""
    return folder / "rbd" / "stand-in"


def listed(data: Path, mounter: str) -> list[str]:
    """The devices that are mapped."""
    notes = (machine(data) / TYPES[mounter]).glob("*.json")
    return [json.loads(note.read_text())["device"] for note in notes]


def calls(data: Path, verb: str) -> list[str]:
    """The command lines of one verb."""
    lines = (machine(data) / "calls").read_text().splitlines()
    return [line for line in lines if f" device {verb} " in line]


async def used(caller: CephCaller, id: str, capability: csi.VolumeCapability) -> Path:
    """Stage and publish."""
    await caller.stage(id, capability)
    return await caller.publish(id, capability)


async def released(caller: CephCaller, id: str) -> None:
    """Unpublish and unstage."""
    await caller.unpublish(id)
    await caller.unstage(id)


@mapped
@every_capability
async def test_use_twice_and_delete(
    caller: CephCaller, mounter: str, capability: csi.VolumeCapability, size: int
) -> None:
    """The mapped device itself is mounted or published; written data is there the next time."""
    data = caller.folder / "data-a"
    volume = await caller.create(
        "pvc-1", size=size, capability=capability, parameters=parameters(mounter=mounter)
    )
    id = volume.volume_id
    for _ in range(2):
        await caller.stage(id, capability)
    for _ in range(2):
        target = await caller.publish(id, capability)
    (device,) = listed(data, mounter)
    assert mounts.device_at(target) == Path(device)
    assert len(calls(data, "map")) == 1
    if capability.HasField("block"):
        assert stat.S_ISBLK(target.stat().st_mode)
        with target.open("r+b", buffering=0) as file:
            file.write(b"here" * 1024)
            os.fsync(file.fileno())
        (usage,) = await caller.stats(id)
        assert usage.total == size
    else:
        (target / "marker").write_text("here")
        assert await refused(caller.stats(id, caller.folder)) is Code.NOT_FOUND
    assert await refused(caller.delete(id)) is Code.ABORTED
    await released(caller, id)
    assert listed(data, mounter) == []
    await caller.unstage(id)
    target = await used(caller, id, capability)
    if capability.HasField("block"):
        with target.open("rb") as file:
            assert file.read(4) == b"here"
    else:
        assert (target / "marker").read_text() == "here"
    await released(caller, id)
    assert await refused(caller.publish(id, capability)) is Code.FAILED_PRECONDITION
    await caller.delete(id)


@pytest.mark.parametrize("mounter", ["rbd-fuse", "krbd", "rbd-nbd"])
@every_capability
async def test_a_published_volume_grows(
    caller: CephCaller, mounter: str, capability: csi.VolumeCapability, size: int
) -> None:
    """Controller, then node: device and file system are larger, and the files are there."""
    volume = await caller.create(
        "pvc-1", size=size, capability=capability, parameters=parameters(mounter=mounter)
    )
    id = volume.volume_id
    target = await used(caller, id, capability)
    block = capability.HasField("block")
    if not block:
        (target / "file").write_text("x")
    assert (await caller.expand(id, 2 * size)).node_expansion_required
    assert await caller.node_expand(id) == 2 * size
    total = (await caller.stats(id))[0].total
    assert total == 2 * size if block else total > 1.6 * size
    assert block or (target / "file").read_text() == "x"
    await released(caller, id)
    await caller.delete(id)


@mapped
async def test_a_volume_for_readers_is_mapped_read_only(caller: CephCaller, mounter: str) -> None:
    """The device cannot be written; an image without a file system is mapped writable once."""
    data = caller.folder / "data-a"
    given = parameters(mounter=mounter)
    reading = mount_capability(Mode.SINGLE_NODE_READER_ONLY)
    formatted = await caller.create("pvc-1", size=64 * MIB, capability=reading, parameters=given)
    for _ in range(2):
        target = await used(caller, formatted.volume_id, reading)
        with pytest.raises(OSError, match="Read-only"):
            (target / "file").touch()
        await released(caller, formatted.volume_id)
    assert ["--read-only" in call for call in calls(data, "map")] == [False, True]
    device = block_capability(Mode.SINGLE_NODE_READER_ONLY)
    raw = await caller.create("pvc-2", capability=device, parameters=given)
    target = await used(caller, raw.volume_id, device)
    with pytest.raises(OSError, match="Errno"), target.open("r+b", buffering=0) as file:
        file.write(b"x" * 4096)
    assert "--read-only" in calls(data, "map")[-1]
    await released(caller, raw.volume_id)
    for volume in (formatted, raw):
        await caller.delete(volume.volume_id)


@pytest.mark.parametrize(
    ("mounter", "step", "capability"),
    [
        ("krbd", "map", mount_capability()),
        ("krbd", "unmap", block_capability()),
        ("rbd-nbd", "map", block_capability()),
        ("rbd-nbd", "unmap", mount_capability()),
    ],
    ids=["krbd-map-ext4", "krbd-unmap-block", "nbd-map-block", "nbd-unmap-ext4"],
)
async def test_a_killed_driver_finds_its_devices(
    ceph: CephCluster,
    tmp_path: Path,
    stand_in: Path,
    mounter: str,
    step: str,
    capability: csi.VolumeCapability,
) -> None:
    """After kill -9 behind a map or an unmap the next driver continues; nothing is mapped twice."""
    program = CephProgram(tmp_path)
    program.config.write_text(config(ceph))
    async with running(program) as plain:
        caller = CephCaller(plain.client, plain.folder)
        volume = await caller.create(
            "pvc-1", size=64 * MIB, capability=capability, parameters=parameters(mounter=mounter)
        )
        id = volume.volume_id
        if step == "unmap":
            await used(caller, id, capability)
            await caller.unpublish(id)
        machine(program.data).mkdir(parents=True, exist_ok=True)
        (machine(program.data) / f"kill-{step}").touch()
        with suppress(CsiError):
            await (caller.stage(id, capability) if step == "map" else caller.unstage(id))
        program.kill()
        assert len(listed(program.data, mounter)) == (1 if step == "map" else 0)
    async with running(program) as plain:
        caller = CephCaller(plain.client, plain.folder)
        if step == "unmap":
            await caller.unstage(id)
        target = await used(caller, id, capability)
        assert len(listed(program.data, mounter)) == 1
        assert mounts.device_at(target) == Path(*listed(program.data, mounter))
        program.kill()
    async with running(program) as plain:
        caller = CephCaller(plain.client, plain.folder)
        await released(caller, id)
        assert listed(program.data, mounter) == []
        await settled(partial(caller.delete, id))
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("mounter", ["rbd-fuse", "krbd", "rbd-nbd"])
async def test_what_others_mounted_is_left_alone(caller: CephCaller, mounter: str) -> None:
    """Another owner's loop device is neither unmounted nor staged over."""
    volume = await caller.create("pvc-1", parameters=parameters(mounter=mounter))
    disk, mountpoint = caller.folder / "disk", caller.folder / "mountpoint"
    mountpoint.mkdir()
    with disk.open("wb") as file:
        file.truncate(16 * MIB)
    filesystems.make("ext4", disk)
    with loops.attach(disk) as device:
        mounts.mount(device, mountpoint, "ext4", [])
    try:
        id = volume.volume_id
        assert await refused(caller.stage(id, staging=mountpoint)) is Code.FAILED_PRECONDITION
        assert await refused(caller.unstage(id, mountpoint)) is Code.FAILED_PRECONDITION
        assert await refused(caller.unpublish(id, mountpoint)) is Code.FAILED_PRECONDITION
        assert mounts.at(mountpoint) is not None
        await caller.unstage(id)
    finally:
        mounts.unmount(mountpoint)
    await caller.delete(volume.volume_id)


@mapped
async def test_a_device_that_is_mounted_elsewhere_stays(caller: CephCaller, mounter: str) -> None:
    """Unstaging does not unmap the device of a pod that still uses it."""
    volume = await caller.create("pvc-1", parameters=parameters(mounter=mounter))
    target = await used(caller, volume.volume_id, mount_capability())
    await caller.unstage(volume.volume_id)
    (target / "file").write_text("still here")
    assert len(listed(caller.folder / "data-a", mounter)) == 1
    await caller.unpublish(volume.volume_id)
    await caller.unstage(volume.volume_id)
    assert listed(caller.folder / "data-a", mounter) == []
    await caller.delete(volume.volume_id)


async def test_a_node_that_cannot_map_says_why(
    ceph: CephCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the program or the kernel module staging is UNAVAILABLE, with the reason."""
    with calling(ceph, tmp_path) as caller:
        for mounter, words in (("krbd", "no module rbd"), ("rbd-nbd", "rbd-nbd is not installed")):
            volume = await caller.create("pvc-1", parameters=parameters(mounter=mounter))
            for path, why in ((os.environ["PATH"], words), ("/nowhere", "rbd is not installed")):
                with monkeypatch.context() as patch:
                    patch.setenv("PATH", path)
                    with pytest.raises(CsiError, match=why) as raised:
                        await caller.stage(volume.volume_id)
                    assert raised.value.code is Code.UNAVAILABLE
                    await caller.unstage(volume.volume_id)
            await settled(partial(caller.delete, volume.volume_id))
        wrong = parameters(mounter="magic")
        with pytest.raises(CsiError, match="known are rbd-fuse, krbd, rbd-nbd"):
            await caller.create("pvc-2", parameters=wrong)


@mapped
async def test_two_maps_are_both_unmapped(caller: CephCaller, mounter: str) -> None:
    """An administrator's second map of the image is unmapped with the volume's own."""
    data = caller.folder / "data-a"
    volume = await caller.create("pvc-1", parameters=parameters(mounter=mounter))
    await caller.stage(volume.volume_id)
    image = f"zw-vol-{volume.volume_id.split('-')[1]}"
    (conf,) = map(str, (data / "rbd").glob("ceph.*.conf"))
    command = ["rbd", "-c", conf, "--id", USER, "device", "map", "--read-only"]
    command += ["--device-type", TYPES[mounter], f"{volume.volume_context['pool']}/{image}"]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    assert len(listed(data, mounter)) == 2
    await caller.unstage(volume.volume_id)
    assert listed(data, mounter) == []
    await caller.delete(volume.volume_id)
