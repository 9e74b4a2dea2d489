"""The driver of an embedded cluster, in virtual time: claims, zones, paths and what is left."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.embedded.virtual_cluster import EPOCH, MEMORY, until

from zonewise.api import (
    CSINode,
    CSIStorageCapacity,
    Event,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    StatefulSet,
)
from zonewise.api.objects.pod_state import ready
from zonewise.api.objects.snapshots import VolumeSnapshot, VolumeSnapshotContent
from zonewise.csi.takeover import KEY, STATUS, TakeoverStatus
from zonewise.csi.takeover.status import STATUS_KEY
from zonewise.csi.transport.calls import inline
from zonewise.embedded.cluster import EmbeddedCluster
from zonewise.embedded.components.kubelet import DUAL_STACK
from zonewise.embedded.csi_driver import BY_ZONE, CLASS, DRIVER, EmbeddedDriver
from zonewise.embedded.seed.nodes import NodeLayout
from zonewise.embedded.seed.seed_marker import NAMESPACE, ConfigMap

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

LABEL = f"topology.{DRIVER}/zone"


@asynccontextmanager
async def living(
    folder: Path, *, killed: bool = False, privileged: bool = False
) -> AsyncIterator[EmbeddedCluster]:
    """A cluster with the driver; one that is killed leaves everything as it is."""
    loop = asyncio.get_running_loop()
    driver = EmbeddedDriver(folder, worker=inline, privileged=privileged)
    cluster = EmbeddedCluster(
        folder,
        clock=lambda: EPOCH + loop.time(),
        rng=random.Random(1),
        inline=True,
        parts=driver.parts(DUAL_STACK),
    )
    await cluster.server.live()
    work = asyncio.create_task(cluster.run())
    try:
        layout = NodeLayout(nodes_per_zone=2, cpus=("4",))
        await cluster.seeder.plant([*layout.nodes(), *objects()])
        yield cluster
        assert not work.done(), work.exception()
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        if not killed:
            await driver.unmount()
        await cluster.close()
        driver.close()


@pytest.fixture
def folder() -> Any:
    """A data folder in memory."""
    with tempfile.TemporaryDirectory(prefix="zonewise-test-", dir=MEMORY) as name:
        yield Path(name)


def objects() -> list[dict[str, Any]]:
    """A StatefulSet of three with a volume each, one in every zone."""
    spread = {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "db"}},
    }
    claim = {
        "metadata": {"name": "data"},
        "spec": {
            "storageClassName": CLASS,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "64Mi"}},
        },
    }
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "db", "namespace": "default"},
            "spec": {
                "serviceName": "db",
                "replicas": 3,
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": {"app": "db"}},
                "template": {
                    "metadata": {"labels": {"app": "db"}},
                    "spec": {
                        "topologySpreadConstraints": [spread],
                        "containers": [
                            {
                                "name": "c",
                                "image": "c",
                                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                            }
                        ],
                    },
                },
                "volumeClaimTemplates": [claim],
            },
        }
    ]


def pods(cluster: EmbeddedCluster) -> dict[str, Pod]:
    """The pods that are ready, by name."""
    store = cluster.components.cache.store(Pod)
    return {
        one.metadata.name: one
        for one in store
        if ready(one) and one.metadata.deletion_timestamp is None
    }


def zone(cluster: EmbeddedCluster, pod: Pod) -> str:
    """The zone of a pod's node."""
    node = cluster.components.cache.store(Node).get(("", pod.spec.node_name))
    assert node is not None
    return node.metadata.labels["topology.kubernetes.io/zone"]


def path(folder: Path, pod: Pod) -> Path:
    """Where a pod finds its volume."""
    pattern = f"**/{pod.spec.node_name}/**/pods/{pod.metadata.uid}/volumes/*/*/mount"
    (found,) = folder.glob(pattern)
    return found


async def all_ready(cluster: EmbeddedCluster) -> None:
    """Wait for the whole set."""
    await until(lambda: len(pods(cluster)) == 3)


async def test_a_pod_whose_volume_cannot_be_taken_away_waits_and_says_why(folder: Path) -> None:
    """It ends soon after whatever was in the way is gone; nothing of somebody else is removed."""
    async with living(folder) as cluster:
        await all_ready(cluster)
        pod = pods(cluster)["db-0"]
        link = path(folder, pod)
        data = link.readlink()
        link.unlink()
        link.symlink_to(folder / "elsewhere")
        await cluster.client.delete(Pod, "db-0", "default")
        events = cluster.components.cache.store(Event)
        await until(lambda: any(one.reason == "FailedUnMount" for one in events))
        store = cluster.components.cache.store(Pod)
        found = store.get(("default", "db-0"))
        assert found is not None and found.metadata.uid == pod.metadata.uid
        assert link.readlink() == folder / "elsewhere"
        link.unlink()
        link.symlink_to(data)
        began = asyncio.get_running_loop().time()
        await until(lambda: "db-0" in pods(cluster))
        assert asyncio.get_running_loop().time() - began < 60


async def test_volumes_sit_in_their_pods_zones_and_data_follows_the_pod(folder: Path) -> None:
    """Three zones, a volume in each; a marker is still there when the pod is on another node."""
    async with living(folder) as cluster:
        await all_ready(cluster)
        found = pods(cluster)
        assert {zone(cluster, pod) for pod in found.values()} == {"a", "b", "c"}
        for name, pod in found.items():
            claim = await cluster.client.get(PersistentVolumeClaim, f"data-{name}", "default")
            volume = await cluster.client.get(PersistentVolume, claim.spec.volume_name)
            assert volume.spec.csi is not None
            assert volume.spec.csi.volume_attributes == {"pool": f"zone-{zone(cluster, pod)}"}
            (path(folder, pod) / "marker").write_text(name)
        first = found["db-0"]
        old = path(folder, first)
        await cluster.client.patch(
            Node, first.spec.node_name, None, {"spec": {"unschedulable": True}}
        )
        await cluster.client.delete(Pod, "db-0", "default")
        await until(lambda: pods(cluster).get("db-0", first).metadata.uid != first.metadata.uid)
        moved = pods(cluster)["db-0"]
        assert moved.spec.node_name != first.spec.node_name
        assert zone(cluster, moved) == zone(cluster, first)
        assert (path(folder, moved) / "marker").read_text() == "db-0"
        assert not old.exists() and not old.is_symlink()


async def test_a_cluster_that_was_killed_goes_on_with_its_data(folder: Path) -> None:
    """What was mounted is there again, also where somebody took the mounts away meanwhile."""
    async with living(folder, killed=True) as cluster:
        await all_ready(cluster)
        places = {name: path(folder, pod) for name, pod in pods(cluster).items()}
        for name, place in places.items():
            (place / "marker").write_text(name)
    places["db-1"].unlink()
    async with living(folder) as cluster:
        await all_ready(cluster)
        await until(lambda: all(place.exists() for place in places.values()))
        for name, place in places.items():
            assert path(folder, pods(cluster)[name]) == place
            assert (place / "marker").read_text() == name
        await cluster.client.raw("DELETE", "/apis/apps/v1/namespaces/default/statefulsets/db")
        await until(lambda: not pods(cluster))
        for name in places:
            await cluster.client.delete(PersistentVolumeClaim, f"data-{name}", "default")
        volumes = cluster.components.cache.store(PersistentVolume)
        await until(lambda: not len(volumes))
    assert not [*(folder / "nodes").rglob("pods/*")]
    assert not [*(folder / "csi" / "pools").rglob("vol-*")]


async def test_every_node_tells_where_it_is(folder: Path) -> None:
    """CSINode and the driver's label come from the zone label, and follow it."""
    async with living(folder) as cluster:
        nodes, drivers = (cluster.components.cache.store(kind) for kind in (Node, CSINode))
        await until(lambda: len(drivers) == 6)
        name = "a-1"
        body = {"metadata": {"labels": {"topology.kubernetes.io/zone": "b"}}}
        await cluster.client.patch(Node, name, None, body)

        def label() -> str:
            node = nodes.get(("", name))
            assert node is not None
            return node.metadata.labels.get(LABEL, "")

        await until(lambda: label() == "b")
        found = await cluster.client.get(CSINode, name)
        (driver,) = found.spec.drivers or ()
        assert (driver.name, driver.topology_keys) == (DRIVER, (LABEL,))


async def test_pools_are_a_config_map_that_is_followed(folder: Path) -> None:
    """A new zone gets a pool; a faulty change is told and changes nothing."""
    async with living(folder) as cluster:
        await all_ready(cluster)
        maps = cluster.components.cache.store(
            ConfigMap, namespace=NAMESPACE, field_selector="metadata.name=csi"
        )

        labels = {"topology.kubernetes.io/zone": "d"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "d-1", "labels": labels}}
        await cluster.seeder.plant([node])
        await until(lambda: any("zone-d" in one.get("data", KEY) for one in maps))
        await cluster.client.patch(ConfigMap, "csi", NAMESPACE, {"data": {KEY: "{"}})
        await asyncio.sleep(5)
        answer = await cluster.client.raw("GET", "/apis/events.k8s.io/v1/events")
        events = msgspec.json.decode(answer.body)["items"]
        assert any(one["reason"] == "InvalidConfiguration" for one in events)
        # The pools are still those of before: a new claim finds one.
        await cluster.client.patch(StatefulSet, "db", "default", {"spec": {"replicas": 4}})
        await until(lambda: len(pods(cluster)) == 4)


async def test_changed_pools_are_published_at_once(folder: Path) -> None:
    """The scheduler knows what a changed ConfigMap leaves in each zone before the next round."""
    async with living(folder) as cluster:
        await all_ready(cluster)
        await asyncio.sleep(5)  # what the set's own volumes changed is published
        segments = [{"domainLabel": "zone", "value": "a"}]
        pool = {"poolName": "zone-a", "capacity": "3Gi", "domainSegments": segments}
        text = json.dumps({"version": 2, "pools": [pool]})
        body = {"metadata": {"annotations": {BY_ZONE: None}}, "data": {KEY: text}}
        await cluster.client.patch(ConfigMap, "csi", NAMESPACE, body)
        await asyncio.sleep(5)
        store = cluster.components.cache.store(CSIStorageCapacity)
        found = {
            one.node_topology.match_labels[LABEL]: one.capacity
            for one in store
            if one.node_topology is not None
        }
        assert found == {"a": "3008Mi", "b": "0", "c": "0"}


@pytest.mark.parametrize(
    "text",
    [
        '{"version": 2, "pools": [], "poolz": []}',
        '{"version": 2, "pools": null}',
        '{"version": 2, "\\ud800": 1}',
        "[" * 100_000,
    ],
)
async def test_a_faulty_configuration_is_left_to_whoever_wrote_it(folder: Path, text: str) -> None:
    """No pool of a new zone is added to it, and what is wrong is told, whatever that is."""
    async with living(folder) as cluster:
        await all_ready(cluster)
        await cluster.client.patch(ConfigMap, "csi", NAMESPACE, {"data": {KEY: text}})
        labels = {"topology.kubernetes.io/zone": "d"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "d-1", "labels": labels}}
        await cluster.seeder.plant([node])
        await asyncio.sleep(5)
        found = await cluster.client.get(ConfigMap, "csi", NAMESPACE)
        assert found.get("data", KEY) == text
        told = await cluster.client.get(ConfigMap, STATUS, NAMESPACE)
        assert TakeoverStatus.read(told.get("data", STATUS_KEY)).error


async def test_a_snapshot_can_be_taken_restored_and_deleted(folder: Path) -> None:
    """Content and snapshot say when they are ready; a claim made from it has the data."""
    async with living(folder) as cluster:
        await all_ready(cluster)
        pod = pods(cluster)["db-0"]
        (path(folder, pod) / "marker").write_text("before")
        body: dict[str, Any] = {
            "apiVersion": VolumeSnapshot.resource.api_version,
            "kind": "VolumeSnapshot",
            "metadata": {"name": "s"},
            "spec": {
                "volumeSnapshotClassName": CLASS,
                "source": {"persistentVolumeClaimName": "data-db-0"},
            },
        }
        where = VolumeSnapshot.resource.path("default")
        await cluster.client.raw("POST", where, body=msgspec.json.encode(body))
        snapshots = cluster.components.cache.store(VolumeSnapshot)

        def is_ready() -> bool:
            found = snapshots.get(("default", "s"))
            return (
                found is not None and found.status is not None and bool(found.status.ready_to_use)
            )

        await until(is_ready)
        (path(folder, pod) / "marker").write_text("after")
        claim = objects()[0]["spec"]["volumeClaimTemplates"][0]
        source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}
        claim = {"metadata": {"name": "again"}, "spec": {**claim["spec"], "dataSource": source}}
        where = PersistentVolumeClaim.resource.path("default")
        await cluster.client.raw("POST", where, body=msgspec.json.encode(claim))
        volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "again"}}]
        reader = {
            "metadata": {"name": "reader"},
            "spec": {"containers": [{"name": "c", "image": "c"}], "volumes": volumes},
        }
        where = Pod.resource.path("default")
        await cluster.client.raw("POST", where, body=msgspec.json.encode(reader))
        await until(lambda: "reader" in pods(cluster))
        restored = pods(cluster)["reader"]
        assert (path(folder, restored) / "marker").read_text() == "before"
        assert zone(cluster, restored) == zone(cluster, pod)
        await cluster.client.delete(VolumeSnapshot, "s", "default")
        contents = cluster.components.cache.store(VolumeSnapshotContent)
        await until(lambda: not len(snapshots) and not len(contents))
        assert not [*(folder / "csi" / "pools").rglob("snap-*")]


async def test_a_claim_that_grows_is_larger_where_it_is_used(folder: Path) -> None:
    """The volume, its object and the claim's status follow; the pod keeps running."""
    async with living(folder) as cluster:
        await all_ready(cluster)
        uid = pods(cluster)["db-0"].metadata.uid
        body = {"spec": {"resources": {"requests": {"storage": "128Mi"}}}}
        await cluster.client.patch(PersistentVolumeClaim, "data-db-0", "default", body)
        claims = cluster.components.cache.store(PersistentVolumeClaim)

        def grown() -> bool:
            found = claims.get(("default", "data-db-0"))
            return found is not None and found.status.capacity == {"storage": "128Mi"}

        await until(grown)
        found = claims.get(("default", "data-db-0"))
        assert found is not None and not found.status.conditions
        assert pods(cluster)["db-0"].metadata.uid == uid
