"""The disruption controller and evictions, on a cluster in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.embedded.virtual_cluster import VirtualCluster, until, virtual_cluster

from zonewise.api.errors import ServerError, TooManyRequests
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.embedded.components.disruption.budgets import DisruptionController

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

PARTS = {"disruption-controller": DisruptionController}
TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {"containers": [{"name": "c", "image": "c"}]},
}


async def post(cluster: VirtualCluster, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Create an object of any kind."""
    answer = await cluster.client.raw(
        "POST",
        path,
        headers={"Content-Type": "application/json"},
        body=msgspec.json.encode(body),
    )
    created: dict[str, Any] = msgspec.json.decode(answer.body)
    return created


async def set_of(
    cluster: VirtualCluster, replicas: int, *, kind: str = "ReplicaSet"
) -> dict[str, Any]:
    """A ReplicaSet, or a DaemonSet, of ``app=web`` without a controller."""
    spec: dict[str, Any] = {
        "selector": {"matchLabels": {"app": "web"}},
        "template": TEMPLATE,
    }
    if kind == "ReplicaSet":
        spec["replicas"] = replicas
    created = await post(
        cluster,
        f"/apis/apps/v1/namespaces/default/{kind.lower()}s",
        {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "web"}, "spec": spec},
    )
    owner = {key: created["metadata"][key] for key in ("name", "uid")}
    return {"apiVersion": "apps/v1", "kind": kind, "controller": True, **owner}


async def pod(
    cluster: VirtualCluster, name: str, owner: dict[str, Any] | None = None, *, ready: bool = True
) -> None:
    """A running pod of ``app=web``."""
    meta: dict[str, Any] = {"name": name, "labels": {"app": "web"}}
    if owner:
        meta["ownerReferences"] = [owner]
    spec = {**TEMPLATE["spec"], "nodeName": "n1"}
    await post(cluster, "/api/v1/namespaces/default/pods", {"metadata": meta, "spec": spec})
    await turn(cluster, name, ready=ready)


async def turn(cluster: VirtualCluster, name: str, *, ready: bool) -> None:
    """Make a pod Ready, or not."""
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    body = {"status": {"phase": "Running", "conditions": [condition]}}
    await cluster.client.patch(Pod, name, "default", body, kind="strategic", subresource="status")


async def budget(cluster: VirtualCluster, name: str = "web", **spec: Any) -> None:
    """A budget for ``app=web``."""
    chosen = {"selector": {"matchLabels": {"app": "web"}}, **spec}
    await post(
        cluster,
        "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
        {"metadata": {"name": name}, "spec": chosen},
    )


async def status(cluster: VirtualCluster, *counts: int, name: str = "web") -> PodDisruptionBudget:
    """Wait for expected, desired, healthy and allowed pods; returns the budget."""
    budgets = cluster.program.cache.store(PodDisruptionBudget)
    seen: PodDisruptionBudget | None = None

    def there() -> bool:
        nonlocal seen
        seen = budgets.get(("default", name))
        if seen is None or seen.status.observed_generation != seen.metadata.generation:
            return False
        has = seen.status
        return counts == (
            has.expected_pods,
            has.desired_healthy,
            has.current_healthy,
            has.disruptions_allowed,
        )

    try:
        await until(there, within=30)
    except TimeoutError:
        raise AssertionError(f"{seen and seen.status} is not {counts}") from None
    assert seen is not None
    return seen


async def test_a_budget_follows_its_pods() -> None:
    """Pods that are created, become ready or unready and are deleted change what is allowed."""
    async with virtual_cluster(PARTS) as cluster:
        owner = await set_of(cluster, 3)
        await budget(cluster, maxUnavailable=1)
        await status(cluster, 0, 0, 0, 0)
        for name in "abc":
            await pod(cluster, name, owner)
        pdb = await status(cluster, 3, 2, 3, 1)
        assert pdb.status.conditions[0].reason == "SufficientPods"
        await turn(cluster, "a", ready=False)
        pdb = await status(cluster, 3, 2, 2, 0)
        assert pdb.status.conditions[0].reason == "InsufficientPods"
        await turn(cluster, "a", ready=True)
        await status(cluster, 3, 2, 3, 1)
        await cluster.client.delete(Pod, "b", "default", grace_period=0)
        await status(cluster, 3, 2, 2, 0)


async def test_a_scaled_workload_is_counted_again() -> None:
    """A workload that is scaled down frees its budget although no pod has changed."""
    async with virtual_cluster(PARTS) as cluster:
        owner = await set_of(cluster, 3)
        for name in "abc":
            await pod(cluster, name, owner)
        await budget(cluster, maxUnavailable=0)
        await status(cluster, 3, 3, 3, 0)
        await cluster.client.raw(
            "PATCH",
            "/apis/apps/v1/namespaces/default/replicasets/web",
            headers={"Content-Type": "application/merge-patch+json"},
            body=b'{"spec":{"replicas":1}}',
        )
        await status(cluster, 1, 1, 3, 2)


async def test_every_budget_of_a_pod_is_counted() -> None:
    """Two budgets on one pod both follow it, though such a pod cannot be evicted."""
    async with virtual_cluster(PARTS) as cluster:
        for name in ("one", "two"):
            await budget(cluster, name, minAvailable=1)
        await pod(cluster, "a")
        await pod(cluster, "b")
        await status(cluster, 2, 1, 2, 1, name="one")
        await status(cluster, 2, 1, 2, 1, name="two")
        await turn(cluster, "a", ready=False)
        await status(cluster, 2, 1, 1, 0, name="one")
        await status(cluster, 2, 1, 1, 0, name="two")
        with pytest.raises(ServerError, match="more than one PodDisruptionBudget"):
            await cluster.client.evict("a", "default")


async def test_evictions_spend_the_budget_and_refusals_have_reasons() -> None:
    """One of two evictions gets the last disruption; the other is refused with the numbers."""
    async with virtual_cluster(PARTS) as cluster:
        owner = await set_of(cluster, 3)
        for name in "abc":
            await pod(cluster, name, owner)
        await budget(cluster, maxUnavailable=1)
        await status(cluster, 3, 2, 3, 1)
        await cluster.client.evict("a", "default")
        spent = await cluster.client.get(PodDisruptionBudget, "web", "default")
        assert spent.status.disruptions_allowed == 0
        assert "a" in spent.status.disrupted_pods
        assert spent.status.conditions[0].status == "False"
        with pytest.raises(TooManyRequests) as caught:
            await cluster.client.evict("b", "default")
        assert caught.value.retry_after is None
        # The pod is leaving now, so the promise is over and the pod is no longer healthy.
        pdb = await status(cluster, 3, 2, 2, 0)
        await until(lambda: not pdb.status.disrupted_pods)
        with pytest.raises(TooManyRequests) as caught:
            await cluster.client.evict("b", "default")
        details = caught.value.status.details
        assert details is not None and details.causes is not None
        assert "needs 2 healthy pods and has 2 currently" in details.causes[0].message


async def test_an_eviction_without_deletion_is_taken_back() -> None:
    """An eviction that deleted nothing within two minutes gives its disruption back."""
    async with virtual_cluster(PARTS) as cluster:
        owner = await set_of(cluster, 3)
        for name in "abc":
            await pod(cluster, name, owner)
        await asyncio.sleep(2)  # a promise of the pod's first second could be its forerunner's
        await budget(cluster, maxUnavailable=1)
        pdb = await status(cluster, 3, 2, 3, 1)
        promised = {"a": pdb.metadata.creation_timestamp}
        body = {"status": {"disruptedPods": promised, "disruptionsAllowed": 0}}
        await cluster.client.patch(
            PodDisruptionBudget, "web", "default", body, subresource="status"
        )
        await status(cluster, 3, 2, 2, 0)
        loop = asyncio.get_running_loop()
        before = loop.time()
        budgets = cluster.program.cache.store(PodDisruptionBudget)

        def free() -> bool:
            seen = budgets.get(("default", "web"))
            return seen is not None and seen.status.disruptions_allowed == 1

        await until(free, within=300)
        assert 100 < loop.time() - before < 130


async def test_a_disruption_target_without_deletion_is_cleared() -> None:
    """The condition DisruptionTarget is cleared after two minutes without a deletion."""
    async with virtual_cluster(PARTS) as cluster:
        await pod(cluster, "a")
        now = (await cluster.client.get(Pod, "a", "default")).metadata.creation_timestamp
        mark = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
            "lastTransitionTime": now,
        }
        await cluster.client.patch(
            Pod,
            "a",
            "default",
            {"status": {"conditions": [mark]}},
            kind="strategic",
            subresource="status",
        )
        await asyncio.sleep(110)
        seen = await cluster.client.get(Pod, "a", "default")
        assert [
            condition.status
            for condition in seen.status.conditions
            if condition.type == mark["type"]
        ] == ["True"]
        await asyncio.sleep(20)
        seen = await cluster.client.get(Pod, "a", "default")
        target = next(
            condition for condition in seen.status.conditions if condition.type == mark["type"]
        )
        assert (target.status, target.reason, target.message) == ("False", "", "")


async def test_pods_whose_controller_has_no_scale_cannot_be_counted() -> None:
    """With maxUnavailable on a DaemonSet's pods nothing is allowed, and the status says why."""
    async with virtual_cluster(PARTS) as cluster:
        owner = await set_of(cluster, 0, kind="DaemonSet")
        await pod(cluster, "a", owner)
        await budget(cluster, maxUnavailable=1)
        budgets = cluster.program.cache.store(PodDisruptionBudget)

        def failed() -> bool:
            seen = budgets.get(("default", "web"))
            return bool(seen and seen.status.conditions)

        await until(failed)
        seen = budgets.get(("default", "web"))
        assert seen is not None
        condition = seen.status.conditions[0]
        assert condition.reason == "SyncFailed"
        assert condition.message == "daemonsets.apps does not implement the scale subresource"
        assert seen.status.observed_generation == 0
        with pytest.raises(TooManyRequests) as caught:
            await cluster.client.evict("a", "default")
        assert caught.value.retry_after == 10


async def test_budgets_without_a_label_of_their_own_find_their_pods() -> None:
    """Budgets that select all pods, some values, or pods without a label follow their pods."""
    async with virtual_cluster(PARTS) as cluster:
        choice = [{"key": "app", "operator": "In", "values": ["web", "shop"]}]
        without = [{"key": "app", "operator": "DoesNotExist"}]
        await budget(cluster, "all", minAvailable=1, selector={})
        await budget(cluster, "some", minAvailable=1, selector={"matchExpressions": choice})
        await budget(cluster, "others", minAvailable=0, selector={"matchExpressions": without})
        await pod(cluster, "a")
        await pod(cluster, "b")
        await status(cluster, 2, 1, 2, 1, name="all")
        await status(cluster, 2, 1, 2, 1, name="some")
        await status(cluster, 0, 0, 0, 0, name="others")
        await cluster.client.patch(Pod, "a", "default", {"metadata": {"labels": {"app": None}}})
        await status(cluster, 1, 1, 1, 0, name="some")
        await status(cluster, 1, 0, 1, 1, name="others")
