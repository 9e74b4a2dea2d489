"""Workloads of three zones that are rolled out by domain, on a whole cluster in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.embedded.whole_cluster import settled

from zonewise.api import DaemonSet, Deployment, Pod, StatefulSet
from zonewise.api.objects.budgets import DomainRollout
from zonewise.api.objects.pod_state import is_pod_active, is_pod_ready
from zonewise.embedded.cluster import EmbeddedCluster

Obj = dict[str, Any]
ZONE = "topology.kubernetes.io/zone"
CLASSES: dict[str, type[Deployment | StatefulSet | DaemonSet]] = {
    "Deployment": Deployment,
    "StatefulSet": StatefulSet,
    "DaemonSet": DaemonSet,
}


def workload(kind: str, *, replicas: int = 6, strategy: Obj | None = None) -> Obj:
    """Pods of app=foo; spread over zones unless there is one per node anyway."""
    spread = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule" if kind == "StatefulSet" else "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "foo"}},
    }
    spec: Obj = {
        "selector": {"matchLabels": {"app": "foo"}},
        "template": {
            "metadata": {
                "labels": {"app": "foo"},
                "annotations": {"zonewise.io/ready-after": "3s"},
            },
            "spec": {"containers": [{"name": "c", "image": "c:1"}]},
        },
    }
    if kind != "DaemonSet":
        spec["replicas"] = replicas
        spec["template"]["spec"]["topologySpreadConstraints"] = [spread]
    if kind == "StatefulSet":
        spec |= {"serviceName": "foo", "podManagementPolicy": "Parallel"}
    if strategy is not None:
        spec["strategy" if kind == "Deployment" else "updateStrategy"] = strategy
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "foo"}, "spec": spec}


def rollout(kind: str, **spec: Any) -> Obj:
    """A rollout of that workload."""
    return {
        "apiVersion": "zonewise.io/v1alpha1",
        "kind": "DomainRollout",
        "metadata": {"name": "foo", "namespace": "default"},
        "spec": {"workloadRef": {"kind": kind, "name": "foo"}, **spec},
    }


class Zones:
    """Follows the pods at every change: which zones lack a Ready pod, and the order of updates."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._pods = cluster.program.cache.store(Pod)
        self.full = self.ready()
        self.together: set[frozenset[str]] = set()
        """Sets of zones that lacked a pod at the same time."""
        self.order: list[str] = []
        self.most = 0
        self._end = self._pods.on_change(self._changed)

    def ready(self) -> Counter[str]:
        """Ready pods by zone."""
        return Counter(
            pod.spec.node_name[0]
            for pod in self._pods
            if pod.spec.node_name and is_pod_active(pod) and is_pod_ready(pod)
        )

    def lacking(self) -> frozenset[str]:
        """Zones that have fewer than in the beginning."""
        now = self.ready()
        return frozenset(zone for zone, count in self.full.items() if now[zone] < count)

    def images(self) -> Counter[tuple[str, str]]:
        """Living pods by zone and image."""
        return Counter(
            (pod.spec.node_name[:1], (pod.spec.containers or ())[0].image)
            for pod in self._pods
            if is_pod_active(pod)
        )

    def end(self) -> None:
        """Follow no longer."""
        self._end()

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        self.most = max(self.most, sum(is_pod_active(pod) for pod in self._pods))
        lacking = self.lacking()
        if len(lacking) > 1:
            self.together.add(lacking)
        if old is not None and (new is None or not is_pod_active(new)) and is_pod_active(old):
            zone = old.spec.node_name[:1]
            if self.order[-1:] != [zone]:
                self.order.append(zone)


async def update(cluster: EmbeddedCluster, kind: str, image: str = "c:2") -> None:
    """Change the template."""
    body = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}}
    await cluster.client.patch(CLASSES[kind], "foo", "default", body)


async def get_rollout(cluster: EmbeddedCluster) -> DomainRollout:
    """The rollout as it is now."""
    return await cluster.client.get(DomainRollout, "foo", "default")


async def until(
    cluster: EmbeddedCluster, fine: Callable[[DomainRollout], bool], *, within: float = 900.0
) -> DomainRollout:
    """Wait for a state of the rollout."""
    item = await get_rollout(cluster)
    try:
        async with asyncio.timeout(within):
            while not fine(item):
                await asyncio.sleep(0.5)
                item = await get_rollout(cluster)
    except TimeoutError:
        raise AssertionError(f"not within {within} s: {item.status}") from None
    return item


def complete(item: DomainRollout) -> bool:
    """What ``kubectl wait --for=condition=Complete`` waits for."""
    return ("Complete", "True") in {(each.type, each.status) for each in item.status.conditions}


def state(item: DomainRollout, domain: str) -> str:
    """How far a domain is."""
    return next((row.state for row in item.status.domains if row.domain == domain), "")


async def begin(cluster: EmbeddedCluster, kind: str, **spec: Any) -> Zones:
    """Wait for the workload, and create its rollout, ready for an update."""
    await settled(cluster)
    assert not await cluster.seeder.create([rollout(kind, **spec)])
    await until(cluster, complete)
    return Zones(cluster)


async def finish(cluster: EmbeddedCluster, image: str = "c:2") -> DomainRollout:
    """Wait for the end of an update that has just begun."""
    await until(cluster, lambda item: not complete(item), within=30)
    item = await until(cluster, complete)
    pods = [pod for pod in await cluster.client.list(Pod, "default") if is_pod_active(pod)]
    assert {(pod.spec.containers or ())[0].image for pod in pods} == {image}
    return item
