"""The Deployment controller with real ReplicaSets on a running API server, in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from tests.embedded.components.workloads.deployments.deploying import (
    BUDGETS,
    DEPLOYMENTS,
    PARTS,
    REPLICA_SETS,
    Bounds,
    budget,
    change,
    deployment,
    done,
    events,
    image,
    living_pods,
    seen,
    sets_of,
)
from tests.embedded.components.workloads.pod_attendant import Attendant
from tests.embedded.virtual_cluster import VirtualCluster, until, virtual_cluster

from zonewise.api.objects.apps import Deployment, ReplicaSet
from zonewise.api.objects.pod import Pod
from zonewise.disruption.steering import REDUCE_TO
from zonewise.embedded.components.disruption.budgets import DisruptionController
from zonewise.embedded.components.workloads.deployments.controller import DeploymentController
from zonewise.embedded.components.workloads.removal import RemovalMode
from zonewise.embedded.components.workloads.replicasets.controller import ReplicaSetController
from zonewise.runtime.program.program import Program

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

WITH_BUDGETS = {**PARTS, "disruption-controller": DisruptionController}


def progress(cluster: VirtualCluster) -> tuple[str, str, str]:
    """Status, reason and message of the condition Progressing."""
    conditions = {condition.type: condition for condition in seen(cluster).status.conditions}
    progressing = conditions["Progressing"]
    return progressing.status, progressing.reason, progressing.message


def sizes(cluster: VirtualCluster) -> dict[str, int]:
    """The sizes of the ReplicaSets by revision."""
    return {
        revision: replica_set.spec.replicas for revision, replica_set in sets_of(cluster).items()
    }


async def deployed(cluster: VirtualCluster, replicas: int = 10, **spec: Any) -> None:
    """Create a Deployment and wait until it is done."""
    await cluster.client.create(deployment(replicas=replicas, **spec))
    await until(lambda: done(cluster))


@pytest.mark.parametrize("removal", ["evict", "delete"])
async def test_a_rollout_stays_within_its_limits(removal: RemovalMode) -> None:
    """Ten pods are replaced in steps; neither limit is broken at any change."""
    parts = {
        **WITH_BUDGETS,
        "deployment-controller": lambda context: DeploymentController(context, removal=removal),
        "replicaset-controller": lambda context: ReplicaSetController(context, removal=removal),
    }
    async with virtual_cluster(parts) as cluster:
        await deployed(cluster)
        (first,) = sets_of(cluster).values()
        template_hash = first.metadata.labels["pod-template-hash"]
        assert first.metadata.name == f"web-{template_hash}"
        assert first.spec.selector.match_labels == {
            "app": "web",
            "pod-template-hash": template_hash,
        }
        bounds = Bounds(cluster)
        await change(cluster, image("app:2"))
        await until(lambda: done(cluster))
        assert bounds.end() == (13, 8)
        assert sizes(cluster) == {"1": 0, "2": 10}
        assert len(cluster.program.cache.store(Pod)) == 10
        assert REDUCE_TO not in sets_of(cluster)["1"].metadata.annotations
        new = sets_of(cluster)["2"].metadata.name
        message = f'ReplicaSet "{new}" has successfully progressed.'
        assert progress(cluster) == ("True", "NewReplicaSetAvailable", message)
        notes = {note for _, note, _ in await events(cluster, "Deployment")}
        assert f"Scaled up replica set {new} from 0 to 3" in notes
        assert f"Scaled down replica set {first.metadata.name} from 10 to 8" in notes


async def test_going_back_and_forth_renumbers() -> None:
    """Revisions 1, 2, 3 become 2, 3, 4, and then 3, 4, 5."""
    async with virtual_cluster(PARTS) as cluster:
        await deployed(cluster, 2)
        for version in ("app:2", "app:3", "app:1", "app:2"):
            await change(cluster, image(version))
            await until(lambda: done(cluster))
        sets = sets_of(cluster)
        assert sorted(sets) == ["3", "4", "5"]
        histories = {
            revision: replica_set.metadata.annotations.get(
                "deployment.kubernetes.io/revision-history"
            )
            for revision, replica_set in sets.items()
        }
        assert histories == {"3": None, "4": "1", "5": "2"}
        own = seen(cluster).metadata.annotations["deployment.kubernetes.io/revision"]
        assert own == "5"


async def test_a_stuck_rollout_says_so_and_scales() -> None:
    """The deadline is reported; a change of size is shared by old and new ReplicaSets."""
    async with virtual_cluster(PARTS) as cluster:
        await deployed(cluster, progressDeadlineSeconds=60)
        bounds = Bounds(cluster)
        await change(cluster, image("app:bad"))
        await until(lambda: progress(cluster)[1] == "ProgressDeadlineExceeded")
        new = sets_of(cluster)["2"].metadata.name
        assert progress(cluster)[::2] == (
            "False",
            f'ReplicaSet "{new}" has timed out progressing.',
        )
        assert sizes(cluster) == {"1": 8, "2": 5}
        assert bounds.end() == (13, 8)
        await change(cluster, {"replicas": 15})
        await until(lambda: sizes(cluster) == {"1": 12, "2": 7})
        await change(cluster, image("app:3"))
        await until(lambda: done(cluster))


async def test_a_paused_deployment_scales_and_does_not_roll() -> None:
    """While paused, replicas follow and the template does not."""
    async with virtual_cluster(PARTS) as cluster:
        await deployed(cluster, 4)
        await change(cluster, {"paused": True})
        await change(cluster, image("app:2"))
        await change(cluster, {"replicas": 6})
        await until(lambda: seen(cluster).status.available_replicas == 6)
        assert progress(cluster) == ("Unknown", "DeploymentPaused", "Deployment is paused")
        assert seen(cluster).status.updated_replicas == 0
        assert sizes(cluster) == {"1": 6}
        await change(cluster, {"paused": False})
        await until(lambda: done(cluster))
        assert sizes(cluster) == {"1": 0, "2": 6}


async def test_recreate_never_mixes() -> None:
    """New pods are created when the last old one is gone, also the terminating ones."""
    parts = {**PARTS, "nodes": lambda context: Attendant(context, stopping=20.0)}
    async with virtual_cluster(parts) as cluster:
        await deployed(cluster, 3, strategy={"type": "Recreate"})
        mixed = []

        def look(old: Pod | None, new: Pod | None) -> None:
            del old, new
            hashes = {
                pod.metadata.labels["pod-template-hash"] for pod in cluster.program.cache.store(Pod)
            }
            mixed.append(len(hashes) > 1)

        cluster.program.cache.store(Pod).on_change(look)
        await change(cluster, image("app:2"))
        await until(lambda: done(cluster))
        assert mixed
        assert not any(mixed)
        assert sizes(cluster) == {"1": 0, "2": 3}


async def test_history_is_kept_up_to_its_limit() -> None:
    """Two old ReplicaSets are kept, the others are deleted."""
    async with virtual_cluster(PARTS) as cluster:
        await deployed(cluster, 1, revisionHistoryLimit=2)
        for version in range(2, 7):
            await change(cluster, image(f"app:{version}"))
            await until(lambda: done(cluster))
        await until(lambda: sorted(sets_of(cluster)) == ["4", "5", "6"])


async def test_a_name_in_use_is_a_collision() -> None:
    """If a ReplicaSet with another template has the name, the new one gets another name."""
    async with virtual_cluster(PARTS) as cluster:
        await deployed(cluster, 1)
        (mine,) = sets_of(cluster).values()
        name = mine.metadata.name
        await cluster.client.delete(DEPLOYMENTS, "web", "default", propagation="Background")
        store = cluster.program.cache.store(ReplicaSet)
        await until(lambda: len(store) == 0)
        other = deployment(image="other:1")
        thief = REPLICA_SETS({**other.raw, "metadata": {"name": name, "namespace": "default"}})
        thief.raw["spec"]["selector"] = {"matchLabels": {"app": "thief"}}
        thief.raw["spec"]["template"]["metadata"]["labels"] = {"app": "thief"}
        await cluster.client.create(thief)
        await deployed(cluster, 1)
        assert seen(cluster).status.collision_count == 1
        assert name not in {replica_set.metadata.name for replica_set in sets_of(cluster).values()}


async def test_a_refused_replica_set_is_reported() -> None:
    """A name that is too long for the hash can never have pods; condition and event say so."""
    async with virtual_cluster(PARTS) as cluster:
        name = "x" * 250
        owner = deployment()
        owner.raw["metadata"]["name"] = name
        await cluster.client.create(owner)
        store = cluster.program.cache.store(Deployment)
        await until(lambda: any(item.status.conditions for item in store))
        (condition,) = seen(cluster, name).status.conditions
        assert (condition.status, condition.reason) == ("False", "ReplicaSetCreateError")
        assert condition.message.startswith(f'Failed to create new replica set "{name}-')
        (event,) = await events(cluster, "Deployment")
        assert event[0] == "ReplicaSetCreateError"


async def test_an_orphaned_replica_set_is_adopted() -> None:
    """A Deployment that is created again adopts its ReplicaSet and its pods."""
    async with virtual_cluster(PARTS) as cluster:
        await deployed(cluster, 2)
        before = {pod.metadata.name for pod in living_pods(cluster)}
        await cluster.client.delete(DEPLOYMENTS, "web", "default", propagation="Orphan")
        store = cluster.program.cache.store(ReplicaSet)
        await until(lambda: all(replica_set.metadata.controller is None for replica_set in store))
        await deployed(cluster, 2)
        assert {pod.metadata.name for pod in living_pods(cluster)} == before


async def test_the_surge_holds_while_evictions_are_refused() -> None:
    """Three new pods run beside ten old ones for an hour, with few requests."""
    async with virtual_cluster(WITH_BUDGETS) as cluster:
        await deployed(cluster)
        await cluster.client.create(budget(minAvailable=13))
        await asyncio.sleep(5)
        bounds = Bounds(cluster)
        await change(cluster, image("app:2"))
        await until(lambda: seen(cluster).status.available_replicas == 13)
        await asyncio.sleep(3600)
        assert bounds.end() == (13, 10)
        assert sizes(cluster) == {"1": 10, "2": 3}
        assert sets_of(cluster)["1"].metadata.annotations[REDUCE_TO] == "5"
        refusals = await events(cluster, "ReplicaSet")
        assert 1 < sum(count for reason, _, count in refusals if reason == "EvictionRefused") < 100
        await cluster.client.delete(BUDGETS, "web", "default")
        await until(lambda: done(cluster), within=60)


async def test_a_budget_paces_a_rollout() -> None:
    """The stricter of budget and strategy counts, and the rollout still ends."""
    async with virtual_cluster(WITH_BUDGETS) as cluster:
        await deployed(cluster)
        await cluster.client.create(budget(maxUnavailable=1))
        await asyncio.sleep(5)
        bounds = Bounds(cluster)
        await change(cluster, image("app:2"))
        await until(lambda: done(cluster), within=600)
        most, least = bounds.end()
        assert most <= 13
        assert least is not None and least >= 9


async def test_a_repairing_rollout_is_not_held_back() -> None:
    """Pods that never became ready are deleted without a budget."""
    async with virtual_cluster(WITH_BUDGETS) as cluster:
        await cluster.client.create(budget(minAvailable=4))
        await cluster.client.create(deployment(replicas=4, image="app:bad"))
        await until(lambda: len(living_pods(cluster)) == 4)
        await asyncio.sleep(30)
        await change(cluster, image("app:2"))
        await until(lambda: done(cluster), within=60)


async def test_a_rollback_ends_a_reduction() -> None:
    """Refused evictions of a rollout that was undone are not tried later."""
    async with virtual_cluster(WITH_BUDGETS) as cluster:
        await deployed(cluster, strategy={"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 5}})
        before = {pod.metadata.name for pod in living_pods(cluster)}
        await cluster.client.create(budget(maxUnavailable=0))
        await asyncio.sleep(5)
        await change(cluster, image("app:bad"))
        await until(lambda: REDUCE_TO in sets_of(cluster)["1"].metadata.annotations)
        await asyncio.sleep(60)
        await change(cluster, image("app:1"))
        await until(lambda: done(cluster), within=60)
        await cluster.client.delete(BUDGETS, "web", "default")
        await asyncio.sleep(60)
        assert {pod.metadata.name for pod in living_pods(cluster)} == before


async def test_a_rollout_survives_restarts() -> None:
    """A rollout whose controllers are restarted many times finishes within its limits."""
    async with virtual_cluster(
        {"nodes": Attendant, "disruption-controller": DisruptionController}
    ) as cluster:
        loop = asyncio.get_running_loop()

        def start() -> asyncio.Task[None]:
            components = Program(
                cluster.server.connect, clock=loop.time, rng=cluster.program.context("x").rng
            )
            components.add("deployment-controller", DeploymentController)
            components.add("replicaset-controller", ReplicaSetController)
            return asyncio.create_task(components.run())

        async def stop(work: asyncio.Task[None]) -> None:
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work

        work = start()
        cluster.program.cache.store(ReplicaSet)
        await cluster.client.create(deployment(replicas=10))
        await until(lambda: len(living_pods(cluster)) == 10)
        await asyncio.sleep(5)
        bounds = Bounds(cluster)
        await cluster.client.patch(DEPLOYMENTS, "web", "default", {"spec": image("app:2")})
        for turns in range(5, 400, 13):
            for _ in range(turns):
                await asyncio.sleep(0)
            await stop(work)
            work = start()
        new = {"app:2"}
        await until(
            lambda: {(pod.spec.containers or ())[0].image for pod in living_pods(cluster)} == new
        )
        await asyncio.sleep(60)
        most, least = bounds.end()
        assert len(cluster.program.cache.store(Pod)) == 10
        assert most <= 13
        assert least is not None and least >= 8
        await stop(work)
