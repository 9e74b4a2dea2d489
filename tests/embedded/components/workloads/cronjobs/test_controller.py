"""CronJobs: their schedule, the Jobs they create, and those they delete."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.embedded.virtual_cluster import VirtualCluster, until, virtual_cluster

from zonewise.api.codec import decode
from zonewise.api.meta import Condition, ObjectMeta, ObjectReference
from zonewise.api.values import times
from zonewise.api.values.cron import parse_schedule
from zonewise.embedded.components.kubelet.kubelets import Kubelets
from zonewise.embedded.components.nodelifecycle.controller import NodeLifecycleController
from zonewise.embedded.components.scheduler.scheduler import Scheduler
from zonewise.embedded.components.workloads.cronjobs.controller import CronJobController
from zonewise.embedded.components.workloads.cronjobs.plan import (
    CronJob,
    CronJobSpec,
    CronJobStatus,
    decide,
    job_name,
)
from zonewise.embedded.components.workloads.jobs.controller import JobController
from zonewise.embedded.components.workloads.jobs.objects import Job, JobStatus

NOON = datetime(2025, 6, 15, 12, 0, 30, tzinfo=UTC)
"""A Sunday."""


@pytest.mark.parametrize(
    ("schedule", "zone", "after", "expected"),
    [
        ("* * * * *", "", "2025-06-15T12:00:30Z", "2025-06-15T12:01:00Z"),
        ("* * * * *", "", "2025-06-15T12:01:00Z", "2025-06-15T12:02:00Z"),
        ("*/20 3-5 * * *", "", "2025-06-15T05:41:00Z", "2025-06-16T03:00:00Z"),
        ("0 0 1 jan *", "", "2025-06-15T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("0 9 * * mon-fri", "", "2025-06-15T12:00:00Z", "2025-06-16T09:00:00Z"),
        ("0 0 13 * fri", "", "2025-06-13T00:00:00Z", "2025-06-20T00:00:00Z"),
        ("0 0 29 2 *", "", "2025-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
        ("5/20 * * * *", "", "2025-06-15T12:46:00Z", "2025-06-15T13:05:00Z"),
        ("@weekly", "", "2025-06-15T00:00:00Z", "2025-06-22T00:00:00Z"),
        ("@every 1h30m", "", "2025-06-15T12:00:00Z", "2025-06-15T13:30:00Z"),
        ("@every " + "9" * 400 + "h", "", "2025-06-15T12:00:00Z", "2030-06-19T12:00:00Z"),
        ("0 12 * * *", "Europe/Berlin", "2025-06-15T00:00:00Z", "2025-06-15T10:00:00Z"),
        ("TZ=Asia/Tokyo 0 0 * * *", "", "2025-06-15T12:00:00Z", "2025-06-15T15:00:00Z"),
        # The clocks of Berlin leave out 02:30 on 30 March and repeat it on 26 October.
        ("30 2 * * *", "Europe/Berlin", "2025-03-29T12:00:00Z", "2025-03-31T00:30:00Z"),
        ("30 2 * * *", "Europe/Berlin", "2025-10-25T12:00:00Z", "2025-10-26T00:30:00Z"),
        ("30 2 * * *", "Europe/Berlin", "2025-10-26T00:30:00Z", "2025-10-26T01:30:00Z"),
    ],
)
def test_when_a_schedule_is_due(schedule: str, zone: str, after: str, expected: str) -> None:
    """A schedule is due at its next time after another, in its own time zone."""
    moment = parse_schedule(schedule, zone).next(times.parse(after))
    assert moment is not None
    assert times.format_time(moment) == expected


def test_a_day_that_never_comes_is_never_due() -> None:
    """The 31st of February has no next time."""
    assert parse_schedule("0 0 31 2 *", "").next(NOON) is None


def cron(schedule: str = "* * * * *", *, last: str = "", **spec: Any) -> CronJob:
    """A CronJob that was last scheduled when it was created."""
    return CronJob(
        metadata=ObjectMeta(
            name="tick", namespace="default", uid="c", creation_timestamp="2025-06-15T11:59:10Z"
        ),
        spec=CronJobSpec(schedule=schedule, **spec),
        status=CronJobStatus(last_schedule_time=last or None),
    )


def job(name: str, *, end: str = "", at: str = "2025-06-15T12:00:01Z") -> Job:
    """A Job of the CronJob."""
    conditions = (Condition(type=end, status="True"),) if end else ()
    return Job(
        metadata=ObjectMeta(name=name, namespace="default", uid=name),
        status=JobStatus(conditions=conditions, start_time=at, completion_time=at if end else None),
    )


def active(cron_job: CronJob, *jobs: Job) -> CronJob:
    """The CronJob with these active Jobs."""
    status = msgspec.structs.replace(cron_job.status, active=tuple(map(ObjectReference.to, jobs)))
    return msgspec.structs.replace(cron_job, status=status)


def test_a_due_job_is_made_once() -> None:
    """A Job is created for the last full minute, and not again for the same."""
    steps = decide(cron(), [], now=NOON.timestamp())
    assert steps.due == NOON.replace(second=0)
    assert steps.requeue_after == pytest.approx(30.1)
    done = decide(cron(last="2025-06-15T12:00:00Z"), [], now=NOON.timestamp())
    assert done.due is None
    assert done.requeue_after == pytest.approx(30.1)


def test_only_the_latest_missed_moment_counts() -> None:
    """After days without a controller one Job is created, with a warning if many were missed."""
    steps = decide(cron(last="2025-06-10T00:00:00Z"), [], now=NOON.timestamp())
    assert steps.due == NOON.replace(second=0)
    assert [note.reason for note in steps.events] == ["TooManyMissedTimes"]
    late = cron("0 6 * * *", last="2025-06-14T06:00:00Z", starting_deadline_seconds=600)
    assert decide(late, [], now=NOON.timestamp()).due is None


def test_a_suspended_or_deleted_cronjob_creates_nothing() -> None:
    """A suspended or deleted CronJob creates no Job."""
    steps = decide(cron(suspend=True), [], now=NOON.timestamp())
    assert (steps.due, steps.requeue_after) == (None, None)


@pytest.mark.parametrize(
    ("policy", "starts", "removed"),
    [("Allow", True, []), ("Forbid", False, []), ("Replace", True, ["tick-1"])],
)
def test_concurrency(policy: str, starts: bool, removed: list[str]) -> None:
    """The policy decides about a new Job while another one still runs."""
    running = job("tick-1")
    steps = decide(
        active(cron(concurrency_policy=policy), running), [running], now=NOON.timestamp()
    )
    assert (steps.due is not None) is starts
    assert [job.metadata.name for job in steps.delete] == removed


def test_finished_jobs_leave_the_status_and_the_oldest_go() -> None:
    """Successful and failed Jobs have separate limits."""
    ended = [
        job("a", end="Complete", at="2025-06-15T11:00:00Z"),
        job("b", end="Complete", at="2025-06-15T11:01:00Z"),
        job("c", end="Failed", at="2025-06-15T11:02:00Z"),
    ]
    limits: dict[str, Any] = {"successful_jobs_history_limit": 1, "failed_jobs_history_limit": 1}
    steps = decide(active(cron(suspend=True, **limits), *ended), ended, now=NOON.timestamp())
    assert [job.metadata.name for job in steps.delete] == ["a"]
    assert steps.status.active == ()
    assert steps.status.last_successful_time == "2025-06-15T11:01:00Z"
    assert {note.reason for note in steps.events} == {"SawCompletedJob"}


def test_missing_and_unexpected_jobs_are_reported() -> None:
    """A deleted Job is removed from the status; an unexpected one is reported."""
    steps = decide(active(cron(suspend=True), job("a")), [job("b")], now=NOON.timestamp())
    assert [note.reason for note in steps.events] == ["UnexpectedJob", "MissingJob"]
    assert steps.status.active == ()


def test_an_unknown_time_zone_is_reported() -> None:
    """A CronJob with an unknown time zone creates nothing."""
    steps = decide(cron(time_zone="Nowhere/Town"), [], now=NOON.timestamp())
    assert [note.reason for note in steps.events] == ["UnknownTimeZone"]
    assert steps.due is None


def test_jobs_are_named_by_the_minute() -> None:
    """A second attempt for the same minute has the same name."""
    assert job_name(cron(), NOON) == f"tick-{int(NOON.timestamp()) // 60}"


async def post(cluster: VirtualCluster, body: Any) -> CronJob:
    """Create a CronJob."""
    path = CronJob.resource.path("default")
    answer = await cluster.client.raw("POST", path, body=msgspec.json.encode(body))
    return decode(CronJob, answer.body)


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_cronjob_over_time() -> None:
    """Every minute a Job runs to its end; three are kept, and the status has the last times."""
    parts = {
        "kubelets": Kubelets,
        "node-controller": NodeLifecycleController,
        "default-scheduler": Scheduler,
        "job-controller": JobController,
        "cronjob-controller": CronJobController,
    }
    container = {"name": "main", "image": "app:1"}
    pod = {"restartPolicy": "Never", "containers": [container]}
    template = {"metadata": {"labels": {"app": "tick"}}, "spec": {"template": {"spec": pod}}}
    body = {
        "metadata": {"name": "tick"},
        "spec": {"schedule": "* * * * *", "jobTemplate": template},
    }
    async with virtual_cluster(parts) as cluster:
        await cluster.client.raw("POST", "/api/v1/nodes", body=b'{"metadata":{"name":"n1"}}')
        jobs = cluster.program.cache.store(Job)
        created = await post(cluster, body)
        names: set[str] = set()
        jobs.on_change(lambda _, new: names.add(new.metadata.name) if new else None)
        await asyncio.sleep(370)
        await until(lambda: len(names) == 6 and len(jobs) == 3)
        newest_names = sorted(names)[-3:]
        assert sorted(job.metadata.name for job in jobs) == newest_names
        cron_job = await cluster.client.get(CronJob, "tick", "default")
        assert cron_job.status.active == ()
        assert cron_job.status.last_successful_time is not None
        newest = jobs.get(("default", newest_names[-1]))
        assert newest is not None
        moment = newest.metadata.annotations["batch.kubernetes.io/cronjob-scheduled-timestamp"]
        assert moment == cron_job.status.last_schedule_time
        assert newest.metadata.labels["app"] == "tick"
        await cluster.client.delete(CronJob, "tick", "default", uid=created.metadata.uid)
        await until(lambda: len(jobs) == 0)
