"""A node that is out of service is fenced on a real Ceph: the OSDs block its clients."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.ceph.scene import calling, config, in_zone
from tests.csi import scene
from tests.csi.scene import MIB, mount_capability, refused
from tools.ceph.cluster import CephCluster

from zonewise.csi.backends.ceph.blocklist import unblock
from zonewise.csi.backends.ceph.clusters import CephClusters, open_cephfs, open_rbd
from zonewise.csi.backends.ceph.connection import CephConnection, CommandFailed
from zonewise.csi.backends.ceph.journals.node_index import NodeIndex
from zonewise.csi.backends.ceph.rbd import fencing
from zonewise.csi.backends.contract import HeldVolume, NodeFencing
from zonewise.csi.backends.folders import mounts
from zonewise.csi.errors import Code, CsiError
from zonewise.storage.configuration import parse_configuration
from zonewise.storage.domains import parse_domain_labels
from zonewise.storage.identifiers import StoredKind

pytestmark = [pytest.mark.real, pytest.mark.asyncio, pytest.mark.timeout(300)]


def blocked(ceph: CephCluster) -> set[str]:
    """The blocklisted addresses."""
    return {*ceph.command("osd dump")["blocklist"]}


RIGHTS = {
    "rbd": {
        "mon": 'profile rbd, allow command "osd blocklist" with blocklistop=rm',
        "osd": "profile rbd, allow rwx pool=journal",
    },
    "fs": {
        "mon": 'allow r, allow command "osd blocklist"',
        "mgr": "allow rw",
        "mds": "allow rw path=/volumes",
        "osd": "allow rw tag cephfs data=files, allow rwx pool=journal",
    },
}


def lead(ceph: CephCluster, folder: Path, kind: str = "rbd", **more: str) -> CephClusters[Any]:
    """The storage as the driver's controller opens it, with the rights that the docs name."""
    rights = RIGHTS[kind] | more
    user = f"fencing-{kind}-{len(more)}"
    created = ceph.command(
        "auth get-or-create",
        entity=f"client.{user}",
        caps=[word for right in rights.items() for word in right],
    )
    file = folder / f"{user}-key"
    file.write_text(created[0]["key"])
    (cluster,) = ceph.clusters()
    text = config(ceph, clusters=[{**cluster, "user": user, "keyFile": str(file)}])
    labels = parse_domain_labels(scene.LABELS, scene.DRIVER)
    opened: Any = open_cephfs if kind == "fs" else open_rbd
    leader: CephClusters[Any] = opened(folder / "leader", parse_configuration(text, labels))
    return leader


async def test_a_node_is_fenced_from_its_images_and_let_in_again(
    ceph: CephCluster, tmp_path: Path
) -> None:
    """Before it is fenced no other node gets its volume, afterwards one does at once and late
    writes are refused; its clients stay out while another node has the volume, until it is booted.
    What is left in the index of a volume that was deleted is removed when it is read.
    """
    capability = mount_capability()
    before = blocked(ceph)
    leader = lead(ceph, tmp_path)
    assert isinstance(leader, NodeFencing)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with calling(ceph, tmp_path / "a", "a") as a, calling(ceph, tmp_path / "b", "b") as b:
        volume = await a.create(
            "fenced", size=32 * MIB, capability=capability, topology=in_zone("a")
        )
        id = volume.volume_id
        await a.stage(id, capability)
        await a.publish(id, capability)
        (a.target / "marker").write_text("from a")
        os.sync()
        assert leader.find_held("node-b") == ([], [])
        ((image,), problems) = leader.find_held("node-a")
        assert (len(image.clients), problems) == (1, [])
        with (a.target / "late").open("wb", buffering=0) as late:
            assert await refused(b.stage(id, capability)) is Code.FAILED_PRECONDITION
            leader.fence_held("node-a", image)
            leader.fence_held("node-a", image)
            assert blocked(ceph) - before == {*image.clients}
            assert leader.find_held("node-a") == ([], [])
            await b.stage(id, capability)
            await b.publish(id, capability)
            assert (b.target / "marker").read_text() == "from a"
            with pytest.raises(OSError, match="Errno"):
                for _ in range(64):
                    late.write(b"x" * MIB)
                    os.fsync(late.fileno())
        assert not leader.unfence_held("node-a", image, rebooted=False)
        assert blocked(ceph) - before == {*image.clients}
        assert leader.unfence_held("node-a", image, rebooted=True)
        assert blocked(ceph) == before
        await a.unpublish(id)
        await a.unstage(id)
        await b.unpublish(id)
        await b.unstage(id)
        await b.delete(id)
        ((cluster, storage),) = leader.clusters().items()
        index = NodeIndex(storage.journal)
        assert index.list_volumes("node-a") == ({image.uuid: "staged"}, [])
        assert index.list_volumes("node-b") == ({}, [])
        assert leader.find_held("node-a") == ([], [])
        assert index.list_volumes("node-a") == ({}, [])
        assert leader.unfence_held("node-a", HeldVolume(cluster, image.uuid), rebooted=False)
    leader.close()


async def test_a_fenced_node_that_lives_lets_go_of_the_image(
    ceph: CephCluster, tmp_path: Path
) -> None:
    """A node that was fenced although it lives unstages without waiting for its dead client, and
    may have the volume again when it is let in.
    """
    capability = mount_capability()
    before = blocked(ceph)
    leader = lead(ceph, tmp_path)
    (tmp_path / "a").mkdir()
    with calling(ceph, tmp_path / "a", "a") as a:
        volume = await a.create(
            "alive", size=32 * MIB, capability=capability, topology=in_zone("a")
        )
        id = volume.volume_id
        await a.stage(id, capability)
        await a.publish(id, capability)
        (a.target / "marker").write_text("from a")
        os.sync()
        ((image,), _) = leader.find_held("node-a")
        leader.fence_held("node-a", image)
        await a.unpublish(id)
        await a.unstage(id)
        assert leader.unfence_held("node-a", image, rebooted=False)
        assert blocked(ceph) == before
        await a.stage(id, capability)
        await a.publish(id, capability)
        assert (a.target / "marker").read_text() == "from a"
        await a.unpublish(id)
        await a.unstage(id)
        await a.delete(id)
    leader.close()


async def test_an_image_stays_the_nodes_while_its_clients_are_let_in(
    ceph: CephCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it is not known whether clients were let in, no other node gets the image, though it
    was fenced before and is watched by none, and the next look fences the node again.
    """
    capability = mount_capability()
    before = blocked(ceph)
    leader = lead(ceph, tmp_path)

    def time_out(connection: CephConnection, addresses: Iterable[str]) -> None:
        unblock(connection, addresses)
        raise CommandFailed(errno.ETIMEDOUT, "timed out")

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with calling(ceph, tmp_path / "a", "a") as a, calling(ceph, tmp_path / "b", "b") as b:
        volume = await a.create("late", size=32 * MIB, capability=capability, topology=in_zone("a"))
        id = volume.volume_id
        await a.stage(id, capability)
        ((image,), _) = leader.find_held("node-a")
        leader.fence_held("node-a", image)
        with monkeypatch.context() as patched:
            patched.setattr(fencing, "unblock", time_out)
            with pytest.raises(CommandFailed, match="timed out"):
                leader.unfence_held("node-a", image, rebooted=False)
        assert blocked(ceph) == before
        assert await refused(b.stage(id, capability)) is Code.FAILED_PRECONDITION
        ((again,), _) = leader.find_held("node-a")
        assert again.uuid == image.uuid
        leader.fence_held("node-a", image)
        assert blocked(ceph) - before == {*image.clients}
        await a.unstage(id)
        assert leader.unfence_held("node-a", image, rebooted=True)
        assert blocked(ceph) == before
        await b.stage(id, capability)
        await b.unstage(id)
        await b.delete(id)
    leader.close()


async def test_an_image_is_free_though_its_clients_cannot_be_let_in(
    ceph: CephCluster, tmp_path: Path
) -> None:
    """A fence that has begun refuses the image to others only while it lasts: also without the
    right to let clients in again.
    """
    capability = mount_capability()
    leader = lead(ceph, tmp_path, mon="profile rbd")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with calling(ceph, tmp_path / "a", "a") as a, calling(ceph, tmp_path / "b", "b") as b:
        volume = await a.create("half", size=32 * MIB, capability=capability, topology=in_zone("a"))
        id = volume.volume_id
        await a.stage(id, capability)
        ((image,), _) = leader.find_held("node-a")
        with pytest.raises(CsiError, match="still has clients"):
            leader.fence_held("node-a", HeldVolume(image.cluster, image.uuid))
        await a.unpublish(id)
        assert await refused(b.stage(id, capability)) is Code.FAILED_PRECONDITION
        with pytest.raises(CsiError) as denied:
            leader.unfence_held("node-a", image, rebooted=False)
        assert denied.value.code is Code.PERMISSION_DENIED
        await a.unstage(id)
        await b.stage(id, capability)
        await b.unstage(id)
        await b.delete(id)
    leader.close()


async def test_a_node_is_fenced_from_its_subvolumes(ceph: CephCluster, tmp_path: Path) -> None:
    """CephFS, which many nodes use at a time: what the fenced node writes late is refused, and
    another node reads and writes at once what it had open; its new clients are let in, its old one
    only when it has ended.
    """
    before = blocked(ceph)
    leader = lead(ceph, tmp_path, "fs")
    assert isinstance(leader, NodeFencing)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with (
        calling(ceph, tmp_path / "a", "a", kind="fs") as a,
        calling(ceph, tmp_path / "b", "b", kind="fs") as b,
    ):
        volume = await a.create("shared", topology=in_zone("a"))
        id = volume.volume_id
        assert leader.find_held("node-a") == ([], [])
        for caller in (a, b):
            await caller.stage(id)
            await caller.publish(id)
        (a.target / "marker").write_text("from a")
        os.sync()
        ((subvolume,), problems) = leader.find_held("node-a")
        ((other,), _) = leader.find_held("node-b")
        assert (len(subvolume.clients), problems) == (1, [])
        assert subvolume.clients != other.clients
        with (a.target / "late").open("wb", buffering=0) as late:
            late.write(b"written")
            os.fsync(late.fileno())
            leader.fence_held("node-a", subvolume)
            assert blocked(ceph) - before == {*subvolume.clients}
            assert leader.find_held("node-a") == ([], [])
            assert (b.target / "marker").read_text() == "from a"
            (b.target / "late").write_text("b's")
            with pytest.raises(OSError, match="shutdown"):
                late.write(b"late")
                os.fsync(late.fileno())
            with suppress(OSError):
                late.close()
        assert (b.target / "late").read_text() == "b's"
        assert not leader.unfence_held("node-a", subvolume, rebooted=False)
        await a.stage(id)
        await a.publish(id)
        assert (a.target / "late").read_text() == "b's"
        ((again,), _) = leader.find_held("node-a")
        assert again.clients != subvolume.clients
        assert leader.unfence_held("node-a", subvolume, rebooted=False)
        assert blocked(ceph) == before
        for caller in (a, b):
            await caller.unpublish(id)
            await caller.unstage(id)
        assert leader.find_held("node-a") == ([], [])
        await b.delete(id)
    leader.close()


async def test_a_fenced_node_that_lives_lets_go_of_a_subvolume(
    ceph: CephCluster, tmp_path: Path
) -> None:
    """A node that was fenced unmounts what its pods had, and that lets its old client in; a machine
    that was booted has none any more.
    """
    before = blocked(ceph)
    leader = lead(ceph, tmp_path, "fs")
    (tmp_path / "a").mkdir()
    with calling(ceph, tmp_path / "a", "a", kind="fs") as a:
        volume = await a.create("alive", topology=in_zone("a"))
        id = volume.volume_id
        for rebooted in (False, True):
            await a.stage(id)
            await a.publish(id)
            (a.target / "marker").write_text("from a")
            os.sync()
            ((subvolume,), _) = leader.find_held("node-a")
            leader.fence_held("node-a", subvolume)
            if rebooted:
                assert leader.unfence_held("node-a", subvolume, rebooted=True)
                assert leader.find_held("node-a") == ([], [])
            await a.unpublish(id)
            await a.unstage(id)
            assert leader.unfence_held("node-a", subvolume, rebooted=False)
            assert blocked(ceph) == before
        await a.delete(id)
    leader.close()


async def test_a_client_that_was_not_written_down_is_replaced(
    ceph: CephCluster, tmp_path: Path
) -> None:
    """A ceph-fuse of a call that was killed before it wrote its address would not be fenced: the
    next call ends it and starts another.
    """
    leader = lead(ceph, tmp_path, "fs")
    with calling(ceph, tmp_path, "a", kind="fs") as a:
        volume = await a.create("cut-short", topology=in_zone("a"))
        await a.stage(volume.volume_id)
        ((first,), _) = leader.find_held("node-a")
        mounts.unmount(a.staging)
        (entry,) = a.storage.journal.list_page(StoredKind.VOLUME).entries
        NodeIndex(a.storage.journal).remove(entry, "node-a")
        await a.stage(volume.volume_id)
        ((second,), _) = leader.find_held("node-a")
        assert first.clients != second.clients
        await a.stage(volume.volume_id)
        assert leader.find_held("node-a") == ([second], [])
        await a.unstage(volume.volume_id)
        await a.delete(volume.volume_id)
    leader.close()


async def test_without_the_right_to_fence_it_is_said(ceph: CephCluster, tmp_path: Path) -> None:
    """A user that may not change the blocklist fences nothing, and does not say that it has."""
    leader = lead(ceph, tmp_path, "fs", mon="allow r")
    with calling(ceph, tmp_path, "a", kind="fs") as a:
        volume = await a.create("kept", topology=in_zone("a"))
        await a.stage(volume.volume_id)
        ((subvolume,), _) = leader.find_held("node-a")
        with pytest.raises(CsiError) as denied:
            leader.fence_held("node-a", subvolume)
        assert denied.value.code is Code.PERMISSION_DENIED
        assert leader.find_held("node-a") == ([subvolume], [])
        await a.unstage(volume.volume_id)
        await a.delete(volume.volume_id)
    leader.close()
