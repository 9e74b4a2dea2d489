"""A driver on a real Ceph: in this process, or as a program."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.csi import scene
from tests.csi.scene import requirement, segments
from tools.ceph.cluster import JOURNAL, CephCluster

from zonewise.csi.backends.ceph.clusters import CephStorage, open_cephfs, open_rbd
from zonewise.csi.driver import open_driver
from zonewise.csi.node_domain import FixedDomain
from zonewise.csi.transport.calls import run_inline
from zonewise.csi.transport.client import InProcessClient
from zonewise.storage.configuration import parse_configuration
from zonewise.storage.domains import parse_domain_labels

LEASE = 3


def config(ceph: CephCluster, **more: Any) -> str:
    """The text of a configuration file."""
    return json.dumps({"version": 2, "clusters": ceph.clusters(), **more})


def parameters(kind: str = "rbd", **more: str) -> dict[str, str]:
    """A class with a pool in each zone, and the journal in all of them."""
    pools = [
        {
            "poolName": f"{kind}-{zone}",
            "domainSegments": [
                {"domainLabel": "region", "value": "r1"},
                {"domainLabel": "zone", "value": zone},
            ],
        }
        for zone in "abc"
    ]
    return {"pool": JOURNAL, "topologyConstrainedPools": json.dumps(pools), **more}


class CephCaller(scene.Caller):
    """Calls a driver with the class above."""

    storage: CephStorage[Any]
    kind = "rbd"

    async def create(self, name: str, **more: Any) -> Any:
        """Create a volume."""
        given = more.pop("parameters", None)
        return await super().create(name, parameters=given or parameters(self.kind), **more)

    def names(self) -> list[str]:
        """Pool and kind of our images in all pools."""
        return [f"{image.pool}/{image.kind.value}" for image in self.storage.backend.list_images()]


@contextmanager
def calling(
    ceph: CephCluster, folder: Path, zone: str = "a", *, kind: Any = "rbd", **more: Any
) -> Iterator[CephCaller]:
    """A driver in this process, ready to be called; fails if the test left a mount behind."""
    labels = parse_domain_labels(scene.LABELS, scene.DRIVER)
    configuration = parse_configuration(config(ceph, **more), labels)
    opened: Any = open_cephfs if kind == "fs" else open_rbd
    storage = opened(folder / f"data-{zone}", configuration, lease=LEASE)
    try:
        driver = open_driver(
            scene.DRIVER,
            storage,
            labels,
            lambda: configuration,
            node_id=f"node-{zone}",
            domain=FixedDomain({"region": "r1", "zone": zone}),
            worker=run_inline,
        )
        caller = CephCaller(InProcessClient(driver.calls), folder)
        (caller.storage,) = storage.clusters().values()
        caller.kind = kind
        yield caller
    finally:
        storage.close()
    assert scene.left_behind(folder) == []


class CephProgram(scene.Program):
    """``zonewise csi --backend ceph-rbd`` as a process."""

    backend = "ceph-rbd"

    def command(self) -> list[str]:
        """Its command line."""
        return [*super().command(), "--backend", self.backend]

    def check(self) -> tuple[int, dict[str, Any]]:
        """Exit code and report of ``zonewise csi check``."""
        done = subprocess.run(
            [
                *(sys.executable, "-m", "zonewise", "csi", "check", "--backend", self.backend),
                *("--config", str(self.config), "--data", str(self.data), "-o", "json"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (0, 1), done.stderr
        return done.returncode, json.loads(done.stdout)


class CephFsProgram(CephProgram):
    """``zonewise csi --backend ceph-fs`` as a process."""

    backend = "ceph-fs"


def in_zone(zone: str) -> Any:
    """The requirement of a single zone."""
    return requirement([segments(zone)], [segments(zone)])


def image_of(id: str) -> str:
    """The name of a volume's image."""
    return f"zw-vol-{id.split('-')[1]}"


def delete_pool(ceph: CephCluster, name: str) -> None:
    """Delete a pool, if it is there."""
    if name in ceph.command("osd pool ls"):
        ceph.command("osd pool delete", pool=name, pool2=name, yes_i_really_really_mean_it=True)


def make_pool(ceph: CephCluster, name: str) -> None:
    """Create a pool in zone a and wait until it can be used."""
    ceph.pool(name, "zone-a")

    def counted() -> bool:
        pools = {pool["name"]: pool["stats"] for pool in ceph.command("df")["pools"]}
        return bool(pools.get(name, {}).get("max_avail"))

    ceph.wait("numbers", counted)
