"""Under budgets and rollouts by domain, if they leave a way, a rollout ends with few attempts."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from tests.embedded.components.disruption.budget_stories import evict
from tests.embedded.virtual_cluster import until
from tests.embedded.whole_cluster import Obj, settled, whole

from zonewise.api import DaemonSet, Deployment, Node, StatefulSet
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_active, is_pod_ready
from zonewise.embedded.cluster import EmbeddedCluster
from zonewise.embedded.components.kubelet.node_status import FAILED_ANNOTATION
from zonewise.embedded.seed.nodes import NodeLayout

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime, pytest.mark.slow]

ZONE = "topology.kubernetes.io/zone"
LABELS = {"app": "foo"}
CLASSES: dict[str, type[Deployment | StatefulSet | DaemonSet]] = {
    "Deployment": Deployment,
    "StatefulSet": StatefulSet,
    "DaemonSet": DaemonSet,
}
ATTEMPTS_PER_MINUTE = 3
"""The most evictions of a pod that its controller may try in a minute, granted or not."""
DISTURBANCES = ("nothing", "eviction", "unready", "drain", "outage")


def drawn_workload(rng: random.Random, kind: str, replicas: int) -> Obj:
    """A workload of three zones, with any strategy that makes progress."""
    most = rng.choice([1, 3, "50%", "100%"])
    spread = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": rng.choice(["DoNotSchedule", "ScheduleAnyway"]),
        "labelSelector": {"matchLabels": LABELS},
    }
    pod_spec: Obj = {"containers": [{"name": "c", "image": "c:1"}]}
    template: Obj = {"metadata": {"labels": LABELS}, "spec": pod_spec}
    spec: Obj = {"selector": {"matchLabels": LABELS}, "template": template}
    if rng.random() < 0.5:
        template["metadata"]["annotations"] = {"zonewise.io/ready-after": "5s"}
    if kind != "DaemonSet":
        spec["replicas"] = replicas
        pod_spec["topologySpreadConstraints"] = [spread]
    if kind == "Deployment":
        surge = rng.choice([0, 1, "50%"])
        spec["strategy"] = {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": most}}
    elif kind == "DaemonSet":
        spec["updateStrategy"] = {"rollingUpdate": {"maxUnavailable": most}}
    else:
        spec |= {
            "serviceName": "foo",
            "podManagementPolicy": rng.choice(["OrderedReady", "Parallel"]),
            "updateStrategy": {"rollingUpdate": {"maxUnavailable": most}},
        }
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "foo"}, "spec": spec}


def drawn_budget(rng: random.Random, name: str, policies: list[str]) -> Obj:
    """A budget that leaves a way, of any kind: per zone, or for the workload as a whole.

    A rollout by domain evicts, and only a budget of the policy AlwaysAllow lets it evict broken
    pods; those of controllers are deleted.
    """
    limit: Obj = rng.choice(
        [{"maxUnavailable": amount} for amount in (1, 2, "20%", "100%")] + [{"minAvailable": 0}]
    )
    spec: Obj = {"selector": {"matchLabels": LABELS}, **limit}
    spec["unhealthyPodEvictionPolicy"] = rng.choice(policies)
    term = {"matchExpressions": [{"key": ZONE, "operator": "Exists"}]}
    version, kind = "policy/v1", "PodDisruptionBudget"
    match rng.choice(["plain", "term", "topology", "topology"]):
        case "term":
            spec["nodeSelectorTerm"] = term
        case "topology":
            version, kind = "zonewise.io/v1alpha1", "TopologyDisruptionBudget"
            spec["nodeSelectorTerm"] = term
            if rng.random() < 0.3:
                spec["crossDomain"] = "Exclusive"
            if rng.random() < 0.2:
                spec["holds"] = "Updates"
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def drawn_rollout(rng: random.Random, kind: str) -> Obj:
    """A rollout of the workload, one zone after the other."""
    spec: Obj = {"workloadRef": {"kind": kind, "name": "foo"}}
    if rng.random() < 0.5:
        spec["order"] = {"domains": rng.sample("abc", 3)}
    spec["maxUnavailable"] = rng.choice([1, 2, "50%"])
    spec["pauseSeconds"] = rng.choice([0, 20])
    metadata = {"name": "foo", "namespace": "default"}
    return {
        "apiVersion": "zonewise.io/v1alpha1",
        "kind": "DomainRollout",
        "metadata": metadata,
        "spec": spec,
    }


def living(cluster: EmbeddedCluster) -> list[Pod]:
    """The pods that stay, by name."""
    pods = [pod for pod in cluster.program.cache.store(Pod) if is_pod_active(pod)]
    return sorted(pods, key=lambda pod: pod.metadata.name)


def image_counts(cluster: EmbeddedCluster) -> Counter[str]:
    """Ready pods by image."""
    return Counter(
        (pod.spec.containers or ())[0].image for pod in living(cluster) if is_pod_ready(pod)
    )


class Disturbances:
    """What happens to a workload while it is rolled out; each ends by itself or is undone."""

    def __init__(self, cluster: EmbeddedCluster, rng: random.Random, workload: Obj) -> None:
        self._cluster = cluster
        self._rng = rng
        # Kubernetes' rule: a set in order does nothing while one of its pods is broken.
        self._ordered = workload["spec"].get("podManagementPolicy") == "OrderedReady"
        self.evicted: set[str] = set()
        """Pods that others than their controller have tried to evict."""

    async def disturb(self) -> None:
        """Draw one, and let it happen for a while."""
        rng, cluster, client = self._rng, self._cluster, self._cluster.client
        nodes = [f"{zone}-{number}" for zone in "abc" for number in (1, 2, 3)]
        match rng.choice(DISTURBANCES):
            case "eviction":
                for pod in rng.sample(living(cluster), 1):
                    await self._evict(pod.metadata.name)
            case "unready" if not self._ordered:
                pod = rng.choice(living(cluster))
                body = {"metadata": {"annotations": {"zonewise.io/unready": "true"}}}
                await client.patch(Pod, pod.metadata.name, "default", body)
            case "drain":
                node = rng.choice(nodes)
                await client.patch(Node, node, None, {"spec": {"unschedulable": True}})
                for pod in living(cluster):
                    if pod.spec.node_name == node:
                        await self._evict(pod.metadata.name)
                await asyncio.sleep(rng.choice([1.0, 30.0]))
                await client.patch(Node, node, None, {"spec": {"unschedulable": None}})
            case "outage":
                zone = rng.choice("abc")
                for failed in ("yes", None):  # The second heals.
                    for node in nodes:
                        if node[0] == zone:
                            annotations = {FAILED_ANNOTATION: failed}
                            failure: Obj = {"metadata": {"annotations": annotations}}
                            await client.patch(Node, node, None, failure)
                    await asyncio.sleep(rng.choice([5.0, 90.0]))
        await asyncio.sleep(rng.choice([0.2, 2.0, 20.0]))

    async def _evict(self, name: str) -> None:
        self.evicted.add(name)
        if any(pod.metadata.name == name for pod in living(self._cluster)):
            await evict(self._cluster, name)


@pytest.mark.parametrize("seed", range(18))
async def test_a_rollout_by_domain_ends_whatever_happens(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under up to three budgets of any kind, with a DomainRollout or without, a workload is updated
    three times, scaled, drained, broken and loses zones. It ends with all its pods of the last
    revision, and no pod is tried often.
    """
    rng = random.Random(seed)
    kind = list(CLASSES)[seed % 3]
    final = 9 if kind == "DaemonSet" else rng.randint(3, 9)
    workload = drawn_workload(rng, kind, rng.randint(3, 9))
    by_domain = rng.random() < 0.6
    policies = ["AlwaysAllow"] if by_domain else ["AlwaysAllow", "IfHealthyBudget"]
    budgets = [drawn_budget(rng, f"b{number}", policies) for number in range(rng.randint(0, 3))]
    async with whole([*NodeLayout().nodes(), workload, *budgets]) as cluster:
        await settled(cluster)
        if by_domain:
            assert not await cluster.seeder.create([drawn_rollout(rng, kind)])
            await asyncio.sleep(rng.choice([0.0, 5.0]))
        tries: Counter[tuple[str, int]] = Counter()
        gate = cluster.server.evictions.gate
        assert gate is not None
        ask = gate.ask
        clock = asyncio.get_running_loop().time
        disturbances = Disturbances(cluster, rng, workload)

        async def noticed(pod: Pod, **more: Any) -> Any:
            if pod.metadata.name not in disturbances.evicted:
                tries[pod.metadata.uid, int(clock() // 60)] += 1
            return await ask(pod, **more)

        monkeypatch.setattr(gate, "ask", noticed)
        for image in ("c:2", "c:3", "c:4"):
            container = {"name": "c", "image": image}
            changed: Obj = {"template": {"spec": {"containers": [container]}}}
            if kind != "DaemonSet" and rng.random() < 0.4:
                changed["replicas"] = rng.randint(3, 9)
            await cluster.client.patch(CLASSES[kind], "foo", "default", {"spec": changed})
            await disturbances.disturb()
        if kind != "DaemonSet":
            await cluster.client.patch(
                CLASSES[kind], "foo", "default", {"spec": {"replicas": final}}
            )
        await until(
            lambda: image_counts(cluster) == {"c:4": final} and len(living(cluster)) == final,
            within=3600,
        )
        assert max(tries.values(), default=0) <= ATTEMPTS_PER_MINUTE, tries.most_common(3)
