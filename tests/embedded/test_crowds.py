"""Many custom objects, and nodes that fail and heal very fast."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from tests.embedded.components.workloads.deployments.deploying import deployment
from tests.embedded.virtual_cluster import until, virtual_cluster
from tests.embedded.whole_cluster import settled, whole

from zonewise.api.errors import Invalid
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.embedded.components.kubelet.node_status import FAILED_ANNOTATION
from zonewise.embedded.components.nodelifecycle import health
from zonewise.embedded.seed.nodes import NodeLayout

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime, pytest.mark.slow]

WIDGETS = unstructured(Resource("example.com", "v1", "Widget", "widgets"))
PATH = "/apis/example.com/v1/namespaces/default/widgets"
SIZE = {"type": "integer", "minimum": 0, "default": 3}
DEFINITION: dict[str, Any] = {
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {"size": SIZE, "color": {"type": "string"}},
                                "x-kubernetes-validations": [
                                    {"rule": "self.size < 100000", "message": "too large"}
                                ],
                            }
                        },
                    }
                },
            }
        ],
    },
}


@pytest.mark.timeout(600)
async def test_many_custom_objects() -> None:
    """Each of many custom objects is defaulted and validated; paged lists, watches and deletions
    are complete.
    """
    number = 10_000
    async with virtual_cluster({}) as cluster:
        client = cluster.client
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        await client.raw("POST", path, body=msgspec.json.encode(DEFINITION))
        served = cluster.server.registry
        await until(lambda: any(resource.kind.resource.plural == "widgets" for resource in served))

        seen: Counter[str] = Counter()
        store = cluster.program.cache.store(WIDGETS)
        store.on_change(
            lambda old, new: seen.update(["gone" if new is None else "new" if old is None else ""])
        )

        async def make(n: int) -> None:
            meta = {"name": f"w{n}", "namespace": "default"}
            await client.create(WIDGETS({"metadata": meta, "spec": {"color": "red"}}))

        for start in range(0, number, 500):
            await asyncio.gather(*map(make, range(start, start + 500)))
        with pytest.raises(Invalid, match="too large"):
            await client.patch(WIDGETS, "w7", "default", {"spec": {"size": 100_000}})
        await until(lambda: len(store) == number)

        names: list[str] = []
        token = ""
        while True:
            query = {"limit": "400", **({"continue": token} if token else {})}
            page = (await client.raw("GET", PATH, query=query)).json()
            names += [widget["metadata"]["name"] for widget in page["items"]]
            assert all(widget["spec"] == {"color": "red", "size": 3} for widget in page["items"])
            token = page["metadata"].get("continue", "")
            if not token:
                break
        assert sorted(names) == sorted(f"w{n}" for n in range(number))

        await client.raw("DELETE", PATH)
        await until(lambda: len(store) == 0)
        assert seen == {"new": number, "gone": number}, "nobody is told twice"


@pytest.mark.timeout(600)
async def test_nodes_that_fail_and_heal_a_hundred_times_a_second() -> None:
    """After nodes failed and healed a hundred times a second all nodes and pods are ready, and no
    pod was evicted.
    """
    async with whole(NodeLayout(("a", "b", "c"), 4).nodes()) as cluster:
        client = cluster.client
        await client.create(deployment(replicas=24))
        await settled(cluster)
        pods = cluster.program.cache.store(Pod)
        before = {pod.metadata.uid for pod in pods}
        names = [node.metadata.name for node in cluster.program.cache.store(Node)]
        rng, failed = random.Random(3), dict.fromkeys(names, False)
        for _ in range(1000):
            name = rng.choice(names)
            failed[name] = not failed[name]
            mark = "storm" if failed[name] else None
            body = {"metadata": {"annotations": {FAILED_ANNOTATION: mark}}}
            await client.patch(Node, name, None, body)
            await asyncio.sleep(0.01)
        for name in names:
            await client.patch(
                Node, name, None, {"metadata": {"annotations": {FAILED_ANNOTATION: None}}}
            )
        nodes = cluster.program.cache.store(Node)
        await until(lambda: {health.ready_status(node) for node in nodes} == {"True"}, within=60)
        await settled(cluster)
        await asyncio.sleep(400)
        assert {pod.metadata.uid for pod in pods} == before
        assert not any(node.spec.taints for node in nodes)
