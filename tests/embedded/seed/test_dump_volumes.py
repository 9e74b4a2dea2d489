"""Volumes of a dump keep their claims and their zones."""

from __future__ import annotations

from typing import Any

import pytest
from tests.embedded.seed.eks_dump import NAMESPACE, STATEFUL, eks_dump
from tests.embedded.whole_cluster import settled, whole

from zonewise.api import Node, Pod
from zonewise.api.objects.storage import (
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    is_default_class,
)
from zonewise.embedded.cluster import EmbeddedCluster
from zonewise.embedded.components.volumes.well_known import DRIVER, EMBEDDED, PROVISIONED_BY
from zonewise.embedded.seed.dump_import import INVENTED, RECREATED, KindDifference, import_dump
from zonewise.embedded.seed.dump_volumes import ADDED_CLASS, NO_EXPANSION, UNBOUND
from zonewise.topology.nodes import zone_of

Obj = dict[str, Any]

VOLUMES = sum(replicas for replicas, _ in STATEFUL.values())


def kinds(objects: tuple[Obj, ...], kind: str) -> dict[str, Obj]:
    """The objects of a kind by name."""
    return {item["metadata"]["name"]: item for item in objects if item["kind"] == kind}


def without(*left_out: str) -> list[Obj]:
    """The dump without these kinds."""
    return [item for item in eks_dump() if item["kind"] not in left_out]


async def zones(cluster: EmbeddedCluster) -> dict[str, str]:
    """The zones of the pods with volumes, by name."""
    nodes = {node.metadata.name: zone_of(node) for node in await cluster.client.list(Node)}
    return {
        pod.metadata.name: nodes[pod.spec.node_name]
        for pod in await cluster.client.list(Pod)
        if pod.metadata.name.partition("-")[0] in STATEFUL
    }


def dumped_zones() -> dict[str, str]:
    """The same in the dump."""
    nodes = kinds(tuple(eks_dump()), "Node")
    label = "topology.kubernetes.io/zone"
    return {
        name: nodes[pod["spec"]["nodeName"]]["metadata"]["labels"][label]
        for name, pod in kinds(tuple(eks_dump()), "Pod").items()
        if name.partition("-")[0] in STATEFUL
    }


async def phases(cluster: EmbeddedCluster) -> set[str]:
    """The phases of all claims and volumes."""
    claims = await cluster.client.list(PersistentVolumeClaim)
    volumes = await cluster.client.list(PersistentVolume)
    assert len(claims) == len(volumes) == VOLUMES
    return {item.status.phase for item in (*claims, *volumes)}


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.looptime
@pytest.mark.parametrize("left_out", [(), ("PersistentVolume",)], ids=["whole", "no volumes"])
async def test_volumes_stay_bound_and_keep_their_pods_in_their_zones(
    left_out: tuple[str, ...],
) -> None:
    """Every claim is Bound and its pod runs, and a deleted pod is replaced in its zone."""
    imported = import_dump(without(*left_out), keep_placement=True)
    async with whole(imported.objects) as cluster:
        await settled(cluster)
        assert await phases(cluster) == {"Bound"}
        before = dumped_zones()
        assert await zones(cluster) == before
        for name in before:
            await cluster.client.delete(Pod, name, NAMESPACE)
        await settled(cluster)
        assert await zones(cluster) == before
        assert await phases(cluster) == {"Bound"}


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_pods_are_scheduled_to_their_data() -> None:
    """Without --keep-placement, too, volumes keep their zones and their claims."""
    async with whole(import_dump(eks_dump()).objects) as cluster:
        await settled(cluster)
        assert await phases(cluster) == {"Bound"}
        assert await zones(cluster) == dumped_zones()


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_the_default_class_is_that_of_the_dump() -> None:
    """A cluster from a dump creates no second default class beside the dump's."""
    imported = import_dump(eks_dump())
    async with whole(imported.objects) as cluster:
        classes = await cluster.client.list(StorageClass)
    marked = [
        storage_class.metadata.name
        for storage_class in classes
        if is_default_class(storage_class.metadata.annotations)
    ]
    assert marked == ["gp2"]
    assert {storage_class.provisioner for storage_class in classes} == {EMBEDDED}
    assert KindDifference("StorageClass", ADDED_CLASS, ("standard",)) in imported.changed


def test_differences_of_volumes_are_reported() -> None:
    """Unsupported provisioners, drivers and expansion are reported, with the names."""
    changes = {
        (change.kind, change.reason): change.names for change in import_dump(eks_dump()).changed
    }
    volumes = changes.pop(
        ("PersistentVolume", "is simulated here, without the driver ebs.csi.aws.com")
    )
    assert len(volumes) == VOLUMES
    assert changes == {
        ("StorageClass", "its volumes are simulated here, not made by ebs.csi.aws.com"): ("gp3",),
        ("StorageClass", "its volumes are simulated here, not made by kubernetes.io/aws-ebs"): (
            "gp2",
        ),
        ("StorageClass", NO_EXPANSION): ("gp3",),
        ("StorageClass", ADDED_CLASS): ("standard",),
    }


def test_which_fields_of_a_volume_are_kept() -> None:
    """Size, class, affinity and the claim's name are kept; uids of the other cluster are not."""
    volume = kinds(import_dump(eks_dump()).objects, "PersistentVolume")["pvc-kafka-1"]
    spec = volume["spec"]
    assert volume["metadata"]["annotations"] == {PROVISIONED_BY: EMBEDDED}
    assert spec["csi"] == {"driver": DRIVER, "volumeHandle": f"vol-{1:017x}"}
    assert spec["claimRef"] == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": NAMESPACE,
        "name": "data-kafka-1",
    }
    (before,) = [
        item
        for item in eks_dump()
        if item["metadata"]["name"] == "pvc-kafka-1" and item["kind"] == "PersistentVolume"
    ]
    for field in ("nodeAffinity", "capacity", "storageClassName", "persistentVolumeReclaimPolicy"):
        assert spec[field] == before["spec"][field]


def test_a_released_volume_is_not_offered_again() -> None:
    """A volume whose claim was deleted keeps the uid of that claim."""
    released = [item for item in eks_dump() if item["kind"] == "PersistentVolume"][:1]
    released[0]["status"]["phase"] = "Released"
    (volume,) = kinds(import_dump(released).objects, "PersistentVolume").values()
    assert volume["spec"]["claimRef"]["uid"] == "9f0c"


def test_a_claim_without_volume_and_pod_stays_unbound() -> None:
    """A claim without its volume and without a pod is left unbound, and reported."""
    imported = import_dump(without("PersistentVolume", "Pod"))
    claims = kinds(imported.objects, "PersistentVolumeClaim")
    assert not any("volumeName" in claim["spec"] for claim in claims.values())
    (change,) = [entry for entry in imported.changed if entry.reason == UNBOUND]
    assert len(change.names) == VOLUMES


def test_a_claim_that_is_not_in_the_dump_gets_a_volume_where_its_pod_runs() -> None:
    """A claim that is missing in the dump gets a volume in the zone of its pod."""
    imported = import_dump(
        without("PersistentVolume", "PersistentVolumeClaim"), keep_placement=True
    )
    assert {
        difference.kind for difference in imported.invented if difference.reason == INVENTED
    } == {
        "PersistentVolume",
        "PersistentVolumeClaim",
    }
    assert len(kinds(imported.objects, "PersistentVolume")) == VOLUMES


@pytest.mark.parametrize("keep", [False, True])
def test_an_ephemeral_claim_is_created_again(keep: bool) -> None:
    """The volume of an ephemeral claim stays only if its pod keeps its name."""
    owner = {"kind": "Pod", "name": "job", "uid": "u", "controller": True}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {"volumeName": "v"}}
    claim["metadata"] = {"name": "job-tmp", "namespace": "n", "ownerReferences": [owner]}
    reference = {"namespace": "n", "name": "job-tmp", "uid": "u"}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "v"},
        "spec": {"claimRef": reference, "csi": {"driver": "d", "volumeHandle": "h"}},
    }
    imported = import_dump([claim, volume], keep_placement=keep)
    assert len(imported.objects) == keep
    assert {difference.reason for difference in imported.left_out} == {RECREATED}


def test_workloads_without_their_revisions_are_named() -> None:
    """If adopted pods may be replaced, the note says what else to dump."""
    changes = [
        change
        for change in import_dump(eks_dump(), keep_placement=True).changed
        if "replaced" in change.reason
    ]
    assert {(change.kind, change.names) for change in changes} == {
        ("DaemonSet", ("kube-system/aws-node",)),
        ("StatefulSet", ("shop/kafka", "shop/postgres", "shop/search")),
    }
