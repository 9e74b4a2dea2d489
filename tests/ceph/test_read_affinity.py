"""Reads go to the OSD of the node's own zone if the cluster has ``readAffinity``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.ceph.scene import CephCaller, calling, parameters
from tests.csi.scene import MIB, block_capability, requirement, segments
from tools.ceph.cluster import JOURNAL, ZONES, CephCluster

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

SIZE = 64 * MIB
TRIES = 5
"""How often other objects are written, at most, until replicas serve all of a volume."""


def read_bytes(ceph: CephCluster) -> list[int]:
    """How much clients have read from each OSD, by zone."""
    counts = []
    for number in range(len(ZONES)):
        code, out, words = ceph.admin.osd_command(
            number, json.dumps({"prefix": "perf dump", "format": "json"}), b""
        )
        assert code == 0, words
        counts.append(int(json.loads(out)["osd"]["op_r_out_bytes"]))
    return counts


def write_elsewhere(ceph: CephCluster) -> None:
    """Write something else into every placement group.

    A replica serves the last write only when it knows that all replicas have it, which it learns
    with the next write; until then it sends the client to the primary.
    """
    with closing(ceph.admin.open_ioctx(JOURNAL)) as pool:
        for number in range(256):
            pool.write_full(f"elsewhere-{number}", b"x")
        for number in range(256):
            pool.remove_object(f"elsewhere-{number}")


@contextmanager
def node(ceph: CephCluster, folder: Path, zone: str, *, near: bool) -> Iterator[CephCaller]:
    """A driver in a zone."""
    clusters = [{**cluster, "readAffinity": near} for cluster in ceph.clusters()]
    folder.mkdir()
    with calling(ceph, folder, zone, clusters=clusters) as caller:
        yield caller


async def parts(caller: CephCaller, ceph: CephCluster, id: str) -> list[float]:
    """The part of a volume that is read from each zone."""
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
    return [(now - then) / SIZE for now, then in zip(after, before, strict=True)]


async def test_reads_stay_in_the_nodes_zone(ceph: CephCluster, tmp_path: Path) -> None:
    """With read affinity a volume is read from the node's zone, without it from the primaries."""
    given = parameters()
    given["topologyConstrainedPools"] = given["topologyConstrainedPools"].replace("rbd-a", JOURNAL)
    capability = block_capability()
    with node(ceph, tmp_path / "writer", "a", near=False) as caller:
        volume = await caller.create(
            "pvc-1",
            size=SIZE,
            capability=capability,
            parameters=given,
            topology=requirement([segments("a")]),
        )
        assert volume.volume_context["pool"] == JOURNAL
        id = volume.volume_id
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
    assert sum(part > 0.1 for part in far) > 1, far
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
