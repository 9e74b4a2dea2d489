"""Pools with labels of their own on a real Ceph, made by the commands of ``zonewise csi pools``."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.ceph.scene import CephCaller, calling, delete_pool
from tests.csi.scene import (
    LABELS,
    MIB,
    block_capability,
    homes,
    mount_capability,
    of_snapshot,
    pool,
    requirement,
    segments,
)
from tools.ceph.cluster import JOURNAL, CephCluster

from zonewise.cli.main import main
from zonewise.csi.errors import CsiError
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport import methods

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

FILES = "files"
LABELLED = {"pool": JOURNAL, "poolLabels": "all"}
A, B, C = segments("a"), segments("b"), segments("c")
DEVICE = block_capability()


def run(ceph: CephCluster, command: str) -> None:
    """Run commands as a person would; fails with what was printed."""
    environment = {**os.environ, "CEPH_CONF": str(ceph.folder / "ceph.conf")}
    done = subprocess.run(
        ["sh", "-ec", command], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@contextmanager
def labelled_pools(
    ceph: CephCluster, capsys: pytest.CaptureFixture[str], kind: str
) -> Iterator[None]:
    """Pools ``new-a`` and ``new-b``, made by the printed commands; run twice, as people do."""
    flags = ["--backend", f"ceph-{kind}", "--domain-labels", LABELS, "--pool-prefix", "new"]
    flags += ["--fs-name", FILES] if kind == "fs" else []
    domains = [part for zone in "ab" for part in ("--domain", f"region=r1;zone={zone}")]
    assert main(["csi", "pools", *flags, *domains]) == 0
    script = capsys.readouterr().out
    try:
        run(ceph, script)
        run(ceph, script)
        for zone in "ab":
            lease = {"var": "read_lease_interval", "val": "3600"}  # as all pools of this cluster
            ceph.command("osd pool set", pool=f"new-{zone}", **lease)
        ceph.wait("pools", ceph.counted)
        yield
    finally:
        for zone in "ab":
            if kind == "fs":
                ceph.command("fs rm_data_pool", fs_name=FILES, pool=f"new-{zone}")
            delete_pool(ceph, f"new-{zone}")
            ceph.command("osd crush rule rm", name=f"new-{zone}")


async def free(caller: CephCaller, term: dict[str, str], **more: str) -> int:
    """The free bytes of the class in a domain."""
    request = csi.GetCapacityRequest(parameters=LABELLED | more)
    request.accessible_topology.segments.update(term)
    return (await caller.client.call(methods.GET_CAPACITY, request)).available_capacity


@pytest.mark.parametrize("kind", ["rbd", "fs"])
async def test_volumes_go_to_the_pool_that_is_labelled_with_their_zone(
    ceph: CephCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """A class without a list of pools has volumes in the pools of the printed commands, with their
    domains; capacity, lists and copies are as with a list, and a zone without a pool is served from
    the others.
    """
    capability = DEVICE if kind == "rbd" else mount_capability()
    usual: dict[str, Any] = {"parameters": LABELLED, "capability": capability}
    with labelled_pools(ceph, capsys, kind), calling(ceph, tmp_path, "b", kind=kind) as caller:
        both = requirement([A, B], [B])
        volume = await caller.create("pvc-1", topology=both, **usual)
        assert volume.volume_context["pool"] == "new-b"
        assert homes(volume) == [B]
        assert caller.names() == ["new-b/volume"]
        assert await caller.volumes() == [volume.volume_id]
        assert await free(caller, A) > 0
        assert await free(caller, C, placement="preferred") == 0
        assert await free(caller, C) > await free(caller, A)
        new = await caller.create("pvc-2", topology=requirement([A, B, C], [C]), **usual)
        assert new.volume_context["pool"] in ("new-a", "new-b")
        assert homes(new) == []
        if kind == "rbd":
            snapshot = await caller.snapshot("snap-1", volume.volume_id)
            source = of_snapshot(snapshot.snapshot_id)
            copy = await caller.create("pvc-3", topology=both, source=source, **usual)
            assert copy.volume_context["pool"] == "new-b"
            assert (await caller.expand(copy.volume_id, 32 * MIB)).capacity_bytes == 32 * MIB
            await caller.delete(copy.volume_id)
            await caller.delete_snapshot(snapshot.snapshot_id)
            caller.storage.backend.purge()
        for id in (volume.volume_id, new.volume_id):
            await caller.delete(id)
        assert caller.names() == []


async def test_declared_pools_limit_what_labels_offer(
    ceph: CephCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the configuration declares pools, others do not count, whatever their labels; the
    domain is still that of the label.
    """
    declared = pool("new-a", "b", capacity="64Mi")
    with (
        labelled_pools(ceph, capsys, "rbd"),
        calling(ceph, tmp_path, pools=[declared]) as caller,
    ):
        assert await free(caller, A, placement="preferred") == 64 * MIB
        assert await free(caller, B, placement="preferred") == 0


def test_a_key_of_a_label_has_a_dot(ceph: CephCluster) -> None:
    """The program ``ceph`` refuses a key of a pool's metadata that has a slash, as the labels of
    Kubernetes have; so ours have a dot.
    """
    with pytest.raises(AssertionError, match="Invalid command: invalid chars / in"):
        run(ceph, "ceph osd pool application set rbd-a rbd zonewise.io/zone a")
    run(ceph, "ceph osd pool application set rbd-a rbd zonewise.zone a")
    run(ceph, "ceph osd pool application rm rbd-a rbd zonewise.zone")


async def test_labels_that_change_are_followed(
    ceph: CephCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A label that is removed or wrong is seen within seconds: the class has no such pool, check
    says where CRUSH disagrees, and a class that has no pool left says what is missing.
    """
    usual: dict[str, Any] = {"parameters": LABELLED, "capability": DEVICE}
    with labelled_pools(ceph, capsys, "rbd"), calling(ceph, tmp_path) as caller:
        in_a = requirement([A], [A])
        assert await free(caller, A, placement="preferred") > 0
        run(ceph, "ceph osd pool application set new-a rbd zonewise.zone c")
        caller.storage.backend._states.invalidate()
        assert await free(caller, A, placement="preferred") == 0
        assert await free(caller, C, placement="preferred") > 0
        affinity = caller.storage.check_pools([])["affinity"]
        assert affinity == [{"pool": "new-a", "declared": "zone=c", "crush": "zone=a"}]
        for zone in "ab":
            run(ceph, f"ceph osd pool application rm new-{zone} rbd zonewise.zone")
            run(ceph, f"ceph osd pool application rm new-{zone} rbd zonewise.region")
        caller.storage.backend._states.invalidate()
        with pytest.raises(CsiError, match=r"^FAILED_PRECONDITION: .* no pool has any label"):
            await caller.create("pvc-1", topology=in_a, **usual)
        assert caller.names() == []
