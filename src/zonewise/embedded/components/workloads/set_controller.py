"""What the controllers of StatefulSets and DaemonSets have in common.

A ``SetController`` watches the sets of one kind, their pods and revisions, and ensures that a set
has one pass at a time, none while the store lacks what the last one wrote, and not more than its
size allows (``pacing``). A ``Pass`` is one look at one set, from the claims to the status.

*Retried* with backoff is a pass in which something failed; its status is written all the same, and
events report what failed. A refused eviction is no failure: the set is tried again when ``removal``
says, or when a budget of its namespace allows more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, Literal, TypeVar

from zonewise.api.errors import Conflict, ZonewiseError
from zonewise.api.meta import Key, Object
from zonewise.api.objects.apps import ControllerRevision, DaemonSet, StatefulSet
from zonewise.api.objects.budgets import TopologyDisruptionBudget
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.api.values import selector as labelselector
from zonewise.disruption import BudgetsCache
from zonewise.embedded.components.workloads import revisions
from zonewise.embedded.components.workloads.adoption import claimed, indexed
from zonewise.embedded.components.workloads.availability import next_available
from zonewise.embedded.components.workloads.pacing import Pacing
from zonewise.embedded.components.workloads.removal import Removal, RemovalMode
from zonewise.embedded.components.workloads.triggers import (
    gets_ready,
    gives,
    held,
    matters,
    members,
    refused,
)
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.controller.controller import Controller, own_key
from zonewise.runtime.controller.expectations import GLANCE, Expectations

W = TypeVar("W", bound=StatefulSet | DaemonSet)


class SetController(ABC, Generic[W]):
    """Looks after the sets of one kind."""

    def __init__(
        self,
        context: ComponentContext,
        kind: type[W],
        *,
        removal: RemovalMode,
        budgets_cache: BudgetsCache | None,
        workers: int,
    ) -> None:
        self.client = context.client
        self.recorder = context.recorder
        self.clock = context.clock
        self.removal: Removal[Key] = Removal(
            context.client, mode=removal, budgets_cache=budgets_cache, now=context.clock
        )
        self.pacing: Pacing[Key] = Pacing()
        self.controller: Controller[Key] = Controller(
            kind.resource.plural,
            self._reconcile,
            cache=context.cache,
            workers=workers,
            rng=context.rng,
        )
        watches = self.controller.watches
        self.sets = watches(kind, own_key)
        woken = members(self.sets, kind.resource.kind)
        self.pods = indexed(watches(Pod, woken, when=matters))
        self.expected: Expectations[Key, Pod] = Expectations(self.pods)
        self.revisions = indexed(watches(ControllerRevision, woken))
        if removal == "evict":
            watches(PodDisruptionBudget, refused(self.removal), when=gives)
            if budgets_cache is not None:
                watches(TopologyDisruptionBudget, refused(self.removal), when=gives)
                watches(Pod, held(self.removal), when=gets_ready)

    async def run(self) -> None:
        """Work until cancelled."""
        await self.controller.run()

    @abstractmethod
    def size(self, group: W) -> int:
        """What a pass over a set costs, in pods."""

    @abstractmethod
    async def keep(self, group: W) -> float | None:
        """One pass over a set; gives when to look again."""

    def forget(self, key: Key) -> None:
        """A set is deleted."""
        self.expected.forget(key)
        self.pacing.forget(key)
        self.removal.forget(key)

    async def _reconcile(self, key: Key) -> float | None:
        group = self.sets.get(key)
        if group is None:
            self.forget(key)
            return None
        if not self.expected.settled(key):
            return GLANCE
        if (wait := self.pacing.wait(key)) > 0:
            return wait
        try:
            return await self.keep(group)
        finally:
            self.pacing.passed(key, self.size(group))


class Pass(ABC, Generic[W]):
    """One pass over one set."""

    def __init__(self, home: SetController[W], group: W) -> None:
        self.client = home.client
        self.group = group
        self.now = home.clock()
        self.errors: list[ZonewiseError] = []
        self.again: list[float] = []
        self._home = home
        self._selector = labelselector.from_object(group.spec.selector)

    @abstractmethod
    def gone(self, pod: Pod) -> None:
        """Record an event that a pod was removed."""

    @abstractmethod
    def stuck(self, pod: Pod, error: ZonewiseError) -> None:
        """Record an event that a pod could not be deleted."""

    async def own_pods(self, fits: Callable[[Pod], bool] = lambda _: True) -> tuple[Pod, ...]:
        """The set's pods, after adopting and releasing."""
        return await claimed(self.client, self.group, self._selector, self._home.pods, fits=fits)

    async def own_history(self) -> list[ControllerRevision]:
        """The set's revisions, after adopting and releasing, oldest first."""
        return revisions.ordered(
            await claimed(self.client, self.group, self._selector, self._home.revisions)
        )

    async def take_down(self, pods: Sequence[Pod], count: int) -> tuple[Pod, ...]:
        """Take so many of the pods down; gives those that go."""
        home, key = self._home, self.group.key
        if not count:
            home.removal.forget(key)
            return ()
        taken = await home.removal.take(key, pods, count)
        for pod in taken.granted:
            self.removed(pod)
        for refusal in taken.refused:
            if home.removal.mode == "delete":
                self.stuck(refusal.pod, refusal.error)
            elif not isinstance(refusal.error, Conflict):
                note = f"Pod {refusal.pod.metadata.name} stays for now: {refusal.why}"
                self.note("EvictionRefused", "Delete", note, type="Warning")
        if taken.again is not None:
            self.again.append(taken.again)
        return taken.granted

    def wrote(self, made: Object) -> None:
        """Note that a pod was created, so that the next pass waits for it."""
        self._home.expected.wrote(self.group.key, made)

    def removed(self, pod: Pod) -> None:
        """Record that a pod was removed: as an expectation and as an event."""
        self._home.expected.removed(self.group.key, pod)
        self.gone(pod)

    def ended(self, pods: Sequence[Pod]) -> float | None:
        """When to look again; raises what failed."""
        if self.errors:
            raise self.errors[0]
        soon = next_available(pods, self.group.spec.min_ready_seconds, self.now)
        return min((*self.again, *(() if soon is None else (soon,))), default=None)

    def note(
        self,
        reason: str,
        action: str,
        note: str,
        *,
        type: Literal["Normal", "Warning"] = "Normal",
    ) -> None:
        """Record an event about the set."""
        self._home.recorder.event(self.group, type=type, reason=reason, action=action, note=note)
