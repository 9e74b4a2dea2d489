"""The budget of a rollout: every domain but one is closed to updates.

It is a ``TopologyDisruptionBudget`` like any other, so the gate, the clamp, the embedded cluster
and ``explain`` need not know about rollouts. ``maxUnavailable: 0`` closes a domain to updates; the
open one is left out of what is guarded. It ``holds`` updates only: nodes can be drained while
nothing is rolled out, and it may exist all the time, so that it covers the first pod of a new
revision already. Which domain is open is read from it and from nowhere else.
"""

from __future__ import annotations

from zonewise.api.objects.budgets import (
    DomainRollout,
    TopologyDisruptionBudget,
    TopologyDisruptionBudgetSpec,
)
from zonewise.api.objects.core import NodeSelectorRequirement, NodeSelectorTerm
from zonewise.disruption.grouping import ELSEWHERE
from zonewise.disruption.rollouts.workload import RolledWorkload

SUFFIX = "-rollout"
UPDATES = "Updates"


def budget_name(item: DomainRollout) -> str:
    """What the budget of a rollout is called."""
    return item.metadata.name + SUFFIX


def budget_spec(
    item: DomainRollout, workload: RolledWorkload, opened: str | None
) -> TopologyDisruptionBudgetSpec:
    """The budget with one open domain, or none; pods that are in no domain are never guarded."""
    key = item.spec.topology_key
    expressions = [NodeSelectorRequirement(key=key, operator="Exists")]
    if opened not in (None, ELSEWHERE):
        assert opened is not None
        expressions.append(NodeSelectorRequirement(key=key, operator="NotIn", values=(opened,)))
    return TopologyDisruptionBudgetSpec(
        selector=workload.selector,
        max_unavailable=0,
        node_selector_term=NodeSelectorTerm(match_expressions=tuple(expressions)),
        holds=UPDATES,
    )


def budget_stands(
    budget: TopologyDisruptionBudget | None, wanted: TopologyDisruptionBudgetSpec
) -> bool:
    """Whether a budget is as wanted; what the server fills in does not matter."""
    if budget is None:
        return False
    spec = budget.spec
    return (
        spec.selector == wanted.selector
        and spec.max_unavailable == wanted.max_unavailable
        and spec.node_selector_term == wanted.node_selector_term
        and spec.holds == wanted.holds
    )


def opened_of(budget: TopologyDisruptionBudget | None) -> str | None:
    """The domain that a budget leaves open."""
    term = None if budget is None else budget.spec.node_selector_term
    for one in (term and term.match_expressions) or ():
        if one.operator == "NotIn" and one.values:
            return one.values[0]
    return None
