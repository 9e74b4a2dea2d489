"""Budgets that allow nothing however healthy their pods are, and what to do about them.

Waiting ends a shortage of healthy pods. It does not help if a budget needs every pod it expects, or
more: then only spare pods, as a surge creates them, may go. A budget that is counted as a whole
lets them replace old ones, and the advice says so; one per domain closes it to updates. The advice
says "never" without a condition only where no number of pods would change the limit and nothing is
allowed now.
"""

from __future__ import annotations

from collections.abc import Sequence

from zonewise.api.reason import Reason
from zonewise.disruption.budget import Budget
from zonewise.disruption.budget_state import BudgetState
from zonewise.disruption.grouping import ALL_DOMAINS
from zonewise.disruption.pdb import find_sync_failure

SEVERAL_BUDGETS = "SeveralBudgets"
"""The reason code: a pod has more PodDisruptionBudgets than Kubernetes supports."""
NAMED_LIMIT = 3
"""How many other budgets a message names."""


def describe_domain(name: str) -> str:
    """The words for a domain in a sentence."""
    return "all domains" if name == ALL_DOMAINS else f"domain {name}" if name else "no domain"


def format_pods(count: int) -> str:
    """A number of pods in words."""
    return "1 pod" if count == 1 else f"{count} pods"


def advise_on_domain(state: BudgetState, name: str) -> str:
    """What to do if a pod of a domain may not be disrupted; "" if it helps to wait."""
    budget, domain = state.budget, state.domains[name]
    if state.blocking_reason is not None or budget.limit is None:
        return ""
    if domain.desired < max(domain.expected, 1):
        return ""
    if budget.updates_only:
        return (
            f"It may go when {budget.name} opens its domain; it holds updates only, and evictions"
            " of pods of the newest revision are not held."
        )
    domain_text = describe_domain(name)
    spare = state.healthy(name) - domain.needed
    if spare > 0:
        if not state.allowed(name):
            return ""
        return (
            f"{budget.kind} {budget.name} needs all {format_pods(domain.expected)} of"
            f" {domain_text}; {spare} spare now. Change or delete the budget if pods of an old"
            " revision are to go."
        )
    elsewhere = any(
        state.healthy(other.name) > other.needed or other.desired < other.expected
        for other in state.named_domains
        if other.guarded
    )
    always_zero = budget.limit.is_max_unavailable or budget.limit.value == "100%"
    where = "" if budget.undivided else f" in {domain_text}"
    needs = _describe_need(domain.desired, domain.expected, where)
    return _advise_never(
        budget,
        needs,
        fewer="" if always_zero else f"with {format_pods(domain.expected)} ",
        location_text=where if elsewhere else "",
    )


def advise_on_budget(state: BudgetState) -> str:
    """What to do about a budget that allows nothing in any domain; "" if it helps to wait."""
    guarded = [domain for domain in state.named_domains if domain.guarded and domain.present]
    if state.budget.updates_only or any(state.allowed(domain.name) for domain in guarded):
        return ""
    advice = [advise_on_domain(state, domain.name) for domain in guarded]
    return advice[0] if advice and all(advice) else ""


def advise_on_plain_budget(budget: Budget) -> str:
    """What to do about a plain PodDisruptionBudget; "" if it allows something, or waiting helps."""
    assert budget.plain is not None
    status, spec = budget.plain.status, budget.plain.spec
    if find_sync_failure(budget.plain):
        return (
            f"Waiting does not help: give PodDisruptionBudget {budget.name} a minAvailable that is"
            " a whole number, or replace it by a TopologyDisruptionBudget, which counts these pods."
        )
    current = status.observed_generation >= budget.plain.metadata.generation
    if not current or status.disruptions_allowed > 0 or not status.expected_pods:
        return ""
    if status.desired_healthy < status.expected_pods:
        return ""
    # A limit that no number of pods would change.
    always_zero = spec.max_unavailable is not None or spec.min_available == "100%"
    return _advise_never(
        budget,
        _describe_need(status.desired_healthy, status.expected_pods, ""),
        fewer="" if always_zero else f"with {format_pods(status.expected_pods)} ",
    )


def advise_on_several_plain(plain: Sequence[Budget]) -> str:
    """Which of several plain budgets of a pod to delete, so that it can be evicted.

    Of those that allow a disruption at all, the one that needs most pods stays.
    """

    def rank(budget: Budget) -> tuple[bool, int, str]:
        assert budget.plain is not None
        advice = advise_on_plain_budget(budget)
        return bool(advice), -budget.plain.status.desired_healthy, budget.name

    remaining, *others = sorted(plain, key=rank)
    names = " and ".join(budget.name for budget in others)
    delete = (
        f"Delete PodDisruptionBudget {names}, or narrow the selector so that it does not match this"
        " pod, or replace it by a TopologyDisruptionBudget, of which a pod may have several"
    )
    never = " and ".join(budget.name for budget in others if advise_on_plain_budget(budget))
    if advise_on_plain_budget(remaining):
        return f"{delete}, and change {remaining.name} too: none of them allows a disruption."
    if never:
        return f"{delete}; {never} never allows a disruption, and {remaining.name} may stay."
    return f"{delete}; {remaining.name} needs at least as many healthy pods and may stay."


def explain_overlap(budget: Budget, others: Sequence[Budget], count: int) -> Reason:
    """What is wrong with a plain budget that has pods in common with others, and what to do.

    ``others`` are named; ``count`` is how many there are.
    """
    names = [other.name for other in others]
    if count > len(names):
        names.append(f"{count - len(names)} more")
    first, last = ", ".join(names[:-1]), names[-1]
    subject = f"s {first} and {last} cover" if first else f" {last} covers"
    return Reason(
        code=SEVERAL_BUDGETS,
        message=f"PodDisruptionBudget{subject} pods of {budget.name}, too, and Kubernetes evicts no"
        " pod that has more than one",
        object=budget.object,
        fix="Merge them into one budget, or replace all but one by TopologyDisruptionBudgets.",
    )


def _describe_need(desired: int, expected: int, location_text: str) -> str:
    if desired == expected:
        return f"all {format_pods(expected)} it expects{location_text} to be healthy"
    return f"{desired} healthy pods{location_text} and expects {expected}"


def _advise_never(budget: Budget, needs: str, *, fewer: str, location_text: str = "") -> str:
    more = ", or run more pods" if fewer else ""
    allows = f"{fewer}it never allows a disruption{location_text}"
    if not fewer and (budget.undivided or budget.plain is not None):
        allows = (
            "it allows a disruption only while there are more pods than requested, as in a rollout"
            " with surge"
        )
    return (
        f"Waiting does not help: {budget.kind} {budget.name} needs {needs}, so {allows}. Change or"
        f" delete the budget{more}."
    )
