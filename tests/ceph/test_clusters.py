"""Two real Ceph clusters behind one driver: a volume is in one, and none waits for the other."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.ceph import scene
from tests.ceph.scene import CephFsProgram, CephProgram, parameters
from tests.ceph.waiting import UNSURE, settled, until
from tests.csi.scene import (
    MIB,
    Caller,
    left_behind,
    of_snapshot,
    of_volume,
    pool,
    refused,
    requirement,
    running,
    segments,
)
from tools.ceph.cluster import CephCluster, started

from zonewise.csi.backends.ceph.clusters import CephClusters, open_rbd
from zonewise.csi.backends.ceph.rbd.images import RbdImages
from zonewise.csi.check import check_all
from zonewise.csi.driver import LANE_WORKERS, Threads, open_driver
from zonewise.csi.errors import Code, CsiError
from zonewise.csi.node_domain import FixedDomain
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport import methods
from zonewise.csi.transport.client import InProcessClient
from zonewise.storage.configuration import StorageConfiguration, parse_configuration
from zonewise.storage.domains import parse_domain_labels

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

NOBODY = ["v2:127.0.0.1:1"]
LABELS = parse_domain_labels("example.com/region;example.com/zone", "csi.example.com")


@pytest.fixture(scope="module")
def pair(ceph: CephCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The clusters ``east``, with a file system, and ``west``."""
    with started(tmp_path_factory.mktemp("west"), files=True) as west:
        for cluster in (ceph, west):
            cluster.pool("spread", "zones", size=3)
            cluster.wait("numbers", cluster.counted)
        yield {"east": ceph, "west": west}


def clusters(pair: dict[str, CephCluster], *names: str, **more: Any) -> dict[str, Any]:
    """``clusters`` of a configuration, and more."""
    entries = [
        {**pair[name].clusters()[0], "clusterID": name} for name in names or ("east", "west")
    ]
    return {"version": 2, "clusters": entries, **more}


def of(cluster: str, **more: str) -> dict[str, str]:
    """A class of a cluster."""
    return parameters(clusterID=cluster, **more)


class Pair(Caller):
    """A driver with both clusters."""

    storage: CephClusters[RbdImages]
    configurations: list[StorageConfiguration]

    def use(self, text: dict[str, Any]) -> None:
        """Let the driver use a changed configuration file."""
        self.configurations.append(parse_configuration(json.dumps(text), LABELS))
        self.storage.apply_configuration(self.configurations[-1])


@asynccontextmanager
async def driver(
    pair: dict[str, CephCluster], folder: Path, zone: str = "a", **more: Any
) -> AsyncIterator[Pair]:
    """A driver in this process, with threads as the program has them."""
    configurations = [parse_configuration(json.dumps(clusters(pair, **more)), LABELS)]
    storage, threads = open_rbd(folder / "data", configurations[-1], lease=scene.LEASE), Threads()
    opened = open_driver(
        "csi.example.com",
        storage,
        LABELS,
        lambda: configurations[-1],
        node_id=f"node-{zone}",
        domain=FixedDomain({"region": "r1", "zone": zone}),
        worker=threads,
    )
    caller = Pair(InProcessClient(opened.calls), folder)
    caller.storage, caller.configurations = storage, configurations
    try:
        yield caller
    finally:
        await opened.calls.finish()
        threads.close()
        storage.close()
    assert left_behind(folder) == []


def images(caller: Pair) -> dict[str, int]:
    """The number of our images in each cluster."""
    by_name = caller.storage.clusters().items()
    return {name: len(cluster.backend.list_images()) for name, cluster in by_name}


async def refusal(call: Any) -> CsiError:
    """The error that a call is refused with."""
    with pytest.raises(CsiError) as caught:
        await call
    return caught.value


async def test_a_volume_is_in_the_cluster_of_its_class(
    pair: dict[str, CephCluster], tmp_path: Path
) -> None:
    """A volume is made, copied, listed and mounted in the cluster of its class, which its id names;
    no copy leaves it.
    """
    async with driver(pair, tmp_path) as caller:
        volumes = {name: await caller.create("pvc-1", parameters=of(name)) for name in pair}
        ids = {name: volume.volume_id for name, volume in volumes.items()}
        assert all(ids[name].endswith(f"-{name}") and len(ids[name]) <= 128 for name in pair)
        assert images(caller) == {"east": 1, "west": 1}
        assert sorted(ids.values()) == sorted(await caller.volumes())
        first = await caller.client.call(
            methods.LIST_VOLUMES, csi.ListVolumesRequest(max_entries=1)
        )
        rest = csi.ListVolumesRequest(starting_token=first.next_token)
        second = await caller.client.call(methods.LIST_VOLUMES, rest)
        pages = [*first.entries, *second.entries]
        assert [entry.volume.volume_id for entry in pages] == await caller.volumes()
        for name, id in ids.items():
            await caller.stage(id, staging=tmp_path / name)
            target = await caller.publish(
                id, staging=tmp_path / name, target=tmp_path / f"{name}-1"
            )
            (target / "marker").write_text(name)
        for name, id in ids.items():
            assert (tmp_path / f"{name}-1" / "marker").read_text() == name
            assert (await caller.stats(id, tmp_path / f"{name}-1"))[0].total
            await caller.unpublish(id, tmp_path / f"{name}-1")
            await caller.unstage(id, tmp_path / name)
        snapshot = await caller.snapshot("snap-1", ids["west"])
        assert snapshot.snapshot_id.endswith("-west")
        assert images(caller) == {"east": 1, "west": 2}
        restored = await caller.create(
            "pvc-2", parameters=of("west"), source=of_snapshot(snapshot.snapshot_id)
        )
        for source in (of_snapshot(snapshot.snapshot_id), of_volume(ids["west"])):
            error = await refusal(caller.create("pvc-3", parameters=of("east"), source=source))
            assert error.code is Code.INVALID_ARGUMENT
            assert "cluster west" in error.message
        await caller.expand(ids["east"], 32 * MIB)
        for id in (*ids.values(), restored.volume_id):
            await caller.delete(id)
        await caller.delete_snapshot(snapshot.snapshot_id)
        assert images(caller) == {"east": 0, "west": 0}


async def test_what_a_class_must_say(pair: dict[str, CephCluster], tmp_path: Path) -> None:
    """A class must name one of several clusters; free space without a class is that of all."""
    pools = [pool(f"rbd-{zone}", zone) for zone in "abc"]
    async with driver(pair, tmp_path, pools=pools) as caller:
        missing = await refusal(caller.create("pvc-1", parameters=parameters()))
        unknown = await refusal(caller.create("pvc-1", parameters=of("north")))
        for error in (missing, unknown):
            assert error.code is Code.INVALID_ARGUMENT
            assert "east, west" in error.message
        request = csi.GetCapacityRequest(parameters=of("east"))
        capacity = await caller.client.call(methods.GET_CAPACITY, request)
        assert await caller.free() == 2 * capacity.available_capacity > 0
        caller.use(clusters(pair, "west"))
        volume = await caller.create("pvc-1", parameters=parameters())
        assert volume.volume_id.endswith("-west")
        await caller.delete(volume.volume_id)


async def test_clusters_come_and_go(pair: dict[str, CephCluster], tmp_path: Path) -> None:
    """Clusters are added, renamed and removed without a restart; volumes of a removed one stay."""
    async with driver(pair, tmp_path) as caller:
        caller.use(clusters(pair, "east"))
        east = await caller.create("pvc-1", parameters=parameters())
        assert await refused(caller.create("pvc-2", parameters=of("west"))) is Code.INVALID_ARGUMENT
        caller.use(clusters(pair))
        west = await caller.create("pvc-2", parameters=of("west"))
        await caller.stage(west.volume_id)
        caller.use(clusters(pair, "east"))
        for call in (
            caller.delete(west.volume_id),
            caller.stage(west.volume_id),
            caller.expand(west.volume_id, 32 * MIB),
            caller.snapshot("snap-1", west.volume_id),
        ):
            error = await refusal(call)
            assert error.code is Code.FAILED_PRECONDITION
            assert "cluster west" in error.message
        await caller.unstage(west.volume_id)
        text = clusters(pair)
        text["clusters"][1]["clusterID"] = "renamed"
        caller.use(text)
        await caller.stage(west.volume_id)
        await caller.unstage(west.volume_id)
        assert sorted(await caller.volumes()) == sorted([east.volume_id, west.volume_id])
        await caller.delete(west.volume_id)
        await caller.delete(east.volume_id)
        assert images(caller) == {"east": 0, "renamed": 0}


@contextmanager
def stopped(ceph: CephCluster) -> Iterator[None]:
    """A cluster whose OSDs do not answer for a while."""
    ceph.command("osd set", key="nodown")
    for number in range(3):
        ceph.signal(f"osd.{number}", signal.SIGSTOP)
    try:
        yield
    finally:
        for number in range(3):
            ceph.signal(f"osd.{number}", signal.SIGCONT)
        ceph.command("osd unset", key="nodown")


async def used(caller: Pair, waiting: list[asyncio.Task[Any]]) -> None:
    """Create, use and delete a volume of the east while other calls wait."""
    await asyncio.sleep(0)
    volume = await caller.create("pvc-1", parameters=of("east"))
    assert not any(task.done() for task in waiting)
    await caller.stage(volume.volume_id)
    await caller.publish(volume.volume_id)
    await caller.unpublish(volume.volume_id)
    await caller.unstage(volume.volume_id)
    await caller.delete(volume.volume_id)
    assert (await caller.client.call(methods.PROBE, csi.ProbeRequest())).ready.value


async def test_a_stopped_cluster_does_not_delay_the_other(
    pair: dict[str, CephCluster], tmp_path: Path
) -> None:
    """While as many calls as threads wait for a stopped cluster, the other can be used."""
    async with driver(pair, tmp_path) as caller:
        await caller.create("pvc-0", parameters=of("west"))
        with stopped(pair["west"]):
            waiting = [
                asyncio.create_task(caller.create(f"pvc-{number}", parameters=of("west")))
                for number in range(LANE_WORKERS)
            ]
            await used(caller, waiting)
            errors = [await refusal(task) for task in waiting]
            assert {error.code for error in errors} <= {*UNSURE}
            assert any("cluster west" in error.message for error in errors)
            # A partial list would mean that the rest is gone.
            assert await refused(caller.volumes()) in UNSURE
        for id in await settled(caller.volumes):
            await settled(partial(caller.delete, id))
        assert images(caller) == {"east": 0, "west": 0}


async def test_a_cluster_without_monitors_does_not_delay_the_others(
    pair: dict[str, CephCluster], tmp_path: Path
) -> None:
    """Calls to a cluster without monitors fail soon; capacity, health and check work without it."""
    text = clusters(pair, pools=[pool(f"rbd-{zone}", zone) for zone in "abc"])
    async with driver(pair, tmp_path) as caller:
        caller.use(text)
        free = await caller.free()
        text["clusters"].append({**text["clusters"][0], "clusterID": "north", "monitors": NOBODY})
        caller.use(text)
        waiting = [
            asyncio.create_task(caller.create(f"pvc-{number}", parameters=of("north")))
            for number in range(2 * LANE_WORKERS)
        ]
        await used(caller, waiting)
        assert {error.code for error in [await refusal(task) for task in waiting]} <= {*UNSURE}
        assert await refused(caller.volumes()) is Code.UNAVAILABLE
        assert await caller.free() == free
        assert caller.storage.read_domain_health(LABELS) == (frozenset("abc"), frozenset())
        report, agrees = check_all(caller.storage, caller.configurations[-1])
        assert not agrees
        assert [entry["cluster"] for entry in report["away"]] == ["north"]


async def test_a_node_is_shut_out_of_the_cluster_of_its_volume(
    pair: dict[str, CephCluster], tmp_path: Path
) -> None:
    """A takeover blocklists the client only in the cluster of its volume; the data is read in b."""

    def listed(name: str) -> set[str]:
        return {*pair[name].command("osd dump")["blocklist"]}

    spread = parameters()["topologyConstrainedPools"].replace("rbd-a", "spread")
    taken = {"topology-takeover": {"a": ["b"]}}
    before = listed("west")
    async with (
        driver(pair, tmp_path / "a") as a,
        driver(pair, tmp_path / "b", "b", **taken) as b,
    ):
        volume = await a.create(
            "pvc-1",
            topology=requirement([segments("a")]),
            parameters=of("west", topologyConstrainedPools=spread),
        )
        id = volume.volume_id
        await a.stage(id)
        there = await a.publish(id)
        (there / "marker").write_text("from a")
        os.sync()
        await b.stage(id)
        target = await b.publish(id)
        assert (target / "marker").read_text() == "from a"
        # Others may be added meanwhile: an mds blocklists clients that earlier tests killed.
        added = listed("west") - before
        assert added
        assert not added & listed("east")
        for caller in (a, b):
            await caller.unpublish(id)
            await caller.unstage(id)
        await b.delete(id)


async def test_a_driver_that_was_blocklisted_in_one_of_them(
    ceph: CephCluster, tmp_path: Path
) -> None:
    """A driver that one cluster blocklisted reconnects to that cluster only; here one cluster has
    two names.
    """
    async with driver({"east": ceph, "west": ceph}, tmp_path) as caller:
        first = await caller.create("pvc-1", parameters=of("west"))
        before = dict(caller.storage.clusters())
        addresses = before["west"].ceph.handle().get_addrs()
        address = addresses.strip("[]").split(",")[0].removeprefix("v2:").removeprefix("v1:")
        ceph.command("osd blocklist", blocklistop="add", addr=address)
        # OSDs learn of it one after the other: a call may still pass.
        again = await settled(partial(caller.create, "pvc-2", parameters=of("west")))
        async with asyncio.timeout(60):
            while caller.storage.clusters()["west"] is before["west"]:
                again = await settled(partial(caller.create, "pvc-2", parameters=of("west")))
                await asyncio.sleep(0.1)
        after = caller.storage.clusters()
        assert (after["west"] is before["west"], after["east"] is before["east"]) == (False, True)
        for volume in (first, again):
            await settled(partial(caller.delete, volume.volume_id))
        assert await caller.volumes() == []
        ceph.command("osd blocklist", blocklistop="rm", addr=address)


async def test_the_program(pair: dict[str, CephCluster], tmp_path: Path) -> None:
    """A changed file is used within seconds, a wrong one is not; ``check`` covers all clusters."""
    program = CephProgram(tmp_path)
    program.config.write_text(json.dumps(clusters(pair, "east")))
    async with running(program) as plain:
        volumes = [await plain.create("pvc-1", parameters=parameters())]
        twice = clusters(pair, "east", "east")
        program.config.write_text(json.dumps(twice))
        await until(lambda: "'east' is given twice" in program.log)
        volumes.append(await plain.create("pvc-2", parameters=parameters()))
        text, key = clusters(pair), tmp_path / "key"
        text["clusters"][1]["keyFile"] = str(key)
        program.config.write_text(json.dumps(text))
        await until(lambda: "was read again" in program.log)
        # A missing key fails only its own cluster.
        assert await refused(plain.create("pvc-3", parameters=of("west"))) is Code.UNAUTHENTICATED
        volumes.append(await plain.create("pvc-4", parameters=of("east")))
        key.write_text(pair["west"].key_file.read_text())
        volumes.append(await plain.create("pvc-3", parameters=of("west")))
        code, report = program.check()
        assert code == 0
        names = sorted(volume["name"] for volume in report["volumes"])
        assert names == ["pvc-1", "pvc-2", "pvc-3", "pvc-4"]
        assert report["away"] == []
        for volume in volumes:
            await plain.delete(volume.volume_id)


async def test_files(pair: dict[str, CephCluster], tmp_path: Path) -> None:
    """Subvolumes are in the file system of their cluster."""
    program = CephFsProgram(tmp_path)
    program.config.write_text(json.dumps(clusters(pair)))
    async with running(program) as caller:
        for name, ceph in pair.items():
            volume = await caller.create("pvc-1", parameters=parameters("fs", clusterID=name))
            assert volume.volume_id.endswith(f"-{name}")
            await caller.stage(volume.volume_id)
            target = await caller.publish(volume.volume_id)
            (target / "marker").write_text(name)
            await caller.unpublish(volume.volume_id)
            await caller.unstage(volume.volume_id)
            listed = ceph.manager("fs subvolume ls", vol_name="files", group_name="zonewise")
            assert [subvolume["name"] for subvolume in listed] == [
                f"zw-vol-{volume.volume_id.split('-')[1]}"
            ]
            await caller.delete(volume.volume_id)
