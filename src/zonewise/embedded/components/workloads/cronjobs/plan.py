"""What a CronJob does next: a pure function of the CronJob and its Jobs.

Of the times that were due since the last Job, only the latest counts, and only if it is not older
than ``startingDeadlineSeconds``. A Job is named after its minute, so it is created once however
often it is tried. ``Forbid`` waits until the one before has finished, ``Replace`` deletes it,
``Allow`` ignores it. Finished Jobs beyond the limits of successes and failures are deleted, the
oldest first.

The status is rebuilt from the existing Jobs: the active ones, the last scheduled time, and when one
last succeeded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar
from zoneinfo import ZoneInfoNotFoundError

import msgspec

from zonewise.api.meta import Object, ObjectMeta, ObjectReference
from zonewise.api.objects.apps import EMPTY_OBJECT
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct
from zonewise.api.values import times
from zonewise.api.values.cron import Schedule, parse_schedule
from zonewise.embedded.components.workloads.jobs.objects import Job
from zonewise.embedded.components.workloads.jobs.plan import PlannedEvent, finished_condition

SLACK = 0.1
"""How long after a scheduled time a CronJob is synced; clocks differ."""
MAX_MISSED = 100
"""More missed times than this are reported as a warning."""


class JobTemplate(Struct):
    """What a Job is created from."""

    metadata: ObjectMeta = ObjectMeta()
    spec: msgspec.Raw = EMPTY_OBJECT


class CronJobSpec(Struct):
    """Which Job is created, and when."""

    schedule: str = ""
    time_zone: str | None = None
    starting_deadline_seconds: int | None = None
    concurrency_policy: str = ""
    suspend: bool | None = None
    job_template: JobTemplate = JobTemplate()
    successful_jobs_history_limit: int | None = None
    failed_jobs_history_limit: int | None = None


class CronJobStatus(Struct):
    """The active Jobs, and when the last one was scheduled and succeeded."""

    active: tuple[ObjectReference, ...] = ()
    last_schedule_time: str | None = None
    last_successful_time: str | None = None


class CronJob(Object):
    """Creates Jobs by a schedule."""

    resource: ClassVar = Resource("batch", "v1", "CronJob", "cronjobs")

    spec: CronJobSpec = CronJobSpec()
    status: CronJobStatus = CronJobStatus()


@dataclass(slots=True)
class CronJobPlan:
    """What to do, in this order, and the status before a new Job is in it."""

    status: CronJobStatus
    delete: list[Job] = field(default_factory=list)
    events: list[PlannedEvent] = field(default_factory=list)
    due: datetime | None = None
    """The scheduled time to create a Job for."""
    requeue_after: float | None = None


def decide(cron_job: CronJob, jobs: Iterable[Job], *, now: float) -> CronJobPlan:
    """What to do about a CronJob, given the Jobs it owns."""
    jobs_by_start = sorted(jobs, key=_start_key)
    plan = CronJobPlan(cron_job.status)
    plan.delete = [
        *_surplus_jobs(cron_job, jobs_by_start, "Complete"),
        *_surplus_jobs(cron_job, jobs_by_start, "Failed"),
    ]
    _update_status(cron_job, jobs_by_start, plan)
    if cron_job.metadata.deletion_timestamp is None and not cron_job.spec.suspend:
        _plan_next_job(cron_job, jobs_by_start, plan, times.from_epoch(now))
    return plan


def job_name(cron_job: CronJob, scheduled: datetime) -> str:
    """The name of the Job of a scheduled time."""
    return f"{cron_job.metadata.name}-{int(scheduled.timestamp()) // 60}"


def _surplus_jobs(cron_job: CronJob, jobs: Sequence[Job], kind: str) -> list[Job]:
    spec = cron_job.spec
    limit = (
        spec.successful_jobs_history_limit if kind == "Complete" else spec.failed_jobs_history_limit
    )
    if limit is None:
        return []
    finished_jobs = [
        job
        for job in jobs
        if (condition := finished_condition(job)) is not None and condition.type == kind
    ]
    return finished_jobs[: max(len(finished_jobs) - limit, 0)]


def _update_status(cron_job: CronJob, jobs: Sequence[Job], plan: CronJobPlan) -> None:
    active = {reference.uid: reference for reference in cron_job.status.active}
    uids = {job.metadata.uid for job in jobs}
    success = cron_job.status.last_successful_time
    for job in jobs:
        uid, name = job.metadata.uid, job.metadata.name
        condition = finished_condition(job)
        if condition is None:
            if uid not in active:
                message = f"Saw a job that the controller did not create or forgot: {name}"
                plan.events.append(PlannedEvent("UnexpectedJob", message, "Warning"))
            continue
        if active.pop(uid, None) is not None:
            message = f"Saw completed job: {name}, condition: {condition.type}"
            plan.events.append(PlannedEvent("SawCompletedJob", message))
        if condition.type == "Complete" and job.status.completion_time is not None:
            success = max(success or "", job.status.completion_time)
    for uid, reference in tuple(active.items()):
        if uid not in uids:
            plan.events.append(
                PlannedEvent("MissingJob", f"Active job went missing: {reference.name}")
            )
            del active[uid]
    plan.status = msgspec.structs.replace(
        plan.status, active=tuple(active.values()), last_successful_time=success
    )


def _plan_next_job(
    cron_job: CronJob, jobs: Sequence[Job], plan: CronJobPlan, now: datetime
) -> None:
    spec = cron_job.spec
    try:
        schedule = parse_schedule(spec.schedule, spec.time_zone or "")
    except ZoneInfoNotFoundError:
        message = f'invalid timeZone: "{spec.time_zone}": unknown time zone {spec.time_zone}'
        plan.events.append(PlannedEvent("UnknownTimeZone", message, "Warning"))
        return
    last = _parse_time(cron_job.status.last_schedule_time) or _parse_time(
        cron_job.metadata.creation_timestamp
    )
    earliest = last or now
    scheduled, missed = _latest_due(schedule, earliest, now)
    next_due = schedule.next(scheduled or (now if missed else earliest))
    if next_due is not None:
        plan.requeue_after = max((next_due - now).total_seconds() + SLACK, SLACK)
    if scheduled is None or scheduled == _parse_time(cron_job.status.last_schedule_time):
        return
    deadline = spec.starting_deadline_seconds
    if deadline is not None and (now - scheduled).total_seconds() > deadline:
        return
    if missed > MAX_MISSED and deadline is None:
        message = (
            "too many missed start times. Set or decrease .spec.startingDeadlineSeconds"
            " or check clock skew"
        )
        plan.events.append(PlannedEvent("TooManyMissedTimes", message, "Warning"))
    active = plan.status.active
    if any(reference.name == job_name(cron_job, scheduled) for reference in active):
        return
    if spec.concurrency_policy == "Forbid" and active:
        message = (
            "Not starting job because prior execution is running and concurrency policy is Forbid"
        )
        plan.events.append(PlannedEvent("JobAlreadyActive", message))
        return
    if spec.concurrency_policy == "Replace":
        running = {reference.uid for reference in active}
        plan.delete += [job for job in jobs if job.metadata.uid in running]
        plan.status = msgspec.structs.replace(plan.status, active=())
    plan.due = scheduled


def _latest_due(
    schedule: Schedule, earliest: datetime, now: datetime
) -> tuple[datetime | None, int]:
    """The latest time that is due, and about how many were missed."""
    first = schedule.next(earliest)
    if first is None or first > now:
        return None, 0
    second = schedule.next(first)
    if second is None or second > now:
        return first, 0
    interval = second - first
    missed = int((now - first) / interval) + 1
    # Years of missed times are not enumerated.
    scheduled = schedule.next(first + (missed - 2) * interval)
    latest: datetime | None = None
    while scheduled is not None and scheduled <= now:
        latest, scheduled = scheduled, schedule.next(scheduled)
    return latest, missed


def _parse_time(text: str | None) -> datetime | None:
    return None if text is None else times.parse(text)


def _start_key(job: Job) -> tuple[bool, str, str]:
    return (job.status.start_time is None, job.status.start_time or "", job.metadata.name)
