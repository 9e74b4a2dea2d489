"""The gate's answers: observing refuses nothing, dry runs write nothing, refusals cost nothing."""

from __future__ import annotations

import asyncio
from email.utils import formatdate
from typing import Any

import msgspec
import pytest
from tests.controllers.budgets.budgeted import LABELS, NS, Field, field
from tests.embedded.virtual_cluster import EPOCH
from tests.webhook.asked_gate import Asked, request

from zonewise.api import DisruptionLedger, Pod, ReplicaSet, StatefulSet, convert
from zonewise.api.errors import BadRequest
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
    """What would be refused passes, is counted and told in the audit log; nothing is written."""
    async with field(3, *"abc") as town:
        await town.budget(maxUnavailable=0)
        asked = Asked(town, "observe")
        await asyncio.sleep(5)
        answer = await asked.evict("web-1")
        assert isinstance(answer, Allowed)
        assert answer.audit[AUDIT].startswith("would be refused: the budget web: needs 1 healthy")
        deleted = await asked.delete("web-2", "replicaset-controller")
        assert isinstance(deleted, Allowed)
        await town.edit(maxUnavailable=1)
        await asyncio.sleep(5)
        assert isinstance(await asked.evict("web-3"), Allowed)
        assert asked.verdicts == {("Blocked", False): 2, ("Allowed", True): 1}
        assert await asked.ledger() == []


async def test_a_budget_that_observes_does_not_refuse() -> None:
    """Under an enforcing gate a budget with ``mode: Observe`` holds nobody and is not charged."""
    async with field(3, *"abc") as town:
        await town.budget(maxUnavailable=0, mode="Observe")
        asked = Asked(town, "enforce")
        await asyncio.sleep(5)
        assert isinstance(await asked.evict("web-1"), Allowed)
        assert asked.verdicts == {("Uncovered", False): 1}
        assert await asked.ledger() == []


@pytest.mark.parametrize("said", ["query", "All", "all"])
async def test_a_dry_run_writes_nothing(said: str) -> None:
    """Said in the query or in the body alone, the answer is the same and no grant is written; nor
    if it is said in a way that the server will refuse.
    """
    async with field(3, *"abc") as town:
        await town.budget(maxUnavailable=1)
        asked = Asked(town, "enforce")
        await asyncio.sleep(5)
        assert isinstance(await asked.evict("web-1", dry_run=said), Allowed)
        assert await asked.ledger() == []
        assert isinstance(await asked.evict("web-1"), Allowed)
        assert await asked.ledger() == ["web-1"]


async def test_a_pod_newer_than_the_watch_is_read() -> None:
    """A deletion of a pod that the watch shows as it was costs a read. The pod lost its readiness:
    it goes freely, and is not healthy for the next one's sake; news from before that change
    nothing, later ones do.
    """
    async with field(3, *"aaa") as town:
        await town.budget(maxUnavailable=1)
        asked = Asked(town, "enforce")
        await asyncio.sleep(5)
        known = await town.client.get(Pod, "web-1", NS)
        await ready(town, "web-1", "False")
        await asyncio.sleep(1)
        asked.gate.budgets_cache.get_or_create(NS).put_pod(known)
        before = await gets(town)
        assert isinstance(await asked.delete("web-1", "replicaset-controller"), Allowed)
        assert await gets(town) == before + 2, "the test reads it, too"
        asked.gate.budgets_cache.pod_changed(known, known)
        assert isinstance(await asked.delete("web-2", "replicaset-controller"), Denied)
        await ready(town, "web-1", "True")
        await asyncio.sleep(1)
        assert isinstance(await asked.delete("web-2", "replicaset-controller"), Allowed)


async def test_what_a_review_says_of_a_pod_is_not_believed() -> None:
    """With one allowed per zone, forged dry runs that call every pod Ready, at versions that no
    server has, let no more than one pod per zone go, however long it goes on.
    """
    async with field(9, *"abcabcabc") as town:
        await town.budget(maxUnavailable=1)
        asked = Asked(town, "enforce")
        await asyncio.sleep(5)
        names = [f"web-{number}" for number in range(1, 10)]
        path = f"/api/v1/namespaces/{NS}/pods"
        pods = {name: (await town.client.raw("GET", f"{path}/{name}")).json() for name in names}
        gone = []
        for number, name in enumerate(names):
            if isinstance(await asked.evict(name), Allowed):
                gone.append(name)
                await ready(town, name, "False")
            for pod in pods.values():
                pod["metadata"]["resourceVersion"] = str(10**15 + number)
                said = {"name": pod["metadata"]["name"], "operation": "DELETE", "oldObject": pod}
                await asked.reviews.deletion(request(**said, dryRun=True))
            await asyncio.sleep(GRANT_SECONDS + 10)
        assert gone == names[:3]


async def test_a_review_of_a_pod_that_does_not_exist() -> None:
    """An invented pod is charged to nobody, and its caller learns no name and no count, nor whether
    the namespace has budgets.
    """
    async with field(3, *"abc") as town:
        asked = Asked(town, "enforce")
        await asyncio.sleep(5)
        unheld = await asked.evict("other")
        assert isinstance(unheld, Allowed)
        await town.budget(maxUnavailable=0)
        await asyncio.sleep(5)
        pod = (await town.client.raw("GET", f"/api/v1/namespaces/{NS}/pods/web-1")).json()
        for name, uid in (("web-1", "invented"), ("web-1", ""), ("other", pod["metadata"]["uid"])):
            pod["metadata"] |= {"name": name, "uid": uid}
            said = {"name": name, "operation": "DELETE", "oldObject": pod}
            assert await asked.reviews.deletion(request(**said)) == unheld
        assert await asked.evict("other") == unheld
        await town.edit(maxUnavailable=1)
        await asyncio.sleep(5)
        pod["metadata"] |= {"name": "web-1", "uid": "invented"}
        said = {"name": "web-1", "operation": "DELETE", "oldObject": pod}
        await asked.reviews.deletion(request(**said))
        assert await asked.ledger() == []


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "x" * 254])
async def test_a_pod_with_a_name_that_is_none_is_refused(name: str) -> None:
    """What no pod can be called is asked for nowhere, with budgets or without."""
    async with field(3, *"abc") as town:
        asked = Asked(town, "enforce")
        await asyncio.sleep(5)
        for budgets in (False, True):
            if budgets:
                await town.budget(maxUnavailable=1)
                await asyncio.sleep(5)
            pod = {"metadata": {"name": name, "namespace": NS, "uid": "1"}}
            for answer in (
                await asked.reviews.deletion(request(operation="DELETE", oldObject=pod)),
                await asked.reviews.eviction(request(operation="CREATE", object=pod)),
            ):
                assert isinstance(answer, Denied)
                assert answer.code == 400


async def test_forged_evictions_hold_a_budget_for_a_minute() -> None:
    """A grant whose pod is not deleted is taken back after a minute; that of a pod which is being
    deleted is not, even if the watch does not show it yet.
    """
    async with field(9, *"abcabcabc") as town:
        await town.budget(maxUnavailable=1)
        asked = Asked(town, "enforce")
        await asyncio.sleep(5)
        for name in ("web-1", "web-2", "web-3"):
            assert isinstance(await asked.evict(name), Allowed)
        leaving = await town.client.get(Pod, "web-3", NS)
        await town.client.delete(Pod, "web-3", NS, grace_period=600)
        await asyncio.sleep(USED_SECONDS - 10)
        assert isinstance(await asked.evict("web-4"), Denied)
        await asyncio.sleep(20)
        asked.gate.budgets_cache.get_or_create(NS).put_pod(leaving)
        answers = [await asked.evict(name) for name in ("web-4", "web-5", "web-6", "web-7")]
        assert [isinstance(answer, Allowed) for answer in answers] == [True, True, False, False]
        assert sorted(await asked.ledger()) == ["web-3", "web-4", "web-5"]


async def test_unknown_namespaces_leave_nothing_behind() -> None:
    """Reviews of namespaces that do not exist are let through and remembered nowhere."""
    async with field(3, *"abc") as town:
        await town.budget(maxUnavailable=1)
        asked = Asked(town, "enforce")
        clamp = Clamp(asked.gate.budgets_cache, lambda: EPOCH, asked.gate.turns)
        await asyncio.sleep(5)
        known = set(asked.gate.budgets_cache.by_namespace)
        for number in range(100):
            meta = {"name": "x", "namespace": f"other-{number}", "uid": "1"}
            pod, place = {"metadata": meta}, {"namespace": meta["namespace"]}
            for said in ({"object": pod}, {"oldObject": pod}):
                await asked.reviews.eviction(request(name="x", **said, **place))
                await asked.reviews.deletion(request(name="x", **said, **place))
            sizes = [pod | {"spec": {"replicas": size}} for size in (1, 2)]
            await clamp(request(object=sizes[0], oldObject=sizes[1], **place))
        assert set(asked.gate.budgets_cache.by_namespace) == known


async def test_an_eviction_of_another_namespace_is_refused() -> None:
    """The namespace in an Eviction or in a deleted pod has to be that of the request."""
    async with field(3, *"abc") as town:
        await town.budget(maxUnavailable=1)
        asked = Asked(town, "enforce")
        await asyncio.sleep(5)
        body = {"metadata": {"name": "web-1", "namespace": "elsewhere"}}
        for answer in (
            await asked.reviews.eviction(request(name="web-1", object=body)),
            await asked.reviews.deletion(request(name="web-1", oldObject=body)),
        ):
            assert isinstance(answer, Denied)
            assert (answer.code, answer.status) == (400, "BadRequest")
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", **body}
        path = f"/api/v1/namespaces/{NS}/pods/web-1/eviction"
        headers = {"Content-Type": "application/json"}
        with pytest.raises(BadRequest):
            await town.client.raw("POST", path, headers=headers, body=msgspec.json.encode(eviction))
        assert await asked.ledger() == []


async def test_a_refusal_reads_nothing() -> None:
    """A refused eviction is answered from memory: 429, a cause for its budget, no request."""
    async with field(3, *"abc") as town:
        await town.budget(maxUnavailable=0)
        asked = Asked(town, "enforce")
        await asyncio.sleep(5)
        told = "apiserver_request_total"
        before = [one for one in await metrics(town) if told in one and '"pods"' in one]
        answer = await asked.evict("web-1")
        assert isinstance(answer, Denied)
        assert (answer.code, answer.retry_after) == (429, None)
        assert [cause.reason for cause in answer.causes] == ["DisruptionBudget"]
        assert [one for one in await metrics(town) if told in one and '"pods"' in one] == before
        assert (BUSY.code, BUSY.retry_after) == (429, None)


@pytest.mark.parametrize(
    ("stateful", "generate_name", "reads"), [(False, "web-", 0), (False, "", 1), (True, "web-", 1)]
)
async def test_a_pod_is_read_if_its_name_may_be_anothers(
    stateful: bool, generate_name: str, reads: int
) -> None:
    """What is charged to a pod with a drawn name needs no look; StatefulSets' names come back."""
    async with field(0) as town:
        assert town.owner is not None
        spec = {"replicas": 1, "selector": town.owner.spec.selector, "template": TEMPLATE}
        body = {"metadata": {"name": "web", "namespace": NS}, "spec": spec}
        owner = await town.client.create(convert(StatefulSet, body)) if stateful else town.owner
        name = await town.pod("a", owner=owner, generate_name=generate_name)
        await town.budget(minAvailable=0)
        asked = Asked(town, "enforce")
        await asyncio.sleep(5)
        before = await gets(town)
        assert isinstance(await asked.evict(name), Allowed)
        assert await gets(town) == before + reads
        assert await asked.ledger() == [name]


@pytest.mark.parametrize("mode", ["enforce", "observe"])
async def test_who_does_not_know_the_cluster_yet(mode: GateMode) -> None:
    """Before its stores are complete a gate refuses whatever it is asked, with 429; one that only
    observes lets pass, then as when it is too busy.
    """
    async with field(3, *"abc") as town:
        await town.budget(maxUnavailable=1)
        gate = DisruptionGate(Cache(town.client), town.client, lambda: EPOCH)
        reviews = DisruptionReviews(gate, town.client, mode=mode)
        said: dict[str, Any] = {"name": "web-1", "object": {"metadata": {"name": "web-1"}}}
        for answer in (
            await reviews.eviction(request(**said, operation="CREATE")),
            await reviews.deletion(request(name="web-1", operation="DELETE")),
            reviews.instead,
        ):
            if mode == "enforce":
                assert isinstance(answer, Denied)
                assert (answer.code, answer.retry_after) == (429, None)
            else:
                assert isinstance(answer, Allowed)
        assert not await town.client.list(DisruptionLedger, NS)


@pytest.mark.parametrize("mode", ["enforce", "observe"])
async def test_a_clock_that_is_off_grants_nothing(mode: GateMode) -> None:
    """From an answer with a wrong date on, whatever would be judged is refused with 429, also a
    pod that has a grant, and no ledger is written; one that only observes lets pass.
    """
    async with field(9, *"abcabcabc") as town:
        await town.budget(maxUnavailable=1)
        loop = asyncio.get_running_loop()
        clock = ServerClock(lambda: EPOCH + loop.time())
        gate = DisruptionGate(town.cluster.program.cache, town.client, clock.certain)
        clamp = Clamp(gate.budgets_cache, clock.certain, gate.turns)
        asked = Asked(town, mode, gate)
        await asyncio.sleep(5)
        assert isinstance(await asked.evict("web-1"), Allowed)
        before = await asked.ledger()
        moment = EPOCH + loop.time() + 130
        clock.observe(formatdate(moment, usegmt=True), loop.time(), loop.time())
        answers = [await asked.evict(f"web-{number}") for number in range(1, 10)]
        answers.append(await asked.delete("web-4", "replicaset-controller"))
        if mode == "enforce":
            item = await town.client.raw("GET", f"/apis/apps/v1/namespaces/{NS}/replicasets/web")
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
        assert await asked.ledger() == before


async def test_a_controller_manager_without_accounts() -> None:
    """Where all controllers are one user, a pod whose owner is gone or goes is let go."""
    async with field(3, *"abc") as town:
        await town.budget(maxUnavailable=0)
        asked = Asked(town, "enforce")
        await asyncio.sleep(5)
        assert isinstance(await asked.delete("web-1", ALL_IN_ONE), Denied)
        pod = await town.client.get(Pod, "web-1", NS)
        assert pod.metadata.deletion_timestamp is None
        await town.client.delete(ReplicaSet, "web", NS, propagation="Orphan")
        await asyncio.sleep(2)
        assert isinstance(await asked.delete("web-1", ALL_IN_ONE), Allowed)


async def ready(town: Field, name: str, status: str) -> None:
    """A pod becomes Ready, or no longer is."""
    conditions = [{"type": "Ready", "status": status}]
    body = {"status": {"conditions": conditions}}
    await town.client.patch(Pod, name, NS, body, subresource="status")


async def gets(town: Field) -> int:
    """How often a pod was read."""
    told = [one for one in await metrics(town) if 'resource="pods"' in one and 'verb="GET"' in one]
    return sum(int(float(one.split()[-1])) for one in told if "request_total" in one)


async def metrics(town: Field) -> list[str]:
    """What the server counts."""
    return (await town.client.raw("GET", "/metrics")).body.decode().splitlines()
