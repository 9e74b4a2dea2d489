"""Keeps the status of budgets per domain, their baselines, and the ledgers short.

One key is one budget, or one namespace's ledger. A budget is counted when something it is counted
from changes: its pods, their owners, nodes, grants, itself. Changes are batched, so that a budget
is written at most once a second however many pods change, and those of one namespace together at
most ``WRITES`` times. *Parallel* are ``workers`` budgets, in turns between namespaces; counting
pauses after each slice, so that no namespace delays another one's budgets, or the renewal of the
lease. The status is written on the version it was counted from; a change of the budget meanwhile
enqueues it again. A budget beyond the limit of its namespace is told so once, and not counted.
PodDisruptionBudgets that Kubernetes counts are only looked at for overlaps (``overlaps``).

The baseline is written at once when there is no valid one, because nothing is granted before; after
that only when the workload is at rest. Only the leader runs this, so it has one writer. Where a
pod's owner is of a kind that is not watched it is requested, and again every ``ASK_AGAIN`` seconds
while budgets depend on it.

Expired grants are dropped from ledgers only here and by a new grant, both by compare-and-swap.

*At rest* is a workload of which no pod was added, deleted or moved for a while. Only then may the
baseline follow the existing pods; in the middle of a rollout or an outage it would lose what was
intended. A workload that never rests settles every ten minutes all the same, or a busy autoscaler
would keep a baseline forever. The clock is the leader's own: a new leader starts waiting again,
which is late and never wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from zonewise.api.meta import Key, Object
from zonewise.api.objects.apps import DaemonSet
from zonewise.api.objects.budgets import DisruptionLedger, TopologyDisruptionBudget
from zonewise.api.objects.core import Namespace, Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.api.reason import Reason
from zonewise.api.values import times
from zonewise.controllers.budgets import waking
from zonewise.controllers.budgets.marking import Marking
from zonewise.controllers.budgets.overlaps import Overlaps
from zonewise.controllers.budgets.passing import Passing
from zonewise.disruption import status as statuses
from zonewise.disruption.budget import POD_BUDGET, TOPOLOGY_BUDGET, Budget
from zonewise.disruption.budget_state import SUFFICIENT, BudgetState
from zonewise.disruption.budgets_cache import BudgetsCache
from zonewise.disruption.ledger import GRANT_SECONDS, granted_at, is_live
from zonewise.disruption.namespace_budgets import NamespaceBudgets, is_irrelevant_change
from zonewise.disruption.owner_views import (
    OWNER_KINDS,
    ReplicaSetScale,
    ReplicationControllerScale,
    StatefulSetScale,
)
from zonewise.disruption.owners import owner_of
from zonewise.disruption.passing.held_daemons import choose_daemons
from zonewise.disruption.passing.held_surplus import choose_surplus
from zonewise.disruption.passing.passing_over import choose_ordinals
from zonewise.disruption.pdb import DISRUPTION_ALLOWED, set_condition
from zonewise.runtime.client.scales import AGAIN as ASK_AGAIN
from zonewise.runtime.client.scales import Scales
from zonewise.runtime.controller.controller import Controller, run_all
from zonewise.runtime.controller.queue import Queue
from zonewise.runtime.process.logs import logger
from zonewise.runtime.process.turns import in_slices

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zonewise.runtime.cache.store import Store
    from zonewise.runtime.program.context import ControllerContext

REST_SECONDS = 60.0
AT_LATEST = 600.0


@dataclass(slots=True)
class Rest:
    """The movements of one budget's pods."""

    moves: int
    since: float
    settled: float

    def note_moves(self, moves: int, now: float) -> None:
        """How often pods have moved until now."""
        if moves != self.moves:
            self.moves = moves
            self.since = now

    def may_settle(self, now: float) -> bool:
        """Whether the baseline may follow the existing pods."""
        return now - self.since >= REST_SECONDS or now - self.settled >= AT_LATEST

    def seconds_to_wait(self, now: float) -> float:
        """Seconds until it may, if nothing moves; for one that may, until it is looked at again."""
        if self.may_settle(now):
            return AT_LATEST
        return min(self.since + REST_SECONDS, self.settled + AT_LATEST) - now


WorkKey: TypeAlias = tuple[str, str, str]
LEDGER = "DisruptionLedger"
GATHER = 0.1
PACE = 1.0
WRITES = 20.0
PRUNE_PAUSE = 15.0
LABEL = "zonewise.io/budgets"
ENFORCE = "enforce"
FIRST_RETRY, LAST_RETRY = 0.2, 60.0

_log = logger("budgets")


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetsSettings:
    """How budgets are kept.

    ``labelled`` if namespaces have to opt in, as on a real cluster; ``steer`` if the workloads'
    controllers are not ours, and have to be shown which pods may go, and when.
    """

    workers: int = 4
    labelled: bool = True
    steer: bool = True
    owners: tuple[type[Object], ...] = OWNER_KINDS


class BudgetsController:
    """Counts every budget per domain."""

    def __init__(
        self,
        context: ControllerContext,
        settings: BudgetsSettings | None = None,
        *,
        budgets_cache: BudgetsCache | None = None,
    ) -> None:
        self.settings = settings or BudgetsSettings()
        self.budgets_cache = budgets_cache or BudgetsCache()
        self._client = context.client
        self._recorder = context.recorder
        self._clock = context.clock
        self._rests: dict[WorkKey, Rest] = {}
        self._written: dict[WorkKey, float] = {}
        self._known: dict[WorkKey, tuple[Budget, dict[str, int | None]]] = {}
        self._scales = Scales(context.client, context.clock)
        self.controller = context.controller(
            "budgets",
            self._reconcile,
            workers=self.settings.workers,
            queue=Queue(base=FIRST_RETRY, cap=LAST_RETRY, rng=context.rng, lane=_namespace),
        )
        reads = self.controller.reads
        stores: dict[type[Any], Store[Any]] = {}
        for cls, listener in self.budgets_cache.listeners(self.settings.owners).items():
            stores[cls] = reads(cls)
            if budgets_cache is None:
                stores[cls].on_change(listener)
        self._budgets = {
            TOPOLOGY_BUDGET: stores[TopologyDisruptionBudget],
            POD_BUDGET: stores[PodDisruptionBudget],
        }
        self._overlaps = Overlaps(context.recorder, stores[PodDisruptionBudget])
        self._ledgers = stores[DisruptionLedger]
        self._namespaces = reads(Namespace) if self.settings.labelled else None
        stores[TopologyDisruptionBudget].on_change(self._budget_changed)
        stores[PodDisruptionBudget].on_change(self._budget_changed)
        stores[Pod].on_change(self._pod_changed)
        stores[Node].on_change(self._node_changed)
        stores[DisruptionLedger].on_change(self._ledger_changed)
        for cls in self.settings.owners:
            stores[cls].on_change(self._owner_changed)
        if self._namespaces is not None:
            self._namespaces.on_change(self._namespace_changed)
        self.marking: Marking | None = None
        self._passing: list[Controller[Any]] = []
        if self.settings.steer:
            self.marking = Marking(context, budgets_cache=self.budgets_cache)
            cache, enforced = self.budgets_cache, self._is_enforced
            ordinals = Passing(
                context,
                StatefulSetScale,
                choose_ordinals,
                budgets_cache=cache,
                is_enforced=enforced,
            )
            daemons = Passing(
                context, DaemonSet, choose_daemons, budgets_cache=cache, is_enforced=enforced
            )
            surplus = Passing(
                context, ReplicaSetScale, choose_surplus, budgets_cache=cache, is_enforced=enforced
            )
            replicated = Passing(
                context,
                ReplicationControllerScale,
                choose_surplus,
                budgets_cache=cache,
                is_enforced=enforced,
            )
            self._passing = [
                passing.controller for passing in (ordinals, daemons, surplus, replicated)
            ]

    @property
    def controllers(self) -> list[Controller[Any]]:
        """Everything that runs here."""
        marking = [] if self.marking is None else [self.marking.controller]
        return [self.controller, *marking, *self._passing]

    async def run(self) -> None:
        """Work until cancelled or stopped."""
        await run_all(*(controller.run() for controller in self.controllers))

    def stop(self) -> None:
        """Let running counts finish and begin no more."""
        for controller in self.controllers:
            controller.stop()

    # Which change enqueues which key.

    def _budget_changed(self, old: Any, new: Any) -> None:
        item = new or old
        key = (item.resource.kind, item.metadata.namespace, item.metadata.name)
        # What is written here comes back as a change, which must not bypass the batching.
        updated = old is not None and new is not None
        spec_changed = not updated or old.metadata.generation != new.metadata.generation
        budgets = self.budgets_cache.get_or_create(item.metadata.namespace)
        budget = budgets.budgets.get(key)
        if spec_changed:
            self._overlaps.forget(key)
        elif budget is not None and budget.plain is not None:
            return
        self._soon(key, at_once=spec_changed)
        if not updated:
            for other in budgets.budgets_at_limit():
                self._soon(other, at_once=True)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        item = new or old
        assert item is not None
        budgets = self.budgets_cache.get_or_create(item.metadata.namespace)
        touched: set[WorkKey] = set()
        for pod in (old, new):
            if pod is not None:
                touched.update(budgets.budgets_counting(pod.metadata.labels))
        for key in touched:
            self._soon(key)
        self._overlaps.pod_changed(budgets, old, new)

    def _owner_changed(self, old: Any, new: Any) -> None:
        if old is not None and new is not None and owner_of(old) == owner_of(new):
            return
        self._all_of((new or old).metadata.namespace)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if not is_irrelevant_change(old, new):
            for namespace in tuple(self.budgets_cache.by_namespace):
                self._all_of(namespace)

    def _ledger_changed(self, old: DisruptionLedger | None, new: DisruptionLedger | None) -> None:
        item = new or old
        assert item is not None
        namespace = item.metadata.namespace
        self.controller.enqueue((LEDGER, namespace, item.metadata.name), after=GATHER)
        self._all_of(namespace)

    def _namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        before, after = (item and item.metadata.labels.get(LABEL) for item in (old, new))
        if before != after and new is not None:
            self._all_of(new.metadata.name)

    def _all_of(self, namespace: str) -> None:
        for key in self.budgets_cache.get_or_create(namespace).budgets_within_limit():
            self._soon(key)

    def _soon(self, key: WorkKey, *, at_once: bool = False) -> None:
        last = self._written.get(key, float("-inf"))
        pace = max(PACE, self.budgets_cache.get_or_create(key[1]).counted_budgets / WRITES)
        wait = GATHER if at_once else max(GATHER, last + pace - self._clock())
        self.controller.enqueue(key, after=wait)

    # What is done.

    async def _reconcile(self, key: WorkKey) -> float | None:
        kind, namespace, name = key
        if kind == LEDGER:
            return await self._prune((namespace, name))
        item = self._budgets[kind].get((namespace, name))
        budgets = self.budgets_cache.get_or_create(namespace)
        budget = budgets.budgets.get(key)
        if item is None or budget is None or budget.plain is not None:
            self._rests.pop(key, None)
            self._written.pop(key, None)
            gone = self._known.pop(key, None)
            if gone is not None and self.settings.steer and waking.opened(gone[1], {"": None}):
                await waking.wake(self._client, waking.waiting(budgets, gone[0]), self._clock())
            if item is not None and budget is not None:
                await in_slices(self._overlaps.find_overlaps(budgets, budget))
            return None
        await in_slices(budgets.count_changes())
        requested = self.budgets_cache.owners_to_request(namespace)
        self.budgets_cache.put_read_owners(await self._scales.refresh(namespace, requested))
        again = await self._count(budgets, budget, item)
        return min(again, ASK_AGAIN) if requested else again

    async def _count(
        self,
        budgets: NamespaceBudgets,
        budget: Budget,
        item: TopologyDisruptionBudget | PodDisruptionBudget,
    ) -> float:
        now = self._clock()
        key = budget.key
        standing = budgets.state(key, now)
        counts = budgets.state_and_counts(key)[1]
        rest = self._rests.get(key)
        if rest is None:
            rest = self._rests[key] = Rest(counts.moves, now, now)
            self._report_old_keys(item, budget)
        rest.note_moves(counts.moves, now)
        at_rest = rest.may_settle(now)
        known = statuses.next_baseline(standing, counts, budgets.owners, at_rest=at_rest)
        if known.is_new or at_rest:
            rest.settled = now
        await self._wake(budgets, budget, standing)
        rows = statuses.build_domain_rows(standing, known.pods)
        if budgets.is_beyond_limit(key):
            rows = statuses.close_rows(item.status.domains)
        text = times.format_time(times.from_epoch(now))
        conditions = item.status.conditions
        for condition in self._conditions(standing):
            conditions = set_condition(conditions, condition, text)
        same = (
            item.status.domains == rows
            and item.status.conditions == conditions
            and item.status.observed_generation == budget.generation
            and item.status.fingerprint == budget.fingerprint
            and (
                isinstance(item, PodDisruptionBudget)
                or item.status.allowed == statuses.format_allowed(budget, rows)
            )
        )
        if not same:
            self._written[key] = now
            await self._client.patch_status(
                item,
                statuses.status_fields(budget, rows, conditions),
                resource_version=budget.version,
            )
        return rest.seconds_to_wait(now) + GATHER

    async def _wake(self, budgets: NamespaceBudgets, budget: Budget, standing: BudgetState) -> None:
        """Let workloads try again, once, when a domain has opened."""
        now = waking.allowances(standing)
        before = self._known.get(budget.key)
        self._known[budget.key] = (budget, now)
        if self.settings.steer and before is not None and waking.opened(before[1], now):
            await waking.wake(self._client, waking.waiting(budgets, budget), self._clock())

    def _conditions(self, standing: BudgetState) -> Iterable[Any]:
        budget = standing.budget
        verdict = standing.reason()
        good = verdict.code == SUFFICIENT
        yield statuses.condition_of(
            verdict, type=DISRUPTION_ALLOWED, is_true=good, generation=budget.generation
        )
        if budget.kind == TOPOLOGY_BUDGET:
            reason = self._enforcement(budget)
            yield statuses.condition_of(
                reason,
                type=statuses.ENFORCED,
                is_true=reason.code == "Enforced",
                generation=budget.generation,
            )

    def _enforcement(self, budget: Budget) -> Reason:
        if not budget.enforced:
            return Reason(
                code="ObserveOnly", message="spec.mode is Observe: disruptions are not held back"
            )
        if not self._is_enforced(budget.namespace):
            return Reason(
                code="NamespaceNotEnforced",
                message=f"the namespace {budget.namespace} has not opted in, so evictions and"
                " deletions in it are not checked",
                fix=f"kubectl label namespace {budget.namespace} {LABEL}={ENFORCE}",
            )
        return Reason(code="Enforced", message="disruptions are held back by this budget")

    def _is_enforced(self, name: str) -> bool:
        """Whether evictions and deletions in a namespace are checked."""
        if self._namespaces is None:
            return True
        namespace = self._namespaces.get(("", name))
        return namespace is not None and namespace.metadata.labels.get(LABEL) == ENFORCE

    def _report_old_keys(
        self, item: TopologyDisruptionBudget | PodDisruptionBudget, budget: Budget
    ) -> None:
        for key in budget.old_keys:
            self._recorder.event(
                item,
                "OldLabelKey",
                "Count",
                f"{key} is an old label; it is read as its newer name too",
                type="Warning",
            )

    async def _prune(self, key: Key) -> float | None:
        ledger = self._ledgers.get(key)
        if ledger is None or not ledger.spec.grants:
            return None
        if self._client.clock.problem() is not None:
            return PRUNE_PAUSE  # Nobody knows which are over.
        now = self._clock()
        grants = ledger.spec.grants
        live = [grant for grant in grants if is_live(grant, now)]
        future = [grant.pod for grant in grants if granted_at(grant) > now + GRANT_SECONDS]
        if future:
            _log.warning(
                "grants are removed whose time is in the future",
                namespace=key[0],
                pods=",".join(future[:10]),
            )
        if len(live) < len(ledger.spec.grants):
            grants = [{"uid": grant.uid, "pod": grant.pod, "time": grant.time} for grant in live]
            meta = {"resourceVersion": ledger.metadata.resource_version}
            body = {"metadata": meta, "spec": {"grants": grants}}
            await self._client.patch(DisruptionLedger, key[1], key[0], body)
        if not live:
            return None
        oldest = min(granted_at(grant) for grant in live)
        return max(oldest + GRANT_SECONDS - now, 0.0) + PRUNE_PAUSE


def _namespace(key: WorkKey) -> str:
    """Whose turn a key takes."""
    return key[1]
