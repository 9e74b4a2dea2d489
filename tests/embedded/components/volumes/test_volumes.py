"""Claims and volumes on a cluster in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.embedded.virtual_cluster import VirtualCluster, until, virtual_cluster

from zonewise.api.errors import NotFound
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.storage import LEGACY_CLASS, PersistentVolume, PersistentVolumeClaim
from zonewise.embedded.components.kubelet.kubelets import Kubelets
from zonewise.embedded.components.volumes.binder import PersistentVolumeController
from zonewise.embedded.components.volumes.ephemeral import EphemeralVolumeController
from zonewise.embedded.components.volumes.protection import VolumeProtectionController
from zonewise.embedded.components.volumes.provisioner import SimulatedProvisioner
from zonewise.scheduling.volumes import SELECTED_NODE

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

PARTS = {
    "kubelet": Kubelets,
    "persistentvolume-binder": PersistentVolumeController,
    "provisioner": SimulatedProvisioner,
    "protection": VolumeProtectionController,
    "ephemeral": EphemeralVolumeController,
}
ZONE = "topology.kubernetes.io/zone"


async def post(cluster: VirtualCluster, path: str, body: dict[str, Any]) -> None:
    """Create an object of any kind."""
    await cluster.client.raw("POST", path, body=msgspec.json.encode(body))


def spec(**fields: Any) -> dict[str, Any]:
    """The spec of a claim."""
    requests = {"resources": {"requests": {"storage": "1Gi"}}}
    return {"accessModes": ["ReadWriteOnce"], **requests, **fields}


async def claim(cluster: VirtualCluster, name: str = "data", **fields: Any) -> None:
    """A claim."""
    body = {"metadata": {"name": name}, "spec": spec(**fields)}
    await post(cluster, "/api/v1/namespaces/default/persistentvolumeclaims", body)


async def volume(cluster: VirtualCluster, name: str, **fields: Any) -> None:
    """A volume without a provisioner."""
    body = {
        "capacity": {"storage": "2Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": "/tmp"},
        "storageClassName": "",
        **fields,
    }
    await post(cluster, "/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": body})


async def pod(
    cluster: VirtualCluster, name: str, *volumes: dict[str, Any], node: str = "n1"
) -> None:
    """A pod with volumes, bound to a node."""
    body = {
        "nodeName": node,
        "containers": [{"name": "c", "image": "c"}],
        "volumes": [{"name": f"v{n}", **source} for n, source in enumerate(volumes)],
    }
    await post(
        cluster, "/api/v1/namespaces/default/pods", {"metadata": {"name": name}, "spec": body}
    )


def phase(cluster: VirtualCluster, name: str = "data") -> str:
    """The phase of a claim."""
    claim = cluster.program.cache.store(PersistentVolumeClaim).get(("default", name))
    return claim.status.phase if claim else ""


def volume_phase(cluster: VirtualCluster, name: str) -> str:
    """The phase of a volume."""
    volume = cluster.program.cache.store(PersistentVolume).get(("", name))
    return volume.status.phase if volume else ""


async def select(cluster: VirtualCluster, node: str, name: str = "data") -> None:
    """Write the selected node on the claim, as the scheduler does."""
    body = {"metadata": {"annotations": {SELECTED_NODE: node}}}
    await cluster.client.patch(PersistentVolumeClaim, name, "default", body)


async def reasons(cluster: VirtualCluster) -> set[str]:
    """The reasons of all events."""
    await asyncio.sleep(0.5)
    answer = await cluster.client.raw("GET", "/apis/events.k8s.io/v1/events")
    return {item["reason"] for item in msgspec.json.decode(answer.body)["items"]}


async def class_there(cluster: VirtualCluster) -> None:
    """Wait for the default class, which claims without a class get at creation."""
    await until(
        lambda: (
            cluster.server.state.latest("storage.k8s.io/storageclasses", "", "standard") is not None
        )
    )


DEFAULT = "storageclass.kubernetes.io/is-default-class"
BETA_DEFAULT = "storageclass.beta.kubernetes.io/is-default-class"


async def storage_class(cluster: VirtualCluster, name: str, **marks: str) -> None:
    """A class whose volumes are created at once."""
    body = {"metadata": {"name": name, "annotations": marks}, "provisioner": "zonewise.io/embedded"}
    await post(cluster, "/apis/storage.k8s.io/v1/storageclasses", body)


async def test_early_and_late_claims_get_the_same_default_class() -> None:
    """Of default classes with equal times the first name counts, also with the beta annotation."""
    async with virtual_cluster({"persistentvolume-binder": PersistentVolumeController}) as cluster:
        await claim(cluster, "early")
        await until(lambda: phase(cluster, "early") == "Pending")
        await storage_class(cluster, "a", **{BETA_DEFAULT: "true"})
        await storage_class(cluster, "b", **{DEFAULT: "true"})
        await claim(cluster, "late")
        await asyncio.sleep(60)
        for name in ("early", "late"):
            bound = await cluster.client.get(PersistentVolumeClaim, name, "default")
            assert (name, bound.spec.storage_class_name) == (name, "a")


async def test_a_claim_may_name_its_class_by_the_beta_annotation() -> None:
    """The class of the annotation is used, and no default class is added."""
    async with virtual_cluster(PARTS) as cluster:
        await class_there(cluster)
        await storage_class(cluster, "fast")
        old = {"name": "data", "annotations": {LEGACY_CLASS: "fast"}}
        body = {"metadata": old, "spec": spec()}
        await post(cluster, "/api/v1/namespaces/default/persistentvolumeclaims", body)
        await until(lambda: phase(cluster) == "Bound")
        claim = await cluster.client.get(PersistentVolumeClaim, "data", "default")
        volume = await cluster.client.get(PersistentVolume, claim.spec.volume_name)
        assert (claim.spec.storage_class_name, volume.spec.storage_class_name) == (None, "fast")


async def test_a_claim_waits_for_its_node_and_gets_a_volume_in_its_zone() -> None:
    """The default class waits for a pod; the volume's affinity is the zone of the selected node."""
    async with virtual_cluster(PARTS) as cluster:
        await cluster.client.create(Node(metadata=ObjectMeta(name="n1", labels={ZONE: "b"})))
        await class_there(cluster)
        await claim(cluster)
        await until(lambda: phase(cluster) == "Pending")
        await asyncio.sleep(5)
        assert "WaitForFirstConsumer" in await reasons(cluster)
        await select(cluster, "n1")
        await until(lambda: phase(cluster) == "Bound")
        bound = await cluster.client.get(PersistentVolumeClaim, "data", "default")
        assert bound.status.capacity == {"storage": "1Gi"}
        volume = await cluster.client.get(PersistentVolume, bound.spec.volume_name)
        await until(lambda: volume_phase(cluster, volume.metadata.name) == "Bound")
        affinity = volume.spec.node_affinity
        assert affinity is not None and affinity.required is not None
        terms = affinity.required.node_selector_terms
        assert terms is not None and terms[0].match_expressions is not None
        needs = terms[0].match_expressions[0]
        assert (needs.key, needs.values) == (ZONE, ("b",))
        assert {"ExternalProvisioning", "ProvisioningSucceeded"} <= await reasons(cluster)


async def test_a_deleted_claim_is_removed_with_its_volume_when_unused() -> None:
    """Protection keeps the claim while a pod uses it; then claim and volume are deleted."""
    async with virtual_cluster(PARTS) as cluster:
        await cluster.client.create(Node(metadata=ObjectMeta(name="n1", labels={ZONE: "b"})))
        await class_there(cluster)
        await claim(cluster)
        await select(cluster, "n1")
        await until(lambda: phase(cluster) == "Bound")
        await pod(cluster, "p", {"persistentVolumeClaim": {"claimName": "data"}})
        pods = cluster.program.cache.store(Pod)
        await until(lambda: any(item.status.phase == "Running" for item in pods))
        await cluster.client.delete(PersistentVolumeClaim, "data", "default")
        await asyncio.sleep(10)
        assert phase(cluster) == "Bound"
        await cluster.client.delete(Pod, "p", "default")
        await until(lambda: phase(cluster) == "")
        volumes = cluster.program.cache.store(PersistentVolume)
        await until(lambda: len(volumes) == 0)


async def test_a_manual_volume_is_bound_and_retained() -> None:
    """A claim without a class gets the volume; with Retain it becomes Released."""
    async with virtual_cluster(PARTS) as cluster:
        await claim(cluster, storageClassName="")
        await until(lambda: phase(cluster) == "Pending")
        assert "FailedBinding" in await reasons(cluster)
        await volume(cluster, "small", capacity={"storage": "500Mi"})
        await volume(cluster, "large")
        await until(lambda: phase(cluster) == "Bound")
        assert volume_phase(cluster, "large") == "Bound"
        await until(lambda: volume_phase(cluster, "small") == "Available")
        await cluster.client.delete(PersistentVolumeClaim, "data", "default")
        await until(lambda: volume_phase(cluster, "large") == "Released")
        await asyncio.sleep(30)
        stored = await cluster.client.get(PersistentVolume, "large")
        assert stored.spec.claim_ref is not None


async def test_a_bound_volume_is_protected_and_its_loss_is_reported() -> None:
    """A deleted volume stays while it is bound; a claim without its volume is Lost."""
    async with virtual_cluster(PARTS) as cluster:
        await volume(cluster, "v")
        await claim(cluster, storageClassName="", volumeName="v")
        await until(lambda: phase(cluster) == "Bound")
        await cluster.client.delete(PersistentVolume, "v")
        await asyncio.sleep(10)
        assert volume_phase(cluster, "v") == "Bound"
        await cluster.client.patch(PersistentVolume, "v", None, {"metadata": {"finalizers": None}})
        await until(lambda: phase(cluster) == "Lost")
        assert "ClaimLost" in await reasons(cluster)


async def test_a_claim_older_than_the_default_class_gets_it() -> None:
    """A claim without a class gets the default one as soon as it exists."""
    parts = {name: part for name, part in PARTS.items() if name != "provisioner"}
    async with virtual_cluster(parts) as cluster:
        await claim(cluster)
        await until(lambda: phase(cluster) == "Pending")
        late = SimulatedProvisioner(cluster.program.context("provisioner"))
        work = asyncio.create_task(late.run())
        claims = cluster.program.cache.store(PersistentVolumeClaim)
        await until(lambda: claims.values()[0].spec.storage_class_name == "standard")
        work.cancel()


async def test_two_claims_never_get_one_volume() -> None:
    """Of two claims that match one volume the second waits for the next volume."""
    async with virtual_cluster(PARTS) as cluster:
        await asyncio.gather(*(claim(cluster, name, storageClassName="") for name in "ab"))
        await volume(cluster, "one")
        await until(lambda: {phase(cluster, "a"), phase(cluster, "b")} == {"Bound", "Pending"})
        await asyncio.sleep(5)
        assert {phase(cluster, "a"), phase(cluster, "b")} == {"Bound", "Pending"}
        await volume(cluster, "two")
        await until(lambda: {phase(cluster, "a"), phase(cluster, "b")} == {"Bound"})


async def test_an_ephemeral_volume_lives_and_dies_with_its_pod() -> None:
    """The claim is named after pod and volume, owned by the pod, and deleted with it."""
    async with virtual_cluster(PARTS) as cluster:
        await cluster.client.create(Node(metadata=ObjectMeta(name="n1", labels={ZONE: "b"})))
        await class_there(cluster)
        await pod(cluster, "p", {"ephemeral": {"volumeClaimTemplate": {"spec": spec()}}})
        await until(lambda: phase(cluster, "p-v0") == "Pending")
        claim = await cluster.client.get(PersistentVolumeClaim, "p-v0", "default")
        assert claim.metadata.owner_references[0].kind == "Pod"
        await cluster.client.delete(Pod, "p", "default")
        await until(lambda: phase(cluster, "p-v0") == "")
        with pytest.raises(NotFound):
            await cluster.client.get(PersistentVolumeClaim, "p-v0", "default")


async def test_a_class_that_binds_at_once_spreads_over_the_zones() -> None:
    """Without a node the claims of a set get different zones."""
    async with virtual_cluster(PARTS) as cluster:
        for zone in "abc":
            labels = {ZONE: zone}
            await cluster.client.create(Node(metadata=ObjectMeta(name=f"n{zone}", labels=labels)))
        body = {
            "metadata": {"name": "fast"},
            "provisioner": "zonewise.io/embedded",
            "volumeBindingMode": "Immediate",
        }
        await post(cluster, "/apis/storage.k8s.io/v1/storageclasses", body)
        for number in range(3):
            await claim(cluster, f"data-db-{number}", storageClassName="fast")
        volumes = cluster.program.cache.store(PersistentVolume)
        await until(lambda: len(volumes) == 3)
        assert len({msgspec.json.encode(volume.spec.node_affinity) for volume in volumes}) == 3
