"""A cluster with everybody a set of pods needs, in virtual time, and words to talk about it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar

import msgspec
from tests.embedded.living import Living, living, until

from zonewise.api.codec import decode
from zonewise.api.core import Node
from zonewise.api.events import Event
from zonewise.api.meta import Object, ObjectMeta
from zonewise.api.pod import Pod
from zonewise.api.storage import PersistentVolumeClaim
from zonewise.embedded.budgets import Budgets
from zonewise.embedded.crew import Means, Part
from zonewise.embedded.kubelets import Kubelets
from zonewise.embedded.nodes import NodeLifecycle, PodCollector, TaintEviction
from zonewise.embedded.scheduler import Scheduler
from zonewise.embedded.volumes import Protection
from zonewise.embedded.workloads.daemonsets import DaemonSets
from zonewise.embedded.workloads.statefulsets import StatefulSets
from zonewise.embedded.workloads.views import ControllerRevision, DaemonSet, StatefulSet
from zonewise.runtime.store import newer

T = TypeVar("T", bound=Object)
Parts = Mapping[str, Callable[[Means], Part]]


def parts(removal: Literal["evict", "delete"]) -> Parts:
    """Everybody but who keeps other workloads."""
    return {
        "kubelets": Kubelets,
        "node-controller": NodeLifecycle,
        "taint-eviction-controller": TaintEviction,
        "pod-garbage-collector": PodCollector,
        "default-scheduler": Scheduler,
        "disruption-controller": Budgets,
        "volume-protection-controller": Protection,
        "statefulset-controller": lambda means: StatefulSets(means, removal=removal),
        "daemonset-controller": lambda means: DaemonSets(means, removal=removal),
    }


class Company:
    """A running cluster."""

    def __init__(self, cluster: Living) -> None:
        self.client = cluster.client
        self.cache = cache = cluster.crew.cache
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
        made = await self.client.patch(cls, name, "default", body, kind="strategic")
        await self._seen(made)

    async def _seen(self, item: Object) -> None:
        store = self.cache.store(type(item))
        await until(lambda: not newer(item.metadata.resource_version, store.resource_version))

    async def delete(self, name: str) -> None:
        """Delete a pod."""
        await self.client.delete(Pod, name, "default")

    def pod(self, name: str) -> Pod:
        """A pod that is there."""
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
        """A StatefulSet that is there."""
        group = self.sets.get(("default", name))
        assert group is not None
        return group

    def daemon(self, name: str = "agent") -> DaemonSet:
        """A DaemonSet that is there."""
        group = self.daemons.get(("default", name))
        assert group is not None
        return group

    def numbers(self) -> list[int]:
        """The numbers of all revisions."""
        return sorted(one.revision for one in self.history)

    def told(self, kind: str) -> list[tuple[str, str]]:
        """Reasons and notes of the events about objects of a kind, in order."""
        about = [one for one in self.events if one.regarding.kind == kind]
        about.sort(key=lambda one: one.event_time or "")
        return [(one.reason, one.note) for one in about]

    def reasons(self, kind: str) -> set[str]:
        """The reasons of the events about objects of a kind."""
        return {reason for reason, _ in self.told(kind)}


@asynccontextmanager
async def company(
    *nodes: str, removal: Literal["evict", "delete"] = "delete"
) -> AsyncIterator[Company]:
    """A cluster with these nodes."""
    async with living(parts(removal)) as cluster:
        found = Company(cluster)
        await found.build(*nodes)
        yield found
