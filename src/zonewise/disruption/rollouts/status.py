"""The status of a rollout: per domain what is done, doing, next and later, and why.

Two conditions can be waited for. ``Complete`` is true while every pod is of the newest revision;
``Progressing`` while there is something to do that continues by itself.
"""

from __future__ import annotations

from typing import Any

import msgspec

from zonewise.api.objects.budgets import DomainProgress, DomainRolloutStatus
from zonewise.api.reason import Reason
from zonewise.api.values import times
from zonewise.disruption.grouping import ELSEWHERE
from zonewise.disruption.rollouts.plan import DOING, DONE, DomainPlan, RolloutView
from zonewise.disruption.status import condition_of, with_condition

NEXT = "Next"
LATER = "Later"


def rollout_status(
    view: RolloutView, plan: DomainPlan, reason: Reason | None = None
) -> DomainRolloutStatus:
    """The status after a decision; ``reason`` if something else prevented it."""
    said = reason or plan.reason
    moving = plan.moving and reason is None
    generation = view.item.metadata.generation
    conditions = view.previous.conditions
    now = times.format_time(times.from_epoch(view.now))
    for type, good in (("Complete", plan.complete), ("Progressing", moving)):
        wanted = condition_of(said, type=type, good=good, generation=generation)
        conditions = with_condition(conditions, wanted, now)
    rows = tuple(_row(view, plan, name) for name in sorted(view.needs) if _shown(view, name))
    if view.workload is None or view.trouble is not None:
        rows = view.previous.domains
    done = sum(row.state == DONE for row in rows)
    return DomainRolloutStatus(
        observed_generation=generation,
        domain=plan.current or "",
        progress=f"{done}/{len(rows)}",
        reason=said.code,
        domains=rows,
        conditions=conditions,
    )


def status_patch(status: DomainRolloutStatus) -> dict[str, Any]:
    """The status as a merge patch."""
    return {
        "observedGeneration": status.observed_generation,
        "domain": status.domain,
        "progress": status.progress,
        "reason": status.reason,
        "domains": [
            {
                "domain": row.domain,
                "state": row.state,
                "pods": row.pods,
                "updated": row.updated,
                "ready": row.ready,
            }
            | ({"finishedAt": row.finished_at} if row.finished_at is not None else {})
            for row in status.domains
        ],
        "conditions": [{"message": "", **msgspec.to_builtins(one)} for one in status.conditions],
    }


def _shown(view: RolloutView, name: str) -> bool:
    """A pod of the newest revision that waits for a node is in no domain yet."""
    return name != ELSEWHERE or any(
        one.domain == ELSEWHERE and (one.outdated or one.pod.spec.node_name) for one in view.pods
    )


def _row(view: RolloutView, plan: DomainPlan, name: str) -> DomainProgress:
    here = [one for one in view.pods if one.domain == name]
    outdated = sum(one.outdated for one in here)
    state = LATER
    if name == plan.current:
        state = DOING
    elif not outdated:
        state = DONE
    elif name == plan.following:
        state = NEXT
    return DomainProgress(
        domain=name,
        state=state,
        pods=len(here),
        updated=len(here) - outdated,
        ready=sum(one.ready for one in here),
        finished_at=plan.finished.get(name) if state == DONE else None,
    )
