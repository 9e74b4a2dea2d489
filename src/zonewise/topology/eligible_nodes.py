"""On which nodes the pods of a Service could run.

A dedicated pool of nodes may be half of a cluster's CPU and send nothing to a Service whose pods
and their neighbours never run there. Such a Service can request shares of only the nodes its own
pods could run on: taints tolerated, node selector and required affinity fulfilled.

Taints under ``node.kubernetes.io/`` do not count. They are a temporary state (cordoned, not ready,
short of memory), not what the node is for; pods there keep sending traffic.

A reach is a value that depends only on the templates of the pods, so that shells keep one set of
shares per reach, not per Service.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from zonewise.api.objects.core import Node, NodeSelector
from zonewise.api.objects.pod import Pod, PodSpec, Toleration
from zonewise.api.objects.taints import kept_off
from zonewise.api.values import nodeselector

PASSING = "node.kubernetes.io/"


class PodPlacement(NamedTuple):
    """What one kind of pod requires of a node."""

    tolerations: tuple[Toleration, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    required: NodeSelector | None = None


@dataclass(frozen=True, slots=True)
class EligibleNodes:
    """What the pods of a Service require of a node, each kind once; no pods, no limits."""

    needs: frozenset[PodPlacement] = frozenset()

    def within(self, nodes: Iterable[Node]) -> list[Node]:
        """The nodes on which at least one of the pods could run."""
        if not self.needs:
            return list(nodes)
        judges = [_Judge(need) for need in self.needs]
        return [node for node in nodes if any(judge.allows(node) for judge in judges)]


def reach_of(pods: Iterable[Pod]) -> EligibleNodes:
    """The reach of the pods of one Service."""
    return EligibleNodes(frozenset(need_of(pod.spec) for pod in pods))


def need_of(spec: PodSpec) -> PodPlacement:
    """What a pod, or a template of one, requires of a node."""
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    return PodPlacement(
        spec.tolerations,
        tuple(sorted(spec.node_selector.items())),
        affinity.required if affinity is not None else None,
    )


class _Judge:
    """A need, compiled; a selector that cannot be understood selects nothing."""

    def __init__(self, need: PodPlacement) -> None:
        self._need = need
        self._terms: nodeselector.NodeTerms | None = None
        if need.required is not None:
            self._terms = nodeselector.from_object(need.required)

    def allows(self, node: Node) -> bool:
        labels = node.metadata.labels
        if any(labels.get(key) != value for key, value in self._need.labels):
            return False
        if self._terms is not None and not self._terms.matches(labels, node.metadata.name):
            return False
        lasting = (taint for taint in node.spec.taints if not taint.key.startswith(PASSING))
        return not kept_off(lasting, self._need.tolerations)
