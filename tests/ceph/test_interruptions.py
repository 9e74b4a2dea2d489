"""Calls on a real Ceph without an answer in time: nothing is made twice, nothing hangs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.ceph.killed_driver import Killed, let_die
from tests.ceph.scene import (
    CephCaller,
    CephProgram,
    calling,
    config,
    delete_pool,
    image_of,
    in_zone,
    make_pool,
    parameters,
)
from tests.ceph.waiting import UNSURE, settled, until
from tests.csi.scene import block_capability, pool, refused, requirement, running, segments
from tools.ceph.cluster import JOURNAL, CephCluster

from zonewise.csi.backends.ceph import connection
from zonewise.csi.backends.ceph.journals.omap import NAMESPACE, SHARDS, _hash_of
from zonewise.csi.errors import Code, CsiError
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport import methods
from zonewise.storage.configuration import parse_configuration
from zonewise.storage.domains import parse_domain_labels
from zonewise.storage.identifiers import StoredKind
from zonewise.storage.journal import EntryState

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

DEVICE = block_capability()


@pytest.fixture
def caller(ceph: CephCluster, tmp_path: Path) -> Iterator[CephCaller]:
    """A driver in zone a; nothing is left in journal and pools at the end."""
    with calling(ceph, tmp_path) as caller:
        yield caller
        assert caller.names() == []
        for stored in StoredKind:
            assert caller.storage.journal.list_page(stored).entries == ()


@contextmanager
def stopped(ceph: CephCluster, name: str, *flags: str) -> Iterator[None]:
    """A daemon that does not answer for a while; flags of the OSD map are set meanwhile."""
    for flag in flags:
        ceph.command("osd set", key=flag)
    ceph.signal(name, signal.SIGSTOP)
    try:
        yield
    finally:
        ceph.signal(name, signal.SIGCONT)
        for flag in flags:
            ceph.command("osd unset", key=flag)
        ceph.wait("OSDs", lambda: ceph.up() == 3)


async def test_another_preference_after_a_timeout(ceph: CephCluster, caller: CephCaller) -> None:
    """A retry that prefers another zone makes no second volume: the first may still succeed."""
    # The journal is in zone a alone: it answers while b does not.
    make_pool(ceph, "apart")
    try:

        def preferring(zone: str) -> Any:
            topology = requirement([segments("a"), segments("b")], [segments(zone)])
            given = parameters(pool="apart")
            return caller.create("pvc-1", topology=topology, capability=DEVICE, parameters=given)

        with stopped(ceph, "osd.1", "nodown"):
            assert await refused(preferring("b")) in UNSURE
            assert await refused(preferring("a")) in UNSURE
        volume = await settled(partial(preferring, "a"))
        assert volume.volume_context["pool"] == "rbd-b"
        assert caller.names() == ["rbd-b/volume"]
        await settled(partial(caller.delete, volume.volume_id))
    finally:
        delete_pool(ceph, "apart")


def answered_by(ceph: CephCluster, other_than: int) -> str:
    """A name whose shard of the journal has another primary OSD."""
    for number in range(100):
        name = f"pvc-{number}"
        shard = f"entries.volume.{_hash_of(name) % SHARDS}"
        mapping = ceph.command("osd map", pool=JOURNAL, object=shard, nspace=NAMESPACE)
        if mapping["acting_primary"] != other_than:
            return name
    raise AssertionError("one OSD answers for everything")


async def test_a_reservation_that_lands_late(ceph: CephCluster, caller: CephCaller) -> None:
    """A reservation that is written after its call failed is later finished or undone."""
    spared = await caller.create("spared", topology=in_zone("a"), capability=DEVICE)
    name = answered_by(ceph, other_than=2)
    with stopped(ceph, "osd.2", "nodown"):
        late = caller.create(name, topology=in_zone("a"), capability=DEVICE)
        assert await refused(late) is Code.UNAVAILABLE

    def landed() -> bool:
        entry = caller.storage.journal.find(StoredKind.VOLUME, name)
        return entry is not None and entry.state is EntryState.RESERVED

    await until(landed)
    finished = await settled(partial(caller.create, name, topology=in_zone("b"), capability=DEVICE))
    assert finished.volume_context["pool"] == "rbd-b"
    assert sorted(caller.names()) == ["rbd-a/volume", "rbd-b/volume"]
    for volume in (finished, spared):
        await settled(partial(caller.delete, volume.volume_id))


async def test_monitors_lost_in_mid_run(ceph: CephCluster, caller: CephCaller) -> None:
    """Without a monitor calls end with UNAVAILABLE; when it is back the driver works."""
    first = await caller.create("pvc-1", topology=in_zone("a"), capability=DEVICE)
    caller.storage.backend._states.invalidate()
    ceph.signal("mon", signal.SIGSTOP)
    try:
        for call in (
            caller.create("pvc-2", topology=in_zone("a"), capability=DEVICE),
            caller.create("pvc-3", capability=DEVICE, parameters=parameters(pool="nowhere")),
            caller.stage(first.volume_id, DEVICE),
        ):
            assert await refused(call) in UNSURE
        await caller.client.call(methods.PROBE, csi.ProbeRequest())
        assert await caller.volumes() == [first.volume_id]
    finally:
        ceph.signal("mon", signal.SIGCONT)
    second = await settled(
        partial(caller.create, "pvc-2", topology=in_zone("a"), capability=DEVICE)
    )
    await settled(partial(caller.stage, first.volume_id, DEVICE))
    await caller.unstage(first.volume_id)
    for volume in (first, second):
        await settled(partial(caller.delete, volume.volume_id))


async def test_a_driver_that_was_blocklisted(ceph: CephCluster, tmp_path: Path) -> None:
    """A blocklisted driver reconnects and works: a takeover or an administrator may have meant
    another client.
    """
    with calling(ceph, tmp_path) as caller:
        first = await caller.create("pvc-1", topology=in_zone("a"), capability=DEVICE)
        addresses = caller.storage.ceph.handle().get_addrs()
        address = addresses.strip("[]").split(",")[0].removeprefix("v2:").removeprefix("v1:")
        ceph.command("osd blocklist", blocklistop="add", addr=address)
        again = await settled(
            partial(caller.create, "pvc-2", topology=in_zone("a"), capability=DEVICE)
        )
        for volume in (first, again):
            await settled(partial(caller.delete, volume.volume_id))
        assert await caller.volumes() == []
        ceph.command("osd blocklist", blocklistop="rm", addr=address)


async def test_a_driver_that_starts_while_a_zone_is_dead(
    ceph: CephCluster, caller: CephCaller, tmp_path: Path
) -> None:
    """A driver that starts while a zone is dead cannot know whether its pools have a journal;
    volumes of other journals work.
    """
    first = await caller.create("pvc-1", topology=in_zone("a"), capability=DEVICE)
    head, _, tail = str(first.volume_id).split("-", 2)
    unknown = f"{head}-{'0' * 32}-{tail}"
    pools = [pool(f"rbd-{zone}", zone) for zone in "abc"]
    with stopped(ceph, "osd.1", "noup"):
        ceph.command("osd down", ids=["1"])
        ceph.wait("OSDs", lambda: ceph.up() == 2)
        with calling(ceph, tmp_path / "second", pools=pools) as second:
            async with asyncio.timeout(90):
                await settled(partial(second.stage, first.volume_id, DEVICE))
                await second.unstage(first.volume_id)
                again = await settled(
                    partial(second.create, "pvc-2", topology=in_zone("a"), capability=DEVICE)
                )
            assert again.volume_context["pool"] == "rbd-a"
            # It may be in a journal that does not answer.
            assert await refused(second.delete(unknown)) in UNSURE
    for volume in (first, again):
        await settled(partial(caller.delete, volume.volume_id))


async def test_the_trash_of_other_zones_is_emptied_while_one_is_dead(
    ceph: CephCluster, caller: CephCaller
) -> None:
    """Pools of the dead zone do not answer; the trash of the pools after them is emptied."""
    import rbd

    volume = await caller.create("pvc-1", topology=in_zone("c"), capability=DEVICE)
    with stopped(ceph, "osd.1", "noup"):
        ceph.command("osd down", ids=["1"])
        ceph.wait("OSDs", lambda: ceph.up() == 2)
        async with asyncio.timeout(60):
            await settled(partial(caller.delete, volume.volume_id))
            there = caller.storage.ceph.open_pool("rbd-c")
            await until(lambda: not [*rbd.RBD().trash_list(there)])


def test_failed_attempts_to_connect_leave_nothing_behind(
    ceph: CephCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a cluster is away, failed attempts leak neither threads nor open files."""
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 1)
    monkeypatch.setattr(connection, "UNREACHABLE_SECONDS", 0.0)
    labels = parse_domain_labels("", "csi.example.com")
    (there,) = parse_configuration(config(ceph), labels).clusters
    away = connection.CephConnection(replace(there, monitors=("v2:127.0.0.1:1",)))

    def count_resources() -> list[int]:
        with pytest.raises(CsiError, match="did not answer"):
            away.handle()
        return [len([*Path(f"/proc/self/{kind}").iterdir()]) for kind in ("task", "fd")]

    assert count_resources() == count_resources()


async def test_deadlines_shorter_than_the_work(ceph: CephCluster, tmp_path: Path) -> None:
    """After a timed out create, a repeated one gives the same volume; journal and pools agree."""
    program = CephProgram(tmp_path)
    program.config.write_text(config(ceph))
    async with running(program) as plain:
        caller = CephCaller(plain.client, tmp_path)
        for number, seconds in enumerate((0.001, 0.005, 0.01, 0.02, 0.04)):
            request = csi.CreateVolumeRequest(
                name=f"pvc-{number}",
                capacity_range=csi.CapacityRange(required_bytes=1 << 24),
                volume_capabilities=[DEVICE],
                parameters=parameters(),
            )
            with suppress(Exception):
                await plain.client.call(methods.CREATE_VOLUME, request, timeout=seconds)
        ids = [
            (await settled(partial(caller.create, f"pvc-{number}", capability=DEVICE))).volume_id
            for number in range(5)
        ]
        assert sorted(await caller.volumes()) == sorted(ids)
        code, report = program.check()
        assert (code, report["orphans"], report["missing"]) == (0, [], [])
        for id in ids:
            await settled(partial(caller.delete, id))


async def test_a_snapshots_name_and_a_kill(
    ceph: CephCluster, caller: CephCaller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot's name has one source; one that was killed between snap and clone is finished, and
    no snap is left.
    """
    import rbd

    volumes: Any = []
    for number in range(2):
        volumes.append(
            await caller.create(f"pvc-{number}", topology=in_zone("a"), capability=DEVICE)
        )
    with calling(ceph, tmp_path / "one") as first, monkeypatch.context() as patch:
        let_die(patch, first, "reserve")
        with suppress(Killed):
            await first.snapshot("snap-1", volumes[0].volume_id)
    (entry,) = caller.storage.journal.list_page(StoredKind.SNAPSHOT).entries
    pool, name = caller.storage.ceph.open_pool("rbd-a"), image_of(volumes[0].volume_id)
    with rbd.Image(pool, name) as image:
        image.create_snap(f"zw-{entry.uuid}")
    snapshot = await settled(lambda: caller.snapshot("snap-1", volumes[0].volume_id))
    with rbd.Image(pool, name, read_only=True) as image:
        user = rbd.RBD_SNAP_NAMESPACE_TYPE_USER
        assert [snap for snap in image.list_snaps() if snap["namespace"] == user] == []
    code = await refused(caller.snapshot("snap-1", volumes[1].volume_id))
    assert code is Code.ALREADY_EXISTS
    await settled(lambda: caller.delete_snapshot(snapshot.snapshot_id))
    for volume in volumes:
        await settled(partial(caller.delete, volume.volume_id))
