"""Whether a pod could be scheduled in a domain, asked before it is sent there.

The answer is the scheduler's own function, over the stores: resources, taints, spread and affinity
as for any pod. All pods of the cluster are counted the first time that it is asked, in slices, and
followed from then on; ``close`` forgets them, because most of the time no rollout creates a pod.

A pod for which there is room takes it as long as the ``Reservations`` last, so that two pods are
never sent to the last place. Volumes are not known here: pods with claims are never asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Self

from zonewise.api.meta import Key
from zonewise.api.objects.core import Namespace, Node
from zonewise.api.objects.pod import Pod
from zonewise.disruption.grouping import NO_DOMAIN, with_new_keys
from zonewise.disruption.rollouts.replacements import confine, count_spellings
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.process.turns import in_slices
from zonewise.scheduling.cluster import SchedulerCluster
from zonewise.scheduling.decision import (
    PREEMPTION_PREFIX,
    SchedulingDecision,
    format_none_available,
)

PODS_PER_SLICE = 200


class DomainRoom:
    """The cluster as the scheduler sees it, while it is needed."""

    def __init__(self, cache: Cache) -> None:
        self._nodes = cache.store(Node)
        self._pods = cache.store(Pod)
        self._namespaces = cache.store(Namespace)
        self._cluster: SchedulerCluster | None = None
        self._ends: list[Callable[[], None]] = []

    async def open(self) -> SchedulerCluster:
        """The cluster, counted first if it is not followed."""
        if self._cluster is None:
            cluster = SchedulerCluster()
            await in_slices(_count(cluster, self._pods))
            if self._cluster is None:
                self._cluster = cluster
                self._ends = [
                    self._nodes.on_change(self._node_changed),
                    self._namespaces.on_change(self._namespace_changed),
                    self._pods.on_change(self._pod_changed),
                ]
        return self._cluster

    def close(self) -> None:
        """Follow the cluster no longer."""
        for end in self._ends:
            end()
        self._ends, self._cluster = [], None

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        assert self._cluster is not None
        if new is not None:
            self._cluster.set_node(new)
        elif old is not None:
            self._cluster.remove_node(old.metadata.name)

    def _namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        assert self._cluster is not None
        if new is not None:
            self._cluster.set_namespace(new)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        assert self._cluster is not None
        if new is not None:
            self._cluster.set_pod(new)
        elif old is not None:
            self._cluster.remove_pod(old.key)


class Reservations:
    """Places that are given away one after the other, and all free again at the end.

    ``sent`` are pods that were sent to a domain before and have no node yet; ``stranded`` are
    those among them that have no room there any more.
    """

    def __init__(
        self,
        cluster: SchedulerCluster,
        labels: tuple[str, ...],
        sent: Iterable[Pod],
        nodes: Mapping[str, Node],
    ) -> None:
        self._cluster = cluster
        self._labels = labels
        self._nodes = nodes
        self._assumed: list[Key] = []
        self.spellings: dict[Key, int] = {}
        """In which way each pod for which there is room is confined to its domain."""
        self.stranded = [pod for pod in sent if self._reserve(pod)]

    def find_obstacle(self, pod: Pod, domain: str) -> str:
        """Why a pod could not be scheduled in a domain; empty if it could."""
        obstacles = []
        for spelling in range(count_spellings(pod, self._labels, domain)):
            confined = confine(pod, self._labels, domain, spelling=spelling)
            obstacle = self._reserve(confined, domain)
            if not obstacle:
                self.spellings[pod.key] = spelling
                return ""
            obstacles.append(obstacle)
        return obstacles[0]

    def _reserve(self, pod: Pod, domain: str | None = None) -> str:
        decision = self._cluster.decide(pod)
        if decision.node:
            self._cluster.assume(pod, decision.node)
            self._assumed.append(pod.key)
            return ""
        return "" if decision.preemption is not None else self._explain(decision, domain)

    def _explain(self, decision: SchedulingDecision, domain: str | None) -> str:
        """The scheduler's message, of the nodes of the domain alone, without preemption.

        That the others are not of the domain is no news to who asked for it.
        """
        refusals = [
            refusal
            for name, refusal in decision.refusals.items()
            if name in self._nodes and self._domain_of(self._nodes[name]) == domain
        ]
        if refusals:
            return format_none_available(len(refusals), refusals)
        return decision.message.partition(PREEMPTION_PREFIX)[0].rstrip()

    def _domain_of(self, node: Node) -> str:
        return with_new_keys(node.metadata.labels).get(self._labels[0], NO_DOMAIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for key in self._assumed:
            self._cluster.remove_pod(key)


def _count(cluster: SchedulerCluster, pods: Iterable[Pod]) -> Generator[None, None, None]:
    for count, pod in enumerate(tuple(pods), 1):
        cluster.set_pod(pod)
        if count % PODS_PER_SLICE == 0:
            yield
