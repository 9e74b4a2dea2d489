"""The StatefulSet controller: the shell around ``ordinals``.

A sync claims the set's pods and revisions, ensures the revision of its template, plans, carries the
plan out, and writes the status. *Concurrent* are sets, and the pods that a Parallel set creates or
removes in one sync, at most ``BURST`` of each; an OrderedReady set does one step per sync, and the
next change of the pod enqueues the next one.

*Idempotent*: pods are named by ordinal and revisions by content, deletions carry the uid, and a
sync waits until the store shows what the last one wrote.

Pods are removed through ``removal``. *Retried* with backoff is a sync in which something failed;
its status is written all the same, and events report what failed.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from zonewise.api.errors import AlreadyExists, ZonewiseError
from zonewise.api.meta import Key
from zonewise.api.objects.apps import (
    ControllerRevision,
    StatefulSet,
    StatefulSetStatus,
    decode_pod_template,
)
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.storage import PersistentVolumeClaim
from zonewise.disruption.budgets_cache import BudgetsCache
from zonewise.embedded.components.workloads import revisions
from zonewise.embedded.components.workloads.creation import (
    PodDraft,
    draft_pod,
    is_namespace_terminating,
    run_in_batches,
)
from zonewise.embedded.components.workloads.removal import RemovalMode
from zonewise.embedded.components.workloads.revisions import (
    DEFAULT_HISTORY_LIMIT,
    HASH_LABEL,
    REVISION_LABEL,
)
from zonewise.embedded.components.workloads.set_controller import SetController, SetSync
from zonewise.embedded.components.workloads.statefulsets import claims, ordinals
from zonewise.embedded.components.workloads.statefulsets.ordinals import (
    StatefulSetCounts,
    StatefulSetPlan,
    StatefulSetRule,
    ordinal_of,
)
from zonewise.runtime.controller.expectations import GLANCE, Expectations
from zonewise.runtime.program.context import ControllerContext

BURST = 500
WORKERS = 8
STALE_CLAIM_RETRY_SECONDS = 1.0
"""How long to wait for the garbage collector to delete the claim of a deleted pod."""

POD_NAME = "statefulset.kubernetes.io/pod-name"
POD_INDEX = "apps.kubernetes.io/pod-index"


class StatefulSetController(SetController[StatefulSet]):
    """Creates, updates and removes the pods of StatefulSets."""

    def __init__(
        self,
        context: ControllerContext,
        *,
        removal: RemovalMode = "evict",
        budgets_cache: BudgetsCache | None = None,
    ) -> None:
        super().__init__(
            context, kind=StatefulSet, removal=removal, budgets_cache=budgets_cache, workers=WORKERS
        )
        self.claims = self.controller.reads(PersistentVolumeClaim)
        self.claim_expectations: Expectations[Key, PersistentVolumeClaim] = Expectations(
            self.claims
        )

    def sync_cost(self, workload: StatefulSet) -> int:
        """A sync reads every pod; OrderedReady sets wait for each step anyway."""
        return workload.spec.replicas if workload.spec.pod_management_policy == "Parallel" else 0

    def forget(self, key: Key) -> None:
        """A set is deleted."""
        super().forget(key)
        self.claim_expectations.forget(key)

    async def sync(self, workload: StatefulSet) -> float | None:
        """Sync a set, once the store shows its claims as they were written."""
        if not self.claim_expectations.settled(workload.key):
            return GLANCE
        return await _StatefulSetSync(self, workload).run()


class _StatefulSetSync(SetSync[StatefulSet]):
    def __init__(self, controller: StatefulSetController, stateful_set: StatefulSet) -> None:
        super().__init__(controller, stateful_set)
        self._claims = controller.claims
        self._claim_expectations = controller.claim_expectations

    async def run(self) -> float | None:
        stateful_set = self.workload
        name = stateful_set.metadata.name
        pods = await self.claim_pods(lambda pod: ordinal_of(pod.metadata.name, name) is not None)
        history = await self.claim_revisions()
        terminating = stateful_set.metadata.deletion_timestamp is not None
        if terminating and not history:
            return None
        update, collisions = await revisions.ensure_revision(
            self.client,
            stateful_set,
            stateful_set.spec.template,
            history,
            hash_label=HASH_LABEL,
            collisions=stateful_set.status.collision_count or 0,
        )
        revisions_by_name = {revision.metadata.name: revision for revision in history}
        current = revisions_by_name.get(stateful_set.status.current_revision, update)
        rule = read_rule(
            stateful_set,
            current.metadata.name,
            update.metadata.name,
            evicting=self.evicts_pods,
        )
        counts = ordinals.count(rule, pods, now=self.now)
        outdated_removed = 0
        if not terminating:
            present = {ordinal_of(pod.metadata.name, name) for pod in pods}
            missing = [ordinal for ordinal in rule.ordinals if ordinal not in present]
            stale = self._stale_ordinals(missing)
            decision = ordinals.decide(rule, pods, now=self.now, stale=stale)
            await self._update_pods_and_claims(decision)
            # A pod whose claims did not get their owner must not be deleted, or they would stay
            # forever.
            if not self.errors:
                await self._create(decision, rule, (current, update))
            if not self.errors:
                outdated_removed = await self._remove_planned(decision, rule.current)
        await self._write_status(rule, counts, outdated_removed, collisions)
        await self._delete_old_revisions(history, {rule.current, rule.update}, pods)
        return self.finish(pods)

    def record_deleted(self, pod: Pod) -> None:
        """Record an event that a pod was removed."""
        self._record_success("delete", f"Pod {pod.metadata.name}")

    def record_delete_failed(self, pod: Pod, error: ZonewiseError) -> None:
        """Record an event that a pod could not be deleted."""
        self._record_failure("delete", f"Pod {pod.metadata.name}", error)

    def _stale_ordinals(self, ordinals_without_pod: Iterable[int]) -> frozenset[int]:
        """Which of these ordinals have claims that still belong to a deleted pod."""
        stateful_set = self.workload
        if claims.scaled_policy(stateful_set) != claims.DELETE:
            return frozenset()
        stale = frozenset(
            ordinal
            for ordinal in ordinals_without_pod
            for draft in claims.draft_claims(stateful_set, ordinal).values()
            if (claim := self._claims.get(draft.key)) is not None
            and claims.is_stale(claim, f"{stateful_set.metadata.name}-{ordinal}")
        )
        if stale:
            self.delays.append(STALE_CLAIM_RETRY_SECONDS)
        return stale

    async def _update_pods_and_claims(self, decision: StatefulSetPlan) -> None:
        """Update the identity of pods, and create and update their claims."""
        try:
            for pod in decision.pending:
                await self._create_claims(pod.metadata.name)
                await self._update_claim_owners(pod, condemned=False)
            for pod in decision.to_reconcile:
                await self._update_identity(pod)
                await self._update_claim_owners(pod, condemned=False)
            for pod in decision.condemned:
                await self._update_claim_owners(pod, condemned=True)
        except ZonewiseError as error:
            self.errors.append(error)

    async def _create(
        self,
        decision: StatefulSetPlan,
        rule: StatefulSetRule,
        templates: tuple[ControllerRevision, ControllerRevision],
    ) -> None:
        by_name = {revision.metadata.name: revision for revision in templates}

        async def create(ordinal: int) -> None:
            await self._create_pod(ordinal, by_name[rule.revision_for(ordinal)])

        for result in await run_in_batches(decision.creations[:BURST], create):
            if isinstance(result, ZonewiseError):
                if not is_namespace_terminating(result):
                    self.errors.append(result)
            elif result is not None:
                raise result

    async def _create_pod(self, ordinal: int, revision: ControllerRevision) -> None:
        draft = draft_for_ordinal(self.workload, ordinal, revision)
        name = draft.metadata.name
        try:
            await self._create_claims(name)
            created = await self.client.create(draft)
        except AlreadyExists:
            raise
        except ZonewiseError as error:
            self._record_failure("create", f"Pod {name}", error)
            raise
        self.expect_created(created)
        self._record_success("create", f"Pod {name}")

    async def _update_identity(self, pod: Pod) -> None:
        meta = pod.metadata
        if meta.labels.get(POD_NAME) == meta.name:
            return
        body = {"metadata": {"uid": meta.uid, "labels": _identity_labels(meta.name)}}
        try:
            await self.client.patch(Pod, meta.name, meta.namespace, body)
        except ZonewiseError as error:
            self._record_failure("update", f"Pod {meta.name}", error)
            raise
        self._record_success("update", f"Pod {meta.name}")

    async def _create_claims(self, pod_name: str) -> None:
        """Create the missing claims of an ordinal."""
        stateful_set = self.workload
        ordinal = ordinal_of(pod_name, stateful_set.metadata.name)
        if ordinal is None or not stateful_set.spec.volume_claim_templates:
            return
        for draft in claims.draft_claims(stateful_set, ordinal).values():
            name = draft.metadata.name
            claim = self._claims.get(draft.key)
            if claim is not None:
                if claim.metadata.deletion_timestamp is not None:
                    raise ZonewiseError(f"pvc {name} is being deleted")
                continue
            try:
                created = await self.client.create(draft)
            except AlreadyExists:
                continue
            except ZonewiseError as error:
                self._record_failure("create", f"Claim {name} for Pod {pod_name}", error)
                raise
            self._claim_expectations.wrote(stateful_set.key, created)
            self._record_success("create", f"Claim {name} Pod {pod_name}", outcome="success")

    async def _update_claim_owners(self, pod: Pod, *, condemned: bool) -> None:
        """Write the owners of a pod's claims that follow from the retention policy."""
        stateful_set = self.workload
        ordinal = ordinal_of(pod.metadata.name, stateful_set.metadata.name)
        if ordinal is None or not stateful_set.spec.volume_claim_templates:
            return
        for draft in claims.draft_claims(stateful_set, ordinal).values():
            claim = self._claims.get(draft.key)
            if claim is None:
                continue
            owners = claims.desired_owners(claim, stateful_set, pod, condemned=condemned)
            if owners is None:
                continue
            meta = claim.metadata
            if claims.has_conflicting_controller(claim, stateful_set, pod):
                note = (
                    f"PersistentVolumeClaim {meta.name} has a conflicting OwnerReference that acts"
                    " as a manging controller, the retention policy is ignored for this claim"
                )
                self.record_event("ConflictingController", "Own", note, type="Warning")
            body = {
                "metadata": {
                    "uid": meta.uid,
                    "resourceVersion": meta.resource_version,
                    "ownerReferences": owners,
                }
            }
            cls = PersistentVolumeClaim
            written = await self.client.patch(cls, meta.name, meta.namespace, body)
            self._claim_expectations.wrote(stateful_set.key, written)

    async def _remove_planned(self, decision: StatefulSetPlan, current: str) -> int:
        """Remove pods; returns how many of them were outdated and of the current revision.

        Adopted pods can be of a revision that is not in this set's history.
        """
        if not decision.removals:
            self.forget_refusals()
        outdated_removed = 0
        for step in decision.removals:
            pods = [removal.pod for removal in step.candidates]
            granted = await self.remove_pods(pods, min(step.count, BURST), in_order=True)
            uids = {pod.metadata.uid for pod in granted}
            outdated_removed += sum(
                removal.cause == "update"
                and removal.pod.metadata.uid in uids
                and removal.pod.metadata.labels.get(REVISION_LABEL) == current
                for removal in step.candidates
            )
        return outdated_removed

    async def _write_status(
        self,
        rule: StatefulSetRule,
        counts: StatefulSetCounts,
        outdated_removed: int,
        collisions: int | None,
    ) -> None:
        stateful_set, is_complete = self.workload, ordinals.is_complete(rule, counts)
        status = StatefulSetStatus(
            observed_generation=stateful_set.metadata.generation,
            replicas=counts.replicas,
            ready_replicas=counts.ready,
            available_replicas=counts.available,
            current_replicas=counts.updated if is_complete else counts.current - outdated_removed,
            updated_replicas=counts.updated,
            current_revision=rule.update if is_complete else rule.current,
            update_revision=rule.update,
            collision_count=collisions,
            conditions=stateful_set.status.conditions,
        )
        if status == stateful_set.status:
            return
        await self.client.patch_status(stateful_set, _status_patch(status))

    async def _delete_old_revisions(
        self, history: list[ControllerRevision], live_names: set[str], pods: Iterable[Pod]
    ) -> None:
        limit = self.workload.spec.revision_history_limit
        keep = DEFAULT_HISTORY_LIMIT if limit is None else limit
        if keep < 0 or len(history) <= keep:
            return
        live_names |= {pod.metadata.labels.get(REVISION_LABEL, "") for pod in pods}
        unused = revisions.select_surplus(
            history, lambda revision: revision.metadata.name in live_names, keep=keep
        )
        await revisions.delete_revisions(self.client, unused)

    def _record_success(self, verb: str, subject: str, *, outcome: str = "successful") -> None:
        """Record an event of what was done, with Kubernetes' own text."""
        verb = verb.title()
        note = f"{verb} {subject} in StatefulSet {self.workload.metadata.name} {outcome}"
        self.record_event(f"Successful{verb}", verb, note)

    def _record_failure(self, verb: str, subject: str, error: ZonewiseError) -> None:
        """Record an event of what failed, with Kubernetes' own text."""
        verb, name = verb.title(), self.workload.metadata.name
        note = f"{verb} {subject} in StatefulSet {name} failed error: {error}"
        self.record_event(f"Failed{verb}", verb, note, type="Warning")


def read_rule(
    stateful_set: StatefulSet, current: str, update: str, *, evicting: bool = False
) -> StatefulSetRule:
    """Read what a set specifies, given the names of its revisions."""
    spec = stateful_set.spec
    strategy = spec.update_strategy
    rolling = strategy.rolling_update
    return StatefulSetRule(
        name=stateful_set.metadata.name,
        replicas=spec.replicas,
        current=current,
        update=update,
        start=0 if spec.ordinals is None else spec.ordinals.start,
        parallel=spec.pod_management_policy == "Parallel",
        on_delete=strategy.type == "OnDelete",
        partition=0 if rolling is None else rolling.partition or 0,
        max_unavailable=None if rolling is None else rolling.max_unavailable,
        min_ready=spec.min_ready_seconds,
        evicting=evicting,
    )


def draft_for_ordinal(
    stateful_set: StatefulSet, ordinal: int, revision: ControllerRevision
) -> PodDraft:
    """Draft the pod of an ordinal from the template of a revision."""
    name = f"{stateful_set.metadata.name}-{ordinal}"
    template = revisions.template_of(bytes(revision.data))
    spec = msgspec.json.decode(decode_pod_template(template).spec)
    spec["hostname"] = name
    spec["subdomain"] = stateful_set.spec.service_name
    claims_by_volume = claims.draft_claims(stateful_set, ordinal)
    volumes = spec.get("volumes", ())
    other_volumes = [item for item in volumes if item["name"] not in claims_by_volume]
    spec["volumes"] = [
        *(
            {"name": volume, "persistentVolumeClaim": {"claimName": claim.metadata.name}}
            for volume, claim in claims_by_volume.items()
        ),
        *other_volumes,
    ]
    pod_draft = draft_pod(
        template,
        stateful_set,
        name=name,
        labels={**_identity_labels(name), REVISION_LABEL: revision.metadata.name},
        spec=msgspec.Raw(msgspec.json.encode(spec)),
    )
    prefix = f"{stateful_set.metadata.name}-"
    meta = msgspec.structs.replace(pod_draft.metadata, generate_name=prefix)
    return msgspec.structs.replace(pod_draft, metadata=meta)


def _identity_labels(name: str) -> dict[str, str]:
    return {POD_NAME: name, POD_INDEX: name.rpartition("-")[2]}


def _status_patch(status: StatefulSetStatus) -> dict[str, object]:
    """The patch that writes a status; members that Kubernetes omits as zero are removed."""
    return {
        "observedGeneration": status.observed_generation,
        "replicas": status.replicas,
        "readyReplicas": status.ready_replicas or None,
        "currentReplicas": status.current_replicas or None,
        "updatedReplicas": status.updated_replicas or None,
        "availableReplicas": status.available_replicas,
        "currentRevision": status.current_revision,
        "updateRevision": status.update_revision,
        "collisionCount": status.collision_count,
    }
