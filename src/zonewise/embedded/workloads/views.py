"""The workloads as their controllers read them.

A pod template is copied into pods and revisions, and a lean type would drop what it does not know
on the way. So templates, and whatever else is only passed on, stay the JSON text they came as
(``msgspec.Raw``): nothing is lost, and nothing is decoded that nobody looks into. All other members
are the lean types of ``zonewise.api``. As everywhere, a view is never sent back as a whole.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import msgspec

from zonewise.api.apps import (
    DaemonSetStatus,
    DaemonSetStrategy,
    DeploymentStatus,
    DeploymentStrategy,
    ReplicaSetStatus,
    StatefulSetOrdinals,
    StatefulSetRetention,
    StatefulSetStatus,
    StatefulSetStrategy,
)
from zonewise.api.meta import Condition, LabelSelector, Object, ObjectMeta
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct, field
from zonewise.embedded.workloads.jobs_policies import FailurePolicy, SuccessPolicy

EMPTY = msgspec.Raw(b"{}")


class Template(Struct):
    """A pod template, opened as far as its metadata."""

    metadata: ObjectMeta = ObjectMeta()
    spec: msgspec.Raw = EMPTY


_TEMPLATES = msgspec.json.Decoder(Template)


def opened(template: msgspec.Raw) -> Template:
    """What is in a template."""
    return _TEMPLATES.decode(template)


class DeploymentSpec(Struct):
    """How many pods of which template, and how to change them."""

    replicas: int = 1
    selector: LabelSelector = LabelSelector()
    template: msgspec.Raw = EMPTY
    strategy: DeploymentStrategy = DeploymentStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None
    paused: bool = False
    progress_deadline_seconds: int | None = None


class Deployment(Object):
    """Interchangeable pods, changed gradually."""

    resource: ClassVar = Resource("apps", "v1", "Deployment", "deployments")

    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class ReplicaSetSpec(Struct):
    """How many pods of which template."""

    replicas: int = 1
    selector: LabelSelector = LabelSelector()
    template: msgspec.Raw = EMPTY
    min_ready_seconds: int = 0


class ReplicaSet(Object):
    """A number of equal pods."""

    resource: ClassVar = Resource("apps", "v1", "ReplicaSet", "replicasets")

    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()


class ReplicationControllerSpec(ReplicaSetSpec):
    """The same as for a ReplicaSet, but the selector on the wire is plain labels."""

    selector: LabelSelector = field(name="", default=LabelSelector())
    labels: dict[str, str] = field(name="selector", default_factory=dict)

    def __post_init__(self) -> None:
        """Make the selector from the labels; whoever reads it need not know the difference."""
        msgspec.structs.force_setattr(self, "selector", LabelSelector(match_labels=self.labels))


class ReplicationController(ReplicaSet):
    """What a ReplicaSet was before it had a better name."""

    resource: ClassVar = Resource("", "v1", "ReplicationController", "replicationcontrollers")

    spec: ReplicationControllerSpec = ReplicationControllerSpec()


class StatefulSetSpec(Struct):
    """How many pods with names of their own, and how to change them."""

    replicas: int = 1
    selector: LabelSelector = LabelSelector()
    template: msgspec.Raw = EMPTY
    volume_claim_templates: tuple[msgspec.Raw, ...] = ()
    service_name: str = ""
    pod_management_policy: str = ""
    update_strategy: StatefulSetStrategy = StatefulSetStrategy()
    revision_history_limit: int | None = None
    min_ready_seconds: int = 0
    persistent_volume_claim_retention_policy: StatefulSetRetention | None = None
    ordinals: StatefulSetOrdinals | None = None


class StatefulSet(Object):
    """Pods with names and volumes of their own."""

    resource: ClassVar = Resource("apps", "v1", "StatefulSet", "statefulsets")

    spec: StatefulSetSpec = StatefulSetSpec()
    status: StatefulSetStatus = StatefulSetStatus()


class DaemonSetSpec(Struct):
    """Which template on which nodes, and how to change the pods."""

    selector: LabelSelector = LabelSelector()
    template: msgspec.Raw = EMPTY
    update_strategy: DaemonSetStrategy = DaemonSetStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None


class DaemonSet(Object):
    """One pod on every node that fits."""

    resource: ClassVar = Resource("apps", "v1", "DaemonSet", "daemonsets")

    spec: DaemonSetSpec = DaemonSetSpec()
    status: DaemonSetStatus = DaemonSetStatus()


class ControllerRevision(Object):
    """One state a StatefulSet or DaemonSet was in; ``data`` is the patch that brings it back."""

    resource: ClassVar = Resource("apps", "v1", "ControllerRevision", "controllerrevisions")

    data: msgspec.Raw = EMPTY
    revision: int = 0


class JobSpec(Struct):
    """How many pods shall succeed, how many at a time, and when to give up."""

    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str | None = None
    active_deadline_seconds: int | None = None
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    max_failed_indexes: int | None = None
    selector: LabelSelector | None = None
    template: msgspec.Raw = EMPTY
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
    """How far a Job is."""

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
    """Pods that run until so many have succeeded."""

    resource: ClassVar = Resource("batch", "v1", "Job", "jobs")

    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


Workload: TypeAlias = (
    Deployment | ReplicaSet | ReplicationController | StatefulSet | DaemonSet | Job
)
