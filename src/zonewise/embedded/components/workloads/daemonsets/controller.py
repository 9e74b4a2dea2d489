"""DaemonSets: the shell around ``plan``.

A pass claims the set's pods and revisions, finds or records the revision of its template, checks
for every node whether it is eligible, lets the plan decide, carries it out, and writes the status.
*Concurrent* are sets, and the creations and deletions of one pass; at most ``BURST`` of each. A
pass costs time in proportion to the nodes, so ``pacing`` spaces passes over many.

A change of a node enqueues only the sets that have to do something about it: a pod is missing, one
may not stay, or one that was misplaced may be right again. So a new NoSchedule taint is seen in the
status with the set's next pass, as on a real cluster.

*In memory* are only pauses: a pod that failed is replaced at once the first time, then after a
second, two, four, up to ``LONGEST_PAUSE``, per node and generation.
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
from zonewise.api.objects.pod_state import finished
from zonewise.disruption import BudgetsCache
from zonewise.embedded.components.workloads import revisions
from zonewise.embedded.components.workloads.creation import Draft, draft, in_batches, namespace_ends
from zonewise.embedded.components.workloads.daemonsets import plan
from zonewise.embedded.components.workloads.daemonsets.placement import (
    NodePlacement,
    node_of,
    place_of,
)
from zonewise.embedded.components.workloads.daemonsets.plan import (
    GENERATION_LABEL,
    DaemonSetCounts,
    DaemonSetPlan,
    DaemonSetRule,
    Spot,
)
from zonewise.embedded.components.workloads.removal import RemovalMode
from zonewise.embedded.components.workloads.revisions import HISTORY, REVISION_LABEL
from zonewise.embedded.components.workloads.set_controller import Pass, SetController
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.process.clock import elapsed

BURST = 250
WORKERS = 4
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 900.0

TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"

_BY_SET_AND_NODE = "daemons of a node"


@dataclass(slots=True)
class _Pause:
    seconds: float
    since: float


class Pauses:
    """How long nodes have to wait before a failed pod is replaced once more."""

    def __init__(self, clock: Callable[[], float] = elapsed) -> None:
        self._clock = clock
        self._pauses: dict[Key, tuple[int, dict[str, _Pause]]] = {}

    def failed(self, key: Key, generation: int, node: str) -> None:
        """A failed pod is replaced: the next one waits twice as long."""
        now = self._clock()
        known, own = self._pauses.get(key, (generation, {}))
        if known != generation:
            own = {}
        pause = own.get(node)
        if pause is None or now - pause.since > 2 * LONGEST_PAUSE:
            own[node] = _Pause(FIRST_PAUSE, now)
        else:
            own[node] = _Pause(min(2 * pause.seconds, LONGEST_PAUSE), now)
        self._pauses[key] = generation, own

    def left(self, key: Key, generation: int) -> dict[str, float]:
        """The nodes that have to wait, and how many seconds."""
        known, own = self._pauses.get(key, (generation, {}))
        if known != generation:
            return {}
        now = self._clock()
        left = {node: pause.since + pause.seconds - now for node, pause in own.items()}
        return {node: seconds for node, seconds in left.items() if seconds > 0}

    def forget(self, key: Key) -> None:
        """The set is deleted."""
        self._pauses.pop(key, None)


class DaemonSets(SetController[DaemonSet]):
    """Keeps a pod of each DaemonSet on every node it means."""

    def __init__(
        self,
        context: ComponentContext,
        *,
        removal: RemovalMode = "evict",
        budgets_cache: BudgetsCache | None = None,
    ) -> None:
        super().__init__(
            context, DaemonSet, removal=removal, budgets_cache=budgets_cache, workers=WORKERS
        )
        self.pauses = Pauses()
        self.pods.add_index(_BY_SET_AND_NODE, _by_set_and_node)
        self.nodes = self.controller.reads(Node)
        self.nodes.on_change(self._node_changed)

    def size(self, group: DaemonSet) -> int:
        """A pass looks at every node."""
        return len(self.nodes)

    def forget(self, key: Key) -> None:
        """A set is deleted."""
        super().forget(key)
        self.pauses.forget(key)

    async def keep(self, group: DaemonSet) -> float | None:
        """One pass over a set; one that is being deleted is left to the garbage collector."""
        if group.metadata.deletion_timestamp is not None:
            return None
        return await _Pass(self, group).run()

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None or (old is not None and _shape(old) == _shape(new)):
            return
        for group in self.sets:
            fit = place_of(bytes(group.spec.template)).fit(new)
            here = self.pods.keys_by(_BY_SET_AND_NODE, (group.metadata.uid, new.metadata.name))
            missing = fit.run and not here
            misplaced = here and (not fit.stay or group.status.number_misscheduled > 0)
            if missing or misplaced:
                self.controller.enqueue(group.key)


class _Pass(Pass[DaemonSet]):
    def __init__(self, home: DaemonSets, group: DaemonSet) -> None:
        super().__init__(home, group)
        self._nodes = home.nodes
        self._pauses = home.pauses

    async def run(self) -> float | None:
        group = self.group
        pods = await self.own_pods()
        history = await self.own_history()
        current, collisions = await revisions.present(
            self.client,
            group,
            group.spec.template,
            history,
            hash_label=REVISION_LABEL,
            collisions=group.status.collision_count,
        )
        place = place_of(bytes(group.spec.template))
        rule = rule_of(group, _hash(current))
        spots, stray = self._spots(place, pods)
        generation = group.status.observed_generation
        resting = self._pauses.left(group.key, generation)
        decision = plan.decide(rule, spots, now=self.now, stray=stray, resting=resting)
        self.again += [resting[node] for node in decision.held]
        await self._create(decision.births[:BURST], place, rule)
        await self._delete(decision, generation)
        await self.take_down(decision.outdated, decision.allowed)
        await self._write_status(plan.count(rule, spots, now=self.now), collisions)
        await self._forget([one for one in history if one.key != current.key], pods)
        return self.ended(pods)

    def gone(self, pod: Pod) -> None:
        """Record an event that a pod was deleted."""
        self._tell("SuccessfulDelete", f"Deleted pod: {pod.metadata.name}")

    def stuck(self, pod: Pod, error: ZonewiseError) -> None:
        """Record an event that a pod could not be deleted."""
        self._tell("FailedDelete", f"Error deleting: {error}", type="Warning")

    def _spots(self, place: NodePlacement, pods: tuple[Pod, ...]) -> tuple[list[Spot], list[Pod]]:
        """Every node with its pods, and the pods of nodes that are no more."""
        on: dict[str, list[Pod]] = {}
        for pod in pods:
            if not finished(pod) or pod.metadata.deletion_timestamp is None:
                on.setdefault(node_of(pod), []).append(pod)
        spots = [
            Spot(name, place.fit(node), tuple(on.pop(name, ())))
            for node in self._nodes
            for name in (node.metadata.name,)
        ]
        on.pop("", None)
        return spots, [pod for left in on.values() for pod in left]

    async def _create(self, nodes: list[str], place: NodePlacement, rule: DaemonSetRule) -> None:
        group = self.group
        labels = {REVISION_LABEL: rule.revision}
        if rule.generation:
            labels[GENERATION_LABEL] = rule.generation

        async def create(node: str) -> Draft:
            wanted = draft(group.spec.template, group, labels=labels, spec=place.spec_for(node))
            return await self.client.create(wanted)

        results = await in_batches(nodes, create)
        for made in results:
            if isinstance(made, Draft):
                self.wrote(made)
                self._tell("SuccessfulCreate", f"Created pod: {made.metadata.name}")
        for error in results:
            if isinstance(error, ZonewiseError):
                if not namespace_ends(error):
                    self.errors.append(error)
                    self._tell("FailedCreate", f"Error creating: {error}", type="Warning")
            elif isinstance(error, BaseException):
                raise error

    async def _delete(self, decision: DaemonSetPlan, generation: int) -> None:
        """Delete pods that should not run, whatever budgets say."""
        going = decision.departures[:BURST]
        for one in going:
            where = f"{'/'.join(one.pod.key)} on node {one.node}"
            if one.cause == "failed":
                self._pauses.failed(self.group.key, generation, one.node)
                note = f"Found failed daemon pod {where}, will try to kill it"
                self._tell("FailedDaemonPod", note, type="Warning")
            elif one.cause == "succeeded":
                note = f"Found succeeded daemon pod {where}, will try to delete it"
                self._tell("SucceededDaemonPod", note)
        await asyncio.gather(*(self._delete_one(one.pod) for one in going))

    async def _delete_one(self, pod: Pod) -> None:
        meta = pod.metadata
        try:
            await self.client.delete(Pod, meta.name, meta.namespace, uid=meta.uid)
        except (NotFound, Conflict):
            return
        except ZonewiseError as error:
            self.errors.append(error)
            self.stuck(pod, error)
        else:
            self.removed(pod)

    async def _write_status(self, counts: DaemonSetCounts, collisions: int | None) -> None:
        group = self.group
        status = DaemonSetStatus(
            observed_generation=group.metadata.generation,
            current_number_scheduled=counts.current,
            number_misscheduled=counts.misscheduled,
            desired_number_scheduled=counts.desired,
            number_ready=counts.ready,
            updated_number_scheduled=counts.updated,
            number_available=counts.available,
            number_unavailable=counts.desired - counts.available,
            collision_count=collisions,
            conditions=group.status.conditions,
        )
        if status == group.status:
            return
        await self.client.patch_status(group, _sparse(status))

    async def _forget(self, old: list[ControllerRevision], pods: tuple[Pod, ...]) -> None:
        limit = self.group.spec.revision_history_limit
        keep = HISTORY if limit is None else limit
        if len(old) <= keep:
            return
        live = {pod.metadata.labels.get(REVISION_LABEL, "") for pod in pods}
        in_use = sum(_hash(one) in live for one in old)
        unused = revisions.surplus(old, lambda one: _hash(one) in live, keep=max(keep - in_use, 0))
        await revisions.forget(self.client, unused)

    def _tell(
        self, reason: str, note: str, *, type: Literal["Normal", "Warning"] = "Normal"
    ) -> None:
        self.note(reason, "Scale", note, type=type)


def rule_of(group: DaemonSet, revision: str) -> DaemonSetRule:
    """What a set specifies, given the hash of its revision."""
    strategy = group.spec.update_strategy
    rolling = strategy.rolling_update
    generation = group.metadata.annotations.get(TEMPLATE_GENERATION, "")
    return DaemonSetRule(
        revision=revision,
        generation=generation if generation.isdecimal() else "",
        on_delete=strategy.type == "OnDelete",
        surge=0 if rolling is None or rolling.max_surge is None else rolling.max_surge,
        unavailable=1
        if rolling is None or rolling.max_unavailable is None
        else rolling.max_unavailable,
        min_ready=group.spec.min_ready_seconds,
    )


def _hash(revision: ControllerRevision) -> str:
    """What pods of a revision are labelled with; its name where it was not made by this kind."""
    return revision.metadata.labels.get(REVISION_LABEL, revision.metadata.name)


def _sparse(status: DaemonSetStatus) -> dict[str, object]:
    """The members of a status; those that are never sent as zero are removed."""
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


def _shape(node: Node) -> tuple[object, ...]:
    """What decides whether a node is meant."""
    return node.metadata.labels, node.spec.taints


def _by_set_and_node(pod: Pod) -> tuple[tuple[str, str], ...]:
    owner = pod.metadata.controller
    if owner is None or owner.kind != DaemonSet.resource.kind:
        return ()
    return ((owner.uid, node_of(pod)),)
