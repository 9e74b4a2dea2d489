"""The DaemonSet controller: the shell around ``plan``.

A sync claims the set's pods and revisions, ensures the revision of its template, checks for every
node whether it is eligible, plans, carries the plan out, and writes the status. *Concurrent* are
sets, and the creations and deletions of one sync; at most ``BURST`` of each. A sync costs time in
proportion to the nodes, so ``pacing`` spaces syncs over many nodes.

A change of a node enqueues only the sets that have to do something about it: a pod is missing, one
may not stay, or one that was misplaced may be right again. So a new NoSchedule taint is seen in the
status with the set's next sync, as on a real cluster.

*In memory* are only backoffs: a pod that failed is replaced at once the first time, then after a
second, two, four, up to ``MAX_BACKOFF``, per node and generation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from zonewise.api.errors import Conflict, NotFound, ZonewiseError
from zonewise.api.meta import Key
from zonewise.api.objects.apps import ControllerRevision, DaemonSet, DaemonSetStatus
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_finished
from zonewise.disruption.budgets_cache import BudgetsCache
from zonewise.embedded.components.workloads import revisions
from zonewise.embedded.components.workloads.creation import (
    PodDraft,
    draft_pod,
    is_namespace_terminating,
    run_in_batches,
)
from zonewise.embedded.components.workloads.daemonsets import plan
from zonewise.embedded.components.workloads.daemonsets.placement import (
    NodePlacement,
    node_of,
    placement_of,
)
from zonewise.embedded.components.workloads.daemonsets.plan import (
    GENERATION_LABEL,
    DaemonNode,
    DaemonSetCounts,
    DaemonSetPlan,
    DaemonSetRule,
)
from zonewise.embedded.components.workloads.removal import RemovalMode
from zonewise.embedded.components.workloads.revisions import DEFAULT_HISTORY_LIMIT, REVISION_LABEL
from zonewise.embedded.components.workloads.set_controller import SetController, SetSync
from zonewise.runtime.process.clock import elapsed
from zonewise.runtime.program.context import ControllerContext

BURST = 250
WORKERS = 4
INITIAL_BACKOFF = 1.0
MAX_BACKOFF = 900.0

TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"

_BY_SET_AND_NODE = "daemons of a node"


@dataclass(slots=True)
class _Backoff:
    seconds: float
    since: float


class FailedPodsBackoff:
    """How long nodes have to wait before a failed pod is replaced again."""

    def __init__(self, clock: Callable[[], float] = elapsed) -> None:
        self._clock = clock
        self._backoffs: dict[Key, tuple[int, dict[str, _Backoff]]] = {}

    def record_failure(self, key: Key, generation: int, node: str) -> None:
        """A failed pod is replaced: the next one waits twice as long."""
        now = self._clock()
        known_generation, by_node = self._backoffs.get(key, (generation, {}))
        if known_generation != generation:
            by_node = {}
        backoff = by_node.get(node)
        if backoff is None or now - backoff.since > 2 * MAX_BACKOFF:
            by_node[node] = _Backoff(INITIAL_BACKOFF, now)
        else:
            by_node[node] = _Backoff(min(2 * backoff.seconds, MAX_BACKOFF), now)
        self._backoffs[key] = generation, by_node

    def remaining(self, key: Key, generation: int) -> dict[str, float]:
        """The nodes that have to wait, and how many seconds."""
        known_generation, by_node = self._backoffs.get(key, (generation, {}))
        if known_generation != generation:
            return {}
        now = self._clock()
        ends = {node: backoff.since + backoff.seconds for node, backoff in by_node.items()}
        return {node: end - now for node, end in ends.items() if end > now}

    def forget(self, key: Key) -> None:
        """The set is deleted."""
        self._backoffs.pop(key, None)


class DaemonSetController(SetController[DaemonSet]):
    """Runs a pod of each DaemonSet on every eligible node."""

    def __init__(
        self,
        context: ControllerContext,
        *,
        removal: RemovalMode = "evict",
        budgets_cache: BudgetsCache | None = None,
    ) -> None:
        super().__init__(
            context, kind=DaemonSet, removal=removal, budgets_cache=budgets_cache, workers=WORKERS
        )
        self.failed_pods_backoff = FailedPodsBackoff()
        self.pods.add_index(_BY_SET_AND_NODE, _by_set_and_node)
        self.nodes = self.controller.reads(Node)
        self.nodes.on_change(self._node_changed)

    def sync_cost(self, workload: DaemonSet) -> int:
        """A sync checks every node."""
        return len(self.nodes)

    def forget(self, key: Key) -> None:
        """A set is deleted."""
        super().forget(key)
        self.failed_pods_backoff.forget(key)

    async def sync(self, workload: DaemonSet) -> float | None:
        """Sync a set; one that is being deleted is left to the garbage collector."""
        if workload.metadata.deletion_timestamp is not None:
            return None
        return await _DaemonSetSync(self, workload).run()

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        same = old and new and _eligibility_fields(old) == _eligibility_fields(new)
        if new is None or same:
            return
        for daemon_set in self.sets:
            fit = placement_of(bytes(daemon_set.spec.template)).fit(new)
            pods = self.pods.keys_by(_BY_SET_AND_NODE, (daemon_set.metadata.uid, new.metadata.name))
            missing = fit.should_run and not pods
            misplaced = pods and (not fit.may_stay or daemon_set.status.number_misscheduled > 0)
            if missing or misplaced:
                self.controller.enqueue(daemon_set.key)


class _DaemonSetSync(SetSync[DaemonSet]):
    def __init__(self, controller: DaemonSetController, daemon_set: DaemonSet) -> None:
        super().__init__(controller, daemon_set)
        self._nodes = controller.nodes
        self._failed_pods_backoff = controller.failed_pods_backoff

    async def run(self) -> float | None:
        daemon_set = self.workload
        pods = await self.claim_pods()
        history = await self.claim_revisions()
        current, collisions = await revisions.ensure_revision(
            self.client,
            daemon_set,
            daemon_set.spec.template,
            history,
            hash_label=REVISION_LABEL,
            collisions=daemon_set.status.collision_count,
        )
        placement = placement_of(bytes(daemon_set.spec.template))
        rule = read_rule(daemon_set, _hash_label(current))
        daemon_nodes, stranded = self._daemon_nodes(placement, pods)
        generation = daemon_set.status.observed_generation
        backoffs = self._failed_pods_backoff.remaining(daemon_set.key, generation)
        decision = plan.decide(
            rule, daemon_nodes, now=self.now, stranded=stranded, backing_off=backoffs
        )
        self.delays += [backoffs[node] for node in decision.backing_off]
        await self._create(decision.creations[:BURST], placement, rule)
        await self._delete(decision, generation)
        misplaced = decision.misplaced[:BURST]
        removed = await self.remove_pods(misplaced, len(misplaced)) if misplaced else ()
        if not misplaced or (decision.allowed and not removed):
            await self.remove_pods(decision.outdated, decision.allowed)
        await self._write_status(plan.count(rule, daemon_nodes, now=self.now), collisions)
        old = [revision for revision in history if revision.key != current.key]
        await self._delete_old_revisions(old, pods)
        return self.finish(pods)

    def record_deleted(self, pod: Pod) -> None:
        """Record an event that a pod was deleted."""
        self._record_scale_event("SuccessfulDelete", f"Deleted pod: {pod.metadata.name}")

    def record_delete_failed(self, pod: Pod, error: ZonewiseError) -> None:
        """Record an event that a pod could not be deleted."""
        self._record_scale_event("FailedDelete", f"Error deleting: {error}", type="Warning")

    def _daemon_nodes(
        self, placement: NodePlacement, pods: tuple[Pod, ...]
    ) -> tuple[list[DaemonNode], list[Pod]]:
        """Every node with its pods, and the pods of nodes that do not exist."""
        pods_by_node: dict[str, list[Pod]] = {}
        for pod in pods:
            if not is_pod_finished(pod) or pod.metadata.deletion_timestamp is None:
                pods_by_node.setdefault(node_of(pod), []).append(pod)
        daemon_nodes = [
            DaemonNode(name, placement.fit(node), tuple(pods_by_node.pop(name, ())))
            for node in self._nodes
            for name in (node.metadata.name,)
        ]
        pods_by_node.pop("", None)
        return daemon_nodes, [pod for pods_of_node in pods_by_node.values() for pod in pods_of_node]

    async def _create(
        self, nodes: list[str], placement: NodePlacement, rule: DaemonSetRule
    ) -> None:
        daemon_set = self.workload
        labels = {REVISION_LABEL: rule.revision}
        if rule.generation:
            labels[GENERATION_LABEL] = rule.generation

        async def create(node: str) -> PodDraft:
            pod = draft_pod(
                daemon_set.spec.template, daemon_set, labels=labels, spec=placement.spec_for(node)
            )
            return await self.client.create(pod)

        results = await run_in_batches(nodes, create)
        for created in results:
            if isinstance(created, PodDraft):
                self.expect_created(created)
                self._record_scale_event(
                    "SuccessfulCreate", f"Created pod: {created.metadata.name}"
                )
        for error in results:
            if isinstance(error, ZonewiseError):
                if not is_namespace_terminating(error):
                    self.errors.append(error)
                    note = f"Error creating: {error}"
                    self._record_scale_event("FailedCreate", note, type="Warning")
            elif isinstance(error, BaseException):
                raise error

    async def _delete(self, decision: DaemonSetPlan, generation: int) -> None:
        """Delete pods that have ended or are one too many on their node, regardless of budgets."""
        removals = decision.removals[:BURST]
        for removal in removals:
            location = f"{'/'.join(removal.pod.key)} on node {removal.node}"
            if removal.cause == "failed":
                backoff = self._failed_pods_backoff
                backoff.record_failure(self.workload.key, generation, removal.node)
                note = f"Found failed daemon pod {location}, will try to kill it"
                self._record_scale_event("FailedDaemonPod", note, type="Warning")
            elif removal.cause == "succeeded":
                note = f"Found succeeded daemon pod {location}, will try to delete it"
                self._record_scale_event("SucceededDaemonPod", note)
        await asyncio.gather(*(self._delete_pod(removal.pod) for removal in removals))

    async def _delete_pod(self, pod: Pod) -> None:
        meta = pod.metadata
        try:
            await self.client.delete(Pod, meta.name, meta.namespace, uid=meta.uid)
        except (NotFound, Conflict):
            return
        except ZonewiseError as error:
            self.errors.append(error)
            self.record_delete_failed(pod, error)
        else:
            self.expect_removed(pod)

    async def _write_status(self, counts: DaemonSetCounts, collisions: int | None) -> None:
        daemon_set = self.workload
        status = DaemonSetStatus(
            observed_generation=daemon_set.metadata.generation,
            current_number_scheduled=counts.current,
            number_misscheduled=counts.misscheduled,
            desired_number_scheduled=counts.desired,
            number_ready=counts.ready,
            updated_number_scheduled=counts.updated,
            number_available=counts.available,
            number_unavailable=counts.desired - counts.available,
            collision_count=collisions,
            conditions=daemon_set.status.conditions,
        )
        if status == daemon_set.status:
            return
        await self.client.patch_status(daemon_set, _status_patch(status))

    async def _delete_old_revisions(
        self, revisions_besides_current: list[ControllerRevision], pods: tuple[Pod, ...]
    ) -> None:
        limit = self.workload.spec.revision_history_limit
        keep = DEFAULT_HISTORY_LIMIT if limit is None else limit
        if len(revisions_besides_current) <= keep:
            return
        live_hashes = {pod.metadata.labels.get(REVISION_LABEL, "") for pod in pods}
        in_use = sum(_hash_label(revision) in live_hashes for revision in revisions_besides_current)
        unused = revisions.select_surplus(
            revisions_besides_current,
            lambda revision: _hash_label(revision) in live_hashes,
            keep=max(keep - in_use, 0),
        )
        await revisions.delete_revisions(self.client, unused)

    def _record_scale_event(
        self, reason: str, note: str, *, type: Literal["Normal", "Warning"] = "Normal"
    ) -> None:
        self.record_event(reason, "Scale", note, type=type)


def read_rule(daemon_set: DaemonSet, revision: str) -> DaemonSetRule:
    """Read what a set specifies, given the hash of its revision."""
    strategy = daemon_set.spec.update_strategy
    rolling = strategy.rolling_update
    generation = daemon_set.metadata.annotations.get(TEMPLATE_GENERATION, "")
    return DaemonSetRule(
        revision=revision,
        generation=generation if generation.isdecimal() else "",
        on_delete=strategy.type == "OnDelete",
        surge=0 if rolling is None or rolling.max_surge is None else rolling.max_surge,
        unavailable=1
        if rolling is None or rolling.max_unavailable is None
        else rolling.max_unavailable,
        min_ready=daemon_set.spec.min_ready_seconds,
    )


def _hash_label(revision: ControllerRevision) -> str:
    """The label of a revision's pods; its name where this kind did not create it."""
    return revision.metadata.labels.get(REVISION_LABEL, revision.metadata.name)


def _status_patch(status: DaemonSetStatus) -> dict[str, object]:
    """The patch that writes a status; members that Kubernetes omits as zero are removed."""
    return {
        "observedGeneration": status.observed_generation,
        "currentNumberScheduled": status.current_number_scheduled,
        "numberMisscheduled": status.number_misscheduled,
        "desiredNumberScheduled": status.desired_number_scheduled,
        "numberReady": status.number_ready,
        "updatedNumberScheduled": status.updated_number_scheduled or None,
        "numberAvailable": status.number_available or None,
        "numberUnavailable": status.number_unavailable or None,
        "collisionCount": status.collision_count,
    }


def _eligibility_fields(node: Node) -> tuple[object, ...]:
    """The fields that decide whether a node is eligible."""
    return node.metadata.labels, node.spec.taints


def _by_set_and_node(pod: Pod) -> tuple[tuple[str, str], ...]:
    owner = pod.metadata.controller
    if owner is None or owner.kind != DaemonSet.resource.kind:
        return ()
    return ((owner.uid, node_of(pod)),)
