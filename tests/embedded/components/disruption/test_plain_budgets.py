"""PodDisruptionBudgets without a term, on a whole embedded cluster in virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.disruption.story_table import Kind
from tests.embedded.components.disruption.budget_stories import evict
from tests.embedded.components.disruption.drawn_workloads import LivingWorkload, drawn_workload
from tests.embedded.components.disruption.foo_workloads import (
    LABELS,
    ZONE,
    Obj,
    budget,
    image_counts,
    patch,
    pods,
    topology_budget,
    update,
    workload,
)
from tests.embedded.virtual_cluster import EPOCH, until
from tests.embedded.whole_cluster import settled, whole

from zonewise.api import (
    DaemonSet,
    Deployment,
    DisruptionLedger,
    Node,
    Pod,
    PodDisruptionBudget,
    ReplicaSet,
)
from zonewise.api.codec import convert
from zonewise.api.errors import Invalid, ServerError, TooManyRequests
from zonewise.api.objects.pod_state import is_pod_ready
from zonewise.disruption.budget import budget_of
from zonewise.embedded.cluster import ClusterSettings, EmbeddedCluster
from zonewise.embedded.seed.nodes import NodeLayout
from zonewise.explain.budget_answers import AnswerCode
from zonewise.explain.budgets import BudgetCluster

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

DELETE = ClusterSettings(removal="delete")


async def counts(cluster: EmbeddedCluster, name: str = "pdb") -> tuple[int, int, int, int]:
    """Expected, desired, healthy and allowed pods, once the latest spec was counted."""
    while True:
        item = await cluster.client.get(PodDisruptionBudget, name, "default")
        if item.status.observed_generation == item.metadata.generation:
            status = item.status
            return (
                status.expected_pods,
                status.desired_healthy,
                status.current_healthy,
                status.disruptions_allowed,
            )
        await asyncio.sleep(0.5)


async def test_an_eviction_needs_every_budget_of_its_pod() -> None:
    """Of six evictions at once two are granted, what both budgets allow together; one write charges
    both of them, and a refusal is 429 with a cause for each budget that refuses.
    """
    budgets = [budget("most", maxUnavailable=3), budget("least", minAvailable=4)]
    async with whole([*NodeLayout().nodes(), workload("Deployment", 6), *budgets]) as cluster:
        await settled(cluster)
        await asyncio.sleep(2)
        assert await counts(cluster, "most") == (6, 3, 6, 3)
        assert await counts(cluster, "least") == (6, 4, 6, 2)
        for node in NodeLayout().nodes():
            await cluster.client.raw(
                "PATCH",
                f"/api/v1/nodes/{node['metadata']['name']}",
                headers={"Content-Type": "application/merge-patch+json"},
                body=b'{"spec":{"unschedulable":true}}',
            )
        names = [pod.metadata.name for pod in pods(cluster)]
        answers = await asyncio.gather(*(evict(cluster, name) for name in names))
        assert sum(answers) == 2
        ledger = await cluster.client.get(DisruptionLedger, "zonewise", "default")
        assert len(ledger.spec.grants) == 2
        assert set(ledger.spec.judged) == {"PodDisruptionBudget/least", "PodDisruptionBudget/most"}
        await cluster.client.patch(
            PodDisruptionBudget, "most", "default", {"spec": {"maxUnavailable": 2}}
        )
        await asyncio.sleep(2)
        assert await counts(cluster, "most") == (6, 4, 4, 0)
        with pytest.raises(TooManyRequests) as caught:
            await cluster.client.evict(pods(cluster)[0].metadata.name, "default")
        assert caught.value.status.message == (
            "Cannot evict pod as it would violate the pod's disruption budget. The disruption"
            " budget least: needs 4 healthy pods and has 4. The disruption budget most: needs 4"
            " healthy pods and has 4."
        )
        details = caught.value.status.details
        assert details is not None and details.causes is not None
        assert [cause.message for cause in details.causes] == [
            "The disruption budget least: needs 4 healthy pods and has 4",
            "The disruption budget most: needs 4 healthy pods and has 4",
        ]


async def test_explain_counts_as_the_cluster_does() -> None:
    """Read from outside, the budgets say themselves who counts them: two of them allow a pod
    together, and have the numbers that evictions are judged by.
    """
    budgets = [budget("most", maxUnavailable=1), budget("least", minAvailable=2)]
    async with whole([*NodeLayout().nodes(), workload("Deployment", 3), *budgets]) as cluster:
        await settled(cluster)
        await asyncio.sleep(2)
        client = cluster.client
        seen = BudgetCluster(
            nodes=await client.list(Node),
            pods=await client.list(Pod, "default"),
            budgets=await client.list(PodDisruptionBudget, "default"),
            owners=[*await client.list(Deployment), *await client.list(ReplicaSet)],
            now=EPOCH,
        )
        report = seen.report_pods("default")[0]
        assert report.verdict.allowed and report.verdict.charged
        answers = [(answer.budget, answer.answer) for answer in report.answers]
        assert answers == [("least", AnswerCode.ALLOWS), ("most", AnswerCode.ALLOWS)]
        rows = {item.budget: item.domains[0] for item in seen.report_budgets("default")}
        assert {name: (row.expected, row.desired) for name, row in rows.items()} == {
            "most": (3, 2),
            "least": (3, 2),
        }


async def test_with_delete_two_budgets_are_an_error_as_in_kubernetes() -> None:
    """Where controllers delete, a pod with two budgets is answered 500, and both are counted by
    Kubernetes' rules.
    """
    budgets = [budget("most", maxUnavailable=1), budget("least", minAvailable=1)]
    objects = [*NodeLayout().nodes(), workload("Deployment", 3), *budgets]
    async with whole(objects, settings=DELETE) as cluster:
        await settled(cluster)
        await asyncio.sleep(2)
        assert await counts(cluster, "most") == (3, 2, 3, 1)
        with pytest.raises(ServerError, match="more than one PodDisruptionBudget"):
            await cluster.client.evict(pods(cluster)[0].metadata.name, "default")


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet"])
async def test_a_rollout_under_two_budgets_ends(kind: str) -> None:
    """An update under two budgets ends, and never leaves fewer Ready pods than both need."""
    budgets = [budget("most", maxUnavailable=1), budget("least", minAvailable="50%")]
    spec: Obj = {}
    if kind == "Deployment":
        spec["strategy"] = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 3}}
    if kind == "DaemonSet":
        spec["updateStrategy"] = {"rollingUpdate": {"maxUnavailable": 3}}
    async with whole([*NodeLayout().nodes(), workload(kind, 9, **spec), *budgets]) as cluster:
        await settled(cluster)
        await asyncio.sleep(2)
        assert await counts(cluster, "most") == (9, 8, 9, 1)
        least = 9

        def changed(old: Pod | None, new: Pod | None) -> None:
            nonlocal least
            least = min(least, sum(map(is_pod_ready, pods(cluster))))

        cluster.program.cache.store(Pod).on_change(changed)
        await update(cluster, kind)
        await until(lambda: image_counts(cluster) == {"c:2": 9}, within=300)
        assert least == 8


@pytest.mark.parametrize(
    ("limit", "numbers"),
    [
        ({"maxUnavailable": 2}, (9, 7, 9, 2)),
        ({"maxUnavailable": "10%"}, (9, 8, 9, 1)),
        ({"minAvailable": "50%"}, (9, 5, 9, 4)),
        ({"minAvailable": 8}, (9, 8, 9, 1)),
    ],
)
async def test_a_daemon_set_is_counted_by_its_desired_number(
    limit: Obj, numbers: tuple[int, int, int, int]
) -> None:
    """The status has numbers, a second eviction beyond them is refused, and an update ends."""
    kind = "DaemonSet"
    objects = [*NodeLayout().nodes(), workload(kind, 0), budget(**limit)]
    async with whole(objects) as cluster:
        await settled(cluster)
        await asyncio.sleep(2)
        daemon_set = await cluster.client.get(DaemonSet, "foo", "default")
        assert daemon_set.status.desired_number_scheduled == numbers[0]
        assert await counts(cluster) == numbers
        names = [pod.metadata.name for pod in pods(cluster)]
        answers = await asyncio.gather(*(evict(cluster, name) for name in names))
        assert sum(answers) == numbers[3]
        await settled(cluster)
        await update(cluster, kind)
        await until(lambda: image_counts(cluster) == {"c:2": 9}, within=300)


async def test_with_delete_a_daemon_set_cannot_be_counted() -> None:
    """Where controllers delete, the status is SyncFailed as in Kubernetes."""
    objects = [*NodeLayout().nodes(), workload("DaemonSet", 0), budget(maxUnavailable=1)]
    async with whole(objects, settings=DELETE) as cluster:
        await settled(cluster)
        await asyncio.sleep(2)
        item = await cluster.client.get(PodDisruptionBudget, "pdb", "default")
        (condition,) = item.status.conditions
        assert condition.reason == "SyncFailed"
        assert condition.message == "daemonsets.apps does not implement the scale subresource"
        assert not item.status.fingerprint


async def test_a_daemon_set_is_updated_beside_a_pod_that_a_budget_holds() -> None:
    """A pod of a node that is no longer selected may be held for its zone, and goes when another
    one there is Ready; the update that makes it Ready does not wait for it.
    """
    nodes = list(NodeLayout().nodes())
    for node in nodes:
        node["metadata"]["labels"]["wanted"] = "yes"
    daemon_set = workload("DaemonSet", 0)
    daemon_set["spec"]["template"]["spec"]["nodeSelector"] = {"wanted": "yes"}
    async with whole([*nodes, daemon_set, topology_budget(minAvailable=1)]) as cluster:
        await settled(cluster)
        by_node = {pod.spec.node_name: pod.metadata.name for pod in pods(cluster)}
        broken = {"metadata": {"annotations": {"zonewise.io/unready": "true"}}}
        await cluster.client.patch(Pod, by_node["c-1"], "default", broken)
        await asyncio.sleep(5)
        for name in ("c-2", "c-3"):
            await cluster.client.patch(Node, name, None, {"metadata": {"labels": {"wanted": None}}})
        await asyncio.sleep(300)
        left = {pod.spec.node_name for pod in pods(cluster)} - {"c-1"}
        assert len(left & {"c-2", "c-3"}) == 1
        await update(cluster, "DaemonSet")
        await until(lambda: image_counts(cluster) == {"c:2": 7}, within=300)


LIMITS: list[Obj] = [
    {"maxUnavailable": 0},
    {"maxUnavailable": "20%"},
    {"minAvailable": 2},
    {"minAvailable": "100%"},
    {"maxUnavailable": 1},
    {"minAvailable": 8},
]
KINDS: list[tuple[str, Obj]] = [
    ("Deployment", {}),
    ("ReplicaSet", {}),
    ("ReplicationController", {}),
    ("StatefulSet", {}),
    ("StatefulSet", {"podManagementPolicy": "Parallel"}),
]


@pytest.mark.parametrize(
    ("kind", "spec", "limit", "per_zone"),
    [
        *((kind, spec, limit, False) for kind, spec in KINDS for limit in LIMITS[::2]),
        *(("Deployment", {}, limit, False) for limit in LIMITS[1::2]),
        *((kind, spec, {"minAvailable": 2}, True) for kind, spec in KINDS),
    ],
    ids=str,
)
async def test_a_scale_down_ends(kind: str, spec: Obj, limit: Obj, per_zone: bool) -> None:
    """Eight pods become two, one and none, whatever the budget: it never holds pods beyond those
    that are expected.
    """
    limiting = topology_budget(**limit) if per_zone else budget(**limit)
    objects = [*NodeLayout().nodes(), workload(kind, 8, **spec)]
    async with whole(objects) as cluster:
        await until(lambda: image_counts(cluster) == {"c:1": 8})
        await cluster.seeder.create([limiting])
        await asyncio.sleep(2)
        for replicas in (2, 1, 0):
            await patch(cluster, kind, {"replicas": replicas})
            await until(lambda: len(pods(cluster)) == replicas, within=600)  # noqa: B023


@pytest.mark.parametrize("kind", ["Job", "custom kind"])
@pytest.mark.parametrize(
    "limiting",
    [*(budget(**limit) for limit in LIMITS[::2]), topology_budget(minAvailable=2)],
    ids=lambda item: f"{item['metadata']['name']} {item['spec']}",
)
async def test_a_scale_down_of_a_job_or_custom_kind_ends(kind: Kind, limiting: Obj) -> None:
    """A Job and a custom kind, whose own controller evicts the surplus, get from eight pods to two,
    one and none, too.
    """
    manifest = drawn_workload(random.Random(1), kind, 8)
    async with whole(NodeLayout().nodes()) as cluster:
        living = LivingWorkload(cluster, kind, manifest)
        async with living.running():
            await living.until_ready(8)
            await cluster.seeder.create([limiting])
            await asyncio.sleep(2)
            for replicas in (2, 1, 0):
                await living.change(replicas=replicas)
                await until(lambda: len(pods(cluster)) == replicas, within=600)  # noqa: B023


async def test_pods_of_nobody_are_expected_as_they_are_and_a_job_as_many_as_it_runs() -> None:
    """A Job's number is how many pods it runs at a time; pods without an owner are expected while
    they exist. One of all of them may be evicted at a time.
    """
    container = {"name": "c", "image": "pause:1"}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "foo"},
        "spec": {
            "parallelism": 3,
            "completions": 5,
            "template": {
                "metadata": {"labels": LABELS},
                "spec": {"containers": [container], "restartPolicy": "Never"},
            },
        },
    }
    bare = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "bare", "namespace": "default", "labels": LABELS},
        "spec": {"containers": [container]},
    }
    async with whole([*NodeLayout().nodes(), bare, job, budget(maxUnavailable=1)]) as cluster:
        await until(lambda: len(pods(cluster)) == 4 and all(map(is_pod_ready, pods(cluster))))
        await asyncio.sleep(2)
        assert await counts(cluster) == (4, 3, 4, 1)
        first, second, _ = (p.metadata.name for p in pods(cluster) if p.metadata.name != "bare")
        assert await evict(cluster, first)
        assert not await evict(cluster, second)
        await asyncio.sleep(60)
        assert await counts(cluster) == (4, 3, 4, 1)
        assert await evict(cluster, "bare")
        await asyncio.sleep(60)
        assert await counts(cluster) == (3, 2, 3, 1)


async def test_replicas_per_domain_for_a_budget_with_a_term() -> None:
    """``expectedPods`` is a field of PodDisruptionBudgets with a term: each zone expects its share
    of the replicas, so of 6/2/1 pods only those of the full zone may go. Without a term it is
    refused.
    """
    term = {"matchExpressions": [{"key": ZONE, "operator": "Exists"}]}
    literal = budget(maxUnavailable=1, nodeSelectorTerm=term, expectedPods="ReplicasPerDomain")
    assert budget_of(_typed(literal)).per_domain
    async with whole([*NodeLayout().nodes(), workload("Deployment", 0)]) as cluster:
        for zone, replicas in (("a", 6), ("b", 8), ("c", 9)):
            await _leave_open(cluster, zone)
            await patch(cluster, "Deployment", {"replicas": replicas})
            await settled(cluster)
        await _leave_open(cluster, "abc")
        await cluster.seeder.create([literal])
        await counts(cluster)
        item = await cluster.client.get(PodDisruptionBudget, "pdb", "default")
        assert item.spec.expected_pods == "ReplicasPerDomain"
        rows = {
            row.domain: (row.current_healthy, row.desired_healthy, row.disruptions_allowed)
            for row in item.status.domains
        }
        assert rows == {"a": (6, 2, 4), "b": (2, 2, 0), "c": (1, 2, 0)}
        by_zone = {pod.spec.node_name[0]: pod.metadata.name for pod in pods(cluster)}
        granted = {zone: await evict(cluster, name) for zone, name in by_zone.items()}
        assert granted == {"a": True, "b": False, "c": False}
        for wrong, says in [
            (budget("x", maxUnavailable=1, expectedPods="ReplicasPerDomain"), "nodeSelectorTerm"),
            (
                budget("y", maxUnavailable=1, nodeSelectorTerm=term, expectedPods="Some"),
                "supported values",
            ),
        ]:
            with pytest.raises(Invalid, match=says):
                await cluster.client.create(_typed(wrong))


async def _leave_open(cluster: EmbeddedCluster, zones: str) -> None:
    """Let pods start in these zones only."""
    for node in await cluster.client.list(Node):
        body = {"spec": {"unschedulable": node.metadata.name[0] not in zones}}
        await cluster.client.patch(Node, node.metadata.name, None, body)


def _typed(item: Obj) -> PodDisruptionBudget:
    """The item as an object of its type."""
    return convert(PodDisruptionBudget, item)
