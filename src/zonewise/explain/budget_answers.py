"""What each budget that covers a pod says about an eviction of it, whatever the others say.

The verdict is what is answered to a request, and names only who refuses. These are the answers
behind it, for people who ask which of several budgets to change: an answer that refuses is a
blocker of the verdict, and one that allows counted the pod and had nothing against it.

Budgets beyond the limit of their namespace may be thousands, and say the same: only the one that
the verdict names is among the answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from zonewise.api.objects.pod import Pod
from zonewise.disruption.budget import Budget, BudgetKey
from zonewise.disruption.grouping import ALL_DOMAINS
from zonewise.disruption.namespace_budgets import NamespaceBudgets
from zonewise.disruption.verdict import FREE, GRANTED, DisruptionVerdict


class AnswerCode(StrEnum):
    """What a budget says."""

    ALLOWS = "Allows"
    REFUSES = "Refuses"
    DOES_NOT_APPLY = "DoesNotApply"


@dataclass(frozen=True, slots=True)
class BudgetAnswer:
    """The answer of one budget; ``why`` is empty if it allows by its numbers."""

    budget: str
    kind: str
    domain: str
    answer: AnswerCode
    why: str = ""


def collect_answers(
    namespace_budgets: NamespaceBudgets, pod: Pod, verdict: DisruptionVerdict
) -> tuple[BudgetAnswer, ...]:
    """The answers of all budgets that cover a pod, by name, kind and domain."""
    agreeing = {budget.key for budget in verdict.agreeing}
    refusing = {(blocker.budget, blocker.kind) for blocker in verdict.blockers}
    answers = []
    for blocker in verdict.blockers:
        name, kind, domain = blocker.budget, blocker.kind, blocker.domain
        why = blocker.message.removeprefix(f"{name}: ")
        answers.append(BudgetAnswer(name, kind, domain, AnswerCode.REFUSES, why))
    for budget in namespace_budgets.budgets_covering(pod):
        if (budget.name, budget.kind) not in refusing:
            domain = _domain_of(namespace_budgets, budget, pod)
            code, why = _explain_consent(budget, domain, verdict, agreeing)
            answers.append(BudgetAnswer(budget.name, budget.kind, domain, code, why))
    return tuple(sorted(answers, key=lambda answer: (answer.budget, answer.kind, answer.domain)))


def _explain_consent(
    budget: Budget, domain: str, verdict: DisruptionVerdict, agreeing: set[BudgetKey]
) -> tuple[AnswerCode, str]:
    """Why a budget does not refuse."""
    if verdict.reason.code == FREE:
        return AnswerCode.DOES_NOT_APPLY, "the pod is not running on a node, or is terminating"
    if not budget.enforced:
        return AnswerCode.DOES_NOT_APPLY, "its mode is Observe"
    if verdict.reason.code == GRANTED:
        return AnswerCode.ALLOWS, "granted already"
    if budget.plain is not None or budget.key in agreeing:
        return AnswerCode.ALLOWS, ""
    if budget.updates_only and budget.grouping.guards(domain):
        why = "it holds updates only, and evicting this pod is no update"
        return AnswerCode.DOES_NOT_APPLY, why
    return AnswerCode.DOES_NOT_APPLY, "it does not limit disruptions where the pod runs"


def _domain_of(namespace_budgets: NamespaceBudgets, budget: Budget, pod: Pod) -> str:
    if budget.plain is not None:
        return ALL_DOMAINS
    return namespace_budgets.state_and_counts(budget.key)[1].counted_pod(pod).domain
