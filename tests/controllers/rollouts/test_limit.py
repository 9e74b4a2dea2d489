"""The limit of a rollout by domain holds, whatever the workload's own strategy allows."""

from __future__ import annotations

from typing import Any

import pytest
from tests.controllers.rollouts.rollout_scene import begin, finish, update, workload
from tests.embedded.whole_cluster import whole

from zonewise.api import Pod, TopologyDisruptionBudget
from zonewise.api.objects.pod_state import is_pod_active
from zonewise.embedded.cluster import EmbeddedCluster
from zonewise.embedded.seed.nodes import NodeLayout

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

ALL_AT_ONCE: dict[str, dict[str, Any]] = {
    "Deployment": {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"},
    },
    "StatefulSet": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
    "DaemonSet": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
}


@pytest.mark.parametrize("kind", list(ALL_AT_ONCE))
@pytest.mark.parametrize(("limit", "least"), [(1, 2), ("50%", 1)])
async def test_no_domain_lacks_more_than_the_limit(kind: str, limit: int | str, least: int) -> None:
    """Of three pods in each zone no more than the limit are missing at any moment, though the
    strategy would take all; percentages round up.
    """
    objects = [*NodeLayout().nodes(), workload(kind, replicas=9, strategy=ALL_AT_ONCE[kind])]
    async with whole(objects) as cluster:
        zones = await begin(cluster, kind, maxUnavailable=limit)
        lowest = dict(zones.ready())
        assert lowest == {"a": 3, "b": 3, "c": 3}

        def record(old: Pod | None, new: Pod | None) -> None:
            now = zones.ready()
            lowest.update({zone: min(count, now[zone]) for zone, count in lowest.items()})

        cluster.program.cache.store(Pod).on_change(record)
        await update(cluster, kind)
        await finish(cluster)
        assert lowest == dict.fromkeys("abc", least)
        assert zones.together == set()
        assert await _allowed(cluster) == {
            "foo-rollout": "a=0,b=0,c=0 (updates only)",
            "foo-rollout-limit": f"a={3 - least},b={3 - least},c={3 - least} (updates only)",
        }
        pods = await cluster.client.list(Pod, "default")
        node = "a-1"
        drained = [pod for pod in pods if is_pod_active(pod) and pod.spec.node_name == node]
        for pod in drained:
            await cluster.client.evict(pod.metadata.name, "default")
        assert drained


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet"])
async def test_pods_that_are_not_ready_are_repaired(kind: str) -> None:
    """An update repairs domains of which no pod is Ready, though the limit is exceeded there."""
    body = workload(kind, replicas=6, strategy=ALL_AT_ONCE[kind])
    objects = [*NodeLayout(nodes_per_zone=2).nodes(), body]
    async with whole(objects) as cluster:
        await begin(cluster, kind)
        for pod in await cluster.client.list(Pod, "default"):
            if pod.spec.node_name[0] == "b":
                broken = {"metadata": {"annotations": {"zonewise.io/unready": "true"}}}
                await cluster.client.patch(Pod, pod.metadata.name, "default", broken)
        await update(cluster, kind)
        await finish(cluster)


async def _allowed(cluster: EmbeddedCluster) -> dict[str, str]:
    """The column of ``kubectl get tdb``."""
    budgets = await cluster.client.list(TopologyDisruptionBudget, "default")
    return {budget.metadata.name: budget.status.allowed for budget in budgets}
