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
from zonewise.embedded.seed.dump_import import ANEW, INVENTED, KindDifference, shape
from zonewise.embedded.seed.dump_volumes import ADDED_CLASS, NO_EXPANSION, UNBOUND
from zonewise.topology import zone_of

Obj = dict[str, Any]

VOLUMES = sum(replicas for replicas, _ in STATEFUL.values())


def kinds(objects: tuple[Obj, ...], kind: str) -> dict[str, Obj]:
    """The objects of a kind by name."""
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == kind}


def without(*left_out: str) -> list[Obj]:
    """The dump of someone who did not ask for these kinds."""
    return [one for one in eks_dump() if one["kind"] not in left_out]


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
    return {one.status.phase for one in (*claims, *volumes)}


@pytest.mark.asyncio
@pytest.mark.looptime
@pytest.mark.parametrize("left_out", [(), ("PersistentVolume",)], ids=["whole", "no volumes"])
async def test_volumes_stay_bound_and_hold_their_pods_in_their_zones(
    left_out: tuple[str, ...],
) -> None:
    """Every claim is Bound under its running pod, and a pod that is deleted returns to its zone."""
    found = shape(without(*left_out), keep_placement=True)
    async with whole(found.objects) as cluster:
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
async def test_pods_that_are_scheduled_again_go_to_their_data() -> None:
    """Without --keep-placement, too, volumes keep their zones and their claims."""
    async with whole(shape(eks_dump()).objects) as cluster:
        await settled(cluster)
        assert await phases(cluster) == {"Bound"}
        assert await zones(cluster) == dumped_zones()


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_the_default_class_is_that_of_the_dump() -> None:
    """The class of this cluster is not a second default beside the dump's, whoever is first."""
    found = shape(eks_dump())
    async with whole(found.objects) as cluster:
        classes = await cluster.client.list(StorageClass)
    marked = [one.metadata.name for one in classes if is_default_class(one.metadata.annotations)]
    assert marked == ["gp2"]
    assert {one.provisioner for one in classes} == {EMBEDDED}
    assert KindDifference("StorageClass", ADDED_CLASS, ("standard",)) in found.changed


def test_what_became_different_about_volumes_is_told() -> None:
    """Provisioners, drivers and expansion that are not here are in the account, with the names."""
    told = {(one.kind, one.why): one.names for one in shape(eks_dump()).changed}
    volumes = told.pop(
        ("PersistentVolume", "is simulated here, without the driver ebs.csi.aws.com")
    )
    assert len(volumes) == VOLUMES
    assert told == {
        ("StorageClass", "its volumes are simulated here, not made by ebs.csi.aws.com"): ("gp3",),
        ("StorageClass", "its volumes are simulated here, not made by kubernetes.io/aws-ebs"): (
            "gp2",
        ),
        ("StorageClass", NO_EXPANSION): ("gp3",),
        ("StorageClass", ADDED_CLASS): ("standard",),
    }


def test_a_volume_keeps_its_place_and_its_claim_but_not_its_driver() -> None:
    """Size, class, affinity and the claim's name stay; uids of the other cluster go."""
    kept = kinds(shape(eks_dump()).objects, "PersistentVolume")["pvc-kafka-1"]
    spec = kept["spec"]
    assert kept["metadata"]["annotations"] == {PROVISIONED_BY: EMBEDDED}
    assert spec["csi"] == {"driver": DRIVER, "volumeHandle": f"vol-{1:017x}"}
    assert spec["claimRef"] == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": NAMESPACE,
        "name": "data-kafka-1",
    }
    (before,) = [
        one
        for one in eks_dump()
        if one["metadata"]["name"] == "pvc-kafka-1" and one["kind"] == "PersistentVolume"
    ]
    for field in ("nodeAffinity", "capacity", "storageClassName", "persistentVolumeReclaimPolicy"):
        assert spec[field] == before["spec"][field]


def test_a_released_volume_is_not_offered_again() -> None:
    """A volume whose claim was deleted keeps the uid of that claim."""
    released = [one for one in eks_dump() if one["kind"] == "PersistentVolume"][:1]
    released[0]["status"]["phase"] = "Released"
    (kept,) = kinds(shape(released).objects, "PersistentVolume").values()
    assert kept["spec"]["claimRef"]["uid"] == "9f0c"


def test_a_claim_whose_place_is_unknown_gets_a_volume_later() -> None:
    """Without its volume and without a pod a claim is left unbound, and that is told."""
    found = shape(without("PersistentVolume", "Pod"))
    claims = kinds(found.objects, "PersistentVolumeClaim")
    assert not any("volumeName" in one["spec"] for one in claims.values())
    (told,) = [one for one in found.changed if one.why == UNBOUND]
    assert len(told.names) == VOLUMES


def test_a_claim_that_is_not_in_the_dump_gets_a_volume_where_its_pod_runs() -> None:
    """Pods that keep their nodes do not run above claims that nobody binds."""
    found = shape(without("PersistentVolume", "PersistentVolumeClaim"), keep_placement=True)
    assert {one.kind for one in found.invented if one.why == INVENTED} == {
        "PersistentVolume",
        "PersistentVolumeClaim",
    }
    assert len(kinds(found.objects, "PersistentVolume")) == VOLUMES


@pytest.mark.parametrize("keep", [False, True])
def test_a_claim_made_for_a_pod_is_made_again(keep: bool) -> None:
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
    found = shape([claim, volume], keep_placement=keep)
    assert len(found.objects) == keep
    assert {one.why for one in found.left_out} == {ANEW}


def test_workloads_without_their_revisions_are_named() -> None:
    """Where adopted pods may be replaced, the table says what to dump as well."""
    told = [one for one in shape(eks_dump(), keep_placement=True).changed if "replaced" in one.why]
    assert {(one.kind, one.names) for one in told} == {
        ("DaemonSet", ("kube-system/aws-node",)),
        ("StatefulSet", ("shop/kafka", "shop/postgres", "shop/search")),
    }
