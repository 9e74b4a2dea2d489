"""On which nodes the pods of a Service could run.

A dedicated pool of nodes may be half of a cluster's CPU and send nothing to a Service whose pods
and their neighbours never run there. Such a Service can request that only nodes count on which its
own pods could run: taints tolerated, node selector and required affinity fulfilled.

Taints under ``node.kubernetes.io/`` do not count. They are a temporary state (cordoned, not ready,
short of memory), not what the node is for; pods there keep sending traffic.

``EligibleNodes`` is a value that depends only on the templates of the pods, so that shells keep one
set of shares for all Services with the same constraints.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from zonewise.api.objects.core import Node, NodeSelector
from zonewise.api.objects.pod import Pod, PodSpec, Toleration
from zonewise.api.objects.taints import has_untolerated_taint
from zonewise.api.values import nodeselector

TEMPORARY_TAINT_PREFIX = "node.kubernetes.io/"


class NodeConstraints(NamedTuple):
    """What one kind of pod requires of a node."""

    tolerations: tuple[Toleration, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    required: NodeSelector | None = None


@dataclass(frozen=True, slots=True)
class EligibleNodes:
    """What the pods of a Service require of a node, each kind once; without pods, any node."""

    constraints: frozenset[NodeConstraints] = frozenset()

    def select(self, nodes: Iterable[Node]) -> list[Node]:
        """The nodes on which at least one of the pods could run."""
        if not self.constraints:
            return list(nodes)
        matchers = [_NodeMatcher(constraints) for constraints in self.constraints]
        return [node for node in nodes if any(matcher.matches(node) for matcher in matchers)]


def eligible_nodes_of(pods: Iterable[Pod]) -> EligibleNodes:
    """The nodes on which the pods of one Service could run."""
    return EligibleNodes(frozenset(node_constraints_of(pod.spec) for pod in pods))


def node_constraints_of(spec: PodSpec) -> NodeConstraints:
    """What a pod, or a template of one, requires of a node."""
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    return NodeConstraints(
        spec.tolerations,
        tuple(sorted(spec.node_selector.items())),
        affinity.required if affinity is not None else None,
    )


class _NodeMatcher:
    """Constraints, compiled; a selector that cannot be understood selects nothing."""

    def __init__(self, constraints: NodeConstraints) -> None:
        self._constraints = constraints
        self._terms: nodeselector.NodeTerms | None = None
        if constraints.required is not None:
            self._terms = nodeselector.from_object(constraints.required)

    def matches(self, node: Node) -> bool:
        labels = node.metadata.labels
        if any(labels.get(key) != value for key, value in self._constraints.labels):
            return False
        if self._terms is not None and not self._terms.matches(labels, node.metadata.name):
            return False
        lasting_taints = (
            taint for taint in node.spec.taints if not taint.key.startswith(TEMPORARY_TAINT_PREFIX)
        )
        return not has_untolerated_taint(lasting_taints, self._constraints.tolerations)
