"""Manifests as charts render them become Ready, with everything that belongs to them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.embedded.whole_cluster import settled, whole

from zonewise.api import Deployment, PodDisruptionBudget, StatefulSet
from zonewise.api.objects.discovery import EndpointSlice
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.storage import PersistentVolume, PersistentVolumeClaim
from zonewise.embedded.cluster import EmbeddedCluster
from zonewise.embedded.components.workloads.jobs.objects import Job
from zonewise.embedded.components.workloads.jobs.plan import finished_condition

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

Obj = dict[str, Any]

CHARTS = Path(__file__).parents[2] / "vectors" / "charts"
ZONE = "topology.kubernetes.io/zone"


def chart(name: str) -> list[Obj]:
    """The objects of a chart, in the namespace ``default``, as a client sends them."""
    objects = [obj for obj in yaml.safe_load_all((CHARTS / f"{name}.yaml").read_text()) if obj]
    for obj in objects:
        if not obj["kind"].startswith("Cluster") and obj["kind"] != "IngressClass":
            obj["metadata"].setdefault("namespace", "default")
    return objects


def nodes() -> list[Obj]:
    """Six nodes in three zones."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"{zone}{number}", "labels": {ZONE: zone}},
        }
        for zone in "abc"
        for number in range(2)
    ]


async def zones(cluster: EmbeddedCluster, **labels: str) -> list[str]:
    """The zones of running pods, sorted."""
    pods = [
        pod
        for pod in await cluster.client.list(Pod, "default")
        if labels.items() <= pod.metadata.labels.items() and pod.status.phase == "Running"
    ]
    return sorted(pod.spec.node_name[0] for pod in pods)


async def backed(cluster: EmbeddedCluster, service: str) -> int:
    """How many ready endpoints a Service has."""
    label = f"kubernetes.io/service-name={service}"
    slices = await cluster.client.list(EndpointSlice, "default", label_selector=label)
    return sum(
        endpoint.conditions.ready is True for piece in slices for endpoint in piece.endpoints or ()
    )


async def budget(cluster: EmbeddedCluster, name: str) -> tuple[int, int, int]:
    """Expected, healthy and allowed pods of a budget."""
    pdb = await cluster.client.get(PodDisruptionBudget, name, "default")
    status = pdb.status
    return status.expected_pods, status.current_healthy, status.disruptions_allowed


async def test_a_web_application_comes_up() -> None:
    """The pods of a web application are Ready, its Service has endpoints, its budget counts, its
    test ends.
    """
    async with whole([*nodes(), *chart("web-application")]) as cluster:
        await settled(cluster)
        await asyncio.sleep(10)
        deployment = await cluster.client.get(Deployment, "storefront", "default")
        conditions = {
            condition.type: (condition.status, condition.reason)
            for condition in deployment.status.conditions
        }
        assert conditions == {
            "Available": ("True", "MinimumReplicasAvailable"),
            "Progressing": ("True", "NewReplicaSetAvailable"),
        }
        assert len(await zones(cluster, **{"app.kubernetes.io/name": "storefront"})) == 3
        assert await backed(cluster, "storefront") == 3
        assert await budget(cluster, "storefront") == (3, 3, 1)
        test = await cluster.client.get(Pod, "storefront-test-connection", "default")
        assert test.status.phase == "Succeeded"
        claim = await cluster.client.get(PersistentVolumeClaim, "storefront-uploads", "default")
        assert claim.status.phase == "Bound"


@pytest.mark.slow
async def test_a_replicated_database_comes_up() -> None:
    """A replicated database has one pod and one volume per zone, in order; its Jobs run, its
    CronJob creates more.
    """
    async with whole([*nodes(), *chart("postgresql")]) as cluster:
        await settled(cluster)
        await asyncio.sleep(10)
        stateful_set = await cluster.client.get(StatefulSet, "orders-postgresql", "default")
        assert stateful_set.status.available_replicas == 3
        assert await zones(cluster, **{"app.kubernetes.io/name": "postgresql"}) == ["a", "b", "c"]
        claims = await cluster.client.list(PersistentVolumeClaim, "default")
        data = {
            claim.metadata.name: claim
            for claim in claims
            if claim.metadata.name.startswith("data-")
        }
        assert sorted(data) == [f"data-orders-postgresql-{number}" for number in range(3)]
        assert {claim.status.phase for claim in data.values()} == {"Bound"}
        for number in range(3):
            pod = await cluster.client.get(Pod, f"orders-postgresql-{number}", "default")
            claim = data[f"data-orders-postgresql-{number}"]
            volume = await cluster.client.get(PersistentVolume, claim.spec.volume_name)
            assert pod.spec.node_name[0] in str(volume.spec.node_affinity)
        assert await backed(cluster, "orders-postgresql") == 3
        assert await backed(cluster, "orders-postgresql-hl") == 3
        assert await budget(cluster, "orders-postgresql") == (3, 3, 1)
        schema = await cluster.client.get(Job, "orders-postgresql-schema", "default")
        end = finished_condition(schema)
        assert end is not None and end.type == "Complete"
        await asyncio.sleep(900)
        jobs = [
            job
            for job in await cluster.client.list(Job, "default")
            if job.metadata.name.startswith("orders-postgresql-backup-")
        ]
        assert len(jobs) == 2
        assert all(finished_condition(job) is not None for job in jobs)


async def test_a_pod_that_comes_again_finds_its_volume() -> None:
    """A deleted pod of the database returns to the zone of its volume."""
    objects = [*nodes(), *chart("web-application"), *chart("postgresql")]
    async with whole(objects) as cluster:
        await settled(cluster)
        name = "data-orders-postgresql-1"
        before = await cluster.client.get(PersistentVolumeClaim, name, "default")
        await cluster.client.delete(Pod, "orders-postgresql-1", "default")
        await asyncio.sleep(5)
        await settled(cluster)
        after = await cluster.client.get(PersistentVolumeClaim, name, "default")
        assert after.spec.volume_name == before.spec.volume_name
        assert await zones(cluster, **{"app.kubernetes.io/name": "postgresql"}) == ["a", "b", "c"]
