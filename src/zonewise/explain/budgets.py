"""Reports about budgets and the pods they hold: rows for JSON and for text.

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
from zonewise.api.objects.budgets import DisruptionLedger, TopologyDisruptionBudget
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
from zonewise.disruption.verdict import DisruptionVerdict
from zonewise.explain.budget_answers import BudgetAnswer, answers_of
from zonewise.explain.cluster import DEFAULT_NAMESPACE

T = TypeVar("T", bound=Object)

FRESH_SECONDS = 600.0


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

    def plain(self) -> dict[str, Any]:
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

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "budget": self.budget,
            "namespace": self.namespace,
            "kind": self.kind,
            "replicas": self.replicas,
            "uncovered": self.uncovered,
            "reason": _plain(self.reason),
            "domains": [row.plain() for row in self.domains],
        }


@dataclass(frozen=True, slots=True)
class PodReport:
    """Whether a pod may be disrupted."""

    pod: str
    namespace: str
    verdict: DisruptionVerdict
    answers: tuple[BudgetAnswer, ...]
    """What every budget that covers it says."""

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "pod": self.pod,
            "namespace": self.namespace,
            "allowed": self.verdict.allowed,
            "charged": self.verdict.charged,
            "reason": _plain(self.verdict.reason),
            "blockers": [
                {"budget": one.budget, "kind": one.kind, "domain": one.domain}
                for one in self.verdict.blockers
            ],
            "budgets": [
                {
                    "budget": one.budget,
                    "kind": one.kind,
                    "domain": one.domain,
                    "answer": one.answer.value,
                    "message": one.why,
                }
                for one in self.answers
            ],
        }


class Disruption:
    """A cluster as reports about budgets read it.

    ``now`` is what grants are measured against; a dump's is the latest moment in it, so that its
    report does not change with time. Only one that is fresh by the clock (``clock``, if there is
    one) is of this moment: a grant in it that has expired now had expired when it was taken, or has
    by the time the report is used.
    """

    def __init__(
        self,
        *,
        nodes: Iterable[Node],
        pods: Iterable[Pod],
        budgets: Iterable[TopologyDisruptionBudget | PodDisruptionBudget],
        owners: Iterable[Object | Unstructured],
        ledgers: Iterable[DisruptionLedger] = (),
        now: float | None = None,
        clock: float | None = None,
    ) -> None:
        self.budgets_cache = BudgetsCache()
        nodes, pods, ledgers = tuple(nodes), tuple(pods), tuple(ledgers)
        everywhere = [owner_of(node) for node in nodes]
        for node in nodes:
            self.budgets_cache.node_changed(None, node)
        for owner in owners:
            made = owner_of(owner)
            if not made.key[2] and isinstance(owner, Unstructured):
                everywhere.append(made)
            self.budgets_cache.put_owner(_moved(made, made.key[2] or DEFAULT_NAMESPACE))
        for pod in pods:
            self.budgets_cache.pod_changed(None, _placed(pod))
        self._makers: dict[BudgetKey, str] = {}
        for budget in map(_placed, budgets):
            self.budgets_cache.budget_changed(None, budget)
            meta = budget.metadata
            self._makers[budget.resource.kind, meta.namespace, meta.name] = _maker(budget)
        for ledger in ledgers:
            self.budgets_cache.ledger_changed(None, _placed(ledger))
        self._own_everywhere({made.key: made for made in everywhere})
        self.now = _moment(nodes, pods, ledgers, clock) if now is None else now

    def _own_everywhere(self, owners: Mapping[OwnerKey, ScaleOwner]) -> None:
        """Find pods' owners among those without a namespace: nodes, and custom kinds."""
        for namespace_budgets in self.budgets_cache.by_namespace.values():
            for group, kind, namespace, name in namespace_budgets.missing_owners():
                if (found := owners.get((group, kind, "", name))) is not None:
                    namespace_budgets.owners.put(_moved(found, namespace))

    def budgets(self, namespace: str | None = None) -> list[BudgetReport]:
        """Every budget, by namespace, name and kind."""
        found = [
            (namespace_budgets, budget)
            for place, namespace_budgets in sorted(self.budgets_cache.by_namespace.items())
            if namespace in (None, place)
            for budget in namespace_budgets.budgets.values()
        ]
        found.sort(key=lambda pair: (pair[1].namespace, pair[1].name, pair[1].kind))
        return [self._budget(namespace_budgets, budget) for namespace_budgets, budget in found]

    def pods(self, namespace: str | None = None) -> list[PodReport]:
        """Every pod, by namespace and name."""
        return [
            self.pod(pod)
            for place, namespace_budgets in sorted(self.budgets_cache.by_namespace.items())
            if namespace in (None, place)
            for pod in sorted(namespace_budgets.pods.values(), key=lambda pod: pod.metadata.name)
        ]

    def pod(self, pod: Pod) -> PodReport:
        """One pod."""
        namespace_budgets = self.budgets_cache.by_namespace[pod.metadata.namespace]
        meta = pod.metadata
        verdict = namespace_budgets.judge(pod, self.now)
        answers = answers_of(namespace_budgets, pod, verdict)
        return PodReport(meta.name, meta.namespace, verdict, answers)

    def _budget(self, namespace_budgets: NamespaceBudgets, budget: Budget) -> BudgetReport:
        if budget.plain is not None:
            return _plain_budget(namespace_budgets, budget)
        standing = namespace_budgets.state(budget.key, self.now)
        return BudgetReport(
            budget=budget.name,
            namespace=budget.namespace,
            kind=budget.kind,
            replicas=standing.replicas,
            uncovered=standing.uncovered_pods,
            reason=_told(standing, self._makers.get(budget.key, "")),
            domains=tuple(
                DomainRow(
                    domain=domain.name,
                    guarded=domain.guarded,
                    present=domain.present,
                    expected=domain.expected,
                    desired=domain.desired,
                    healthy=standing.healthy(domain.name),
                    allowed=standing.allowed(domain.name),
                )
                for domain in standing.named_domains
            ),
            notes=_notes(budget),
            updates_only=budget.updates_only,
        )


def _told(standing: BudgetState, maker: str) -> Reason:
    """The state of a budget, with what it refuses at all, and what to do if waiting is no help."""
    budget, reason = standing.budget, standing.reason()
    message = reason.message
    if budget.updates_only:
        by = f", for {maker}" if maker else ""
        message = (
            f"it holds updates only{by}: drains are allowed for pods of the newest revision; for"
            f" updates, {message}"
        )
    if not budget.enforced:
        message = f"it observes only, and nothing is refused (mode: Observe); enforced, {message}"
    fix = reason.fix or advise_on_budget(standing)
    return msgspec.structs.replace(reason, message=message, fix=fix if budget.enforced else "")


def _maker(budget: TopologyDisruptionBudget | PodDisruptionBudget) -> str:
    """Kind and name of what made a budget, "" if nobody did."""
    owner = next((one for one in budget.metadata.owner_references if one.controller), None)
    return f"{owner.kind} {owner.name}" if owner else ""


def _notes(budget: Budget) -> tuple[str, ...]:
    said = [f"{key} is an old label; it is read as its newer name too" for key in budget.old_keys]
    if budget.updates_only:
        said.append("Updates are held, not evictions of pods that are of the newest revision.")
    return tuple(said)


def _plain_budget(namespace_budgets: NamespaceBudgets, budget: Budget) -> BudgetReport:
    item = budget.plain
    assert item is not None
    status = item.status
    present = sum(
        is_pod_active(pod) and bool(pod.spec.node_name)
        for pod in namespace_budgets.pods.values()
        if budget.selector.matches(pod.metadata.labels)
    )
    current = status.observed_generation >= item.metadata.generation
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


def _plain(reason: Reason) -> dict[str, Any]:
    return {"code": reason.code, "message": reason.message, "fix": reason.fix}


def _placed(item: T) -> T:
    """The object in its namespace; one that is not written is ``default``."""
    meta = item.metadata
    if meta.namespace:
        return item
    named = msgspec.structs.replace(meta, namespace=DEFAULT_NAMESPACE)
    return msgspec.structs.replace(item, metadata=named)


def _moved(owner: ScaleOwner, namespace: str) -> ScaleOwner:
    group, kind, _, name = owner.key
    return replace(owner, key=(group, kind, namespace, name))


def _moment(
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    ledgers: Iterable[DisruptionLedger],
    clock: float | None,
) -> float:
    """The latest moment in the objects; by the clock, if that was just now."""
    said = [grant.time for ledger in ledgers for grant in ledger.spec.grants]
    for node in nodes:
        said += [one.last_heartbeat_time or "" for one in node.status.conditions]
    for pod in pods:
        said.append(pod.metadata.creation_timestamp or "")
        said += [one.last_transition_time or "" for one in pod.status.conditions]
    found = 0.0
    for text in said:
        try:
            found = max(found, times.parse(text).timestamp())
        except ParseError:
            continue
    return clock if clock is not None and found <= clock < found + FRESH_SECONDS else found
