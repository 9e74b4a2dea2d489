"""The status of large workloads follows: pods are created and deleted in bursts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from tests.embedded.components.workloads.deployments.deploying import deployment
from tests.embedded.components.workloads.pod_attendant import Attendant
from tests.embedded.virtual_cluster import VirtualCluster, until, virtual_cluster

from zonewise.api.meta import Object, ObjectMeta
from zonewise.api.objects.apps import DaemonSet, Deployment, ReplicaSet, StatefulSet
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_active
from zonewise.embedded.components.workloads.daemonsets.controller import DaemonSetController
from zonewise.embedded.components.workloads.deployments.controller import DeploymentController
from zonewise.embedded.components.workloads.jobs.controller import JobController
from zonewise.embedded.components.workloads.jobs.objects import Job
from zonewise.embedded.components.workloads.replicasets.controller import ReplicaSetController
from zonewise.embedded.components.workloads.statefulsets.controller import StatefulSetController
from zonewise.runtime.program.context import ControllerContext
from zonewise.runtime.program.program import Runnable

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime, pytest.mark.slow]

LABELS = {"app": "web"}
TEMPLATE = {
    "metadata": {"labels": LABELS},
    "spec": {
        "containers": [{"name": "main", "image": "app:1"}],
        "tolerations": [{"operator": "Exists"}],
    },
}


@dataclass(frozen=True)
class Kind:
    """A kind of workload, its controller, a large spec, and the number of pods in its status."""

    cls: type[Object]
    keeper: Callable[[ControllerContext], Runnable]
    spec: dict[str, Any]
    count: Callable[[Any], int]
    burst: int
    size: int


KINDS = {
    "replicaset": Kind(
        ReplicaSet,
        ReplicaSetController,
        {"replicas": 1300, "selector": {"matchLabels": LABELS}, "template": TEMPLATE},
        lambda status: int(status.replicas),
        500,
        1300,
    ),
    "statefulset": Kind(
        StatefulSet,
        StatefulSetController,
        {
            "replicas": 1300,
            "serviceName": "web",
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": LABELS},
            "template": TEMPLATE,
        },
        lambda status: int(status.replicas),
        500,
        1300,
    ),
    "daemonset": Kind(
        DaemonSet,
        DaemonSetController,
        {"selector": {"matchLabels": LABELS}, "template": TEMPLATE},
        lambda status: int(status.current_number_scheduled),
        250,
        700,
    ),
    "job": Kind(
        Job,
        JobController,
        {
            "parallelism": 1300,
            "completions": 1300,
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "main", "image": "app:1"}],
                }
            },
        },
        lambda status: int(status.active),
        500,
        1300,
    ),
}


class Lag:
    """The largest difference between the pods and the status of a workload."""

    def __init__(self, cluster: VirtualCluster, count: Callable[[], int]) -> None:
        self.most = 0
        self._count = count
        self._here: set[str] = set()
        cluster.program.cache.store(Pod).on_change(self._changed)

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        del old
        if new is not None:
            (self._here.add if is_pod_active(new) else self._here.discard)(new.metadata.uid)
        self.most = max(self.most, abs(len(self._here) - self._count()))


@pytest.mark.parametrize("name", KINDS)
async def test_the_status_of_a_large_workload_follows(name: str) -> None:
    """The status is never more than two bursts behind the pods, up and down."""
    kind = KINDS[name]
    async with virtual_cluster({"keeper": kind.keeper}) as cluster:
        store = cluster.program.cache.store(kind.cls)

        def count() -> int:
            workload: Any = store.get(("default", "web"))
            return 0 if workload is None else kind.count(workload.status)

        lag = Lag(cluster, count)
        if kind.cls is DaemonSet:
            nodes = (Node(metadata=ObjectMeta(name=f"n{number}")) for number in range(kind.size))
            await asyncio.gather(*map(cluster.client.create, nodes))
        body = {"metadata": {"name": "web"}, "spec": kind.spec}
        path = kind.cls.resource.path("default")
        await cluster.client.raw("POST", path, body=msgspec.json.encode(body))
        await until(lambda: count() == kind.size)
        assert lag.most <= 2 * kind.burst
        if "replicas" in kind.spec:
            await cluster.client.patch(kind.cls, "web", "default", {"spec": {"replicas": 0}})
            await until(lambda: count() == 0, within=600.0)
            assert lag.most <= 2 * kind.burst


async def test_the_status_of_a_large_deployment_follows() -> None:
    """The status of a Deployment is the sum of its ReplicaSets."""
    parts: dict[str, Callable[[ControllerContext], Runnable]] = {
        "deployment-controller": DeploymentController,
        "replicaset-controller": ReplicaSetController,
        "nodes": Attendant,
    }
    async with virtual_cluster(parts) as cluster:
        store = cluster.program.cache.store(Deployment)
        numbers: list[int] = []
        store.on_change(lambda _, new: numbers.append(0 if new is None else new.status.replicas))
        await cluster.client.create(deployment(replicas=1600))
        await until(lambda: bool(numbers) and numbers[-1] == 1600)
        assert any(0 < number < 1600 for number in numbers)
