"""A volume that was answered for, and whose controller had no time to record it.

An empty image tells by itself that it is finished, so CREATED is written after the answer. What is
tried here is everything that may come in between: kills, another controller, nodes that write.
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
    place,
    refused,
    requirement,
    running,
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
IN_A, IN_B = (requirement([place(zone)], [place(zone)]) for zone in "ab")
RATHER_B = requirement([place("a"), place("b")], [place("b")])
LIVES = pytest.mark.parametrize("lives", [False, True], ids=["killed", "alive"])


@pytest.fixture
def other(ceph: CephCluster, tmp_path: Path) -> Iterator[CephCaller]:
    """Another controller, that of the tests; its volumes are gone at the end."""
    with calling(ceph, tmp_path / "other") as made:
        yield made
        assert made.names() == []


@contextmanager
def unrecorded(
    ceph: CephCluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CephCaller]:
    """A controller that never comes to what it wanted to record later; it dies at the end."""
    with monkeypatch.context() as patch, calling(ceph, folder / "one") as one:
        patch.setattr(DeferredCreated, "write_all", lambda _marks: None)
        yield one


def only(caller: CephCaller) -> JournalEntry:
    """The one entry of the journal."""
    (found,) = caller.storage.journal.list_page(StoredKind.VOLUME).entries
    return found


def image_of(caller: CephCaller, id: str) -> Any:
    """The image of a volume in zone a."""
    import rbd

    return closing(rbd.Image(caller.storage.ceph.open_pool("rbd-a"), f"zw-vol-{id.split('-')[1]}"))


async def get(caller: CephCaller, id: str) -> csi.Volume:
    """ControllerGetVolume."""
    asked = csi.ControllerGetVolumeRequest(volume_id=id)
    return (await caller.client.call(methods.CONTROLLER_GET_VOLUME, asked)).volume


@LIVES
async def test_an_answered_volume_is_found_again(
    ceph: CephCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    other: CephCaller,
    lives: bool,
) -> None:
    """Asked for again at another controller: the same id, and what was written is there."""
    with ExitStack() as life:
        one = life.enter_context(unrecorded(ceph, tmp_path, monkeypatch))
        made = await one.create("made", capability=DEVICE, topology=IN_A)
        if not lives:
            life.close()
        with image_of(other, made.volume_id) as image:
            image.write(b"marker", 8 * MIB)
        assert only(other).state is EntryState.RESERVED
        code = await refused(other.create("made", capability=DEVICE, topology=IN_B))
        assert code is Code.ALREADY_EXISTS
        code = await refused(other.create("made", size=1 << 31, capability=DEVICE, topology=IN_A))
        assert code is Code.ALREADY_EXISTS
        assert only(other).state is EntryState.RESERVED
        again = await other.create("made", capability=DEVICE, topology=RATHER_B)
        assert again == made
        assert only(other).state is EntryState.CREATED
        with image_of(other, made.volume_id) as image:
            assert image.read(8 * MIB, 6) == b"marker"
        assert other.names() == ["rbd-a/volume"]
        await other.delete(made.volume_id)
        if lives:  # and it is not brought back
            again = await one.create("made", capability=DEVICE, topology=IN_A)
            assert again.volume_id != made.volume_id
            await other.delete(again.volume_id)


@LIVES
async def test_an_answered_volume_is_one(
    ceph: CephCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    other: CephCaller,
    lives: bool,
) -> None:
    """It is listed, checked, measured, copied and deleted like any other."""
    with ExitStack() as life:
        one = life.enter_context(unrecorded(ceph, tmp_path, monkeypatch))
        made, doomed = [
            await one.create(name, capability=DEVICE, topology=IN_A) for name in ("made", "doomed")
        ]
        if not lives:
            life.close()
        assert sorted(await other.volumes()) == sorted([made.volume_id, doomed.volume_id])
        report, agrees = check(other.storage.journal, other.storage.backend)
        assert ([volume["state"] for volume in report["volumes"]], agrees) == (
            ["created", "created"],
            True,
        )
        await other.delete(doomed.volume_id)
        assert only(other).state is EntryState.RESERVED
        assert await get(other, made.volume_id) == made
        assert only(other).state is EntryState.CREATED
        snapshot = await other.snapshot("snap", made.volume_id)
        await other.delete_snapshot(snapshot.snapshot_id)
        await other.delete(made.volume_id)


async def test_who_stages_a_volume_records_it(
    ceph: CephCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: CephCaller
) -> None:
    """What a node writes is in a volume that the journal calls created, whoever died before."""
    ext4 = mount_capability(fs_type="ext4")
    with unrecorded(ceph, tmp_path, monkeypatch) as one:
        made = await one.create("made", capability=ext4, topology=IN_A)
    await other.stage(made.volume_id, capability=ext4)
    try:
        assert only(other).state is EntryState.CREATED
        (other.staging / "marker").write_text("here")
        assert await other.create("made", capability=ext4, topology=IN_A) == made
        assert (other.staging / "marker").read_text() == "here"
    finally:
        await other.unstage(made.volume_id)
    await settled(lambda: other.delete(made.volume_id))


async def test_killed_right_after_the_answer(
    ceph: CephCluster, tmp_path: Path, other: CephCaller
) -> None:
    """The program, kill -9: asked for again elsewhere, the same id and the same data."""
    (tmp_path / "program").mkdir()
    program = CephProgram(tmp_path / "program")
    program.config.write_text(config(ceph))
    async with running(program) as caller:
        one = CephCaller(caller.client, caller.folder)
        made = await one.create("made", capability=DEVICE, topology=IN_A)
        program.kill()
    with image_of(other, made.volume_id) as image:
        image.write(b"marker", 8 * MIB)
    assert await other.create("made", capability=DEVICE, topology=IN_A) == made
    with image_of(other, made.volume_id) as image:
        assert image.read(8 * MIB, 6) == b"marker"
    assert check(other.storage.journal, other.storage.backend)[1]
    await settled(lambda: other.delete(made.volume_id))


@pytest.mark.parametrize("topology", [IN_A, IN_B], ids=["again", "elsewhere"])
@pytest.mark.parametrize("left", ["listed", "header"])
async def test_half_an_image_was_answered_by_nobody(
    ceph: CephCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    other: CephCaller,
    left: str,
    topology: csi.TopologyRequirement,
) -> None:
    """Killed within librbd: what it left is removed, and a whole image is made as asked for."""
    with unrecorded(ceph, tmp_path, monkeypatch) as one:
        made = await one.create("made", capability=DEVICE, topology=IN_A)
    name = f"zw-vol-{made.volume_id.split('-')[1]}"
    with closing(ceph.admin.open_ioctx("rbd-a")) as pool:
        id = pool.read(f"rbd_id.{name}")[4:].decode()
        pool.remove_object(f"rbd_object_map.{id}")
        if left == "listed":
            pool.remove_object(f"rbd_header.{id}")
            pool.remove_object(f"rbd_id.{name}")
    assert await other.volumes() == []
    assert await refused(get(other, made.volume_id)) is Code.NOT_FOUND
    again = await other.create("made", capability=DEVICE, topology=topology)
    assert (again.volume_id == made.volume_id) == (topology is IN_A)
    assert other.names() == [f"{again.volume_context['pool']}/volume"]
    assert await other.volumes() == [again.volume_id]
    await other.delete(again.volume_id)
