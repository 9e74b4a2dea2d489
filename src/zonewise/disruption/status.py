"""The status of a budget per domain: what it allows, and the baseline for the next count.

``expectedPods`` of a domain is the baseline as it is recorded, not as it was fitted for this count:
every reader fits it again. It changes only when a budget is counted for the first time, or its spec
changed, and when its workload has settled. For DaemonSets it is their nodes.

A status equal to the current one is not written. Sums over domains are in the fields that every
PodDisruptionBudget has; no decision uses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from zonewise.api.meta import Condition
from zonewise.api.objects.budgets import DomainStatus
from zonewise.api.reason import Reason
from zonewise.disruption.budget import POD_BUDGET, Budget
from zonewise.disruption.budget_state import BudgetState
from zonewise.disruption.domain_counts import DomainCounts
from zonewise.disruption.grouping import NO_DOMAIN
from zonewise.disruption.owners import Owners

ENFORCED = "Enforced"
DOMAINS_LIMIT = 8


@dataclass(frozen=True, slots=True)
class BaselineUpdate:
    """The baseline to record; None leaves the recorded one."""

    pods: Mapping[str, int] | None
    is_new: bool
    """Whether no valid baseline was recorded before."""


def next_baseline(
    state: BudgetState, counts: DomainCounts, owners: Owners, *, at_rest: bool
) -> BaselineUpdate:
    """The baseline to record after this count."""
    budget = state.budget
    if not state.has_baseline or state.replicas is None:
        return BaselineUpdate(None, is_new=False)
    if budget.baseline is None:
        fitted = {name: domain.baseline for name, domain in state.domains.items()}
        return BaselineUpdate(fitted, is_new=True)
    if at_rest:
        return BaselineUpdate(state.settle_baseline(counts, owners), is_new=False)
    return BaselineUpdate(None, is_new=False)


def build_domain_rows(
    state: BudgetState, baseline: Mapping[str, int] | None
) -> tuple[DomainStatus, ...]:
    """One row per domain, and one for pods in no domain, if there are any."""
    budget = state.budget
    expected_pods = budget.baseline if baseline is None else baseline
    rows = []
    for name, domain in sorted(state.domains.items()):
        expected = domain.expected if not state.has_baseline else (expected_pods or {}).get(name, 0)
        if name == NO_DOMAIN and not (domain.present or expected):
            continue
        rows.append(
            DomainStatus(
                domain=name,
                expected_pods=expected,
                desired_healthy=domain.desired,
                current_healthy=state.healthy(name),
                disruptions_allowed=state.allowed(name),
            )
        )
    return tuple(rows)


def close_rows(rows: tuple[DomainStatus, ...]) -> tuple[DomainStatus, ...]:
    """The rows of a budget that is no longer counted: the baseline stays, nothing is allowed."""
    return tuple(
        row
        if row.disruptions_allowed is None
        else msgspec.structs.replace(row, disruptions_allowed=0)
        for row in rows
    )


def format_allowed(budget: Budget, rows: tuple[DomainStatus, ...]) -> str:
    """What is allowed, in one line; zeros that block only updates do not block a drain."""
    guarded = [row for row in rows if row.disruptions_allowed is not None]
    texts = [f"{row.domain}={row.disruptions_allowed}" for row in guarded[:DOMAINS_LIMIT]]
    more = len(guarded) - len(texts)
    line = ",".join(texts) + (f",+{more}" if more else "")
    return f"{line} (updates only)" if line and budget.updates_only else line


def condition_of(reason: Reason, *, type: str, is_true: bool, generation: int) -> Condition:
    """The condition for a reason."""
    return Condition(
        type=type,
        status="True" if is_true else "False",
        reason=reason.code,
        message=str(reason),
        observed_generation=generation,
    )


def status_fields(
    budget: Budget, rows: tuple[DomainStatus, ...], conditions: tuple[Condition, ...]
) -> dict[str, Any]:
    """The fields of the status that are ours, as a merge patch."""
    patch: dict[str, Any] = {
        "observedGeneration": budget.generation,
        "fingerprint": budget.fingerprint,
        "domains": [_row_patch(row) for row in rows],
        "conditions": [
            {"message": "", **msgspec.to_builtins(condition)} for condition in conditions
        ],
    }
    if budget.kind == POD_BUDGET:
        guarded = [row for row in rows if row.disruptions_allowed is not None]
        patch |= {
            "disruptionsAllowed": sum(row.disruptions_allowed or 0 for row in guarded),
            "currentHealthy": sum(row.current_healthy for row in guarded),
            "desiredHealthy": sum(row.desired_healthy for row in guarded),
            "expectedPods": sum(row.expected_pods for row in guarded),
            "disruptedPods": None,  # what is promised is in the ledger
        }
    else:
        patch["allowed"] = format_allowed(budget, rows)
    return patch


def _row_patch(row: DomainStatus) -> dict[str, Any]:
    patch: dict[str, Any] = {
        "domain": row.domain,
        "expectedPods": row.expected_pods,
        "desiredHealthy": row.desired_healthy,
        "currentHealthy": row.current_healthy,
    }
    if row.disruptions_allowed is not None:
        patch["disruptionsAllowed"] = row.disruptions_allowed
    return patch
