"""Workloads of every kind with drawn strategies, on a whole embedded cluster, and who replaces
their pods.

A kind without a rolling update has an *evictor*: as a drain does, it evicts the old pods again and
again. A custom kind has an operator, too, which creates what is missing and evicts what is surplus.
Only attempts of the cluster's own controllers are counted: not those of evictor and operator, nor
those on pods that a test has tried to evict.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from tests.disruption.story_plays import define
from tests.disruption.story_stage import JSON, MERGE
from tests.disruption.story_table import Kind
from tests.disruption.story_workloads import LABELS, NAME, RESOURCES, ZONE, size_of
from tests.embedded.components.disruption.budget_stories import evict
from tests.embedded.virtual_cluster import until

from zonewise.api.errors import NotFound
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_active, is_pod_ready
from zonewise.embedded.cluster import EmbeddedCluster

Obj = dict[str, Any]

ROLLED: tuple[Kind, ...] = (
    "Deployment",
    "StatefulSet OrderedReady",
    "DaemonSet",
    "StatefulSet Parallel",
)
"""The kinds whose own controllers update them."""
EVICTED: tuple[Kind, ...] = ("ReplicationController", "Job", "custom kind")
NODES = 9
ATTEMPTS_PER_MINUTE = 3
"""The most evictions of a pod that its controller may try in a minute, granted or not."""
PAUSE = 5.0
"""How long an evictor waits between two rounds."""


def choose_seeds(count: int, *others: int) -> list[int]:
    """The first seeds and ``others``, the same in every run; or, if it is set, those of
    ``ZONEWISE_SEEDS=FIRST-LAST``.
    """
    first, _, last = os.environ.get("ZONEWISE_SEEDS", "").partition("-")
    return list(range(int(first), int(last or first) + 1)) if first else [*range(count), *others]


def draw_kind(seed: int) -> Kind:
    """Each kind in turn, those with a rolling update twice."""
    kinds = (*ROLLED, *EVICTED[:1], *ROLLED[:3], *EVICTED[1:])
    return kinds[seed % len(kinds)]


def is_stateful(kind: Kind) -> bool:
    """Whether its pods have ordinals."""
    return kind.startswith("StatefulSet")


def drawn_strategy(rng: random.Random, kind: Kind, *, surging: bool, by_domain: bool) -> Obj:
    """The part of a spec that says how it is updated, so that it makes progress; with ``surging``
    no pod goes before a new one is there.
    """
    most = rng.choice([1, 3, "50%", "100%"])
    more = rng.choice([1, "50%"])
    if kind == "Deployment":
        if surging or rng.random() < 0.3:
            return {"strategy": {"rollingUpdate": {"maxSurge": more, "maxUnavailable": 0}}}
        surge = rng.choice([0, more])
        return {"strategy": {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": most}}}
    if by_domain and rng.random() < 0.2:
        return {"updateStrategy": {"type": "OnDelete"}}  # The rollout evicts the pods.
    if kind == "DaemonSet":
        if surging or rng.random() < 0.3:
            return {"updateStrategy": {"rollingUpdate": {"maxSurge": more, "maxUnavailable": 0}}}
        return {"updateStrategy": {"rollingUpdate": {"maxUnavailable": most}}}
    if is_stateful(kind):
        rolling: Obj = {"maxUnavailable": most}
        if rng.random() < 0.3:
            rolling["partition"] = rng.randint(1, 2)
        return {"updateStrategy": {"rollingUpdate": rolling}}
    return {}


def drawn_workload(
    rng: random.Random,
    kind: Kind,
    replicas: int,
    *,
    surging: bool = False,
    by_domain: bool = False,
) -> Obj:
    """A workload of a kind, with so many pods unless it has one on each node."""
    resource = RESOURCES[kind]
    template = _template("pause:1", rng.choice([None, "DoNotSchedule", "ScheduleAnyway"]))
    if rng.random() < 0.5:
        template["metadata"]["annotations"] = {"zonewise.io/ready-after": "5s"}
    spec: Obj = {
        "selector": {"matchLabels": LABELS},
        "template": template,
        **size_of(kind, replicas),
    }
    spec |= drawn_strategy(rng, kind, surging=surging, by_domain=by_domain)
    match kind:
        case "DaemonSet":
            del spec["replicas"]
            template["spec"].pop("topologySpreadConstraints", None)
        case "ReplicationController":
            spec["selector"] = LABELS
        case "Job":
            del spec["selector"]
            template["spec"]["restartPolicy"] = "Never"
            spec |= {
                "completions": NODES,
                "completionMode": "Indexed",
                "backoffLimitPerIndex": 100,
            }
        case "custom kind":
            spec = {"template": template, **size_of(kind, replicas)}
        case _ if is_stateful(kind):
            spec |= {"serviceName": NAME, "podManagementPolicy": kind.split()[1]}
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": NAME, "namespace": "default"},
        "spec": spec,
    }


def _template(image: str, spread: str | None) -> Obj:
    pod_spec: Obj = {"containers": [{"name": "c", "image": image}]}
    if spread is not None:
        constraint = {
            "maxSkew": 1,
            "topologyKey": ZONE,
            "whenUnsatisfiable": spread,
            "labelSelector": {"matchLabels": LABELS},
        }
        pod_spec["topologySpreadConstraints"] = [constraint]
    return {"metadata": {"labels": LABELS}, "spec": pod_spec}


class LivingWorkload:
    """A workload of a cluster that is updated and scaled."""

    def __init__(self, cluster: EmbeddedCluster, kind: Kind, manifest: Obj) -> None:
        self._cluster = cluster
        self._kind = kind
        self._image = "pause:1"
        self._manifest = manifest
        rolling = manifest["spec"].get("updateStrategy", {}).get("rollingUpdate", {})
        self._partition: int = rolling.get("partition", 0)
        self._replaced: set[str] = set()
        """The pods of a Job that an update replaces."""
        self._created = 0
        self.evicted: set[str] = set()
        """The uids of pods that others than the cluster's controllers have tried to evict."""
        self.tries: Counter[tuple[str, int]] = Counter()
        """Evictions that its controller has tried, by pod and minute."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Create it, and replace its pods as long as it is needed."""
        if self._kind == "custom kind":
            await define(self._cluster.client)
        path = RESOURCES[self._kind].path("default")
        body = msgspec.json.encode(self._manifest)
        answer = await self._cluster.client.raw("POST", path, headers=JSON, body=body)
        self._count_tries()
        tasks = []
        if self._kind in EVICTED:
            tasks.append(asyncio.create_task(self._evict_old()))
        if self._kind == "custom kind":
            tasks.append(asyncio.create_task(self._operate(answer.json())))
        try:
            yield
            for task in tasks:
                assert not task.done(), task.exception()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def pods(self) -> list[Pod]:
        """The pods that stay, by name."""
        pods = [pod for pod in self._cluster.program.cache.store(Pod) if is_pod_active(pod)]
        return sorted(pods, key=lambda pod: pod.metadata.name)

    async def until_ready(self, count: int) -> None:
        """Wait until there are so many pods, all Ready."""
        await until(lambda: self._are_ready(count))

    async def change(self, *, image: str | None = None, replicas: int | None = None) -> None:
        """Update it, or scale it, or both in one write."""
        spec: Obj = {}
        if replicas is not None and self._kind != "DaemonSet":
            spec |= size_of(self._kind, replicas)
        if image is not None:
            self._image = image
            if self._kind == "Job":
                self._replaced |= {pod.metadata.uid for pod in self.pods()}
            else:
                spec["template"] = {"spec": {"containers": [{"name": "c", "image": image}]}}
        path = RESOURCES[self._kind].path("default", NAME)
        body = msgspec.json.encode({"spec": spec})
        await self._cluster.client.raw("PATCH", path, headers=MERGE, body=body)

    async def evict(self, pod: Pod) -> None:
        """Evict a pod, as others do; it may be gone, or another one may have its name."""
        self.evicted.add(pod.metadata.uid)
        if any(pod.metadata.uid == other.metadata.uid for other in self.pods()):
            with suppress(NotFound):
                await evict(self._cluster, pod.metadata.name)

    def is_done(self, count: int) -> bool:
        """Whether there are so many pods, all Ready and none old."""
        return self._are_ready(count) and not any(map(self._is_old, self.pods()))

    def _are_ready(self, count: int) -> bool:
        pods = self.pods()
        return len(pods) == count and all(map(is_pod_ready, pods))

    def _is_old(self, pod: Pod) -> bool:
        if self._kind == "Job":
            return pod.metadata.uid in self._replaced
        if self._partition and int(pod.metadata.name.rpartition("-")[2]) < self._partition:
            return False
        return (pod.spec.containers or ())[0].image != self._image

    def _count_tries(self) -> None:
        gate = self._cluster.server.evictions.gate
        assert gate is not None
        ask = gate.ask
        clock = asyncio.get_running_loop().time

        async def noticed(pod: Pod, **more: Any) -> Any:
            if pod.metadata.uid not in self.evicted:
                self.tries[pod.metadata.uid, int(clock() // 60)] += 1
            return await ask(pod, **more)

        # The gate is the cluster's own, and ends with it.
        setattr(gate, "ask", noticed)  # noqa: B010

    async def _evict_old(self) -> None:
        while True:
            for pod in self.pods():
                if self._is_old(pod):
                    await self.evict(pod)
            await asyncio.sleep(PAUSE)

    async def _operate(self, owner: Obj) -> None:
        """What the controller of the custom kind does."""
        client = self._cluster.client
        names = ("apiVersion", "kind")
        reference = {name: owner[name] for name in names} | {"controller": True}
        reference |= {name: owner["metadata"][name] for name in ("name", "uid")}
        path = RESOURCES[self._kind].path("default", NAME)
        while True:
            spec = (await client.raw("GET", path)).json()["spec"]
            pods = self.pods()
            for _ in range(spec["size"] - len(pods)):
                self._created += 1
                template = spec["template"]
                meta = {"name": f"{NAME}-{self._created}", "ownerReferences": [reference]}
                manifest = {**template, "metadata": {**template["metadata"], **meta}}
                body = msgspec.json.encode(manifest)
                await client.raw("POST", Pod.resource.path("default"), headers=JSON, body=body)
            surplus = len(pods) - spec["size"]
            for pod in pods:
                if surplus > 0:
                    await self.evict(pod)
                    surplus = len(self.pods()) - spec["size"]
            await asyncio.sleep(PAUSE)
