"""What the controllers of StatefulSets and DaemonSets have in common.

A ``SetController`` watches the sets of one kind, their pods and revisions, and ensures that a set
has one sync at a time, none while the store lacks what the last one wrote, and not more than its
size allows (``pacing``). A ``SetSync`` is one sync of one set, from its claims to its status.

*Retried* with backoff is a sync in which something failed; its status is written all the same, and
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
from zonewise.api.objects.pod import Pod
from zonewise.api.values import selector as labelselector
from zonewise.disruption.budgets_cache import BudgetsCache
from zonewise.embedded.components.workloads import revisions
from zonewise.embedded.components.workloads.adoption import claim_objects, index_by_controller
from zonewise.embedded.components.workloads.availability import next_available
from zonewise.embedded.components.workloads.pacing import Pacing
from zonewise.embedded.components.workloads.removal import Removal, RemovalMode
from zonewise.embedded.components.workloads.triggers import is_relevant, owner_keys, watch_budgets
from zonewise.runtime.controller.controller import own_key
from zonewise.runtime.controller.expectations import GLANCE, Expectations
from zonewise.runtime.program.context import ControllerContext

W = TypeVar("W", bound=StatefulSet | DaemonSet)


class SetController(ABC, Generic[W]):
    """Syncs the sets of one kind."""

    def __init__(
        self,
        context: ControllerContext,
        *,
        kind: type[W],
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
        self.controller = context.controller(kind.resource.plural, self._reconcile, workers=workers)
        self.run = self.controller.run
        watches = self.controller.watches
        self.sets = watches(kind, own_key)
        to_keys = owner_keys(self.sets, kind.resource.kind)
        self.pods = index_by_controller(watches(Pod, to_keys, when=is_relevant))
        self.expectations: Expectations[Key, Pod] = Expectations(self.pods)
        self.revisions = index_by_controller(watches(ControllerRevision, to_keys))
        watch_budgets(self.controller, self.removal, budgets_cache)

    @abstractmethod
    def sync_cost(self, workload: W) -> int:
        """What a sync of a set costs, in pods."""

    @abstractmethod
    async def sync(self, workload: W) -> float | None:
        """Sync a set once; returns after how many seconds to sync it again."""

    def forget(self, key: Key) -> None:
        """A set is deleted."""
        self.expectations.forget(key)
        self.pacing.forget(key)
        self.removal.forget(key)

    async def _reconcile(self, key: Key) -> float | None:
        workload = self.sets.get(key)
        if workload is None:
            self.forget(key)
            return None
        if not self.expectations.settled(key):
            return GLANCE
        if (wait := self.pacing.wait(key)) > 0:
            return wait
        try:
            return await self.sync(workload)
        finally:
            self.pacing.synced(key, self.sync_cost(workload))


class SetSync(ABC, Generic[W]):
    """One sync of one set."""

    def __init__(self, controller: SetController[W], workload: W) -> None:
        self.client = controller.client
        self.workload = workload
        self.now = controller.clock()
        self.errors: list[ZonewiseError] = []
        self.delays: list[float] = []
        self._controller = controller
        self._selector = labelselector.from_object(workload.spec.selector)

    @abstractmethod
    def record_deleted(self, pod: Pod) -> None:
        """Record an event that a pod was removed."""

    @abstractmethod
    def record_delete_failed(self, pod: Pod, error: ZonewiseError) -> None:
        """Record an event that a pod could not be deleted."""

    async def claim_pods(self, fits: Callable[[Pod], bool] = lambda _: True) -> tuple[Pod, ...]:
        """The set's pods, after adopting and releasing."""
        return await claim_objects(
            self.client, self.workload, self._selector, self._controller.pods, fits=fits
        )

    async def claim_revisions(self) -> list[ControllerRevision]:
        """The set's revisions, after adopting and releasing, oldest first."""
        return revisions.sort_revisions(
            await claim_objects(
                self.client, self.workload, self._selector, self._controller.revisions
            )
        )

    @property
    def evicts_pods(self) -> bool:
        """Whether pods are evicted, which budgets may refuse."""
        return self._controller.removal.mode == "evict"

    def forget_refusals(self) -> None:
        """There is no pod to remove."""
        self._controller.removal.forget(self.workload.key)

    async def remove_pods(
        self, pods: Sequence[Pod], count: int, *, in_order: bool = False
    ) -> tuple[Pod, ...]:
        """Remove so many of the pods; returns those that are removed."""
        controller, key = self._controller, self.workload.key
        if not count:
            self.forget_refusals()
            return ()
        result = await controller.removal.remove(key, pods, count, in_order=in_order)
        for pod in result.granted:
            self.expect_removed(pod)
        for refusal in result.refused:
            if controller.removal.mode == "delete":
                self.record_delete_failed(refusal.pod, refusal.error)
            elif not isinstance(refusal.error, Conflict):
                note = f"Pod {refusal.pod.metadata.name} is not removed yet: {refusal.message}"
                self.record_event("EvictionRefused", "Delete", note, type="Warning")
        if result.retry_after is not None:
            self.delays.append(result.retry_after)
        return result.granted

    def expect_created(self, created: Object) -> None:
        """Expect a created pod, so that the next sync waits for it."""
        self._controller.expectations.wrote(self.workload.key, created)

    def expect_removed(self, pod: Pod) -> None:
        """Expect the removal of a pod, and record an event."""
        self._controller.expectations.removed(self.workload.key, pod)
        self.record_deleted(pod)

    def finish(self, pods: Sequence[Pod]) -> float | None:
        """After how many seconds to sync again; raises what failed."""
        if self.errors:
            raise self.errors[0]
        next_available_in = next_available(pods, self.workload.spec.min_ready_seconds, self.now)
        delays = self.delays if next_available_in is None else [*self.delays, next_available_in]
        return min(delays, default=None)

    def record_event(
        self, reason: str, action: str, note: str, *, type: Literal["Normal", "Warning"] = "Normal"
    ) -> None:
        """Record an event about the set."""
        self._controller.recorder.event(self.workload, reason, action, note, type=type)
