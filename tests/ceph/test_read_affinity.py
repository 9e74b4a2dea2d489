"""Reads go to the OSD of the node's own zone, where the cluster's ``readAffinity`` asks for it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.ceph.scene import CephCaller, calling, parameters
from tests.csi.scene import MIB, block_capability, place, requirement
from tools.ceph.cluster import JOURNAL, ZONES, CephCluster

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

SIZE = 64 * MIB
TRIES = 5
"""How often replicas are told of writes, at most, until they answer for all of a volume."""


def read_bytes(ceph: CephCluster) -> list[int]:
    """How much clients have read from each OSD, by zone."""
    found = []
    for number in range(len(ZONES)):
        code, out, words = ceph.admin.osd_command(
            number, json.dumps({"prefix": "perf dump", "format": "json"}), b""
        )
        assert code == 0, words
        found.append(int(json.loads(out)["osd"]["op_r_out_bytes"]))
    return found


def write_elsewhere(ceph: CephCluster) -> None:
    """Write something else into every placement group.

    A replica answers for what was written last only when it has heard that all have it, which it
    hears with the next write; until then it sends the client to the primary.
    """
    with closing(ceph.admin.open_ioctx(JOURNAL)) as pool:
        for number in range(256):
            pool.write_full(f"elsewhere-{number}", b"x")
        for number in range(256):
            pool.remove_object(f"elsewhere-{number}")


@contextmanager
def node(ceph: CephCluster, folder: Path, zone: str, *, near: bool) -> Iterator[CephCaller]:
    """A driver in a zone."""
    clusters = [{**one, "readAffinity": near} for one in ceph.clusters()]
    folder.mkdir()
    with calling(ceph, folder, zone, clusters=clusters) as caller:
        yield caller


async def parts(caller: CephCaller, ceph: CephCluster, id: str) -> list[float]:
    """Which part of a staged volume is read from each zone."""
    capability = block_capability()
    await caller.stage(id, capability)
    target = await caller.publish(id, capability)
    before = read_bytes(ceph)
    with target.open("rb", buffering=0) as device:
        while device.read(MIB):
            pass
    after = read_bytes(ceph)
    await caller.unpublish(id)
    await caller.unstage(id)
    return [(one - other) / SIZE for one, other in zip(after, before, strict=True)]


async def test_reads_stay_in_the_nodes_zone(ceph: CephCluster, tmp_path: Path) -> None:
    """With it all of a volume is read next door, from each zone; without, from the primaries."""
    given = parameters()
    given["topologyConstrainedPools"] = given["topologyConstrainedPools"].replace("rbd-a", JOURNAL)
    capability = block_capability()
    with node(ceph, tmp_path / "writer", "a", near=False) as caller:
        made = await caller.create(
            "pvc-1",
            size=SIZE,
            capability=capability,
            parameters=given,
            topology=requirement([place("a")]),
        )
        assert made.volume_context["pool"] == JOURNAL
        id = made.volume_id
        await caller.stage(id, capability)
        target = await caller.publish(id, capability)
        with target.open("r+b", buffering=0) as device:
            for _ in range(SIZE // MIB):
                device.write(os.urandom(MIB))
            os.fsync(device.fileno())
        await caller.unpublish(id)
        await caller.unstage(id)
        write_elsewhere(ceph)
        far = await parts(caller, ceph, id)
    assert sum(one > 0.1 for one in far) > 1, far
    for number, zone in enumerate(ZONES):
        with node(ceph, tmp_path / zone, zone, near=True) as caller:
            near = await parts(caller, ceph, id)
            for _ in range(TRIES):
                if near[number] > 0.95:
                    break
                write_elsewhere(ceph)
                near = await parts(caller, ceph, id)
        assert near[number] > 0.95, near
        assert sum(near) - near[number] < 0.05, near
    with node(ceph, tmp_path / "last", "a", near=False) as caller:
        await caller.delete(id)
