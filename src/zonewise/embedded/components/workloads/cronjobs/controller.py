"""CronJobs: the shell around ``plan``.

A pass looks at the Jobs a CronJob owns, makes the one that is due, deletes what is too much, writes
the status and sleeps until the next moment. *Concurrent* are CronJobs. A pass waits until the store
shows the status that the last one wrote; a Job that was made without its status being written is
found by its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import ClassVar
from zoneinfo import ZoneInfo

import msgspec

from zonewise.api.errors import AlreadyExists, NotFound, ZonewiseError
from zonewise.api.meta import Key, Object, ObjectMeta, ObjectReference
from zonewise.api.objects.apps import EMPTY
from zonewise.api.values import times
from zonewise.embedded.components.workloads.adoption import OWNED, indexed
from zonewise.embedded.components.workloads.creation import owner_reference
from zonewise.embedded.components.workloads.cronjobs.plan import (
    CronJob,
    CronJobStatus,
    Note,
    decide,
    job_name,
)
from zonewise.embedded.components.workloads.jobs.views import Job
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.controller.controller import Controller, own_key
from zonewise.runtime.controller.expectations import GLANCE, Expectations

SCHEDULED = "batch.kubernetes.io/cronjob-scheduled-timestamp"
WORKERS = 4


class JobDraft(Object):
    """A Job to be created."""

    resource: ClassVar = Job.resource

    spec: msgspec.Raw = EMPTY


class CronJobs:
    """Makes Jobs when they are due."""

    def __init__(self, context: ComponentContext) -> None:
        self._client = context.client
        self._recorder = context.recorder
        self._clock = context.clock
        self._controller: Controller[Key] = Controller(
            "cronjobs", self._reconcile, cache=context.cache, workers=WORKERS, rng=context.rng
        )
        self._crons = self._controller.watches(CronJob, own_key)
        self._jobs = indexed(self._controller.watches(Job, _owner))
        self._wrote: Expectations[Key, CronJob] = Expectations(self._crons)
        self._made: Expectations[Key, Job] = Expectations(self._jobs)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._controller.run()

    async def _reconcile(self, key: Key) -> float | None:
        cron = self._crons.get(key)
        if cron is None:
            self._wrote.forget(key)
            self._made.forget(key)
            return None
        if not (self._wrote.settled(key) and self._made.settled(key)):
            return GLANCE
        jobs = self._jobs.by(OWNED, cron.metadata.uid)
        steps = decide(cron, jobs, now=self._clock())
        for note in steps.notes:
            self._tell(cron, note)
        for job in steps.remove:
            await self._remove(key, cron, job)
        status = steps.status
        if steps.due is not None:
            made = await self._make(key, cron, steps.due)
            if made is not None:
                status = CronJobStatus(
                    active=(*status.active, ObjectReference.to(made)),
                    last_schedule_time=times.format_time(steps.due),
                    last_successful_time=status.last_successful_time,
                )
        await self._write(key, cron, status)
        return steps.again

    async def _make(self, key: Key, cron: CronJob, due: datetime) -> Object | None:
        """The Job of a moment, made now or before; None if the name is another owner's."""
        name = job_name(cron, due)
        try:
            made = await self._client.create(_draft(cron, name, due))
        except AlreadyExists:
            there = await self._client.get(Job, name, cron.metadata.namespace)
            owner = there.metadata.controller
            return there if owner is not None and owner.uid == cron.metadata.uid else None
        except ZonewiseError as error:
            self._tell(cron, Note("FailedCreate", f"Error creating job: {error}", "Warning"))
            raise
        self._made.wrote(key, made)
        self._tell(cron, Note("SuccessfulCreate", f"Created job {name}"))
        return made

    async def _remove(self, key: Key, cron: CronJob, job: Job) -> None:
        meta = job.metadata
        try:
            await self._client.delete(
                Job, meta.name, meta.namespace, uid=meta.uid, propagation="Background"
            )
        except NotFound:
            return
        except ZonewiseError as error:
            self._tell(cron, Note("FailedDelete", f"Deleted job: {error}", "Warning"))
            raise
        self._made.removed(key, job)
        self._tell(cron, Note("SuccessfulDelete", f"Deleted job {meta.name}"))

    async def _write(self, key: Key, cron: CronJob, status: CronJobStatus) -> None:
        if status == cron.status:
            return
        change = {
            "active": status.active or None,
            "lastScheduleTime": status.last_schedule_time,
            "lastSuccessfulTime": status.last_successful_time,
        }
        self._wrote.wrote(key, await self._client.patch_status(cron, change))

    def _tell(self, cron: CronJob, note: Note) -> None:
        self._recorder.event(
            cron, type=note.type, reason=note.reason, action="Schedule", note=note.text
        )


def _draft(cron: CronJob, name: str, due: datetime) -> JobDraft:
    template = cron.spec.job_template
    zone = ZoneInfo(cron.spec.time_zone) if cron.spec.time_zone else UTC
    moment = due.astimezone(zone).isoformat().replace("+00:00", "Z")
    return JobDraft(
        metadata=ObjectMeta(
            name=name,
            namespace=cron.metadata.namespace,
            labels=template.metadata.labels,
            annotations={**template.metadata.annotations, SCHEDULED: moment},
            owner_references=(owner_reference(cron),),
        ),
        spec=template.spec,
    )


def _owner(job: Job) -> Iterable[Key]:
    owner = job.metadata.controller
    if owner is None or owner.kind != CronJob.resource.kind:
        return ()
    return ((job.metadata.namespace, owner.name),)
