"""Updates workloads one failure domain after the other, as ``DomainRollout`` objects specify.

One key is one rollout. A pass reads the workload, its pods and the derived budgets, decides
(``disruption.rollouts``), and writes in this order: the budgets, places of new pods, evictions, the
status. Each alone may be the last before a crash: the budget says which domain is open, the pods
say how far it is. No pod is evicted or placed in the pass that changes the budget; that change
triggers the next one.

New pods that admission holds are released here, each for one domain (``replacements``). Where no
rollout holds a pod any more (it was deleted, the namespace has opted out) it is released for any;
the key of such pods is their namespace without a name.

*Parallel* are ``workers`` rollouts, never one twice. Only the leader runs this. A pass waits until
the stores show what the last one wrote, and a pod that was evicted is counted as deleted until it
is, or ``GRANT_SECONDS`` have passed; that is all that is in memory.

*No hot loop*: a rollout that may not continue costs nothing until a pod, node, budget or
workload changes. An eviction that the server refused although no known budget forbids it is tried
again after ``REFUSED`` seconds or more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from zonewise.api.errors import Conflict, NotFound, TooManyRequests
from zonewise.api.meta import Key, Object, ObjectMeta, find_condition
from zonewise.api.objects.apps import StatefulSet
from zonewise.api.objects.budgets import (
    DomainRollout,
    TopologyDisruptionBudget,
    TopologyDisruptionBudgetSpec,
    WorkloadReference,
)
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.reason import Reason
from zonewise.controllers.budgets.recent_evictions import RecentEvictions
from zonewise.controllers.rollouts.replacements import Replacements
from zonewise.disruption.budget import TOPOLOGY_BUDGET
from zonewise.disruption.budgets_cache import BudgetsCache
from zonewise.disruption.grouping import with_new_keys
from zonewise.disruption.namespace_budgets import is_irrelevant_change
from zonewise.disruption.owner_views import OWNER_KINDS
from zonewise.disruption.rollouts.derived_budget import (
    budget_matches,
    derived_budget_name,
    derived_budget_specs,
    limit_budget_name,
    open_domain_of,
)
from zonewise.disruption.rollouts.plan import (
    DomainPlan,
    RolloutView,
    plan_rollout,
    uncounted_reason,
)
from zonewise.disruption.rollouts.replacements import label_of
from zonewise.disruption.rollouts.status import rollout_status, status_patch
from zonewise.disruption.rollouts.victims import blocked_reason, choose_victims, find_refusal
from zonewise.disruption.rollouts.workload import (
    DEPLOYMENT,
    WORKLOAD_KINDS,
    RolledPod,
    RolledWorkload,
    unscheduled_pods,
    workload_of,
    workload_pods,
)
from zonewise.disruption.status import ENFORCED
from zonewise.runtime.cache.indexes import namespace_of
from zonewise.runtime.controller.controller import own_key
from zonewise.runtime.controller.expectations import Expectations
from zonewise.runtime.controller.queue import Queue
from zonewise.runtime.process.turns import in_slices

if TYPE_CHECKING:
    from zonewise.runtime.cache.store import Store
    from zonewise.runtime.program.context import ControllerContext

GATHER = 0.1
GLANCE = 0.05
REFUSED = 5.0
BLOCKED_SECONDS = 10.0
"""How long a Deployment is held before the status names the budget; it may be creating pods."""
FIRST_RETRY, LAST_RETRY = 0.2, 60.0
ANOTHER_ROLLOUT = "AnotherRollout"
CONTROLLERS_DELETE = "ControllersDelete"
OWNER_LABEL = "zonewise.io/rollout"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsSettings:
    """How rollouts are kept; ``owners`` are the types of workloads that the cache has.

    ``budgets_hold`` unless the cluster's own controllers delete pods without asking budgets.
    """

    workers: int = 2
    budgets_hold: bool = True
    owners: tuple[type[Object], ...] = OWNER_KINDS


class RolloutsController:
    """Opens one domain of a workload after the other.

    ``budgets_cache`` is fed by the budgets' controller.
    """

    def __init__(
        self,
        context: ControllerContext,
        settings: RolloutsSettings | None = None,
        *,
        budgets_cache: BudgetsCache,
    ) -> None:
        settings = settings or RolloutsSettings()
        self._client = context.client
        self._recorder = context.recorder
        self._clock = context.clock
        self._budgets_hold = settings.budgets_hold
        self._rng = context.rng
        self._budgets_cache = budgets_cache
        self._evictions = RecentEvictions(context.clock)
        self._blocked_since: dict[Key, float] = {}
        self.controller = context.controller(
            "rollouts",
            self._reconcile,
            workers=settings.workers,
            queue=Queue(base=FIRST_RETRY, cap=LAST_RETRY, rng=context.rng, lane=_namespace),
        )
        self.run = self.controller.run
        self.stop = self.controller.stop
        reads = self.controller.reads
        self._rollouts = self.controller.watches(
            DomainRollout, own_key, indexes={"namespace": namespace_of, "workload": _workload}
        )
        self._budgets = reads(TopologyDisruptionBudget)
        self._wrote_rollout: Expectations[Key, DomainRollout] = Expectations(self._rollouts)
        self._wrote_budget: Expectations[Key, TopologyDisruptionBudget] = Expectations(
            self._budgets
        )
        owners: dict[str, Store[Any]] = {cls.resource.kind: reads(cls) for cls in settings.owners}
        self._workloads = {kind: store for kind, store in owners.items() if kind in WORKLOAD_KINDS}
        for store in owners.values():
            store.on_change(self._changed)
        self._replacements = Replacements(
            context, budgets_cache=budgets_cache, find_rollouts=self._find_rollouts
        )
        self._budgets.on_change(self._changed)
        self._rollouts.on_change(self._changed)
        reads(Pod).on_change(self._changed)
        reads(Pod).on_change(self._replacements.pod_changed)
        reads(Node).on_change(self._node_changed)

    # Which change enqueues which key. A namespace has few rollouts, and changes are batched.

    def _changed(self, old: Any, new: Any) -> None:
        self._all_of((new or old).metadata.namespace)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if not is_irrelevant_change(old, new):
            self._all_of(None)

    def _all_of(self, namespace: str | None) -> None:
        keys = self._rollouts.keys()
        if namespace is not None:
            keys = self._rollouts.keys_by("namespace", namespace)
            if self._replacements.held_in(namespace):
                keys = (*keys, (namespace, ""))
        for key in keys:
            self.controller.enqueue(key, after=GATHER)

    def _find_rollouts(self, namespace: str, workload: WorkloadReference) -> list[DomainRollout]:
        """The rollouts of a workload that are not being deleted."""
        return list(self._rollouts.by("workload", (namespace, workload, "")))

    # What is done.

    async def _reconcile(self, key: Key) -> float | None:
        if not self._replacements.settled(key):
            return GLANCE
        if not key[1]:
            return await self._replacements.release_uncovered(key)
        item = self._rollouts.get(key)
        if item is None or item.metadata.deletion_timestamp is not None:
            self._wrote_rollout.forget(key)
            self._wrote_budget.forget(key)
            self._evictions.forget(key)
            self._blocked_since.pop(key, None)
            self._replacements.forget(key)
            return None
        if not (self._wrote_rollout.settled(key) and self._wrote_budget.settled(key)):
            return GLANCE
        budget = self._budgets.get((key[0], derived_budget_name(item)))
        await in_slices(self._budgets_cache.get_or_create(key[0]).count_changes())
        view = self._view(item, budget)
        plan = plan_rollout(view)
        stands = True
        if view.workload is not None:
            specs = derived_budget_specs(item, view.workload, plan.open_domain)
            for name, spec in specs.items():
                if not budget_matches(self._budgets.get((key[0], name)), spec):
                    stands = False
                    await self._write_budget(item, name, spec)
        reason, again = None, plan.retry_after
        if stands:
            reason, look_again = await self._replacements.release(view, plan)
            if reason is None and plan.open_domain is not None:
                reason, again = await self._evict(view, plan)
                if reason is None:
                    reason, again = self._find_blocked(view, plan, again)
            again = min(filter(None, (again, look_again)), default=None)
        await self._report(view, plan, reason)
        if plan.is_complete and view.workload is not None:
            await self._advance(view.workload)
        return again

    def _view(self, item: DomainRollout, budget: TopologyDisruptionBudget | None) -> RolloutView:
        now = self._clock()
        reference = item.spec.workload_ref
        namespace = item.metadata.namespace
        store = self._workloads.get(reference.kind)
        owner = None if store is None else store.get((namespace, reference.name))
        workload = None if owner is None else workload_of(owner)
        refusal = self._refusal(item, workload)
        budgets = self._budgets_cache.get_or_create(namespace)
        waiting: tuple[RolledPod, ...] = ()
        if workload is not None and not (refusal and refusal.code == ANOTHER_ROLLOUT):
            # Where the budget does not hold, new pods have no order to keep.
            waiting = unscheduled_pods(
                workload, self._replacements.held_in(namespace), budgets.owners
            )
        if workload is None or refusal is not None:
            return RolloutView(rollout=item, unscheduled=waiting, blocking_reason=refusal, now=now)
        unheld = _explain_unheld(workload, budget, budgets_hold=self._budgets_hold)
        if unheld is not None:
            return RolloutView(
                rollout=item,
                workload=workload,
                unscheduled=waiting,
                blocking_reason=unheld,
                now=now,
            )
        key = (TOPOLOGY_BUDGET, namespace, derived_budget_name(item))
        limit_key = (TOPOLOGY_BUDGET, namespace, limit_budget_name(item))
        if key not in budgets.budgets or limit_key not in budgets.budgets:
            # Its pods are not known before: "all 0 are of the newest revision" would be wrong.
            return RolloutView(
                rollout=item,
                workload=workload,
                budget_counted=False,
                blocking_reason=uncounted_reason(workload),
                now=now,
            )
        standing, counts = budgets.state_and_counts(limit_key)
        if standing.blocking_reason is None:
            standing, counts = budgets.state_and_counts(key)
        if standing.blocking_reason is not None:
            return RolloutView(
                rollout=item,
                workload=workload,
                unscheduled=waiting,
                blocking_reason=standing.blocking_reason,
                now=now,
            )
        pods = workload_pods(
            workload,
            counts,
            budgets.owners,
            self._budgets_cache.nodes,
            evicted=self._evictions.unseen(item.key, budgets),
        )
        needs = {
            name: domain.baseline if standing.has_baseline else domain.expected
            for name, domain in standing.domains.items()
        }
        return RolloutView(
            rollout=item,
            workload=workload,
            pods=pods,
            unscheduled=unscheduled_pods(
                workload, (pod for pod, _ in counts.pods.values()), budgets.owners
            ),
            desired_ready={**dict.fromkeys((pod.domain for pod in pods), 0), **needs},
            order_labels=self._labels(item),
            open_domain=open_domain_of(budget),
            budget_counted=not standing.has_baseline
            or all(budgets.budgets[each].baseline is not None for each in (key, limit_key)),
            now=now,
        )

    def _refusal(
        self,
        item: DomainRollout,
        workload: RolledWorkload | None,
    ) -> Reason | None:
        """Why a rollout is not even begun: it gets no budget."""
        reference, namespace = item.spec.workload_ref, item.metadata.namespace
        what = f"{reference.kind} {reference.name}"
        if workload is None:
            return Reason(
                code="WorkloadNotFound",
                message=f"there is no {what} in namespace {namespace}",
                object=f"{reference.kind}/{namespace}/{reference.name}",
                fix="Create it, or delete the rollout.",
            )
        first = min(
            self._rollouts.by("workload", _workload(item)[0]),
            key=lambda rollout: (rollout.metadata.creation_timestamp or "", rollout.metadata.name),
        )
        if first.metadata.name != item.metadata.name:
            return Reason(
                code=ANOTHER_ROLLOUT,
                message=f"{what} is rolled out by DomainRollout {first.metadata.name} already",
                object=f"DomainRollout/{namespace}/{first.metadata.name}",
                fix="Delete one of them.",
            )
        if workload.recreates:
            return Reason(
                code="RecreatedAtOnce",
                message=f"{what} recreates all its pods at once, which leaves no order",
                object=workload.object,
                fix="Set its strategy to RollingUpdate.",
            )
        for name in (derived_budget_name(item), limit_budget_name(item)):
            if _foreign(self._budgets.get((namespace, name)), item):
                return Reason(
                    code="BudgetNameTaken",
                    message=f"the TopologyDisruptionBudget {name} is not of this rollout",
                    object=f"{TOPOLOGY_BUDGET}/{namespace}/{name}",
                    fix="Rename one of them.",
                )
        return None

    def _labels(self, item: DomainRollout) -> dict[str, str]:
        """What nodes say about the order of their domains; of several values the least."""
        label = item.spec.order.node_label
        values: dict[str, str] = {}
        if label:
            for node in self._budgets_cache.nodes.values():
                labels = node.metadata.labels
                domain, value = with_new_keys(labels).get(label_of(item)), labels.get(label)
                if domain and value:
                    values[domain] = min(values.get(domain, value), value)
        return values

    async def _write_budget(
        self, item: DomainRollout, name: str, spec: TopologyDisruptionBudgetSpec
    ) -> None:
        meta = item.metadata
        owner = {
            "apiVersion": DomainRollout.resource.api_version,
            "kind": DomainRollout.resource.kind,
            "name": meta.name,
            "uid": meta.uid,
            "controller": True,
        }
        body = {
            "metadata": {"labels": {OWNER_LABEL: meta.name}, "ownerReferences": [owner]},
            "spec": msgspec.to_builtins(spec),
        }
        applied = await self._client.apply(
            TopologyDisruptionBudget, name, meta.namespace, body, force=True
        )
        self._wrote_budget.wrote(item.key, applied)

    async def _evict(
        self, view: RolloutView, plan: DomainPlan
    ) -> tuple[Reason | None, float | None]:
        """Evict the pods that may be; returns what prevented others, and when to try again."""
        key, namespace = view.rollout.key, view.rollout.metadata.namespace
        chosen = choose_victims(view, plan, self._budgets_cache.get_or_create(namespace))
        if chosen.refusal is not None:
            return blocked_reason(view, chosen.refusal.reason.message), None
        for pod in chosen.pods:
            meta = pod.metadata
            try:
                await self._client.evict(meta.name, namespace, uid=meta.uid)
            except TooManyRequests as error:
                return blocked_reason(view, str(error)), REFUSED * (1 + self._rng.random())
            except (NotFound, Conflict):
                continue  # It is deleted, or its name is another pod's by now.
            self._evictions.add(key, meta.uid)
        return None, None

    def _find_blocked(
        self, view: RolloutView, plan: DomainPlan, again: float | None
    ) -> tuple[Reason | None, float | None]:
        """Which budget has held a Deployment for a while, and when to look again."""
        key, budgets = view.rollout.key, self._budgets_cache.get_or_create(view.rollout.key[0])
        refusal = find_refusal(view, plan, budgets)
        if refusal is None:
            self._blocked_since.pop(key, None)
            return None, again
        rest = self._blocked_since.setdefault(key, view.now) + BLOCKED_SECONDS - view.now
        if rest > 0:
            return None, rest
        return blocked_reason(view, refusal.reason.message), again

    async def _report(self, view: RolloutView, plan: DomainPlan, reason: Reason | None) -> None:
        item, outcome = view.rollout, reason or plan.reason
        status = rollout_status(view, plan, reason)
        if status == item.status:
            return
        patched = await self._client.patch_status(item, status_patch(status))
        self._wrote_rollout.wrote(item.key, patched)
        if (status.reason, status.domain) != (item.status.reason, item.status.domain):
            fine = plan.is_complete or (plan.is_progressing and reason is None)
            self._recorder.event(
                item,
                outcome.code,
                "Roll",
                str(outcome),
                type="Normal" if fine else "Warning",
                transition=True,
            )

    async def _advance(self, workload: RolledWorkload) -> None:
        """Record that a StatefulSet is at its new revision: under OnDelete no controller does."""
        if not workload.on_delete or workload.current_revision == workload.update_revision:
            return
        meta = ObjectMeta(name=workload.name, namespace=workload.namespace, uid=workload.uid)
        status = {"currentRevision": workload.update_revision}
        await self._client.patch_status(StatefulSet(metadata=meta), status)


def _explain_unheld(
    workload: RolledWorkload, budget: TopologyDisruptionBudget | None, *, budgets_hold: bool
) -> Reason | None:
    """Why a workload that replaces its pods by itself would not keep to the order."""
    if workload.on_delete:
        return None
    if not budgets_hold:
        on_delete = (
            "" if workload.kind == DEPLOYMENT else ", or set its update strategy to OnDelete"
        )
        return Reason(
            code=CONTROLLERS_DELETE,
            message=f"{workload.kind} {workload.name} replaces its pods by itself, and the"
            " controllers of this cluster delete pods without asking budgets",
            object=workload.object,
            fix=f"Start the cluster with --workload-removal=evict{on_delete}.",
        )
    if budget is None:
        return None
    enforced = find_condition(budget.status.conditions, ENFORCED)
    if enforced is None or enforced.status == "True":
        return None
    return Reason(
        code=enforced.reason,
        message=f"{workload.kind} {workload.name} replaces its pods by itself, and its budget does"
        f" not hold it: {enforced.message}",
        object=workload.object,
    )


def _namespace(key: Key) -> str:
    """Whose turn a key takes."""
    return key[0]


def _workload(item: DomainRollout) -> tuple[tuple[object, ...]]:
    """What is rolled out; rollouts that are being deleted stand for themselves."""
    reference, meta = item.spec.workload_ref, item.metadata
    leaving = meta.name if meta.deletion_timestamp is not None else ""
    return ((meta.namespace, reference, leaving),)


def _foreign(budget: TopologyDisruptionBudget | None, item: DomainRollout) -> bool:
    if budget is None:
        return False
    owner = budget.metadata.controller
    return owner is None or owner.uid != item.metadata.uid
