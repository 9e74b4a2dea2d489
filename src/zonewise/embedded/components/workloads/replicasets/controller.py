"""The ReplicaSet controller: as many pods as specified. ReplicationControllers work the same.

One sync of a ReplicaSet: claim its pods, count them, create missing or remove surplus ones, lower
``spec.replicas`` as its Deployment requests, write the status if it differs. *Parallel* are
ReplicaSets, and within one the creations of a batch; never two syncs of one ReplicaSet. Nothing is
done while the store lacks something this controller wrote before.

*Bounded*: at most ``BURST`` pods are created or removed in a sync. A sync that reaches the size
writes no status, the one that sees the change does; one that leaves more to do writes what it
counted, so that a large ReplicaSet shows its progress. ``pacing`` spaces syncs of large
ReplicaSets; a new size does not wait for it.

*Retried* with growing pauses: creations that were refused (a quota, a webhook) and deletions that
failed, which the status reports as ``ReplicaFailure``. Refused evictions are no failure:
``removal`` says when to retry, and a change of a budget of the namespace ends the wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from zonewise.api.errors import Conflict, ZonewiseError
from zonewise.api.meta import Key
from zonewise.api.objects.apps import Deployment, ReplicaSet
from zonewise.api.objects.pod import Pod
from zonewise.api.values import selector, times
from zonewise.disruption.budgets_cache import BudgetsCache
from zonewise.disruption.passing.deletion_order import rank_for_deletion
from zonewise.disruption.steering import REDUCE_TO
from zonewise.embedded.components.workloads.adoption import (
    BY_CONTROLLER,
    claim_objects,
    index_by_controller,
)
from zonewise.embedded.components.workloads.creation import (
    PodDraft,
    draft_pod,
    is_namespace_terminating,
    run_in_batches,
)
from zonewise.embedded.components.workloads.pacing import Pacing
from zonewise.embedded.components.workloads.removal import (
    EVICTION_REFUSED,
    Removal,
    RemovalMode,
    RemovalResult,
)
from zonewise.embedded.components.workloads.replicasets import replicas
from zonewise.embedded.components.workloads.replicasets.replicas import ReplicaCount
from zonewise.embedded.components.workloads.triggers import is_relevant, owner_keys, watch_budgets
from zonewise.runtime.controller.controller import own_key
from zonewise.runtime.controller.expectations import GLANCE, Expectations
from zonewise.runtime.program.context import ControllerContext

BURST = 500
WORKERS = 8


class ReplicaFailure(ZonewiseError):
    """Not all pods could be created or removed; the ReplicaSet's status says why."""


class ReplicaSetController:
    """Keeps every ReplicaSet at its size."""

    def __init__(
        self,
        context: ControllerContext,
        *,
        removal: RemovalMode = "evict",
        kind: type[ReplicaSet] = ReplicaSet,
        budgets_cache: BudgetsCache | None = None,
    ) -> None:
        self._kind = kind
        self._client = context.client
        self._recorder = context.recorder
        self._clock = context.clock
        self.controller = context.controller(kind.resource.plural, self._reconcile, workers=WORKERS)
        self.run = self.controller.run
        self._replica_sets = index_by_controller(self.controller.watches(kind, own_key))
        to_keys = owner_keys(self._replica_sets, kind.resource.kind)
        self._pods = index_by_controller(self.controller.watches(Pod, to_keys, when=is_relevant))
        self._pod_expectations: Expectations[Key, Pod] = Expectations(self._pods)
        self._set_expectations: Expectations[Key, ReplicaSet] = Expectations(self._replica_sets)
        self._pacing: Pacing[Key] = Pacing()
        self._removal: Removal[Key] = Removal(
            context.client, mode=removal, budgets_cache=budgets_cache, now=context.clock
        )
        self._deployments = self.controller.reads(Deployment)
        watch_budgets(self.controller, self._removal, budgets_cache)

    async def _reconcile(self, key: Key) -> float | None:
        replica_set = self._replica_sets.get(key)
        expectations = (self._pod_expectations, self._set_expectations)
        if replica_set is None:
            for state in (*expectations, self._pacing, self._removal):
                state.forget(key)
            return None
        if not all(expected.settled(key) for expected in expectations):
            return GLANCE
        observed = replica_set.status.observed_generation == replica_set.metadata.generation
        if observed and (wait := self._pacing.wait(key)) > 0:
            return wait
        pod_selector = selector.from_object(replica_set.spec.selector)
        pods = await claim_objects(self._client, replica_set, pod_selector, self._pods)
        count = replicas.count_replicas(replica_set, pods, self._clock())
        try:
            if replica_set.metadata.deletion_timestamp is None:
                return await self._manage_replicas(key, replica_set, count)
            await self._write_status(key, replica_set, count)
        finally:
            self._pacing.synced(key, len(pods))
        return None

    async def _manage_replicas(
        self, key: Key, replica_set: ReplicaSet, count: ReplicaCount
    ) -> float | None:
        current, target = len(count.active), replicas.target_replicas(replica_set)
        failure: tuple[str, str] | None = None
        held_by_budget: tuple[str, str] | None = None
        requeue_after = count.next_available
        if current < target:
            created, failure = await self._create(key, replica_set, min(target - current, BURST))
            if created and failure is None:
                if current + created < target:
                    await self._write_status(key, replica_set, count)
                return GLANCE
        elif current > target:
            surplus = min(current - target, BURST)
            result = await self._remove_pods(key, replica_set, count.active, surplus)
            if self._removal.mode == "delete" and result.refused:
                failure = ("FailedDelete", str(result.refused[0].error))
            held_by_budget = self._held_by_budget(replica_set, result)
            delays = [after for after in (requeue_after, result.retry_after) if after is not None]
            requeue_after = min(delays, default=None)
            current -= len(result.granted)
            if result.granted:
                await self._lower_replicas(key, replica_set, current)
                if current > target:
                    await self._write_status(key, replica_set, count, failure, held_by_budget)
                return GLANCE
        else:
            self._removal.forget(key)
        await self._lower_replicas(key, replica_set, current)
        await self._write_status(key, replica_set, count, failure, held_by_budget)
        if failure is not None:
            raise ReplicaFailure(f"{failure[0]}: {failure[1]}")
        return requeue_after

    async def _create(
        self, key: Key, replica_set: ReplicaSet, number: int
    ) -> tuple[int, tuple[str, str] | None]:
        """Create pods; returns how many were created, and why not more."""
        pod = draft_pod(replica_set.spec.template, replica_set)
        results = await run_in_batches((pod,) * number, self._client.create)
        created = [result for result in results if isinstance(result, PodDraft)]
        for pod in created:
            self._pod_expectations.wrote(key, pod)
            self._record_event(replica_set, "SuccessfulCreate", f"Created pod: {pod.metadata.name}")
        failure: tuple[str, str] | None = None
        for error in results:
            if isinstance(error, ZonewiseError) and not is_namespace_terminating(error):
                failure = failure or ("FailedCreate", str(error))
                note = f"Error creating: {error}"
                self._record_event(replica_set, "FailedCreate", note, type="Warning")
            elif isinstance(error, BaseException) and not isinstance(error, ZonewiseError):
                raise error
        return len(created), failure

    async def _remove_pods(
        self, key: Key, replica_set: ReplicaSet, pods: Sequence[Pod], number: int
    ) -> RemovalResult:
        if number < len(pods) or self._removal.mode == "evict":
            related = self._related_pods(replica_set)
            pods = rank_for_deletion(pods, related=related, now=self._clock())
        result = await self._removal.remove(
            key, pods, number, spread=True, respect_budgets=not self._is_recreated(replica_set)
        )
        for pod in result.granted:
            self._pod_expectations.removed(key, pod)
            self._record_event(replica_set, "SuccessfulDelete", f"Deleted pod: {pod.metadata.name}")
        for refusal in result.refused:
            if self._removal.mode == "delete":
                note = f"Error deleting: {refusal.error}"
                self._record_event(replica_set, "FailedDelete", note, type="Warning")
            elif not isinstance(refusal.error, Conflict):
                note = f"A pod is not removed yet: {refusal.message}"
                self._record_event(replica_set, EVICTION_REFUSED, note, type="Warning")
        return result

    def _held_by_budget(
        self, replica_set: ReplicaSet, result: RemovalResult
    ) -> tuple[str, str] | None:
        """Why a budget holds surplus pods; during a pause, why it did when the pause began."""
        if self._removal.mode == "delete" or result.granted:
            return None
        messages = [
            refusal.message for refusal in result.refused if not isinstance(refusal.error, Conflict)
        ]
        if messages:
            return EVICTION_REFUSED, messages[0]
        return replicas.read_held_by_budget(replica_set)

    def _is_recreated(self, replica_set: ReplicaSet) -> bool:
        """Whether a Deployment deletes these pods to recreate them.

        It creates no new one before the last old one is deleted, so a budget that holds one of
        them would wait for its replacement forever.
        """
        controller_ref = replica_set.metadata.controller
        if (
            controller_ref is None
            or controller_ref.kind != "Deployment"
            or replica_set.spec.replicas
        ):
            return False
        deployment = self._deployments.get((replica_set.metadata.namespace, controller_ref.name))
        return deployment is not None and deployment.spec.strategy.type == "Recreate"

    def _related_pods(self, replica_set: ReplicaSet) -> list[Pod]:
        """The pods of all ReplicaSets that have the same controller."""
        controller_ref = replica_set.metadata.controller
        if controller_ref is None:
            return []
        siblings = self._replica_sets.by(BY_CONTROLLER, controller_ref.uid)
        return [pod for rs in siblings for pod in self._pods.by(BY_CONTROLLER, rs.metadata.uid)]

    async def _lower_replicas(self, key: Key, replica_set: ReplicaSet, remaining: int) -> None:
        """Lower ``spec.replicas`` toward ``reduce-to``, as far as pods were removed."""
        if REDUCE_TO not in replica_set.metadata.annotations:
            return
        new_size = replicas.lower_replicas(replica_set, remaining)
        done = new_size == replicas.target_replicas(replica_set)
        if new_size == replica_set.spec.replicas and not done:
            return
        meta = replica_set.metadata
        metadata: dict[str, object] = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        if done:
            metadata["annotations"] = {REDUCE_TO: None}
        body = {"metadata": metadata, "spec": {"replicas": new_size}}
        self._set_expectations.wrote(
            key, await self._client.patch(self._kind, meta.name, meta.namespace, body)
        )

    async def _write_status(
        self,
        key: Key,
        replica_set: ReplicaSet,
        count: ReplicaCount,
        failure: tuple[str, str] | None = None,
        held_by_budget: tuple[str, str] | None = None,
    ) -> None:
        now = times.format_time(times.from_epoch(self._clock()))
        status = replicas.compute_status(
            replica_set, count, failure=failure, held_by_budget=held_by_budget, now=now
        )
        if status == replica_set.status:
            return
        self._set_expectations.wrote(
            key, await self._client.patch_status(replica_set, replicas.status_patch(status))
        )

    def _record_event(
        self,
        replica_set: ReplicaSet,
        reason: str,
        note: str,
        *,
        type: Literal["Normal", "Warning"] = "Normal",
    ) -> None:
        self._recorder.event(replica_set, reason, "Scale", note, type=type)
