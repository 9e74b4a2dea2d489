"""Scales held ReplicaSets down as far as budgets allow, after marking the pods to delete.

A ReplicaSet is held while it carries the annotation ``zonewise.io/reduce-to`` of the clamp. One
turn: choose victims that every budget would grant now, from the fullest domain first; mark those
that are Ready with a deletion cost; when the marks are in every cache, lower ``spec.replicas`` by
their number. Kubernetes' own controller then deletes exactly those pods, and each deletion is
granted by the gate. The ReplicaSet's change also triggers its Deployment, which ignores changes of
pods.

Nothing is in memory but how long ago marks were written, and which holds were reported: a new
leader finds marks and annotations on the objects and continues. A held ReplicaSet of which no pod
may be deleted costs no request; it is checked when a pod, an owner or a budget of its namespace
changes.

*Passing on.* A Deployment's controller shrinks the oldest ReplicaSet first, and that one may have
pods in closed domains only. If none of its pods may go, one is requested of another old ReplicaSet
instead, of which one may; not before as many pods are available as the Deployment's strategy needs
for that, and one at a time.

When a ReplicaSet has pods to lose and none of them may go, an event on its Deployment says which
budget refuses: once, until some may go again. There is no condition: the status of a Deployment is
written by Kubernetes' own controller.

A pod whose deletion cost another client set cannot be steered: it is left alone and reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zonewise.api.meta import Key, ObjectReference
from zonewise.api.objects.budgets import DisruptionLedger, TopologyDisruptionBudget
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_active, is_pod_ready
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.api.values.numbers import scale_int_or_percent
from zonewise.disruption.budgets_cache import BudgetsCache
from zonewise.disruption.namespace_budgets import NamespaceBudgets
from zonewise.disruption.owner_views import DeploymentScale, ReplicaSetScale
from zonewise.disruption.owners import reference_of
from zonewise.disruption.steering import (
    DELETION_COST,
    HELD_BY_BUDGET,
    MARK_COST,
    MARK_SEEN_SECONDS,
    REDUCE_TO,
    choose_pods_in_slices,
    format_held_message,
    is_foreign,
    is_marked,
    parse_reduce_to,
)
from zonewise.disruption.verdict import DisruptionVerdict
from zonewise.runtime.controller.controller import own_key
from zonewise.runtime.controller.queue import Queue
from zonewise.runtime.process.turns import in_slices

if TYPE_CHECKING:
    from zonewise.runtime.program.context import ControllerContext

GATHER = 0.1
LOOK_AGAIN = 60.0


class Marking:
    """Looks after ReplicaSets that are held."""

    def __init__(self, context: ControllerContext, *, budgets_cache: BudgetsCache) -> None:
        self._client = context.client
        self._recorder = context.recorder
        self._clock = context.clock
        self._budgets_cache = budgets_cache
        self._marked: dict[Key, float] = {}
        self._reported: set[Key] = set()
        self.controller = context.controller(
            "reductions",
            self._reconcile,
            workers=4,
            queue=Queue(rng=context.rng, lane=namespace_of),
        )
        self._sets = self.controller.watches(
            ReplicaSetScale,
            own_key,
            indexes={"held": _held_namespace, "owner": _owner_uid},
            when=_is_held,
        )
        self._deployments = self.controller.reads(DeploymentScale)
        for cls in (Pod, PodDisruptionBudget, TopologyDisruptionBudget, DisruptionLedger):
            self.controller.reads(cls).on_change(self._changed)

    def _changed(self, old: Any, new: Any) -> None:
        namespace = (new or old).metadata.namespace
        for key in self._sets.keys_by("held", namespace):
            self.controller.enqueue(key, after=GATHER)

    async def _reconcile(self, key: Key) -> float | None:
        item = self._sets.get(key)
        target = None if item is None else parse_reduce_to(item.metadata.annotations)
        if item is None or target is None:
            self._marked.pop(key, None)
            self._reported.discard(key)
            return None
        size = item.spec.replicas or 0
        pods = self._pods_of(item)
        if target >= size or item.metadata.deletion_timestamp is not None:
            self._reported.discard(key)
            await self._unmark(pods, keep=set())
            return None
        now = self._clock()
        budgets = self._budgets_cache.get_or_create(key[0])
        await in_slices(budgets.count_changes())
        count = len(pods) - target
        choice = await in_slices(choose_pods_in_slices(budgets, pods, count, now))
        if choice.pods or choice.first_refusal is None:
            self._reported.discard(key)
        elif key not in self._reported:
            self._reported.add(key)
            self._report_hold(item, len(pods), target, choice.first_refusal[1])
        if not choice.pods and choice.first_refusal is not None:
            await self._pass_on(item, budgets, now)
        victims = {pod.metadata.uid for pod in choice.pods}
        steered = [pod for pod in choice.pods if is_pod_ready(pod)]
        foreign = [pod for pod in steered if is_foreign(pod)]
        for pod in foreign:
            self._report_foreign_cost(item, pod)
        await self._unmark(pods, keep=victims)
        fresh = [pod for pod in steered if not is_marked(pod) and not is_foreign(pod)]
        for pod in fresh:
            await self._mark(pod, MARK_COST)
        if fresh:
            self._marked[key] = now
            return MARK_SEEN_SECONDS
        wait = self._marked.get(key, float("-inf")) + MARK_SEEN_SECONDS - now
        if wait > 0:
            return wait
        # Pods beyond the size are about to be deleted: they are among the chosen ones already.
        lowered = max(target, min(size, len(pods) - len(choice.pods)))
        if lowered < size:
            await self._lower(item, lowered, target)
            return None
        return LOOK_AGAIN

    async def _pass_on(self, item: ReplicaSetScale, budgets: NamespaceBudgets, now: float) -> None:
        """Request one pod of another old ReplicaSet of the same Deployment, if one may go."""
        owner = item.metadata.controller
        if owner is None:
            return
        deployment = self._deployments.get((item.metadata.namespace, owner.name))
        if deployment is None or deployment.metadata.uid != owner.uid:
            return
        sets = sorted(self._sets.by("owner", owner.uid), key=_age_key)
        pods = {each.key: self._pods_of(each) for each in sets}
        available = sum(is_pod_ready(pod) for owned in pods.values() for pod in owned)
        # A pod whose deletion is about to follow is still Ready, and not in the size any more.
        size = sum(each.spec.replicas or 0 for each in sets)
        if min(available, size) <= _least_available(deployment):
            return
        candidate: ReplicaSetScale | None = None
        for each in sets:
            owned = pods[each.key]
            reference = reference_of(owned[0]) if owned else None
            if each.key == item.key or reference is None:
                continue
            if not budgets.owners.is_outdated(reference):
                continue
            choice = await in_slices(choose_pods_in_slices(budgets, owned, 1, now))
            if choice.pods and _held_namespace(each):
                return
            if choice.pods and candidate is None:
                candidate = each
        if candidate is not None:
            meta = candidate.metadata
            requested = str((candidate.spec.replicas or 0) - 1)
            change = {
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
                "annotations": {REDUCE_TO: requested},
            }
            await self._client.patch(
                ReplicaSetScale, meta.name, meta.namespace, {"metadata": change}
            )

    def _pods_of(self, item: ReplicaSetScale) -> list[Pod]:
        budgets = self._budgets_cache.get_or_create(item.metadata.namespace)
        owned = [pod for pod in budgets.pods_owned_by(item.metadata.uid) if is_pod_active(pod)]
        return sorted(owned, key=lambda pod: (not is_marked(pod), pod.metadata.name))

    async def _mark(self, pod: Pod, cost: str | None) -> None:
        meta = pod.metadata
        body = {"metadata": {"uid": meta.uid, "annotations": {DELETION_COST: cost}}}
        await self._client.patch(Pod, meta.name, meta.namespace, body)

    async def _unmark(self, pods: list[Pod], *, keep: set[str]) -> None:
        for pod in pods:
            if is_marked(pod) and pod.metadata.uid not in keep:
                await self._mark(pod, None)

    async def _lower(self, item: ReplicaSetScale, size: int, target: int) -> None:
        meta = item.metadata
        change: dict[str, Any] = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        if size == target:
            change["annotations"] = {REDUCE_TO: None}
        body = {"metadata": change, "spec": {"replicas": size}}
        await self._client.patch(ReplicaSetScale, meta.name, meta.namespace, body)

    def _report_hold(
        self, item: ReplicaSetScale, pods: int, target: int, verdict: DisruptionVerdict
    ) -> None:
        meta = item.metadata
        owner = meta.controller
        self._recorder.event(
            item
            if owner is None
            else ObjectReference(
                api_version=owner.api_version,
                kind=owner.kind,
                namespace=meta.namespace,
                name=owner.name,
                uid=owner.uid,
            ),
            HELD_BY_BUDGET,
            "Scale",
            format_held_message(meta.name, pods, target, verdict.reason.message),
            type="Warning",
        )

    def _report_foreign_cost(self, item: ReplicaSetScale, pod: Pod) -> None:
        self._recorder.event(
            item,
            "ForeignDeletionCost",
            "Mark",
            f"Pod {pod.metadata.name} has a deletion cost that is not ours and is left alone;"
            " another pod than the one chosen may go",
            type="Warning",
        )


def namespace_of(key: Key) -> str:
    """Whose turn it takes."""
    return key[0]


def _held_namespace(item: ReplicaSetScale) -> tuple[str, ...]:
    held_back = parse_reduce_to(item.metadata.annotations) is not None
    return (item.metadata.namespace,) if held_back else ()


def _owner_uid(item: ReplicaSetScale) -> tuple[str, ...]:
    owner = item.metadata.controller
    return (owner.uid,) if owner is not None else ()


def _age_key(item: ReplicaSetScale) -> tuple[str, str]:
    return item.metadata.creation_timestamp or "", item.metadata.name


def _least_available(deployment: DeploymentScale) -> int:
    """How many pods have to be available during a rollout, as Kubernetes' controller counts."""
    replicas = deployment.spec.replicas or 0
    rolling = deployment.spec.strategy.rolling_update
    surge = scale_int_or_percent((rolling and rolling.max_surge) or 0, replicas, round_up=True)
    limit = (rolling and rolling.max_unavailable) or 0
    unavailable = scale_int_or_percent(limit, replicas, round_up=False)
    return replicas - (unavailable if surge or unavailable else 1)


def _is_held(old: ReplicaSetScale | None, new: ReplicaSetScale | None) -> bool:
    return any(item is not None and bool(_held_namespace(item)) for item in (old, new))
