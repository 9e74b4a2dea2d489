"""The Deployment controller: one ReplicaSet per template, and the rollout between them.

One pass over a Deployment: claim its ReplicaSets, plan (``rollout``), write what the plan says,
then the status (``rollout_status``) if it differs. *Parallel* are Deployments, never two passes
over one. Nothing is planned while a store lacks something this controller wrote before: planning
from a partial state would count pods twice.

The ReplicaSets are changed by absolute sizes, so a write that is repeated after a crash changes
nothing. *Retried* with growing pauses is whatever the server refuses. A name that is taken by a
ReplicaSet with another template is counted as a collision, and the next pass hashes again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from zonewise.api.errors import AlreadyExists, NotFound, ZonewiseError
from zonewise.api.meta import Key, LabelSelector, ObjectMeta
from zonewise.api.objects.apps import (
    Deployment,
    DeploymentStatus,
    ReplicaSet,
    ReplicaSetSpec,
    opened,
)
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import finished
from zonewise.api.values import selector
from zonewise.disruption.steering import HELD, REDUCE_TO
from zonewise.embedded.components.workloads import templates
from zonewise.embedded.components.workloads.adoption import OWNED, claimed, indexed
from zonewise.embedded.components.workloads.creation import namespace_ends, owner_reference
from zonewise.embedded.components.workloads.deployments import rollout_status
from zonewise.embedded.components.workloads.deployments.rollout import (
    REVISION,
    Resize,
    RolloutPlan,
    Sets,
    lacking,
    plan,
    resized,
    size_annotations,
    sorted_sets,
)
from zonewise.embedded.components.workloads.pacing import Pacing
from zonewise.embedded.components.workloads.removal import RemovalMode
from zonewise.embedded.components.workloads.replicasets.replicas import aim
from zonewise.embedded.components.workloads.triggers import members
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.controller.controller import Controller, own_key
from zonewise.runtime.controller.expectations import GLANCE, Expectations

WORKERS = 8


class Deployments:
    """Rolls every Deployment out; ``removal`` says whether pods are evicted or deleted."""

    def __init__(self, context: ComponentContext, *, removal: RemovalMode = "evict") -> None:
        self._client = context.client
        self._recorder = context.recorder
        self._clock = context.clock
        self._reducing = removal == "evict"
        self.controller: Controller[Key] = Controller(
            "deployments", self._reconcile, cache=context.cache, workers=WORKERS, rng=context.rng
        )
        self._deployments = self.controller.watches(Deployment, own_key)
        woken = members(self._deployments, Deployment.resource.kind)
        self._sets = indexed(self.controller.watches(ReplicaSet, woken))
        if self._reducing:
            self._sets.on_change(self._reduced)
        # Pods are only looked up; Deployments are enqueued by their ReplicaSets.
        self._pods = indexed(self.controller.reads(Pod))
        self._own: Expectations[Key, Deployment] = Expectations(self._deployments)
        self._expected: Expectations[Key, ReplicaSet] = Expectations(self._sets)
        self._pacing: Pacing[Key] = Pacing()

    async def run(self) -> None:
        """Work until cancelled."""
        await self.controller.run()

    async def _reconcile(self, key: Key) -> float | None:
        owner = self._deployments.get(key)
        if owner is None:
            for memory in (self._own, self._expected, self._pacing):
                memory.forget(key)
            return None
        if not (self._own.settled(key) and self._expected.settled(key)):
            return GLANCE
        seen = owner.status.observed_generation == owner.metadata.generation
        if seen and (wait := self._pacing.wait(key)) > 0:
            return wait
        try:
            return await self._pass(key, owner)
        finally:
            self._pacing.passed(key, owner.status.replicas)

    async def _pass(self, key: Key, owner: Deployment) -> float | None:
        wanted = selector.from_object(owner.spec.selector)
        sets = sorted_sets(owner, await claimed(self._client, owner, wanted, self._sets))
        if owner.metadata.deletion_timestamp is not None:
            await self._tell(key, owner, sets, RolloutPlan(scaling=True))
            return None
        step = plan(owner, sets, old_pods=self._pods_of(sets.old))
        created = None
        if sets.new is not None:
            await self._annotate(key, owner, sets)
        elif step.create is not None:
            created = await self._create(key, owner, sets, step.create)
            if created is None:
                return None
            sets = Sets(created, sets.old)
        for resize in step.resizes:
            await self._resize(key, owner, resize)
        for one in step.forget:
            await self._forget(key, one)
        sets = resized(sets, step.resizes, reducing=self._reducing)
        status = await self._tell(key, owner, sets, step, created)
        return rollout_status.stuck_in(owner, status, self._clock())

    def _pods_of(self, sets: Iterable[ReplicaSet]) -> bool:
        """Whether ReplicaSets still have pods, terminating ones included."""
        return any(
            not finished(pod) for one in sets for pod in self._pods.by(OWNED, one.metadata.uid)
        )

    async def _create(
        self, key: Key, owner: Deployment, sets: Sets, size: int
    ) -> ReplicaSet | None:
        """Make the new ReplicaSet; None if that has to be tried again under another name."""
        text = templates.hashed(owner.spec.template, owner.status.collision_count)
        fresh = _new_set(owner, sets, size, text)
        name = fresh.metadata.name
        try:
            made = await self._client.create(fresh)
        except AlreadyExists:
            there = await self._client.get(ReplicaSet, name, owner.metadata.namespace)
            above = there.metadata.controller
            ours = above is not None and above.uid == owner.metadata.uid
            if ours and templates.same(there.spec.template, owner.spec.template):
                self._expected.wrote(key, there)
                return there
            await self._write(key, owner, rollout_status.collided(owner))
            return None
        except ZonewiseError as error:
            if namespace_ends(error):
                return None
            now = self._clock()
            status = rollout_status.failed_to_create(owner, name, str(error), now)
            await self._write(key, owner, status)
            note = f'Failed to create new replica set "{name}": {error}'
            self._note(owner, note, type="Warning", reason="ReplicaSetCreateError")
            raise
        self._expected.wrote(key, made)
        if size:
            self._note(owner, f"Scaled up replica set {name} from 0 to {size}")
        return made

    async def _annotate(self, key: Key, owner: Deployment, sets: Sets) -> None:
        """Give the new ReplicaSet the revision and annotations it should have."""
        new = sets.new
        assert new is not None
        body: dict[str, object] = {}
        if missing := lacking(owner, sets):
            body["metadata"] = {"uid": new.metadata.uid, "annotations": missing}
        if new.spec.min_ready_seconds != owner.spec.min_ready_seconds:
            body["spec"] = {"minReadySeconds": owner.spec.min_ready_seconds}
        if body:
            await self._patch(key, new, body)

    async def _resize(self, key: Key, owner: Deployment, resize: Resize) -> None:
        one, size = resize.set, resize.replicas
        annotations: dict[str, str | None] = {}
        if not resize.short:
            annotations |= size_annotations(owner)
        have = one.metadata.annotations
        body: dict[str, object] = {}
        if size != aim(one):
            reducing = (
                self._reducing and size < one.spec.replicas and not self._recreates(owner, one)
            )
            annotations[REDUCE_TO] = str(size) if reducing else None
            if not reducing:
                body["spec"] = {"replicas": size}
        annotations = {k: v for k, v in annotations.items() if have.get(k) != v}
        if annotations:
            body["metadata"] = {"uid": one.metadata.uid, "annotations": annotations}
        if body:
            await self._patch(key, one, body)
        if size != aim(one) and (REDUCE_TO not in annotations or not annotations[REDUCE_TO]):
            way = "up" if size > aim(one) else "down"
            name = one.metadata.name
            self._note(owner, f"Scaled {way} replica set {name} from {aim(one)} to {size}")

    def _reduced(self, old: ReplicaSet | None, new: ReplicaSet | None) -> None:
        """Tell of a ReplicaSet that was asked to shrink when it does: budgets may keep its pods."""
        if old is None or new is None or REDUCE_TO not in old.metadata.annotations:
            return
        before, after = old.spec.replicas, new.spec.replicas
        above = new.metadata.controller
        owner = above and self._deployments.get((new.metadata.namespace, above.name))
        if owner and after < before:
            name = new.metadata.name
            self._note(owner, f"Scaled down replica set {name} from {before} to {after}")

    def _recreates(self, owner: Deployment, one: ReplicaSet) -> bool:
        """Whether a ReplicaSet is given up whole before its successor is made."""
        return owner.spec.strategy.type == "Recreate" and not templates.same(
            one.spec.template, owner.spec.template
        )

    async def _forget(self, key: Key, one: ReplicaSet) -> None:
        meta = one.metadata
        try:
            await self._client.delete(
                ReplicaSet, meta.name, meta.namespace, uid=meta.uid, propagation="Background"
            )
        except NotFound:
            return
        self._expected.removed(key, one)

    async def _patch(self, key: Key, one: ReplicaSet, body: dict[str, object]) -> None:
        meta = one.metadata
        changed = await self._client.patch(ReplicaSet, meta.name, meta.namespace, body)
        self._expected.wrote(key, changed)

    async def _tell(
        self,
        key: Key,
        owner: Deployment,
        sets: Sets,
        step: RolloutPlan,
        created: ReplicaSet | None = None,
    ) -> DeploymentStatus:
        name = "" if created is None else created.metadata.name
        status = rollout_status.status_of(
            owner, sets, created=name, scaling=step.scaling, now=self._clock()
        )
        await self._write(key, owner, status, revision=_revision(owner, sets))
        held = rollout_status.held(status)
        if held and not rollout_status.held(owner.status):
            self._note(owner, held, type="Warning", reason=HELD)
        return status

    async def _write(
        self, key: Key, owner: Deployment, status: DeploymentStatus, *, revision: str = ""
    ) -> None:
        """Write status and revision together; both are reachable through the status."""
        renumbered = revision and owner.metadata.annotations.get(REVISION) != revision
        if status == owner.status and not renumbered:
            return
        changed = await self._client.patch_status(
            owner,
            rollout_status.patch_of(status),
            annotations={REVISION: revision} if renumbered else None,
        )
        self._own.wrote(key, changed)

    def _note(
        self,
        owner: Deployment,
        note: str,
        *,
        type: Literal["Normal", "Warning"] = "Normal",
        reason: str = "ScalingReplicaSet",
    ) -> None:
        self._recorder.event(owner, type=type, reason=reason, action="Scale", note=note)


def _revision(owner: Deployment, sets: Sets) -> str:
    """The revision of the new ReplicaSet, as it is now or was just written."""
    if sets.new is None:
        return ""
    return lacking(owner, sets).get(REVISION) or sets.new.metadata.annotations.get(REVISION, "")


def _new_set(owner: Deployment, sets: Sets, size: int, text: str) -> ReplicaSet:
    template = templates.labeled(owner.spec.template, text)
    wanted = owner.spec.selector
    return ReplicaSet(
        metadata=ObjectMeta(
            name=f"{owner.metadata.name}-{text}",
            namespace=owner.metadata.namespace,
            labels=opened(template).metadata.labels,
            annotations=lacking(owner, sets) | size_annotations(owner),
            owner_references=(owner_reference(owner),),
        ),
        spec=ReplicaSetSpec(
            replicas=size,
            selector=LabelSelector(
                match_labels={**wanted.match_labels, templates.HASH: text},
                match_expressions=wanted.match_expressions,
            ),
            template=template,
            min_ready_seconds=owner.spec.min_ready_seconds,
        ),
    )
