"""Rollouts by domain on a whole embedded cluster: each kind, pauses, rollbacks, restarts."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.controllers.rollouts.rollout_scene import (
    Obj,
    Zones,
    begin,
    complete,
    finish,
    get_rollout,
    rollout,
    state,
    until,
    update,
    workload,
)
from tests.embedded.virtual_cluster import until as true
from tests.embedded.whole_cluster import settled, whole

from zonewise.api import Node, Pod, StatefulSet, TopologyDisruptionBudget
from zonewise.api.errors import Invalid
from zonewise.api.objects.budgets import DomainRollout
from zonewise.api.objects.events import Event
from zonewise.api.unstructured import unstructured
from zonewise.embedded.cluster import EmbeddedCluster
from zonewise.embedded.components.kubelet.node_status import FAILED_ANNOTATION
from zonewise.embedded.seed.nodes import NodeLayout

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

ON_DELETE = {"type": "OnDelete"}
ORDER = {"order": {"domains": ["b", "c", "a"]}}
NO_SURGE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 3}}


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        ("StatefulSet", ON_DELETE),
        ("StatefulSet", None),
        ("Deployment", NO_SURGE),
        ("Deployment", None),
        ("DaemonSet", ON_DELETE),
        ("DaemonSet", {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}}),
    ],
)
async def test_one_zone_after_the_other(kind: str, strategy: Obj | None) -> None:
    """Every pod is replaced, zone by zone in the requested order, and never two zones at once."""
    async with whole([*NodeLayout().nodes(), workload(kind, strategy=strategy)]) as cluster:
        zones = await begin(cluster, kind, **ORDER)
        await update(cluster, kind)
        item = await finish(cluster)
        assert zones.order == ["b", "c", "a"]
        assert not zones.together
        assert item.status.progress == "3/3"
        assert {row.state for row in item.status.domains} == {"Done"}


async def test_an_ondelete_statefulset_gets_its_revision() -> None:
    """Evictions are as many as pods, and at the end the new revision is the current one."""
    async with whole(
        [*NodeLayout().nodes(), workload("StatefulSet", strategy=ON_DELETE)]
    ) as cluster:
        zones = await begin(cluster, "StatefulSet")
        await update(cluster, "StatefulSet")
        await finish(cluster)
        await asyncio.sleep(5)
        group = await cluster.client.get(StatefulSet, "foo", "default")
        assert group.status.current_revision == group.status.update_revision
        lines = (await cluster.client.raw("GET", "/metrics")).body.decode().splitlines()
        sent = [line for line in lines if 'subresource="eviction"' in line]
        assert [line.rpartition(" ")[2] for line in sent] == ["6.0"]
        assert zones.most == 6


async def test_a_budget_of_the_rollout_leaves_drains_alone() -> None:
    """Without a rollout in progress every zone may be drained; during one, old pods of a closed
    zone stay.
    """
    async with whole([*NodeLayout().nodes(), workload("Deployment", strategy=NO_SURGE)]) as cluster:
        await begin(cluster, "Deployment", **ORDER)
        pods = await cluster.client.list(Pod, "default")
        for zone in "abc":
            victim = next(pod for pod in pods if pod.spec.node_name.startswith(zone))
            await cluster.client.evict(victim.metadata.name, "default")
        budget = await cluster.client.get(TopologyDisruptionBudget, "foo-rollout", "default")
        assert budget.spec.holds == "Updates"
        assert budget.metadata.controller is not None
        assert budget.metadata.controller.kind == "DomainRollout"


async def test_a_new_rollout_reports_when_its_pods_are_counted() -> None:
    """A rollout of running pods is up to date only when its budget is counted, and its event has
    the number of the pods.
    """
    async with whole([*NodeLayout().nodes(), workload("Deployment")]) as cluster:
        await begin(cluster, "Deployment")
        await asyncio.sleep(5)
        events = await cluster.client.list(Event, "default")
        notes = [event.note for event in events if event.regarding.kind == "DomainRollout"]
        assert notes == [
            "Deployment foo: its budget is being counted",
            "Deployment foo: all 6 pods are of the newest revision",
        ]


async def test_a_statefulset_shrinks_under_its_rollout() -> None:
    """The highest ordinals of a StatefulSet that shrinks during its rollout are deleted, whatever
    their zone: a scale-down is no update.
    """
    async with whole([*NodeLayout().nodes(), workload("StatefulSet")]) as cluster:
        await begin(cluster, "StatefulSet")
        for replicas in (5, 4, 3, 2, 1):
            body = {"spec": {"replicas": replicas}}
            await cluster.client.patch(StatefulSet, "foo", "default", body)
            await settled(cluster)
        await update(cluster, "StatefulSet")
        await finish(cluster)


async def test_the_budget_goes_with_the_rollout() -> None:
    """Deleting a rollout deletes its budget, and nothing is blocked any more."""
    async with whole([*NodeLayout().nodes(), workload("Deployment")]) as cluster:
        await begin(cluster, "Deployment")
        await cluster.client.delete(DomainRollout, "foo", "default")
        await asyncio.sleep(60)
        assert not await cluster.client.list(TopologyDisruptionBudget, "default")


@pytest.mark.slow
async def test_an_unready_pod_of_another_zone_pauses_it() -> None:
    """Nothing is replaced while another zone lacks a Ready pod, and the status says so."""
    async with whole(
        [*NodeLayout().nodes(), workload("StatefulSet", strategy=ON_DELETE, replicas=9)]
    ) as cluster:
        await begin(cluster, "StatefulSet", **ORDER)
        await update(cluster, "StatefulSet")
        await until(cluster, lambda item: state(item, "c") == "Doing")
        # One of the newest revision: an old one would be repaired by the update.
        name = await updated_in(cluster, "b")
        mark: Obj = {"metadata": {"annotations": {"zonewise.io/unready": "true"}}}
        await cluster.client.patch(Pod, name, "default", mark)
        item = await until(cluster, lambda item: item.status.reason == "PodsNotReady")
        assert state(item, "c") == "Doing"
        await asyncio.sleep(90)
        events = await cluster.client.list(Event, "default")
        reasons = {event.reason for event in events if event.regarding.kind == "DomainRollout"}
        assert {"UpToDate", "Updating", "PodsNotReady"} <= reasons
        before = Zones(cluster).images()
        version = (await get_rollout(cluster)).metadata.resource_version
        await asyncio.sleep(3600)
        assert Zones(cluster).images() == before
        assert (await get_rollout(cluster)).metadata.resource_version == version
        mark["metadata"]["annotations"]["zonewise.io/unready"] = None
        await cluster.client.patch(Pod, name, "default", mark)
        await until(cluster, complete)


@pytest.mark.parametrize(
    ("kind", "strategy"), [("StatefulSet", ON_DELETE), ("Deployment", NO_SURGE)]
)
async def test_a_rollback_takes_the_newest_zone_first(kind: str, strategy: Obj) -> None:
    """In a rollback the zone that was updated last is the first."""
    async with whole([*NodeLayout().nodes(), workload(kind, strategy=strategy)]) as cluster:
        await begin(cluster, kind, pauseSeconds=60, **ORDER)
        await update(cluster, kind)
        await until(cluster, lambda item: not complete(item), within=30)
        await until(cluster, lambda item: state(item, "c") == "Done")
        zones = Zones(cluster)
        await update(cluster, kind, "c:1")
        await until(cluster, lambda item: item.status.reason == "RollingBack")
        await until(cluster, complete)
        assert zones.order == ["c", "b"]
        assert not zones.together
        assert {image for _, image in zones.images()} == {"c:1"}


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [("StatefulSet", ON_DELETE), ("Deployment", NO_SURGE), ("DaemonSet", ON_DELETE)],
)
async def test_a_restart_goes_on_where_it_was(kind: str, strategy: Obj, tmp_path: Path) -> None:
    """A controller that starts in the middle reads all from the cluster: same zone, same order."""
    objects = [*NodeLayout().nodes(), workload(kind, strategy=strategy)]
    order: list[str] = []
    async with whole(objects, folder=tmp_path) as cluster:
        zones = await begin(cluster, kind, **ORDER)
        await update(cluster, kind)
        await until(cluster, lambda item: state(item, "c") == "Doing")
        order += zones.order
        assert not zones.together
        full = zones.full
    async with whole([], folder=tmp_path) as cluster:
        await asyncio.sleep(0.2)
        zones = Zones(cluster)
        zones.full = full
        await until(cluster, complete)
        order += [zone for zone in zones.order if zone not in order]
        assert not zones.together
        assert order == ["b", "c", "a"]
        assert {image for _, image in zones.images()} == {"c:2"}


async def test_a_zone_that_fails_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the zone being updated fails, nothing else is touched until it is back."""
    async with whole(
        [*NodeLayout().nodes(), workload("StatefulSet", strategy=ON_DELETE, replicas=9)]
    ) as cluster:
        zones = await begin(cluster, "StatefulSet", **ORDER)
        await update(cluster, "StatefulSet")
        await until(cluster, lambda item: state(item, "c") == "Doing")
        for number in range(1, 4):
            body: Obj = {"metadata": {"annotations": {FAILED_ANNOTATION: "yes"}}}
            await cluster.client.patch(Node, f"c-{number}", None, body)
        await asyncio.sleep(200)
        during = zones.images()
        assert during["a", "c:1"] == 3
        assert (await get_rollout(cluster)).status.domain == "c"
        await asyncio.sleep(200)
        assert zones.images()["a", "c:1"] == 3
        for number in range(1, 4):
            body = {"metadata": {"annotations": {FAILED_ANNOTATION: None}}}
            await cluster.client.patch(Node, f"c-{number}", None, body)
        await until(cluster, complete)
        await settled(cluster)
        assert not zones.together
        assert Counter(image for _, image in zones.images().elements()) == {"c:2": 9}


async def test_paused_by_its_owner() -> None:
    """A paused rollout replaces no pod, and completes when it is no longer paused."""
    async with whole([*NodeLayout().nodes(), workload("Deployment", strategy=NO_SURGE)]) as cluster:
        await begin(cluster, "Deployment", paused=True)
        await update(cluster, "Deployment")
        await until(cluster, lambda item: item.status.reason == "Paused")
        await asyncio.sleep(300)
        assert {image for _, image in Zones(cluster).images()} == {"c:1"}
        body = {"spec": {"paused": False}}
        await cluster.client.patch(DomainRollout, "foo", "default", body)
        await until(cluster, complete)
        assert {image for _, image in Zones(cluster).images()} == {"c:2"}


@pytest.mark.slow
async def test_another_budget_blocks_it_and_is_named() -> None:
    """A budget that allows nothing causes no eviction, and its message is in the reason."""
    tight = {
        "apiVersion": "zonewise.io/v1alpha1",
        "kind": "TopologyDisruptionBudget",
        "metadata": {"name": "tight", "namespace": "default"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "foo"}}},
    }
    async with whole(
        [*NodeLayout().nodes(), workload("StatefulSet", strategy=ON_DELETE)]
    ) as cluster:
        await begin(cluster, "StatefulSet")
        await cluster.seeder.create([tight])
        await asyncio.sleep(5)
        await update(cluster, "StatefulSet")
        item = await until(cluster, lambda item: item.status.reason == "EvictionsBlocked")
        assert "the budget tight" in item.status.conditions[0].message
        await asyncio.sleep(3600)
        after = await get_rollout(cluster)
        assert after.metadata.resource_version == item.metadata.resource_version
        lines = (await cluster.client.raw("GET", "/metrics")).body.decode().splitlines()
        assert not [line for line in lines if 'subresource="eviction"' in line]
        await cluster.client.delete(TopologyDisruptionBudget, "tight", "default")
        await until(cluster, complete)


async def test_a_rollout_that_cannot_work_says_why() -> None:
    """A rollout of a missing workload, of one that recreates, or beside another one has a clear
    reason and no budget.
    """
    recreate = workload("Deployment", strategy={"type": "Recreate"})
    async with whole([*NodeLayout().nodes(), recreate]) as cluster:
        await settled(cluster)
        lost = rollout("DaemonSet")
        lost["metadata"]["name"] = "lost"
        await cluster.seeder.create([rollout("Deployment"), lost])
        await until(cluster, lambda item: item.status.reason == "RecreatedAtOnce")
        second = rollout("Deployment")
        second["metadata"]["name"] = "other"
        await cluster.seeder.create([second])
        await asyncio.sleep(5)
        reasons = {
            item.metadata.name: item.status.reason
            for item in await cluster.client.list(DomainRollout, "default")
        }
        assert reasons == {
            "foo": "RecreatedAtOnce",
            "lost": "WorkloadNotFound",
            "other": "AnotherRollout",
        }
        assert not await cluster.client.list(TopologyDisruptionBudget, "default")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"workloadRef": {"kind": "Job", "name": "x"}}, "spec.workloadRef.kind"),
        ({"workloadRef": {"kind": "Deployment"}}, "spec.workloadRef.name"),
        ({"maxUnavailable": 0}, "must be a number of pods from 1, or 1% to 100%"),
        ({"maxUnavailable": "0%"}, "must be a number of pods from 1, or 1% to 100%"),
        ({"maxUnavailable": "101%"}, "spec.maxUnavailable"),
        ({"order": {"domains": ["a"], "nodeLabel": "x"}}, "give one of domains and nodeLabel"),
        ({"order": {"domains": ["a", "a"]}}, "spec.order.domains"),
        ({"pauseSeconds": -1}, "spec.pauseSeconds"),
    ],
)
async def test_an_invalid_rollout_is_refused(spec: Obj, says: str) -> None:
    """The server itself refuses it and names the field."""
    async with whole() as cluster:
        body = rollout("Deployment")
        body["spec"] |= spec
        await served(cluster)
        with pytest.raises(Invalid) as refusal:
            await cluster.client.create(unstructured(DomainRollout.resource)(body))
        assert says in str(refusal.value)


async def test_a_rollout_keeps_its_workload() -> None:
    """The workload of a rollout cannot be changed."""
    async with whole() as cluster:
        await served(cluster)
        await cluster.seeder.create([rollout("Deployment")])
        body: dict[str, Any] = {"spec": {"workloadRef": {"name": "other"}}}
        with pytest.raises(Invalid, match="cannot be changed; create another rollout"):
            await cluster.client.patch(DomainRollout, "foo", "default", body)


async def updated_in(cluster: EmbeddedCluster, zone: str) -> str:
    """A pod of the newest revision in a zone."""
    return next(
        pod.metadata.name
        for pod in await cluster.client.list(Pod, "default")
        if pod.spec.node_name.startswith(zone) and (pod.spec.containers or ())[0].image == "c:2"
    )


async def test_a_pod_that_only_the_update_repairs() -> None:
    """A broken pod of the old revision in a zone whose turn has not come does not stop it all."""
    async with whole(
        [*NodeLayout().nodes(), workload("StatefulSet", strategy=ON_DELETE, replicas=9)]
    ) as cluster:
        await begin(cluster, "StatefulSet", **ORDER)
        await update(cluster, "StatefulSet")
        await until(cluster, lambda item: state(item, "b") == "Doing")
        hurt = next(
            pod
            for pod in await cluster.client.list(Pod, "default")
            if pod.spec.node_name.startswith("a")
        )
        mark = {"metadata": {"annotations": {"zonewise.io/unready": "true"}}}
        await cluster.client.patch(Pod, hurt.metadata.name, "default", mark)
        await until(cluster, lambda item: item.status.reason == "PodsNotReady")
        await until(cluster, complete)


async def served(cluster: EmbeddedCluster) -> None:
    """Wait for the kind."""
    kind, registry = DomainRollout.resource, cluster.server.registry
    await true(lambda: registry.by_kind(kind.api_version, kind.kind) is not None)
