"""Which domain is open now, and why not another one.

A rollout works on one domain until no pod of it is of an old revision and as many are Ready as
belong there; then on the next. The order is explicit, by a label of the nodes, or the emptiest
domain first. Three things come before the order: the domain that is already being worked on, a
domain whose pods are broken (the update may be what repairs them), and, in a rollback, the domain
that was updated last.

It is a rollback if the current pods are older than all outdated ones: in an update the pods to be
replaced are the oldest ones. So nothing has to be recorded for it.

Nothing opens while a domain other than the one worked on lacks a Ready pod, except to a domain that
has broken pods itself, unready for a minute; of that one only those are taken (``victims``).
Otherwise a workload that is broken in two domains could never be repaired.

All state is in the cluster: the open domain in the derived budget, in the status which one was
worked on and when others were finished. So a restart at any step continues where it was. Should
both be lost the order starts again with what is left to do; still nothing opens while another
domain lacks a Ready pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zonewise.api.objects.budgets import DomainRollout, DomainRolloutStatus
from zonewise.api.reason import Reason
from zonewise.api.values import times
from zonewise.disruption.grouping import ELSEWHERE
from zonewise.disruption.rollouts.workload import RolledPod, RolledWorkload

DOING = "Doing"
DONE = "Done"

COMPLETE = "UpToDate"
UPDATING = "Updating"
ROLLING_BACK = "RollingBack"
BETWEEN = "PausedBetweenDomains"
PREPARING = "BudgetNotCounted"
UNSEEN = "WorkloadNotObserved"
PAUSED = "Paused"
NOT_READY = "PodsNotReady"

MOVING = (UPDATING, ROLLING_BACK, BETWEEN, PREPARING, UNSEEN)
"""Reasons under which a rollout continues by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    """Everything that is decided from."""

    item: DomainRollout
    workload: RolledWorkload | None = None
    pods: tuple[RolledPod, ...] = ()
    needs: Mapping[str, int] = field(default_factory=dict)
    """How many Ready pods each domain should have; every domain is in it."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What the nodes of domains say about the order."""
    opened: str | None = None
    """The domain that the derived budget leaves open."""
    counted: bool = True
    """Whether the derived budget is there and was counted."""
    trouble: Reason | None = None
    """Why nothing may happen, whatever the numbers."""
    now: float = 0.0

    @property
    def previous(self) -> DomainRolloutStatus:
        """The last written status."""
        return self.item.status


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainPlan:
    """The decision: the open domain, the one worked on, what comes next, and why."""

    reason: Reason
    opened: str | None = None
    current: str | None = None
    following: str | None = None
    """The domain that comes next."""
    repairing: bool = False
    """Whether only broken pods may go."""
    rolling_back: bool = False
    finished: Mapping[str, str] = field(default_factory=dict)
    """When domains were done, as far as they were updated under this rollout."""
    again: float | None = None
    """Seconds until it may go on although nothing changes."""

    @property
    def complete(self) -> bool:
        """Whether everything is of the newest revision."""
        return self.reason.code == COMPLETE

    @property
    def moving(self) -> bool:
        """Whether it continues by itself."""
        return self.reason.code in MOVING


def planned(view: RolloutView) -> DomainPlan:
    """Decide."""
    if view.trouble is not None or view.workload is None:
        assert view.trouble is not None
        return DomainPlan(reason=view.trouble, current=_told(view))
    current = _current(view)
    finished = _finished(view, current)
    if not view.workload.seen:
        reason = _reason(view, UNSEEN, "its controller has not seen its latest change yet")
        return DomainPlan(reason=reason, opened=view.opened, current=current, finished=finished)
    back = _rolling_back(view.pods)
    order = _ordered(view, back)
    if current is not None and _missing(view, current) <= 0 and _broken(view) - {current}:
        # It is healthy, so another domain may be repaired; otherwise both would wait for each
        # other.
        current = current if current in _broken(view) else None
    target = current if current is not None else next(iter(order), None)
    if target is None:
        return DomainPlan(reason=_complete(view), finished=finished)
    rest = [name for name in order if name != target]
    plan = DomainPlan(
        reason=_reason(view, PREPARING, "its budget is being counted"),
        current=current,
        following=target if current is None else next(iter(rest), None),
        rolling_back=back,
        finished=finished,
    )
    if view.item.spec.paused:
        return _but(plan, _reason(view, PAUSED, "spec.paused is set", fix="Set it to false."))
    if not view.counted:
        return plan
    lacking = sorted(name for name in view.needs if name != target and _missing(view, name) > 0)
    repairing = bool(lacking)
    if lacking and target not in _broken(view):
        waits = [wait for one in view.pods if (wait := one.broken_in(view.now)) is not None]
        soon = min((wait for wait in waits if wait > 0), default=None)
        return _but(plan, _not_ready(view, lacking[0]), again=soon)
    wait = 0.0 if current is not None else _pause(view, finished)
    if wait > 0:
        text = f"{_in(target)} comes next, {view.item.spec.pause_seconds} s after the last domain"
        return _but(plan, _reason(view, BETWEEN, text), again=wait)
    return DomainPlan(
        reason=_working(view, target, back=back),
        opened=target,
        current=target,
        following=next(iter(rest), None),
        repairing=repairing,
        rolling_back=back,
        finished=finished,
    )


def _but(plan: DomainPlan, reason: Reason, *, again: float | None = None) -> DomainPlan:
    """The same with nothing open, for another reason."""
    return DomainPlan(
        reason=reason,
        current=plan.current,
        following=plan.following,
        rolling_back=plan.rolling_back,
        finished=plan.finished,
        again=again,
    )


def _told(view: RolloutView) -> str | None:
    """The domain that was being worked on, by the last written status."""
    return next((row.domain for row in view.previous.domains if row.state == DOING), None)


def _current(view: RolloutView) -> str | None:
    """The domain that is being worked on and not finished."""
    for name in (view.opened, _told(view)):
        if name is not None and name in view.needs and _unfinished(view, name):
            return name
    return None


def _unfinished(view: RolloutView, name: str) -> bool:
    return _outdated(view, name) > 0 or _missing(view, name) > 0


def _outdated(view: RolloutView, name: str) -> int:
    return sum(one.outdated for one in view.pods if one.domain == name)


def _missing(view: RolloutView, name: str) -> int:
    ready = sum(one.ready for one in view.pods if one.domain == name)
    return view.needs[name] - ready


def _finished(view: RolloutView, current: str | None) -> dict[str, str]:
    """When domains were done; one that we worked on until now is done now."""
    made = {}
    now = times.format_time(times.from_epoch(view.now))
    rows = {row.domain: row for row in view.previous.domains}
    for name in view.needs:
        row = rows.get(name)
        if name == current or _outdated(view, name):
            continue
        if name == view.opened or (row is not None and row.state == DOING):
            made[name] = now
        elif row is not None and row.finished_at is not None:
            made[name] = row.finished_at
    return made


def _pause(view: RolloutView, finished: Mapping[str, str]) -> float:
    """Seconds that are left of the pause after the last domain."""
    if not view.item.spec.pause_seconds or not finished:
        return 0.0
    last = max(times.parse(text).timestamp() for text in finished.values())
    return last + view.item.spec.pause_seconds - view.now


def _rolling_back(pods: tuple[RolledPod, ...]) -> bool:
    right = [one.created for one in pods if not one.outdated]
    wrong = [one.created for one in pods if one.outdated]
    return bool(right and wrong) and min(right) < min(wrong)


def _ordered(view: RolloutView, back: bool) -> list[str]:
    """The domains that have something to update, in the order in which that is done."""
    todo = {one.domain for one in view.pods if one.outdated}
    broken = _broken(view)
    order = view.item.spec.order
    count = {name: sum(one.domain == name for one in view.pods) for name in todo}
    newest = {
        name: max(one.created for one in view.pods if one.outdated and one.domain == name)
        for name in todo
    }
    latest = sorted(set(newest.values()), reverse=True)

    def wish(name: str) -> tuple[Any, ...]:
        if back:
            return (latest.index(newest[name]),)
        if order.domains:
            named = name in order.domains
            return (order.domains.index(name) if named else len(order.domains),)
        if order.node_label:
            return _label_order(view.labels.get(name, ""))
        return (count[name],)

    return sorted(todo, key=lambda name: (name == ELSEWHERE, name not in broken, wish(name), name))


def _broken(view: RolloutView) -> set[str]:
    """Domains with pods that the update may repair."""
    return {
        one.domain
        for one in view.pods
        if (wait := one.broken_in(view.now)) is not None and wait <= 0
    }


def _label_order(value: str) -> tuple[Any, ...]:
    """Numbers by size, then texts, then those without the label."""
    if value.isascii() and value.isdigit():
        return (0, int(value), "")
    return (1, 0, value) if value else (2, 0, "")


def _complete(view: RolloutView) -> Reason:
    assert view.workload is not None
    if view.workload.catching_up:
        text = "its controller still counts pods of an old revision"
        return _reason(view, UNSEEN, text)
    return _reason(view, COMPLETE, f"all {len(view.pods)} pods are of the newest revision")


def _working(view: RolloutView, name: str, *, back: bool) -> Reason:
    here = [one for one in view.pods if one.domain == name]
    updated = sum(not one.outdated for one in here)
    ready = sum(one.ready for one in here)
    what = "is taken back" if back else "is updated"
    return _reason(
        view,
        ROLLING_BACK if back else UPDATING,
        f"{_in(name)} {what}: {updated} of {len(here)} pods are of the newest revision,"
        f" {ready} of {view.needs[name]} Ready",
        numbers={"updated": updated, "pods": len(here), "ready": ready},
    )


def _not_ready(view: RolloutView, name: str) -> Reason:
    missing = _missing(view, name)
    return _reason(
        view,
        NOT_READY,
        f"{_in(name)} has {view.needs[name] - missing} Ready pods of {view.needs[name]}, and one"
        " domain at a time is disturbed",
        numbers={"missing": missing},
        fix="It goes on when they are Ready.",
    )


def _in(name: str) -> str:
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
    workload = view.workload
    return Reason(
        code=code,
        message=f"{workload.kind} {workload.name}: {text}",
        object=workload.object,
        numbers=dict(numbers or {}),
        fix=fix,
    )
