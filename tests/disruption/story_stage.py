"""A namespace of a cluster, embedded or real, in which one story of one workload is played.

It follows every change of the namespace's pods, so what a budget promises is checked after each of
them and not only where a test looks.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from tests.disruption.story_table import Kind
from tests.disruption.story_workloads import (
    LABELS,
    NAME,
    REPLICAS,
    RESOURCES,
    ZONE,
    Obj,
)

from zonewise.api import Pod
from zonewise.api.errors import Conflict, NotFound, ServerError, TooManyRequests
from zonewise.api.objects.pod_state import is_pod_active, is_pod_ready
from zonewise.api.resource import Resource
from zonewise.runtime.cache.store import Store
from zonewise.runtime.client.client import Client

ZONES = "abc"
BUDGET = "app-pdb"
PATIENCE = 180.0
POLL = 0.25
JSON = {"Content-Type": "application/json"}
MERGE = {"Content-Type": "application/merge-patch+json"}
PLAIN = Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
TOPOLOGY = Resource(
    "zonewise.io", "v1alpha1", "TopologyDisruptionBudget", "topologydisruptionbudgets"
)


class Stage:
    """A namespace with a workload, its pods, and a budget of the kind ``budgets``.

    ``zones`` are the zones of the nodes by name. ``rule`` is asked after every change of a pod, and
    returns what is wrong then; ``faults`` are its answers. Without ``limiting`` there is no
    budget and no rollout by domain: then a story has to fail.
    """

    def __init__(
        self,
        client: Client,
        pods: Store[Pod],
        namespace: str,
        *,
        kind: Kind,
        zones: Mapping[str, str],
        budgets: Resource,
        limiting: bool = True,
    ) -> None:
        self.client = client
        self.namespace = namespace
        self.kind = kind
        self.zones = zones
        self.limiting = limiting
        self.faults: list[str] = []
        self.order: list[str] = []
        """The zones whose pods went, in that order."""
        self.rule: Callable[[Counter[str]], str | None] = lambda _: None
        self._budgets = budgets
        self._pods = pods
        self._end = pods.on_change(self._changed)

    def end(self) -> None:
        """Follow no longer."""
        self._end()

    # What there is.

    def pods(self) -> list[Pod]:
        """The pods that neither have ended nor are leaving."""
        return [
            pod
            for pod in self._pods
            if pod.metadata.namespace == self.namespace and is_pod_active(pod)
        ]

    def zone(self, pod: Pod) -> str:
        """The zone of a pod, empty while it has no node."""
        return self.zones.get(pod.spec.node_name, "")

    def ready(self) -> Counter[str]:
        """Ready pods by zone."""
        return Counter(self.zone(pod) for pod in self.pods() if is_pod_ready(pod))

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is None or pod.metadata.namespace != self.namespace:
            return
        fault = self.rule(self.ready())
        if fault is not None and fault not in self.faults:
            self.faults.append(fault)
        left = new is None or not is_pod_active(new)
        if old is not None and left and is_pod_active(old) and self.zone(old):
            zone = self.zone(old)
            if self.order[-1:] != [zone]:
                self.order.append(zone)

    async def until(self, true: Callable[[], bool], what: str) -> None:
        """Wait for a condition."""
        await self.until_answered(lambda: _immediately(true), what)

    async def until_answered(self, ask: Callable[[], Any], what: str) -> None:
        """Wait until a question is answered with yes; a broken promise ends the story at once."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not await ask():
                    assert not self.faults, f"{self.kind}: {self.faults}"
                    await asyncio.sleep(POLL)
                return
        except TimeoutError:
            seen = Counter(
                (self.zone(pod), image(pod), is_pod_ready(pod), pod.metadata.name)
                for pod in self.pods()
            )
            raise AssertionError(f"{self.kind}: not {what}: {sorted(seen)}") from None

    async def until_ready(self, count: int, zones: Mapping[str, int] | None = None) -> None:
        """Wait until there are exactly so many pods, all Ready, and if given so many by zone."""
        await self.until(
            lambda: (
                len(self.pods()) == count
                and sum(self.ready().values()) == count
                and (zones is None or self.ready() == zones)
            ),
            f"{count} ready pods, {zones or 'anywhere'}",
        )

    # What is done.

    async def create(self, manifest: Obj, resource: Resource) -> Obj:
        """Create an object."""
        path = resource.path(self.namespace if resource.namespaced else None)
        body = json.dumps(manifest).encode()
        answer: Obj = (await self.client.raw("POST", path, headers=JSON, body=body)).json()
        return answer

    async def patch(self, resource: Resource, name: str, body: Obj) -> None:
        """Change an object by a merge patch."""
        path = resource.path(self.namespace if resource.namespaced else None, name)
        await self.client.raw("PATCH", path, headers=MERGE, body=json.dumps(body).encode())

    async def change(self, spec: Obj) -> None:
        """Change the workload's spec."""
        await self.patch(RESOURCES[self.kind], NAME, {"spec": spec})

    async def limit(self, expressions: list[Obj], **spec: Any) -> None:
        """Create the budget, with a term of these expressions, and wait until it is counted."""
        if not self.limiting:
            return
        spec["selector"] = {"matchLabels": LABELS}
        if expressions:
            spec["nodeSelectorTerm"] = {"matchExpressions": expressions}
        manifest = {
            "apiVersion": self._budgets.api_version,
            "kind": self._budgets.kind,
            "metadata": {"name": BUDGET, "namespace": self.namespace},
            "spec": spec,
        }
        await self.create(manifest, self._budgets)
        await self.until_answered(self._is_counted, "counted")

    async def open(self, zone: str) -> None:
        """Leave one zone out of the budget."""
        if not self.limiting:
            return
        term = {"matchExpressions": closed_but(zone)}
        await self.patch(self._budgets, BUDGET, {"spec": {"nodeSelectorTerm": term}})
        await self.until_answered(self._is_counted, "counted")

    async def _is_counted(self) -> bool:
        path = self._budgets.path(self.namespace, BUDGET)
        budget = (await self.client.raw("GET", path)).json()
        status = budget.get("status", {})
        rows = status.get("domains") or [status]
        expected = sum(row.get("expectedPods", 0) for row in rows)
        generation: int = budget["metadata"]["generation"]
        return bool(status.get("observedGeneration") == generation and expected >= REPLICAS)

    async def evict(self, pod: Pod, *, dry_run: bool = False) -> bool:
        """Whether an eviction is granted; without an answer, as on a busy machine, it is retried:
        a grant that was written meanwhile is used again.
        """
        meta = pod.metadata
        while True:
            try:
                await self.client.evict(meta.name, self.namespace, uid=meta.uid, dry_run=dry_run)
            except TooManyRequests:
                return False
            except (NotFound, Conflict):
                return True
            except ServerError:
                await asyncio.sleep(1)
                continue
            return True


def image(pod: Pod) -> str:
    """The image of a pod."""
    return (pod.spec.containers or ())[0].image


def closed_but(zone: str) -> list[Obj]:
    """The expressions of KEP-8's first story: every zone but one."""
    return [
        {"key": ZONE, "operator": "NotIn", "values": [zone]},
        {"key": ZONE, "operator": "Exists"},
    ]


async def _immediately(true: Callable[[], bool]) -> bool:
    return true()
