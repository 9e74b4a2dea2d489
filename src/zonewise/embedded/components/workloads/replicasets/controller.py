"""The ReplicaSet controller: as many pods as specified. ReplicationControllers work the same.

One pass over a ReplicaSet: claim its pods, count them, create what is missing or remove what is too
much, lower ``spec.replicas`` as its Deployment requests, write the status if it differs. *Parallel*
are ReplicaSets, and within one the creations of a batch; never two passes over one ReplicaSet.
Nothing is done while the store lacks something this controller wrote before.

*Bounded*: at most ``BURST`` pods are created or removed in a pass. A pass that reaches the size
writes no status, the one that sees the change does; one that leaves more to do writes what it saw,
so that a large ReplicaSet shows its progress. ``pacing`` spaces passes over large ReplicaSets; a
new size does not wait for it.

*Retried* with growing pauses: creations that were refused (a quota, a webhook) and deletions that
failed; the status says so as ``ReplicaFailure``. Refused evictions are no failure: ``removal`` says
when to retry, and a change of a budget of the namespace is a reason to retry at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from zonewise.api.errors import Conflict, ZonewiseError
from zonewise.api.meta import Key
from zonewise.api.objects.apps import Deployment, ReplicaSet
from zonewise.api.objects.budgets import TopologyDisruptionBudget
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.api.values import selector, times
from zonewise.disruption import BudgetsCache
from zonewise.disruption.steering import REDUCE_TO
from zonewise.embedded.components.workloads.adoption import OWNED, claimed, indexed
from zonewise.embedded.components.workloads.creation import Draft, draft, in_batches, namespace_ends
from zonewise.embedded.components.workloads.pacing import Pacing
from zonewise.embedded.components.workloads.removal import Removal, RemovalMode, Taken
from zonewise.embedded.components.workloads.replicasets import replicas
from zonewise.embedded.components.workloads.replicasets.replicas import ReplicaCount
from zonewise.embedded.components.workloads.replicasets.victims import ranked
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

BURST = 500
WORKERS = 8


class Unfinished(ZonewiseError):
    """Not all pods could be created or removed; the ReplicaSet's status says why."""


REFUSED = "EvictionRefused"


class ReplicaSets:
    """Keeps every ReplicaSet at its size."""

    def __init__(
        self,
        context: ComponentContext,
        *,
        removal: RemovalMode = "evict",
        kind: type[ReplicaSet] = ReplicaSet,
        budgets_cache: BudgetsCache | None = None,
    ) -> None:
        self._kind = kind
        self._client = context.client
        self._recorder = context.recorder
        self._clock = context.clock
        self.controller: Controller[Key] = Controller(
            kind.resource.plural,
            self._reconcile,
            cache=context.cache,
            workers=WORKERS,
            rng=context.rng,
        )
        self._sets = indexed(self.controller.watches(kind, own_key))
        woken = members(self._sets, kind.resource.kind)
        self._pods = indexed(self.controller.watches(Pod, woken, when=matters))
        self._expected: Expectations[Key, Pod] = Expectations(self._pods)
        self._own: Expectations[Key, ReplicaSet] = Expectations(self._sets)
        self._pacing: Pacing[Key] = Pacing()
        self._removal: Removal[Key] = Removal(
            context.client, mode=removal, budgets_cache=budgets_cache, now=context.clock
        )
        self._deployments = self.controller.reads(Deployment)
        if removal == "evict":
            self.controller.watches(PodDisruptionBudget, refused(self._removal), when=gives)
            if budgets_cache is not None:
                self.controller.watches(
                    TopologyDisruptionBudget, refused(self._removal), when=gives
                )
                self.controller.watches(Pod, held(self._removal), when=gets_ready)

    async def run(self) -> None:
        """Work until cancelled."""
        await self.controller.run()

    async def _reconcile(self, key: Key) -> float | None:
        owner = self._sets.get(key)
        if owner is None:
            for memory in (self._expected, self._own, self._pacing, self._removal):
                memory.forget(key)
            return None
        if not (self._expected.settled(key) and self._own.settled(key)):
            return GLANCE
        seen = owner.status.observed_generation == owner.metadata.generation
        if seen and (wait := self._pacing.wait(key)) > 0:
            return wait
        wanted = selector.from_object(owner.spec.selector)
        pods = await claimed(self._client, owner, wanted, self._pods)
        count = replicas.counted(owner, pods, self._clock())
        try:
            if owner.metadata.deletion_timestamp is None:
                return await self._manage(key, owner, count)
            await self._tell(key, owner, count)
        finally:
            self._pacing.passed(key, len(pods))
        return None

    async def _manage(self, key: Key, owner: ReplicaSet, count: ReplicaCount) -> float | None:
        have, want = len(count.active), replicas.aim(owner)
        failure: tuple[str, str] | None = None
        held: tuple[str, str] | None = None
        again = count.again
        if have < want:
            made, failure = await self._create(key, owner, min(want - have, BURST))
            if made and failure is None:
                if have + made < want:
                    await self._tell(key, owner, count)
                return GLANCE
        elif have > want:
            taken = await self._take(key, owner, count.active, min(have - want, BURST))
            if self._removal.mode == "delete" and taken.refused:
                failure = ("FailedDelete", str(taken.refused[0].error))
            held = self._held(owner, taken)
            if taken.again is not None:
                again = taken.again if again is None else min(again, taken.again)
            have -= len(taken.granted)
            if taken.granted:
                await self._lower(key, owner, have)
                if have > want:
                    await self._tell(key, owner, count, failure, held)
                return GLANCE
        else:
            self._removal.forget(key)
        await self._lower(key, owner, have)
        await self._tell(key, owner, count, failure, held)
        if failure is not None:
            raise Unfinished(f"{failure[0]}: {failure[1]}")
        return again

    async def _create(
        self, key: Key, owner: ReplicaSet, number: int
    ) -> tuple[int, tuple[str, str] | None]:
        """Create pods; gives how many were made, and why there are not more."""
        pattern = draft(owner.spec.template, owner)
        results = await in_batches((pattern,) * number, self._client.create)
        made = [one for one in results if isinstance(one, Draft)]
        for one in made:
            self._expected.wrote(key, one)
            self._note(owner, "SuccessfulCreate", f"Created pod: {one.metadata.name}")
        failure: tuple[str, str] | None = None
        for error in results:
            if isinstance(error, ZonewiseError) and not namespace_ends(error):
                failure = failure or ("FailedCreate", str(error))
                self._note(owner, "FailedCreate", f"Error creating: {error}", type="Warning")
            elif isinstance(error, BaseException) and not isinstance(error, ZonewiseError):
                raise error
        return len(made), failure

    async def _take(self, key: Key, owner: ReplicaSet, pods: Sequence[Pod], number: int) -> Taken:
        if number < len(pods) or self._removal.mode == "evict":
            pods = ranked(pods, related=self._related(owner), now=self._clock())
        taken = await self._removal.take(
            key, pods, number, spread=True, held=not self._recreated(owner)
        )
        for pod in taken.granted:
            self._expected.removed(key, pod)
            self._note(owner, "SuccessfulDelete", f"Deleted pod: {pod.metadata.name}")
        for refusal in taken.refused:
            if self._removal.mode == "delete":
                note = f"Error deleting: {refusal.error}"
                self._note(owner, "FailedDelete", note, type="Warning")
            elif not isinstance(refusal.error, Conflict):
                note = f"A pod stays for now: {refusal.why}"
                self._note(owner, REFUSED, note, type="Warning")
        return taken

    def _held(self, owner: ReplicaSet, taken: Taken) -> tuple[str, str] | None:
        """What keeps pods that should go; during a pause what kept them when it began."""
        if self._removal.mode == "delete" or taken.granted:
            return None
        whys = [one.why for one in taken.refused if not isinstance(one.error, Conflict)]
        return (REFUSED, whys[0]) if whys else replicas.held_by(owner)

    def _recreated(self, owner: ReplicaSet) -> bool:
        """Whether a Deployment deletes these pods to recreate them.

        It makes no new one before the last old one is deleted, so a budget that held one of them
        would wait for its replacement forever.
        """
        above = owner.metadata.controller
        if above is None or above.kind != "Deployment" or owner.spec.replicas:
            return False
        deployment = self._deployments.get((owner.metadata.namespace, above.name))
        return deployment is not None and deployment.spec.strategy.type == "Recreate"

    def _related(self, owner: ReplicaSet) -> list[Pod]:
        """The pods of all ReplicaSets that have the same controller."""
        above = owner.metadata.controller
        if above is None:
            return []
        siblings = self._sets.by(OWNED, above.uid)
        return [pod for one in siblings for pod in self._pods.by(OWNED, one.metadata.uid)]

    async def _lower(self, key: Key, owner: ReplicaSet, left: int) -> None:
        """Follow the annotation ``reduce-to`` as far as pods were granted."""
        if REDUCE_TO not in owner.metadata.annotations:
            return
        size = replicas.lowered(owner, left)
        done = size == replicas.aim(owner)
        if size == owner.spec.replicas and not done:
            return
        meta = owner.metadata
        change: dict[str, object] = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        if done:
            change["annotations"] = {REDUCE_TO: None}
        body = {"metadata": change, "spec": {"replicas": size}}
        self._own.wrote(key, await self._client.patch(self._kind, meta.name, meta.namespace, body))

    async def _tell(
        self,
        key: Key,
        owner: ReplicaSet,
        count: ReplicaCount,
        failure: tuple[str, str] | None = None,
        held: tuple[str, str] | None = None,
    ) -> None:
        now = times.format_time(times.from_epoch(self._clock()))
        status = replicas.status_of(owner, count, failure=failure, held=held, now=now)
        if status == owner.status:
            return
        self._own.wrote(key, await self._client.patch_status(owner, replicas.patch_of(status)))

    def _note(
        self,
        owner: ReplicaSet,
        reason: str,
        note: str,
        *,
        type: Literal["Normal", "Warning"] = "Normal",
    ) -> None:
        self._recorder.event(owner, type=type, reason=reason, action="Scale", note=note)
