"""Grants under contention: two replicas over one server, each with its own cache."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from email.utils import formatdate
from typing import Any

import msgspec
import pytest
from msgspec import structs
from tests.disruption.clusters import (
    EXISTS,
    NS,
    deployment,
    per_zone,
    pod,
    spread,
    tdb,
    zones,
)
from tests.embedded.virtual_cluster import EPOCH, VirtualCluster, virtual_cluster
from tests.runtime.memory_server import Answered

from zonewise.api import DisruptionLedger, Namespace, ObjectMeta, Pod, convert
from zonewise.api.errors import Conflict, Status
from zonewise.api.objects.budgets import DisruptionLedgerSpec
from zonewise.disruption.budget import Budget
from zonewise.disruption.budgets_cache import BudgetsCache
from zonewise.disruption.definitions.schemas import resource_definitions
from zonewise.disruption.namespace_budgets import NamespaceBudgets
from zonewise.disruption.verdict import DisruptionVerdict
from zonewise.embedded.seed.seeder import Seeder
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.server_clock import ServerClock
from zonewise.runtime.client.transport import Request, Response, Transport
from zonewise.runtime.process.turns import FairTurns
from zonewise.runtime.webhook.admission import Allowed, Denied, decode
from zonewise.webhook.clamp import Clamp
from zonewise.webhook.disruption_reviews import denied
from zonewise.webhook.grants import GATHER, Grants

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

WRITING = 0.01
OWNERS = deployment(1)
ALL = {"a": 10, "b": 10, "c": 10}


def counted(**spec: Any) -> Budget:
    """A budget that was counted."""
    return tdb(domains=ALL, **per_zone(**spec))


def replica(cluster: VirtualCluster, *budgets: Budget, pods: list[Pod] | None = None) -> Grants:
    """A replica of the webhook that grants, with everything in its cache."""
    budgets_cache = BudgetsCache()
    budgets_cache.by_namespace[NS] = NamespaceBudgets(
        zones("a", "b", "c"),
        budgets=budgets,
        pods=spread(**ALL) if pods is None else pods,
        owners=deployment(30),
    )
    loop = asyncio.get_running_loop()
    return Grants(cluster.client, budgets_cache, lambda: EPOCH + loop.time())


@asynccontextmanager
async def ground() -> AsyncIterator[VirtualCluster]:
    """A server with ledgers."""
    async with virtual_cluster({}) as cluster:
        seeder = Seeder(cluster.client, cluster.server.registry)
        await seeder.create(resource_definitions())
        await cluster.client.create(Namespace(metadata=ObjectMeta(name=NS)))
        while cluster.server.registry.by_kind("zonewise.io/v1alpha1", "DisruptionLedger") is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        yield cluster


async def test_two_replicas_grant_exactly_what_is_allowed() -> None:
    """Thirty concurrent requests to each of two replicas give three grants, and few writes."""
    async with ground() as cluster:
        replicas = [replica(cluster, counted(maxUnavailable=1)) for _ in range(2)]
        questions = [who.ask(item, evicting=True) for item in spread(**ALL) for who in replicas]
        verdicts = await asyncio.gather(*questions)
        granted = Counter(
            item.metadata.name
            for item, pair in zip(
                spread(**ALL), zip(verdicts[::2], verdicts[1::2], strict=True), strict=True
            )
            for verdict in pair
            if verdict.allowed
        )
        assert len(granted) == 3
        ledger = await cluster.client.get(DisruptionLedger, "zonewise", NS)
        assert {grant.pod for grant in ledger.spec.grants} == set(granted)
        assert sum(who.writes for who in replicas) <= 3


class DatedTransport:
    """A transport to a server that sends its time, as every real one does."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def send(self, request: Request) -> Response:
        """Send a request."""
        response = await self._transport.send(request)
        moment = EPOCH + asyncio.get_running_loop().time()
        headers = {**response.headers, "Date": formatdate(moment, usegmt=True)}
        return Answered(response.status, await response.read(), headers)

    async def close(self) -> None:
        """Nothing is open."""


async def test_replicas_whose_clocks_differ_grant_what_is_allowed() -> None:
    """Clocks that are 400 s apart change nothing, because grants have the server's time: nine pods
    in three zones, one each, however the requests are spread over time and replicas.
    """
    async with ground() as cluster:
        loop = asyncio.get_running_loop()
        replicas = []
        for wrong in (-200, 200):
            who = replica(cluster, counted(maxUnavailable=1))
            wall = ServerClock(lambda wrong=wrong: EPOCH + loop.time() + wrong)  # type: ignore[misc]
            who._client = Client(DatedTransport(cluster.client.transport), clock=wall)
            await who._client.list(Namespace)
            who._clock = who._client.clock.now
            replicas.append(who)
        granted = set()
        for item in spread(a=3, b=3, c=3):
            for who in replicas:
                if (await who.ask(item, evicting=True)).allowed:
                    granted.add(item.metadata.name)
                await asyncio.sleep(1)
        assert len(granted) == 3


async def test_a_burst_is_few_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions that come while others wait are written with them; a single one does not wait."""
    async with ground() as cluster:
        who = replica(cluster, counted(maxUnavailable=10))
        pods, loop, write = spread(**ALL), asyncio.get_running_loop(), who._write

        async def slow(*given: Any) -> None:
            await asyncio.sleep(WRITING)
            await write(*given)

        async def ask(at: float, item: Pod) -> bool:
            await asyncio.sleep(at)
            return (await who.ask(item, evicting=True)).allowed

        monkeypatch.setattr(who, "_write", slow)
        began = loop.time()
        assert await ask(0, pods[0])
        assert loop.time() - began == pytest.approx(WRITING)
        burst = [ask(GATHER * number / len(pods), item) for number, item in enumerate(pods[1:])]
        assert all(await asyncio.gather(*burst))
        assert who.writes == 1 + 2


async def test_a_busy_namespace_does_not_delay_others() -> None:
    """A quiet namespace's answer is among the first, though thirty requests came before its own.
    Those are about pods under a hundred budgets, of which none shares a count.
    """
    async with ground() as cluster:
        labels = {f"l{number}": "x" for number in range(100)}
        loud = [pod(f"p{number}", "n-a", labels=labels) for number in range(30)]
        budgets = [
            tdb(
                f"b{number}",
                domains={"a": 30},
                **per_zone(maxUnavailable=0),
                selector={"matchLabels": {f"l{number}": "x"}},
            )
            for number in range(100)
        ]
        who = replica(cluster, *budgets, pods=loud)
        (calm,) = spread(a=1)
        calm = structs.replace(calm, metadata=structs.replace(calm.metadata, namespace="calm"))
        who._budgets_cache.by_namespace["calm"] = NamespaceBudgets(
            zones("a"),
            budgets=[replace(counted(maxUnavailable=0), namespace="calm")],
            pods=[calm],
            owners=[replace(each, key=(*each.key[:2], "calm", each.key[3])) for each in OWNERS],
        )
        order: list[str] = []

        async def ask(item: Pod) -> None:
            assert not (await who.ask(item, evicting=True)).allowed
            order.append(item.metadata.namespace)

        await asyncio.gather(*(ask(item) for item in (*loud, calm)))
        assert len(order) == 31
        assert order.index("calm") < 5


async def test_a_batch_is_written_on_the_ledger_it_was_judged_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A grant of another replica that arrives while a batch is judged is not lost."""
    async with ground() as cluster:
        grants = replica(cluster, counted(maxUnavailable=1))
        other = replica(cluster, counted(maxUnavailable=1))
        first, second = spread(a=2)
        judge = grants._judge
        turns = 0

        async def judged(*given: Any) -> DisruptionVerdict:
            nonlocal turns
            verdict = await judge(*given)
            turns += 1
            if turns == 2:  # the first turn only finds out whether a grant is needed
                assert (await other.ask(second, evicting=True)).allowed
                ledger = await cluster.client.get(DisruptionLedger, "zonewise", NS)
                grants._budgets_cache.ledger_changed(None, ledger)
            return verdict

        monkeypatch.setattr(grants, "_judge", judged)
        assert not (await grants.ask(first, evicting=True)).allowed
        ledger = await cluster.client.get(DisruptionLedger, "zonewise", NS)
        assert [grant.pod for grant in ledger.spec.grants] == [second.metadata.name]


async def test_a_refusal_costs_no_request() -> None:
    """Nothing is written for a refused pod or for a dry run."""
    async with ground() as cluster:
        who = replica(cluster, counted(maxUnavailable=0))
        assert not (await who.ask(spread(a=1)[0], evicting=True)).allowed
        dry = replica(cluster, counted(maxUnavailable=1))
        assert (await dry.ask(spread(a=1)[0], evicting=True, dry_run=True)).allowed
        assert who.writes == dry.writes == 0


async def test_asking_again_is_the_same_grant() -> None:
    """A second question about a pod is answered with the existing grant."""
    async with ground() as cluster:
        who = replica(cluster, counted(maxUnavailable=1))
        first, second = [await who.ask(spread(a=1)[0], evicting=True) for _ in range(2)]
        assert (first.reason.code, second.reason.code) == ("Allowed", "Granted")
        assert who.writes == 1


async def test_a_ledger_that_cannot_be_written_grants_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request whose write always conflicts is refused in the end."""
    async with ground() as cluster:
        who = replica(cluster, counted(maxUnavailable=1))

        async def lost(*_: Any) -> None:
            raise Conflict(Status(message="changed meanwhile", code=409))

        monkeypatch.setattr(who, "_write", lost)
        verdict = await who.ask(spread(a=1)[0], evicting=True)
        assert not verdict.allowed
        assert "could not be written" in verdict.reason.message


async def test_a_budget_that_was_never_counted_grants_nothing() -> None:
    """Until its baseline is written requests are refused."""
    async with ground() as cluster:
        who = replica(cluster, tdb(**per_zone(maxUnavailable=1)))
        verdict = await who.ask(spread(a=1)[0], evicting=True)
        assert "still being processed" in verdict.reason.message


async def test_deleted_budgets_are_removed_from_the_ledger() -> None:
    """What was judged by a budget that is deleted is left out of the next write; what was judged by
    one that exists stays, even if this replica does not know it yet.
    """
    async with ground() as cluster:
        known = counted(maxUnavailable=1)
        who = replica(cluster, known)
        budget = {
            "apiVersion": "zonewise.io/v1alpha1",
            "kind": "TopologyDisruptionBudget",
            "metadata": {"name": "new", "namespace": NS},
            "spec": {"maxUnavailable": 1, "selector": {}},
        }
        await Seeder(cluster.client, cluster.server.registry).create([budget])
        kind = "TopologyDisruptionBudget"
        old = {f"{kind}/{name}": "7" for name in ("new", "deleted", "no/name")}
        await cluster.client.create(
            DisruptionLedger(
                metadata=ObjectMeta(name="zonewise", namespace=NS),
                spec=DisruptionLedgerSpec(judged=old | {"PodDisruptionBudget/deleted": "8"}),
            )
        )
        first, second = [await who.ask(item, evicting=True) for item in spread(a=1, b=1)]
        assert first.allowed and second.allowed
        ledger = await cluster.client.get(DisruptionLedger, "zonewise", NS)
        assert set(ledger.spec.judged) - {f"{kind}/{known.name}"} == {f"{kind}/new"}


def judge_pod(namespace_budgets: NamespaceBudgets, name: str) -> DisruptionVerdict:
    """The verdict on a pod."""
    item = namespace_budgets.find_pod(name)
    assert item is not None
    return namespace_budgets.judge(item, EPOCH)


async def test_a_refusal_names_every_blocker() -> None:
    """A refusal is 429 with a cause for each budget, and without Retry-After."""
    budgets = [tdb("one", **per_zone(maxUnavailable=0)), tdb("two", maxUnavailable=0)]
    namespace_budgets = NamespaceBudgets(
        zones("a", "b", "c"), budgets=budgets, pods=spread(**ALL), owners=deployment(30)
    )
    answer = denied(judge_pod(namespace_budgets, "a-0"))
    assert isinstance(answer, Denied)
    assert (answer.code, answer.status, answer.retry_after) == (429, "TooManyRequests", None)
    assert [cause.reason for cause in answer.causes] == ["DisruptionBudget"] * 2


def shrinking(before: int, after: int) -> Any:
    """A Deployment's controller scales its ReplicaSet down."""
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "controller": True}

    def item(replicas: int) -> dict[str, Any]:
        meta = {"name": "web-1", "namespace": NS, "uid": "uid-web-1", "ownerReferences": [owner]}
        return {"metadata": meta, "spec": {"replicas": replicas}}

    return decode(
        msgspec.json.encode(
            {
                "apiVersion": "admission.k8s.io/v1",
                "kind": "AdmissionReview",
                "request": {
                    "uid": "1",
                    "namespace": NS,
                    "operation": "UPDATE",
                    "object": item(after),
                    "oldObject": item(before),
                },
            }
        )
    )


@pytest.mark.parametrize(
    ("marked", "unready", "size"), [(0, 0, 9), (2, 0, 8), (0, 1, 8), (9, 0, 8)]
)
async def test_the_clamp(marked: int, unready: int, size: int) -> None:
    """A ReplicaSet is scaled down only by marked pods that may go, and by unready ones."""
    cost = {"controller.kubernetes.io/pod-deletion-cost": "-1000000"}
    pods = []
    for number in range(9):
        item = pod(f"p{number}", "n-a", ready=number >= unready)
        if number < marked:
            meta = {"name": f"p{number}", "namespace": NS, "uid": f"uid-p{number}"}
            item = convert(
                Pod,
                {
                    "metadata": {
                        **meta,
                        "labels": {"app": "web"},
                        "annotations": cost,
                        "ownerReferences": [
                            {
                                "apiVersion": "apps/v1",
                                "kind": "ReplicaSet",
                                "name": "web-1",
                                "uid": "uid-web-1",
                                "controller": True,
                            }
                        ],
                    },
                    "spec": {"nodeName": "n-a"},
                    "status": {
                        "phase": "Running",
                        "conditions": [{"type": "Ready", "status": "True"}],
                    },
                },
            )
        pods.append(item)
    budgets_cache = BudgetsCache()
    budget = tdb(domains={"a": 9}, **per_zone(term=(EXISTS,), maxUnavailable=1))
    budgets_cache.by_namespace[NS] = NamespaceBudgets(
        zones("a"), budgets=[budget], pods=pods, owners=deployment(9)
    )
    now = EPOCH
    clamp = Clamp(budgets_cache, lambda: now, FairTurns())
    if marked:
        early = await clamp(shrinking(9, 4))
        assert isinstance(early, Allowed)
        assert early.patch[-1]["value"] == 9, "a fresh mark does not count"
        now += 2
    answer = await clamp(shrinking(9, 4))
    assert isinstance(answer, Allowed)
    patch = {step["path"].rpartition("/")[2]: step["value"] for step in answer.patch}
    assert patch["replicas"] == size
    assert patch["zonewise.io~1reduce-to".rpartition("/")[2]] == "4"
