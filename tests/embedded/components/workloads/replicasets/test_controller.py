"""The ReplicaSet controller on an API server, in virtual time."""

from __future__ import annotations

import asyncio

import pytest
from tests.embedded.components.workloads.deployments.deploying import (
    BUDGETS,
    REPLICA_SETS,
    budget,
    events,
    living_pods,
    replica_set,
)
from tests.embedded.components.workloads.pod_attendant import Attendant
from tests.embedded.virtual_cluster import Parts, VirtualCluster, until, virtual_cluster

from zonewise.api.objects.apps import ReplicaSet
from zonewise.api.objects.pod import Pod
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.disruption.steering import REDUCE_TO
from zonewise.embedded.components.disruption.budgets import DisruptionController
from zonewise.embedded.components.workloads.replicasets.controller import ReplicaSetController
from zonewise.runtime.program.program import Program

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

PARTS: Parts = {"replicaset-controller": ReplicaSetController, "nodes": Attendant}
PODS = unstructured(Pod.resource)
ACCOUNTS = unstructured(Resource("", "v1", "ServiceAccount", "serviceaccounts"))


def seen(cluster: VirtualCluster, name: str = "web") -> ReplicaSet:
    """A ReplicaSet in the cache of the components."""
    return cluster.program.cache.store(ReplicaSet).get(("default", name)) or ReplicaSet()


def at_size(cluster: VirtualCluster, size: int) -> bool:
    """Whether the status of a ReplicaSet has so many pods, all available."""
    replica_set = seen(cluster)
    status = replica_set.status
    return (
        replica_set.metadata.generation == status.observed_generation
        and {status.replicas, status.available_replicas} == {size}
        and status.terminating_replicas == 0
    )


async def scale(cluster: VirtualCluster, size: int) -> None:
    """Give the ReplicaSet another size."""
    body = {"spec": {"replicas": size}}
    changed = await cluster.client.patch(REPLICA_SETS, "web", "default", body)
    await until(lambda: seen(cluster).metadata.generation >= changed.metadata.generation)


async def test_a_replica_set_is_scaled_up_and_down() -> None:
    """There are as many pods as desired, from the template, owned and counted; then fewer."""
    async with virtual_cluster(PARTS) as cluster:
        await cluster.client.create(replica_set(replicas=5))
        await until(lambda: at_size(cluster, 5))
        pods = cluster.program.cache.store(Pod).values()
        assert len(pods) == 5
        for pod in pods:
            owner = pod.metadata.controller
            assert owner is not None
            assert (owner.kind, owner.name, owner.block_owner_deletion) == (
                "ReplicaSet",
                "web",
                True,
            )
            assert pod.metadata.generate_name == "web-"
            assert pod.metadata.labels["app"] == "web"
        assert seen(cluster).status.fully_labeled_replicas == 5
        await scale(cluster, 2)
        await until(lambda: at_size(cluster, 2))
        reasons = [reason for reason, _, _ in await events(cluster, "ReplicaSet")]
        assert sorted(reasons) == ["SuccessfulCreate"] * 5 + ["SuccessfulDelete"] * 3
        await scale(cluster, 0)
        await until(lambda: at_size(cluster, 0))
        assert len(cluster.program.cache.store(Pod)) == 0


async def test_a_failed_pod_is_replaced() -> None:
    """A failed pod does not count, and a new one is created."""
    async with virtual_cluster(PARTS) as cluster:
        await cluster.client.create(replica_set(replicas=2))
        await until(lambda: at_size(cluster, 2))
        first = living_pods(cluster)[0].metadata.name
        body = {"status": {"phase": "Failed"}}
        await cluster.client.patch(Pod, first, "default", body, subresource="status")
        await until(lambda: first not in {pod.metadata.name for pod in living_pods(cluster)})
        await until(lambda: at_size(cluster, 2))
        assert len(cluster.program.cache.store(Pod)) == 3


async def test_pods_are_adopted_and_released_by_their_labels() -> None:
    """A matching orphan is adopted; a pod that does not match any more is released and replaced."""
    async with virtual_cluster(PARTS) as cluster:
        labels = {"app": "web"}
        spec = {"containers": [{"name": "main", "image": "app:1"}]}
        orphan = {"metadata": {"name": "orphan", "namespace": "default", "labels": labels}}
        await cluster.client.create(PODS({**orphan, "spec": spec}))
        await cluster.client.create(replica_set(replicas=2))
        await until(lambda: at_size(cluster, 2))
        pods = cluster.program.cache.store(Pod)
        assert len(pods) == 2
        taken = pods.get(("default", "orphan"))
        assert taken is not None and taken.metadata.controller is not None
        body = {"metadata": {"labels": {"app": "other"}}}
        await cluster.client.patch(Pod, "orphan", "default", body)
        await until(lambda: len(pods) == 3 and at_size(cluster, 2))
        free = pods.get(("default", "orphan"))
        assert free is not None and free.metadata.controller is None


async def test_a_terminating_owner_adopts_nothing() -> None:
    """A ReplicaSet that waits for a finalizer neither adopts nor creates."""
    async with virtual_cluster(PARTS) as cluster:
        owner = replica_set(replicas=1)
        owner.raw["metadata"]["finalizers"] = ["example.com/wait"]
        await cluster.client.create(owner)
        await until(lambda: at_size(cluster, 1))
        await cluster.client.delete(REPLICA_SETS, "web", "default", propagation="Orphan")
        pods = cluster.program.cache.store(Pod)
        await until(lambda: all(pod.metadata.controller is None for pod in pods))
        await asyncio.sleep(60)
        assert [pod.metadata.controller for pod in pods] == [None]


async def test_a_failed_creation_is_reported_and_tried_again() -> None:
    """A refused creation is a condition and an event; it is repeated until it works."""
    async with virtual_cluster(PARTS) as cluster:
        owner = replica_set(replicas=4)
        owner.raw["spec"]["template"]["spec"]["serviceAccountName"] = "late"
        await cluster.client.create(owner)
        await until(lambda: bool(seen(cluster).status.conditions))
        (condition,) = seen(cluster).status.conditions
        assert (condition.type, condition.status) == ("ReplicaFailure", "True")
        assert condition.reason == "FailedCreate"
        assert 'serviceaccount "late" not found' in condition.message
        await asyncio.sleep(600)
        failures = await events(cluster, "ReplicaSet")
        assert {(reason, note.partition(":")[0]) for reason, note, _ in failures} == {
            ("FailedCreate", "Error creating")
        }
        assert sum(count for _, _, count in failures) < 50
        account = {"metadata": {"name": "late", "namespace": "default"}}
        await cluster.client.create(ACCOUNTS(account))
        await until(lambda: at_size(cluster, 4), within=400)
        assert seen(cluster).status.conditions == ()


async def test_available_only_after_a_while() -> None:
    """With minReadySeconds a pod is available when it has been ready for that long."""
    async with virtual_cluster(PARTS) as cluster:
        await cluster.client.create(replica_set(replicas=2, minReadySeconds=30))
        await until(lambda: seen(cluster).status.ready_replicas == 2)
        assert seen(cluster).status.available_replicas == 0
        await asyncio.sleep(25)
        assert seen(cluster).status.available_replicas == 0
        await until(lambda: at_size(cluster, 2), within=10)


async def test_a_budget_holds_back_a_scale_down() -> None:
    """Only what the budget grants is deleted; an hour of refusals costs few requests."""
    async with virtual_cluster({**PARTS, "disruption-controller": DisruptionController}) as cluster:
        await cluster.client.create(replica_set(replicas=6))
        await until(lambda: at_size(cluster, 6))
        await cluster.client.create(budget(minAvailable=4))
        await asyncio.sleep(5)
        await scale(cluster, 1)
        await asyncio.sleep(3600)
        assert len(living_pods(cluster)) == 4
        refusals = [e for e in await events(cluster, "ReplicaSet") if e[0] == "EvictionRefused"]
        assert 1 <= sum(count for _, _, count in refusals) < 100
        assert "disruption budget" in refusals[0][1]
        await cluster.client.delete(BUDGETS, "web", "default")
        await until(lambda: at_size(cluster, 1), within=5)


async def test_with_delete_no_budget_holds_back() -> None:
    """With ``delete`` pods are deleted without a budget, as in Kubernetes."""
    parts: Parts = {
        "replicaset-controller": lambda context: ReplicaSetController(context, removal="delete"),
        "nodes": Attendant,
        "disruption-controller": DisruptionController,
    }
    async with virtual_cluster(parts) as cluster:
        await cluster.client.create(replica_set(replicas=3))
        await until(lambda: at_size(cluster, 3))
        await cluster.client.create(budget(maxUnavailable=0))
        await asyncio.sleep(5)
        await scale(cluster, 1)
        await until(lambda: at_size(cluster, 1), within=5)


async def test_a_reduction_is_followed_as_far_as_it_is_granted() -> None:
    """``spec.replicas`` follows the granted evictions; the annotation is removed at the end."""
    async with virtual_cluster({**PARTS, "disruption-controller": DisruptionController}) as cluster:
        await cluster.client.create(replica_set(replicas=5))
        await until(lambda: at_size(cluster, 5))
        await cluster.client.create(budget(minAvailable=3))
        await asyncio.sleep(5)
        body = {"metadata": {"annotations": {REDUCE_TO: "1"}}}
        await cluster.client.patch(REPLICA_SETS, "web", "default", body)
        await until(lambda: at_size(cluster, 3))
        await asyncio.sleep(60)
        assert seen(cluster).spec.replicas == 3
        assert seen(cluster).metadata.annotations == {REDUCE_TO: "1"}
        await cluster.client.delete(BUDGETS, "web", "default")
        await until(lambda: at_size(cluster, 1))
        assert seen(cluster).spec.replicas == 1
        assert seen(cluster).metadata.annotations == {}


async def test_a_restarted_controller_creates_nothing_twice() -> None:
    """Stopped at any moment and started again, there are as many pods as desired."""
    async with virtual_cluster({"nodes": Attendant}) as cluster:
        await cluster.client.create(replica_set(replicas=40))
        loop = asyncio.get_running_loop()
        for moment in range(1, 12):
            components = Program(
                cluster.server.connect, clock=loop.time, rng=cluster.program.context("x").rng
            )
            components.add("replicaset-controller", ReplicaSetController)
            work = asyncio.create_task(components.run())
            for _ in range(moment * 15):
                await asyncio.sleep(0)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        components = Program(
            cluster.server.connect, clock=loop.time, rng=cluster.program.context("x").rng
        )
        components.add("replicaset-controller", ReplicaSetController)
        work = asyncio.create_task(components.run())
        await until(lambda: len(living_pods(cluster)) == 40)
        await asyncio.sleep(60)
        assert len(cluster.program.cache.store(Pod)) == 40
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
