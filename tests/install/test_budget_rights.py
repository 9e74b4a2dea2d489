"""The rights that come with ``--budgets enforce`` are enough, and each of them is needed.

Budgets are counted, grants are written, workloads are woken, a held ReplicaSet is made smaller, and
a StatefulSet is rolled out to its end, all under the installed service accounts and the printed
policies. Only the test moves pods.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.controllers.budgets.budget_scene import NS, BudgetScene
from tests.embedded.virtual_cluster import EPOCH, VirtualCluster, virtual_cluster
from tests.install.accounts import Accounts, Verb, install, list_verbs, until_refused, without
from tests.webhook.gate_caller import request

from zonewise.api import (
    DisruptionLedger,
    DomainRollout,
    Node,
    Object,
    Pod,
    ReplicaSet,
    StatefulSet,
    TopologyDisruptionBudget,
    convert,
)
from zonewise.api.errors import ZonewiseError
from zonewise.api.objects.admissionregistration import (
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
)
from zonewise.api.objects.apps import ReplicationController
from zonewise.api.values import times
from zonewise.controllers.budgets.controller import PRUNE_PAUSE, BudgetsController
from zonewise.controllers.rollouts.controller import RolloutsController
from zonewise.disruption.ledger import GRANT_SECONDS
from zonewise.embedded.components.workloads.jobs.objects import Job
from zonewise.install.installation import NAME, WEBHOOK, Installation, Obj
from zonewise.install.manifests import render_manifests
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.client.watch import WatchOptions
from zonewise.runtime.controller.controller import run_all
from zonewise.runtime.controller.recorder import Recorder
from zonewise.runtime.program.context import ControllerContext
from zonewise.runtime.webhook.certificates import Certificates
from zonewise.webhook.disruption_reviews import DisruptionReviews
from zonewise.webhook.gate import DisruptionGate
from zonewise.webhook.replacements import ReplacementHold

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

ENFORCING = Installation(budgets="enforce")


def of_budgets() -> Iterator[Verb]:
    """Every verb that budgets add."""
    plain = {(less.account, less.resource, less.verb) for less in list_verbs(Installation())} | {
        (NAME, "namespaces", "watch")
    }
    for less in list_verbs(ENFORCING):
        if (less.account, less.resource, less.verb) not in plain:
            yield less


async def roll_out(scene: BudgetScene) -> None:
    """A StatefulSet whose only pod is outdated, and its rollout."""
    template = {
        "metadata": {"labels": {"app": "db"}},
        "spec": {"containers": [{"name": "c", "image": "c"}]},
    }
    body: Obj = {
        "metadata": {"name": "db", "namespace": NS},
        "spec": {
            "replicas": 1,
            "serviceName": "db",
            "selector": {"matchLabels": {"app": "db"}},
            "updateStrategy": {"type": "OnDelete"},
            "template": template,
        },
    }
    stateful_set = await scene.client.create(convert(StatefulSet, body))
    status = {"observedGeneration": 1, "currentRevision": "1", "updateRevision": "2", "replicas": 1}
    await scene.client.patch(StatefulSet, "db", NS, {"status": status}, subresource="status")
    await create_pod(scene, stateful_set.metadata.uid, "1")
    reference = {"kind": "StatefulSet", "name": "db"}
    rollout = {"metadata": {"name": "db", "namespace": NS}, "spec": {"workloadRef": reference}}
    await scene.client.create(convert(DomainRollout, rollout))


async def create_pod(scene: BudgetScene, owner: str, revision: str) -> None:
    """The pod of the StatefulSet."""
    controller = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "name": "db",
        "uid": owner,
        "controller": True,
    }
    meta = {
        "name": "db-0",
        "namespace": NS,
        "labels": {"app": "db", "controller-revision-hash": revision},
        "ownerReferences": [controller],
    }
    spec = {"nodeName": "n-a", "containers": [{"name": "c", "image": "c"}]}
    await scene.client.create(convert(Pod, {"metadata": meta, "spec": spec}))
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await scene.client.patch(Pod, "db-0", NS, {"status": ready}, subresource="status")


async def create_unwatched(scene: BudgetScene) -> list[Object]:
    """Owners of pods that budgets read only where there are such pods."""
    meta = {"name": "old", "namespace": NS}
    labels = {"labels": {"app": "web"}}
    pods = {"containers": [{"name": "c", "image": "c"}]}
    once = {"template": {"spec": {**pods, "restartPolicy": "Never"}}}
    replicated = {
        "replicas": 1,
        "selector": labels["labels"],
        "template": {"metadata": labels, "spec": pods},
    }
    return [
        await scene.client.create(convert(Job, {"metadata": meta, "spec": once})),
        await scene.client.create(
            convert(ReplicationController, {"metadata": meta, "spec": replicated})
        ),
        await scene.client.get(Node, "n-a"),
    ]


async def life(cluster: VirtualCluster, accounts: Accounts) -> set[str]:
    """Everything budgets and rollouts do; returns the granted pods."""
    loop, rng = asyncio.get_running_loop(), random.Random(3)

    def clock() -> float:
        return EPOCH + loop.time()

    client = accounts.controller
    cache, webhook_cache = (
        Cache(account, options=WatchOptions(watch_list=False))
        for account in (client, accounts.webhook)
    )
    now = lambda: times.from_epoch(clock())  # noqa: E731
    recorder = Recorder(client, controller=NAME, instance=NAME, now=now, rng=rng)
    context = ControllerContext(client=client, cache=cache, recorder=recorder, clock=clock, rng=rng)
    budgets = BudgetsController(context)
    rollouts = RolloutsController(context, budgets_cache=budgets.budgets_cache)
    gate = DisruptionGate(webhook_cache, accounts.webhook, clock)
    reviews = DisruptionReviews(gate, accounts.webhook)
    ReplacementHold(webhook_cache, gate.budgets_cache)
    scene = BudgetScene(cluster)
    await scene.build(3)
    for zone in "aabbcc":
        await scene.pod(zone)
    certificates = Certificates(
        accounts.webhook,
        secret=WEBHOOK,
        namespace=NAME,
        hosts=["localhost"],
        configurations=[
            (ValidatingWebhookConfiguration, NAME),
            (MutatingWebhookConfiguration, NAME),
        ],
        serve=lambda certificate, key: None,
        rng=rng,
    )
    parts = (cache, webhook_cache, recorder, budgets, rollouts, certificates)
    work = asyncio.create_task(run_all(*(part.run() for part in parts)))
    try:
        await scene.budget(minAvailable=2)
        await asyncio.sleep(5)
        await scene.edit(minAvailable=1)
        await asyncio.sleep(5)
        namespace_budgets = gate.budgets_cache.get_or_create(NS)
        for name in ("web-1", "web-3"):
            eviction = {"metadata": {"name": name, "namespace": NS}}
            with suppress(ZonewiseError):
                await reviews.eviction(request(name=name, operation="CREATE", object=eviction))
            # Another client writes the ledger, and the next grant does not see it yet.
            known = namespace_budgets.ledger
            for ledger in await scene.client.list(DisruptionLedger, NS):
                mark = {"metadata": {"annotations": {"seen": name}}}
                await scene.client.patch(DisruptionLedger, ledger.metadata.name, NS, mark)
            await asyncio.sleep(1)
            namespace_budgets.ledger = known
        await scene.edit(minAvailable=0)
        reduction = {"metadata": {"annotations": {"zonewise.io/reduce-to": "1"}}}
        await scene.client.patch(ReplicaSet, "web", NS, reduction)
        await roll_out(scene)
        await asyncio.sleep(10)
        await scene.remove_pod("db-0")
        group = await scene.client.get(StatefulSet, "db", NS)
        await create_pod(scene, group.metadata.uid, "2")
        await asyncio.sleep(10)
        ledgers = await scene.client.list(DisruptionLedger, NS)
        granted = {grant.pod for ledger in ledgers for grant in ledger.spec.grants}
        for owner in await create_unwatched(scene):
            await scene.pod("a", owner=owner)
        await asyncio.sleep(10)
        with suppress(ZonewiseError):
            await reviews.eviction(
                request(name="web-1", operation="CREATE", object={}, dryRun=True)
            )
        await asyncio.sleep(GRANT_SECONDS + PRUNE_PAUSE)
        return granted
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def test_what_is_printed_is_enough() -> None:
    """With the printed roles nothing is refused, and everything was done."""
    async with virtual_cluster({}) as cluster:
        await install(cluster, render_manifests(ENFORCING))
        accounts = Accounts.of(cluster)
        granted = await life(cluster, accounts)
        assert accounts.refusals.refused == []
        assert granted == {"web-1", "web-3"}
        (ledger,) = await cluster.client.list(DisruptionLedger, NS)
        assert ledger.spec.grants == ()
        assert (await cluster.client.get(ReplicaSet, "web", NS)).spec.replicas == 1
        rollout = await cluster.client.get(DomainRollout, "db", NS)
        assert rollout.status.reason == "UpToDate"
        budgets = await cluster.client.list(TopologyDisruptionBudget, NS)
        assert {budget.metadata.name: budget.status.conditions[0].reason for budget in budgets} == {
            "db-rollout": "InsufficientPods",
            "db-rollout-limit": "SufficientPods",
            "web": "SufficientPods",
        }
        group = await cluster.client.get(StatefulSet, "db", NS)
        assert group.status.current_revision == "2"


@pytest.mark.parametrize("less", list(of_budgets()), ids=str)
async def test_one_verb_less_fails(less: Verb) -> None:
    """Without any single verb, something that budgets or rollouts do is refused."""
    async with virtual_cluster({}) as cluster:
        await install(cluster, without(render_manifests(ENFORCING), less))
        accounts = Accounts.of(cluster)
        await until_refused(life(cluster, accounts), accounts.refusals)
        refused = accounts.refusals.refused
        assert refused
        assert all(less.resource.partition("/")[0] in path for path in refused)
