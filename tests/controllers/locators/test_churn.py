"""PodLocators while a cluster churns: a model predicts every request and its cause."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
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
from tests.embedded.virtual_cluster import virtual_cluster

from zonewise.api import Node, Pod
from zonewise.api.codec import convert
from zonewise.api.objects.locator import PodLocator

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

RACK = "example.com/rack"
STEPS = 80
METHODS = {"create": "POST", "update": "PATCH", "delete": "DELETE"}


@dataclass
class PodState:
    """A pod in the model."""

    node: str
    ips: list[str] = field(default_factory=list)
    done: bool = False


@dataclass
class Model:
    """The expected state of the cluster, and the writes of each step by operation and cause."""

    shop: Shop
    rng: random.Random
    nodes: dict[str, dict[str, str]] = field(default_factory=dict)
    pods: dict[str, PodState] = field(default_factory=dict)
    wrote: Counter[tuple[str, str]] = field(default_factory=Counter)
    step: int = 0

    def expected(self, name: str) -> tuple[list[str], str, dict[str, str]]:
        """The expected locator of a pod."""
        pod = self.pods[name]
        known = pod.node in self.nodes
        return (
            [] if pod.done else pod.ips,
            pod.node if known else "",
            self.nodes[pod.node] if known else {},
        )

    async def churn(self) -> Counter[tuple[str, str]]:
        """One random event; the writes that it must cause."""
        self.step += 1
        before = Counter(self.wrote)
        happens = [self.pod_comes, self.node_changes, self.node_goes_or_comes, self.noise]
        if self.pods:
            happens += [self.pod_changes, self.pod_finishes, self.pod_goes, self.edit, self.loss]
        await self.rng.choice(happens)()
        return self.wrote - before

    def address(self) -> str:
        return f"10.0.{self.step // 250}.{self.step % 250}"

    async def pod_comes(self) -> None:
        name, node = f"p{self.step}", self.rng.choice(("n0", "n1", "n2"))
        spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}
        body = {"metadata": {"name": name, "namespace": SPACE}, "spec": spec}
        await self.shop.client.create(convert(Pod, body))
        self.pods[name] = PodState(node)
        self.wrote["create", "pod-added"] += 1

    async def pod_changes(self) -> None:
        name = self.rng.choice(sorted(self.pods))
        pod = self.pods[name]
        if pod.done:
            return
        pod.ips = [self.address(), f"fd00::{self.step:x}"]
        await self.shop.ready(name, tuple(pod.ips))
        self.wrote["update", "pod-changed"] += 1

    async def pod_finishes(self) -> None:
        name = self.rng.choice(sorted(self.pods))
        pod = self.pods[name]
        state = {"status": {"phase": self.rng.choice(("Succeeded", "Failed"))}}
        if pod.done:
            return
        await self.shop.client.patch(Pod, name, SPACE, state, subresource="status")
        pod.done = True
        if pod.ips:
            self.wrote["update", "pod-finished"] += 1

    async def pod_goes(self) -> None:
        name = self.rng.choice(sorted(self.pods))
        del self.pods[name]
        await self.shop.client.delete(Pod, name, SPACE, grace_period=0)
        self.wrote["delete", "pod-deleted"] += 1

    async def node_changes(self) -> None:
        name = self.rng.choice(sorted(self.nodes))
        labels = {ZONE: self.rng.choice("ab"), RACK: self.rng.choice("12")}
        changed = labels != self.nodes[name]
        self.nodes[name] = labels
        await self.shop.client.patch(Node, name, None, {"metadata": {"labels": labels}})
        if changed:
            self.wrote["update", "node-labels"] += self.on(name)

    async def node_goes_or_comes(self) -> None:
        name = "n2"
        if name in self.nodes:
            del self.nodes[name]
            await self.shop.client.delete(Node, name)
            cause = "node-deleted"
        else:
            self.nodes[name] = {ZONE: "c"}
            await self.shop.node(name, "c")
            cause = "node-added"
        self.wrote["update", cause] += self.on(name)

    async def noise(self) -> None:
        name = self.rng.choice(sorted(self.nodes))
        beat = {"type": "Ready", "status": "True", "lastHeartbeatTime": stamp(self.step)}
        await self._report(Node, name, None, {"conditions": [beat]})
        if self.pods:
            pod = self.rng.choice(sorted(self.pods))
            await self._report(Pod, pod, SPACE, {"message": f"noise {self.step}"})
            mark = {"metadata": {"annotations": {"noise": str(self.step)}}}
            await self.shop.client.patch(Pod, pod, SPACE, mark)

    async def _report(
        self, kind: type[Node | Pod], name: str, namespace: str | None, status: dict[str, Any]
    ) -> None:
        body = {"status": status}
        await self.shop.client.patch(
            kind, name, namespace, body, subresource="status", kind="strategic"
        )

    async def edit(self) -> None:
        name = self.rng.choice(sorted(self.pods))
        await self.shop.client.patch(PodLocator, name, SPACE, {"nodeName": f"wrong-{self.step}"})
        self.wrote["update", "foreign-edit"] += 1

    async def loss(self) -> None:
        name = self.rng.choice(sorted(self.pods))
        await self.shop.client.delete(PodLocator, name, SPACE)
        self.wrote["create", "foreign-edit"] += 1

    def on(self, node: str) -> int:
        return sum(pod.node == node for pod in self.pods.values())


async def settled(model: Model, run: LocatorsRun, wrote: Counter[tuple[str, str]]) -> None:
    """Exactly these writes were sent, and every locator is right."""
    methods: Counter[str] = Counter()
    for (operation, _), count in wrote.items():
        methods[METHODS[operation]] += count
    assert await run.count_requests() == +methods
    assert {locator.metadata.name for locator in run.locators} == set(model.pods)
    for name in model.pods:
        assert run.of(name) == model.expected(name)


@pytest.mark.parametrize("seed", range(4))
async def test_every_write_is_predicted(seed: int) -> None:
    """Under random changes of pods and nodes, noise and foreign edits exactly the writes of the
    model are sent, with its causes.
    """
    async with virtual_cluster({}) as cluster:
        model = Model(await define_locators(cluster), random.Random(seed))
        for name, zone in (("n0", "a"), ("n1", "b")):
            model.nodes[name] = {ZONE: zone}
            await model.shop.node(name, zone)
        async with running(cluster, model.shop) as run:
            await run.count_requests()
            for _ in range(STEPS):
                await settled(model, run, await model.churn())
            assert run.causes() == dict(+model.wrote)
        async with running(cluster, model.shop) as again:
            await settled(model, again, Counter())
            assert again.causes() == {}
