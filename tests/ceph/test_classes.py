"""Parameters of a class take effect in the images, on a real Ceph."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.ceph.scene import CephCaller, calling, delete_pool, image_of, make_pool, parameters
from tests.ceph.waiting import settled, until
from tests.csi.scene import MIB, block_capability, of_volume, refused, requirement, segments
from tools.ceph.cluster import CephCluster

from zonewise.csi.backends.ceph.rbd.images import DEPTH_LIMIT
from zonewise.csi.errors import Code
from zonewise.storage.identifiers import StoredKind

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

IN_A = requirement([segments("a")], [segments("a")])
LABEL_AT = 1024 + 120
"""The offset of the label in ext4."""


@pytest.fixture
def caller(ceph: CephCluster, tmp_path: Path) -> Iterator[CephCaller]:
    """A driver in zone a; its volumes are gone at the end, its trash as well."""
    with calling(ceph, tmp_path) as caller:
        yield caller
        assert caller.names() == []
        images = caller.storage.backend
        while images.list_trash():
            images.purge()


def opened(caller: CephCaller, id: str) -> Any:
    """The image of a volume in zone a, for reading."""
    import rbd

    return rbd.Image(caller.storage.ceph.open_pool("rbd-a"), image_of(id), read_only=True)


async def test_options_of_mkfs(caller: CephCaller) -> None:
    """A file system is made with the mkfs options of its class; with wrong ones staging fails."""
    marked = await caller.create(
        "pvc-1", topology=IN_A, parameters=parameters(mkfsOptions="-L marked -m 1")
    )
    await caller.stage(marked.volume_id)
    await caller.unstage(marked.volume_id)
    with opened(caller, marked.volume_id) as image:
        assert image.read(LABEL_AT, 16).rstrip(b"\0") == b"marked"
    wrong = await caller.create(
        "pvc-2", topology=IN_A, parameters=parameters(mkfsOptions="--no-such-option")
    )
    assert await refused(caller.stage(wrong.volume_id)) is Code.INTERNAL
    await caller.unstage(wrong.volume_id)
    for volume in (marked, wrong):
        await settled(partial(caller.delete, volume.volume_id))


async def test_a_pool_for_data(ceph: CephCluster, caller: CephCaller) -> None:
    """Data of volumes and copies goes to the data pool of the class."""
    make_pool(ceph, "data-a")
    try:
        listed = json.loads(parameters()["topologyConstrainedPools"])
        listed[0]["dataPool"] = "data-a"
        given = parameters(topologyConstrainedPools=json.dumps(listed))
        original = await caller.create("pvc-1", topology=IN_A, parameters=given)
        assert original.volume_context["dataPool"] == "data-a"
        await caller.stage(original.volume_id)
        target = await caller.publish(original.volume_id)
        (target / "marker").write_text("x" * MIB)
        await caller.unpublish(original.volume_id)
        await caller.unstage(original.volume_id)
        copy = await settled(
            partial(
                caller.create,
                "pvc-2",
                topology=IN_A,
                parameters=given,
                source=of_volume(original.volume_id),
            )
        )
        number = caller.storage.ceph.pool_number("data-a")
        for volume in (original, copy):
            with opened(caller, volume.volume_id) as image:
                assert image.data_pool_id() == number
        for volume in (original, copy):
            await settled(partial(caller.delete, volume.volume_id))
        images = caller.storage.backend
        while images.list_trash():
            images.purge()
    finally:
        delete_pool(ceph, "data-a")
    nowhere = parameters(dataPool="nowhere")
    code = await refused(caller.create("pvc-3", topology=IN_A, parameters=nowhere))
    assert code is Code.INVALID_ARGUMENT


def depth(caller: CephCaller, id: str) -> int:
    """How many parent images a read of a volume may go through."""
    import rbd

    count = 0
    with opened(caller, id) as image:
        try:
            parent = image.parent_id()
        except rbd.ImageNotFound:
            return 0
    while parent:
        count += 1
        pool = caller.storage.ceph.open_pool("rbd-a")
        with rbd.Image(pool, image_id=parent, read_only=True) as image:
            try:
                parent = image.parent_id()
            except rbd.ImageNotFound:
                parent = ""
    return count


async def test_chains_of_copies_have_an_end(caller: CephCaller) -> None:
    """A long chain of copies reads through a limited number of images, and has its data."""
    import rbd

    device = block_capability()
    ids = [(await caller.create("pvc-0", capability=device, topology=IN_A)).volume_id]
    with rbd.Image(caller.storage.ceph.open_pool("rbd-a"), image_of(ids[0])) as image:
        image.write(b"marker", 4 * MIB)
    for number in range(1, DEPTH_LIMIT + 3):
        create = partial(
            caller.create,
            f"pvc-{number}",
            capability=device,
            topology=IN_A,
            source=of_volume(ids[-1]),
        )
        ids.append((await settled(create)).volume_id)
    assert max(depth(caller, id) for id in ids) == DEPTH_LIMIT
    with opened(caller, ids[-1]) as image:
        assert image.read(4 * MIB, 6) == b"marker"
    for id in ids:
        await settled(partial(caller.delete, id))


async def test_the_claims_names(caller: CephCaller) -> None:
    """An image's metadata names its claim; a copy has the names of its own claim."""
    prefix = "csi.storage.k8s.io/"

    def claim(name: str) -> dict[str, str]:
        return {
            f"{prefix}pvc/name": name,
            f"{prefix}pvc/namespace": "shop",
            f"{prefix}pv/name": f"pv-{name}",
        }

    original = await caller.create("pvc-1", topology=IN_A, parameters=parameters(**claim("data")))
    copy = await settled(
        partial(
            caller.create,
            "pvc-2",
            topology=IN_A,
            parameters=parameters(**claim("copy")),
            source=of_volume(original.volume_id),
        )
    )
    for volume, name in ((original, "data"), (copy, "copy")):
        with opened(caller, volume.volume_id) as image:
            metadata = {
                key: value for key, value in image.metadata_list() if key.startswith(prefix)
            }
        assert metadata == claim(name)
    for volume in (original, copy):
        await settled(partial(caller.delete, volume.volume_id))


async def test_a_pool_that_cannot_hold_an_image(ceph: CephCluster, caller: CephCaller) -> None:
    """An erasure-coded pool is refused for headers, or without overwrites; nothing is reserved."""

    def room(name: str) -> int:
        pool = caller.storage.backend.pools().get(name)
        return 0 if pool is None else int(pool.available)

    ceph.command(
        "osd erasure-code-profile set",
        name="thin",
        profile=["k=2", "m=1", "crush-failure-domain=osd"],
    )
    ceph.command(
        "osd pool create",
        pool="thin",
        pg_num=8,
        pool_type="erasure",
        erasure_code_profile="thin",
    )
    try:
        ceph.command("osd pool application enable", pool="thin", app="rbd")
        await until(lambda: room("thin") > 0)
        pools = json.loads(parameters()["topologyConstrainedPools"])
        pools[0]["poolName"] = "thin"
        for given in (
            parameters(dataPool="thin"),
            parameters(topologyConstrainedPools=json.dumps(pools)),
        ):
            for _ in range(2):
                call = caller.create("pvc-1", topology=IN_A, parameters=given)
                assert await refused(call) is Code.INVALID_ARGUMENT
            assert caller.storage.journal.list_page(StoredKind.VOLUME).entries == ()
    finally:
        delete_pool(ceph, "thin")
