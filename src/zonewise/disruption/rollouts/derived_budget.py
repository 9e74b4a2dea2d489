"""The budgets of a rollout: every domain but one is closed to updates, and that one is limited.

Both are like any other ``TopologyDisruptionBudget``, so the gate, the clamp, the embedded cluster
and ``explain`` need not know about rollouts.

The first closes domains. ``maxUnavailable: 0`` closes a domain to updates; the
open one is left out of what is guarded. It ``holds`` updates only: nodes can be drained while
nothing is rolled out, and it may exist all the time, so that it covers the first pod of a new
revision already. Which domain is open is read from it and from nowhere else.

The second one is the limit: no domain may lack more than the rollout's ``maxUnavailable``, however
many the workload's own strategy allows. It guards every domain, so that it never changes while the
opening moves: in between, a domain would be open without a limit. In closed domains the first is
the stricter one. It ``holds`` updates only, too, and never closes a domain: pods that are not Ready
may be repaired.
"""

from __future__ import annotations

from zonewise.api.objects.budgets import (
    DomainRollout,
    TopologyDisruptionBudget,
    TopologyDisruptionBudgetSpec,
)
from zonewise.api.objects.core import NodeSelectorRequirement, NodeSelectorTerm
from zonewise.disruption.grouping import NO_DOMAIN
from zonewise.disruption.rollouts.workload import RolledWorkload

SUFFIX = "-rollout"
LIMIT_SUFFIX = "-rollout-limit"
UPDATES = "Updates"
IF_HEALTHY = "IfHealthyBudget"


def derived_budget_name(rollout: DomainRollout) -> str:
    """The name of a rollout's budget."""
    return rollout.metadata.name + SUFFIX


def limit_budget_name(rollout: DomainRollout) -> str:
    """The name of the budget that limits the open domain."""
    return rollout.metadata.name + LIMIT_SUFFIX


def limit_budget_spec(
    rollout: DomainRollout, workload: RolledWorkload
) -> TopologyDisruptionBudgetSpec:
    """The budget of all domains with the rollout's ``maxUnavailable``."""
    key = NodeSelectorRequirement(key=rollout.spec.topology_key, operator="Exists")
    return TopologyDisruptionBudgetSpec(
        selector=workload.selector,
        max_unavailable=rollout.spec.max_unavailable,
        node_selector_term=NodeSelectorTerm(match_expressions=(key,)),
        unhealthy_pod_eviction_policy="AlwaysAllow",
        holds=UPDATES,
    )


def derived_budget_specs(
    rollout: DomainRollout, workload: RolledWorkload, domain: str | None
) -> dict[str, TopologyDisruptionBudgetSpec]:
    """All budgets of a rollout by name, the limit first: no domain opens without it."""
    return {
        limit_budget_name(rollout): limit_budget_spec(rollout, workload),
        derived_budget_name(rollout): derived_budget_spec(rollout, workload, domain),
    }


def derived_budget_spec(
    rollout: DomainRollout, workload: RolledWorkload, domain: str | None
) -> TopologyDisruptionBudgetSpec:
    """The budget with one open domain, or none; pods in no domain are never guarded."""
    key = rollout.spec.topology_key
    expressions = [NodeSelectorRequirement(key=key, operator="Exists")]
    if domain not in (None, NO_DOMAIN):
        assert domain is not None
        expressions.append(NodeSelectorRequirement(key=key, operator="NotIn", values=(domain,)))
    return TopologyDisruptionBudgetSpec(
        selector=workload.selector,
        max_unavailable=0,
        node_selector_term=NodeSelectorTerm(match_expressions=tuple(expressions)),
        holds=UPDATES,
    )


def budget_matches(
    budget: TopologyDisruptionBudget | None, desired: TopologyDisruptionBudgetSpec
) -> bool:
    """Whether a budget is as desired; what the server defaults does not matter."""
    if budget is None:
        return False
    spec = budget.spec
    return (
        spec.selector == desired.selector
        and spec.max_unavailable == desired.max_unavailable
        and spec.node_selector_term == desired.node_selector_term
        and spec.holds == desired.holds
        and (spec.unhealthy_pod_eviction_policy or IF_HEALTHY)
        == (desired.unhealthy_pod_eviction_policy or IF_HEALTHY)
    )


def open_domain_of(budget: TopologyDisruptionBudget | None) -> str | None:
    """The domain that a budget leaves open, if any."""
    term = None if budget is None else budget.spec.node_selector_term
    for expression in (term and term.match_expressions) or ():
        if expression.operator == "NotIn" and expression.values:
            return expression.values[0]
    return None
