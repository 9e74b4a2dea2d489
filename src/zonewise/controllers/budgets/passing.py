"""Evicts pods of workloads while others are held by a budget.

Kubernetes' StatefulSet controller tries only its highest ordinal
(``disruption.passing.passing_over``), its DaemonSet controller any pods, and mostly held ones
where many are held (``disruption.passing.held_daemons``), that of ReplicaSets and
ReplicationControllers always the same surplus pods (``disruption.passing.held_surplus``). There is
a ``Passing`` for each of the kinds, and one key is one workload; it is looked at when one of its
pods, itself, or a budget of its namespace changes. Pods are evicted through the gate like any other
client's, each with its uid, and only in namespaces that have opted in: in others nothing holds the
controller. Workloads of a ``DomainRollout`` are left to that.

*No hot loop*: only what all budgets allow is evicted, so a workload of which no pod may go costs no
request. A refusal nevertheless is tried again after ``REFUSED`` seconds or more. In memory is
only which pods were evicted a moment ago.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from zonewise.api.errors import Conflict, NotFound, TooManyRequests
from zonewise.api.meta import Key
from zonewise.api.objects.apps import DaemonSet
from zonewise.api.objects.budgets import (
    DisruptionLedger,
    DomainRollout,
    TopologyDisruptionBudget,
)
from zonewise.api.objects.core import Namespace
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.controllers.budgets.recent_evictions import RecentEvictions
from zonewise.disruption.budgets_cache import BudgetsCache
from zonewise.disruption.namespace_budgets import NamespaceBudgets
from zonewise.disruption.owner_views import (
    ReplicaSetScale,
    ReplicationControllerScale,
    StatefulSetScale,
)
from zonewise.disruption.passing.passing_over import PassingChoice
from zonewise.runtime.cache.indexes import namespace_of
from zonewise.runtime.controller.controller import own_key
from zonewise.runtime.controller.queue import Queue
from zonewise.runtime.process.turns import in_slices

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from zonewise.runtime.program.context import ControllerContext

GATHER = 0.2
REFUSED = 5.0
PASSED_OVER = "PassedOver"

W = TypeVar("W", bound=StatefulSetScale | DaemonSet | ReplicaSetScale | ReplicationControllerScale)
V_contra = TypeVar("V_contra", contravariant=True)


class PassingRule(Protocol[V_contra]):
    """Chooses the pods of a workload that go before those that are held."""

    def __call__(
        self,
        item: V_contra,
        pods: Sequence[Pod],
        budgets: NamespaceBudgets,
        now: float,
        *,
        evicted: Collection[str] = (),
    ) -> PassingChoice: ...


class Passing(Generic[W]):
    """Looks after workloads of a kind that are held; ``is_enforced`` says so of a namespace."""

    def __init__(
        self,
        context: ControllerContext,
        workload: type[W],
        choose: PassingRule[W],
        *,
        budgets_cache: BudgetsCache,
        is_enforced: Callable[[str], bool],
    ) -> None:
        self._kind = workload.resource.kind
        self._choose = choose
        self._client = context.client
        self._recorder = context.recorder
        self._clock = context.clock
        self._rng = context.rng
        self._budgets_cache = budgets_cache
        self._is_enforced = is_enforced
        self._evictions = RecentEvictions(context.clock)
        self.controller = context.controller(
            f"passing-{workload.resource.plural}",
            self._reconcile,
            workers=2,
            queue=Queue(rng=context.rng, lane=_namespace),
        )
        self._workloads = self.controller.watches(
            workload, own_key, indexes={"namespace": namespace_of}
        )
        reads = self.controller.reads
        self._rollouts = reads(DomainRollout)
        self._rollouts.add_index("namespace", namespace_of)
        reads(Pod).on_change(self._pod_changed)
        for cls in (
            DisruptionLedger,
            DomainRollout,
            PodDisruptionBudget,
            TopologyDisruptionBudget,
        ):
            reads(cls).on_change(self._changed)
        reads(Namespace).on_change(self._namespace_changed)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        item = new or old
        assert item is not None
        owner = item.metadata.controller
        if owner is not None and owner.kind == self._kind:
            self.controller.enqueue((item.metadata.namespace, owner.name), after=GATHER)

    def _changed(self, old: Any, new: Any) -> None:
        self._all_of((new or old).metadata.namespace)

    def _namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        if new is not None and (old is None or old.metadata.labels != new.metadata.labels):
            self._all_of(new.metadata.name)

    def _all_of(self, namespace: str) -> None:
        for key in self._workloads.keys_by("namespace", namespace):
            self.controller.enqueue(key, after=GATHER)

    async def _reconcile(self, key: Key) -> float | None:
        item = self._workloads.get(key)
        if item is None:
            self._evictions.forget(key)
            return None
        if not self._is_enforced(key[0]) or self._has_rollout(item):
            return None
        budgets = self._budgets_cache.get_or_create(key[0])
        await in_slices(budgets.count_changes())
        choice = self._choose(
            item,
            budgets.pods_owned_by(item.metadata.uid),
            budgets,
            self._clock(),
            evicted=self._evictions.unseen(key, budgets),
        )
        for pod in choice.pods:
            meta = pod.metadata
            try:
                await self._client.evict(meta.name, meta.namespace, uid=meta.uid)
            except TooManyRequests:
                return REFUSED * (1 + self._rng.random())
            except (NotFound, Conflict):
                continue  # It is deleted, or its name is another pod's by now.
            self._evictions.add(key, meta.uid)
            self._report(item, pod, choice)
        return choice.retry_after

    def _has_rollout(self, item: W) -> bool:
        meta = item.metadata
        return any(
            (rollout.spec.workload_ref.kind, rollout.spec.workload_ref.name)
            == (self._kind, meta.name)
            for rollout in self._rollouts.by("namespace", meta.namespace)
        )

    def _report(self, item: W, pod: Pod, choice: PassingChoice) -> None:
        assert choice.first_refusal is not None
        held_pod, verdict = choice.first_refusal
        self._recorder.event(
            item,
            PASSED_OVER,
            "Evict",
            f"Pod {pod.metadata.name} goes before {held_pod.metadata.name}, which is held:"
            f" {verdict.reason.message}",
        )


def _namespace(key: Key) -> str:
    """Whose turn it takes."""
    return key[0]
