"""A volume whose creation was answered before its controller could record it as created.

An empty image shows by itself that it is finished, so CREATED is written after the answer. Here is
tested what may happen in between: kills, another controller, nodes that write.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.ceph.scene import CephCaller, CephProgram, calling, config
from tests.ceph.waiting import settled
from tests.csi.scene import (
    MIB,
    block_capability,
    mount_capability,
    refused,
    requirement,
    running,
    segments,
)
from tools.ceph.cluster import CephCluster

from zonewise.csi.backends.ceph.journals.deferred import DeferredCreated
from zonewise.csi.check import check
from zonewise.csi.errors import Code
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport import methods
from zonewise.storage.identifiers import StoredKind
from zonewise.storage.journal import EntryState, JournalEntry

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

DEVICE = block_capability()
IN_A, IN_B = (requirement([segments(zone)], [segments(zone)]) for zone in "ab")
RATHER_B = requirement([segments("a"), segments("b")], [segments("b")])
LIVES = pytest.mark.parametrize("lives", [False, True], ids=["killed", "alive"])


@pytest.fixture
def other(ceph: CephCluster, tmp_path: Path) -> Iterator[CephCaller]:
    """Another controller, which the tests call; its volumes are gone at the end."""
    with calling(ceph, tmp_path / "other") as caller:
        yield caller
        assert caller.names() == []


@contextmanager
def unrecorded(
    ceph: CephCluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CephCaller]:
    """A controller that never writes its deferred records; it dies at the end."""
    with monkeypatch.context() as patch, calling(ceph, folder / "one") as caller:
        patch.setattr(DeferredCreated, "write_all", lambda _marks: None)
        yield caller


def only(caller: CephCaller) -> JournalEntry:
    """The only entry of the journal."""
    (entry,) = caller.storage.journal.list_page(StoredKind.VOLUME).entries
    return entry


def image_of(caller: CephCaller, id: str) -> Any:
    """The image of a volume in zone a."""
    import rbd

    return closing(rbd.Image(caller.storage.ceph.open_pool("rbd-a"), f"zw-vol-{id.split('-')[1]}"))


async def get(caller: CephCaller, id: str) -> csi.Volume:
    """ControllerGetVolume."""
    request = csi.ControllerGetVolumeRequest(volume_id=id)
    return (await caller.client.call(methods.CONTROLLER_GET_VOLUME, request)).volume


@LIVES
async def test_an_answered_volume_is_found_again(
    ceph: CephCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    other: CephCaller,
    lives: bool,
) -> None:
    """A repeated create at another controller gives the same id, and written data is there."""
    with ExitStack() as life:
        first = life.enter_context(unrecorded(ceph, tmp_path, monkeypatch))
        volume = await first.create("made", capability=DEVICE, topology=IN_A)
        if not lives:
            life.close()
        with image_of(other, volume.volume_id) as image:
            image.write(b"marker", 8 * MIB)
        assert only(other).state is EntryState.RESERVED
        code = await refused(other.create("made", capability=DEVICE, topology=IN_B))
        assert code is Code.ALREADY_EXISTS
        code = await refused(other.create("made", size=1 << 31, capability=DEVICE, topology=IN_A))
        assert code is Code.ALREADY_EXISTS
        assert only(other).state is EntryState.RESERVED
        again = await other.create("made", capability=DEVICE, topology=RATHER_B)
        assert again == volume
        assert only(other).state is EntryState.CREATED
        with image_of(other, volume.volume_id) as image:
            assert image.read(8 * MIB, 6) == b"marker"
        assert other.names() == ["rbd-a/volume"]
        await other.delete(volume.volume_id)
        if lives:  # and it is not brought back
            again = await first.create("made", capability=DEVICE, topology=IN_A)
            assert again.volume_id != volume.volume_id
            await other.delete(again.volume_id)


@LIVES
async def test_an_answered_volume_is_like_any_other(
    ceph: CephCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    other: CephCaller,
    lives: bool,
) -> None:
    """A volume that was answered but not yet recorded is listed, checked, copied and deleted."""
    with ExitStack() as life:
        first = life.enter_context(unrecorded(ceph, tmp_path, monkeypatch))
        volume, doomed = [
            await first.create(name, capability=DEVICE, topology=IN_A)
            for name in ("made", "doomed")
        ]
        if not lives:
            life.close()
        assert sorted(await other.volumes()) == sorted([volume.volume_id, doomed.volume_id])
        report, agrees = check(other.storage.journal, other.storage.backend)
        assert ([volume["state"] for volume in report["volumes"]], agrees) == (
            ["created", "created"],
            True,
        )
        await other.delete(doomed.volume_id)
        assert only(other).state is EntryState.RESERVED
        assert await get(other, volume.volume_id) == volume
        assert only(other).state is EntryState.CREATED
        snapshot = await other.snapshot("snap", volume.volume_id)
        await other.delete_snapshot(snapshot.snapshot_id)
        await other.delete(volume.volume_id)


async def test_staging_a_volume_records_it(
    ceph: CephCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: CephCaller
) -> None:
    """Before a node can write to a volume, the journal has it as created."""
    ext4 = mount_capability(fs_type="ext4")
    with unrecorded(ceph, tmp_path, monkeypatch) as first:
        volume = await first.create("made", capability=ext4, topology=IN_A)
    await other.stage(volume.volume_id, capability=ext4)
    try:
        assert only(other).state is EntryState.CREATED
        (other.staging / "marker").write_text("here")
        assert await other.create("made", capability=ext4, topology=IN_A) == volume
        assert (other.staging / "marker").read_text() == "here"
    finally:
        await other.unstage(volume.volume_id)
    await settled(lambda: other.delete(volume.volume_id))


async def test_killed_right_after_the_answer(
    ceph: CephCluster, tmp_path: Path, other: CephCaller
) -> None:
    """If a controller is killed right after its answer, another one answers a repeated create with
    the same id and the same data.
    """
    (tmp_path / "program").mkdir()
    program = CephProgram(tmp_path / "program")
    program.config.write_text(config(ceph))
    async with running(program) as caller:
        first = CephCaller(caller.client, caller.folder)
        volume = await first.create("made", capability=DEVICE, topology=IN_A)
        program.kill()
    with image_of(other, volume.volume_id) as image:
        image.write(b"marker", 8 * MIB)
    assert await other.create("made", capability=DEVICE, topology=IN_A) == volume
    with image_of(other, volume.volume_id) as image:
        assert image.read(8 * MIB, 6) == b"marker"
    assert check(other.storage.journal, other.storage.backend)[1]
    await settled(lambda: other.delete(volume.volume_id))


@pytest.mark.parametrize("topology", [IN_A, IN_B], ids=["again", "elsewhere"])
@pytest.mark.parametrize("left", ["listed", "header"])
async def test_half_an_image_is_made_again(
    ceph: CephCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    other: CephCaller,
    left: str,
    topology: csi.TopologyRequirement,
) -> None:
    """What a kill within librbd left of an image is removed, and a whole image is made as
    requested.
    """
    with unrecorded(ceph, tmp_path, monkeypatch) as first:
        volume = await first.create("made", capability=DEVICE, topology=IN_A)
    name = f"zw-vol-{volume.volume_id.split('-')[1]}"
    with closing(ceph.admin.open_ioctx("rbd-a")) as pool:
        id = pool.read(f"rbd_id.{name}")[4:].decode()
        pool.remove_object(f"rbd_object_map.{id}")
        if left == "listed":
            pool.remove_object(f"rbd_header.{id}")
            pool.remove_object(f"rbd_id.{name}")
    assert await other.volumes() == []
    assert await refused(get(other, volume.volume_id)) is Code.NOT_FOUND
    again = await other.create("made", capability=DEVICE, topology=topology)
    assert (again.volume_id == volume.volume_id) == (topology is IN_A)
    assert other.names() == [f"{again.volume_context['pool']}/volume"]
    assert await other.volumes() == [again.volume_id]
    await other.delete(again.volume_id)
