"""Which domain is open now, and why not another one.

A rollout works on one domain until no pod of it is of an old revision and as many are Ready as
belong there; then on the next. The order is explicit, by a label of the nodes, or the emptiest
domain first. Three things come before the order: the domain that is already being worked on, a
domain whose pods are broken (the update may be what repairs them), and, in a rollback, the domain
that was updated last.

It is a rollback if the current pods are older than all outdated ones: in an update the pods to be
replaced are the oldest ones. So nothing has to be recorded for it.

Nothing opens while a domain other than the one worked on lacks a Ready pod, except to a domain that
has broken pods itself, unready for a minute; then only these are evicted (``victims``). Otherwise a
workload that is broken in two domains could never be repaired.

All state is in the cluster: the open domain in the derived budget, in the status which one was
worked on and when others were finished. So a restart at any step continues where it was. If both
are lost, the order starts again with what is left to do; still nothing opens while another domain
lacks a Ready pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zonewise.api.objects.budgets import DomainRollout, DomainRolloutStatus
from zonewise.api.reason import Reason
from zonewise.api.values import times
from zonewise.disruption.grouping import NO_DOMAIN
from zonewise.disruption.rollouts.workload import RolledPod, RolledWorkload

DOING = "Doing"
DONE = "Done"

COMPLETE = "UpToDate"
UPDATING = "Updating"
ROLLING_BACK = "RollingBack"
BETWEEN_DOMAINS = "PausedBetweenDomains"
PREPARING = "BudgetNotCounted"
NOT_OBSERVED = "WorkloadNotObserved"
PAUSED = "Paused"
NOT_READY = "PodsNotReady"

PROGRESSING = (UPDATING, ROLLING_BACK, BETWEEN_DOMAINS, PREPARING, NOT_OBSERVED)
"""Reasons under which a rollout continues by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    """Everything that the decision depends on."""

    rollout: DomainRollout
    workload: RolledWorkload | None = None
    pods: tuple[RolledPod, ...] = ()
    unscheduled: tuple[RolledPod, ...] = ()
    """Its pods that have no node yet."""
    desired_ready: Mapping[str, int] = field(default_factory=dict)
    """How many Ready pods each domain should have; every domain is in it."""
    order_labels: Mapping[str, str] = field(default_factory=dict)
    """The values of ``order.nodeLabel``, by domain."""
    budgets_lack: Mapping[str, int] = field(default_factory=dict)
    """How many pods domains lack by other budgets that divide the replicas by domains."""
    open_domain: str | None = None
    """The domain that the derived budget leaves open."""
    budget_counted: bool = True
    """Whether the derived budget exists and was counted."""
    blocking_reason: Reason | None = None
    """Why nothing may be updated, whatever the numbers are."""
    now: float = 0.0

    @property
    def previous_status(self) -> DomainRolloutStatus:
        """The last written status."""
        return self.rollout.status


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainPlan:
    """The decision: the open domain, the one worked on, what comes next, and why."""

    reason: Reason
    open_domain: str | None = None
    current_domain: str | None = None
    next_domain: str | None = None
    """The domain that comes next."""
    repairing: bool = False
    """Whether only broken pods may go."""
    rolling_back: bool = False
    finished_at: Mapping[str, str] = field(default_factory=dict)
    """When domains were finished, if this rollout updated them."""
    retry_after: float | None = None
    """Seconds until it may continue although nothing changes."""

    @property
    def is_complete(self) -> bool:
        """Whether every pod is of the newest revision."""
        return self.reason.code == COMPLETE

    @property
    def is_progressing(self) -> bool:
        """Whether it continues by itself."""
        return self.reason.code in PROGRESSING


def plan_rollout(view: RolloutView) -> DomainPlan:
    """Decide which domain is open."""
    if view.blocking_reason is not None or view.workload is None:
        assert view.blocking_reason is not None
        return DomainPlan(reason=view.blocking_reason, current_domain=_recorded_domain(view))
    current = _find_current(view)
    finished_at = _find_finished(view, current)
    if not view.workload.observed:
        text = "its controller has not observed its latest change yet"
        reason = _reason(view, NOT_OBSERVED, text)
        return DomainPlan(
            reason=reason,
            open_domain=view.open_domain,
            current_domain=current,
            finished_at=finished_at,
        )
    rolling_back = _is_rolling_back(view.pods)
    order = _order_domains(view, rolling_back)
    healthy = current is not None and _count_missing(view, current) <= 0
    if healthy and _find_broken(view) - {current}:
        # It is healthy, so another domain may be repaired; otherwise each would wait for the other.
        current = current if current in _find_broken(view) else None
    target = current if current is not None else next(iter(order), None)
    if target is None:
        return DomainPlan(reason=_completion_reason(view), finished_at=finished_at)
    later_domains = [name for name in order if name != target]
    plan = DomainPlan(
        reason=uncounted_reason(view.workload),
        current_domain=current,
        next_domain=target if current is None else next(iter(later_domains), None),
        rolling_back=rolling_back,
        finished_at=finished_at,
    )
    if view.rollout.spec.paused:
        reason = _reason(view, PAUSED, "spec.paused is set", fix="Set it to false.")
        return _with_nothing_open(plan, reason)
    if not view.budget_counted:
        return plan
    lacking_domains = sorted(
        name for name in view.desired_ready if name != target and _count_missing(view, name) > 0
    )
    repairing = bool(lacking_domains)
    if lacking_domains and target not in _find_broken(view):
        waits = [
            wait for pod in view.pods if (wait := pod.seconds_until_broken(view.now)) is not None
        ]
        soonest = min((wait for wait in waits if wait > 0), default=None)
        return _with_nothing_open(
            plan, _not_ready_reason(view, lacking_domains[0]), retry_after=soonest
        )
    wait = 0.0 if current is not None else _remaining_pause(view, finished_at)
    if wait > 0:
        pause = view.rollout.spec.pause_seconds
        text = f"{_describe_domain(target)} comes next, {pause} s after the last domain"
        return _with_nothing_open(plan, _reason(view, BETWEEN_DOMAINS, text), retry_after=wait)
    return DomainPlan(
        reason=_working_reason(view, target, rolling_back=rolling_back),
        open_domain=target,
        current_domain=target,
        next_domain=next(iter(later_domains), None),
        repairing=repairing,
        rolling_back=rolling_back,
        finished_at=finished_at,
    )


def uncounted_reason(workload: RolledWorkload) -> Reason:
    """Why nothing is open, and nothing is known, before the derived budget is counted."""
    return _workload_reason(workload, PREPARING, "its budget is being counted")


def _with_nothing_open(
    plan: DomainPlan, reason: Reason, *, retry_after: float | None = None
) -> DomainPlan:
    """The plan with nothing open, for another reason."""
    return DomainPlan(
        reason=reason,
        current_domain=plan.current_domain,
        next_domain=plan.next_domain,
        rolling_back=plan.rolling_back,
        finished_at=plan.finished_at,
        retry_after=retry_after,
    )


def _recorded_domain(view: RolloutView) -> str | None:
    """The domain that is worked on, by the last written status."""
    return next((row.domain for row in view.previous_status.domains if row.state == DOING), None)


def _find_current(view: RolloutView) -> str | None:
    """The domain that is worked on and not finished."""
    for name in (view.open_domain, _recorded_domain(view)):
        if name is not None and name in view.desired_ready and _is_unfinished(view, name):
            return name
    return None


def _is_unfinished(view: RolloutView, name: str) -> bool:
    return _count_outdated(view, name) > 0 or _count_missing(view, name) > 0


def _count_outdated(view: RolloutView, name: str) -> int:
    return sum(pod.outdated for pod in view.pods if pod.domain == name)


def _count_missing(view: RolloutView, name: str) -> int:
    ready = sum(pod.ready for pod in view.pods if pod.domain == name)
    return view.desired_ready[name] - ready


def _find_finished(view: RolloutView, current: str | None) -> dict[str, str]:
    """When domains were finished; one that was worked on until now is finished now."""
    finished_at = {}
    now = times.format_time(times.from_epoch(view.now))
    rows = {row.domain: row for row in view.previous_status.domains}
    for name in view.desired_ready:
        row = rows.get(name)
        if name == current or _count_outdated(view, name):
            continue
        if name == view.open_domain or (row is not None and row.state == DOING):
            finished_at[name] = now
        elif row is not None and row.finished_at is not None:
            finished_at[name] = row.finished_at
    return finished_at


def _remaining_pause(view: RolloutView, finished_at: Mapping[str, str]) -> float:
    """Seconds that remain of the pause after the last domain."""
    if not view.rollout.spec.pause_seconds or not finished_at:
        return 0.0
    last = max(times.parse(text).timestamp() for text in finished_at.values())
    return last + view.rollout.spec.pause_seconds - view.now


def _is_rolling_back(pods: tuple[RolledPod, ...]) -> bool:
    updated_times = [pod.created for pod in pods if not pod.outdated]
    outdated_times = [pod.created for pod in pods if pod.outdated]
    return bool(updated_times and outdated_times) and min(updated_times) < min(outdated_times)


def _order_domains(view: RolloutView, rolling_back: bool) -> list[str]:
    """The domains with outdated pods, in the order in which they are updated."""
    outdated_domains = {pod.domain for pod in view.pods if pod.outdated}
    broken = _find_broken(view)
    order = view.rollout.spec.order
    pod_counts = {name: sum(pod.domain == name for pod in view.pods) for name in outdated_domains}
    newest = {
        name: max(pod.created for pod in view.pods if pod.outdated and pod.domain == name)
        for name in outdated_domains
    }
    newest_first = sorted(set(newest.values()), reverse=True)

    def order_key(name: str) -> tuple[Any, ...]:
        if rolling_back:
            return (newest_first.index(newest[name]),)
        if order.domains:
            named = name in order.domains
            return (order.domains.index(name) if named else len(order.domains),)
        if order.node_label:
            return _label_order(view.order_labels.get(name, ""))
        return (pod_counts[name],)

    return sorted(
        outdated_domains,
        key=lambda name: (name == NO_DOMAIN, name not in broken, order_key(name), name),
    )


def _find_broken(view: RolloutView) -> set[str]:
    """Domains with pods that the update may repair."""
    return {
        pod.domain
        for pod in view.pods
        if (wait := pod.seconds_until_broken(view.now)) is not None and wait <= 0
    }


def _label_order(value: str) -> tuple[Any, ...]:
    """Numbers by size, then texts, then those without the label."""
    if value.isascii() and value.isdigit():
        return (0, int(value), "")
    return (1, 0, value) if value else (2, 0, "")


def _completion_reason(view: RolloutView) -> Reason:
    assert view.workload is not None
    if view.workload.catching_up:
        text = "its controller still counts pods of an old revision"
        return _reason(view, NOT_OBSERVED, text)
    return _reason(view, COMPLETE, f"all {len(view.pods)} pods are of the newest revision")


def _working_reason(view: RolloutView, name: str, *, rolling_back: bool) -> Reason:
    domain_pods = [pod for pod in view.pods if pod.domain == name]
    updated = sum(not pod.outdated for pod in domain_pods)
    ready = sum(pod.ready for pod in domain_pods)
    operation = "is rolled back" if rolling_back else "is updated"
    return _reason(
        view,
        ROLLING_BACK if rolling_back else UPDATING,
        f"{_describe_domain(name)} {operation}: {updated} of {len(domain_pods)} pods are of the"
        f" newest revision, {ready} of {view.desired_ready[name]} Ready",
        numbers={"updated": updated, "pods": len(domain_pods), "ready": ready},
    )


def _not_ready_reason(view: RolloutView, name: str) -> Reason:
    missing, desired = _count_missing(view, name), view.desired_ready[name]
    return _reason(
        view,
        NOT_READY,
        f"{_describe_domain(name)} has {desired - missing} Ready pods of {desired}, and one domain"
        " at a time is disrupted",
        numbers={"missing": missing},
        fix="It continues when they are Ready.",
    )


def _describe_domain(name: str) -> str:
    return f"domain {name}" if name else "what is in no domain"


def _reason(
    view: RolloutView,
    code: str,
    text: str,
    *,
    fix: str = "",
    numbers: Mapping[str, int] | None = None,
) -> Reason:
    assert view.workload is not None
    return _workload_reason(view.workload, code, text, fix=fix, numbers=numbers)


def _workload_reason(
    workload: RolledWorkload,
    code: str,
    text: str,
    *,
    fix: str = "",
    numbers: Mapping[str, int] | None = None,
) -> Reason:
    return Reason(
        code=code,
        message=f"{workload.kind} {workload.name}: {text}",
        object=workload.object,
        numbers=dict(numbers or {}),
        fix=fix,
    )
