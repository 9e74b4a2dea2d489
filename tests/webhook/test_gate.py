"""The gate's answers: observing refuses nothing, dry runs write nothing, refusals cost nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest
from tests.controllers.budgets.budgeted import LABELS, NS, Field, field
from tests.embedded.virtual_cluster import EPOCH

from zonewise.api import DisruptionLedger, Pod, ReplicaSet, StatefulSet, convert
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.webhook.admission import (
    AdmissionAnswer,
    AdmissionRequest,
    Allowed,
    Denied,
    decode,
)
from zonewise.webhook.gate import ALL_IN_ONE, AUDIT, BUSY, DisruptionGate, GateMode

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


TEMPLATE = {
    "metadata": {"labels": LABELS},
    "spec": {"containers": [{"name": "c", "image": "c"}]},
}


class Asked:
    """A gate over the field's server, and what it counted."""

    def __init__(self, town: Field, mode: GateMode) -> None:
        self.verdicts: Counter[tuple[str, bool]] = Counter()
        loop = asyncio.get_running_loop()
        self.town = town
        self.gate = DisruptionGate(
            town.cluster.components.cache,
            town.client,
            lambda: EPOCH + loop.time(),
            mode=mode,
            observe=lambda code, charged: self.verdicts.update([(code, charged)]),
        )

    async def evict(self, name: str, *, dry_run: str = "") -> AdmissionAnswer:
        """Somebody wants to evict a pod; a dry run is said in the query or in the body."""
        eviction: dict[str, Any] = {"metadata": {"name": name, "namespace": NS}}
        if dry_run == "body":
            eviction["deleteOptions"] = {"dryRun": ["All"]}
        said = {"name": name, "operation": "CREATE", "object": eviction}
        return await self.gate.eviction(request(**said, dryRun=dry_run == "query"))

    async def delete(self, name: str, user: str) -> AdmissionAnswer:
        """A controller wants to delete a pod."""
        path = f"/api/v1/namespaces/{NS}/pods/{name}"
        pod = (await self.town.client.raw("GET", path)).json()
        said = {"name": name, "operation": "DELETE", "oldObject": pod}
        return await self.gate.deletion(request(**said, userInfo={"username": user}))

    async def ledger(self) -> list[str]:
        """The pods that were granted."""
        found = await self.town.client.list(DisruptionLedger, NS)
        return [grant.pod for ledger in found for grant in ledger.spec.grants]


def request(**said: Any) -> AdmissionRequest:
    """What an API server sends."""
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "1", "namespace": NS, **said},
    }
    return decode(msgspec.json.encode(review))


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


@pytest.mark.parametrize("said", ["query", "body"])
async def test_a_dry_run_writes_nothing(said: str) -> None:
    """Said in the query or in the body alone, the answer is the same and no grant is written."""
    async with field(3, *"abc") as town:
        await town.budget(maxUnavailable=1)
        asked = Asked(town, "enforce")
        await asyncio.sleep(5)
        assert isinstance(await asked.evict("web-1", dry_run=said), Allowed)
        assert await asked.ledger() == []
        assert isinstance(await asked.evict("web-1"), Allowed)
        assert await asked.ledger() == ["web-1"]


async def test_what_a_deletion_brings_is_counted_before_the_watch_tells_it() -> None:
    """A pod that lost its readiness goes freely, and is not healthy for the next one's sake; news
    from before that change nothing, later ones do.
    """
    async with field(3, *"aaa") as town:
        await town.budget(maxUnavailable=1)
        asked = Asked(town, "enforce")
        await asyncio.sleep(5)
        pod = (await town.client.raw("GET", f"/api/v1/namespaces/{NS}/pods/web-1")).json()
        version = int(pod["metadata"]["resourceVersion"])
        known, later = (
            convert(Pod, pod | {"metadata": pod["metadata"] | {"resourceVersion": str(at)}})
            for at in (version, version + 1001)
        )
        for condition in pod["status"]["conditions"]:
            condition["status"] = "False"
        pod["metadata"]["resourceVersion"] = str(version + 1000)
        said = {"name": "web-1", "operation": "DELETE", "oldObject": pod}
        user = {"username": "replicaset-controller"}
        assert isinstance(await asked.gate.deletion(request(**said, userInfo=user)), Allowed)
        asked.gate.budgets_cache.pod_changed(known, known)
        assert isinstance(await asked.delete("web-2", "replicaset-controller"), Denied)
        asked.gate.budgets_cache.pod_changed(known, later)
        assert isinstance(await asked.delete("web-2", "replicaset-controller"), Allowed)


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
        gate = DisruptionGate(Cache(town.client), town.client, lambda: EPOCH, mode=mode)
        said: dict[str, Any] = {"name": "web-1", "object": {"metadata": {"name": "web-1"}}}
        for answer in (
            await gate.eviction(request(**said, operation="CREATE")),
            await gate.deletion(request(name="web-1", operation="DELETE")),
            gate.instead,
        ):
            if mode == "enforce":
                assert isinstance(answer, Denied)
                assert (answer.code, answer.retry_after) == (429, None)
            else:
                assert isinstance(answer, Allowed)
        assert not await town.client.list(DisruptionLedger, NS)


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


async def gets(town: Field) -> int:
    """How often a pod was read."""
    told = [one for one in await metrics(town) if 'resource="pods"' in one and 'verb="GET"' in one]
    return sum(int(float(one.split()[-1])) for one in told if "request_total" in one)


async def metrics(town: Field) -> list[str]:
    """What the server counts."""
    return (await town.client.raw("GET", "/metrics")).body.decode().splitlines()
