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

*Evicting*, a set does not wait for a pod that a budget holds: a step names more candidates than it
removes, and one that is held is passed over for the next lower one. Otherwise an ordinal in a
domain that is closed today would keep those of the open one from being updated. So the order of
deletion is "the highest that may go"; the order of creation stays. As a passed pod may go at any
moment, it must not go while one below is still being replaced. An outdated pod that is unavailable
anyway may always go, whatever ``maxUnavailable`` is.

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
    evicting: bool = False
    """Whether budgets may hold pods, which are then passed over."""

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


@dataclass(frozen=True, slots=True)
class RemovalStep:
    """So many of the candidates are removed: the first ones that may be."""

    candidates: tuple[StatefulPodRemoval, ...]
    count: int


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
    removals: tuple[RemovalStep, ...] = ()


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
        self.finished: list[StatefulPodRemoval] = []

    def run(self, stale: Collection[int]) -> StatefulSetPlan:
        condemned: tuple[Pod, ...] = ()
        steps: list[RemovalStep] = []
        if self._plan_replicas(stale):
            ordinals = sorted(self.condemned, reverse=True)
            condemned = tuple(self.condemned[ordinal] for ordinal in ordinals)
            steps = self._plan_steps(condemned)
        steps.insert(0, RemovalStep(tuple(self.finished), len(self.finished)))
        return StatefulSetPlan(
            creations=tuple(self.creations),
            pending=tuple(self.pending),
            to_reconcile=tuple(self.to_reconcile),
            condemned=condemned,
            removals=tuple(step for step in steps if step.candidates and step.count > 0),
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
                    self.finished.append(StatefulPodRemoval(pod, "finished"))
            else:
                if pod.status.phase == "Pending":
                    self.pending.append(pod)
                if not ordered or self._available(pod):
                    self.to_reconcile.append(pod)
                    continue
            if ordered:
                return False
        return True

    def _plan_steps(self, condemned: tuple[Pod, ...]) -> list[RemovalStep]:
        """Plan the removal of condemned pods, then of outdated ones."""
        rule = self.rule
        if rule.parallel:
            leaving = tuple(
                StatefulPodRemoval(pod, "scale-down")
                for pod in condemned
                if not _is_terminating(pod)
            )
            return [RemovalStep(leaving, len(leaving)), *self._plan_updates()]
        if not condemned:
            return self._plan_updates()
        candidates = self._find_condemned_candidates(condemned)
        if rule.evicting and len(candidates) == len(condemned):
            # If all of them are held, an outdated pod that may go does not wait for them.
            for step in self._plan_updates():
                candidates += step.candidates
        return [RemovalStep(tuple(candidates), 1)]

    def _find_condemned_candidates(self, condemned: tuple[Pod, ...]) -> list[StatefulPodRemoval]:
        """The condemned pods of an OrderedReady set of which one may be removed."""
        if self.rule.evicting and any(map(_is_terminating, condemned)):
            return []
        first_unavailable = self._first_unavailable(condemned)
        candidates: list[StatefulPodRemoval] = []
        for pod in condemned:
            waits = not self._available(pod) and pod is not first_unavailable
            if _is_terminating(pod) or waits:
                break
            candidates.append(StatefulPodRemoval(pod, "scale-down"))
        return candidates

    def _plan_updates(self) -> list[RemovalStep]:
        """Plan the removal of outdated pods."""
        rule = self.rule
        if rule.on_delete:
            return []
        finished_uids = {removal.pod.metadata.uid for removal in self.finished}
        candidates: list[StatefulPodRemoval] = []
        settled = True
        """Whether no pod is still being replaced."""
        for ordinal in reversed(rule.ordinals[rule.partition :]):
            pod = self.replicas.get(ordinal)
            if (
                pod is not None
                and pod.metadata.labels.get(REVISION_LABEL, "") != rule.update
                and not _is_terminating(pod)
                and pod.metadata.uid not in finished_uids
            ):
                candidates.append(StatefulPodRemoval(pod, "update"))
            elif rule.max_unavailable is None and not self._available(pod):
                settled = False
                break
        if rule.max_unavailable is None:
            if rule.evicting and not settled:
                candidates = [item for item in candidates if not self._available(item.pod)]
            return [RemovalStep(tuple(candidates), 1)]
        remaining = allowed_unavailable(rule.max_unavailable, rule.replicas) - sum(
            not self._available(self.replicas.get(ordinal)) for ordinal in rule.ordinals
        )
        if not rule.evicting:
            return [RemovalStep(tuple(candidates), remaining)]
        down = tuple(item for item in candidates if not self._available(item.pod))
        running = tuple(item for item in candidates if self._available(item.pod))
        return [RemovalStep(down, len(down)), RemovalStep(running, remaining)]

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
