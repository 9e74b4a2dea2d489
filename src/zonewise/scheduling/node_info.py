"""A node and the pods on it, with precomputed sums.

``version`` changes with every change, ``shape`` only with the node itself, so that what depends on
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
from zonewise.scheduling.requirements import EVERY_ADDRESS, HostPort, Requirements
from zonewise.scheduling.resource_request import round_up, round_up_millis

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True, eq=False)
class PodInfo:
    """A pod on a node, or assumed there; ``pod`` is its newest equivalent version."""

    pod: Pod
    requirements: Requirements
    node: str

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.pod.key

    @property
    def priority(self) -> int:
        """The priority of the pod."""
        return self.pod.spec.priority or 0

    @property
    def terminating(self) -> bool:
        """Whether the pod is terminating."""
        return self.pod.metadata.deletion_timestamp is not None


class NodeInfo:
    """A node, its pods, and their sums."""

    __slots__ = (
        "cpu",
        "labels",
        "max_pods",
        "memory",
        "name",
        "node",
        "nonzero_cpu",
        "nonzero_memory",
        "pod_infos",
        "scalars",
        "shape",
        "storage",
        "taints",
        "tie",
        "used_cpu",
        "used_memory",
        "used_ports",
        "used_scalars",
        "used_storage",
        "version",
    )

    def __init__(self, node: Node, *, tie: int, version: int) -> None:
        self.name = node.metadata.name
        self.tie = tie
        self.pod_infos: dict[Key, PodInfo] = {}
        self.used_cpu = self.used_memory = self.used_storage = 0
        self.nonzero_cpu = self.nonzero_memory = 0
        self.used_scalars: dict[str, int] = {}
        self.used_ports: dict[HostPort, int] = {}
        self.set_node(node, version)

    def set_node(self, node: Node, version: int) -> None:
        """Take the fields of a new or changed node."""
        self.node = node
        self.labels: Mapping[str, str] = node.metadata.labels
        self.taints = node.spec.taints
        amounts = {name: quantity.value(text) for name, text in node.status.allocatable.items()}
        self.cpu = round_up_millis(amounts.pop("cpu", quantity.value(0)))
        self.memory = round_up(amounts.pop("memory", quantity.value(0)))
        self.storage = round_up(amounts.pop("ephemeral-storage", quantity.value(0)))
        self.max_pods = round_up(amounts.pop("pods", quantity.value(0)))
        self.scalars = {name: round_up(amount) for name, amount in amounts.items()}
        self.shape = self.version = version

    def add_pod(self, pod_info: PodInfo, version: int) -> None:
        """A pod is added."""
        self.pod_infos[pod_info.key] = pod_info
        self._count(pod_info, 1)
        self.version = version

    def remove_pod(self, key: Key, version: int) -> PodInfo:
        """A pod is removed."""
        pod_info = self.pod_infos.pop(key)
        self._count(pod_info, -1)
        self.version = version
        return pod_info

    def has_free_ports(self, ports: frozenset[HostPort]) -> bool:
        """Whether these host ports are free; the wildcard address conflicts with every one."""
        used = self.used_ports
        for protocol, number, address in ports:
            for used_port in used:
                if used_port[:2] == (protocol, number) and (
                    address == used_port[2] or EVERY_ADDRESS in (address, used_port[2])
                ):
                    return False
        return True

    def _count(self, pod_info: PodInfo, sign: int) -> None:
        node_requirements = pod_info.requirements.node_requirements
        request = node_requirements.request
        self.used_cpu += sign * request.cpu
        self.used_memory += sign * request.memory
        self.used_storage += sign * request.storage
        self.nonzero_cpu += sign * request.nonzero_cpu
        self.nonzero_memory += sign * request.nonzero_memory
        if request.scalars:
            _add_amounts(self.used_scalars, request.scalars, sign)
        if node_requirements.ports:
            _add_amounts(self.used_ports, ((port, 1) for port in node_requirements.ports), sign)


def _add_amounts(counts: dict[K, int], amounts: Iterable[tuple[K, int]], sign: int) -> None:
    for name, amount in amounts:
        remaining = counts.get(name, 0) + sign * amount
        if remaining:
            counts[name] = remaining
        else:
            counts.pop(name, None)
