"""Deployments and ReplicaSets as manifests, and how to follow them in a running cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.embedded.components.workloads.pod_attendant import Attendant
from tests.embedded.virtual_cluster import VirtualCluster, until

from zonewise.api.objects.apps import Deployment, ReplicaSet
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_active, is_pod_ready
from zonewise.api.resource import Resource
from zonewise.api.unstructured import Unstructured, unstructured
from zonewise.embedded.components.workloads.deployments.controller import DeploymentController
from zonewise.embedded.components.workloads.replicasets.controller import ReplicaSetController
from zonewise.runtime.program.context import ControllerContext
from zonewise.runtime.program.program import Runnable

PARTS: dict[str, Callable[[ControllerContext], Runnable]] = {
    "deployment-controller": DeploymentController,
    "replicaset-controller": ReplicaSetController,
    "nodes": Attendant,
}
DEPLOYMENTS = unstructured(Deployment.resource)
REPLICA_SETS = unstructured(ReplicaSet.resource)
BUDGETS = unstructured(Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"))


def workload(
    cls: type[Unstructured], name: str, replicas: int, image: str, spec: dict[str, Any]
) -> Unstructured:
    """A Deployment or ReplicaSet of pods with one container."""
    labels = {"app": name}
    return cls(
        {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "main", "image": image}]},
                },
                **spec,
            },
        }
    )


def deployment(
    name: str = "web", *, replicas: int = 3, image: str = "app:1", **spec: Any
) -> Unstructured:
    """A Deployment."""
    return workload(DEPLOYMENTS, name, replicas, image, spec)


def replica_set(
    name: str = "web", *, replicas: int = 3, image: str = "app:1", **spec: Any
) -> Unstructured:
    """A ReplicaSet."""
    return workload(REPLICA_SETS, name, replicas, image, spec)


def budget(name: str = "web", **spec: Any) -> Unstructured:
    """A budget of the pods of a workload."""
    selector = {"matchLabels": {"app": name}}
    metadata = {"name": name, "namespace": "default"}
    return BUDGETS({"metadata": metadata, "spec": {"selector": selector, **spec}})


def image(name: str) -> dict[str, Any]:
    """A spec with another image."""
    return {"template": {"spec": {"containers": [{"name": "main", "image": name}]}}}


async def change(cluster: VirtualCluster, spec: dict[str, Any], name: str = "web") -> None:
    """Change a Deployment's spec, and wait until that is observed."""
    changed = await cluster.client.patch(DEPLOYMENTS, name, "default", {"spec": spec})
    store = cluster.program.cache.store(Deployment)

    def seen() -> bool:
        deployment = store.get(("default", name))
        return (
            deployment is not None and deployment.metadata.generation >= changed.metadata.generation
        )

    await until(seen)


def seen(cluster: VirtualCluster, name: str = "web") -> Deployment:
    """A Deployment in the cache of the components."""
    deployment = cluster.program.cache.store(Deployment).get(("default", name))
    assert deployment is not None
    return deployment


def done(cluster: VirtualCluster, name: str = "web") -> bool:
    """Whether a rollout has ended and the last old pod is gone."""
    deployment = cluster.program.cache.store(Deployment).get(("default", name))
    if deployment is None or deployment.status.observed_generation < deployment.metadata.generation:
        return False
    status = deployment.status
    counts = {status.replicas, status.updated_replicas, status.available_replicas}
    return counts == {deployment.spec.replicas} and not status.terminating_replicas


def sets_of(cluster: VirtualCluster, name: str = "web") -> dict[str, ReplicaSet]:
    """The ReplicaSets of a Deployment by their revision."""
    return {
        replica_set.metadata.annotations["deployment.kubernetes.io/revision"]: replica_set
        for replica_set in cluster.program.cache.store(ReplicaSet)
        if replica_set.metadata.controller and replica_set.metadata.controller.name == name
    }


def living_pods(cluster: VirtualCluster) -> list[Pod]:
    """The pods that are not terminating."""
    return [pod for pod in cluster.program.cache.store(Pod) if is_pod_active(pod)]


async def events(cluster: VirtualCluster, kind: str = "") -> list[tuple[str, str, int]]:
    """Reason, note and count of the events about objects of a kind."""
    path = "/apis/events.k8s.io/v1/namespaces/default/events"
    items = (await cluster.client.raw("GET", path)).json()["items"]
    return [
        (event["reason"], event["note"], (event.get("series") or {}).get("count", 1))
        for event in items
        if kind in ("", event["regarding"]["kind"])
    ]


class Bounds:
    """The most existing and the fewest ready pods, over all changes."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.most = 0
        self.least: int | None = None
        self._cluster = cluster
        self._end = cluster.program.cache.store(Pod).on_change(self._changed)

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        del old, new
        pods = living_pods(self._cluster)
        serving = sum(map(is_pod_ready, pods))
        self.most = max(self.most, len(pods))
        self.least = serving if self.least is None else min(self.least, serving)

    def end(self) -> tuple[int, int | None]:
        """Stop recording; gives both."""
        self._end()
        return self.most, self.least
