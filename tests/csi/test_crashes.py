"""Killed at any step: one volume per name, journal and disk agree, nothing is lost.

The sweep interrupts every single step of a call, once before and once after its effect, and
repeats the call in a new driver. The storm kills the real program with calls in flight.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.csi.scene import (
    DRIVER,
    LABELS,
    MIB,
    Caller,
    Program,
    config,
    files,
    left_behind,
    mount_capability,
    of_snapshot,
    of_volume,
    pool,
    refused,
    requirement,
    segments,
)
from tests.csi.socket_client import SocketClient

from zonewise.csi.check import check
from zonewise.csi.driver import open_data_folder, open_driver
from zonewise.csi.errors import Code, CsiError
from zonewise.csi.node_domain import FixedDomain
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport.calls import run_inline
from zonewise.csi.transport.client import InProcessClient
from zonewise.storage.configuration import parse_configuration
from zonewise.storage.domains import parse_domain_labels

TERMS = [segments("a"), segments("b"), segments("c")]
AGAIN = (Code.ABORTED, Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.CANCELLED)


def rotated(turn: int) -> csi.TopologyRequirement:
    """All zones, another one preferred at each turn."""
    turn %= len(TERMS)
    return requirement(TERMS, TERMS[turn:] + TERMS[:turn])


class Killed(BaseException):
    """The process is gone: nothing of it runs any more, not even a handler."""


class Mortal:
    """Counts the calls of guarded methods, and dies at one of them."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0

    def guard(self, part: Any, *names: str) -> None:
        """Guard these methods of a part."""
        for name in names:
            setattr(part, name, self._guarded(getattr(part, name)))

    def _guarded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            self._step()
            result = call(*args, **kwargs)
            self._step()
            return result

        return guarded

    def _step(self) -> None:
        self.count += 1
        if self.count >= self.at > 0:
            raise Killed


@asynccontextmanager
async def life(folder: Path, access: bool, mortal: Mortal, text: str = "") -> AsyncIterator[Caller]:
    """A driver that may die; at its end it holds nothing any more, as a dead process."""
    labels = parse_domain_labels(LABELS, DRIVER)
    configuration = parse_configuration(text or config(), labels)
    data = open_data_folder(folder / "data", privileged=access)
    mortal.guard(data.journal, "reserve", "change", "forget")
    mortal.guard(data.pools, "make", "remove", "grow")
    driver = open_driver(
        DRIVER,
        data,
        labels,
        lambda: configuration,
        node_id="node-1",
        domain=FixedDomain({"region": "r1", "zone": "a"}),
        worker=run_inline,
    )
    try:
        yield Caller(InProcessClient(driver.calls), folder)
    finally:
        data.close()


async def prepared(caller: Caller) -> None:
    """Create what some of the calls need: a volume and a snapshot of it."""
    volume = await caller.create("source")
    await caller.snapshot("base", volume.volume_id)


async def source(caller: Caller) -> csi.Volume:
    return await caller.create("source")


async def make_volume(caller: Caller, turn: int) -> None:
    await caller.create("v", topology=rotated(turn))


async def make_clone(caller: Caller, turn: int) -> None:
    await caller.create(
        "v",
        source=of_volume((await source(caller)).volume_id),
        parameters={"crossDomain": "copy"},
        topology=rotated(turn),
    )


async def make_restored(caller: Caller, turn: int) -> None:
    base = await caller.snapshot("base", (await source(caller)).volume_id)
    await caller.create("v", source=of_snapshot(base.snapshot_id))


async def make_snapshot(caller: Caller, _turn: int) -> None:
    await caller.snapshot("s", (await source(caller)).volume_id)


async def grow(caller: Caller, _turn: int) -> None:
    await caller.expand((await source(caller)).volume_id, 32 * MIB)


async def delete_source(caller: Caller, _turn: int) -> None:
    volumes = await caller.volumes()
    if volumes:
        await caller.delete(volumes[0])


async def delete_snapshot(caller: Caller, _turn: int) -> None:
    from zonewise.csi.transport import methods

    answer = await caller.client.call(methods.LIST_SNAPSHOTS, csi.ListSnapshotsRequest())
    for entry in answer.entries:
        await caller.delete_snapshot(entry.snapshot.snapshot_id)


WORK = {
    "create": (make_volume, 2, 1),
    "clone": (make_clone, 2, 1),
    "restore": (make_restored, 2, 1),
    "snapshot": (make_snapshot, 1, 2),
    "expand": (grow, 1, 1),
}
"""The call, and how many volumes and snapshots there are afterwards."""


@pytest.mark.parametrize("access", [True, False], ids=["images", "folders"])
@pytest.mark.parametrize("name", WORK)
async def test_every_step_of_making_may_be_the_last(
    tmp_path: Path, name: str, access: bool
) -> None:
    """If a create is killed at any step, one repeated with another preference makes exactly one."""
    work, volumes, snapshots = WORK[name]
    await swept(tmp_path, access, work, volumes, snapshots)


@pytest.mark.parametrize("access", [True, False], ids=["images", "folders"])
async def test_every_step_of_deleting_may_be_the_last(tmp_path: Path, access: bool) -> None:
    """If a delete is killed at any step, a repeated one leaves nothing behind."""
    at = 0
    while True:
        at += 1
        folder = tmp_path / f"at-{at}"
        folder.mkdir()
        async with life(folder, access, Mortal(0)) as caller:
            await prepared(caller)
            (id,) = await caller.volumes()
        mortal = Mortal(at)
        finished = False
        try:
            async with life(folder, access, mortal) as caller:
                await caller.delete(id)
                finished = True
        except Killed:
            pass
        async with life(folder, access, Mortal(0)) as caller:
            await caller.delete(id)
            assert await caller.volumes() == []
            await delete_snapshot(caller, 0)
        assert agrees(folder, access) == (0, 0)
        assert not [path for path in files(folder / "data" / "pools") if "/" in path]
        if finished:
            assert at > 4
            return


@pytest.mark.parametrize("at", [3, 4], ids=["before", "after"])
async def test_what_was_not_finished_is_undone_if_its_source_grew(tmp_path: Path, at: int) -> None:
    """If a copy was killed before or after it was made, a retry that is too small for its source
    leaves nothing behind.
    """
    async with life(tmp_path, False, Mortal(0)) as caller:
        volume = await caller.create("source")
    with pytest.raises(Killed):
        async with life(tmp_path, False, Mortal(at)) as caller:
            await caller.create("v", source=of_volume(volume.volume_id))
    async with life(tmp_path, False, Mortal(0)) as caller:
        await caller.expand(volume.volume_id, 32 * MIB)
        again = caller.create("v", source=of_volume(volume.volume_id))
        assert await refused(again) is Code.OUT_OF_RANGE
    assert agrees(tmp_path, False) == (1, 0)


@pytest.mark.parametrize("at", [3, 4], ids=["before", "after"])
async def test_what_was_not_finished_is_undone_without_its_pool(tmp_path: Path, at: int) -> None:
    """If a create was killed before or after its image was made, a retry by a class that lost its
    pool leaves nothing behind.
    """
    with pytest.raises(Killed):
        async with life(tmp_path, False, Mortal(at)) as caller:
            await caller.create("v", parameters={"pool": "pool-b"})
    async with life(tmp_path, False, Mortal(0), config(pool("pool-a", "a"))) as caller:
        again = caller.create("v", parameters={"pool": "pool-b"})
        assert await refused(again) is Code.INVALID_ARGUMENT
    assert agrees(tmp_path, False) == (0, 0)


async def swept(
    tmp_path: Path,
    access: bool,
    work: Callable[[Caller, int], Awaitable[None]],
    volumes: int,
    snapshots: int,
) -> None:
    """Die at the first step, then at the second, until the work finishes before that."""
    at = 0
    while True:
        at += 1
        folder = tmp_path / f"at-{at}"
        folder.mkdir()
        async with life(folder, access, Mortal(0)) as caller:
            await prepared(caller)
        finished = False
        try:
            async with life(folder, access, Mortal(at)) as caller:
                await work(caller, 0)
                finished = True
        except Killed:
            pass
        async with life(folder, access, Mortal(0)) as caller:
            await work(caller, 1)
            await work(caller, 2)
        assert agrees(folder, access) == (volumes, snapshots)
        if finished:
            assert at > 2
            return


def agrees(folder: Path, access: bool) -> tuple[int, int]:
    """Check that journal and disk agree; returns the numbers of volumes and snapshots."""
    data = open_data_folder(folder / "data", privileged=access)
    try:
        report, fine = check(data.journal, data.pools)
    finally:
        data.close()
    assert fine, report
    states = [entry["state"] for kind in ("volumes", "snapshots") for entry in report[kind]]
    assert set(states) <= {"created"}, report
    return len(report["volumes"]), len(report["snapshots"])


class Storm:
    """Creates, copies and deletes many volumes at once, and repeats each call through kills."""

    def __init__(self, program: Program, seed: int) -> None:
        self.program = program
        self.random = random.Random(seed)
        self.answers = 0
        self.deaths = 0
        self.next_death = 5
        self.volumes: dict[str, str] = {}
        self.snapshots: dict[str, str] = {}
        self._reborn = asyncio.Lock()

    async def again(self, call: Callable[[Caller, int], Awaitable[Any]]) -> Any:
        """Call until there is an answer; the preference rotates with each attempt."""
        turn = self.random.randrange(3)
        while True:
            turn += 1
            client = SocketClient(self.program.socket)
            try:
                answer = await call(Caller(client, self.program.folder), turn)
            except CsiError as error:
                if error.code not in AGAIN:
                    raise
                async with self._reborn:
                    if self.program.process is None:
                        self.program.start()
                        await self.program.ready()
                continue
            finally:
                await client.close()
            self.answers += 1
            if self.answers >= self.next_death and self.program.process is not None:
                # Other calls are in flight now, and are hit by this.
                self.program.kill()
                self.deaths += 1
                self.next_death = self.answers + self.random.randrange(3, 12)
            return answer

    async def exercise(self, number: int) -> None:
        """Create, snapshot and copy a volume, and delete the volume or the snapshot."""
        name = f"v{number}"
        capability = mount_capability()
        volume = await self.again(
            lambda c, turn: c.create(name, topology=rotated(turn), capability=capability)
        )
        snapshot = await self.again(lambda c, _: c.snapshot(f"{name}-s", volume.volume_id))
        clone = await self.again(
            lambda c, _: c.create(f"{name}-c", source=of_volume(volume.volume_id))
        )
        same = await self.again(
            lambda c, turn: c.create(name, topology=rotated(turn), capability=capability)
        )
        assert same == volume
        self.volumes[f"{name}-c"] = clone.volume_id
        if number % 2:
            await self.again(lambda c, _: c.delete(volume.volume_id))
            self.snapshots[f"{name}-s"] = snapshot.snapshot_id
        else:
            await self.again(lambda c, _: c.delete_snapshot(snapshot.snapshot_id))
            self.volumes[name] = volume.volume_id


@pytest.mark.system
@pytest.mark.timeout(600)
async def test_a_controller_killed_under_load_loses_nothing(tmp_path: Path) -> None:
    """kill -9 with calls in flight, again and again: ``check`` lists exactly what was answered."""
    program = Program(tmp_path)
    program.start()
    storm = Storm(program, seed=7)
    try:
        await program.ready()
        width = asyncio.Semaphore(6)

        async def bounded(number: int) -> None:
            async with width:
                await storm.exercise(number)

        await asyncio.gather(*(bounded(number) for number in range(10)))
    finally:
        if program.process is not None:
            program.kill()
    assert storm.deaths >= 4
    code, report = program.check()
    assert code == 0, report
    assert {entry["name"]: entry["id"] for entry in report["volumes"]} == storm.volumes
    assert {entry["name"]: entry["id"] for entry in report["snapshots"]} == storm.snapshots
    assert {entry["state"] for kind in ("volumes", "snapshots") for entry in report[kind]} == {
        "created"
    }
    images = {path.stem for path in (program.data / "pools").glob("*/*")}
    assert images == {*storm.volumes.values(), *storm.snapshots.values()}
    assert left_behind(tmp_path) == []
