"""A namespace of a real cluster whose pods are under a budget; watches every change of a pod."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.kubernetes.installed import Installed
from tests.kubernetes.stage import node

from tools import realkube as real
from zonewise.api import Deployment, Namespace, Node, Pod, ReplicaSet, convert, unstructured
from zonewise.api.errors import Conflict, NotFound, ServerError, TooManyRequests
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.budgets import TopologyDisruptionBudget
from zonewise.api.objects.pod_state import is_pod_active, is_pod_ready
from zonewise.embedded.components.kubelet.kubelets import Kubelets, KubeletSettings
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config
from zonewise.runtime.program.program import Program

Obj = dict[str, Any]
ZONES = "abc"
ZONE = {"key": "topology.kubernetes.io/zone", "operator": "Exists"}
AUDIT = (
    {
        "level": "Metadata",
        "verbs": ["create", "delete"],
        "resources": [{"group": "", "resources": ["pods", "pods/eviction"]}],
    },
    {
        "level": "Metadata",
        "verbs": ["create", "update", "patch"],
        "resources": [{"group": "", "resources": ["pods"]}, {"group": "zonewise.io"}],
    },
    {"level": "None"},
)
PATIENCE = 180.0


@dataclass
class BudgetScene:
    """A namespace on a real cluster with nodes in three zones; watches every change of a pod.

    ``least`` and ``fewest`` are the lowest numbers of healthy pods, by zone and in total. ``most``
    is the highest sum of the ReplicaSets' desired replicas, not of pods: on any cluster a pod
    lives some milliseconds longer than its ReplicaSet wants it.
    """

    client: Client
    components: Program
    namespace: str
    plane: real.ControlPlane
    installed: Installed
    least: dict[str, int] = field(default_factory=dict)
    fewest: int = 0
    most: int = 0

    def pods(self) -> list[Pod]:
        """The pods of the namespace that are neither finished nor leaving."""
        store = self.components.cache.store(Pod)
        return [p for p in store if p.metadata.namespace == self.namespace and is_pod_active(p)]

    def healthy(self) -> Counter[str]:
        """Ready pods by zone."""
        return Counter(pod.spec.node_name[-2] for pod in self.pods() if is_pod_ready(pod))

    def begin(self) -> None:
        """Record the lowest numbers from here on."""
        self.least, self.most = dict(self.healthy()), 0
        self.fewest = sum(self.least.values())
        self.components.cache.store(Pod).on_change(self._changed)

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        now = self.healthy()
        self.least = {zone: min(count, now[zone]) for zone, count in self.least.items()}
        self.fewest = min(self.fewest, sum(now.values()))
        sets = self.components.cache.store(ReplicaSet)
        desired = sum(
            replica_set.spec.replicas or 0
            for replica_set in sets
            if replica_set.metadata.namespace == self.namespace
        )
        self.most = max(self.most, desired)

    async def until(self, true: Any, what: str) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + PATIENCE
        while not true():
            if time.monotonic() > deadline:
                seen = Counter((p.spec.node_name, image(p), is_pod_ready(p)) for p in self.pods())
                raise AssertionError(f"not {what}: {seen}")
            await asyncio.sleep(0.2)

    async def ready(self, count: int, image_: str = "") -> None:
        """Wait until there are exactly so many pods, all Ready, of an image."""
        await self.until(
            lambda: (
                len(self.pods()) == count
                and all(is_pod_ready(p) and image(p).endswith(image_) for p in self.pods())
            ),
            f"{count} ready pods of {image_ or 'any image'}",
        )

    async def deploy(
        self, replicas: int, *, surge: int = 0, unavailable: int = 3, recreate: bool = False
    ) -> None:
        """Create a Deployment of app=web, spread over zones."""
        spread = {
            "maxSkew": 1,
            "topologyKey": ZONE["key"],
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "web"}},
        }
        spec = {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"type": "Recreate"}
            if recreate
            else {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {
                    "containers": [{"name": "c", "image": "c:1"}],
                    "topologySpreadConstraints": [spread],
                    "terminationGracePeriodSeconds": 0,
                },
            },
        }
        meta = {"name": "web", "namespace": self.namespace}
        kind = unstructured(Deployment.resource)
        await self.client.create(kind({"metadata": meta, "spec": spec}))
        await self.ready(replicas)

    async def budget(self, *terms: Obj, name: str = "web", **spec: Any) -> None:
        """Create a TopologyDisruptionBudget and wait until its status is current."""
        body: Obj = {"selector": {"matchLabels": {"app": "web"}}, **spec}
        if terms:
            body["nodeSelectorTerm"] = {"matchExpressions": list(terms)}
        meta = {"name": name, "namespace": self.namespace}
        await self.client.create(
            convert(TopologyDisruptionBudget, {"metadata": meta, "spec": body})
        )
        await self.counted(name)

    async def counted(self, name: str = "web") -> dict[str, int | None]:
        """The allowed disruptions by domain, once the status is of the latest generation."""
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            budget = await self.client.get(TopologyDisruptionBudget, name, self.namespace)
            if budget.status.domains and (
                budget.status.observed_generation == budget.metadata.generation
            ):
                return {row.domain: row.disruptions_allowed for row in budget.status.domains}
            await asyncio.sleep(0.2)
        raise AssertionError("the budget was never counted")

    async def update(self, image_: str = "c:2") -> None:
        """Change the image of the Deployment's template."""
        body = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image_}]}}}}
        await self.client.patch(Deployment, "web", self.namespace, body, kind="strategic")

    async def evict(self, pod: Pod) -> bool:
        """Whether an eviction is granted. If the server timed out waiting for the webhook, as on a
        busy machine, it is retried: a grant that was written meanwhile is used again.
        """
        meta = pod.metadata
        while True:
            try:
                await self.client.evict(meta.name, self.namespace, uid=meta.uid)
            except TooManyRequests:
                return False
            except (NotFound, Conflict):
                return True
            except ServerError:
                await asyncio.sleep(1)
                continue
            return True

    def refused(self) -> int:
        """Deletions of pods that were answered with 429.

        Mostly none; a deletion decided before its mark was seen is retried a moment later.
        """
        return self.requests()["delete pods 429"]

    def evidence(self) -> str:
        """Details for a zone that had too few pods: the deletions that passed because the webhook
        failed open (that is allowed, with an alert), and all requests.
        """
        passed = [
            entry["objectRef"].get("name")
            for entry in self.plane.audited()
            if entry["objectRef"].get("namespace") == self.namespace
            and any("failed-open" in key for key in entry.get("annotations", {}))
        ]
        return f"least {self.least}, without an answer {passed}, of {dict(self.requests())}"

    def requests(self) -> Counter[str]:
        """Writes in this namespace so far: ``patch pods 200``, by verb, resource and answer."""
        counts: Counter[str] = Counter()
        for entry in self.plane.audited():
            what = entry["objectRef"]
            if entry["stage"] == "ResponseComplete" and what.get("namespace") == self.namespace:
                name = "/".join(filter(None, (what["resource"], what.get("subresource"))))
                counts[f"{entry['verb']} {name} {entry.get('responseStatus', {}).get('code')}"] += 1
        return counts


def image(pod: Pod) -> str:
    """The image of a pod."""
    return (pod.spec.containers or ())[0].image


def same(now: Callable[[], Counter[str]], expected: dict[str, int]) -> bool:
    """Whether the current counts are the expected ones."""
    return now() == expected


@asynccontextmanager
async def scene(
    plane: real.ControlPlane, name: str, *, install: bool = True
) -> AsyncIterator[BudgetScene]:
    """Nodes in three zones, Zonewise installed, and a namespace that opted in."""
    transport = HttpsTransport(load_config(kubeconfig=plane.kubeconfig))

    def connect(manager: str) -> Client:
        return Client(transport, field_manager=manager)

    components = Program(connect, clock=time.time, rng=random.Random(1))
    components.cache.store(ReplicaSet)
    components.add("kubelets", lambda context: Kubelets(context, KubeletSettings(heartbeat=2.0)))
    client = connect("test")
    nodes = [
        node({"name": f"{name}-{zone}{number}", "zone": zone})
        for zone in ZONES
        for number in range(2)
    ]
    for manifest in nodes:
        await client.create(convert(Node, manifest))
        body = {"status": manifest["status"]}
        await client.patch(Node, manifest["metadata"]["name"], None, body, subresource="status")
    work = asyncio.create_task(components.run())
    await components.cache.synced()
    installed = Installed(plane, client, f"zonewise-{name}", role="observe", budgets="enforce")
    labels = {"zonewise.io/budgets": "enforce"}
    try:
        if install:
            await installed.apply()
        await client.create(Namespace(metadata=ObjectMeta(name=name, labels=labels)))
        yield BudgetScene(client, components, name, plane, installed)
    finally:
        if install:
            await installed.remove()
        await client.delete(Namespace, name)
        for manifest in nodes:
            await client.delete(Node, manifest["metadata"]["name"])
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await transport.close()
