"""Pods of the open zone are evicted while their workload's next ones are held in others."""

from __future__ import annotations

import asyncio

import pytest
from tests.controllers.budgets.budget_scene import EXISTS, LABELS, NS, ZONE, BudgetScene, Obj
from tests.controllers.budgets.budget_scene import budget_scene as scene_of

from zonewise.api import (
    DaemonSet,
    Namespace,
    Pod,
    ReplicationController,
    StatefulSet,
    convert,
)
from zonewise.api.objects.budgets import DomainRollout
from zonewise.api.objects.events import Event

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

CLOSED = {
    "matchExpressions": [
        *EXISTS["matchExpressions"],
        {"key": ZONE, "operator": "NotIn", "values": ["a"]},
    ]
}


async def create_set(scene: BudgetScene, zones: str) -> None:
    """An outdated StatefulSet with a Ready pod in each of these zones, under a budget that leaves
    only zone a open.
    """
    body = {
        "metadata": {"name": "db", "namespace": NS},
        "spec": {
            "replicas": len(zones),
            "serviceName": "db",
            "selector": {"matchLabels": LABELS},
            "template": {
                "metadata": {"labels": LABELS},
                "spec": {"containers": [{"name": "c", "image": "c"}]},
            },
        },
    }
    item = await scene.client.create(convert(StatefulSet, body))
    status = {"observedGeneration": 1, "currentRevision": "1", "updateRevision": "2"}
    patch: Obj = {"status": {**status, "replicas": len(zones)}}
    await scene.client.patch(StatefulSet, "db", NS, patch, subresource="status")
    owner = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "name": "db",
        "uid": item.metadata.uid,
        "controller": True,
    }
    for number, zone in enumerate(zones):
        meta = {
            "name": f"db-{number}",
            "namespace": NS,
            "labels": {**LABELS, "controller-revision-hash": "1"},
            "ownerReferences": [owner],
        }
        spec = {"nodeName": f"n-{zone}", "containers": [{"name": "c", "image": "c"}]}
        await scene.client.create(convert(Pod, {"metadata": meta, "spec": spec}))
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        patch = {"status": ready}
        await scene.client.patch(Pod, f"db-{number}", NS, patch, subresource="status")
    await scene.budget(maxUnavailable=0, nodeSelectorTerm=CLOSED)


async def staying(scene: BudgetScene) -> set[str]:
    """The pods that are not being deleted."""
    pods = await scene.client.list(Pod, NS)
    return {pod.metadata.name for pod in pods if pod.metadata.deletion_timestamp is None}


async def test_the_pod_of_the_open_zone_is_evicted() -> None:
    """One pod is evicted, the highest of zone a, and an event says before which one and why."""
    async with scene_of(0) as scene:
        await create_set(scene, "aabc")
        await asyncio.sleep(3600)
        assert await staying(scene) == {"db-0", "db-2", "db-3"}
        events = await scene.client.list(Event, NS)
        (note,) = [event.note for event in events if event.reason == "PassedOver"]
        assert note is not None
        assert note.startswith("Pod db-1 goes before db-3, which is held: the budget web: ")


async def test_nothing_is_evicted_where_nothing_is_held() -> None:
    """Without the opt-in of the namespace the StatefulSet's controller is not held; the opt-in
    starts it at once.
    """
    async with scene_of(0, enforce=False) as scene:
        await create_set(scene, "aabc")
        await asyncio.sleep(60)
        assert len(await staying(scene)) == 4
        body = {"metadata": {"labels": {"zonewise.io/budgets": "enforce"}}}
        await scene.client.patch(Namespace, NS, "", body)
        await asyncio.sleep(5)
        assert len(await staying(scene)) == 3


async def test_a_rollout_by_domain_is_left_alone() -> None:
    """The pods of a StatefulSet that a DomainRollout updates are evicted by that alone."""
    async with scene_of(0) as scene:
        reference = {"kind": "StatefulSet", "name": "db"}
        body = {"metadata": {"name": "db", "namespace": NS}, "spec": {"workloadRef": reference}}
        await scene.client.create(convert(DomainRollout, body))
        await create_set(scene, "aabc")
        await asyncio.sleep(60)
        assert len(await staying(scene)) == 4


async def test_daemon_pods_of_the_open_zone_are_evicted() -> None:
    """Of a DaemonSet whose pods are held in two of three zones, the one of the open zone goes."""
    async with scene_of(0) as scene:
        body = {
            "metadata": {"name": "ds", "namespace": NS},
            "spec": {
                "selector": {"matchLabels": LABELS},
                "template": {
                    "metadata": {"labels": LABELS},
                    "spec": {"containers": [{"name": "c", "image": "c"}]},
                },
            },
        }
        item = await scene.client.create(convert(DaemonSet, body))
        names = {await scene.pod(zone, owner=item): zone for zone in "bac"}
        for name in names:
            labels = {"labels": {"pod-template-generation": "1"}}
            await scene.client.patch(Pod, name, NS, {"metadata": labels})
        template = {"spec": {"containers": [{"name": "c", "image": "c:2"}]}}
        await scene.client.patch(DaemonSet, "ds", NS, {"spec": {"template": template}})
        status = {"observedGeneration": 99, "desiredNumberScheduled": 3}
        await scene.client.patch(DaemonSet, "ds", NS, {"status": status}, subresource="status")
        await scene.budget(maxUnavailable=0, nodeSelectorTerm=CLOSED)
        await asyncio.sleep(3600)
        assert {names[name] for name in await staying(scene)} == {"b", "c"}
        events = await scene.client.list(Event, NS)
        assert [event.regarding.kind for event in events if event.reason == "PassedOver"] == [
            "DaemonSet"
        ]


async def test_a_surplus_pod_of_another_zone_is_evicted() -> None:
    """A ReplicationController has a pod too many, and the one that its controller tries is the last
    of its zone: one of the fullest zone goes instead.
    """
    async with scene_of(0) as scene:
        body = {
            "metadata": {"name": "rc", "namespace": NS},
            "spec": {
                "replicas": 4,
                "selector": LABELS,
                "template": {
                    "metadata": {"labels": LABELS},
                    "spec": {"containers": [{"name": "c", "image": "c"}]},
                },
            },
        }
        item = await scene.client.create(convert(ReplicationController, body))
        names = {await scene.pod(zone, owner=item): zone for zone in "aabc"}
        await scene.budget(minAvailable=1, nodeSelectorTerm=EXISTS)
        await asyncio.sleep(120)
        assert len(await staying(scene)) == 4
        first = next(name for name, zone in names.items() if zone == "c")
        cost = {"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "-9"}}}
        await scene.client.patch(Pod, first, NS, cost)
        await scene.client.patch(ReplicationController, "rc", NS, {"spec": {"replicas": 3}})
        await asyncio.sleep(120)
        assert sorted(names[name] for name in await staying(scene)) == ["a", "b", "c"]
        events = await scene.client.list(Event, NS)
        (note,) = [event.note for event in events if event.reason == "PassedOver"]
        assert f"goes before {first}, which is held: the budget web" in str(note)
