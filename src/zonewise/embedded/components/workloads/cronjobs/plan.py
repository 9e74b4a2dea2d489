"""What is to be done about a CronJob now. Pure.

Of the moments that were due since the last Job, only the latest counts, and only if it is not older
than ``startingDeadlineSeconds``. A Job is named after its minute, so it is made once however often
it is tried. ``Forbid`` waits until the one before is over, ``Replace`` deletes it, ``Allow``
ignores it. Finished Jobs beyond the limits of successes and failures are deleted, the oldest first.

The status is rebuilt from the existing Jobs: the active ones, the last moment a Job was made for,
and when one last succeeded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Literal
from zoneinfo import ZoneInfoNotFoundError

import msgspec

from zonewise.api.meta import Object, ObjectMeta, ObjectReference
from zonewise.api.objects.apps import EMPTY
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct
from zonewise.api.values import times
from zonewise.api.values.cron import Schedule, parse_schedule
from zonewise.embedded.components.workloads.jobs.plan import finished
from zonewise.embedded.components.workloads.jobs.views import Job

SLACK = 0.1
"""How long after a moment a CronJob is looked at; clocks differ."""
MANY = 100
"""More missed moments than this are worth a warning."""


class JobTemplate(Struct):
    """What a Job is made from."""

    metadata: ObjectMeta = ObjectMeta()
    spec: msgspec.Raw = EMPTY


class CronJobSpec(Struct):
    """When which Job is made."""

    schedule: str = ""
    time_zone: str | None = None
    starting_deadline_seconds: int | None = None
    concurrency_policy: str = ""
    suspend: bool | None = None
    job_template: JobTemplate = JobTemplate()
    successful_jobs_history_limit: int | None = None
    failed_jobs_history_limit: int | None = None


class CronJobStatus(Struct):
    """What became of it so far."""

    active: tuple[ObjectReference, ...] = ()
    last_schedule_time: str | None = None
    last_successful_time: str | None = None


class CronJob(Object):
    """Jobs at certain times."""

    resource: ClassVar = Resource("batch", "v1", "CronJob", "cronjobs")

    spec: CronJobSpec = CronJobSpec()
    status: CronJobStatus = CronJobStatus()


@dataclass(frozen=True, slots=True)
class Note:
    """What an event says."""

    reason: str
    text: str
    type: Literal["Normal", "Warning"] = "Normal"


@dataclass(slots=True)
class CronJobPlan:
    """What to do, in this order, and the status before a new Job is in it."""

    status: CronJobStatus
    remove: list[Job] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    due: datetime | None = None
    """The moment to make a Job for."""
    again: float | None = None


def decide(cron: CronJob, jobs: Iterable[Job], *, now: float) -> CronJobPlan:
    """What to do about a CronJob, given the Jobs it owns."""
    known = sorted(jobs, key=_start)
    steps = CronJobPlan(cron.status)
    steps.remove = [*_surplus(cron, known, "Complete"), *_surplus(cron, known, "Failed")]
    _recount(cron, known, steps)
    if cron.metadata.deletion_timestamp is None and not cron.spec.suspend:
        _schedule(cron, known, steps, times.from_epoch(now))
    return steps


def job_name(cron: CronJob, moment: datetime) -> str:
    """The name of the Job of a moment."""
    return f"{cron.metadata.name}-{int(moment.timestamp()) // 60}"


def _surplus(cron: CronJob, jobs: Sequence[Job], kind: str) -> list[Job]:
    spec = cron.spec
    limit = (
        spec.successful_jobs_history_limit if kind == "Complete" else spec.failed_jobs_history_limit
    )
    if limit is None:
        return []
    ended = [job for job in jobs if (end := finished(job)) is not None and end.type == kind]
    return ended[: max(len(ended) - limit, 0)]


def _recount(cron: CronJob, jobs: Sequence[Job], steps: CronJobPlan) -> None:
    active = {one.uid: one for one in cron.status.active}
    present = {job.metadata.uid for job in jobs}
    success = cron.status.last_successful_time
    for job in jobs:
        uid, name = job.metadata.uid, job.metadata.name
        end = finished(job)
        if end is None:
            if uid not in active:
                text = f"Saw a job that the controller did not create or forgot: {name}"
                steps.notes.append(Note("UnexpectedJob", text, "Warning"))
            continue
        if active.pop(uid, None) is not None:
            text = f"Saw completed job: {name}, condition: {end.type}"
            steps.notes.append(Note("SawCompletedJob", text))
        if end.type == "Complete" and job.status.completion_time is not None:
            success = max(success or "", job.status.completion_time)
    for uid, one in tuple(active.items()):
        if uid not in present:
            steps.notes.append(Note("MissingJob", f"Active job went missing: {one.name}"))
            del active[uid]
    steps.status = msgspec.structs.replace(
        steps.status, active=tuple(active.values()), last_successful_time=success
    )


def _schedule(cron: CronJob, jobs: Sequence[Job], steps: CronJobPlan, now: datetime) -> None:
    spec = cron.spec
    try:
        schedule = parse_schedule(spec.schedule, spec.time_zone or "")
    except ZoneInfoNotFoundError:
        text = f'invalid timeZone: "{spec.time_zone}": unknown time zone {spec.time_zone}'
        steps.notes.append(Note("UnknownTimeZone", text, "Warning"))
        return
    last = _moment(cron.status.last_schedule_time) or _moment(cron.metadata.creation_timestamp)
    earliest = last or now
    seen, missed = _latest(schedule, earliest, now)
    following = schedule.next(seen or (now if missed else earliest))
    if following is not None:
        steps.again = max((following - now).total_seconds() + SLACK, SLACK)
    if seen is None or seen == _moment(cron.status.last_schedule_time):
        return
    deadline = spec.starting_deadline_seconds
    if deadline is not None and (now - seen).total_seconds() > deadline:
        return
    if missed > MANY and deadline is None:
        text = (
            "too many missed start times. Set or decrease .spec.startingDeadlineSeconds"
            " or check clock skew"
        )
        steps.notes.append(Note("TooManyMissedTimes", text, "Warning"))
    active = steps.status.active
    if any(one.name == job_name(cron, seen) for one in active):
        return
    if spec.concurrency_policy == "Forbid" and active:
        text = (
            "Not starting job because prior execution is running and concurrency policy is Forbid"
        )
        steps.notes.append(Note("JobAlreadyActive", text))
        return
    if spec.concurrency_policy == "Replace":
        running = {one.uid for one in active}
        steps.remove += [job for job in jobs if job.metadata.uid in running]
        steps.status = msgspec.structs.replace(steps.status, active=())
    steps.due = seen


def _latest(schedule: Schedule, earliest: datetime, now: datetime) -> tuple[datetime | None, int]:
    """The latest moment that is due, and about how many there were."""
    first = schedule.next(earliest)
    if first is None or first > now:
        return None, 0
    second = schedule.next(first)
    if second is None or second > now:
        return first, 0
    pause = second - first
    missed = int((now - first) / pause) + 1
    # Years of missed moments are not walked one by one.
    moment = schedule.next(first + (missed - 2) * pause)
    latest: datetime | None = None
    while moment is not None and moment <= now:
        latest, moment = moment, schedule.next(moment)
    return latest, missed


def _moment(text: str | None) -> datetime | None:
    return None if text is None else times.parse(text)


def _start(job: Job) -> tuple[bool, str, str]:
    return (job.status.start_time is None, job.status.start_time or "", job.metadata.name)
