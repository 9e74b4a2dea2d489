"""The status of a rollout: for each domain whether it is done, doing, next or later, and why.

Two conditions can be waited for. ``Complete`` is true while every pod is of the newest revision;
``Progressing`` while there is something to do that continues by itself.
"""

from __future__ import annotations

from typing import Any

import msgspec

from zonewise.api.objects.budgets import DomainProgress, DomainRolloutStatus
from zonewise.api.reason import Reason
from zonewise.api.values import times
from zonewise.disruption.grouping import NO_DOMAIN
from zonewise.disruption.pdb import set_condition
from zonewise.disruption.rollouts.plan import DOING, DONE, DomainPlan, RolloutView
from zonewise.disruption.status import condition_of

NEXT = "Next"
LATER = "Later"


def rollout_status(
    view: RolloutView, plan: DomainPlan, reason: Reason | None = None
) -> DomainRolloutStatus:
    """The status after a decision; ``reason`` if something else prevented its evictions."""
    shown_reason = reason or plan.reason
    is_progressing = plan.is_progressing and reason is None
    generation = view.rollout.metadata.generation
    conditions = view.previous_status.conditions
    now = times.format_time(times.from_epoch(view.now))
    for type, is_true in (("Complete", plan.is_complete), ("Progressing", is_progressing)):
        condition = condition_of(shown_reason, type=type, is_true=is_true, generation=generation)
        conditions = set_condition(conditions, condition, now)
    names = sorted(name for name in view.desired_ready if _has_row(view, name))
    rows = tuple(_build_row(view, plan, name) for name in names)
    if view.workload is None or view.blocking_reason is not None:
        rows = view.previous_status.domains
    done = sum(row.state == DONE for row in rows)
    return DomainRolloutStatus(
        observed_generation=generation,
        domain=plan.current_domain or "",
        progress=f"{done}/{len(rows)}",
        reason=shown_reason.code,
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
        "conditions": [
            {"message": "", **msgspec.to_builtins(condition)} for condition in status.conditions
        ],
    }


def _has_row(view: RolloutView, name: str) -> bool:
    """Whether a domain is listed; NO_DOMAIN not for new pods that only wait for a node."""
    return name != NO_DOMAIN or any(
        pod.domain == NO_DOMAIN and (pod.outdated or pod.pod.spec.node_name) for pod in view.pods
    )


def _build_row(view: RolloutView, plan: DomainPlan, name: str) -> DomainProgress:
    pods = [pod for pod in view.pods if pod.domain == name]
    outdated = sum(pod.outdated for pod in pods)
    state = LATER
    if name == plan.current_domain:
        state = DOING
    elif not outdated:
        state = DONE
    elif name == plan.next_domain:
        state = NEXT
    return DomainProgress(
        domain=name,
        state=state,
        pods=len(pods),
        updated=len(pods) - outdated,
        ready=sum(pod.ready for pod in pods),
        finished_at=plan.finished_at.get(name) if state == DONE else None,
    )
