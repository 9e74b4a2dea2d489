"""The PodLocator controller on a living cluster: exact writes for each cause, none for noise."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.controllers.hints.shops import SPACE, Shop
from tests.controllers.locators.locators_at_work import ZONE, Watched, defined, stamp, working
from tests.embedded.virtual_cluster import until, virtual_cluster

from zonewise.api import Node, Pod
from zonewise.api.codec import convert
from zonewise.api.objects.locator import PodLocator
from zonewise.controllers.locators.controller import ADDRESS_WAIT, LocatorsSettings

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


def when(watched: Watched, name: str, said: object) -> Callable[[], bool]:
    """Whether a locator says something."""
    return lambda: watched.of(name) == said


async def test_a_locator_follows_its_pod_with_one_write_for_each_change() -> None:
    """Started, finished, deleted: one write each, and none in between."""
    async with virtual_cluster({}) as cluster:
        shop = await defined(cluster)
        await shop.node("a0", "a")
        async with working(cluster, shop) as watched:
            await watched.asked()
            await shop.pod("p", "a0", ("10.0.0.1", "fd00::1"))
            labels = {ZONE: "a"}
            await until(when(watched, "p", (["10.0.0.1", "fd00::1"], "a0", labels)))
            found = watched.locators.get((SPACE, "p"))
            pod = watched.pods.get((SPACE, "p"))
            assert found is not None and pod is not None
            owner = found.metadata.owner_references[0]
            assert (owner.kind, owner.name, owner.uid) == ("Pod", "p", pod.metadata.uid)
            assert await watched.asked() == {"POST": 1}
            state = {"status": {"phase": "Succeeded"}}
            await shop.client.patch(Pod, "p", SPACE, state, subresource="status")
            await until(when(watched, "p", ([], "a0", labels)))
            raw = await cluster.client.raw(
                "GET", f"/apis/zonewise.io/v1alpha1/namespaces/{SPACE}/podlocators/p"
            )
            assert b'"ips":[]' in raw.body.replace(b" ", b"")
            assert await watched.asked() == {"PATCH": 1}
            await shop.client.delete(Pod, "p", SPACE, grace_period=0)
            await until(when(watched, "p", None))
            assert set(await watched.asked()) <= {"DELETE"}


async def test_a_pod_that_is_added_bound_and_started_is_one_write() -> None:
    """A locator without an address is of no use: the first write waits for the address."""
    async with virtual_cluster({}) as cluster:
        shop = await defined(cluster)
        await shop.node("a0", "a")
        async with working(cluster, shop) as watched:
            await watched.asked()
            pod = {"containers": [{"name": "c", "image": "i"}]}
            body = {"metadata": {"name": "p", "namespace": SPACE}, "spec": pod}
            await shop.client.create(convert(Pod, body))
            await asyncio.sleep(3)
            binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "a0"}}
            await shop.client.raw(
                "POST",
                f"/api/v1/namespaces/{SPACE}/pods/p/binding",
                headers={"Content-Type": "application/json"},
                body=json.dumps(binding).encode(),
            )
            await shop.client.patch(Node, "a0", None, {"metadata": {"labels": {"rack": "7"}}})
            await asyncio.sleep(3)
            assert watched.of("p") is None
            await shop.ready("p", ("10.0.0.1",))
            await asyncio.sleep(0.5)
            assert watched.of("p") == (["10.0.0.1"], "a0", {ZONE: "a", "rack": "7"})
            assert await watched.asked() == {"POST": 1}
            assert watched.causes() == {("create", "pod-added"): 1}


async def test_a_pod_without_an_address_gets_its_locator_a_little_later() -> None:
    """Pods that do not start have locators, too; an address that is lost is removed at once."""
    async with virtual_cluster({}) as cluster:
        shop = await defined(cluster)
        await shop.node("a0", "a")
        async with working(cluster, shop) as watched:
            await watched.asked()
            pod = {"nodeName": "a0", "containers": [{"name": "c", "image": "i"}]}
            body = {"metadata": {"name": "p", "namespace": SPACE}, "spec": pod}
            await shop.client.create(convert(Pod, body))
            await until(when(watched, "p", ([], "a0", {ZONE: "a"})), within=ADDRESS_WAIT + 1)
            await shop.ready("p", ("10.0.0.1",))
            await until(when(watched, "p", (["10.0.0.1"], "a0", {ZONE: "a"})), within=1)
            lost = {"status": {"podIP": None, "podIPs": None}}
            await shop.client.patch(Pod, "p", SPACE, lost, subresource="status")
            await until(when(watched, "p", ([], "a0", {ZONE: "a"})), within=1)
            assert await watched.asked() == {"POST": 1, "PATCH": 2}


async def test_a_new_locator_of_a_finished_pod_says_that_it_has_no_address() -> None:
    """The server has every field, also of one that is created after its pod has finished."""
    async with virtual_cluster({}) as cluster:
        shop = await defined(cluster)
        await shop.pod("p", "gone", "10.0.0.1")
        state = {"status": {"phase": "Failed"}}
        await shop.client.patch(Pod, "p", SPACE, state, subresource="status")
        async with working(cluster, shop) as watched:
            await until(when(watched, "p", ([], "", {})))
            raw = await cluster.client.raw(
                "GET", f"/apis/zonewise.io/v1alpha1/namespaces/{SPACE}/podlocators/p"
            )
            found = json.loads(raw.body)
            assert (found["ips"], found["nodeName"], found["nodeLabels"]) == ([], "", {})
            assert await watched.asked() == {"POST": 1}


async def test_noise_asks_nothing_of_the_server() -> None:
    """Scenario 63: a thousand heartbeats and status updates cause no request at all."""
    async with virtual_cluster({}) as cluster:
        shop = await defined(cluster)
        await shop.node("a0", "a")
        await shop.pod("p", "a0", "10.0.0.1")
        async with working(cluster, shop) as watched:
            await until(lambda: watched.of("p") is not None)
            await watched.asked()
            for number in range(1000):
                beat = {"type": "Ready", "status": "True", "lastHeartbeatTime": stamp(number)}
                body: dict[str, Any] = {"status": {"conditions": [beat]}}
                await shop.client.patch(
                    Node, "a0", None, body, subresource="status", kind="strategic"
                )
                if number % 10 == 0:
                    noise = {"status": {"message": f"noise {number}"}}
                    await shop.client.patch(Pod, "p", SPACE, noise, subresource="status")
                    mark = {"metadata": {"annotations": {"noise": str(number)}}}
                    await shop.client.patch(Pod, "p", SPACE, mark)
            assert await watched.asked() == {}


async def test_node_labels_reach_exactly_the_pods_on_the_node() -> None:
    """A relabelled node is one write for each of its pods; a deleted one empties them."""
    async with virtual_cluster({}) as cluster:
        shop = await defined(cluster)
        await shop.zones(a=2)
        await shop.pods(a0=5, a1=3)
        async with working(cluster, shop) as watched:
            await until(lambda: len(watched.locators) == 8)
            assert (await watched.asked())["POST"] == 8
            relabel = {"metadata": {"labels": {"example.com/rack": "r7"}}}
            await shop.client.patch(Node, "a0", None, relabel)
            rack = {ZONE: "a", "example.com/rack": "r7"}
            await until(lambda: sum(said(watched, name)[2] == rack for name in names(watched)) == 5)
            assert await watched.asked() == {"PATCH": 5}
            await shop.client.delete(Node, "a1")
            await until(
                lambda: sum(said(watched, name)[1:] == ("", {}) for name in names(watched)) == 3
            )
            assert await watched.asked() == {"PATCH": 3}
            assert len(watched.locators) == 8
            await shop.node("a1", "b")
            await until(
                lambda: sum(said(watched, name)[2] == {ZONE: "b"} for name in names(watched)) == 3
            )
            assert await watched.asked() == {"PATCH": 3}
            assert watched.causes() == {
                ("create", "start"): 8,
                ("update", "node-labels"): 5,
                ("update", "node-deleted"): 3,
                ("update", "node-added"): 3,
            }


async def test_only_chosen_labels_are_copied() -> None:
    """With a list of keys, other labels neither appear nor cause a write."""
    async with virtual_cluster({}) as cluster:
        shop = await defined(cluster)
        await shop.node("a0", "a")
        await shop.pod("p", "a0", "10.0.0.1")
        async with working(cluster, shop, LocatorsSettings(labels=(ZONE,))) as watched:
            await until(when(watched, "p", (["10.0.0.1"], "a0", {ZONE: "a"})))
            await watched.asked()
            other = {"metadata": {"labels": {"example.com/rack": "r7"}}}
            await shop.client.patch(Node, "a0", None, other)
            assert await watched.asked() == {}
            moved = {"metadata": {"labels": {ZONE: "b"}}}
            await shop.client.patch(Node, "a0", None, moved)
            await until(when(watched, "p", (["10.0.0.1"], "a0", {ZONE: "b"})))
            assert await watched.asked() == {"PATCH": 1}


async def test_foreign_edits_are_repaired() -> None:
    """What somebody else writes into a locator, or deletes, is put right with one write."""
    async with virtual_cluster({}) as cluster:
        shop = await defined(cluster)
        await shop.node("a0", "a")
        await shop.pod("p", "a0", "10.0.0.1")
        async with working(cluster, shop) as watched:
            right = (["10.0.0.1"], "a0", {ZONE: "a"})
            await until(when(watched, "p", right))
            await watched.asked()
            wrong = {"nodeName": "x", "nodeLabels": {"y": "z"}}
            await shop.client.patch(PodLocator, "p", SPACE, wrong)
            await until(when(watched, "p", right))
            assert await watched.asked() == {"PATCH": 1}
            await shop.client.delete(PodLocator, "p", SPACE)
            await until(when(watched, "p", right))
            assert await watched.asked() == {"POST": 1}
            note = {"metadata": {"labels": {"mine": "yes"}}}
            await shop.client.patch(PodLocator, "p", SPACE, note)
            assert await watched.asked() == {}


async def test_a_restart_writes_only_differences_and_removes_orphans() -> None:
    """What is right is not written again; what has no pod any more goes."""
    async with virtual_cluster({}) as cluster:
        shop = await defined(cluster)
        await shop.zones(a=1)
        await shop.pods(a0=10)
        async with working(cluster, shop) as watched:
            await until(lambda: len(watched.locators) == 10)
            await watched.asked()
        async with working(cluster, shop) as watched:
            assert await watched.asked() == {}
        orphan = PodLocator()
        await cluster.client.create(
            type(orphan)(metadata=type(orphan.metadata)(name="gone", namespace=SPACE))
        )
        wrong = {"nodeName": "x"}
        await shop.client.patch(PodLocator, names(watched)[0], SPACE, wrong)
        async with working(cluster, shop) as watched:
            await until(lambda: len(watched.locators) == 10)
            assert await watched.asked() == {"DELETE": 1, "PATCH": 1}


async def test_a_pod_of_the_same_name_takes_over_its_locator() -> None:
    """A pod that is made anew has a locator that belongs to it, with its own address."""
    async with virtual_cluster({}) as cluster:
        shop = await defined(cluster)
        await shop.zones(a=2)
        async with working(cluster, shop) as watched:
            await shop.pod("p", "a0", "10.0.0.1")
            await until(when(watched, "p", (["10.0.0.1"], "a0", {ZONE: "a"})))
            await shop.client.delete(Pod, "p", SPACE, grace_period=0)
            await shop.pod("p", "a1", "10.0.0.9")
            await until(when(watched, "p", (["10.0.0.9"], "a1", {ZONE: "a"})))
            await asyncio.sleep(60)
            found, pod = watched.locators.get((SPACE, "p")), watched.pods.get((SPACE, "p"))
            assert found is not None and pod is not None
            assert found.metadata.owner_references[0].uid == pod.metadata.uid


async def test_the_controller_waits_for_the_definition() -> None:
    """Without the kind nothing is asked for; when it appears, locators do too."""
    async with virtual_cluster({}) as cluster:
        shop = Shop(cluster)
        await shop.node("a0", "a")
        await shop.pod("p", "a0", "10.0.0.1")
        async with working(cluster, shop) as watched:
            assert await watched.asked() == {}
            await defined(cluster)
            await until(lambda: watched.of("p") is not None)


def said(watched: Watched, name: str) -> tuple[list[str], str, dict[str, str]]:
    """What a locator says that is there."""
    found = watched.of(name)
    assert found is not None
    return found


def names(watched: Watched) -> list[str]:
    """The pods that have locators."""
    return sorted(name for _, name in (one.key for one in watched.locators))
