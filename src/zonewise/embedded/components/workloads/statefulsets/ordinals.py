"""Which pod of a StatefulSet is created or deleted next.

Each pod has an ordinal, which is its identity: ``web-2`` is recreated as ``web-2``. One sync
processes the pods in this order, and scaling comes before updating:

1. *Replicas*, the desired ordinals from low to high. A missing pod is created; a finished one is
   deleted, and then created again.
2. *Condemned* pods, whose ordinals are not desired, from high to low.
3. *Outdated* pods from high to low, down to the partition.

**OrderedReady** does one thing at a time and goes no further than a pod that is not available:
ordinals below it are available, ordinals above it wait. A condemned pod that is not available may
be deleted only if it is the lowest such pod, as then nothing before it improves by waiting.
**Parallel** neither orders nor waits while it scales.

Updates: without ``maxUnavailable`` one pod at a time is deleted, whatever its state, and the one
before must be available again first. With it, so many may be unavailable together, for whatever
reason. Under ``OnDelete`` nothing is deleted here; a pod that a user deletes is recreated updated.

Time is an argument, and pods may be in any order.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from zonewise.api.meta import IntOrString
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_finished, is_pod_ready
from zonewise.api.values.numbers import scale_int_or_percent
from zonewise.embedded.components.workloads.availability import is_available
from zonewise.embedded.components.workloads.revisions import REVISION_LABEL

_POD_NAME = re.compile(r"(.*)-(0|[1-9][0-9]{0,9})", re.DOTALL)

Cause = Literal["finished", "scale-down", "update"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatefulSetRule:
    """What a StatefulSet specifies; ``current`` and ``update`` are names of revisions."""

    name: str
    replicas: int
    current: str
    update: str
    start: int = 0
    parallel: bool = False
    on_delete: bool = False
    partition: int = 0
    max_unavailable: IntOrString | None = None
    min_ready: int = 0

    @property
    def ordinals(self) -> range:
        """The desired ordinals."""
        return range(self.start, self.start + self.replicas)

    def revision_for(self, ordinal: int) -> str:
        """The revision of a new pod."""
        below = not self.on_delete and ordinal < self.start + self.partition
        return self.current if below else self.update


@dataclass(frozen=True, slots=True)
class StatefulPodRemoval:
    """A pod to remove."""

    pod: Pod
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class StatefulSetCounts:
    """The counts of a status."""

    replicas: int = 0
    ready: int = 0
    available: int = 0
    current: int = 0
    updated: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatefulSetPlan:
    """What to do now, in this order."""

    creations: tuple[int, ...] = ()
    pending: tuple[Pod, ...] = ()
    """Pending pods, whose claims may be missing."""
    to_reconcile: tuple[Pod, ...] = ()
    """Pods whose identity and claims have to be checked."""
    condemned: tuple[Pod, ...] = ()
    """Pods whose claims may have to be deleted with them."""
    removals: tuple[StatefulPodRemoval, ...] = ()


def ordinal_of(pod: str, set_name: str) -> int | None:
    """The ordinal in a pod's name, or None if it is not the name of a pod of this set."""
    match = _POD_NAME.fullmatch(pod)
    if match is None or match[1] != set_name:
        return None
    return int(match[2])


def decide(
    rule: StatefulSetRule, pods: Iterable[Pod], *, now: float, stale: Collection[int] = frozenset()
) -> StatefulSetPlan:
    """Plan one sync; ``stale`` are ordinals whose claims still belong to a deleted pod."""
    replicas: dict[int, Pod] = {}
    condemned: dict[int, Pod] = {}
    for pod in pods:
        ordinal = ordinal_of(pod.metadata.name, rule.name)
        if ordinal is not None:
            (replicas if ordinal in rule.ordinals else condemned)[ordinal] = pod
    return _Planner(rule, replicas, condemned, now).run(stale)


def count(rule: StatefulSetRule, pods: Iterable[Pod], *, now: float) -> StatefulSetCounts:
    """Count the pods for the status: terminating pods count, but for no revision."""
    replicas = ready_pods = available = current = updated = 0
    for pod in pods:
        replicas += 1
        if pod.status.phase == "Running" and is_pod_ready(pod):
            ready_pods += 1
            available += is_available(pod, rule.min_ready, now)
        if pod.metadata.deletion_timestamp is None:
            revision = pod.metadata.labels.get(REVISION_LABEL, "")
            current += revision == rule.current
            updated += revision == rule.update
    return StatefulSetCounts(
        replicas=replicas, ready=ready_pods, available=available, current=current, updated=updated
    )


def is_complete(rule: StatefulSetRule, counts: StatefulSetCounts) -> bool:
    """Whether the update revision becomes the current one."""
    counted = (counts.updated, counts.ready, counts.replicas)
    return not rule.on_delete and counted == (rule.replicas,) * 3


def allowed_unavailable(max_unavailable: IntOrString, replicas: int) -> int:
    """How many pods may be unavailable during an update: percentages round down, to 1 at least."""
    return max(scale_int_or_percent(max_unavailable, replicas, round_up=False), 1)


class _Planner:
    def __init__(
        self, rule: StatefulSetRule, replicas: dict[int, Pod], condemned: dict[int, Pod], now: float
    ) -> None:
        self.rule = rule
        self.replicas = replicas
        self.condemned = condemned
        self.now = now
        self.creations: list[int] = []
        self.pending: list[Pod] = []
        self.to_reconcile: list[Pod] = []
        self.removals: list[StatefulPodRemoval] = []

    def run(self, stale: Collection[int]) -> StatefulSetPlan:
        condemned: tuple[Pod, ...] = ()
        if self._plan_replicas(stale):
            ordinals = sorted(self.condemned, reverse=True)
            condemned = tuple(self.condemned[ordinal] for ordinal in ordinals)
            if self._plan_scale_down(condemned) and not self.rule.on_delete:
                self._plan_updates()
        return StatefulSetPlan(
            creations=tuple(self.creations),
            pending=tuple(self.pending),
            to_reconcile=tuple(self.to_reconcile),
            condemned=condemned,
            removals=tuple(self.removals),
        )

    def _plan_replicas(self, stale: Collection[int]) -> bool:
        """Plan missing and finished pods; False if nothing else is planned."""
        ordered = not self.rule.parallel
        for ordinal in self.rule.ordinals:
            pod = self.replicas.get(ordinal)
            if pod is None:
                if ordinal not in stale:
                    self.creations.append(ordinal)
            elif is_pod_finished(pod):
                if not _is_terminating(pod):
                    self.removals.append(StatefulPodRemoval(pod, "finished"))
            else:
                if pod.status.phase == "Pending":
                    self.pending.append(pod)
                if not ordered or self._available(pod):
                    self.to_reconcile.append(pod)
                    continue
            if ordered:
                return False
        return True

    def _plan_scale_down(self, condemned: tuple[Pod, ...]) -> bool:
        """Plan the removal of condemned pods; False if nothing else is planned."""
        first_unavailable = self._first_unavailable(condemned)
        for pod in condemned:
            if self.rule.parallel:
                if not _is_terminating(pod):
                    self.removals.append(StatefulPodRemoval(pod, "scale-down"))
                continue
            if not _is_terminating(pod) and (self._available(pod) or pod is first_unavailable):
                self.removals.append(StatefulPodRemoval(pod, "scale-down"))
            return False
        return True

    def _plan_updates(self) -> None:
        """Plan the removal of outdated pods."""
        rule = self.rule
        removed_uids = {removal.pod.metadata.uid for removal in self.removals}
        remaining = None
        if rule.max_unavailable is not None:
            remaining = allowed_unavailable(rule.max_unavailable, rule.replicas) - sum(
                not self._available(self.replicas.get(ordinal)) for ordinal in rule.ordinals
            )
        for ordinal in reversed(rule.ordinals[rule.partition :]):
            pod = self.replicas.get(ordinal)
            outdated = (
                pod is not None
                and pod.metadata.labels.get(REVISION_LABEL, "") != rule.update
                and not _is_terminating(pod)
                and pod.metadata.uid not in removed_uids
            )
            if remaining is None:
                if outdated and pod is not None:
                    self.removals.append(StatefulPodRemoval(pod, "update"))
                if outdated or not self._available(pod):
                    return
            elif remaining <= 0:
                return
            elif outdated and pod is not None:
                self.removals.append(StatefulPodRemoval(pod, "update"))
                remaining -= 1

    def _first_unavailable(self, condemned: tuple[Pod, ...]) -> Pod | None:
        replicas = (self.replicas.get(ordinal) for ordinal in self.rule.ordinals)
        for pod in (*replicas, *reversed(condemned)):
            if not self._available(pod):
                return pod
        return None

    def _available(self, pod: Pod | None) -> bool:
        return (
            pod is not None
            and not _is_terminating(pod)
            and pod.status.phase == "Running"
            and is_available(pod, self.rule.min_ready, self.now)
        )


def _is_terminating(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None
