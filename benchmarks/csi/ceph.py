"""CreateVolume on Ceph over the socket, against the bare work on the same cluster.

The bare work is librbd's create, or the manager's ``fs subvolume create``, in the same pool, and
nothing else: no journal, nothing that a retry could find. Both sides take turns. *Reservations* are
the journal alone, by how many objects and threads share the work. A cluster of one machine, in
memory, is started for each and stopped again.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.csi.socket_client import SocketClient
from tools.ceph.cluster import JOURNAL, CephCluster, started

from benchmarks.csi.volumes import CAPABILITY, answers, started_program
from benchmarks.table import Row, Table
from zonewise.csi.backends.ceph.journals.omap import OmapJournal
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport import methods
from zonewise.storage.identifiers import StoredKind
from zonewise.storage.journal import JournalEntry

if TYPE_CHECKING:
    import rados

    Raw = Callable[[str], object]

ROUNDS = 12
VOLUMES = 16
BYTES = 64 << 20
GOAL = 0.7
RESERVATIONS = 2000
FOLDER_CAPABILITY = csi.VolumeCapability(
    mount=csi.VolumeCapability.MountVolume(),
    access_mode=csi.VolumeCapability.AccessMode(
        mode=csi.VolumeCapability.AccessMode.MULTI_NODE_MULTI_WRITER
    ),
)
SHARDS = (1, 4, 16)


def images() -> Iterator[Table]:
    """RBD images made, one after the other and eight at a time."""
    with _cluster(files=False) as (ceph, folder):
        pool = ceph.admin.open_ioctx(JOURNAL)
        try:
            yield from _tables(ceph, folder, "rbd", "librbd create", partial(_image, pool))
        finally:
            pool.close()


def subvolumes() -> Iterator[Table]:
    """CephFS subvolumes made in the same way."""
    with _cluster(files=True) as (ceph, folder):
        ceph.manager("fs subvolumegroup create", vol_name="files", group_name="bare")
        yield from _tables(ceph, folder, "fs", "fs subvolume create", partial(_subvolume, ceph))


def reservations() -> Iterator[Table]:
    """Names reserved in the journal."""
    with _cluster(files=False) as (ceph, _):
        pool = ceph.admin.open_ioctx(JOURNAL)
        try:
            for width in (1, 8):
                yield Table(
                    title=f"reservations in omap, {RESERVATIONS} names, {width} at a time",
                    unit="1/s",
                    higher_is_better=True,
                    rows=tuple(
                        Row(
                            name=f"{shards} objects",
                            value=_reserved(pool, shards, width),
                            ours=shards == max(SHARDS),
                        )
                        for shards in SHARDS
                    ),
                    note="id and entry in one operation; three replicas",
                )
        finally:
            pool.close()


@contextmanager
def _cluster(*, files: bool) -> Iterator[tuple[CephCluster, Path]]:
    with tempfile.TemporaryDirectory(prefix="zonewise-ceph-") as name:
        folder = Path(name)
        (folder / "ceph").mkdir()
        with started(folder / "ceph", files=files) as ceph:
            yield ceph, folder


def _tables(ceph: CephCluster, folder: Path, kind: str, peer: str, raw: Raw) -> Iterator[Table]:
    for width in (1, 8):
        ours, bare = asyncio.run(_measured(ceph, folder, kind, width, raw))
        count = ROUNDS * VOLUMES
        yield Table(
            title=f"CreateVolume, ceph-{kind}, {count} volumes, {width} at a time",
            unit="1/s",
            higher_is_better=True,
            rows=(
                Row(name="CreateVolume", value=count / ours, ours=True),
                Row(name=peer, value=count / bare),
            ),
            goal=GOAL,
            note="in turns, in one run, on one cluster",
        )


async def _measured(
    ceph: CephCluster, folder: Path, kind: str, width: int, raw: Raw
) -> tuple[float, float]:
    (folder / "config.json").write_text(json.dumps({"version": 2, "clusters": ceph.clusters()}))
    command = [sys.executable, "-m", "zonewise", "csi", "--node-id", "n"]
    command += ["--backend", f"ceph-{kind}"]
    command += ["--endpoint", f"unix://{folder}/csi.sock", "--config", f"{folder}/config.json"]
    process = started_program([*command, "--data", f"{folder}/data"], folder / "log")
    client = SocketClient(folder / "csi.sock")
    parameters = {"pool": JOURNAL if kind == "rbd" else "fs-data"}
    capability = CAPABILITY if kind == "rbd" else FOLDER_CAPABILITY
    spent = [0.0, 0.0]
    try:
        await answers(client)
        with ThreadPoolExecutor(width) as threads:
            for turn in range(-1, ROUNDS):
                names = [f"w{width}-{turn}-{number}" for number in range(VOLUMES)]
                began = time.perf_counter()
                await _create(client, names, width, parameters, capability)
                between = time.perf_counter()
                list(threads.map(raw, names))
                if turn >= 0:
                    spent[0] += between - began
                    spent[1] += time.perf_counter() - between
    finally:
        await client.close()
        process.terminate()
        process.wait()
    return spent[0], spent[1]


async def _create(
    client: SocketClient,
    names: list[str],
    width: int,
    parameters: dict[str, str],
    capability: csi.VolumeCapability,
) -> None:
    limit = asyncio.Semaphore(width)

    async def create_volume(name: str) -> None:
        async with limit:
            request = csi.CreateVolumeRequest(
                name=name,
                capacity_range=csi.CapacityRange(required_bytes=BYTES),
                volume_capabilities=[capability],
                parameters=parameters,
            )
            await client.call(methods.CREATE_VOLUME, request)

    await asyncio.gather(*map(create_volume, names))


def _image(pool: rados.Ioctx, name: str) -> None:
    import rbd

    rbd.RBD().create(pool, name, BYTES, old_format=False, features=61)


def _subvolume(ceph: CephCluster, name: str) -> None:
    where = {"vol_name": "files", "group_name": "bare", "sub_name": name}
    ceph.manager("fs subvolume create", **where, size=BYTES, pool_layout="fs-data", mode="777")


def _reserved(pool: rados.Ioctx, shards: int, width: int) -> float:
    pool.set_namespace(f"bench-{uuid.uuid4().hex}")
    journal = OmapJournal(pool, shards=shards)

    def reserve(number: int) -> None:
        name = f"pvc-{number}"
        id = journal.new_uuid(StoredKind.VOLUME, name)
        journal.reserve(
            JournalEntry(kind=StoredKind.VOLUME, uuid=id, name=name, pool="p", bytes=BYTES), None
        )

    try:
        reserve(-1)
        with ThreadPoolExecutor(width) as threads:
            began = time.perf_counter()
            list(threads.map(reserve, range(RESERVATIONS)))
            return RESERVATIONS / (time.perf_counter() - began)
    finally:
        journal.close()
