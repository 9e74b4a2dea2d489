"""The stories of the sources on budgets per domain, as objects and steps."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import yaml

from zonewise.api import Deployment, Pod, PodDisruptionBudget
from zonewise.api.errors import TooManyRequests
from zonewise.api.objects.pod_state import is_pod_active, is_pod_ready
from zonewise.embedded.cluster import EmbeddedCluster

Obj = dict[str, Any]
OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"
STORY_2 = """
apiVersion: policy/v1beta1
kind: PodDisruptionBudget
metadata:
  name: app-pdb
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      app: foo
  nodeSelectorTerm:
      # Only allow 1 pod to be evicted/updated per zone
      matchExpressions:
      - key: failure-domain.beta.kubernetes.io/zone
        operator: Exists
"""
STORY_1 = """
apiVersion: policy/v1beta1
kind: PodDisruptionBudget
metadata:
  name: app-pdb
spec:
  maxUnavailable: 0
  selector:
    matchLabels:
      app: foo
  nodeSelectorTerm:
      # Only allow evicting/updating pods in zone "bar"
      matchExpressions:
      - key: failure-domain.beta.kubernetes.io/zone
        operator: NotIn
        values:
        - a
      - key: failure-domain.beta.kubernetes.io/zone
        operator: Exists
"""


def deployment(replicas: int, *, surge: int = 0, unavailable: int = 3, **strategy: Any) -> Obj:
    """Pods of app=foo, spread over zones."""
    spread = {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "foo"}},
    }
    rolling = {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "foo"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "foo"}},
            "strategy": strategy or rolling,
            "template": {
                "metadata": {"labels": {"app": "foo"}},
                "spec": {
                    "containers": [{"name": "c", "image": "c:1"}],
                    "topologySpreadConstraints": [spread],
                },
            },
        },
    }


class Watcher:
    """Records, at every change of a pod, the healthy pods in each zone and the most there were."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._pods = cluster.program.cache.store(Pod)
        self.least: dict[str, int] = {}
        self.most = 0
        self.watching = False
        self._pods.on_change(self._changed)

    def zones(self) -> Counter[str]:
        """Healthy pods by zone."""
        return Counter(
            pod.spec.node_name[0] for pod in self._pods if is_pod_active(pod) and is_pod_ready(pod)
        )

    def begin(self) -> None:
        """Start to record."""
        self.watching = True
        self.least = dict(self.zones())

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        if self.watching:
            now = self.zones()
            self.least = {zone: min(least, now[zone]) for zone, least in self.least.items()}
            self.most = max(self.most, sum(is_pod_active(pod) for pod in self._pods))


async def apply(cluster: EmbeddedCluster, text: str) -> None:
    """Create the objects of a YAML text."""
    await cluster.seeder.create([yaml.safe_load(text)])


async def counted(cluster: EmbeddedCluster, name: str = "app-pdb") -> dict[str, int | None]:
    """The allowed disruptions of a budget by domain, once it was counted."""
    while True:
        budget = await cluster.client.get(PodDisruptionBudget, name, "default")
        status = budget.status
        if status.domains and status.observed_generation == budget.metadata.generation:
            return {row.domain: row.disruptions_allowed for row in status.domains}
        await asyncio.sleep(0.5)


async def update(cluster: EmbeddedCluster, image: str = "c:2") -> None:
    """Change the pods' template."""
    container = {"name": "c", "image": image}
    body = {"spec": {"template": {"spec": {"containers": [container]}}}}
    await cluster.client.patch(Deployment, "foo", "default", body)


async def images(cluster: EmbeddedCluster) -> Counter[tuple[str, str]]:
    """Pods by zone and image."""
    return Counter(
        (pod.spec.node_name[0], (pod.spec.containers or ())[0].image)
        for pod in await cluster.client.list(Pod, "default")
        if is_pod_active(pod)
    )


async def evict(cluster: EmbeddedCluster, name: str) -> bool:
    """Whether an eviction was granted."""
    try:
        await cluster.client.evict(name, "default")
    except TooManyRequests:
        return False
    return True
