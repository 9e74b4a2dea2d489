"""An rbd-fuse that is killed under a volume: it is reported, and the volume is recovered."""

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
    """The blocklisted addresses."""
    return {*ceph.command("osd dump")["blocklist"]}


async def test_a_client_that_dies(ceph: CephCluster, tmp_path: Path) -> None:
    """When the client of a volume dies, stats fail; staged and published again it has its data."""
    with calling(ceph, tmp_path) as caller:
        xfs = mount_capability(fs_type="xfs")
        volume = await caller.create("pvc-1", size=320 * MIB, capability=xfs)
        await caller.stage(volume.volume_id, xfs)
        target = await caller.publish(volume.volume_id, xfs)
        (target / "marker").write_text("here")
        descriptor = os.open(target / "marker", os.O_RDONLY)
        os.fsync(descriptor)
        before = blocklisted(ceph)
        (client,) = clients_of(caller, volume.volume_id)
        os.kill(client, signal.SIGKILL)
        while clients_of(caller, volume.volume_id):
            pass
        assert await refused(caller.stats(volume.volume_id)) is Code.INTERNAL
        assert await refused(caller.publish(volume.volume_id, xfs)) is Code.INTERNAL
        await settled(partial(caller.stage, volume.volume_id, xfs))
        await caller.publish(volume.volume_id, xfs)
        assert (target / "marker").read_text() == "here"
        assert await caller.stats(volume.volume_id)
        with suppress(OSError):
            os.close(descriptor)
        await caller.unpublish(volume.volume_id)
        await caller.unstage(volume.volume_id)
        assert clients_of(caller, volume.volume_id) == []
        await settled(partial(caller.delete, volume.volume_id))
        for address in blocklisted(ceph) - before:
            ceph.command("osd blocklist", blocklistop="rm", addr=address)


async def test_a_dead_client_can_be_unmounted(ceph: CephCluster, tmp_path: Path) -> None:
    """A volume that does not answer can be unpublished; the next pod finds its data."""
    xfs = mount_capability(fs_type="xfs")
    with calling(ceph, tmp_path) as caller:
        before = blocklisted(ceph)
        volume = await caller.create("pvc-1", size=320 * MIB, capability=xfs)
        for life in range(2):
            await settled(partial(caller.stage, volume.volume_id, xfs))
            target = await caller.publish(volume.volume_id, xfs)
            if life:
                assert (target / "marker").read_text() == "here"
            else:
                (target / "marker").write_text("here")
                with (target / "marker").open() as file:
                    os.fsync(file.fileno())
                (client,) = clients_of(caller, volume.volume_id)
                os.kill(client, signal.SIGKILL)
            await caller.unpublish(volume.volume_id)
            await caller.unstage(volume.volume_id)
        await settled(partial(caller.delete, volume.volume_id))
        for address in blocklisted(ceph) - before:
            ceph.command("osd blocklist", blocklistop="rm", addr=address)


async def test_other_readers_go_on(ceph: CephCluster, tmp_path: Path) -> None:
    """If one of several reading nodes loses its client, none is blocklisted."""
    writing, reading = mount_capability(), mount_capability(Mode.MULTI_NODE_READER_ONLY)
    for name in "ab":
        (tmp_path / name).mkdir()
    with calling(ceph, tmp_path / "a") as first, calling(ceph, tmp_path / "b", "b") as other:
        volume = await first.create("pvc-1", capability=writing)
        id = volume.volume_id
        await first.stage(id, writing)
        (await first.publish(id, writing) / "marker").write_text("here")
        await first.unpublish(id)
        await first.unstage(id)
        before = blocklisted(ceph)
        for caller in (first, other):
            await settled(partial(caller.stage, id, reading))
            await caller.publish(id, reading)
        (client,) = clients_of(first, id)
        os.kill(client, signal.SIGKILL)
        while clients_of(first, id):
            pass
        await settled(partial(first.stage, id, reading))
        await first.publish(id, reading)
        for caller in (first, other):
            assert (caller.target / "marker").read_text() == "here"
        assert blocklisted(ceph) == before
        for caller in (first, other):
            await caller.unpublish(id)
            # Closing an image waits for a client that is not known to be dead, for half a minute.
            await settled(partial(caller.unstage, id))
        await settled(partial(first.delete, id))
