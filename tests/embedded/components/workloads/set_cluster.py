"""A cluster with the components that a set of pods needs, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar

import msgspec
from tests.embedded.virtual_cluster import VirtualCluster, until, virtual_cluster

from zonewise.api.codec import decode
from zonewise.api.meta import Object, ObjectMeta
from zonewise.api.objects.apps import ControllerRevision, DaemonSet, StatefulSet
from zonewise.api.objects.core import Node
from zonewise.api.objects.events import Event
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.storage import PersistentVolumeClaim
from zonewise.embedded.components.disruption.budgets import DisruptionController
from zonewise.embedded.components.kubelet.kubelets import Kubelets
from zonewise.embedded.components.nodelifecycle.controller import NodeLifecycleController
from zonewise.embedded.components.nodelifecycle.pod_gc import PodGCController
from zonewise.embedded.components.nodelifecycle.taint_eviction import TaintEvictionController
from zonewise.embedded.components.scheduler.scheduler import Scheduler
from zonewise.embedded.components.volumes.protection import VolumeProtectionController
from zonewise.embedded.components.workloads.daemonsets.controller import DaemonSetController
from zonewise.embedded.components.workloads.statefulsets.controller import StatefulSetController
from zonewise.runtime.client.versions import newer
from zonewise.runtime.program.context import ControllerContext
from zonewise.runtime.program.program import Runnable

T = TypeVar("T", bound=Object)
Parts = Mapping[str, Callable[[ControllerContext], Runnable]]


def parts(removal: Literal["evict", "delete"]) -> Parts:
    """The components, without controllers of other workloads."""
    return {
        "kubelets": Kubelets,
        "node-controller": NodeLifecycleController,
        "taint-eviction-controller": TaintEvictionController,
        "pod-garbage-collector": PodGCController,
        "default-scheduler": Scheduler,
        "disruption-controller": DisruptionController,
        "volume-protection-controller": VolumeProtectionController,
        "statefulset-controller": lambda context: StatefulSetController(context, removal=removal),
        "daemonset-controller": lambda context: DaemonSetController(context, removal=removal),
    }


class SetCluster:
    """A running cluster."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.client = cluster.client
        self.cache = cache = cluster.program.cache
        self.nodes = cache.store(Node)
        self.pods = cache.store(Pod)
        self.sets = cache.store(StatefulSet)
        self.daemons = cache.store(DaemonSet)
        self.history = cache.store(ControllerRevision)
        self.claims = cache.store(PersistentVolumeClaim)
        self.events = cache.store(Event)

    async def build(self, *names: str, **labels: str) -> None:
        """Create nodes and wait for them."""
        for name in names:
            await self.client.create(Node(metadata=ObjectMeta(name=name, labels=labels)))
        await until(lambda: not any(node.spec.taints for node in self.nodes))

    async def post(self, cls: type[T], body: Mapping[str, Any]) -> None:
        """Create an object of the namespace ``default``."""
        path = cls.resource.path("default")
        answer = await self.client.raw("POST", path, body=msgspec.json.encode(body))
        await self._seen(decode(cls, answer.body))

    async def patch(self, cls: type[T], name: str, body: object) -> None:
        """Change an object of the namespace ``default``."""
        item = await self.client.patch(cls, name, "default", body, kind="strategic")
        await self._seen(item)

    async def _seen(self, item: Object) -> None:
        store = self.cache.store(type(item))
        await until(lambda: not newer(item.metadata.resource_version, store.resource_version))

    async def delete(self, name: str) -> None:
        """Delete a pod."""
        await self.client.delete(Pod, name, "default")

    def pod(self, name: str) -> Pod:
        """A pod of the cache."""
        pod = self.pods.get(("default", name))
        assert pod is not None
        return pod

    def names(self) -> list[str]:
        """The names of all pods."""
        return sorted(pod.metadata.name for pod in self.pods)

    def images(self) -> dict[str, str]:
        """The images of all pods."""
        return {
            pod.metadata.name: (pod.spec.containers or ())[0].image
            for pod in sorted(self.pods, key=lambda pod: pod.metadata.name)
        }

    def group(self, name: str = "web") -> StatefulSet:
        """A StatefulSet of the cache."""
        group = self.sets.get(("default", name))
        assert group is not None
        return group

    def daemon(self, name: str = "agent") -> DaemonSet:
        """A DaemonSet of the cache."""
        group = self.daemons.get(("default", name))
        assert group is not None
        return group

    def numbers(self) -> list[int]:
        """The numbers of all revisions."""
        return sorted(revision.revision for revision in self.history)

    def list_events(self, kind: str) -> list[tuple[str, str]]:
        """Reasons and notes of the events about objects of a kind, in order."""
        about = [event for event in self.events if event.regarding.kind == kind]
        about.sort(key=lambda event: event.event_time or "")
        return [(event.reason, event.note) for event in about]

    def reasons(self, kind: str) -> set[str]:
        """The reasons of the events about objects of a kind."""
        return {reason for reason, _ in self.list_events(kind)}


@asynccontextmanager
async def set_cluster(
    *nodes: str, removal: Literal["evict", "delete"] = "delete"
) -> AsyncIterator[SetCluster]:
    """A cluster with these nodes."""
    async with virtual_cluster(parts(removal)) as cluster:
        sets = SetCluster(cluster)
        await sets.build(*nodes)
        yield sets
