"""An rbd-fuse that is killed under a volume: it is told, and the volume comes back."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from tests.ceph.scene import CephCaller, calling
from tests.ceph.waiting import settled
from tests.csi.scene import MIB, Mode, mount_capability, refused
from tools.ceph.cluster import CephCluster

from zonewise.csi.backends.ceph import fuse
from zonewise.csi.errors import Code

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


def clients_of(caller: CephCaller, id: str) -> list[int]:
    """The processes that show a volume."""
    folder = caller.folder.resolve() / "data-a" / "rbd" / id.split("-")[1]
    return list(fuse.find_processes(folder))


def blocklisted(ceph: CephCluster) -> set[str]:
    """Who is shut out."""
    return {*ceph.command("osd dump")["blocklist"]}


async def test_a_client_that_dies(ceph: CephCluster, tmp_path: Path) -> None:
    """Stats say so; staged and published again the volume has what was written."""
    with calling(ceph, tmp_path) as caller:
        xfs = mount_capability(fs_type="xfs")
        made = await caller.create("pvc-1", size=320 * MIB, capability=xfs)
        await caller.stage(made.volume_id, xfs)
        target = await caller.publish(made.volume_id, xfs)
        (target / "marker").write_text("here")
        descriptor = os.open(target / "marker", os.O_RDONLY)
        os.fsync(descriptor)
        before = blocklisted(ceph)
        (client,) = clients_of(caller, made.volume_id)
        os.kill(client, signal.SIGKILL)
        while clients_of(caller, made.volume_id):
            pass
        assert await refused(caller.stats(made.volume_id)) is Code.INTERNAL
        assert await refused(caller.publish(made.volume_id, xfs)) is Code.INTERNAL
        await settled(partial(caller.stage, made.volume_id, xfs))
        await caller.publish(made.volume_id, xfs)
        assert (target / "marker").read_text() == "here"
        assert await caller.stats(made.volume_id)
        with suppress(OSError):
            os.close(descriptor)
        await caller.unpublish(made.volume_id)
        await caller.unstage(made.volume_id)
        assert clients_of(caller, made.volume_id) == []
        await settled(partial(caller.delete, made.volume_id))
        for address in blocklisted(ceph) - before:
            ceph.command("osd blocklist", blocklistop="rm", addr=address)


async def test_a_dead_one_is_taken_away(ceph: CephCluster, tmp_path: Path) -> None:
    """A pod whose volume answers nothing can go, and the next one starts with its data."""
    xfs = mount_capability(fs_type="xfs")
    with calling(ceph, tmp_path) as caller:
        before = blocklisted(ceph)
        made = await caller.create("pvc-1", size=320 * MIB, capability=xfs)
        for life in range(2):
            await settled(partial(caller.stage, made.volume_id, xfs))
            target = await caller.publish(made.volume_id, xfs)
            if life:
                assert (target / "marker").read_text() == "here"
            else:
                (target / "marker").write_text("here")
                with (target / "marker").open() as file:
                    os.fsync(file.fileno())
                (client,) = clients_of(caller, made.volume_id)
                os.kill(client, signal.SIGKILL)
            await caller.unpublish(made.volume_id)
            await caller.unstage(made.volume_id)
        await settled(partial(caller.delete, made.volume_id))
        for address in blocklisted(ceph) - before:
            ceph.command("osd blocklist", blocklistop="rm", addr=address)


async def test_other_readers_go_on(ceph: CephCluster, tmp_path: Path) -> None:
    """Of several nodes that read a volume one loses its client: nobody is shut out."""
    writing, reading = mount_capability(), mount_capability(Mode.MULTI_NODE_READER_ONLY)
    for name in "ab":
        (tmp_path / name).mkdir()
    with calling(ceph, tmp_path / "a") as one, calling(ceph, tmp_path / "b", "b") as other:
        made = await one.create("pvc-1", capability=writing)
        id = made.volume_id
        await one.stage(id, writing)
        (await one.publish(id, writing) / "marker").write_text("here")
        await one.unpublish(id)
        await one.unstage(id)
        before = blocklisted(ceph)
        for caller in (one, other):
            await settled(partial(caller.stage, id, reading))
            await caller.publish(id, reading)
        (client,) = clients_of(one, id)
        os.kill(client, signal.SIGKILL)
        while clients_of(one, id):
            pass
        await settled(partial(one.stage, id, reading))
        await one.publish(id, reading)
        for caller in (one, other):
            assert (caller.target / "marker").read_text() == "here"
        assert blocklisted(ceph) == before
        for caller in (one, other):
            await caller.unpublish(id)
            # Closing an image waits for a client that is not known to be dead, for half a minute.
            await settled(partial(caller.unstage, id))
        await settled(partial(one.delete, id))
