"""The status of a budget per domain: what is allowed, and the baseline the next count starts from.

``expectedPods`` of a domain is the baseline as it is recorded, not as it was fitted for this count:
every reader fits it again. It changes only when a budget is counted for the first time, or its spec
changed, and when its workload has settled. For DaemonSets it is their nodes.

A status equal to the present one is not written. Sums over domains are in the fields that a
PodDisruptionBudget has anyway; no decision uses them.
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
from zonewise.disruption.domain_counts import DomainCounts
from zonewise.disruption.grouping import ELSEWHERE
from zonewise.disruption.owners import Owners
from zonewise.disruption.standing import BudgetStanding

ALLOWED = "DisruptionAllowed"
ENFORCED = "Enforced"
SHOWN = 8


@dataclass(frozen=True, slots=True)
class Baseline:
    """What is to be remembered; None leaves what is."""

    pods: Mapping[str, int] | None
    fresh: bool
    """Whether nothing, or nothing that holds, was remembered before."""


def baseline_of(
    standing: BudgetStanding, domain_counts: DomainCounts, owners: Owners, *, at_rest: bool
) -> Baseline:
    """The baseline after this count."""
    budget = standing.budget
    if not standing.remembers or standing.replicas is None:
        return Baseline(None, fresh=False)
    if budget.baseline is None:
        fitted = {name: domain.baseline for name, domain in standing.domains.items()}
        return Baseline(fitted, fresh=True)
    if at_rest:
        return Baseline(standing.settled(domain_counts, owners), fresh=False)
    return Baseline(None, fresh=False)


def domain_rows(
    standing: BudgetStanding, known: Mapping[str, int] | None
) -> tuple[DomainStatus, ...]:
    """One row per domain, and one for what is elsewhere if there is anything."""
    budget = standing.budget
    kept = budget.baseline if known is None else known
    rows = []
    for name, domain in sorted(standing.domains.items()):
        expected = domain.expected if not standing.remembers else (kept or {}).get(name, 0)
        if name == ELSEWHERE and not (domain.present or expected):
            continue
        rows.append(
            DomainStatus(
                domain=name,
                expected_pods=expected,
                desired_healthy=domain.desired,
                current_healthy=standing.healthy(name),
                disruptions_allowed=standing.allowed(name),
            )
        )
    return tuple(rows)


def closed_rows(known: tuple[DomainStatus, ...]) -> tuple[DomainStatus, ...]:
    """The rows of a budget that is not counted any more: the baseline stays, nothing is allowed."""
    return tuple(
        row
        if row.disruptions_allowed is None
        else msgspec.structs.replace(row, disruptions_allowed=0)
        for row in known
    )


def allowed_line(budget: Budget, rows: tuple[DomainStatus, ...]) -> str:
    """What is allowed at a glance, and of what: zeros that hold updates do not hold a drain."""
    guarded = [row for row in rows if row.disruptions_allowed is not None]
    shown = [f"{row.domain}={row.disruptions_allowed}" for row in guarded[:SHOWN]]
    more = len(guarded) - len(shown)
    line = ",".join(shown) + (f",+{more}" if more else "")
    return f"{line} (updates only)" if line and budget.updates_only else line


def condition_of(reason: Reason, *, type: str, good: bool, generation: int) -> Condition:
    """A reason as a condition."""
    return Condition(
        type=type,
        status="True" if good else "False",
        reason=reason.code,
        message=str(reason),
        observed_generation=generation,
    )


def with_condition(
    conditions: tuple[Condition, ...], wanted: Condition, now: str
) -> tuple[Condition, ...]:
    """The conditions with one of them set; its time moves only if its status does."""
    old = next((one for one in conditions if one.type == wanted.type), None)
    since = old.last_transition_time if old and old.status == wanted.status else now
    changed = msgspec.structs.replace(wanted, last_transition_time=since)
    if old is None:
        return (*conditions, changed)
    return tuple(changed if one is old else one for one in conditions)


def fields(
    budget: Budget,
    rows: tuple[DomainStatus, ...],
    conditions: tuple[Condition, ...],
) -> dict[str, Any]:
    """The fields of the status that are ours, as a merge patch has them."""
    said: dict[str, Any] = {
        "observedGeneration": budget.generation,
        "fingerprint": budget.fingerprint,
        "domains": [_row(row) for row in rows],
        "conditions": [{"message": "", **msgspec.to_builtins(one)} for one in conditions],
    }
    if budget.kind == POD_BUDGET:
        guarded = [row for row in rows if row.disruptions_allowed is not None]
        said |= {
            "disruptionsAllowed": sum(row.disruptions_allowed or 0 for row in guarded),
            "currentHealthy": sum(row.current_healthy for row in guarded),
            "desiredHealthy": sum(row.desired_healthy for row in guarded),
            "expectedPods": sum(row.expected_pods for row in guarded),
        }
    else:
        said["allowed"] = allowed_line(budget, rows)
    return said


def _row(row: DomainStatus) -> dict[str, Any]:
    made: dict[str, Any] = {
        "domain": row.domain,
        "expectedPods": row.expected_pods,
        "desiredHealthy": row.desired_healthy,
        "currentHealthy": row.current_healthy,
    }
    if row.disruptions_allowed is not None:
        made["disruptionsAllowed"] = row.disruptions_allowed
    return made
