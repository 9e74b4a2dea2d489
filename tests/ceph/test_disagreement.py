"""Journal and cluster that disagree, on a real Ceph: images missing, left over or misplaced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ceph.scene import CephCaller, CephProgram, calling, config, parameters
from tests.csi.scene import block_capability, pool, refused, requirement, segments
from tools.ceph.cluster import CephCluster

from zonewise.csi.check import check
from zonewise.csi.errors import Code

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

DEVICE = block_capability()
IN_A = requirement([segments("a")], [segments("a")])


@pytest.fixture
def caller(ceph: CephCluster, tmp_path: Path) -> Iterator[CephCaller]:
    """A driver in zone a; its volumes are gone at the end."""
    with calling(ceph, tmp_path) as caller:
        yield caller
        assert caller.names() == []


async def test_an_image_that_is_gone(caller: CephCaller) -> None:
    """Check and a repeated create report a volume without its image; it is not made again, and can
    be deleted.
    """
    import rbd

    volume = await caller.create("pvc-1", capability=DEVICE, topology=IN_A)
    rbd.RBD().remove(
        caller.storage.ceph.open_pool("rbd-a"), f"zw-vol-{volume.volume_id.split('-')[1]}"
    )
    report, agrees = check(caller.storage.journal, caller.storage.backend)
    assert (len(report["missing"]), report["orphans"], agrees) == (1, [], False)
    again = caller.create("pvc-1", capability=DEVICE, topology=IN_A)
    assert await refused(again) is Code.INTERNAL
    await caller.delete(volume.volume_id)
    assert check(caller.storage.journal, caller.storage.backend)[1]


async def test_an_image_without_an_entry(caller: CephCaller) -> None:
    """Check reports an image without an entry, which is neither adopted nor removed."""
    import rbd

    pool, name = caller.storage.ceph.open_pool("rbd-a"), f"zw-vol-{'0' * 32}"
    rbd.RBD().create(pool, name, 1 << 22, old_format=False)
    try:
        report, _ = check(caller.storage.journal, caller.storage.backend)
        assert [orphan["uuid"] for orphan in report["orphans"]] == ["0" * 32]
        volume = await caller.create("pvc-1", capability=DEVICE, topology=IN_A)
        await caller.delete(volume.volume_id)
        assert name in rbd.RBD().list(pool)
    finally:
        rbd.RBD().remove(pool, name)


async def test_a_uuid_that_is_taken(caller: CephCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an image with the new uuid exists already, another uuid is drawn."""
    import rbd

    journal = caller.storage.journal
    pool, name = caller.storage.ceph.open_pool("rbd-a"), f"zw-vol-{'7' * 32}"
    rbd.RBD().create(pool, name, 1 << 22, old_format=False)
    drawn = iter(["7" * 32, "8" * 32])
    monkeypatch.setattr(journal, "new_uuid", lambda *_: next(drawn))
    try:
        volume = await caller.create("pvc-1", capability=DEVICE, topology=IN_A)
        assert "8" * 32 in volume.volume_id
        await caller.delete(volume.volume_id)
        assert name in rbd.RBD().list(pool)
    finally:
        rbd.RBD().remove(pool, name)


async def test_a_journal_in_an_erasure_coded_pool(ceph: CephCluster, caller: CephCaller) -> None:
    """An erasure-coded pool has no omap: a class with its journal there is refused."""
    ceph.command(
        "osd erasure-code-profile set",
        name="spread",
        profile=["k=2", "m=1", "crush-failure-domain=osd"],
    )
    ceph.command(
        "osd pool create",
        pool="coded",
        pg_num=8,
        pool_type="erasure",
        erasure_code_profile="spread",
    )
    try:
        call = caller.create("pvc-1", capability=DEVICE, parameters=parameters(pool="coded"))
        assert await refused(call) is Code.INVALID_ARGUMENT
    finally:
        ceph.command(
            "osd pool delete", pool="coded", pool2="coded", yes_i_really_really_mean_it=True
        )


async def test_a_pool_that_is_elsewhere(ceph: CephCluster, tmp_path: Path) -> None:
    """Check compares declared pools with CRUSH: a pool of zone b is not one of zone a."""
    program = CephProgram(tmp_path)
    program.config.write_text(
        config(ceph, pools=[pool("rbd-a", "a"), pool("rbd-b", "a"), pool("nowhere", "c")])
    )
    code, report = program.check()
    assert (code, [mismatch["pool"] for mismatch in report["affinity"]]) == (
        1,
        ["nowhere", "rbd-b"],
    )
