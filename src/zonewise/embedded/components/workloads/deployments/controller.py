"""The Deployment controller: one ReplicaSet per template, and the rollout between them.

One sync of a Deployment: claim its ReplicaSets, plan (``rollout``), write what the plan says, then
the status (``rollout_status``) if it differs. *Parallel* are Deployments, never two syncs of one.
Nothing is planned while a store lacks something this controller wrote before: planning from a
partial state would count pods twice.

The ReplicaSets are changed by absolute sizes, so a write that is repeated after a crash changes
nothing. *Retried* with growing pauses is whatever the server refuses. A name that a ReplicaSet with
another template has is counted as a collision, and the next sync hashes again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from zonewise.api.errors import AlreadyExists, NotFound, ZonewiseError
from zonewise.api.meta import Key, LabelSelector, ObjectMeta
from zonewise.api.objects.apps import (
    Deployment,
    DeploymentStatus,
    ReplicaSet,
    ReplicaSetSpec,
    decode_pod_template,
)
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_active, is_pod_finished
from zonewise.api.values import selector
from zonewise.disruption.budgets_cache import BudgetsCache
from zonewise.disruption.steering import HELD_BY_BUDGET, REDUCE_TO, choose_pods
from zonewise.embedded.components.workloads.adoption import (
    BY_CONTROLLER,
    claim_objects,
    index_by_controller,
)
from zonewise.embedded.components.workloads.creation import (
    is_namespace_terminating,
    owner_reference,
)
from zonewise.embedded.components.workloads.deployments import rollout_status, templates
from zonewise.embedded.components.workloads.deployments.rollout import (
    REVISION,
    DeploymentSets,
    Resize,
    RolloutPlan,
    apply_resizes,
    awaits_removal,
    missing_annotations,
    pass_requests_on,
    plan_rollout,
    size_annotations,
    split_sets,
)
from zonewise.embedded.components.workloads.pacing import Pacing
from zonewise.embedded.components.workloads.removal import RemovalMode
from zonewise.embedded.components.workloads.replicasets.replicas import target_replicas
from zonewise.embedded.components.workloads.triggers import owner_keys
from zonewise.runtime.controller.controller import own_key
from zonewise.runtime.controller.expectations import GLANCE, Expectations
from zonewise.runtime.program.context import ControllerContext

WORKERS = 8
HELD_GLANCE = 5.0
"""How often a Deployment whose old pods are held is looked at: another domain may have opened."""


class DeploymentController:
    """Rolls every Deployment out; ``removal`` says whether pods are evicted or deleted."""

    def __init__(
        self,
        context: ControllerContext,
        *,
        removal: RemovalMode = "evict",
        budgets_cache: BudgetsCache | None = None,
    ) -> None:
        self._client = context.client
        self._recorder = context.recorder
        self._clock = context.clock
        self._evicts = removal == "evict"
        self._budgets_cache = budgets_cache
        self.controller = context.controller("deployments", self._reconcile, workers=WORKERS)
        self.run = self.controller.run
        self._deployments = self.controller.watches(Deployment, own_key)
        to_keys = owner_keys(self._deployments, Deployment.resource.kind)
        self._replica_sets = index_by_controller(self.controller.watches(ReplicaSet, to_keys))
        if self._evicts:
            self._replica_sets.on_change(self._replica_set_changed)
        # Pods are only looked up; Deployments are enqueued by their ReplicaSets.
        self._pods = index_by_controller(self.controller.reads(Pod))
        self._deployment_expectations: Expectations[Key, Deployment] = Expectations(
            self._deployments
        )
        self._set_expectations: Expectations[Key, ReplicaSet] = Expectations(self._replica_sets)
        self._pacing: Pacing[Key] = Pacing()

    async def _reconcile(self, key: Key) -> float | None:
        deployment = self._deployments.get(key)
        if deployment is None:
            for state in (self._deployment_expectations, self._set_expectations, self._pacing):
                state.forget(key)
            return None
        if not (self._deployment_expectations.settled(key) and self._set_expectations.settled(key)):
            return GLANCE
        observed = deployment.status.observed_generation == deployment.metadata.generation
        if observed and (wait := self._pacing.wait(key)) > 0:
            return wait
        try:
            return await self._sync(key, deployment)
        finally:
            self._pacing.synced(key, deployment.status.replicas)

    async def _sync(self, key: Key, deployment: Deployment) -> float | None:
        set_selector = selector.from_object(deployment.spec.selector)
        claimed = await claim_objects(self._client, deployment, set_selector, self._replica_sets)
        sets = split_sets(deployment, claimed)
        if deployment.metadata.deletion_timestamp is not None:
            await self._sync_status(key, deployment, sets, RolloutPlan(scaling=True))
            return None
        step = plan_rollout(deployment, sets, old_pods=self._have_pods(sets.old))
        step = self._pass_requests_on(deployment, sets, step)
        created = None
        if sets.new is not None:
            await self._annotate(key, deployment, sets)
        elif step.create is not None:
            created = await self._create(key, deployment, sets, step.create)
            if created is None:
                return None
            sets = DeploymentSets(created, sets.old)
        for resize in step.resizes:
            await self._resize(key, deployment, resize)
        for replica_set in step.delete:
            await self._delete_replica_set(key, replica_set)
        sets = apply_resizes(sets, step.resizes, reducing=self._evicts)
        status = await self._sync_status(key, deployment, sets, step, created)
        delay = rollout_status.progress_check_delay(deployment, status, self._clock())
        if self._chooses(deployment, sets) and any(map(awaits_removal, sets.old)):
            return HELD_GLANCE if delay is None else min(delay, HELD_GLANCE)
        return delay

    def _chooses(self, deployment: Deployment, sets: DeploymentSets) -> bool:
        """Whether it may matter from which old ReplicaSet pods are evicted."""
        several = sum(rs.spec.replicas > 0 for rs in sets.old) > 1
        return several and self._evicts and deployment.spec.strategy.type != "Recreate"

    def _pass_requests_on(
        self, deployment: Deployment, sets: DeploymentSets, step: RolloutPlan
    ) -> RolloutPlan:
        """The plan, with pods requested from old ReplicaSets that budgets let give some up."""
        if self._budgets_cache is None or not self._chooses(deployment, sets):
            return step
        reduced = (resize.replicas < resize.replica_set.spec.replicas for resize in step.resizes)
        if not any(reduced) and not any(map(awaits_removal, sets.old)):
            return step
        budgets = self._budgets_cache.get_or_create(deployment.metadata.namespace)
        removable = {}
        for replica_set in sets.old:
            owned = self._pods.by(BY_CONTROLLER, replica_set.metadata.uid)
            pods = list(filter(is_pod_active, owned))
            choice = choose_pods(budgets, pods, len(pods), self._clock())
            removable[replica_set.metadata.uid] = len(choice.pods)
        return replace(step, resizes=pass_requests_on(sets, step.resizes, removable))

    def _have_pods(self, sets: Iterable[ReplicaSet]) -> bool:
        """Whether ReplicaSets still have pods, terminating ones included."""
        return any(
            not is_pod_finished(pod)
            for replica_set in sets
            for pod in self._pods.by(BY_CONTROLLER, replica_set.metadata.uid)
        )

    async def _create(
        self, key: Key, deployment: Deployment, sets: DeploymentSets, size: int
    ) -> ReplicaSet | None:
        """Create the new ReplicaSet; None if it has to be tried again under another name."""
        collisions = deployment.status.collision_count
        template_hash = templates.hash_template(deployment.spec.template, collisions)
        draft = _draft_replica_set(deployment, sets, size, template_hash)
        name = draft.metadata.name
        try:
            created = await self._client.create(draft)
        except AlreadyExists:
            existing = await self._client.get(ReplicaSet, name, deployment.metadata.namespace)
            controller_ref = existing.metadata.controller
            owned = controller_ref is not None and controller_ref.uid == deployment.metadata.uid
            template = deployment.spec.template
            if owned and templates.equal_ignoring_hash(existing.spec.template, template):
                self._set_expectations.wrote(key, existing)
                return existing
            await self._write(key, deployment, rollout_status.with_collision(deployment))
            return None
        except ZonewiseError as error:
            if is_namespace_terminating(error):
                return None
            now = self._clock()
            status = rollout_status.with_create_error(deployment, name, str(error), now)
            await self._write(key, deployment, status)
            note = f'Failed to create new replica set "{name}": {error}'
            self._record_event(deployment, note, type="Warning", reason="ReplicaSetCreateError")
            raise
        self._set_expectations.wrote(key, created)
        if size:
            self._record_event(deployment, f"Scaled up replica set {name} from 0 to {size}")
        return created

    async def _annotate(self, key: Key, deployment: Deployment, sets: DeploymentSets) -> None:
        """Write the revision and annotations that the new ReplicaSet should have."""
        new = sets.new
        assert new is not None
        body: dict[str, object] = {}
        if annotations := missing_annotations(deployment, sets):
            body["metadata"] = {"uid": new.metadata.uid, "annotations": annotations}
        if new.spec.min_ready_seconds != deployment.spec.min_ready_seconds:
            body["spec"] = {"minReadySeconds": deployment.spec.min_ready_seconds}
        if body:
            await self._patch(key, new, body)

    async def _resize(self, key: Key, deployment: Deployment, resize: Resize) -> None:
        replica_set, size = resize.replica_set, resize.replicas
        annotations: dict[str, str | None] = {}
        if not resize.short:
            annotations |= size_annotations(deployment)
        current, target = replica_set.metadata.annotations, target_replicas(replica_set)
        body: dict[str, object] = {}
        if size != target:
            reducing = (
                self._evicts
                and size < replica_set.spec.replicas
                and not self._is_recreated(deployment, replica_set)
            )
            annotations[REDUCE_TO] = str(size) if reducing else None
            if size != replica_set.spec.replicas and not reducing:
                body["spec"] = {"replicas": size}
        annotations = {k: v for k, v in annotations.items() if current.get(k) != v}
        if annotations:
            body["metadata"] = {"uid": replica_set.metadata.uid, "annotations": annotations}
        if body:
            await self._patch(key, replica_set, body)
        if size not in (target, replica_set.spec.replicas) and not annotations.get(REDUCE_TO):
            direction = "up" if size > target else "down"
            name = replica_set.metadata.name
            note = f"Scaled {direction} replica set {name} from {target} to {size}"
            self._record_event(deployment, note)

    def _replica_set_changed(self, old: ReplicaSet | None, new: ReplicaSet | None) -> None:
        """Record an event when a ReplicaSet shrinks as requested; budgets may have delayed that."""
        if old is None or new is None or REDUCE_TO not in old.metadata.annotations:
            return
        before, after = old.spec.replicas, new.spec.replicas
        controller_ref = new.metadata.controller
        if controller_ref is None or after >= before:
            return
        deployment = self._deployments.get((new.metadata.namespace, controller_ref.name))
        if deployment is not None:
            note = f"Scaled down replica set {new.metadata.name} from {before} to {after}"
            self._record_event(deployment, note)

    def _is_recreated(self, deployment: Deployment, replica_set: ReplicaSet) -> bool:
        """Whether all pods of a ReplicaSet are deleted before the new one is created."""
        return deployment.spec.strategy.type == "Recreate" and not templates.equal_ignoring_hash(
            replica_set.spec.template, deployment.spec.template
        )

    async def _delete_replica_set(self, key: Key, replica_set: ReplicaSet) -> None:
        meta = replica_set.metadata
        try:
            await self._client.delete(
                ReplicaSet, meta.name, meta.namespace, uid=meta.uid, propagation="Background"
            )
        except NotFound:
            return
        self._set_expectations.removed(key, replica_set)

    async def _patch(self, key: Key, replica_set: ReplicaSet, body: dict[str, object]) -> None:
        meta = replica_set.metadata
        written = await self._client.patch(ReplicaSet, meta.name, meta.namespace, body)
        self._set_expectations.wrote(key, written)

    async def _sync_status(
        self,
        key: Key,
        deployment: Deployment,
        sets: DeploymentSets,
        step: RolloutPlan,
        created: ReplicaSet | None = None,
    ) -> DeploymentStatus:
        name = "" if created is None else created.metadata.name
        status = rollout_status.compute_status(
            deployment, sets, created=name, scaling=step.scaling, now=self._clock()
        )
        await self._write(key, deployment, status, revision=_new_revision(deployment, sets))
        held_message = rollout_status.held_by_budget(status)
        if held_message and not rollout_status.held_by_budget(deployment.status):
            self._record_event(deployment, held_message, type="Warning", reason=HELD_BY_BUDGET)
        return status

    async def _write(
        self, key: Key, deployment: Deployment, status: DeploymentStatus, *, revision: str = ""
    ) -> None:
        """Write status and revision together; the status subresource accepts both."""
        renumbered = revision and deployment.metadata.annotations.get(REVISION) != revision
        if status == deployment.status and not renumbered:
            return
        written = await self._client.patch_status(
            deployment,
            rollout_status.status_patch(status),
            annotations={REVISION: revision} if renumbered else None,
        )
        self._deployment_expectations.wrote(key, written)

    def _record_event(
        self,
        deployment: Deployment,
        note: str,
        *,
        type: Literal["Normal", "Warning"] = "Normal",
        reason: str = "ScalingReplicaSet",
    ) -> None:
        self._recorder.event(deployment, reason, "Scale", note, type=type)


def _new_revision(deployment: Deployment, sets: DeploymentSets) -> str:
    """The revision of the new ReplicaSet, as it is now or was just written."""
    if sets.new is None:
        return ""
    annotations = sets.new.metadata.annotations | missing_annotations(deployment, sets)
    return annotations.get(REVISION, "")


def _draft_replica_set(
    deployment: Deployment, sets: DeploymentSets, size: int, template_hash: str
) -> ReplicaSet:
    template = templates.add_hash_label(deployment.spec.template, template_hash)
    set_selector = deployment.spec.selector
    return ReplicaSet(
        metadata=ObjectMeta(
            name=f"{deployment.metadata.name}-{template_hash}",
            namespace=deployment.metadata.namespace,
            labels=decode_pod_template(template).metadata.labels,
            annotations=missing_annotations(deployment, sets) | size_annotations(deployment),
            owner_references=(owner_reference(deployment),),
        ),
        spec=ReplicaSetSpec(
            replicas=size,
            selector=LabelSelector(
                match_labels={**set_selector.match_labels, templates.HASH_LABEL: template_hash},
                match_expressions=set_selector.match_expressions,
            ),
            template=template,
            min_ready_seconds=deployment.spec.min_ready_seconds,
        ),
    )
