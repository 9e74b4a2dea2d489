"""The CronJob controller: the shell around ``plan``.

A sync reads the Jobs that a CronJob owns, creates the one that is due, deletes the surplus, writes
the status and returns when the next one is due. *Concurrent* are CronJobs. A sync waits until the
store shows the status that the last one wrote; a Job that was created without its status being
written is found by its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import ClassVar
from zoneinfo import ZoneInfo

import msgspec

from zonewise.api.errors import AlreadyExists, NotFound, ZonewiseError
from zonewise.api.meta import Key, Object, ObjectMeta, ObjectReference
from zonewise.api.objects.apps import EMPTY_OBJECT
from zonewise.api.values import times
from zonewise.embedded.components.workloads.adoption import BY_CONTROLLER, index_by_controller
from zonewise.embedded.components.workloads.creation import owner_reference
from zonewise.embedded.components.workloads.cronjobs.plan import (
    CronJob,
    CronJobStatus,
    decide,
    job_name,
)
from zonewise.embedded.components.workloads.jobs.objects import Job
from zonewise.embedded.components.workloads.jobs.plan import PlannedEvent
from zonewise.runtime.controller.controller import own_key
from zonewise.runtime.controller.expectations import GLANCE, Expectations
from zonewise.runtime.program.context import ControllerContext

SCHEDULED_TIMESTAMP = "batch.kubernetes.io/cronjob-scheduled-timestamp"
WORKERS = 4


class JobDraft(Object):
    """A Job to be created."""

    resource: ClassVar = Job.resource

    spec: msgspec.Raw = EMPTY_OBJECT


class CronJobController:
    """Creates Jobs when they are due."""

    def __init__(self, context: ControllerContext) -> None:
        self._client = context.client
        self._recorder = context.recorder
        self._clock = context.clock
        self._controller = context.controller("cronjobs", self._reconcile, workers=WORKERS)
        self.run = self._controller.run
        self._cron_jobs = self._controller.watches(CronJob, own_key)
        self._jobs = index_by_controller(self._controller.watches(Job, _cron_job_key))
        self._cron_job_expectations: Expectations[Key, CronJob] = Expectations(self._cron_jobs)
        self._job_expectations: Expectations[Key, Job] = Expectations(self._jobs)

    async def _reconcile(self, key: Key) -> float | None:
        cron_job = self._cron_jobs.get(key)
        if cron_job is None:
            self._cron_job_expectations.forget(key)
            self._job_expectations.forget(key)
            return None
        if not (self._cron_job_expectations.settled(key) and self._job_expectations.settled(key)):
            return GLANCE
        jobs = self._jobs.by(BY_CONTROLLER, cron_job.metadata.uid)
        plan = decide(cron_job, jobs, now=self._clock())
        for event in plan.events:
            self._record_event(cron_job, event)
        for job in plan.delete:
            await self._delete_job(key, cron_job, job)
        status = plan.status
        if plan.due is not None:
            created = await self._create_job(key, cron_job, plan.due)
            if created is not None:
                status = CronJobStatus(
                    active=(*status.active, ObjectReference.to(created)),
                    last_schedule_time=times.format_time(plan.due),
                    last_successful_time=status.last_successful_time,
                )
        await self._write_status(key, cron_job, status)
        return plan.requeue_after

    async def _create_job(self, key: Key, cron_job: CronJob, due: datetime) -> Object | None:
        """Create or get the Job of a scheduled time; None if the name is another owner's."""
        name = job_name(cron_job, due)
        try:
            created = await self._client.create(_draft_job(cron_job, name, due))
        except AlreadyExists:
            existing = await self._client.get(Job, name, cron_job.metadata.namespace)
            owner = existing.metadata.controller
            return existing if owner is not None and owner.uid == cron_job.metadata.uid else None
        except ZonewiseError as error:
            self._record_event(
                cron_job, PlannedEvent("FailedCreate", f"Error creating job: {error}", "Warning")
            )
            raise
        self._job_expectations.wrote(key, created)
        self._record_event(cron_job, PlannedEvent("SuccessfulCreate", f"Created job {name}"))
        return created

    async def _delete_job(self, key: Key, cron_job: CronJob, job: Job) -> None:
        meta = job.metadata
        try:
            await self._client.delete(
                Job, meta.name, meta.namespace, uid=meta.uid, propagation="Background"
            )
        except NotFound:
            return
        except ZonewiseError as error:
            event = PlannedEvent("FailedDelete", f"Deleted job: {error}", "Warning")
            self._record_event(cron_job, event)
            raise
        self._job_expectations.removed(key, job)
        self._record_event(cron_job, PlannedEvent("SuccessfulDelete", f"Deleted job {meta.name}"))

    async def _write_status(self, key: Key, cron_job: CronJob, status: CronJobStatus) -> None:
        if status == cron_job.status:
            return
        patch = {
            "active": status.active or None,
            "lastScheduleTime": status.last_schedule_time,
            "lastSuccessfulTime": status.last_successful_time,
        }
        self._cron_job_expectations.wrote(key, await self._client.patch_status(cron_job, patch))

    def _record_event(self, cron_job: CronJob, event: PlannedEvent) -> None:
        self._recorder.event(cron_job, event.reason, "Schedule", event.message, type=event.type)


def _draft_job(cron_job: CronJob, name: str, due: datetime) -> JobDraft:
    template = cron_job.spec.job_template
    zone = ZoneInfo(cron_job.spec.time_zone) if cron_job.spec.time_zone else UTC
    timestamp = due.astimezone(zone).isoformat().replace("+00:00", "Z")
    return JobDraft(
        metadata=ObjectMeta(
            name=name,
            namespace=cron_job.metadata.namespace,
            labels=template.metadata.labels,
            annotations={**template.metadata.annotations, SCHEDULED_TIMESTAMP: timestamp},
            owner_references=(owner_reference(cron_job),),
        ),
        spec=template.spec,
    )


def _cron_job_key(job: Job) -> Iterable[Key]:
    owner = job.metadata.controller
    if owner is None or owner.kind != CronJob.resource.kind:
        return ()
    return ((job.metadata.namespace, owner.name),)
