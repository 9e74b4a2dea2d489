"""Which pod of a StatefulSet is created or deleted next.

Pods are numbered, and a number is an identity: ``web-2`` is made again as ``web-2``. One pass looks
at the pods in this order, and scaling comes before updating:

1. *Wanted* numbers from low to high. A missing pod is made; one that has finished is deleted, and
   then made again.
2. *Condemned* pods, whose numbers are beyond the wanted ones, from high to low.
3. *Outdated* pods from high to low, down to the partition.

**OrderedReady** does one thing at a time and goes no further than a pod that is not available:
numbers below it are fine, numbers above it wait. A condemned pod that is not available may be
deleted only if it is the lowest such pod, as then nothing before it can be made better by waiting.
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
from zonewise.api.objects.pod_state import finished, ready
from zonewise.api.values.int_or_percent import portion
from zonewise.embedded.components.workloads.availability import is_available
from zonewise.embedded.components.workloads.revisions import REVISION_LABEL

_NUMBERED = re.compile(r"(.*)-(0|[1-9][0-9]{0,9})", re.DOTALL)

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
    def numbers(self) -> range:
        """The wanted ordinals."""
        return range(self.start, self.start + self.replicas)

    def revision(self, number: int) -> str:
        """Of which revision a new pod is."""
        below = not self.on_delete and number < self.start + self.partition
        return self.current if below else self.update


@dataclass(frozen=True, slots=True)
class StatefulPodRemoval:
    """A pod that is to go."""

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

    births: tuple[int, ...] = ()
    claimants: tuple[Pod, ...] = ()
    """Pending pods, which may miss claims."""
    tended: tuple[Pod, ...] = ()
    """Pods that must match their ordinal."""
    condemned: tuple[Pod, ...] = ()
    """Pods whose claims may have to go with them."""
    departures: tuple[StatefulPodRemoval, ...] = ()


def number_of(pod: str, of: str) -> int | None:
    """The ordinal in a pod's name, if it is a name a set would give."""
    match = _NUMBERED.fullmatch(pod)
    if match is None or match[1] != of:
        return None
    return int(match[2])


def decide(
    rule: StatefulSetRule, pods: Iterable[Pod], *, now: float, stale: Collection[int] = frozenset()
) -> StatefulSetPlan:
    """One pass; ``stale`` are ordinals whose claims still belong to a deleted pod."""
    living: dict[int, Pod] = {}
    beyond: dict[int, Pod] = {}
    for pod in pods:
        number = number_of(pod.metadata.name, rule.name)
        if number is not None:
            (living if number in rule.numbers else beyond)[number] = pod
    return _Pass(rule, living, beyond, now).run(stale)


def count(rule: StatefulSetRule, pods: Iterable[Pod], *, now: float) -> StatefulSetCounts:
    """Count the pods as a status does: terminating pods count, but for no revision."""
    replicas = is_up = available = current = updated = 0
    for pod in pods:
        replicas += 1
        if pod.status.phase == "Running" and ready(pod):
            is_up += 1
            available += is_available(pod, rule.min_ready, now)
        if pod.metadata.deletion_timestamp is None:
            revision = pod.metadata.labels.get(REVISION_LABEL, "")
            current += revision == rule.current
            updated += revision == rule.update
    return StatefulSetCounts(
        replicas=replicas, ready=is_up, available=available, current=current, updated=updated
    )


def complete(rule: StatefulSetRule, counts: StatefulSetCounts) -> bool:
    """Whether the update revision is now the current one."""
    everything = (counts.updated, counts.ready, counts.replicas)
    return not rule.on_delete and everything == (rule.replicas,) * 3


def allowance(most: IntOrString, replicas: int) -> int:
    """How many pods may be unavailable during an update: percentages round down, to 1 at least."""
    return max(portion(most, replicas, up=False), 1)


class _Pass:
    def __init__(
        self, rule: StatefulSetRule, living: dict[int, Pod], beyond: dict[int, Pod], now: float
    ) -> None:
        self.rule = rule
        self.living = living
        self.beyond = beyond
        self.now = now
        self.births: list[int] = []
        self.claimants: list[Pod] = []
        self.tended: list[Pod] = []
        self.departures: list[StatefulPodRemoval] = []

    def run(self, stale: Collection[int]) -> StatefulSetPlan:
        condemned: tuple[Pod, ...] = ()
        if self._wanted(stale):
            condemned = tuple(self.beyond[number] for number in sorted(self.beyond, reverse=True))
            if self._scaled(condemned) and not self.rule.on_delete:
                self._updated()
        return StatefulSetPlan(
            births=tuple(self.births),
            claimants=tuple(self.claimants),
            tended=tuple(self.tended),
            condemned=condemned,
            departures=tuple(self.departures),
        )

    def _wanted(self, stale: Collection[int]) -> bool:
        """Make and mend; False if the pass ends here."""
        ordered = not self.rule.parallel
        for number in self.rule.numbers:
            pod = self.living.get(number)
            if pod is None:
                if number not in stale:
                    self.births.append(number)
            elif finished(pod):
                if not _leaving(pod):
                    self.departures.append(StatefulPodRemoval(pod, "finished"))
            else:
                if pod.status.phase == "Pending":
                    self.claimants.append(pod)
                if not ordered or self._available(pod):
                    self.tended.append(pod)
                    continue
            if ordered:
                return False
        return True

    def _scaled(self, condemned: tuple[Pod, ...]) -> bool:
        """Take down what is beyond; False if the pass ends here."""
        first = self._first_unavailable(condemned)
        for pod in condemned:
            if self.rule.parallel:
                if not _leaving(pod):
                    self.departures.append(StatefulPodRemoval(pod, "scale-down"))
                continue
            if not _leaving(pod) and (self._available(pod) or pod is first):
                self.departures.append(StatefulPodRemoval(pod, "scale-down"))
            return False
        return True

    def _updated(self) -> None:
        """Take down what is outdated."""
        rule = self.rule
        going = {departure.pod.metadata.uid for departure in self.departures}
        left = None
        if rule.max_unavailable is not None:
            left = allowance(rule.max_unavailable, rule.replicas) - sum(
                not self._available(self.living.get(number)) for number in rule.numbers
            )
        for number in reversed(rule.numbers[rule.partition :]):
            pod = self.living.get(number)
            outdated = (
                pod is not None
                and pod.metadata.labels.get(REVISION_LABEL, "") != rule.update
                and not _leaving(pod)
                and pod.metadata.uid not in going
            )
            if left is None:
                if outdated and pod is not None:
                    self.departures.append(StatefulPodRemoval(pod, "update"))
                if outdated or not self._available(pod):
                    return
            elif left <= 0:
                return
            elif outdated and pod is not None:
                self.departures.append(StatefulPodRemoval(pod, "update"))
                left -= 1

    def _first_unavailable(self, condemned: tuple[Pod, ...]) -> Pod | None:
        wanted = (self.living.get(number) for number in self.rule.numbers)
        for pod in (*wanted, *reversed(condemned)):
            if not self._available(pod):
                return pod
        return None

    def _available(self, pod: Pod | None) -> bool:
        return (
            pod is not None
            and not _leaving(pod)
            and pod.status.phase == "Running"
            and is_available(pod, self.rule.min_ready, self.now)
        )


def _leaving(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None
