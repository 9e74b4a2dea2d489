"""The PodLocator controller on a virtual cluster: exact writes for each cause, none for noise."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.controllers.hints.shops import SPACE, Shop
from tests.controllers.locators.locators_at_work import (
    ZONE,
    LocatorsRun,
    define_locators,
    running,
    stamp,
)
from tests.embedded.virtual_cluster import until, virtual_cluster

from zonewise.api import Node, Pod
from zonewise.api.codec import convert
from zonewise.api.objects.locator import PodLocator
from zonewise.controllers.locators.controller import ADDRESS_WAIT, LocatorsSettings

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


def says(run: LocatorsRun, name: str, expected: object) -> Callable[[], bool]:
    """Whether a locator has this content."""
    return lambda: run.of(name) == expected


async def test_a_locator_follows_its_pod_with_one_write_for_each_change() -> None:
    """A pod that starts, finishes and is deleted causes one write each, and none in between."""
    async with virtual_cluster({}) as cluster:
        shop = await define_locators(cluster)
        await shop.node("a0", "a")
        async with running(cluster, shop) as run:
            await run.count_requests()
            await shop.pod("p", "a0", ("10.0.0.1", "fd00::1"))
            labels = {ZONE: "a"}
            await until(says(run, "p", (["10.0.0.1", "fd00::1"], "a0", labels)))
            locator = run.locators.get((SPACE, "p"))
            pod = run.pods.get((SPACE, "p"))
            assert locator is not None and pod is not None
            owner = locator.metadata.owner_references[0]
            assert (owner.kind, owner.name, owner.uid) == ("Pod", "p", pod.metadata.uid)
            assert await run.count_requests() == {"POST": 1}
            state = {"status": {"phase": "Succeeded"}}
            await shop.client.patch(Pod, "p", SPACE, state, subresource="status")
            await until(says(run, "p", ([], "a0", labels)))
            raw = await cluster.client.raw(
                "GET", f"/apis/zonewise.io/v1alpha1/namespaces/{SPACE}/podlocators/p"
            )
            assert b'"ips":[]' in raw.body.replace(b" ", b"")
            assert await run.count_requests() == {"PATCH": 1}
            await shop.client.delete(Pod, "p", SPACE, grace_period=0)
            await until(says(run, "p", None))
            assert set(await run.count_requests()) <= {"DELETE"}


async def test_a_pod_that_is_added_bound_and_started_is_one_write() -> None:
    """A locator without an address is of no use: the first write waits for the address."""
    async with virtual_cluster({}) as cluster:
        shop = await define_locators(cluster)
        await shop.node("a0", "a")
        async with running(cluster, shop) as run:
            await run.count_requests()
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
            assert run.of("p") is None
            await shop.ready("p", ("10.0.0.1",))
            await asyncio.sleep(0.5)
            assert run.of("p") == (["10.0.0.1"], "a0", {ZONE: "a", "rack": "7"})
            assert await run.count_requests() == {"POST": 1}
            assert run.causes() == {("create", "pod-added"): 1}


async def test_a_pod_without_an_address_gets_its_locator_a_little_later() -> None:
    """Pods that do not start have locators, too; an address that is lost is removed at once."""
    async with virtual_cluster({}) as cluster:
        shop = await define_locators(cluster)
        await shop.node("a0", "a")
        async with running(cluster, shop) as run:
            await run.count_requests()
            pod = {"nodeName": "a0", "containers": [{"name": "c", "image": "i"}]}
            body = {"metadata": {"name": "p", "namespace": SPACE}, "spec": pod}
            await shop.client.create(convert(Pod, body))
            await until(says(run, "p", ([], "a0", {ZONE: "a"})), within=ADDRESS_WAIT + 1)
            await shop.ready("p", ("10.0.0.1",))
            await until(says(run, "p", (["10.0.0.1"], "a0", {ZONE: "a"})), within=1)
            lost = {"status": {"podIP": None, "podIPs": None}}
            await shop.client.patch(Pod, "p", SPACE, lost, subresource="status")
            await until(says(run, "p", ([], "a0", {ZONE: "a"})), within=1)
            assert await run.count_requests() == {"POST": 1, "PATCH": 2}


async def test_a_new_locator_of_a_finished_pod_says_that_it_has_no_address() -> None:
    """Every field is stored, also in one that is created after its pod has finished."""
    async with virtual_cluster({}) as cluster:
        shop = await define_locators(cluster)
        await shop.pod("p", "gone", "10.0.0.1")
        state = {"status": {"phase": "Failed"}}
        await shop.client.patch(Pod, "p", SPACE, state, subresource="status")
        async with running(cluster, shop) as run:
            await until(says(run, "p", ([], "", {})))
            raw = await cluster.client.raw(
                "GET", f"/apis/zonewise.io/v1alpha1/namespaces/{SPACE}/podlocators/p"
            )
            body = json.loads(raw.body)
            assert (body["ips"], body["nodeName"], body["nodeLabels"]) == ([], "", {})
            assert await run.count_requests() == {"POST": 1}


async def test_noise_causes_no_request() -> None:
    """Scenario 63: a thousand heartbeats and status updates cause no request at all."""
    async with virtual_cluster({}) as cluster:
        shop = await define_locators(cluster)
        await shop.node("a0", "a")
        await shop.pod("p", "a0", "10.0.0.1")
        async with running(cluster, shop) as run:
            await until(lambda: run.of("p") is not None)
            await run.count_requests()
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
            assert await run.count_requests() == {}


async def test_node_labels_reach_exactly_the_pods_on_the_node() -> None:
    """A relabelled node is one write for each of its pods; a deleted one empties them."""
    async with virtual_cluster({}) as cluster:
        shop = await define_locators(cluster)
        await shop.zones(a=2)
        await shop.pods(a0=5, a1=3)
        async with running(cluster, shop) as run:
            await until(lambda: len(run.locators) == 8)
            assert (await run.count_requests())["POST"] == 8
            relabel = {"metadata": {"labels": {"example.com/rack": "r7"}}}
            await shop.client.patch(Node, "a0", None, relabel)
            rack = {ZONE: "a", "example.com/rack": "r7"}
            await until(lambda: sum(read_locator(run, name)[2] == rack for name in names(run)) == 5)
            assert await run.count_requests() == {"PATCH": 5}
            await shop.client.delete(Node, "a1")
            await until(
                lambda: sum(read_locator(run, name)[1:] == ("", {}) for name in names(run)) == 3
            )
            assert await run.count_requests() == {"PATCH": 3}
            assert len(run.locators) == 8
            await shop.node("a1", "b")
            await until(
                lambda: sum(read_locator(run, name)[2] == {ZONE: "b"} for name in names(run)) == 3
            )
            assert await run.count_requests() == {"PATCH": 3}
            assert run.causes() == {
                ("create", "start"): 8,
                ("update", "node-labels"): 5,
                ("update", "node-deleted"): 3,
                ("update", "node-added"): 3,
            }


async def test_only_chosen_labels_are_copied() -> None:
    """With a list of keys, which locators state, other labels neither appear nor cause a write."""
    async with virtual_cluster({}) as cluster:
        shop = await define_locators(cluster)
        await shop.node("a0", "a")
        await shop.pod("p", "a0", "10.0.0.1")
        async with running(cluster, shop, LocatorsSettings(labels=(ZONE,))) as run:
            await until(says(run, "p", (["10.0.0.1"], "a0", {ZONE: "a"})))
            locator = await shop.client.get(PodLocator, "p", SPACE)
            assert locator.node_label_keys == (ZONE,)
            await run.count_requests()
            other = {"metadata": {"labels": {"example.com/rack": "r7"}}}
            await shop.client.patch(Node, "a0", None, other)
            assert await run.count_requests() == {}
            moved = {"metadata": {"labels": {ZONE: "b"}}}
            await shop.client.patch(Node, "a0", None, moved)
            await until(says(run, "p", (["10.0.0.1"], "a0", {ZONE: "b"})))
            assert await run.count_requests() == {"PATCH": 1}
        async with running(cluster, shop) as run:
            everything = {ZONE: "b", "example.com/rack": "r7"}
            await until(says(run, "p", (["10.0.0.1"], "a0", everything)))
            locator = await shop.client.get(PodLocator, "p", SPACE)
            assert locator.node_label_keys is None


async def test_foreign_edits_are_repaired() -> None:
    """A locator that another client changes or deletes is repaired with one write."""
    async with virtual_cluster({}) as cluster:
        shop = await define_locators(cluster)
        await shop.node("a0", "a")
        await shop.pod("p", "a0", "10.0.0.1")
        async with running(cluster, shop) as run:
            right = (["10.0.0.1"], "a0", {ZONE: "a"})
            await until(says(run, "p", right))
            await run.count_requests()
            wrong = {"nodeName": "x", "nodeLabels": {"y": "z"}}
            await shop.client.patch(PodLocator, "p", SPACE, wrong)
            await until(says(run, "p", right))
            assert await run.count_requests() == {"PATCH": 1}
            await shop.client.delete(PodLocator, "p", SPACE)
            await until(says(run, "p", right))
            assert await run.count_requests() == {"POST": 1}
            note = {"metadata": {"labels": {"mine": "yes"}}}
            await shop.client.patch(PodLocator, "p", SPACE, note)
            assert await run.count_requests() == {}


async def test_a_restart_writes_only_differences_and_removes_orphans() -> None:
    """Locators that are right are not written again; those without a pod are deleted."""
    async with virtual_cluster({}) as cluster:
        shop = await define_locators(cluster)
        await shop.zones(a=1)
        await shop.pods(a0=10)
        async with running(cluster, shop) as run:
            await until(lambda: len(run.locators) == 10)
            await run.count_requests()
        async with running(cluster, shop) as run:
            assert await run.count_requests() == {}
        orphan = PodLocator()
        await cluster.client.create(
            type(orphan)(metadata=type(orphan.metadata)(name="gone", namespace=SPACE))
        )
        wrong = {"nodeName": "x"}
        await shop.client.patch(PodLocator, names(run)[0], SPACE, wrong)
        async with running(cluster, shop) as run:
            await until(lambda: len(run.locators) == 10)
            assert await run.count_requests() == {"DELETE": 1, "PATCH": 1}


async def test_a_pod_of_the_same_name_takes_over_its_locator() -> None:
    """A pod that is created again has a locator that belongs to it, with its own address."""
    async with virtual_cluster({}) as cluster:
        shop = await define_locators(cluster)
        await shop.zones(a=2)
        async with running(cluster, shop) as run:
            await shop.pod("p", "a0", "10.0.0.1")
            await until(says(run, "p", (["10.0.0.1"], "a0", {ZONE: "a"})))
            await shop.client.delete(Pod, "p", SPACE, grace_period=0)
            await shop.pod("p", "a1", "10.0.0.9")
            await until(says(run, "p", (["10.0.0.9"], "a1", {ZONE: "a"})))
            await asyncio.sleep(60)
            locator, pod = run.locators.get((SPACE, "p")), run.pods.get((SPACE, "p"))
            assert locator is not None and pod is not None
            assert locator.metadata.owner_references[0].uid == pod.metadata.uid


async def test_the_controller_waits_for_the_definition() -> None:
    """Without the kind no request is sent; when it is defined, locators appear."""
    async with virtual_cluster({}) as cluster:
        shop = Shop(cluster)
        await shop.node("a0", "a")
        await shop.pod("p", "a0", "10.0.0.1")
        async with running(cluster, shop) as run:
            assert await run.count_requests() == {}
            await define_locators(cluster)
            await until(lambda: run.of("p") is not None)


def read_locator(run: LocatorsRun, name: str) -> tuple[list[str], str, dict[str, str]]:
    """The content of a locator that exists."""
    content = run.of(name)
    assert content is not None
    return content


def names(run: LocatorsRun) -> list[str]:
    """The pods that have locators."""
    return sorted(name for _, name in (locator.key for locator in run.locators))
