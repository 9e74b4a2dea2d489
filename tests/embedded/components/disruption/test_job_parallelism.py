"""Jobs whose parallelism is lowered under budgets, on a whole embedded cluster."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.embedded.components.disruption.foo_workloads import budget, topology_budget
from tests.embedded.virtual_cluster import until
from tests.embedded.whole_cluster import whole

from zonewise.api import Pod
from zonewise.api.objects.pod_state import is_pod_active, is_pod_ready
from zonewise.disruption.namespace_budgets import BUDGETS_LIMIT
from zonewise.embedded.cluster import ClusterSettings, EmbeddedCluster
from zonewise.embedded.components.workloads.jobs.objects import Job
from zonewise.embedded.components.workloads.jobs.pods import is_tracked
from zonewise.embedded.seed.nodes import NodeLayout

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

Obj = dict[str, Any]
ZONE = "topology.kubernetes.io/zone"


def job(seconds: str = "infinity", **spec: Any) -> Obj:
    """A Job of six pods at a time, spread over zones."""
    constraint = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "foo"}},
    }
    pod: Obj = {
        "restartPolicy": "Never",
        "topologySpreadConstraints": [constraint],
        "containers": [{"name": "c", "image": "c:1", "command": ["sleep", seconds]}],
    }
    template = {"metadata": {"labels": {"app": "foo"}}, "spec": pod}
    spec = {"parallelism": 6, "completions": 12, "template": template, **spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "foo"}, "spec": spec}


async def lower(cluster: EmbeddedCluster, **spec: Any) -> None:
    """Change the Job."""
    await cluster.client.patch(Job, "foo", "default", {"spec": spec})


def ready(cluster: EmbeddedCluster) -> Counter[str]:
    """Ready pods that stay, by zone."""
    return Counter(
        pod.spec.node_name[0]
        for pod in cluster.program.cache.store(Pod)
        if is_pod_active(pod) and is_pod_ready(pod)
    )


def current(cluster: EmbeddedCluster) -> Job:
    """The Job as it is now."""
    (item,) = cluster.program.cache.store(Job)
    return item


@pytest.mark.parametrize(
    "limit",
    [budget(maxUnavailable=1), budget(minAvailable=6), topology_budget(minAvailable=1)],
)
@pytest.mark.parametrize("mode", ["NonIndexed", "Indexed"])
async def test_a_lowered_parallelism_is_reached(limit: Obj, mode: str) -> None:
    """A Job gets to its lower parallelism whatever a budget requests, as surplus pods are never
    held; a budget of each zone keeps a pod there at every moment, and no failure is counted.
    """
    async with whole([*NodeLayout().nodes(), job(completionMode=mode), limit]) as cluster:
        await until(lambda: ready(cluster) == {"a": 2, "b": 2, "c": 2}, within=120)
        await asyncio.sleep(90)
        lowest = dict(ready(cluster))

        def record(old: Pod | None, new: Pod | None) -> None:
            now = ready(cluster)
            lowest.update({zone: min(count, now[zone]) for zone, count in lowest.items()})

        cluster.program.cache.store(Pod).on_change(record)
        await lower(cluster, parallelism=3)
        await until(lambda: ready(cluster).total() == 3, within=120)
        await until(lambda: current(cluster).status.active == 3, within=30)
        if limit["kind"] == "TopologyDisruptionBudget":
            assert lowest == {"a": 1, "b": 1, "c": 1}
        await until(lambda: not current(cluster).status.terminating, within=60)
        status = current(cluster).status
        assert (status.ready, status.failed, status.succeeded) == (3, 0, 0)
        assert len(cluster.program.cache.store(Pod)) == 3


async def test_pods_that_a_budget_holds_are_counted_when_they_end() -> None:
    """Pods that should go and may not stay active and tracked: the Job counts them as succeeded,
    and an event names the budget.
    """
    limit = topology_budget(maxUnavailable=1)
    # One more than are counted in a namespace: that one allows nothing.
    limits = [
        {**limit, "metadata": {"name": f"limit-{number}"}} for number in range(BUDGETS_LIMIT + 1)
    ]
    async with whole([*NodeLayout().nodes(), job("200", completions=6), *limits]) as cluster:
        await until(lambda: ready(cluster) == {"a": 2, "b": 2, "c": 2}, within=120)
        await lower(cluster, parallelism=3)
        await asyncio.sleep(100)
        pods = [pod for pod in cluster.program.cache.store(Pod) if is_pod_active(pod)]
        assert len(pods) == 6 and all(map(is_tracked, pods))
        events = (await cluster.client.raw("GET", "/api/v1/namespaces/default/events")).json()
        notes = {item["message"] for item in events["items"] if item["reason"] == "EvictionRefused"}
        assert any("budget" in note for note in notes)
        status = current(cluster).status
        assert (status.active, status.ready, status.terminating) == (6, 6, 0)
        await until(lambda: current(cluster).status.succeeded == 6, within=300)
        assert current(cluster).status.failed == 0
        assert current(cluster).status.conditions[-1].type == "Complete"


@pytest.mark.parametrize(
    ("change", "removal"), [({"suspend": True}, "evict"), ({"parallelism": 3}, "delete")]
)
async def test_other_pods_are_deleted(change: Obj, removal: Any) -> None:
    """A Job that is suspended deletes its pods whatever budgets say, and so does one whose
    parallelism is lowered with ``--workload-removal=delete``.
    """
    objects = [
        *NodeLayout().nodes(),
        job(),
        topology_budget(maxUnavailable=0, crossDomain="Exclusive"),
    ]
    async with whole(objects, settings=ClusterSettings(removal=removal)) as cluster:
        await until(lambda: ready(cluster).total() == 6, within=120)
        await lower(cluster, **change)
        rest = 0 if "suspend" in change else 3
        await until(lambda: ready(cluster).total() == rest, within=5)
