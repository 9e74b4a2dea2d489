"""The CSI driver of an embedded cluster, in virtual time."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.embedded.virtual_cluster import MEMORY, until
from tests.embedded.volume_cluster import living, objects, path, pods, zone

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
from zonewise.api.objects.snapshots import VolumeSnapshot, VolumeSnapshotContent
from zonewise.csi.takeover.status import CONFIG_KEY, STATUS_KEY, STATUS_MAP, TakeoverStatus
from zonewise.embedded.cluster import EmbeddedCluster
from zonewise.embedded.csi_driver import CLASS_NAME, DRIVER, POOLS_ANNOTATION
from zonewise.embedded.seed.nodes import NodeLayout
from zonewise.embedded.seed.seed_marker import NAMESPACE, ConfigMap

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

LABEL = f"topology.{DRIVER}/zone"


@pytest.fixture
def folder() -> Any:
    """A data folder in memory."""
    with tempfile.TemporaryDirectory(prefix="zonewise-test-", dir=MEMORY) as name:
        yield Path(name)


async def all_ready(cluster: EmbeddedCluster) -> None:
    """Wait until all pods of the set are Ready."""
    await until(lambda: len(pods(cluster)) == 3)


async def test_a_pod_whose_volume_cannot_be_unmounted_waits(folder: Path) -> None:
    """The pod ends soon after the obstacle is gone; foreign files are not removed."""
    async with living(folder) as cluster:
        await all_ready(cluster)
        pod = pods(cluster)["db-0"]
        link = path(folder, pod)
        data = link.readlink()
        link.unlink()
        link.symlink_to(folder / "elsewhere")
        await cluster.client.delete(Pod, "db-0", "default")
        events = cluster.program.cache.store(Event)
        await until(lambda: any(event.reason == "FailedUnMount" for event in events))
        store = cluster.program.cache.store(Pod)
        current = store.get(("default", "db-0"))
        assert current is not None and current.metadata.uid == pod.metadata.uid
        assert link.readlink() == folder / "elsewhere"
        link.unlink()
        link.symlink_to(data)
        began = asyncio.get_running_loop().time()
        await until(lambda: "db-0" in pods(cluster))
        assert asyncio.get_running_loop().time() - began < 60


async def test_volumes_are_in_the_zones_of_their_pods(folder: Path) -> None:
    """Each of three zones has a volume, whose data is kept when the pod moves to another node."""
    async with living(folder) as cluster:
        await all_ready(cluster)
        by_name = pods(cluster)
        assert {zone(cluster, pod) for pod in by_name.values()} == {"a", "b", "c"}
        for name, pod in by_name.items():
            claim = await cluster.client.get(PersistentVolumeClaim, f"data-{name}", "default")
            volume = await cluster.client.get(PersistentVolume, claim.spec.volume_name)
            assert volume.spec.csi is not None
            assert volume.spec.csi.volume_attributes == {"pool": f"zone-{zone(cluster, pod)}"}
            (path(folder, pod) / "marker").write_text(name)
        first = by_name["db-0"]
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


async def test_a_killed_cluster_restarts_with_its_data(folder: Path) -> None:
    """Volumes are mounted again, also if they were unmounted meanwhile."""
    async with living(folder, killed=True) as cluster:
        await all_ready(cluster)
        places = {name: path(folder, pod) for name, pod in pods(cluster).items()}
        for name, mount in places.items():
            (mount / "marker").write_text(name)
    places["db-1"].unlink()
    async with living(folder) as cluster:
        await all_ready(cluster)
        await until(lambda: all(mount.exists() for mount in places.values()))
        for name, mount in places.items():
            assert path(folder, pods(cluster)[name]) == mount
            assert (mount / "marker").read_text() == name
        await cluster.client.raw("DELETE", "/apis/apps/v1/namespaces/default/statefulsets/db")
        await until(lambda: not pods(cluster))
        for name in places:
            await cluster.client.delete(PersistentVolumeClaim, f"data-{name}", "default")
        volumes = cluster.program.cache.store(PersistentVolume)
        await until(lambda: not len(volumes))
    assert not [*(folder / "nodes").rglob("pods/*")]
    assert not [*(folder / "csi" / "pools").rglob("vol-*")]


async def test_every_node_reports_its_topology(folder: Path) -> None:
    """CSINode and the driver's label come from the zone label, and follow it."""
    async with living(folder) as cluster:
        nodes, drivers = (cluster.program.cache.store(kind) for kind in (Node, CSINode))
        await until(lambda: len(drivers) == 6)
        name = "a-1"
        body = {"metadata": {"labels": {"topology.kubernetes.io/zone": "b"}}}
        await cluster.client.patch(Node, name, None, body)

        def label() -> str:
            node = nodes.get(("", name))
            assert node is not None
            return node.metadata.labels.get(LABEL, "")

        await until(lambda: label() == "b")
        csi_node = await cluster.client.get(CSINode, name)
        (driver,) = csi_node.spec.drivers or ()
        assert (driver.name, driver.topology_keys) == (DRIVER, (LABEL,))


async def test_pools_follow_their_config_map(folder: Path) -> None:
    """A new zone gets a pool; an invalid change is reported and changes nothing."""
    async with living(folder) as cluster:
        await all_ready(cluster)
        maps = cluster.program.cache.store(
            ConfigMap, namespace=NAMESPACE, field_selector="metadata.name=csi"
        )

        labels = {"topology.kubernetes.io/zone": "d"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "d-1", "labels": labels}}
        await cluster.seeder.create([node])
        await until(
            lambda: any("zone-d" in config_map.get("data", CONFIG_KEY) for config_map in maps)
        )
        await cluster.client.patch(ConfigMap, "csi", NAMESPACE, {"data": {CONFIG_KEY: "{"}})
        await asyncio.sleep(5)
        answer = await cluster.client.raw("GET", "/apis/events.k8s.io/v1/events")
        events = msgspec.json.decode(answer.body)["items"]
        assert any(event["reason"] == "InvalidConfiguration" for event in events)
        # The pools are still those of before: a new claim finds one.
        await cluster.client.patch(StatefulSet, "db", "default", {"spec": {"replicas": 4}})
        await until(lambda: len(pods(cluster)) == 4)


async def test_a_volume_that_binds_at_once_is_usable_from_everywhere(folder: Path) -> None:
    """A class with immediate binding gives volumes without a node affinity, in the best pool, and
    their report says so.
    """
    async with living(folder) as cluster:
        await all_ready(cluster)
        pinned = await cluster.client.get(PersistentVolumeClaim, "data-db-0", "default")
        body = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "at-once"},
            "provisioner": DRIVER,
            "volumeBindingMode": "Immediate",
        }
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "web-1", "namespace": "default"},
            "spec": {
                "storageClassName": "at-once",
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "64Mi"}},
            },
        }
        await cluster.seeder.create([body, claim])
        claims = cluster.program.cache.store(PersistentVolumeClaim)
        await until(
            lambda: any(each.metadata.name == "web-1" and each.spec.volume_name for each in claims)
        )
        bound = await cluster.client.get(PersistentVolumeClaim, "web-1", "default")
        affinities = [
            (await cluster.client.get(PersistentVolume, each.spec.volume_name)).spec.node_affinity
            for each in (pinned, bound)
        ]
        assert affinities[0] is not None
        assert affinities[1] is None


async def test_a_zone_without_a_pool_is_served_and_said(folder: Path) -> None:
    """A pod there gets a volume from another pool, which is usable from everywhere, and an event on
    its claim names class and zone; other claims have none.
    """
    async with living(folder) as cluster:
        await all_ready(cluster)
        unmanaged = {"metadata": {"annotations": {POOLS_ANNOTATION: None}}}
        await cluster.client.patch(ConfigMap, "csi", NAMESPACE, unmanaged)
        layout = NodeLayout(zones=("d",), nodes_per_zone=1, cpus=("4",))
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "new", "namespace": "default"},
            "spec": {
                "storageClassName": CLASS_NAME,
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "64Mi"}},
            },
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "default"},
            "spec": {
                "nodeSelector": {"topology.kubernetes.io/zone": "d"},
                "containers": [{"name": "c", "image": "c"}],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "new"}}],
            },
        }
        await cluster.seeder.create([*layout.nodes(), claim, pod])
        store = cluster.program.cache.store(Pod)
        await until(
            lambda: any(each.metadata.name == "p" and each.status.pod_ip for each in store),
            within=60,
        )
        bound = await cluster.client.get(PersistentVolumeClaim, "new", "default")
        volume = await cluster.client.get(PersistentVolume, bound.spec.volume_name)
        assert volume.spec.node_affinity is None
        answer = await cluster.client.raw("GET", "/apis/events.k8s.io/v1/events")
        (event,) = [
            each
            for each in msgspec.json.decode(answer.body)["items"]
            if each["reason"] == "NoPoolInDomain"
        ]
        assert event["regarding"]["name"] == "new"
        assert event["note"].startswith(f"class {CLASS_NAME} has no pool in zone d: ")


async def test_changed_pools_are_published_at_once(folder: Path) -> None:
    """The capacities of a changed ConfigMap are published before the next round."""
    async with living(folder) as cluster:
        await all_ready(cluster)
        await asyncio.sleep(5)  # what the set's own volumes changed is published
        segments = [{"domainLabel": "zone", "value": "a"}]
        pool = {"poolName": "zone-a", "capacity": "3Gi", "domainSegments": segments}
        text = json.dumps({"version": 2, "pools": [pool]})
        body = {"metadata": {"annotations": {POOLS_ANNOTATION: None}}, "data": {CONFIG_KEY: text}}
        await cluster.client.patch(ConfigMap, "csi", NAMESPACE, body)
        await asyncio.sleep(5)
        store = cluster.program.cache.store(CSIStorageCapacity)
        capacities = {
            capacity.node_topology.match_labels[LABEL]: capacity.capacity
            for capacity in store
            if capacity.node_topology is not None
        }
        # Volumes for the two other zones are cut from the pool of the first.
        assert capacities == dict.fromkeys("abc", "3008Mi")


@pytest.mark.parametrize(
    "text",
    [
        '{"version": 2, "pools": [], "poolz": []}',
        '{"version": 2, "pools": null}',
        '{"version": 2, "\\ud800": 1}',
        "[" * 100_000,
    ],
)
async def test_an_invalid_configuration_is_not_changed(folder: Path, text: str) -> None:
    """No pool of a new zone is added to an invalid configuration, and the error is reported."""
    async with living(folder) as cluster:
        await all_ready(cluster)
        await cluster.client.patch(ConfigMap, "csi", NAMESPACE, {"data": {CONFIG_KEY: text}})
        labels = {"topology.kubernetes.io/zone": "d"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "d-1", "labels": labels}}
        await cluster.seeder.create([node])
        await asyncio.sleep(5)
        config_map = await cluster.client.get(ConfigMap, "csi", NAMESPACE)
        assert config_map.get("data", CONFIG_KEY) == text
        status_map = await cluster.client.get(ConfigMap, STATUS_MAP, NAMESPACE)
        assert TakeoverStatus.parse(status_map.get("data", STATUS_KEY)).error


async def test_a_snapshot_can_be_taken_restored_and_deleted(folder: Path) -> None:
    """Content and snapshot become ready; a claim from the snapshot has the data."""
    async with living(folder) as cluster:
        await all_ready(cluster)
        pod = pods(cluster)["db-0"]
        (path(folder, pod) / "marker").write_text("before")
        body: dict[str, Any] = {
            "apiVersion": VolumeSnapshot.resource.api_version,
            "kind": "VolumeSnapshot",
            "metadata": {"name": "s"},
            "spec": {
                "volumeSnapshotClassName": CLASS_NAME,
                "source": {"persistentVolumeClaimName": "data-db-0"},
            },
        }
        where = VolumeSnapshot.resource.path("default")
        await cluster.client.raw("POST", where, body=msgspec.json.encode(body))
        snapshots = cluster.program.cache.store(VolumeSnapshot)

        def is_ready() -> bool:
            snapshot = snapshots.get(("default", "s"))
            return (
                snapshot is not None
                and snapshot.status is not None
                and bool(snapshot.status.ready_to_use)
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
        contents = cluster.program.cache.store(VolumeSnapshotContent)
        await until(lambda: not len(snapshots) and not len(contents))
        assert not [*(folder / "csi" / "pools").rglob("snap-*")]


async def test_a_claim_that_grows_is_larger_where_it_is_used(folder: Path) -> None:
    """The volume, its object and the claim's status follow; the pod keeps running."""
    async with living(folder) as cluster:
        await all_ready(cluster)
        uid = pods(cluster)["db-0"].metadata.uid
        body = {"spec": {"resources": {"requests": {"storage": "128Mi"}}}}
        await cluster.client.patch(PersistentVolumeClaim, "data-db-0", "default", body)
        claims = cluster.program.cache.store(PersistentVolumeClaim)

        def grown() -> bool:
            claim = claims.get(("default", "data-db-0"))
            return claim is not None and claim.status.capacity == {"storage": "128Mi"}

        await until(grown)
        claim = claims.get(("default", "data-db-0"))
        assert claim is not None and not claim.status.conditions
        assert pods(cluster)["db-0"].metadata.uid == uid
