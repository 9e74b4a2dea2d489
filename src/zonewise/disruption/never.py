"""Budgets that allow nothing however healthy their pods are, and what to do about them.

Waiting ends a shortage of healthy pods. It does not help if a budget needs every pod it expects, or
more: then only spare pods, as a surge makes them, may go. "Never" is said without more only of a
limit that no number of pods would change, and where nothing is allowed at this moment.
"""

from __future__ import annotations

from collections.abc import Sequence

from zonewise.disruption.budget import Budget
from zonewise.disruption.grouping import WHOLE
from zonewise.disruption.standing import BudgetStanding


def place_of(name: str) -> str:
    """A domain in a sentence."""
    return "all domains" if name == WHOLE else f"domain {name}" if name else "no domain"


def domain_advice(standing: BudgetStanding, name: str) -> str:
    """What to do if a pod of a domain may not go; "" if it helps to wait."""
    budget, domain = standing.budget, standing.domains[name]
    if standing.trouble is not None or budget.limit is None:
        return ""
    if domain.desired < max(domain.expected, 1):
        return ""
    if budget.updates_only:
        return (
            f"It may go when {budget.name} opens its domain; it holds updates only, and evictions"
            " of pods of the newest revision are not held."
        )
    where = place_of(name)
    spare = standing.healthy(name) - domain.desired
    if spare > 0:
        if not standing.allowed(name):
            return ""
        return (
            f"{budget.kind} {budget.name} needs all {_pods(domain.expected)} of {where}; {spare}"
            " spare now. Change or delete the budget if pods of an old revision are to go."
        )
    elsewhere = any(
        standing.healthy(other.name) > other.desired or other.desired < other.expected
        for other in standing.named
        if other.guarded
    )
    hopeless = budget.limit.unavailable or budget.limit.value == "100%"
    needs = _needs(domain.desired, domain.expected, f" in {where}")
    return _never(
        budget,
        needs,
        fewer="" if hopeless else f"with {_pods(domain.expected)} ",
        there=f" in {where}" if elsewhere else "",
    )


def budget_advice(standing: BudgetStanding) -> str:
    """What to do about a budget that allows nothing in any domain; "" if it helps to wait."""
    guarded = [domain for domain in standing.named if domain.guarded and domain.present]
    if standing.budget.updates_only or any(standing.allowed(domain.name) for domain in guarded):
        return ""
    advice = [domain_advice(standing, domain.name) for domain in guarded]
    return advice[0] if advice and all(advice) else ""


def plain_advice(budget: Budget) -> str:
    """What to do about a plain PodDisruptionBudget; "" if it allows something, or will."""
    assert budget.plain is not None
    status, spec = budget.plain.status, budget.plain.spec
    current = status.observed_generation >= budget.plain.metadata.generation
    if not current or status.disruptions_allowed > 0 or not status.expected_pods:
        return ""
    if status.desired_healthy < status.expected_pods:
        return ""
    # A limit that no number of pods would change.
    hopeless = spec.max_unavailable is not None or spec.min_available == "100%"
    return _never(
        budget,
        _needs(status.desired_healthy, status.expected_pods, ""),
        fewer="" if hopeless else f"with {_pods(status.expected_pods)} ",
    )


def one_too_many(plain: Sequence[Budget]) -> str:
    """Which of several plain budgets of a pod to remove, so that it can go.

    The one that needs most pods stays, of those that allow a disruption at all.
    """

    def rank(budget: Budget) -> tuple[bool, int, str]:
        assert budget.plain is not None
        return bool(plain_advice(budget)), -budget.plain.status.desired_healthy, budget.name

    kept, *others = sorted(plain, key=rank)
    names = " and ".join(budget.name for budget in others)
    delete = (
        f"Delete PodDisruptionBudget {names}, or narrow the selector so that it does not match this"
        " pod"
    )
    never = " and ".join(budget.name for budget in others if plain_advice(budget))
    if plain_advice(kept):
        return f"{delete}, and change {kept.name} too: none of them allows a disruption."
    if never:
        return f"{delete}; {never} never allows a disruption, and {kept.name} may stay."
    return f"{delete}; {kept.name} needs at least as many healthy pods and may stay."


def _pods(count: int) -> str:
    return "1 pod" if count == 1 else f"{count} pods"


def _needs(desired: int, expected: int, where: str) -> str:
    if desired == expected:
        return f"all {_pods(expected)} it expects{where} to be healthy"
    return f"{desired} healthy pods{where} and expects {expected}"


def _never(budget: Budget, needs: str, *, fewer: str, there: str = "") -> str:
    more = ", or run more pods" if fewer else ""
    return (
        f"Waiting does not help: {budget.kind} {budget.name} needs {needs}, so {fewer}it never"
        f" allows a disruption{there}. Change or delete the budget{more}."
    )
