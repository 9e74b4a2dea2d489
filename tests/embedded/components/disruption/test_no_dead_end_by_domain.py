"""Under budgets and rollouts by domain, if they leave a way, a rollout ends with few attempts."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.disruption.story_table import Kind
from tests.disruption.story_workloads import LABELS, NAME, RESOURCES, ZONE
from tests.embedded.components.disruption.drawn_workloads import (
    ATTEMPTS_PER_MINUTE,
    EVICTED,
    NODES,
    ROLLED,
    LivingWorkload,
    choose_seeds,
    draw_kind,
    drawn_workload,
)
from tests.embedded.virtual_cluster import until
from tests.embedded.whole_cluster import Obj, whole

from zonewise.api import Node
from zonewise.api.objects.pod import Pod
from zonewise.embedded.cluster import EmbeddedCluster
from zonewise.embedded.components.kubelet.node_status import FAILED_ANNOTATION
from zonewise.embedded.seed.nodes import NodeLayout

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime, pytest.mark.slow]

STANDSTILLS = (2001, 2005)
"""Seeds whose rollouts stood still: of a StatefulSet and a Deployment on nodes without a zone."""
DISTURBANCES = ("nothing", "eviction", "unready", "drain", "outage")


def drawn_nodes(seed: int, manifest: Obj) -> list[Obj]:
    """Nodes of three zones. Sometimes those of one zone lack its label, or all nodes do, unless the
    workload must be spread. They are drawn by themselves: nothing else depends on them.
    """
    rng = random.Random(f"nodes {seed}")
    template = manifest["spec"]["template"]["spec"]
    (spread,) = template.get("topologySpreadConstraints", [{}])
    hard = spread.get("whenUnsatisfiable") == "DoNotSchedule"
    unlabelled = rng.choice(["", "", "", "c", "c" if hard else "abc"])
    nodes = list(NodeLayout().nodes())
    for node in nodes:
        meta = node["metadata"]
        if meta["name"][0] in unlabelled:
            meta["labels"] = {key: zone for key, zone in meta["labels"].items() if key != ZONE}
    return nodes


def drawn_budget(rng: random.Random, name: str, policies: list[str]) -> Obj:
    """A budget that leaves a way, of any kind: per zone, or for the workload as a whole."""
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
            if rng.random() < 0.3:
                spec["expectedPods"] = "ReplicasPerDomain"
        case "topology":
            version, kind = "zonewise.io/v1alpha1", "TopologyDisruptionBudget"
            spec["nodeSelectorTerm"] = term
            if rng.random() < 0.3:
                spec["expectedPods"] = "ReplicasPerDomain"
            if rng.random() < 0.3 and "expectedPods" not in spec:
                # With even shares a zone may lack a pod that nobody creates: that leaves no way.
                spec["crossDomain"] = "Exclusive"
            if rng.random() < 0.2:
                spec["holds"] = "Updates"
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def drawn_rollout(rng: random.Random, kind: Kind) -> Obj:
    """A rollout of the workload, one zone after the other."""
    spec: Obj = {"workloadRef": {"kind": RESOURCES[kind].kind, "name": NAME}}
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


def how_many_may_break(kind: Kind, *, by_domain: bool, policies: list[str]) -> int:
    """How many pods may be broken for ever, and a way remains: controllers delete such pods, but
    who evicts them needs a budget that allows that. A set in order does nothing while one of its
    pods is broken: Kubernetes' rule.
    """
    if kind == "StatefulSet OrderedReady":
        return 0
    evicts = by_domain or kind in EVICTED
    return 1 if evicts and policies != ["AlwaysAllow"] else 3


class Disturbances:
    """What happens to a workload while it is rolled out; each ends by itself or is undone."""

    def __init__(
        self, cluster: EmbeddedCluster, rng: random.Random, workload: LivingWorkload, *, breaks: int
    ) -> None:
        self._cluster = cluster
        self._rng = rng
        self._workload = workload
        self._breaks = breaks
        """How many pods may still break for ever."""

    async def disturb(self) -> None:
        """Draw one, and let it happen for a while."""
        rng, client = self._rng, self._cluster.client
        nodes = [f"{zone}-{number}" for zone in "abc" for number in (1, 2, 3)]
        pods = self._workload.pods()
        match rng.choice(DISTURBANCES):
            case "eviction" if pods:
                await self._workload.evict(rng.choice(pods))
            case "unready" if pods and self._breaks:
                self._breaks -= 1
                body = {"metadata": {"annotations": {"zonewise.io/unready": "true"}}}
                await client.patch(Pod, rng.choice(pods).metadata.name, "default", body)
            case "drain":
                node = rng.choice(nodes)
                await client.patch(Node, node, None, {"spec": {"unschedulable": True}})
                for pod in pods:
                    if pod.spec.node_name == node:
                        await self._workload.evict(pod)
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


@pytest.mark.parametrize("seed", choose_seeds(20, *STANDSTILLS))
async def test_a_rollout_by_domain_ends_whatever_happens(seed: int) -> None:
    """Under up to three budgets of any kind, with a DomainRollout or without, a workload is updated
    three times, scaled, drained, broken and loses zones; some nodes may have no zone. It ends with
    all its pods of the last revision, and no pod is tried often.
    """
    rng = random.Random(seed)
    kind = draw_kind(seed)
    final = NODES if kind == "DaemonSet" else rng.randint(3, 9)
    first = final if kind == "DaemonSet" else rng.randint(3, 9)
    by_domain = kind in ROLLED and rng.random() < 0.6
    manifest = drawn_workload(rng, kind, first, by_domain=by_domain)
    policies = rng.choice([["AlwaysAllow"], ["AlwaysAllow", "IfHealthyBudget"]])
    budgets = [drawn_budget(rng, f"b{number}", policies) for number in range(rng.randint(0, 3))]
    async with whole([*drawn_nodes(seed, manifest), *budgets]) as cluster:
        workload = LivingWorkload(cluster, kind, manifest)
        breaks = how_many_may_break(kind, by_domain=by_domain, policies=policies)
        disturbances = Disturbances(cluster, rng, workload, breaks=breaks)
        async with workload.running():
            await workload.until_ready(first)
            if by_domain:
                assert not await cluster.seeder.create([drawn_rollout(rng, kind)])
                await asyncio.sleep(rng.choice([0.0, 5.0]))
            for image in ("pause:2", "pause:3", "pause:4"):
                scaled = rng.randint(3, 9) if rng.random() < 0.4 else None
                await workload.change(image=image, replicas=scaled)
                await disturbances.disturb()
            await workload.change(replicas=final)
            await until(lambda: workload.is_done(final), within=3600)
            most = workload.tries.most_common(3)
            assert max(workload.tries.values(), default=0) <= ATTEMPTS_PER_MINUTE, most
