"""The gate's answers: observing refuses nothing, dry runs write nothing, refusals cost nothing."""

from __future__ import annotations

import asyncio
from email.utils import formatdate
from typing import Any

import msgspec
import pytest
from tests.controllers.budgets.budget_scene import LABELS, NS, BudgetScene, budget_scene
from tests.embedded.virtual_cluster import EPOCH
from tests.webhook.gate_caller import GateCaller, request

from zonewise.api import DisruptionLedger, Pod, ReplicaSet, StatefulSet, convert
from zonewise.api.errors import BadRequest
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.disruption.ledger import GRANT_SECONDS, USED_SECONDS
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.client.server_clock import ServerClock
from zonewise.runtime.webhook.admission import Allowed, Denied
from zonewise.webhook.clamp import Clamp
from zonewise.webhook.disruption_reviews import ALL_IN_ONE, AUDIT, BUSY, DisruptionReviews, GateMode
from zonewise.webhook.gate import DisruptionGate

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


TEMPLATE = {
    "metadata": {"labels": LABELS},
    "spec": {"containers": [{"name": "c", "image": "c"}]},
}


async def test_observing_refuses_nothing() -> None:
    """What would be refused passes, is counted and noted in the audit log; nothing is written."""
    async with budget_scene(3, *"abc") as scene:
        await scene.budget(maxUnavailable=0)
        caller = GateCaller(scene, "observe")
        await asyncio.sleep(5)
        answer = await caller.evict("web-1")
        assert isinstance(answer, Allowed)
        assert answer.audit[AUDIT].startswith("would be refused: the budget web: needs 1 healthy")
        deleted = await caller.delete("web-2", "replicaset-controller")
        assert isinstance(deleted, Allowed)
        await scene.edit(maxUnavailable=1)
        await asyncio.sleep(5)
        assert isinstance(await caller.evict("web-3"), Allowed)
        assert caller.verdicts == {("Blocked", False): 2, ("Allowed", True): 1}
        assert await caller.granted() == []


async def test_a_budget_that_observes_does_not_refuse() -> None:
    """Under an enforcing gate a budget with ``mode: Observe`` refuses and counts nothing."""
    async with budget_scene(3, *"abc") as scene:
        await scene.budget(maxUnavailable=0, mode="Observe")
        caller = GateCaller(scene, "enforce")
        await asyncio.sleep(5)
        assert isinstance(await caller.evict("web-1"), Allowed)
        assert caller.verdicts == {("Uncovered", False): 1}
        assert await caller.granted() == []


@pytest.mark.parametrize("dry_run", ["query", "All", "all"])
async def test_a_dry_run_writes_nothing(dry_run: str) -> None:
    """A dry run, requested in the query or in the body alone, has the same answer and no grant is
    written; nor if it is written in a way that the server will refuse.
    """
    async with budget_scene(3, *"abc") as scene:
        await scene.budget(maxUnavailable=1)
        caller = GateCaller(scene, "enforce")
        await asyncio.sleep(5)
        assert isinstance(await caller.evict("web-1", dry_run=dry_run), Allowed)
        assert await caller.granted() == []
        assert isinstance(await caller.evict("web-1"), Allowed)
        assert await caller.granted() == ["web-1"]


async def test_a_pod_newer_than_the_watch_is_read() -> None:
    """A deletion of a pod of which the watch shows an old state costs a read. The pod lost its
    readiness: it may go, and does not count as healthy for the next one. Older news of it change
    nothing, newer ones do.
    """
    async with budget_scene(3, *"aaa") as scene:
        await scene.budget(maxUnavailable=1)
        caller = GateCaller(scene, "enforce")
        await asyncio.sleep(5)
        known = await scene.client.get(Pod, "web-1", NS)
        await ready(scene, "web-1", "False")
        await asyncio.sleep(1)
        caller.gate.budgets_cache.get_or_create(NS).put_pod(known)
        before = await count_gets(scene)
        assert isinstance(await caller.delete("web-1", "replicaset-controller"), Allowed)
        assert await count_gets(scene) == before + 2, "the test reads it, too"
        caller.gate.budgets_cache.pod_changed(known, known)
        assert isinstance(await caller.delete("web-2", "replicaset-controller"), Denied)
        await ready(scene, "web-1", "True")
        await asyncio.sleep(1)
        assert isinstance(await caller.delete("web-2", "replicaset-controller"), Allowed)


async def test_what_a_review_says_of_a_pod_is_not_believed() -> None:
    """With one allowed per zone, forged dry runs that call every pod Ready, at versions that no
    server has, never let more than one pod per zone go.
    """
    async with budget_scene(9, *"abcabcabc") as scene:
        await scene.budget(maxUnavailable=1)
        caller = GateCaller(scene, "enforce")
        await asyncio.sleep(5)
        names = [f"web-{number}" for number in range(1, 10)]
        path = f"/api/v1/namespaces/{NS}/pods"
        pods = {name: (await scene.client.raw("GET", f"{path}/{name}")).json() for name in names}
        evicted = []
        for number, name in enumerate(names):
            if isinstance(await caller.evict(name), Allowed):
                evicted.append(name)
                await ready(scene, name, "False")
            for pod in pods.values():
                pod["metadata"]["resourceVersion"] = str(10**15 + number)
                fields = {"name": pod["metadata"]["name"], "operation": "DELETE", "oldObject": pod}
                await caller.reviews.deletion(request(**fields, dryRun=True))
            await asyncio.sleep(GRANT_SECONDS + 10)
        assert evicted == names[:3]


async def test_a_review_of_a_pod_that_does_not_exist() -> None:
    """An invented pod is charged to no budget, and its caller learns no name and no count, nor
    whether the namespace has budgets.
    """
    async with budget_scene(3, *"abc") as scene:
        caller = GateCaller(scene, "enforce")
        await asyncio.sleep(5)
        allowed = await caller.evict("other")
        assert isinstance(allowed, Allowed)
        await scene.budget(maxUnavailable=0)
        await asyncio.sleep(5)
        pod = (await scene.client.raw("GET", f"/api/v1/namespaces/{NS}/pods/web-1")).json()
        for name, uid in (("web-1", "invented"), ("web-1", ""), ("other", pod["metadata"]["uid"])):
            pod["metadata"] |= {"name": name, "uid": uid}
            fields = {"name": name, "operation": "DELETE", "oldObject": pod}
            assert await caller.reviews.deletion(request(**fields)) == allowed
        assert await caller.evict("other") == allowed
        await scene.edit(maxUnavailable=1)
        await asyncio.sleep(5)
        pod["metadata"] |= {"name": "web-1", "uid": "invented"}
        fields = {"name": "web-1", "operation": "DELETE", "oldObject": pod}
        await caller.reviews.deletion(request(**fields))
        assert await caller.granted() == []


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "x" * 254])
async def test_a_pod_with_an_impossible_name_is_refused(name: str) -> None:
    """A name that no pod can have is answered with 400, with budgets or without."""
    async with budget_scene(3, *"abc") as scene:
        caller = GateCaller(scene, "enforce")
        await asyncio.sleep(5)
        for budgets in (False, True):
            if budgets:
                await scene.budget(maxUnavailable=1)
                await asyncio.sleep(5)
            pod = {"metadata": {"name": name, "namespace": NS, "uid": "1"}}
            for answer in (
                await caller.reviews.deletion(request(operation="DELETE", oldObject=pod)),
                await caller.reviews.eviction(request(operation="CREATE", object=pod)),
            ):
                assert isinstance(answer, Denied)
                assert answer.code == 400


async def test_forged_evictions_hold_a_budget_for_a_minute() -> None:
    """A grant whose pod is not deleted is revoked after a minute; that of a pod which is being
    deleted is not, even if the watch does not show it yet.
    """
    async with budget_scene(9, *"abcabcabc") as scene:
        await scene.budget(maxUnavailable=1)
        caller = GateCaller(scene, "enforce")
        await asyncio.sleep(5)
        for name in ("web-1", "web-2", "web-3"):
            assert isinstance(await caller.evict(name), Allowed)
        leaving = await scene.client.get(Pod, "web-3", NS)
        await scene.client.delete(Pod, "web-3", NS, grace_period=600)
        await asyncio.sleep(USED_SECONDS - 10)
        assert isinstance(await caller.evict("web-4"), Denied)
        await asyncio.sleep(20)
        caller.gate.budgets_cache.get_or_create(NS).put_pod(leaving)
        answers = [await caller.evict(name) for name in ("web-4", "web-5", "web-6", "web-7")]
        assert [isinstance(answer, Allowed) for answer in answers] == [True, True, False, False]
        assert sorted(await caller.granted()) == ["web-3", "web-4", "web-5"]


async def test_unknown_namespaces_leave_nothing_behind() -> None:
    """Reviews of namespaces that do not exist are allowed, and nothing is stored for them."""
    async with budget_scene(3, *"abc") as scene:
        await scene.budget(maxUnavailable=1)
        caller = GateCaller(scene, "enforce")
        clamp = Clamp(caller.gate.budgets_cache, lambda: EPOCH, caller.gate.turns)
        await asyncio.sleep(5)
        known = set(caller.gate.budgets_cache.by_namespace)
        for number in range(100):
            meta = {"name": "x", "namespace": f"other-{number}", "uid": "1"}
            pod, namespace = {"metadata": meta}, {"namespace": meta["namespace"]}
            for fields in ({"object": pod}, {"oldObject": pod}):
                await caller.reviews.eviction(request(name="x", **fields, **namespace))
                await caller.reviews.deletion(request(name="x", **fields, **namespace))
            sizes = [pod | {"spec": {"replicas": size}} for size in (1, 2)]
            await clamp(request(object=sizes[0], oldObject=sizes[1], **namespace))
        assert set(caller.gate.budgets_cache.by_namespace) == known


async def test_an_eviction_of_another_namespace_is_refused() -> None:
    """The namespace in an Eviction or in a deleted pod must be that of the request."""
    async with budget_scene(3, *"abc") as scene:
        await scene.budget(maxUnavailable=1)
        caller = GateCaller(scene, "enforce")
        await asyncio.sleep(5)
        body = {"metadata": {"name": "web-1", "namespace": "elsewhere"}}
        for answer in (
            await caller.reviews.eviction(request(name="web-1", object=body)),
            await caller.reviews.deletion(request(name="web-1", oldObject=body)),
        ):
            assert isinstance(answer, Denied)
            assert (answer.code, answer.status) == (400, "BadRequest")
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", **body}
        path = f"/api/v1/namespaces/{NS}/pods/web-1/eviction"
        headers, payload = {"Content-Type": "application/json"}, msgspec.json.encode(eviction)
        with pytest.raises(BadRequest):
            await scene.client.raw("POST", path, headers=headers, body=payload)
        assert await caller.granted() == []


async def test_a_refusal_reads_nothing() -> None:
    """A refused eviction is answered from memory: 429, a cause for its budget, no request."""
    async with budget_scene(3, *"abc") as scene:
        await scene.budget(maxUnavailable=0)
        caller = GateCaller(scene, "enforce")
        await asyncio.sleep(5)
        before = await read_pod_counters(scene)
        answer = await caller.evict("web-1")
        assert isinstance(answer, Denied)
        assert (answer.code, answer.retry_after) == (429, None)
        assert [cause.reason for cause in answer.causes] == ["DisruptionBudget"]
        assert await read_pod_counters(scene) == before
        assert (BUSY.code, BUSY.retry_after) == (429, None)


@pytest.mark.parametrize(
    ("stateful", "generate_name", "reads"), [(False, "web-", 0), (False, "", 1), (True, "web-", 1)]
)
async def test_a_pod_is_read_if_its_name_may_be_anothers(
    stateful: bool, generate_name: str, reads: int
) -> None:
    """Generated names are not used again, so no read is needed; those of StatefulSets are."""
    async with budget_scene(0) as scene:
        assert scene.owner is not None
        spec = {"replicas": 1, "selector": scene.owner.spec.selector, "template": TEMPLATE}
        body = {"metadata": {"name": "web", "namespace": NS}, "spec": spec}
        owner = await scene.client.create(convert(StatefulSet, body)) if stateful else scene.owner
        name = await scene.pod("a", owner=owner, generate_name=generate_name)
        await scene.budget(minAvailable=0)
        caller = GateCaller(scene, "enforce")
        await asyncio.sleep(5)
        before = await count_gets(scene)
        assert isinstance(await caller.evict(name), Allowed)
        assert await count_gets(scene) == before + reads
        assert await caller.granted() == [name]


@pytest.mark.parametrize("mode", ["enforce", "observe"])
async def test_a_gate_whose_stores_are_incomplete(mode: GateMode) -> None:
    """Before its stores are complete a gate refuses everything, with 429; one that only observes
    allows everything, as when it is too busy.
    """
    async with budget_scene(3, *"abc") as scene:
        await scene.budget(maxUnavailable=1)
        gate = DisruptionGate(Cache(scene.client), scene.client, lambda: EPOCH)
        reviews = DisruptionReviews(gate, scene.client, mode=mode)
        fields: dict[str, Any] = {"name": "web-1", "object": {"metadata": {"name": "web-1"}}}
        for answer in (
            await reviews.eviction(request(**fields, operation="CREATE")),
            await reviews.deletion(request(name="web-1", operation="DELETE")),
            reviews.busy_answer,
        ):
            if mode == "enforce":
                assert isinstance(answer, Denied)
                assert (answer.code, answer.retry_after) == (429, None)
            else:
                assert isinstance(answer, Allowed)
        assert not await scene.client.list(DisruptionLedger, NS)


@pytest.mark.parametrize("mode", ["enforce", "observe"])
async def test_a_clock_that_is_off_grants_nothing(mode: GateMode) -> None:
    """From an answer with a wrong date on, whatever would be judged is refused with 429, also a
    pod that has a grant, and no ledger is written; one that only observes allows all.
    """
    async with budget_scene(9, *"abcabcabc") as scene:
        await scene.budget(maxUnavailable=1)
        loop = asyncio.get_running_loop()
        clock = ServerClock(lambda: EPOCH + loop.time())
        gate = DisruptionGate(scene.cluster.program.cache, scene.client, clock.reliable_now)
        clamp = Clamp(gate.budgets_cache, clock.reliable_now, gate.turns)
        caller = GateCaller(scene, mode, gate)
        await asyncio.sleep(5)
        assert isinstance(await caller.evict("web-1"), Allowed)
        before = await caller.granted()
        moment = EPOCH + loop.time() + 130
        clock.observe(formatdate(moment, usegmt=True), loop.time(), loop.time())
        answers = [await caller.evict(f"web-{number}") for number in range(1, 10)]
        answers.append(await caller.delete("web-4", "replicaset-controller"))
        if mode == "enforce":
            item = await scene.client.raw("GET", f"/apis/apps/v1/namespaces/{NS}/replicasets/web")
            old = item.json()
            new = old | {"spec": old["spec"] | {"replicas": 1}}
            answers.append(await clamp(request(name="web", object=new, oldObject=old)))
        for answer in answers:
            if mode == "observe":
                assert isinstance(answer, Allowed)
            else:
                assert isinstance(answer, Denied)
                assert answer.code == 429
                assert "its clock and the API server's differ by 130 s" in str(answer.why)
        assert await caller.granted() == before


async def test_a_controller_manager_without_accounts() -> None:
    """Where all controllers are one user, it may delete a pod whose owner is deleted."""
    async with budget_scene(3, *"abc") as scene:
        await scene.budget(maxUnavailable=0)
        caller = GateCaller(scene, "enforce")
        await asyncio.sleep(5)
        assert isinstance(await caller.delete("web-1", ALL_IN_ONE), Denied)
        pod = await scene.client.get(Pod, "web-1", NS)
        assert pod.metadata.deletion_timestamp is None
        await scene.client.delete(ReplicaSet, "web", NS, propagation="Orphan")
        await asyncio.sleep(2)
        assert isinstance(await caller.delete("web-1", ALL_IN_ONE), Allowed)


async def ready(scene: BudgetScene, name: str, status: str) -> None:
    """Make a pod Ready, or not."""
    conditions = [{"type": "Ready", "status": status}]
    body = {"status": {"conditions": conditions}}
    await scene.client.patch(Pod, name, NS, body, subresource="status")


async def count_gets(scene: BudgetScene) -> int:
    """How often a pod was read."""
    lines = [line for line in await read_pod_counters(scene) if 'verb="GET"' in line]
    return sum(int(float(line.split()[-1])) for line in lines)


async def read_pod_counters(scene: BudgetScene) -> list[str]:
    """The server's counters of requests for pods."""
    lines = (await scene.client.raw("GET", "/metrics")).body.decode().splitlines()
    return [line for line in lines if "request_total" in line and 'resource="pods"' in line]


async def test_a_pod_with_two_plain_budgets_is_told_which() -> None:
    """The API server would answer 500 without a name; the gate is asked before and names both."""
    async with budget_scene(3, *"abc") as scene:
        for name in ("one", "two"):
            spec = {"selector": {"matchLabels": LABELS}, "maxUnavailable": 1}
            body = {"metadata": {"name": name, "namespace": NS}, "spec": spec}
            await scene.client.create(convert(PodDisruptionBudget, body))
        caller = GateCaller(scene, "enforce")
        await asyncio.sleep(5)
        answer = await caller.evict("web-1")
        assert isinstance(answer, Denied)
        text = (
            "this pod has 2 PodDisruptionBudgets (one, two), and Kubernetes evicts no pod that has"
            " more than one"
        )
        assert [cause.message for cause in answer.causes] == [
            f"The disruption budget {name}: {text}" for name in ("one", "two")
        ]
