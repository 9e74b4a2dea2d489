"""The scheduler over an embedded server, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.embedded.living import Living, living, until

from zonewise.api import Node, Pod, convert, decode
from zonewise.api.events import Event
from zonewise.embedded.scheduler import Scheduler

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

ZONE = "topology.kubernetes.io/zone"
PARTS = {"default-scheduler": Scheduler}


async def add_node(cluster: Living, name: str, *, cpu: str = "4", zone: str = "a") -> None:
    """A node that is ready to take pods."""
    node = {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, ZONE: zone}},
        "spec": {},
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}},
    }
    made = await cluster.client.create(convert(Node, node))
    # A new node is tainted until its kubelet speaks; here nobody does.
    assert made.spec.taints
    await cluster.client.patch(Node, name, None, {"spec": {"taints": None}})


async def add_pod(
    cluster: Living, name: str, *, cpu: str = "1", labels: dict[str, str] | None = None, **spec: Any
) -> Pod:
    """A pod of one container."""
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    pod = {
        "metadata": {"name": name, "namespace": "default", "labels": labels or {}},
        "spec": {"containers": [container], **spec},
    }
    path = Pod.resource.path("default")
    answer = await cluster.client.raw("POST", path, body=msgspec.json.encode(pod))
    return decode(Pod, answer.body)


def node_of(cluster: Living, name: str) -> str:
    """The node a pod is bound to, as far as the cache knows."""
    pod = cluster.crew.cache.store(Pod).get(("default", name))
    return pod.spec.node_name if pod is not None else ""


async def test_pods_are_bound_and_spread_over_zones() -> None:
    """Pods get nodes within the bounds of their constraints, and an event says so."""
    async with living(PARTS) as cluster:
        for number in range(6):
            await add_node(cluster, f"n{number}", zone="abc"[number % 3])
        constraint = {
            "maxSkew": 1,
            "topologyKey": ZONE,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "web"}},
        }
        for number in range(9):
            await add_pod(
                cluster,
                f"p{number}",
                labels={"app": "web"},
                topologySpreadConstraints=[constraint],
            )
        await until(lambda: all(node_of(cluster, f"p{number}") for number in range(9)))
        pods = cluster.crew.cache.store(Pod)
        zones = sorted(pod.metadata.labels[ZONE] for pod in pods)
        assert zones == ["a"] * 3 + ["b"] * 3 + ["c"] * 3
        await asyncio.sleep(1)
        events = await cluster.client.list(Event, "default")
        notes = {event.note for event in events if event.reason == "Scheduled"}
        assert f"Successfully assigned default/p0 to {node_of(cluster, 'p0')}" in notes
