"""The ReplicaSet controller: as many pods as asked for. ReplicationControllers are kept likewise.

One pass over a ReplicaSet: claim its pods, count them, create what is missing or take down what is
too much, follow an open wish of its Deployment with ``spec.replicas``, write the status if it
differs. *Parallel* are ReplicaSets, and within one the creations of a batch; never two passes over
one ReplicaSet. Nothing is done while the store lacks something this controller wrote before.

*Bounded*: at most ``BURST`` pods are created or taken down in a pass; a pass that changed pods
writes no status, the one that sees the change does. ``cadence`` spaces passes over large
ReplicaSets; a new size does not wait for it.

*Retried* with growing pauses: creations that were refused (a quota, a webhook) and deletions that
failed; the status says so as ``ReplicaFailure``. Refused evictions are no failure: ``removal`` says
when to ask again, and news about a budget of the namespace is a reason to ask at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from zonewise.api import selector, times
from zonewise.api.errors import Conflict, ZonewiseError
from zonewise.api.meta import Key
from zonewise.api.pod import Pod
from zonewise.api.policy import PodDisruptionBudget
from zonewise.embedded.crew import Means
from zonewise.embedded.workloads import replicas
from zonewise.embedded.workloads.cadence import Cadence
from zonewise.embedded.workloads.claims import OWNED, claimed, indexed
from zonewise.embedded.workloads.creation import Draft, draft, in_batches, namespace_ends
from zonewise.embedded.workloads.expectations import GLANCE, Expectations
from zonewise.embedded.workloads.removal import Mode, Removal, Taken
from zonewise.embedded.workloads.replicas import WISH, Count
from zonewise.embedded.workloads.victims import ranked
from zonewise.embedded.workloads.views import ReplicaSet
from zonewise.embedded.workloads.wakening import gives, matters, members, refused
from zonewise.runtime.controller import Controller, own_key

BURST = 500
WORKERS = 8


class Unfinished(ZonewiseError):
    """Not all pods could be created or taken down; the ReplicaSet's status tells why."""


class ReplicaSets:
    """Keeps every ReplicaSet at its size."""

    def __init__(
        self, means: Means, *, removal: Mode = "evict", kind: type[ReplicaSet] = ReplicaSet
    ) -> None:
        self._kind = kind
        self._client = means.client
        self._recorder = means.recorder
        self._clock = means.clock
        self.controller: Controller[Key] = Controller(
            kind.resource.plural, self._reconcile, cache=means.cache, workers=WORKERS, rng=means.rng
        )
        self._sets = indexed(self.controller.watches(kind, own_key))
        woken = members(self._sets, kind.resource.kind)
        self._pods = indexed(self.controller.watches(Pod, woken, when=matters))
        self._expected: Expectations[Key, Pod] = Expectations(self._pods)
        self._own: Expectations[Key, ReplicaSet] = Expectations(self._sets)
        self._cadence: Cadence[Key] = Cadence()
        self._removal: Removal[Key] = Removal(means.client, mode=removal)
        if removal == "evict":
            self.controller.watches(PodDisruptionBudget, refused(self._removal), when=gives)

    async def run(self) -> None:
        """Work until cancelled."""
        await self.controller.run()

    async def _reconcile(self, key: Key) -> float | None:
        owner = self._sets.get(key)
        if owner is None:
            for memory in (self._expected, self._own, self._cadence, self._removal):
                memory.forget(key)
            return None
        if not (self._expected.settled(key) and self._own.settled(key)):
            return GLANCE
        seen = owner.status.observed_generation == owner.metadata.generation
        if seen and (wait := self._cadence.wait(key)) > 0:
            return wait
        wanted = selector.from_object(owner.spec.selector)
        pods = await claimed(self._client, owner, wanted, self._pods)
        count = replicas.counted(owner, pods, self._clock())
        try:
            if owner.metadata.deletion_timestamp is None:
                return await self._manage(key, owner, count)
            await self._tell(key, owner, count, None)
        finally:
            self._cadence.passed(key, len(pods))
        return None

    async def _manage(self, key: Key, owner: ReplicaSet, count: Count) -> float | None:
        have, want = len(count.active), replicas.aim(owner)
        failure: tuple[str, str] | None = None
        again = count.again
        if have < want:
            made, failure = await self._create(key, owner, min(want - have, BURST))
            if made and failure is None:
                return GLANCE
        elif have > want:
            taken = await self._take(key, owner, count.active, min(have - want, BURST))
            if self._removal.mode == "delete" and taken.refused:
                failure = ("FailedDelete", str(taken.refused[0].error))
            if taken.again is not None:
                again = taken.again if again is None else min(again, taken.again)
            have -= len(taken.granted)
            if taken.granted:
                await self._lower(key, owner, have)
                return GLANCE
        else:
            self._removal.forget(key)
        await self._lower(key, owner, have)
        await self._tell(key, owner, count, failure)
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
        taken = await self._removal.take(key, pods, number)
        for pod in taken.granted:
            self._expected.removed(key, pod)
            self._note(owner, "SuccessfulDelete", f"Deleted pod: {pod.metadata.name}")
        for refusal in taken.refused:
            if self._removal.mode == "delete":
                note = f"Error deleting: {refusal.error}"
                self._note(owner, "FailedDelete", note, type="Warning")
            elif not isinstance(refusal.error, Conflict):
                note = f"A pod stays for now: {refusal.why}"
                self._note(owner, "EvictionRefused", note, type="Warning")
        return taken

    def _related(self, owner: ReplicaSet) -> list[Pod]:
        """The pods of all ReplicaSets that have the same controller."""
        above = owner.metadata.controller
        if above is None:
            return []
        siblings = self._sets.by(OWNED, above.uid)
        return [pod for one in siblings for pod in self._pods.by(OWNED, one.metadata.uid)]

    async def _lower(self, key: Key, owner: ReplicaSet, left: int) -> None:
        """Follow an open wish as far as it was granted."""
        if WISH not in owner.metadata.annotations:
            return
        size = replicas.lowered(owner, left)
        done = size == replicas.aim(owner)
        if size == owner.spec.replicas and not done:
            return
        meta = owner.metadata
        change: dict[str, object] = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        if done:
            change["annotations"] = {WISH: None}
        body = {"metadata": change, "spec": {"replicas": size}}
        self._own.wrote(key, await self._client.patch(self._kind, meta.name, meta.namespace, body))

    async def _tell(
        self, key: Key, owner: ReplicaSet, count: Count, failure: tuple[str, str] | None
    ) -> None:
        now = times.format_time(times.from_epoch(self._clock()))
        status = replicas.status_of(owner, count, failure=failure, now=now)
        if status == owner.status:
            return
        meta = owner.metadata
        body = {"metadata": {"uid": meta.uid}, "status": replicas.patch_of(status)}
        self._own.wrote(
            key,
            await self._client.patch(
                self._kind, meta.name, meta.namespace, body, subresource="status"
            ),
        )

    def _note(
        self,
        owner: ReplicaSet,
        reason: str,
        note: str,
        *,
        type: Literal["Normal", "Warning"] = "Normal",
    ) -> None:
        self._recorder.event(owner, type=type, reason=reason, action="Scale", note=note)
