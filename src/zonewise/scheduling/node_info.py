"""A node and the pods on it, with the sums that are needed again and again.

``version`` changes with everything, ``shape`` only with the node itself, so that what depends on
the node alone is computed once. Both come from one counter of the cluster and never repeat.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from zonewise.api.meta import Key
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.values import quantity
from zonewise.scheduling.demand import millis, whole
from zonewise.scheduling.requirements import EVERY_ADDRESS, HostPort, Requirements

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True, eq=False)
class PodInfo:
    """A pod on a node, or about to be; ``pod`` is its newest version that means the same."""

    pod: Pod
    requirements: Requirements
    node: str

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.pod.key

    @property
    def priority(self) -> int:
        """How important the pod is."""
        return self.pod.spec.priority or 0

    @property
    def ending(self) -> bool:
        """Whether the pod is terminating."""
        return self.pod.metadata.deletion_timestamp is not None


class NodeInfo:
    """What is known about one node."""

    __slots__ = (
        "allowed",
        "assumed_cpu",
        "assumed_memory",
        "cpu",
        "labels",
        "memory",
        "name",
        "node",
        "others",
        "pod_infos",
        "shape",
        "storage",
        "taints",
        "tie",
        "used_cpu",
        "used_memory",
        "used_others",
        "used_ports",
        "used_storage",
        "version",
    )

    def __init__(self, node: Node, *, tie: int, version: int) -> None:
        self.name = node.metadata.name
        self.tie = tie
        self.pod_infos: dict[Key, PodInfo] = {}
        self.used_cpu = self.used_memory = self.used_storage = 0
        self.assumed_cpu = self.assumed_memory = 0
        self.used_others: dict[str, int] = {}
        self.used_ports: dict[HostPort, int] = {}
        self.become(node, version)

    def become(self, node: Node, version: int) -> None:
        """Take over a changed node."""
        self.node = node
        self.labels: Mapping[str, str] = node.metadata.labels
        self.taints = node.spec.taints
        amounts = {name: quantity.value(text) for name, text in node.status.allocatable.items()}
        self.cpu = millis(amounts.pop("cpu", quantity.value(0)))
        self.memory = whole(amounts.pop("memory", quantity.value(0)))
        self.storage = whole(amounts.pop("ephemeral-storage", quantity.value(0)))
        self.allowed = whole(amounts.pop("pods", quantity.value(0)))
        self.others = {name: whole(amount) for name, amount in amounts.items()}
        self.shape = self.version = version

    def put(self, pod_info: PodInfo, version: int) -> None:
        """A pod is added."""
        self.pod_infos[pod_info.key] = pod_info
        self._count(pod_info, 1)
        self.version = version

    def take(self, key: Key, version: int) -> PodInfo:
        """A pod is removed."""
        pod_info = self.pod_infos.pop(key)
        self._count(pod_info, -1)
        self.version = version
        return pod_info

    def ports_free(self, ports: frozenset[HostPort]) -> bool:
        """Whether these host ports are free; the wildcard address conflicts with every one."""
        used = self.used_ports
        for protocol, number, address in ports:
            for taken in used:
                if taken[:2] == (protocol, number) and (
                    address == taken[2] or EVERY_ADDRESS in (address, taken[2])
                ):
                    return False
        return True

    def _count(self, pod_info: PodInfo, sign: int) -> None:
        needs = pod_info.requirements.needs
        demand = needs.demand
        self.used_cpu += sign * demand.cpu
        self.used_memory += sign * demand.memory
        self.used_storage += sign * demand.storage
        self.assumed_cpu += sign * demand.assumed_cpu
        self.assumed_memory += sign * demand.assumed_memory
        if demand.others:
            _change(self.used_others, demand.others, sign)
        if needs.ports:
            _change(self.used_ports, ((port, 1) for port in needs.ports), sign)


def _change(counts: dict[K, int], amounts: Iterable[tuple[K, int]], sign: int) -> None:
    for name, amount in amounts:
        left = counts.get(name, 0) + sign * amount
        if left:
            counts[name] = left
        else:
            counts.pop(name, None)
