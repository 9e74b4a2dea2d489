"""The rights that come with ``--budgets enforce`` are enough, and not one of them is idle.

Budgets are counted, granted from and woken, a held ReplicaSet is made smaller, and a StatefulSet is
rolled out to its end, all under the installed service account. Nobody but the test moves pods.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.controllers.budgets.budgeted import NS, Field
from tests.embedded.virtual_cluster import EPOCH, VirtualCluster, virtual_cluster
from tests.install.test_rights import ACCOUNT, Watched, installed, without
from tests.webhook.test_gate import request

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
from zonewise.api.objects.apps import ReplicationController
from zonewise.api.values import times
from zonewise.apiserver.http.local_transport import LocalTransport
from zonewise.components.workloads.jobs.views import Job
from zonewise.controllers.budgets import BudgetsController
from zonewise.controllers.rollouts import RolloutsController
from zonewise.install import Installation, Obj, manifests
from zonewise.install.rights import _budgets
from zonewise.install.wanted import NAME
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.watch import WatchOptions
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.controller.controller import run_all
from zonewise.runtime.controller.recorder import Recorder
from zonewise.webhook import DisruptionGate

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

WANTED = Installation(budgets="enforce")


def each_verb() -> Iterator[tuple[int, str, str]]:
    """Every right that budgets add: number of the rule, resource, verb."""
    for number, rule in enumerate(_budgets(WANTED)):
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                yield number, resource, verb


async def rolled(town: Field) -> None:
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
    made = await town.client.create(convert(StatefulSet, body))
    status = {"observedGeneration": 1, "currentRevision": "1", "updateRevision": "2", "replicas": 1}
    await town.client.patch(StatefulSet, "db", NS, {"status": status}, subresource="status")
    await database(town, made.metadata.uid, "1")
    reference = {"kind": "StatefulSet", "name": "db"}
    rollout = {
        "metadata": {"name": "db", "namespace": NS},
        "spec": {"workloadRef": reference},
    }
    await town.client.create(convert(DomainRollout, rollout))


async def database(town: Field, owner: str, revision: str) -> None:
    """Its pod."""
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
    await town.client.create(convert(Pod, {"metadata": meta, "spec": spec}))
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await town.client.patch(Pod, "db-0", NS, {"status": ready}, subresource="status")


async def unwatched(town: Field) -> list[Object]:
    """Owners of pods that budgets read only where there are such pods."""
    meta = {"name": "old", "namespace": NS}
    labels = {"labels": {"app": "web"}}
    pods = {"containers": [{"name": "c", "image": "c"}]}
    once = {"template": {"spec": {**pods, "restartPolicy": "Never"}}}
    kept = {
        "replicas": 1,
        "selector": labels["labels"],
        "template": {"metadata": labels, "spec": pods},
    }
    return [
        await town.client.create(convert(Job, {"metadata": meta, "spec": once})),
        await town.client.create(convert(ReplicationController, {"metadata": meta, "spec": kept})),
        await town.client.get(Node, "n-a"),
    ]


async def life(cluster: VirtualCluster, transport: Watched) -> None:
    """Everything budgets and rollouts ever do."""
    loop, rng = asyncio.get_running_loop(), random.Random(3)

    def clock() -> float:
        return EPOCH + loop.time()

    client = Client(transport, field_manager=NAME)
    cache = Cache(client, options=WatchOptions(watch_list=False))
    now = lambda: times.from_epoch(clock())  # noqa: E731
    recorder = Recorder(client, controller=NAME, instance=NAME, now=now, rng=rng)
    context = ComponentContext(client=client, cache=cache, recorder=recorder, clock=clock, rng=rng)
    budgets = BudgetsController(context)
    rollouts = RolloutsController(context, budgets_cache=budgets.budgets_cache)
    gate = DisruptionGate(cache, client, clock)
    town = Field(cluster)
    await town.build(3)
    for zone in "aabbcc":
        await town.pod(zone)
    work = asyncio.create_task(run_all(cache.run(), recorder.run(), budgets.run(), rollouts.run()))
    try:
        await town.budget(minAvailable=2)
        await asyncio.sleep(5)
        await town.edit(minAvailable=1)
        await asyncio.sleep(5)
        namespace_budgets = gate.budgets_cache.of(NS)
        for name in ("web-1", "web-3"):
            said = {"metadata": {"name": name, "namespace": NS}}
            with suppress(ZonewiseError):
                await gate.eviction(request(name=name, operation="CREATE", object=said))
            # Somebody else writes the ledger, and the next grant is late to know.
            known = namespace_budgets.ledger
            for ledger in await town.client.list(DisruptionLedger, NS):
                mark = {"metadata": {"annotations": {"seen": name}}}
                await town.client.patch(DisruptionLedger, ledger.metadata.name, NS, mark)
            await asyncio.sleep(1)
            namespace_budgets.ledger = known
        await town.edit(minAvailable=0)
        wish = {"metadata": {"annotations": {"zonewise.io/reduce-to": "1"}}}
        await town.client.patch(ReplicaSet, "web", NS, wish)
        await rolled(town)
        await asyncio.sleep(10)
        await town.gone("db-0")
        group = await town.client.get(StatefulSet, "db", NS)
        await database(town, group.metadata.uid, "2")
        await asyncio.sleep(10)
        for owner in await unwatched(town):
            await town.pod("a", owner=owner)
        await asyncio.sleep(10)
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def test_what_is_printed_is_enough() -> None:
    """Under the printed roles nothing is refused, and everything was done."""
    async with virtual_cluster({}) as cluster:
        await installed(cluster, manifests(WANTED))
        transport = Watched(LocalTransport(cluster.server.handle, ACCOUNT))
        await life(cluster, transport)
        assert transport.refused == []
        (ledger,) = await cluster.client.list(DisruptionLedger, NS)
        assert {grant.pod for grant in ledger.spec.grants} == {"web-1", "web-3"}
        assert (await cluster.client.get(ReplicaSet, "web", NS)).spec.replicas == 1
        rollout = await cluster.client.get(DomainRollout, "db", NS)
        assert rollout.status.reason == "UpToDate"
        budgets = await cluster.client.list(TopologyDisruptionBudget, NS)
        assert {one.metadata.name: one.status.conditions[0].reason for one in budgets} == {
            "db-rollout": "InsufficientPods",
            "web": "SufficientPods",
        }
        group = await cluster.client.get(StatefulSet, "db", NS)
        assert group.status.current_revision == "2"


@pytest.mark.parametrize(("number", "resource", "verb"), list(each_verb()))
async def test_one_verb_less_fails(number: int, resource: str, verb: str) -> None:
    """Whichever verb is taken from them, something that budgets or rollouts do is refused."""
    async with virtual_cluster({}) as cluster:
        less = without(manifests(WANTED), "ClusterRole", number, resource, verb)
        await installed(cluster, less)
        transport = Watched(LocalTransport(cluster.server.handle, ACCOUNT))
        work = asyncio.create_task(life(cluster, transport))
        refused = asyncio.create_task(transport.first.wait())
        await asyncio.wait([work, refused], return_when=asyncio.FIRST_COMPLETED)
        for task in (work, refused):
            task.cancel()
        await asyncio.gather(work, refused, return_exceptions=True)
        assert transport.refused
        assert all(resource.partition("/")[0] in path for path in transport.refused)
