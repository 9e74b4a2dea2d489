"""Reports about budgets and the pods they cover: rows for JSON and for text.

Numbers are those of ``zonewise.disruption``, which also answers evictions; nothing is counted here
but what a plain PodDisruptionBudget does not say itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from zonewise.api.errors import ParseError
from zonewise.api.meta import Object
from zonewise.api.objects.budgets import (
    DisruptionLedger,
    DomainRollout,
    TopologyDisruptionBudget,
)
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_active
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.api.reason import Reason
from zonewise.api.unstructured import Unstructured
from zonewise.api.values import times
from zonewise.disruption.advice import advise_on_budget, advise_on_plain_budget
from zonewise.disruption.budget import Budget, BudgetKey
from zonewise.disruption.budget_state import BudgetState
from zonewise.disruption.budgets_cache import BudgetsCache
from zonewise.disruption.grouping import ALL_DOMAINS
from zonewise.disruption.namespace_budgets import NamespaceBudgets
from zonewise.disruption.owners import OwnerKey, ScaleOwner, owner_of
from zonewise.disruption.rollouts.waiting import explain_waiting
from zonewise.disruption.verdict import DisruptionVerdict
from zonewise.explain.budget_answers import BudgetAnswer, collect_answers
from zonewise.explain.cluster import DEFAULT_NAMESPACE

T = TypeVar("T", bound=Object)

FRESH_SECONDS = 600.0
"""A dump whose latest moment is not longer ago is of this moment."""


@dataclass(frozen=True, slots=True)
class DomainRow:
    """One domain of a budget; ``allowed`` is None where nothing is guarded."""

    domain: str
    guarded: bool
    present: int
    expected: int
    desired: int
    healthy: int
    allowed: int | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "domain": self.domain,
            "guarded": self.guarded,
            "present": self.present,
            "expectedPods": self.expected,
            "desiredHealthy": self.desired,
            "currentHealthy": self.healthy,
            "disruptionsAllowed": self.allowed,
        }


@dataclass(frozen=True, slots=True)
class BudgetReport:
    """The state of a budget."""

    budget: str
    namespace: str
    kind: str
    replicas: int | None
    uncovered: int
    reason: Reason
    domains: tuple[DomainRow, ...]
    notes: tuple[str, ...] = ()
    updates_only: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "budget": self.budget,
            "namespace": self.namespace,
            "kind": self.kind,
            "replicas": self.replicas,
            "uncovered": self.uncovered,
            "reason": self.reason.to_dict(),
            "domains": [row.to_dict() for row in self.domains],
        }


@dataclass(frozen=True, slots=True)
class PodReport:
    """Whether a pod may be disrupted."""

    pod: str
    namespace: str
    verdict: DisruptionVerdict
    answers: tuple[BudgetAnswer, ...]
    """What every budget that covers it says."""
    waiting: Reason | None = None
    """What it waits for at our scheduling gate."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "pod": self.pod,
            "namespace": self.namespace,
            "allowed": self.verdict.allowed,
            "charged": self.verdict.charged,
            "reason": self.verdict.reason.to_dict(),
            "waiting": None if self.waiting is None else self.waiting.to_dict(),
            "blockers": [
                {"budget": blocker.budget, "kind": blocker.kind, "domain": blocker.domain}
                for blocker in self.verdict.blockers
            ],
            "budgets": [
                {
                    "budget": answer.budget,
                    "kind": answer.kind,
                    "domain": answer.domain,
                    "answer": answer.answer.value,
                    "message": answer.why,
                }
                for answer in self.answers
            ],
        }


class BudgetCluster:
    """A cluster as reports about budgets read it.

    ``now`` is the time by which grants expire. For a dump it is the latest moment in it, so that
    its report does not change with time. If that moment is recent by ``clock``, the clock is used:
    a grant that has expired by it had expired in the dump, or has by the time the report is used.
    ``rollouts`` are None if they are not known.
    """

    def __init__(
        self,
        *,
        nodes: Iterable[Node],
        pods: Iterable[Pod],
        budgets: Iterable[TopologyDisruptionBudget | PodDisruptionBudget],
        owners: Iterable[Object | Unstructured],
        ledgers: Iterable[DisruptionLedger] = (),
        rollouts: Iterable[DomainRollout] | None = (),
        now: float | None = None,
        clock: float | None = None,
    ) -> None:
        self.budgets_cache = BudgetsCache()
        self._rollouts = None if rollouts is None else tuple(map(_default_namespace, rollouts))
        nodes, pods, ledgers = tuple(nodes), tuple(pods), tuple(ledgers)
        without_namespace = [owner_of(node) for node in nodes]
        for node in nodes:
            self.budgets_cache.node_changed(None, node)
        for source in owners:
            owner = owner_of(source)
            if not owner.key[2] and isinstance(source, Unstructured):
                without_namespace.append(owner)
            self.budgets_cache.put_owner(_move_owner(owner, owner.key[2] or DEFAULT_NAMESPACE))
        for pod in pods:
            self.budgets_cache.pod_changed(None, _default_namespace(pod))
        self._controllers: dict[BudgetKey, str] = {}
        for budget in map(_default_namespace, budgets):
            self.budgets_cache.budget_changed(None, budget)
            meta = budget.metadata
            self._controllers[budget.resource.kind, meta.namespace, meta.name] = next(
                (f"{ref.kind} {ref.name}" for ref in meta.owner_references if ref.controller), ""
            )
        for ledger in ledgers:
            self.budgets_cache.ledger_changed(None, _default_namespace(ledger))
        self._put_missing_owners({owner.key: owner for owner in without_namespace})
        self.now = _latest_moment(nodes, pods, ledgers, clock) if now is None else now

    def _put_missing_owners(self, owners: Mapping[OwnerKey, ScaleOwner]) -> None:
        """Find pods' owners among those without a namespace: nodes, and custom kinds."""
        for namespace_budgets in self.budgets_cache.by_namespace.values():
            for group, kind, namespace, name in namespace_budgets.missing_owners():
                if (owner := owners.get((group, kind, "", name))) is not None:
                    namespace_budgets.owners.put(_move_owner(owner, namespace))

    def _namespaces(self, namespace: str | None) -> list[NamespaceBudgets]:
        """One namespace, or all by name."""
        by_namespace = self.budgets_cache.by_namespace
        return [by_namespace[name] for name in sorted(by_namespace) if namespace in (None, name)]

    def report_budgets(self, namespace: str | None = None) -> list[BudgetReport]:
        """Every budget, by namespace, name and kind."""
        return [
            self._report_budget(namespace_budgets, budget)
            for namespace_budgets in self._namespaces(namespace)
            for budget in sorted(
                namespace_budgets.budgets.values(), key=lambda budget: (budget.name, budget.kind)
            )
        ]

    def report_pods(self, namespace: str | None = None) -> list[PodReport]:
        """Every pod, by namespace and name."""
        return [
            self._report_pod(namespace_budgets, pod)
            for namespace_budgets in self._namespaces(namespace)
            for pod in sorted(namespace_budgets.pods.values(), key=lambda pod: pod.metadata.name)
        ]

    def _report_pod(self, namespace_budgets: NamespaceBudgets, pod: Pod) -> PodReport:
        verdict = namespace_budgets.judge(pod, self.now)
        answers = collect_answers(namespace_budgets, pod, verdict)
        name, namespace = pod.metadata.name, pod.metadata.namespace
        rollouts = self._rollouts and [
            rollout for rollout in self._rollouts if rollout.metadata.namespace == namespace
        ]
        waiting = explain_waiting(pod, rollouts, namespace_budgets.owners)
        return PodReport(name, namespace, verdict, answers, waiting)

    def _report_budget(self, namespace_budgets: NamespaceBudgets, budget: Budget) -> BudgetReport:
        if budget.plain is not None:
            return _report_plain_budget(namespace_budgets, budget)
        state = namespace_budgets.state(budget.key, self.now)
        return BudgetReport(
            budget=budget.name,
            namespace=budget.namespace,
            kind=budget.kind,
            replicas=state.replicas,
            uncovered=state.uncovered_pods,
            reason=_reason_of(state, self._controllers.get(budget.key, "")),
            domains=tuple(
                DomainRow(
                    domain=domain.name,
                    guarded=domain.guarded,
                    present=domain.present,
                    expected=domain.expected,
                    desired=domain.desired,
                    healthy=state.healthy(domain.name),
                    allowed=state.allowed(domain.name),
                )
                for domain in state.named_domains
            ),
            notes=_notes_on(budget),
            updates_only=budget.updates_only,
        )


def _reason_of(state: BudgetState, controller: str) -> Reason:
    """The state of a budget, with what it refuses at all, and what to do if waiting is no help."""
    budget, reason = state.budget, state.reason()
    message = reason.message
    if budget.updates_only:
        by = f", for {controller}" if controller else ""
        message = (
            f"it holds updates only{by}: drains are allowed for pods of the newest revision; for"
            f" updates, {message}"
        )
    if not budget.enforced:
        message = f"it observes only, and nothing is refused (mode: Observe); enforced, {message}"
    fix = reason.fix or advise_on_budget(state)
    return msgspec.structs.replace(reason, message=message, fix=fix if budget.enforced else "")


def _notes_on(budget: Budget) -> tuple[str, ...]:
    notes = [f"{key} is an old label; it is read as its newer name too" for key in budget.old_keys]
    if budget.updates_only:
        notes.append("Updates are held, not evictions of pods that are of the newest revision.")
    return tuple(notes)


def _report_plain_budget(namespace_budgets: NamespaceBudgets, budget: Budget) -> BudgetReport:
    assert budget.plain is not None
    status = budget.plain.status
    present = sum(
        is_pod_active(pod) and bool(pod.spec.node_name)
        for pod in namespace_budgets.pods.values()
        if budget.selector.matches(pod.metadata.labels)
    )
    current = status.observed_generation >= budget.plain.metadata.generation
    allowed = max(status.disruptions_allowed, 0) if current else 0
    row = DomainRow(
        domain=ALL_DOMAINS,
        guarded=True,
        present=present,
        expected=status.expected_pods,
        desired=status.desired_healthy,
        healthy=status.current_healthy,
        allowed=allowed,
    )
    reason = Reason(
        code="SufficientPods" if allowed else "InsufficientPods",
        message=f"by its status {allowed} pods may be disrupted now"
        if current
        else "its controller has not counted its latest change yet",
        object=budget.object,
        numbers={ALL_DOMAINS: allowed},
        fix=advise_on_plain_budget(budget),
    )
    return BudgetReport(
        budget.name, budget.namespace, budget.kind, status.expected_pods, 0, reason, (row,)
    )


def _default_namespace(source: T) -> T:
    """The object, in namespace ``default`` if it names none."""
    if source.metadata.namespace:
        return source
    meta = msgspec.structs.replace(source.metadata, namespace=DEFAULT_NAMESPACE)
    return msgspec.structs.replace(source, metadata=meta)


def _move_owner(owner: ScaleOwner, namespace: str) -> ScaleOwner:
    group, kind, _, name = owner.key
    return replace(owner, key=(group, kind, namespace, name))


def _latest_moment(
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    ledgers: Iterable[DisruptionLedger],
    clock: float | None,
) -> float:
    """The latest moment in the objects; the clock's time, if that is recent."""
    moments = [grant.time for ledger in ledgers for grant in ledger.spec.grants]
    for node in nodes:
        moments += [condition.last_heartbeat_time or "" for condition in node.status.conditions]
    for pod in pods:
        moments.append(pod.metadata.creation_timestamp or "")
        moments += [condition.last_transition_time or "" for condition in pod.status.conditions]
    latest = 0.0
    for text in moments:
        try:
            latest = max(latest, times.parse(text).timestamp())
        except ParseError:
            continue
    return clock if clock is not None and latest <= clock < latest + FRESH_SECONDS else latest
