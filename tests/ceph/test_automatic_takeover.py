"""Automatic takeover of a zone that a real Ceph reports down.

The zone is really down and up; the pauses in between are virtual time, and so is the API server's.
``test_takeover_installed.py`` waits for a whole pause.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.ceph.scene import config
from tests.csi.takeover.written_takeover import written
from tests.embedded.virtual_cluster import VirtualCluster, virtual_cluster
from tools.ceph.cluster import CephCluster

from zonewise.csi.backends.ceph.clusters import CephClusters, open_rbd
from zonewise.csi.takeover.automatic import AutomaticLoop
from zonewise.csi.takeover.controller import ConfigMap, TakeoverSettings
from zonewise.csi.takeover.source import FollowedConfiguration
from zonewise.csi.takeover.status import CONFIG_KEY, CONFIG_MAP
from zonewise.csi.transport.calls import run_inline
from zonewise.storage.configuration import parse_configuration
from zonewise.storage.domains import parse_domain_labels

pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio,
    pytest.mark.looptime,
    pytest.mark.timeout(300),
]

LABELS = parse_domain_labels("topology.kubernetes.io/zone", "csi.zonewise.io")
TAKEN = ({"a": ["all"]}, "a")
NOT: tuple[dict[str, list[str]], str] = ({}, "")


@pytest.fixture
def zone(ceph: CephCluster) -> Iterator[CephCluster]:
    """A cluster that is whole again afterwards."""
    yield ceph
    back(ceph)


def lost(ceph: CephCluster) -> None:
    """Take zone a down for the monitor, as if its OSD had reported nothing."""
    ceph.command("osd set", key="noup")
    ceph.command("osd down", ids=["0"])
    ceph.wait("OSDs", lambda: ceph.up() == 2)


def back(ceph: CephCluster) -> None:
    """Bring zone a up again."""
    ceph.command("osd unset", key="noup")
    ceph.wait("OSDs", lambda: ceph.up() == 3)


def text(ceph: CephCluster) -> str:
    """A configuration with automatic takeover."""
    return config(ceph, **{"automatic-takeover": {"by": ["all"], "pause": "1m"}})


async def version(cluster: VirtualCluster) -> str:
    """The resource version of the configuration; changes with every write."""
    return (await cluster.client.get(ConfigMap, CONFIG_MAP, "default")).metadata.resource_version


async def edited(cluster: VirtualCluster, **takeover: list[str]) -> None:
    """Write the takeover map as an administrator who edits the ConfigMap."""
    config_map = await cluster.client.get(ConfigMap, CONFIG_MAP, "default")
    value = json.loads(str(config_map.get("data", CONFIG_KEY)))
    value["topology-takeover"] = takeover
    body: Any = {"data": {CONFIG_KEY: json.dumps(value)}}
    await cluster.client.patch(ConfigMap, CONFIG_MAP, "default", body)


@asynccontextmanager
async def watched(
    zone: CephCluster, folder: Path
) -> AsyncIterator[tuple[VirtualCluster, CephClusters[Any]]]:
    """A cluster whose automatic takeover watches the real storage."""
    source = FollowedConfiguration()
    configuration = parse_configuration(text(zone), LABELS)
    storage: CephClusters[Any] = open_rbd(folder, configuration)
    parts = {
        "automatic": lambda context: AutomaticLoop(
            context,
            TakeoverSettings(source=source, labels=LABELS, namespace="default"),
            storage=storage,
            worker=run_inline,
        )
    }
    try:
        async with virtual_cluster(parts) as cluster:
            body = {
                "metadata": {"name": CONFIG_MAP, "namespace": "default"},
                "data": {CONFIG_KEY: text(zone)},
            }
            await cluster.client.create(ConfigMap(body))
            source.use(configuration)
            yield cluster, storage
    finally:
        storage.close()


async def test_a_lost_zone(zone: CephCluster, tmp_path: Path) -> None:
    """A zone that was down for the whole pause is taken over, and given back after it was up for as
    long; a zone that flaps is neither.
    """
    async with watched(zone, tmp_path) as (cluster, storage):
        assert storage.read_domain_health(LABELS) == (frozenset("abc"), frozenset())
        first = await version(cluster)
        for _ in range(3):
            lost(zone)
            await asyncio.sleep(50)
            back(zone)
            await asyncio.sleep(20)
        assert await written(cluster) == NOT
        assert await version(cluster) == first
        lost(zone)
        await asyncio.sleep(50)
        assert await written(cluster) == NOT
        await asyncio.sleep(30)
        assert await written(cluster) == TAKEN
        taken = await version(cluster)
        # It flaps on the way back: nothing is written.
        for _ in range(2):
            back(zone)
            await asyncio.sleep(50)
            lost(zone)
            await asyncio.sleep(20)
        assert await version(cluster) == taken
        back(zone)
        await asyncio.sleep(80)
        assert await written(cluster) == NOT
        given = await version(cluster)
        await asyncio.sleep(3600)
        assert await version(cluster) == given


async def test_manual_changes_win(zone: CephCluster, tmp_path: Path) -> None:
    """A lost zone that is given back by hand has a whole pause again; one that is taken over by
    hand stays taken over.
    """
    async with watched(zone, tmp_path) as (cluster, _):
        lost(zone)
        await asyncio.sleep(90)
        assert await written(cluster) == TAKEN
        await edited(cluster)
        await asyncio.sleep(50)
        assert await written(cluster) == NOT
        await asyncio.sleep(40)
        assert await written(cluster) == TAKEN
        await edited(cluster)
        await asyncio.sleep(20)
        await edited(cluster, a=["b"])
        back(zone)
        await asyncio.sleep(3600)
        assert await written(cluster) == ({"a": ["b"]}, "")
