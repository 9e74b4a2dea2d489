"""Which pods of a DaemonSet are created and deleted, node by node.

First every node gets what it should have: a pod where one should run and none is; none where none
may be; not two where one is enough; none that has finished. Only when nothing of that is left to do
may pods be replaced for an update, so that a rollout never competes with repairs.

*Without surge* an outdated pod is deleted and the new one is made when that is done. Pods that are
unavailable anyway are deleted at once; of the available ones so many that no more than
``maxUnavailable`` nodes are without, and nodes that are down for another reason count. *With surge*
the new pod is made beside the old one, on ``maxSurge`` nodes at a time, and the old one is deleted
when the new one is available, or when it is not ready itself. A node with a NoSchedule taint gets
no new pod; its old one is deleted once enough others are available.

A pod that failed is replaced with a growing pause per node, or a kubelet that refuses it would
cause a hot loop; ``resting`` names the nodes that have to wait.

Nodes are processed by name, and time is an argument.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal

from zonewise.api.meta import IntOrString
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import ready
from zonewise.api.values.int_or_percent import portion
from zonewise.embedded.components.workloads.availability import is_available
from zonewise.embedded.components.workloads.daemonsets.placement import Fit
from zonewise.embedded.components.workloads.revisions import REVISION_LABEL

GENERATION_LABEL = "pod-template-generation"

Cause = Literal["failed", "succeeded", "misplaced", "surplus"]


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
        """Whether a pod is made from the present template."""
        labels = pod.metadata.labels
        if self.generation and labels.get(GENERATION_LABEL) == self.generation:
            return True
        return labels.get(REVISION_LABEL) == self.revision


@dataclass(frozen=True, slots=True)
class Spot:
    """A node, whether it is meant, and the set's pods on it or for it."""

    node: str
    fit: Fit
    pods: tuple[Pod, ...] = ()


@dataclass(frozen=True, slots=True)
class DaemonPodRemoval:
    """A pod that is to go for another reason than an update."""

    pod: Pod
    node: str
    cause: Cause


@dataclass(slots=True)
class DaemonSetPlan:
    """What to do now."""

    births: list[str] = field(default_factory=list)
    """Nodes that get a pod."""
    departures: list[DaemonPodRemoval] = field(default_factory=list)
    outdated: list[Pod] = field(default_factory=list)
    """Pods an update takes down: the first ``allowed`` of them, or others instead."""
    allowed: int = 0
    held: list[str] = field(default_factory=list)
    """Nodes whose failed pod has to wait."""


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
    spots: Iterable[Spot],
    *,
    now: float,
    stray: Iterable[Pod] = (),
    resting: Collection[str] = frozenset(),
) -> DaemonSetPlan:
    """One pass; ``stray`` are pods for nodes that are no more."""
    known = sorted(spots, key=lambda spot: spot.node)
    decision = DaemonSetPlan()
    for spot in known:
        _settle(rule, spot, decision, now=now, resting=resting)
    for pod in stray:
        if not pod.spec.node_name and not _leaving(pod):
            decision.departures.append(DaemonPodRemoval(pod, "", "misplaced"))
    busy = decision.births or decision.departures or decision.outdated
    if not busy and not rule.on_delete:
        _update(rule, known, decision, now=now)
    return decision


def count(rule: DaemonSetRule, spots: Iterable[Spot], *, now: float) -> DaemonSetCounts:
    """Count nodes as a status does: by the oldest pod of each."""
    desired = current = misscheduled = up = available = updated = 0
    for spot in spots:
        if not spot.fit.run:
            misscheduled += bool(spot.pods)
            continue
        desired += 1
        if not spot.pods:
            continue
        current += 1
        pod = min(spot.pods, key=_age)
        up += ready(pod)
        available += is_available(pod, rule.min_ready, now)
        updated += rule.updated(pod)
    return DaemonSetCounts(
        desired=desired,
        current=current,
        misscheduled=misscheduled,
        ready=up,
        available=available,
        updated=updated,
    )


def _settle(
    rule: DaemonSetRule,
    spot: Spot,
    decision: DaemonSetPlan,
    *,
    now: float,
    resting: Collection[str],
) -> None:
    """Give a node what it should have."""
    if spot.fit.run and not spot.pods:
        decision.births.append(spot.node)
        return
    here = [pod for pod in spot.pods if not _leaving(pod)]
    if not spot.fit.stay:
        decision.departures += [DaemonPodRemoval(pod, spot.node, "misplaced") for pod in here]
        return
    running: list[Pod] = []
    for pod in here:
        if pod.status.phase == "Failed":
            if spot.node in resting:
                decision.held.append(spot.node)
            else:
                decision.departures.append(DaemonPodRemoval(pod, spot.node, "failed"))
        elif pod.status.phase == "Succeeded":
            decision.departures.append(DaemonPodRemoval(pod, spot.node, "succeeded"))
        else:
            running.append(pod)
    running.sort(key=_age)
    if not _surges(rule):
        decision.departures += [DaemonPodRemoval(pod, spot.node, "surplus") for pod in running[1:]]
    elif not running:
        if spot.fit.run:
            decision.births.append(spot.node)
    else:
        _pair(rule, spot, running, decision, now=now)


def _pair(
    rule: DaemonSetRule, spot: Spot, running: list[Pod], decision: DaemonSetPlan, *, now: float
) -> None:
    """Leave one pod of each kind; the old one is deleted when it is no longer needed."""
    new = [pod for pod in running if pod.metadata.labels.get(REVISION_LABEL) == rule.revision]
    old = [pod for pod in running if pod.metadata.labels.get(REVISION_LABEL) != rule.revision]
    decision.departures += [
        DaemonPodRemoval(pod, spot.node, "surplus") for pod in (*new[1:], *old[1:])
    ]
    if new and old and (not ready(old[0]) or is_available(new[0], rule.min_ready, now)):
        decision.outdated.append(old[0])
        decision.allowed += 1


def _update(rule: DaemonSetRule, spots: list[Spot], decision: DaemonSetPlan, *, now: float) -> None:
    desired = sum(spot.fit.run for spot in spots)
    inhabited = [spot for spot in spots if spot.pods or spot.fit.run]
    surge = portion(rule.surge, desired, up=True)
    if surge == 0:
        most = portion(rule.unavailable, desired, up=True) or 1
        _in_place(rule, inhabited, decision, now=now, most=most)
    else:
        _beside(rule, inhabited, decision, now=now, most=surge, desired=desired)


def _in_place(
    rule: DaemonSetRule, spots: list[Spot], decision: DaemonSetPlan, *, now: float, most: int
) -> None:
    down = 0
    useless: list[Pod] = []
    candidates: list[Pod] = []
    for spot in spots:
        new, old = _sorted(rule, spot)
        if len(new) + len(old) != 1:
            down += 1
        elif not is_available((new or old)[0], rule.min_ready, now):
            down += 1
            useless += old
        else:
            candidates += old
    decision.outdated = useless + candidates
    decision.allowed = len(useless) + min(max(most - down, 0), len(candidates))


def _beside(
    rule: DaemonSetRule,
    spots: list[Spot],
    decision: DaemonSetPlan,
    *,
    now: float,
    most: int,
    desired: int,
) -> None:
    surging = available = 0
    candidates: list[str] = []
    leftover: list[Pod] = []
    for spot in spots:
        new, old = _sorted(rule, spot)
        if len(new) > 1 or len(old) > 1:
            surging += 1
            continue
        up = [is_available(pod, rule.min_ready, now) for pod in (*old, *new)]
        available += bool(up and up[0])
        if not old:
            continue
        if new:
            # An old pod beside an available new one is deleted before updates are planned.
            surging += 1
        elif not spot.fit.run:
            if up[0]:
                leftover.append(old[0])
            else:
                decision.outdated.append(old[0])
                decision.allowed += 1
        elif up[0]:
            candidates.append(spot.node)
        else:
            decision.births.append(spot.node)
    decision.births += candidates[: max(most - surging, 0)]
    decision.outdated += leftover
    decision.allowed += min(max(available - desired, 0), len(leftover))


def _sorted(rule: DaemonSetRule, spot: Spot) -> tuple[list[Pod], list[Pod]]:
    new: list[Pod] = []
    old: list[Pod] = []
    for pod in spot.pods:
        if not _leaving(pod):
            (new if rule.updated(pod) else old).append(pod)
    return new, old


def _surges(rule: DaemonSetRule) -> bool:
    return not rule.on_delete and portion(rule.surge, 1, up=True) > 0


def _age(pod: Pod) -> tuple[bool, str, str]:
    """Bound pods first, then the oldest."""
    meta = pod.metadata
    return (not pod.spec.node_name, meta.creation_timestamp or "", meta.name)


def _leaving(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None
