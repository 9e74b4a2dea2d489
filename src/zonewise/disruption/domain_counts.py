"""The pods of one budget, counted incrementally.

Nothing is decided here: rules are applied to these sums by domain, so that a change of one pod
costs the same whether the budget has five pods or fifty thousand. A pod is *present* if
it is scheduled and neither finished nor terminating. Pods of DaemonSets are counted separately:
they are expected on their nodes, and have no baseline.

The domain of a pod is that of its node, as it is labelled now; once the node is deleted, that of
the pod's own labels. After ``nodes_changed`` every pod has to be put again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_active, is_pod_ready
from zonewise.disruption.grouping import Grouping
from zonewise.disruption.owners import DAEMON_SET, ControllerReference, reference_of
from zonewise.topology.eligible_nodes import EligibleNodes, NodeConstraints, node_constraints_of

T = TypeVar("T")

NEEDS_LIMIT = 1000
"""For how many different needs of pods the domains they can run in are cached."""


class CountedPod(NamedTuple):
    """How a pod is counted."""

    domain: str
    present: bool
    ready: bool
    active: bool
    reference: ControllerReference | None
    need: NodeConstraints | None

    @property
    def is_daemon(self) -> bool:
        """Whether its controller is a DaemonSet."""
        return self.reference is not None and self.reference.key[1] == DAEMON_SET


@dataclass(slots=True)
class DomainCounts:
    """Sums over the pods a budget selects; ``version`` grows with each change."""

    grouping: Grouping
    nodes: Mapping[str, Node]
    version: int = 0
    moves: int = 0
    """Grows when a pod enters or leaves a domain: it is constant for a workload at rest."""
    present: Counter[str] = field(default_factory=Counter)
    """Present pods by domain, without those of DaemonSets."""
    daemons: Counter[str] = field(default_factory=Counter)
    """Present pods of DaemonSets, by domain."""
    ready: Counter[str] = field(default_factory=Counter)
    """Present and Ready, by domain, with those of DaemonSets."""
    ready_by_revision: Counter[tuple[str, ControllerReference]] = field(default_factory=Counter)
    """Present and Ready, by domain, controller and revision."""
    owners_version: int = 0
    """Grows when a controller enters or leaves ``active_by_owner``."""
    active_by_owner: Counter[ControllerReference | None] = field(default_factory=Counter)
    """Pods that neither have finished nor are terminating, by controller."""
    inactive_by_owner: Counter[ControllerReference | None] = field(default_factory=Counter)
    """All other pods, by controller."""
    needs: Counter[NodeConstraints] = field(default_factory=Counter)
    """What pods require of nodes, without those of DaemonSets, which are bound to theirs."""
    pods: dict[str, tuple[Pod, CountedPod]] = field(default_factory=dict)
    """By uid, or by name where there is none."""
    _domains: dict[NodeConstraints | None, Counter[str]] = field(default_factory=dict)

    def put(self, pod: Pod) -> None:
        """Add or change a pod."""
        key = identity(pod)
        counted = self._classify(pod)
        known = self.pods.get(key)
        if known is not None and known[1] == counted:
            self.pods[key] = (pod, counted)
            return
        self.version += 1
        previous = known[1] if known is not None else None
        if (previous is not None and previous.present, previous and previous.domain) != (
            counted.present,
            counted.domain,
        ):
            self.moves += 1
        if previous is not None:
            self._count(previous, -1)
        self.pods[key] = (pod, counted)
        self._count(counted, 1)

    def drop(self, key: str) -> None:
        """Remove a pod that was deleted, or is no longer selected."""
        known = self.pods.pop(key, None)
        if known is not None:
            self.version += 1
            self.moves += known[1].present
            self._count(known[1], -1)

    def nodes_changed(self) -> None:
        """Clear what was derived from nodes."""
        self._domains.clear()

    def count_eligible_nodes(self, need: NodeConstraints | None) -> Counter[str]:
        """How many nodes of each domain a pod with this need could run on; None is any node.

        Cached until nodes change, because every count needs it.
        """
        known = self._domains.get(need)
        if known is None:
            needs = frozenset(() if need is None else (need,))
            nodes = EligibleNodes(needs).select(self.nodes.values())
            if len(self._domains) >= NEEDS_LIMIT:
                self._domains.clear()
            known = self._domains[need] = Counter(
                self.grouping.domain_of(node.metadata.labels, node.metadata.name) for node in nodes
            )
        return known

    def counted_pod(self, pod: Pod) -> CountedPod:
        """How a pod is counted, or would be."""
        known = self.pods.get(identity(pod))
        if known is not None and known[0] is pod:
            return known[1]
        return self._classify(pod)

    def _classify(self, pod: Pod) -> CountedPod:
        node = self.nodes.get(pod.spec.node_name)
        labels = node.metadata.labels if node is not None else pod.metadata.labels
        active = is_pod_active(pod)
        present = active and bool(pod.spec.node_name)
        reference = reference_of(pod)
        daemon = reference is not None and reference.key[1] == DAEMON_SET
        return CountedPod(
            domain=self.grouping.domain_of(labels, pod.spec.node_name),
            present=present,
            ready=present and is_pod_ready(pod),
            active=active,
            reference=reference,
            need=node_constraints_of(pod.spec) if active and not daemon else None,
        )

    def _count(self, counted: CountedPod, by: int) -> None:
        if not counted.active:
            _add(self.inactive_by_owner, counted.reference, by)
        elif _add(self.active_by_owner, counted.reference, by):
            self.owners_version += 1
        if counted.need is not None:
            _add(self.needs, counted.need, by)
        if counted.present:
            _add(self.daemons if counted.is_daemon else self.present, counted.domain, by)
        if counted.ready:
            _add(self.ready, counted.domain, by)
            if counted.reference is not None:
                _add(self.ready_by_revision, (counted.domain, counted.reference), by)


def identity(pod: Pod) -> str:
    """The key of a pod, different from that of another pod with its name."""
    return pod.metadata.uid or pod.metadata.name


def _add(counter: Counter[T], key: T, by: int) -> bool:
    """Count without keeping zeros; returns whether the key was added or removed."""
    existed = counter[key]
    counter[key] += by
    if not counter[key]:
        del counter[key]
        return True
    return not existed
