"""Workloads of app=foo and budgets of their pods, on a whole embedded cluster."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from zonewise.api import Pod
from zonewise.api.objects.pod_state import is_pod_active, is_pod_ready
from zonewise.embedded.cluster import EmbeddedCluster

Obj = dict[str, Any]
LABELS = {"app": "foo"}
ZONE = "topology.kubernetes.io/zone"


def budget(name: str = "pdb", **spec: Any) -> Obj:
    """A PodDisruptionBudget for app=foo."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": LABELS}, **spec},
    }


def topology_budget(**spec: Any) -> Obj:
    """The same in each zone."""
    item = budget("tdb", topologyKeys=[ZONE], **spec)
    return {**item, "apiVersion": "zonewise.io/v1alpha1", "kind": "TopologyDisruptionBudget"}


def workload(kind: str, replicas: int, image: str = "c:1", **spec: Any) -> Obj:
    """A workload of app=foo."""
    template = {
        "metadata": {"labels": LABELS},
        "spec": {"containers": [{"name": "c", "image": image}]},
    }
    selector: Obj = LABELS if kind == "ReplicationController" else {"matchLabels": LABELS}
    body: Obj = {"selector": selector, "template": template, **spec}
    if kind != "DaemonSet":
        body["replicas"] = replicas
    if kind == "StatefulSet":
        body["serviceName"] = "foo"
    version = "v1" if kind == "ReplicationController" else "apps/v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "foo"}, "spec": body}


async def patch(cluster: EmbeddedCluster, kind: str, spec: Obj) -> None:
    """Change the workload."""
    served = cluster.server.registry.by_kind(
        "v1" if kind == "ReplicationController" else "apps/v1", kind
    )
    assert served is not None
    await cluster.client.raw(
        "PATCH",
        served.kind.resource.path("default", "foo"),
        headers={"Content-Type": "application/merge-patch+json"},
        body=msgspec.json.encode({"spec": spec}),
    )


async def update(cluster: EmbeddedCluster, kind: str) -> None:
    """Change the pods' template."""
    container = {"name": "c", "image": "c:2"}
    await patch(cluster, kind, {"template": {"spec": {"containers": [container]}}})


def pods(cluster: EmbeddedCluster) -> list[Pod]:
    """The pods that stay."""
    return [
        pod
        for pod in cluster.program.cache.store(Pod)
        if is_pod_active(pod) and pod.metadata.labels.get("app") == "foo"
    ]


def image_counts(cluster: EmbeddedCluster) -> Counter[str]:
    """Ready pods by image."""
    return Counter(
        (pod.spec.containers or ())[0].image for pod in pods(cluster) if is_pod_ready(pod)
    )
