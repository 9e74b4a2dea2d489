"""The pods of one budget, counted incrementally.

Nothing here is decided: these are the sums that rules are applied to, by domain, so that a change
of one pod costs the same whether the budget has five pods or fifty thousand. A pod is *present* if
it is scheduled and neither finished nor terminating. Pods of DaemonSets are counted apart: they are
expected on their nodes, and have no baseline.

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
from zonewise.api.objects.pod_state import active, ready
from zonewise.disruption.grouping import Grouping
from zonewise.disruption.owners import DAEMON_SET, Reference, reference_of
from zonewise.topology import EligibleNodes, PodPlacement, need_of

T = TypeVar("T")

NEEDS_KEPT = 1000
"""So many needs of pods are remembered with the domains they can run in."""


class PodPlace(NamedTuple):
    """What one pod adds to the counts."""

    domain: str
    present: bool
    ready: bool
    active: bool
    reference: Reference | None
    need: PodPlacement | None

    @property
    def daemon(self) -> bool:
        """Whether a DaemonSet keeps it."""
        return self.reference is not None and self.reference.place[1] == DAEMON_SET


@dataclass(slots=True)
class DomainCounts:
    """Sums over the pods a budget selects; ``version`` grows with each change."""

    grouping: Grouping
    nodes: Mapping[str, Node]
    version: int = 0
    moves: int = 0
    """Grows when a pod enters or leaves a domain: it is constant for a workload at rest."""
    present: Counter[str] = field(default_factory=Counter)
    """By domain, without those of DaemonSets."""
    daemons: Counter[str] = field(default_factory=Counter)
    """The same, of DaemonSets."""
    ready: Counter[str] = field(default_factory=Counter)
    """Present and Ready, of all."""
    revisions: Counter[tuple[str, Reference]] = field(default_factory=Counter)
    """Present and Ready, by domain, controller and revision."""
    owners_version: int = 0
    """Grows when a controller is the first or last time in ``owners``."""
    owners: Counter[Reference | None] = field(default_factory=Counter)
    """Pods that neither have finished nor are leaving, by controller."""
    leaving: Counter[Reference | None] = field(default_factory=Counter)
    """All others."""
    needs: Counter[PodPlacement] = field(default_factory=Counter)
    """What pods require of nodes; those of DaemonSets are tied to theirs and do not count."""
    pods: dict[str, tuple[Pod, PodPlace]] = field(default_factory=dict)
    """By uid, or by name where there is none."""
    _domains: dict[PodPlacement | None, Counter[str]] = field(default_factory=dict)

    def put(self, pod: Pod) -> None:
        """Add a pod, or see it changed."""
        key = identity(pod)
        place = self._place(pod)
        known = self.pods.get(key)
        if known is not None and known[1] == place:
            self.pods[key] = (pod, place)
            return
        self.version += 1
        was = known[1] if known is not None else None
        if (was is not None and was.present, was and was.domain) != (place.present, place.domain):
            self.moves += 1
        if was is not None:
            self._count(was, -1)
        self.pods[key] = (pod, place)
        self._count(place, 1)

    def drop(self, key: str) -> None:
        """Remove a pod that was deleted, or is not selected any more."""
        known = self.pods.pop(key, None)
        if known is not None:
            self.version += 1
            self.moves += known[1].present
            self._count(known[1], -1)

    def nodes_changed(self) -> None:
        """Forget what was derived from nodes."""
        self._domains.clear()

    def reachable(self, need: PodPlacement | None) -> Counter[str]:
        """How many nodes of each domain a pod with this need could run on; None is any node.

        Cached until nodes change, because every count needs it.
        """
        known = self._domains.get(need)
        if known is None:
            needs = frozenset(() if need is None else (need,))
            nodes = EligibleNodes(needs).within(self.nodes.values())
            if len(self._domains) >= NEEDS_KEPT:
                self._domains.clear()
            known = self._domains[need] = Counter(
                self.grouping.domain(node.metadata.labels, node.metadata.name) for node in nodes
            )
        return known

    def place(self, pod: Pod) -> PodPlace:
        """Where a pod counts, and as what."""
        known = self.pods.get(identity(pod))
        if known is not None and known[0] is pod:
            return known[1]
        return self._place(pod)

    def _place(self, pod: Pod) -> PodPlace:
        node = self.nodes.get(pod.spec.node_name)
        labels = node.metadata.labels if node is not None else pod.metadata.labels
        alive = active(pod)
        there = alive and bool(pod.spec.node_name)
        reference = reference_of(pod)
        daemon = reference is not None and reference.place[1] == DAEMON_SET
        return PodPlace(
            domain=self.grouping.domain(labels, pod.spec.node_name),
            present=there,
            ready=there and ready(pod),
            active=alive,
            reference=reference,
            need=need_of(pod.spec) if alive and not daemon else None,
        )

    def _count(self, place: PodPlace, by: int) -> None:
        if not place.active:
            _add(self.leaving, place.reference, by)
        elif _add(self.owners, place.reference, by):
            self.owners_version += 1
        if place.need is not None:
            _add(self.needs, place.need, by)
        if place.present:
            _add(self.daemons if place.daemon else self.present, place.domain, by)
        if place.ready:
            _add(self.ready, place.domain, by)
            if place.reference is not None:
                _add(self.revisions, (place.domain, place.reference), by)


def identity(pod: Pod) -> str:
    """What distinguishes a pod from another one of its name."""
    return pod.metadata.uid or pod.metadata.name


def _add(counter: Counter[T], key: T, by: int) -> bool:
    """Count, and keep no zeros: what is in a counter exists. Whether it begins or ceases to."""
    before = counter[key]
    counter[key] += by
    if not counter[key]:
        del counter[key]
        return True
    return not before
