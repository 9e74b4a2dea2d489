"""The Deployment controller with real ReplicaSets over a living API server, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest
from tests.embedded.living import Living, living, until
from tests.embedded.workloads.attendant import Attendant

from zonewise.api.pod import Pod
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.embedded.workloads.deployments import Deployments
from zonewise.embedded.workloads.replicasets import ReplicaSets
from zonewise.embedded.workloads.views import Deployment, ReplicaSet

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

PARTS = {
    "deployment-controller": Deployments,
    "replicaset-controller": ReplicaSets,
    "nodes": Attendant,
}
Raw = unstructured(Resource("apps", "v1", "Deployment", "deployments"))


def deployment(name: str = "web", *, replicas: int = 3, image: str = "app:1", **spec: Any) -> Any:
    """A Deployment as a person writes one."""
    labels = {"app": name}
    return Raw(
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


async def change(cluster: Living, spec: dict[str, Any], name: str = "web") -> None:
    """Change a Deployment's spec, and wait until that is seen."""
    changed = await cluster.client.patch(Raw, name, "default", {"spec": spec})
    store = cluster.crew.cache.store(Deployment)

    def seen() -> bool:
        one = store.get(("default", name))
        return one is not None and one.metadata.generation >= changed.metadata.generation

    await until(seen)


def image(name: str) -> dict[str, Any]:
    """A template with another image."""
    return {"template": {"spec": {"containers": [{"name": "main", "image": name}]}}}


def done(cluster: Living, name: str = "web") -> bool:
    """Whether a rollout has ended."""
    one = cluster.crew.cache.store(Deployment).get(("default", name))
    if one is None or one.status.observed_generation < one.metadata.generation:
        return False
    status = one.status
    counts = {status.replicas, status.updated_replicas, status.available_replicas}
    return counts == {one.spec.replicas} and not status.terminating_replicas


async def test_a_deployment_rolls_out_and_back() -> None:
    """A new template becomes a new ReplicaSet; going back renumbers the old one."""
    async with living(PARTS) as cluster:
        await cluster.client.create(deployment(replicas=10))
        await until(lambda: done(cluster))
        await change(cluster, image("app:2"))
        await until(lambda: done(cluster))
        for one in cluster.crew.cache.store(ReplicaSet):
            print(one.metadata.name, one.metadata.annotations, one.spec.replicas, one.status)
        print((await cluster.client.get(Raw, "web", "default")).raw)
        events = await cluster.client.raw("GET", "/apis/events.k8s.io/v1/namespaces/default/events")
        for event in events.json()["items"]:
            print(event["regarding"]["kind"], event["reason"], event["note"])
        assert len(cluster.crew.cache.store(Pod)) == 10
