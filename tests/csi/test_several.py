"""A driver with several clusters, without real ones: which cluster a call uses and waits for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from zonewise.csi.answering import collect_answers
from zonewise.csi.backends.folders.pools import FolderPools
from zonewise.csi.driver import DataFolder, Threads, open_data_folder
from zonewise.csi.errors import Code, CsiError, aborted, unavailable
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.services.plugin import Plugin
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.domains import DomainLabels
from zonewise.storage.identifiers import StorageId, StoredKind
from zonewise.storage.journal import EntryPage, EntryState, Image, JournalEntry


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[dict[str, DataFolder]]:
    """Two journals instead of those of two clusters."""
    opened = {
        name: open_data_folder(tmp_path / name, privileged=False) for name in ("east", "west")
    }
    yield opened
    for folder in opened.values():
        folder.close()


@pytest.fixture
def plugin(folders: dict[str, DataFolder]) -> Plugin:
    """A driver of two clusters, which have these journals."""
    labels = DomainLabels("csi.example.com")
    return Plugin(
        "csi.example.com", "1", labels, StorageConfiguration, lambda: folders, folders["east"].locks
    )


def recorded(folder: DataFolder, name: str, uuid: str) -> JournalEntry:
    """A finished volume in a journal."""
    entry = JournalEntry(kind=StoredKind.VOLUME, uuid=uuid, name=name, pool="p", bytes=1)
    reserved = folder.journal.reserve(entry, None).entry
    assert reserved is not None
    assert reserved.state is EntryState.RESERVED
    return folder.journal.change(reserved, reserved.as_created())


def code(call: Callable[[], object]) -> Code:
    """The code that a call is refused with."""
    with pytest.raises(CsiError) as caught:
        call()
    return caught.value.code


def test_a_class_names_its_cluster(plugin: Plugin, folders: dict[str, DataFolder]) -> None:
    """A class must name one of several clusters; a single one need not be named."""
    assert plugin.scope_of_class("west").journal is folders["west"].journal
    for wrong in ("", "north"):
        with pytest.raises(CsiError, match="east, west") as caught:
            plugin.scope_of_class(wrong)
        assert caught.value.code is Code.INVALID_ARGUMENT
    del folders["east"]
    assert plugin.scope_of_class("").journal is folders["west"].journal
    assert code(lambda: plugin.scope_of_class("east")) is Code.INVALID_ARGUMENT


def test_an_id_leads_to_its_cluster(plugin: Plugin, folders: dict[str, DataFolder]) -> None:
    """An id leads to its cluster by the name in it, else by its uuid; one of an unknown cluster is
    not NOT_FOUND.
    """
    uuid = "1" * 32
    entry = recorded(folders["west"], "pvc-1", uuid)
    for cluster in ("west", "", "renamed"):
        id = str(StorageId(StoredKind.VOLUME, uuid, 4 if cluster else 0, cluster))
        assert plugin.require_entry(id, StoredKind.VOLUME) == entry
    lost = str(StorageId(StoredKind.VOLUME, "2" * 32, 4, "north"))
    assert code(lambda: plugin.require_entry(lost, StoredKind.VOLUME)) is Code.FAILED_PRECONDITION
    assert plugin.find_entry(lost, StoredKind.VOLUME) is None
    gone = str(StorageId(StoredKind.VOLUME, "2" * 32, 4, "east"))
    for id in (gone, "garbage"):
        assert code(partial(plugin.require_entry, id, StoredKind.VOLUME)) is Code.NOT_FOUND


def test_pages_go_over_all_clusters(plugin: Plugin, folders: dict[str, DataFolder]) -> None:
    """Pages list the volumes of all clusters by uuid, each once, also if two names mean the same
    cluster.
    """
    for number in range(9):
        recorded(folders["east" if number % 3 else "west"], f"pvc-{number}", f"{number:032x}")
    folders["orient"] = folders["east"]
    listed, token = [], ""
    while True:
        answer = plugin.answer_page(
            StoredKind.VOLUME,
            token,
            2,
            lambda page: csi.ListVolumesResponse(
                entries=[
                    csi.ListVolumesResponse.Entry(volume=csi.Volume(volume_id=entry.name))
                    for entry in page.entries
                ],
                next_token=page.token,
            ),
        )
        listed += [entry.volume.volume_id for entry in answer.entries]
        token = answer.next_token
        if not token:
            break
    assert listed == [f"pvc-{number}" for number in range(9)]


def test_a_dead_zone_does_not_hide_the_volumes_of_others(
    plugin: Plugin, folders: dict[str, DataFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Volumes that are only reserved in a pool that does not answer are listed, because they may be
    finished; the pool is waited for once, and other volumes are listed as ever.
    """
    images_read: list[str] = []

    def find_image(self: FolderPools, entry: JournalEntry) -> Image | None:
        images_read.append(entry.name)
        if entry.pool == "dead":
            raise unavailable("looking at an image: Ceph did not answer in time")
        return None

    monkeypatch.setattr(FolderPools, "find_image", find_image)
    for number, (name, pool) in enumerate([("d1", "dead"), ("d2", "dead"), ("begun", "alive")]):
        entry = JournalEntry(
            kind=StoredKind.VOLUME,
            uuid=f"{number:032x}",
            name=name,
            pool=pool,
            bytes=1,
            evident=True,
        )
        assert folders["east"].journal.reserve(entry, None).entry is not None
    recorded(folders["west"], "created", "f" * 32)
    pages: list[EntryPage] = []

    def build(page: EntryPage) -> csi.ListVolumesResponse:
        pages.append(page)
        return csi.ListVolumesResponse()

    plugin.answer_page(StoredKind.VOLUME, "", 0, build)
    assert [entry.name for entry in pages[0].entries] == ["d1", "d2", "created"]
    assert images_read == ["d1", "begun"]


def test_the_cluster_of_a_request(plugin: Plugin) -> None:
    """A request's cluster is that of its class, volume, snapshot or source; a list has none."""
    id = str(StorageId(StoredKind.VOLUME, "1" * 32, 4, "west"))
    for request in (
        csi.CreateVolumeRequest(parameters={"clusterID": "west"}),
        csi.NodeStageVolumeRequest(volume_id=id),
        csi.CreateSnapshotRequest(source_volume_id=id),
        csi.DeleteSnapshotRequest(snapshot_id=id.replace("vol-", "snap-")),
    ):
        assert plugin.cluster_of(request) == "west"
    assert plugin.cluster_of(csi.ListVolumesRequest()) == ""
    assert plugin.cluster_of(csi.DeleteVolumeRequest(volume_id="garbage")) == ""


def test_clusters_without_an_answer_are_left_out() -> None:
    """If a cluster does not answer, the answers of the others are used; if none answers, that is an
    error.
    """

    def away() -> int:
        raise aborted("away")

    errors: dict[str, CsiError] = {}
    assert collect_answers({"east": lambda: 1, "west": away}, errors) == {"east": 1}
    assert [*errors] == ["west"]
    assert code(lambda: collect_answers({"west": away})) is Code.ABORTED


@pytest.mark.asyncio
async def test_a_full_lane_does_not_delay_the_others() -> None:
    """Calls that wait in one lane do not block another lane."""
    threads, go = Threads(2), threading.Event()
    waiting = [asyncio.create_task(threads(lambda: go.wait(60), "west")) for _ in range(3)]
    await asyncio.sleep(0)
    try:
        assert await threads(lambda: "done", "east") == "done"
        assert not any(task.done() for task in waiting)
    finally:
        go.set()
        await asyncio.gather(*waiting)
        threads.close()
