"""Faults with a real Ceph: full pools, a zone that stops, kills, racing controllers."""

from __future__ import annotations

import asyncio
import signal
import struct
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.ceph.killed_driver import Killed, let_die
from tests.ceph.scene import CephCaller, CephProgram, calling, config, image_of, in_zone, parameters
from tests.ceph.waiting import UNSURE, settled, until
from tests.csi.scene import (
    MIB,
    block_capability,
    mount_capability,
    of_snapshot,
    of_volume,
    refused,
    requirement,
    running,
    segments,
)
from tools.ceph.cluster import CephCluster

from zonewise.csi.errors import Code, CsiError
from zonewise.csi.services.requests import id_of
from zonewise.storage.identifiers import StoredKind
from zonewise.storage.journal import EntryState

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

STEPS_OF_DELETE = {"reserve": "change", "make": "remove", "change": "forget"}


@pytest.fixture
def caller(ceph: CephCluster, tmp_path: Path) -> Iterator[CephCaller]:
    """A driver in zone a; its volumes are gone at the end."""
    with calling(ceph, tmp_path) as caller:
        yield caller
        assert caller.names() == []


def is_full(ceph: CephCluster, pool: str) -> bool:
    """Whether a pool takes no more writes."""
    (entry,) = [entry for entry in ceph.command("osd dump")["pools"] if entry["pool_name"] == pool]
    return "full" in entry["flags_names"]


@pytest.mark.parametrize("step", ["reserve", "make", "change", "answer"])
@pytest.mark.parametrize("kind", ["volume", "snapshot", "clone", "delete"])
@pytest.mark.parametrize("store", ["rbd", "fs"])
async def test_killed_at_every_step(
    ceph: CephCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    store: str,
    kind: str,
    step: str,
) -> None:
    """A controller dies after any step; with another one there is one image and entry, or none."""
    device = block_capability() if store == "rbd" else mount_capability()
    with calling(ceph, tmp_path / "other", kind=store) as other:
        source = await other.create("source", capability=device, topology=in_zone("a"))
        doomed = await other.create("doomed", capability=device, topology=in_zone("a"))

        async def act(caller: CephCaller) -> Any:
            if kind == "delete":
                return await caller.delete(doomed.volume_id)
            if kind == "snapshot":
                return await caller.snapshot("made", source.volume_id)
            copied = of_volume(source.volume_id) if kind == "clone" else None
            return await caller.create(
                "made", capability=device, source=copied, topology=in_zone("a")
            )

        with calling(ceph, tmp_path / "one", kind=store) as first, monkeypatch.context() as patch:
            let_die(patch, first, STEPS_OF_DELETE.get(step, step) if kind == "delete" else step)
            with suppress(Killed):
                await act(first)
        await settled(lambda: act(other))
        entries = other.storage.journal
        names = sorted(
            entry.name for stored in StoredKind for entry in entries.list_page(stored).entries
        )
        expected = {"delete": ["source"], "snapshot": ["doomed", "made", "source"]}
        assert names == expected.get(kind, ["doomed", "made", "source"])
        assert len(other.names()) == len(names)
        for stored in StoredKind:
            for entry in entries.list_page(stored).entries:
                remove = other.delete_snapshot if stored is StoredKind.SNAPSHOT else other.delete
                await settled(partial(remove, id_of(entry)))
        assert other.names() == []


async def test_killed_while_librbd_lists_an_image(
    ceph: CephCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name in the pool's directory without an image is removed, and the volume is made."""
    device = block_capability()
    with calling(ceph, tmp_path / "other") as other:
        with calling(ceph, tmp_path / "one") as first, monkeypatch.context() as patch:
            let_die(patch, first, "reserve")
            with suppress(Killed):
                await first.create("made", capability=device, topology=in_zone("a"))
        (entry,) = other.storage.journal.list_page(StoredKind.VOLUME).entries
        name = image_of(id_of(entry))
        listed = b"".join(struct.pack("<I", len(text)) + text for text in (name.encode(), b"feed"))
        with closing(ceph.admin.open_ioctx("rbd-a")) as pool:
            pool.execute("rbd_directory", "rbd", "dir_add_image", listed)
        volume = await settled(
            lambda: other.create("made", capability=device, topology=in_zone("a"))
        )
        assert image_of(volume.volume_id) == name
        assert other.names() == ["rbd-a/volume"]
        await settled(lambda: other.delete(volume.volume_id))
        assert other.names() == []


async def test_a_full_pool(ceph: CephCluster, caller: CephCaller) -> None:
    """A create in a pool at its quota is refused and leaves no reservation; other pools work."""
    volume = await caller.create("pvc-1", topology=in_zone("b"), capability=block_capability())
    ceph.command("osd pool set-quota", pool="rbd-b", field="max_bytes", val="4096")
    io = ceph.admin.open_ioctx("rbd-b")
    try:
        io.write_full("ballast", b"x" * 65536)
        await until(lambda: is_full(ceph, "rbd-b"))
        # The driver looks at pools every few seconds, and its client learns of maps in between.
        await until(lambda: caller.storage.backend.pools()["rbd-b"].full)
        caller.storage.ceph.handle().wait_for_latest_osdmap()
        code = await refused(caller.create("pvc-2", topology=in_zone("b")))
        assert code is Code.RESOURCE_EXHAUSTED
        names = [
            entry.name for entry in caller.storage.journal.list_page(StoredKind.VOLUME).entries
        ]
        assert names == ["pvc-1"]
        elsewhere = await caller.create("pvc-2", topology=in_zone("c"))
        assert elsewhere.volume_context["pool"] == "rbd-c"
        assert await refused(caller.delete(volume.volume_id)) in UNSURE
    finally:
        ceph.command("osd pool set-quota", pool="rbd-b", field="max_bytes", val="0")
        await until(lambda: not is_full(ceph, "rbd-b"))
        io.remove_object("ballast")
        io.close()
    await settled(lambda: caller.delete(volume.volume_id))
    await settled(lambda: caller.delete(elsewhere.volume_id))


async def test_a_zone_that_stops(ceph: CephCluster, caller: CephCaller) -> None:
    """With the OSDs of a zone stopped, calls there end, and other zones and the journal work."""
    ceph.signal("osd.1", signal.SIGSTOP)
    try:
        code = await refused(caller.create("pvc-b", topology=in_zone("b")))
        assert code in (*UNSURE, Code.RESOURCE_EXHAUSTED)
        await until(lambda: ceph.up() == 2)
        first = await settled(lambda: caller.create("pvc-a", topology=in_zone("a")))
        assert first.volume_context["pool"] == "rbd-a"
        free = await settled(lambda: caller.free(segments("b")))
        assert free == 0
    finally:
        ceph.signal("osd.1", signal.SIGCONT)
        await until(lambda: ceph.up() == 3)
    await until(lambda: caller.storage.backend.pools()["rbd-b"].alive)
    back = await settled(lambda: caller.create("pvc-b", topology=in_zone("b")))
    assert back.volume_context["pool"] == "rbd-b"
    assert sorted(caller.names()) == ["rbd-a/volume", "rbd-b/volume"]
    for volume in (first, back):
        await settled(partial(caller.delete, volume.volume_id))


async def test_lists_do_not_wait_for_a_zone_that_stops(
    ceph: CephCluster, caller: CephCaller
) -> None:
    """A create that was interrupted there is listed, beside all others; as soon as the monitor has
    noticed, snapshots and expansions there are UNAVAILABLE at once, with the pool's health.
    """
    device = block_capability()
    there = await caller.create("pvc-1", topology=in_zone("b"), capability=device)
    elsewhere = await caller.create("pvc-2", topology=in_zone("a"), capability=device)
    assert len(await caller.volumes()) == 2  # from now on it is known where journals are
    journal = caller.storage.journal
    entry = journal.find(StoredKind.VOLUME, "pvc-1")
    assert entry is not None
    uuid = journal.new_uuid(StoredKind.VOLUME, "pvc-3")
    begun = structs.replace(
        entry, name="pvc-3", uuid=uuid, state=EntryState.RESERVED, revision=0, holder=""
    )
    assert journal.reserve(begun, None).entry is not None
    ceph.signal("osd.1", signal.SIGSTOP)
    try:
        await until(lambda: ceph.up() == 2)
        listed = await caller.volumes()
        assert len(listed) == 3
        assert {there.volume_id, elsewhere.volume_id} < {*listed}
        await until(lambda: not caller.storage.backend.pools()["rbd-b"].alive)
        for call in (
            caller.snapshot("snap-1", there.volume_id),
            caller.expand(there.volume_id, 64 * MIB),
        ):
            with pytest.raises(CsiError, match="pool rbd-b is not alive, its health is 0"):
                await call
    finally:
        ceph.signal("osd.1", signal.SIGCONT)
        await until(lambda: ceph.up() == 3)
    await until(lambda: caller.storage.backend.pools()["rbd-b"].alive)
    again = await settled(lambda: caller.create("pvc-3", topology=in_zone("b"), capability=device))
    assert again.volume_id in listed
    for volume in (there, elsewhere, again):
        await settled(partial(caller.delete, volume.volume_id))


async def test_a_copy_survives_its_sources_zone(ceph: CephCluster, caller: CephCaller) -> None:
    """A restore into another zone is readable while the source's zone is down."""
    import rbd

    given = parameters(crossDomain="copy")
    device = block_capability()
    original = await caller.create(
        "pvc-1", topology=in_zone("a"), capability=device, parameters=given
    )
    with rbd.Image(caller.storage.ceph.open_pool("rbd-a"), image_of(original.volume_id)) as image:
        image.write(b"marker", 8 * MIB)
    snapshot = await caller.snapshot("snap-1", original.volume_id)
    copy = await caller.create(
        "pvc-2",
        topology=in_zone("c"),
        capability=device,
        parameters=given,
        source=of_snapshot(snapshot.snapshot_id),
    )
    assert copy.volume_context["pool"] == "rbd-c"
    ceph.signal("osd.0", signal.SIGSTOP)
    try:
        pool = caller.storage.ceph.open_pool("rbd-c")
        with rbd.Image(pool, image_of(copy.volume_id), read_only=True) as image:
            assert image.read(8 * MIB, 6) == b"marker"
    finally:
        ceph.signal("osd.0", signal.SIGCONT)
    await until(lambda: ceph.up() == 3)
    await settled(lambda: caller.delete(copy.volume_id))
    await settled(lambda: caller.delete_snapshot(snapshot.snapshot_id))
    await settled(lambda: caller.delete(original.volume_id))


async def test_two_controllers_and_kills(ceph: CephCluster, tmp_path: Path) -> None:
    """Twenty creates of a name through two controllers, one of them killed, make one volume."""
    programs = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        program = CephProgram(tmp_path / name)
        program.config.write_text(config(ceph))
        programs.append(program)
    async with running(programs[0]) as first, running(programs[1]) as second:
        callers = [CephCaller(plain.client, plain.folder) for plain in (first, second)]

        async def ask(number: int) -> str:
            zone = "abc"[number % 3]
            topology = requirement([segments(other) for other in "abc"], [segments(zone)])
            volume = await callers[number % 2].create(
                "pvc-raced", topology=topology, capability=block_capability()
            )
            return str(volume.volume_id)

        answers = await asyncio.gather(*map(ask, range(20)), return_exceptions=True)
        ids = {answer for answer in answers if isinstance(answer, str)}
        refusals = [answer for answer in answers if not isinstance(answer, str)]
        assert all(
            isinstance(refusal, CsiError) and refusal.code in UNSURE for refusal in refusals
        ), refusals
        work = asyncio.gather(
            *(
                callers[0].create(f"pvc-{number}", capability=block_capability())
                for number in range(12)
            ),
            return_exceptions=True,
        )
        await asyncio.sleep(0)
        for _ in range(20):
            if len(await callers[1].volumes()) > 1:
                break
        programs[0].kill()
        await work
        final_ids = {await settled(lambda: ask(1))}
        assert ids <= final_ids
        for number in range(12):
            again = partial(callers[1].create, f"pvc-{number}", capability=block_capability())
            await settled(again)
        code, report = programs[1].check()
        assert len(report["volumes"]) == 13
        assert (report["orphans"], report["missing"], code) == ([], [], 0)
        for volume in report["volumes"]:
            await settled(partial(callers[1].delete, volume["id"]))
        assert programs[1].check()[1]["volumes"] == []
