"""The scheduler over an embedded server, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest
from tests.embedded.virtual_cluster import EPOCH, VirtualCluster, until, virtual_cluster

from zonewise.api import Node, Pod, convert, decode
from zonewise.api.meta import ObjectMeta, OwnerReference
from zonewise.api.objects.events import Event
from zonewise.api.objects.pod import PodCondition
from zonewise.api.objects.storage import PersistentVolumeClaim
from zonewise.embedded.components.scheduler.scheduler import Scheduler
from zonewise.runtime.program.context import ControllerContext
from zonewise.runtime.program.program import Program
from zonewise.scheduling.volumes import SELECTED_NODE

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

ZONE = "topology.kubernetes.io/zone"
PARTS = {"default-scheduler": Scheduler}


async def add_node(cluster: VirtualCluster, name: str, *, cpu: str = "4", zone: str = "a") -> None:
    """Add a node that is ready for pods."""
    node = {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, ZONE: zone}},
        "spec": {},
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}},
    }
    created = await cluster.client.create(convert(Node, node))
    # A new node is tainted until its kubelet reports; here there is no kubelet.
    assert created.spec.taints
    await cluster.client.patch(Node, name, None, {"spec": {"taints": None}})


async def add_pod(
    cluster: VirtualCluster,
    name: str,
    *,
    cpu: str = "1",
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> Pod:
    """A pod of one container."""
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    pod = {
        "metadata": {"name": name, "namespace": "default", "labels": labels or {}},
        "spec": {"containers": [container], **spec},
    }
    path = Pod.resource.path("default")
    answer = await cluster.client.raw("POST", path, body=msgspec.json.encode(pod))
    return decode(Pod, answer.body)


def condition(
    cluster: VirtualCluster, name: str, kind: str = "PodScheduled"
) -> PodCondition | None:
    """A condition of a pod, as far as the cache knows."""
    pod = cluster.program.cache.store(Pod).get(("default", name))
    conditions = pod.status.conditions if pod is not None else ()
    return next((entry for entry in conditions if entry.type == kind), None)


def refused(cluster: VirtualCluster, name: str) -> str:
    """The message of the condition of a pod without a node."""
    scheduled = condition(cluster, name)
    return scheduled.message if scheduled is not None and scheduled.status == "False" else ""


async def events(cluster: VirtualCluster, reason: str) -> set[str]:
    """The notes of events with a reason."""
    await asyncio.sleep(1)
    return {event.note for event in await cluster.client.list(Event) if event.reason == reason}


async def create(cluster: VirtualCluster, path: str, obj: dict[str, Any]) -> None:
    """Create any object."""
    await cluster.client.raw("POST", path, body=msgspec.json.encode(obj))


async def add_priority(cluster: VirtualCluster, name: str, value: int) -> None:
    """Add a PriorityClass."""
    obj = {"metadata": {"name": name}, "value": value}
    await create(cluster, "/apis/scheduling.k8s.io/v1/priorityclasses", obj)


def node_of(cluster: VirtualCluster, name: str) -> str:
    """The node a pod is bound to, as far as the cache knows."""
    pod = cluster.program.cache.store(Pod).get(("default", name))
    return pod.spec.node_name if pod is not None else ""


async def test_pods_are_bound_and_spread_over_zones() -> None:
    """Pods get nodes within their constraints, and an event."""
    async with virtual_cluster(PARTS) as cluster:
        for number in range(6):
            await add_node(cluster, f"n{number}", zone="abc"[number % 3])
        constraint = {
            "maxSkew": 1,
            "topologyKey": ZONE,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "web"}},
        }
        for number in range(9):
            await add_pod(
                cluster,
                f"p{number}",
                labels={"app": "web"},
                topologySpreadConstraints=[constraint],
            )
        await until(lambda: all(node_of(cluster, f"p{number}") for number in range(9)))
        pods = cluster.program.cache.store(Pod)
        zones = sorted(pod.metadata.labels[ZONE] for pod in pods)
        assert zones == ["a"] * 3 + ["b"] * 3 + ["c"] * 3
        note = f"Successfully assigned default/p0 to {node_of(cluster, 'p0')}"
        assert note in await events(cluster, "Scheduled")


async def test_a_pod_that_fits_nowhere_has_a_reason_and_is_tried_again() -> None:
    """Condition and event have the reasons; a node with room is used as soon as it is created."""
    async with virtual_cluster(PARTS) as cluster:
        await add_node(cluster, "small", cpu="1")
        await add_pod(cluster, "p", cpu="2")
        await until(lambda: bool(refused(cluster, "p")))
        message = refused(cluster, "p")
        assert message.startswith("0/1 nodes are available: 1 Insufficient cpu. ")
        scheduled = condition(cluster, "p")
        assert scheduled is not None and (scheduled.reason, scheduled.observed_generation) == (
            "Unschedulable",
            1,
        )
        assert message in await events(cluster, "FailedScheduling")
        await add_node(cluster, "large", cpu="4")
        await until(lambda: node_of(cluster, "p") == "large", within=3)


async def test_nothing_is_tried_while_nothing_happens() -> None:
    """A pod that fits nowhere is tried only every few minutes."""
    schedulers: list[Scheduler] = []

    def part(context: ControllerContext) -> Scheduler:
        schedulers.append(Scheduler(context))
        return schedulers[0]

    async with virtual_cluster({"default-scheduler": part}) as cluster:
        await add_node(cluster, "n")
        await add_pod(cluster, "p", cpu="9")
        await until(lambda: bool(refused(cluster, "p")))
        await asyncio.sleep(30)
        before = schedulers[0].attempts
        assert before <= 2
        await asyncio.sleep(620)
        assert before + 1 <= schedulers[0].attempts <= before + 3


async def test_the_more_important_pod_is_served_first() -> None:
    """Of pods that wait for one node, the one with the highest priority gets it."""
    async with virtual_cluster(PARTS) as cluster:
        await add_priority(cluster, "high", 100)
        await add_pod(cluster, "first", cpu="3")
        await add_pod(cluster, "second", cpu="3", priorityClassName="high")
        await until(lambda: bool(refused(cluster, "first") and refused(cluster, "second")))
        await asyncio.sleep(15)
        await add_node(cluster, "n", cpu="4")
        await until(lambda: bool(node_of(cluster, "second")))
        assert not node_of(cluster, "first")


async def test_less_important_pods_make_room() -> None:
    """Victims are marked and deleted, the node is reserved, and the pod is bound to it."""
    async with virtual_cluster(PARTS) as cluster:
        await add_priority(cluster, "high", 100)
        await add_node(cluster, "n", cpu="4")
        await add_pod(cluster, "victim", cpu="3")
        await until(lambda: bool(node_of(cluster, "victim")))
        pod = await add_pod(cluster, "p", cpu="3", priorityClassName="high")
        pods = cluster.program.cache.store(Pod)

        def nominated() -> bool:
            pod, victim = pods.get(("default", "p")), pods.get(("default", "victim"))
            if pod is None or victim is None or not victim.metadata.deletion_timestamp:
                return False
            return pod.status.nominated_node_name == "n"

        await until(nominated)
        assert refused(cluster, "p") == "0/1 nodes are available: 1 Insufficient cpu."
        marked = condition(cluster, "victim", "DisruptionTarget")
        assert marked is not None and (marked.status, marked.reason, marked.message) == (
            "True",
            "PreemptionByScheduler",
            "default-scheduler: preempting to accommodate a higher priority pod",
        )
        notes = await events(cluster, "Preempted")
        assert notes == {f"Preempted by pod {pod.metadata.uid} on node n"}
        # Room that is kept free is not for a less important pod that comes meanwhile.
        await add_pod(cluster, "late", cpu="2")
        await until(lambda: bool(refused(cluster, "late")))
        await cluster.client.delete(Pod, "victim", "default", grace_period=0)
        await until(lambda: node_of(cluster, "p") == "n")
        await asyncio.sleep(15)
        assert not node_of(cluster, "late")


async def test_pods_of_others_and_gated_pods_are_left_alone() -> None:
    """Pods of another scheduler are not bound; a gated pod is scheduled without its gates."""
    async with virtual_cluster(PARTS) as cluster:
        await add_node(cluster, "n")
        await add_pod(cluster, "foreign", schedulerName="mine")
        await add_pod(cluster, "gated", schedulingGates=[{"name": "example.com/wait"}])
        await add_pod(cluster, "plain")
        await until(lambda: node_of(cluster, "plain") == "n")
        await asyncio.sleep(20)
        assert not node_of(cluster, "foreign") and not condition(cluster, "foreign")
        assert not node_of(cluster, "gated")
        await cluster.client.patch(Pod, "gated", "default", {"spec": {"schedulingGates": None}})
        await until(lambda: node_of(cluster, "gated") == "n", within=3)


async def test_a_claim_that_waits_for_its_consumer_gets_a_node() -> None:
    """The node is written on the claim; the pod is bound when the claim is."""
    async with virtual_cluster(PARTS) as cluster:
        await add_node(cluster, "n")
        obj: dict[str, Any] = {
            "metadata": {"name": "later"},
            "provisioner": "example.com/maker",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
        await create(cluster, "/apis/storage.k8s.io/v1/storageclasses", obj)
        volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
        await add_pod(cluster, "p", volumes=volumes)
        await until(lambda: '"c" not found' in refused(cluster, "p"))
        spec = {
            "storageClassName": "later",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        }
        claim = {"metadata": {"name": "c"}, "spec": spec}
        await create(cluster, PersistentVolumeClaim.resource.path("default"), claim)
        claims = cluster.program.cache.store(PersistentVolumeClaim)

        def node_selected() -> bool:
            claim = claims.get(("default", "c"))
            return claim is not None and claim.metadata.annotations.get(SELECTED_NODE) == "n"

        await until(node_selected)
        await asyncio.sleep(5)
        assert not node_of(cluster, "p")
        volume = {
            "metadata": {"name": "pv"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "csi": {"driver": "example.com", "volumeHandle": "pv"},
            },
        }
        await create(cluster, "/api/v1/persistentvolumes", volume)
        bound = {
            "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": "pv"},
        }
        await cluster.client.patch(PersistentVolumeClaim, "c", "default", bound)
        await until(lambda: node_of(cluster, "p") == "n", within=3)


async def wait_for_volumes(cluster: VirtualCluster) -> None:
    """A class of volumes that wait for their node, a claim of it, and a pod that uses the claim."""
    obj: dict[str, Any] = {
        "metadata": {"name": "later"},
        "provisioner": "example.com/maker",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    await create(cluster, "/apis/storage.k8s.io/v1/storageclasses", obj)
    spec = {
        "storageClassName": "later",
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    claim = {"metadata": {"name": "c"}, "spec": spec}
    await create(cluster, PersistentVolumeClaim.resource.path("default"), claim)
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    await add_pod(cluster, "p", volumes=volumes)


def selected(cluster: VirtualCluster) -> str:
    """The selected node of the claim."""
    claim = cluster.program.cache.store(PersistentVolumeClaim).get(("default", "c"))
    return claim.metadata.annotations.get(SELECTED_NODE, "") if claim is not None else ""


async def test_a_claim_without_its_selected_node_gets_another_at_once() -> None:
    """A provisioner that cannot serve a node removes the annotation; the pod is scheduled again."""
    async with virtual_cluster(PARTS) as cluster:
        await add_node(cluster, "n")
        await wait_for_volumes(cluster)
        await until(lambda: selected(cluster) == "n")
        await cluster.client.patch(Node, "n", None, {"spec": {"unschedulable": True}})
        await add_node(cluster, "m")
        body = {"metadata": {"annotations": {SELECTED_NODE: None}}}
        await cluster.client.patch(PersistentVolumeClaim, "c", "default", body)
        await until(lambda: selected(cluster) == "m", within=15)
        assert await events(cluster, "FailedScheduling") == {
            'running PreBind plugin "VolumeBinding": binding volumes:'
            ' provisioning failed for PVC "c"'
        }


async def test_a_pod_is_not_bound_where_its_new_volume_cannot_be_used() -> None:
    """If the volume is in another zone than the selected node, the pod goes to that zone."""
    async with virtual_cluster(PARTS) as cluster:
        await add_node(cluster, "n", zone="b")
        await wait_for_volumes(cluster)
        await until(lambda: selected(cluster) == "n")
        needs = {"key": ZONE, "operator": "In", "values": ["a"]}
        volume = {
            "metadata": {"name": "pv"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "later",
                "claimRef": {"namespace": "default", "name": "c"},
                "csi": {"driver": "example.com", "volumeHandle": "pv"},
                "nodeAffinity": {
                    "required": {"nodeSelectorTerms": [{"matchExpressions": [needs]}]}
                },
            },
        }
        bound = {
            "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": "pv"},
        }
        # The claim may be seen before its volume is.
        await cluster.client.patch(PersistentVolumeClaim, "c", "default", bound)
        await asyncio.sleep(2)
        assert not node_of(cluster, "p")
        await create(cluster, "/api/v1/persistentvolumes", volume)
        await until(lambda: "didn't match PersistentVolume's" in refused(cluster, "p"), within=15)
        assert (
            'running PreBind plugin "VolumeBinding": binding volumes: pv "pv" node affinity'
            ' doesn\'t match node "n": no matching NodeSelectorTerms'
        ) in await events(cluster, "FailedScheduling")
        await add_node(cluster, "m", zone="a")
        await until(lambda: node_of(cluster, "p") == "m", within=15)


async def test_a_node_deleted_during_provisioning_is_replaced() -> None:
    """The claim gets another node when the first is deleted."""
    async with virtual_cluster(PARTS) as cluster:
        await add_node(cluster, "n")
        await wait_for_volumes(cluster)
        await until(lambda: selected(cluster) == "n")
        await cluster.client.delete(Node, "n")
        note = 'binding volumes: failed to get node "n"'
        await until(lambda: note in refused(cluster, "p"), within=15)


async def test_an_invalid_selector_stops_only_its_pod() -> None:
    """A pod with an invalid node selector waits; the next pod gets its node."""
    async with virtual_cluster(PARTS) as cluster:
        await add_node(cluster, "n")
        words = {"key": "cpus", "operator": "Gt", "values": ["many"]}
        terms = [{"matchExpressions": [words]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        await add_pod(cluster, "odd", affinity={"nodeAffinity": required})
        await until(lambda: "didn't match Pod's node affinity" in refused(cluster, "odd"))
        await add_pod(cluster, "plain")
        await until(lambda: node_of(cluster, "plain") == "n")


async def test_a_new_scheduler_continues_from_the_objects() -> None:
    """Pending pods and nominated nodes are read from the objects."""
    async with virtual_cluster({}) as cluster:
        pods = cluster.program.cache.store(Pod)
        await add_priority(cluster, "high", 100)
        await add_node(cluster, "n", cpu="4")
        async with scheduling(cluster):
            await add_pod(cluster, "victim", cpu="3")
            await until(lambda: bool(node_of(cluster, "victim")))
            await add_pod(cluster, "p", cpu="3", priorityClassName="high")

            def nominated() -> bool:
                pod = pods.get(("default", "p"))
                return pod is not None and pod.status.nominated_node_name == "n"

            await until(nominated)
        await cluster.client.delete(Pod, "victim", "default", grace_period=0)
        await add_pod(cluster, "greedy", cpu="2")
        async with scheduling(cluster):
            await until(lambda: node_of(cluster, "p") == "n")
            await until(lambda: bool(refused(cluster, "greedy")))


@asynccontextmanager
async def scheduling(cluster: VirtualCluster) -> AsyncIterator[None]:
    """A second scheduler, stopped at the end."""
    loop = asyncio.get_running_loop()
    components = Program(cluster.server.connect, clock=lambda: EPOCH + loop.time(), rng=Random(2))
    components.add("default-scheduler", Scheduler)
    work = asyncio.create_task(components.run())
    try:
        yield
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


def binds(scheduler: Scheduler, pod: Pod) -> bool:
    """Whether a scheduler knows the workload selector of a pod."""
    return str(scheduler.cluster.default_spread.selector_of(pod)) == "app=web"


async def test_the_selectors_of_all_workloads_bind_their_pods() -> None:
    """ReplicaSets, ReplicationControllers and StatefulSets define which pods belong together."""
    template = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    by_labels = {"matchLabels": {"app": "web"}}
    workloads: dict[tuple[str, str, str], Any] = {
        ("apps/v1", "ReplicaSet", "replicasets"): {"selector": by_labels},
        ("v1", "ReplicationController", "replicationcontrollers"): {"selector": {"app": "web"}},
        ("apps/v1", "StatefulSet", "statefulsets"): {"selector": by_labels, "serviceName": "web"},
    }
    schedulers: list[Scheduler] = []

    def part(context: ControllerContext) -> Scheduler:
        schedulers.append(Scheduler(context))
        return schedulers[-1]

    async with virtual_cluster({"default-scheduler": part}) as cluster:
        for (version, kind, plural), spec in workloads.items():
            body = {"metadata": {"name": "web"}, "spec": {**spec, "template": template}}
            group = "api/v1" if version == "v1" else f"apis/{version}"
            path = f"/{group}/namespaces/default/{plural}"
            await cluster.client.raw("POST", path, body=msgspec.json.encode(body))
            owner = OwnerReference(api_version=version, kind=kind, name="web", controller=True)
            pod = Pod(metadata=ObjectMeta(namespace="default", owner_references=(owner,)))
            await until(partial(binds, schedulers[0], pod))
