"""Which pods of a DaemonSet are created and deleted, node by node.

First every node gets what it should have: a pod where one should run and is missing; none where
none may be; one where there are two; none that has finished. Only when none of that is left to do
may pods be replaced for an update, so that a rollout never competes with repairs. A pod where none
may be is *misplaced*: a budget may hold it, and an update does not wait for it.

*Without surge* an outdated pod is deleted and the new one is created when that is done. Pods that
are unavailable anyway are deleted at once; of the available ones so many that no more than
``maxUnavailable`` nodes are without one, and nodes that are down for another reason count. *With
surge* the new pod is created beside the old one, on ``maxSurge`` nodes at a time, and the old one
is deleted when the new one is available, or when it is not ready itself. A node with a NoSchedule
taint gets no new pod; its old one is deleted once enough others are available.

A pod that failed is replaced with a growing delay per node, or a kubelet that refuses it would
cause a hot loop; ``backing_off`` names the nodes that have to wait.

Nodes are processed by name, and time is an argument.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal

from zonewise.api.meta import IntOrString
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_ready
from zonewise.api.values.numbers import scale_int_or_percent
from zonewise.embedded.components.workloads.availability import is_available
from zonewise.embedded.components.workloads.daemonsets.placement import DaemonFit
from zonewise.embedded.components.workloads.revisions import REVISION_LABEL

GENERATION_LABEL = "pod-template-generation"

Cause = Literal["failed", "succeeded", "surplus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSetRule:
    """What a DaemonSet specifies; a pod is updated if it has the revision or the generation."""

    revision: str
    generation: str = ""
    on_delete: bool = False
    surge: IntOrString = 0
    unavailable: IntOrString = 1
    min_ready: int = 0

    def updated(self, pod: Pod) -> bool:
        """Whether a pod was created from the current template."""
        labels = pod.metadata.labels
        if self.generation and labels.get(GENERATION_LABEL) == self.generation:
            return True
        return labels.get(REVISION_LABEL) == self.revision


@dataclass(frozen=True, slots=True)
class DaemonNode:
    """A node, whether it is eligible, and the set's pods on it or for it."""

    name: str
    fit: DaemonFit
    pods: tuple[Pod, ...] = ()


@dataclass(frozen=True, slots=True)
class DaemonPodRemoval:
    """A pod to delete for another reason than an update."""

    pod: Pod
    node: str
    cause: Cause


@dataclass(slots=True)
class DaemonSetPlan:
    """What to do now."""

    creations: list[str] = field(default_factory=list)
    """Nodes that get a pod."""
    removals: list[DaemonPodRemoval] = field(default_factory=list)
    misplaced: list[Pod] = field(default_factory=list)
    """Pods to remove because none may be where they are."""
    outdated: list[Pod] = field(default_factory=list)
    """Pods to remove for an update: the first ``allowed`` of them, or others instead."""
    allowed: int = 0
    backing_off: list[str] = field(default_factory=list)
    """Nodes whose failed pod is not replaced yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSetCounts:
    """The counts of a status."""

    desired: int = 0
    current: int = 0
    misscheduled: int = 0
    ready: int = 0
    available: int = 0
    updated: int = 0


def decide(
    rule: DaemonSetRule,
    nodes: Iterable[DaemonNode],
    *,
    now: float,
    stranded: Iterable[Pod] = (),
    backing_off: Collection[str] = frozenset(),
) -> DaemonSetPlan:
    """Plan one sync; ``stranded`` are pods for nodes that do not exist."""
    nodes_by_name = sorted(nodes, key=lambda node: node.name)
    decision = DaemonSetPlan()
    for node in nodes_by_name:
        _plan_node(rule, node, decision, now=now, backing_off=backing_off)
    for pod in stranded:
        if not pod.spec.node_name and not _is_terminating(pod):
            decision.misplaced.append(pod)
    busy = decision.creations or decision.removals or decision.outdated
    if not busy and not rule.on_delete:
        _plan_update(rule, nodes_by_name, decision, now=now)
    return decision


def count(rule: DaemonSetRule, nodes: Iterable[DaemonNode], *, now: float) -> DaemonSetCounts:
    """Count nodes as a status does: by the oldest pod of each."""
    desired = current = misscheduled = ready_nodes = available = updated = 0
    for node in nodes:
        if not node.fit.should_run:
            misscheduled += bool(node.pods)
            continue
        desired += 1
        if not node.pods:
            continue
        current += 1
        pod = min(node.pods, key=_age_key)
        ready_nodes += is_pod_ready(pod)
        available += is_available(pod, rule.min_ready, now)
        updated += rule.updated(pod)
    return DaemonSetCounts(
        desired=desired,
        current=current,
        misscheduled=misscheduled,
        ready=ready_nodes,
        available=available,
        updated=updated,
    )


def _plan_node(
    rule: DaemonSetRule,
    node: DaemonNode,
    decision: DaemonSetPlan,
    *,
    now: float,
    backing_off: Collection[str],
) -> None:
    """Plan what a node should have, apart from updates."""
    if node.fit.should_run and not node.pods:
        decision.creations.append(node.name)
        return
    living = [pod for pod in node.pods if not _is_terminating(pod)]
    if not node.fit.may_stay:
        decision.misplaced += living
        return
    running: list[Pod] = []
    for pod in living:
        if pod.status.phase == "Failed":
            if node.name in backing_off:
                decision.backing_off.append(node.name)
            else:
                decision.removals.append(DaemonPodRemoval(pod, node.name, "failed"))
        elif pod.status.phase == "Succeeded":
            decision.removals.append(DaemonPodRemoval(pod, node.name, "succeeded"))
        else:
            running.append(pod)
    running.sort(key=_age_key)
    if not _has_surge(rule):
        decision.removals += [DaemonPodRemoval(pod, node.name, "surplus") for pod in running[1:]]
    elif not running:
        if node.fit.should_run:
            decision.creations.append(node.name)
    else:
        _plan_surge_pair(rule, node, running, decision, now=now)


def _plan_surge_pair(
    rule: DaemonSetRule,
    node: DaemonNode,
    running: list[Pod],
    decision: DaemonSetPlan,
    *,
    now: float,
) -> None:
    """Keep one new and one old pod; the old one is deleted when it is no longer needed."""
    new = [pod for pod in running if pod.metadata.labels.get(REVISION_LABEL) == rule.revision]
    old = [pod for pod in running if pod.metadata.labels.get(REVISION_LABEL) != rule.revision]
    surplus = (*new[1:], *old[1:])
    decision.removals += [DaemonPodRemoval(pod, node.name, "surplus") for pod in surplus]
    if new and old and (not is_pod_ready(old[0]) or is_available(new[0], rule.min_ready, now)):
        decision.outdated.append(old[0])
        decision.allowed += 1


def _plan_update(
    rule: DaemonSetRule, nodes: list[DaemonNode], decision: DaemonSetPlan, *, now: float
) -> None:
    desired = sum(node.fit.should_run for node in nodes)
    relevant = [node for node in nodes if node.pods or node.fit.should_run]
    surge = scale_int_or_percent(rule.surge, desired, round_up=True)
    if surge == 0:
        max_unavailable = scale_int_or_percent(rule.unavailable, desired, round_up=True) or 1
        _plan_without_surge(rule, relevant, decision, now=now, max_unavailable=max_unavailable)
    else:
        _plan_with_surge(rule, relevant, decision, now=now, max_surge=surge, desired=desired)


def _plan_without_surge(
    rule: DaemonSetRule,
    nodes: list[DaemonNode],
    decision: DaemonSetPlan,
    *,
    now: float,
    max_unavailable: int,
) -> None:
    unavailable_nodes = 0
    unavailable: list[Pod] = []
    candidates: list[Pod] = []
    for node in nodes:
        new, old = _split_by_revision(rule, node)
        if len(new) + len(old) != 1:
            unavailable_nodes += 1
        elif not is_available((new or old)[0], rule.min_ready, now):
            unavailable_nodes += 1
            unavailable += old
        else:
            candidates += old
    decision.outdated = unavailable + candidates
    room = max(max_unavailable - unavailable_nodes, 0)
    decision.allowed = len(unavailable) + min(room, len(candidates))


def _plan_with_surge(
    rule: DaemonSetRule,
    nodes: list[DaemonNode],
    decision: DaemonSetPlan,
    *,
    now: float,
    max_surge: int,
    desired: int,
) -> None:
    surging = available = 0
    candidates: list[str] = []
    unneeded: list[Pod] = []
    for node in nodes:
        new, old = _split_by_revision(rule, node)
        if len(new) > 1 or len(old) > 1:
            surging += 1
            continue
        availability = [is_available(pod, rule.min_ready, now) for pod in (*old, *new)]
        available += bool(availability and availability[0])
        if not old:
            continue
        if new:
            # An old pod beside an available new one is deleted before updates are planned.
            surging += 1
        elif not node.fit.should_run:
            if availability[0]:
                unneeded.append(old[0])
            else:
                decision.outdated.append(old[0])
                decision.allowed += 1
        elif availability[0]:
            candidates.append(node.name)
        else:
            decision.creations.append(node.name)
    decision.creations += candidates[: max(max_surge - surging, 0)]
    decision.outdated += unneeded
    decision.allowed += min(max(available - desired, 0), len(unneeded))


def _split_by_revision(rule: DaemonSetRule, node: DaemonNode) -> tuple[list[Pod], list[Pod]]:
    new: list[Pod] = []
    old: list[Pod] = []
    for pod in node.pods:
        if not _is_terminating(pod):
            (new if rule.updated(pod) else old).append(pod)
    return new, old


def _has_surge(rule: DaemonSetRule) -> bool:
    return not rule.on_delete and scale_int_or_percent(rule.surge, 1, round_up=True) > 0


def _age_key(pod: Pod) -> tuple[bool, str, str]:
    """Bound pods first, then the oldest."""
    meta = pod.metadata
    return (not pod.spec.node_name, meta.creation_timestamp or "", meta.name)


def _is_terminating(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None
