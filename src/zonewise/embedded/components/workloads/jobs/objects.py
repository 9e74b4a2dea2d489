"""Jobs as their controllers read them: see ``zonewise.api.objects.apps``."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from zonewise.api.meta import Condition, LabelSelector, Object
from zonewise.api.objects.apps import EMPTY_OBJECT
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct
from zonewise.embedded.components.workloads.jobs.policies import FailurePolicy, SuccessPolicy


class JobSpec(Struct):
    """How many pods have to succeed, how many run at a time, and when the Job fails."""

    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str | None = None
    active_deadline_seconds: int | None = None
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    max_failed_indexes: int | None = None
    selector: LabelSelector | None = None
    template: msgspec.Raw = EMPTY_OBJECT
    ttl_seconds_after_finished: int | None = None
    suspend: bool | None = None
    pod_replacement_policy: str | None = None
    pod_failure_policy: FailurePolicy | None = None
    success_policy: SuccessPolicy | None = None
    managed_by: str | None = None


class UncountedPods(Struct):
    """Finished pods that are not in the counts yet, by uid."""

    succeeded: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class JobStatus(Struct):
    """The counts, times and conditions of a Job."""

    active: int = 0
    ready: int | None = None
    terminating: int | None = None
    succeeded: int = 0
    failed: int = 0
    start_time: str | None = None
    completion_time: str | None = None
    completed_indexes: str = ""
    failed_indexes: str | None = None
    uncounted_terminated_pods: UncountedPods | None = None
    conditions: tuple[Condition, ...] = ()


class Job(Object):
    """Runs pods until so many have succeeded."""

    resource: ClassVar = Resource("batch", "v1", "Job", "jobs")

    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()
