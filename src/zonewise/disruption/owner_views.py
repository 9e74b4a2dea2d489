"""Lean views of workloads, as budgets read them: how many pods they request, and their owners.

Templates are left out where nothing reads them: fifty thousand pods have thousands of ReplicaSets.

A Job has no scale, and its controller replaces pods all the same. It requests ``parallelism`` pods,
and towards the end only as many as still have to succeed. If its pods were counted as they are, a
budget would follow each one that goes, and never hold the next. A Job without ``completions``
starts no pod after the first success; then, as for owners without a number, the existing pods are
expected.
"""

from __future__ import annotations

from typing import Any, ClassVar

from zonewise.api.meta import LabelSelector, Object
from zonewise.api.objects.apps import (
    DaemonSet,
    DeploymentStatus,
    DeploymentStrategy,
    StatefulSetOrdinals,
    StatefulSetStatus,
    StatefulSetStrategy,
)
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct
from zonewise.api.unstructured import Unstructured


class ScaleSpec(Struct):
    """How many pods are requested."""

    replicas: int | None = None
    selector: LabelSelector | None = None


class DeploymentScaleSpec(ScaleSpec):
    """The scale of a Deployment, and how its pods are replaced."""

    strategy: DeploymentStrategy = DeploymentStrategy()


class DeploymentScale(Object):
    """A Deployment, without its template."""

    resource: ClassVar = Resource("apps", "v1", "Deployment", "deployments")

    spec: DeploymentScaleSpec = DeploymentScaleSpec()
    status: DeploymentStatus = DeploymentStatus()


class ReplicaSetScale(Object):
    """A ReplicaSet, without its template."""

    resource: ClassVar = Resource("apps", "v1", "ReplicaSet", "replicasets")

    spec: ScaleSpec = ScaleSpec()


class ReplicationControllerScaleSpec(Struct):
    """How many pods a ReplicationController requests."""

    replicas: int | None = None


class ReplicationControllerScale(Object):
    """A ReplicationController, without its template."""

    resource: ClassVar = Resource("", "v1", "ReplicationController", "replicationcontrollers")

    spec: ReplicationControllerScaleSpec = ReplicationControllerScaleSpec()


class StatefulSetScaleSpec(ScaleSpec):
    """The scale of a StatefulSet, its ordinals, and how pods are replaced."""

    ordinals: StatefulSetOrdinals | None = None
    pod_management_policy: str = ""
    min_ready_seconds: int = 0
    update_strategy: StatefulSetStrategy = StatefulSetStrategy()


class StatefulSetScale(Object):
    """A StatefulSet, with the revision it updates to."""

    resource: ClassVar = Resource("apps", "v1", "StatefulSet", "statefulsets")

    spec: StatefulSetScaleSpec = StatefulSetScaleSpec()
    status: StatefulSetStatus = StatefulSetStatus()


OWNER_KINDS: tuple[type[Object], ...] = (
    DeploymentScale,
    ReplicaSetScale,
    StatefulSetScale,
    DaemonSet,
)
"""The kinds of owners that are watched; others are requested when a pod names one."""
FINISHED = frozenset({"Complete", "Failed", "SuccessCriteriaMet", "FailureTarget"})
"""Conditions of a Job that starts no more pods."""


def count_job_pods(job: Unstructured) -> int | None:
    """How many pods a Job should have now; None if it has no number."""
    parallelism = job.get("spec", "parallelism")
    if not _is_count(parallelism):
        return None
    if job.get("spec", "suspend") is True or _is_finished(job):
        return 0
    completions = job.get("spec", "completions")
    succeeded = job.get("status", "succeeded", default=0)
    if not _is_count(succeeded):
        return None
    if not _is_count(completions):
        return None if succeeded else int(parallelism)
    failed = _count_indexes(job.get("status", "failedIndexes", default=""))
    return int(max(0, min(parallelism, completions - succeeded - failed)))


def _is_finished(job: Unstructured) -> bool:
    conditions = job.get("status", "conditions", default=())
    return isinstance(conditions, list) and any(
        isinstance(condition, dict)
        and condition.get("type") in FINISHED
        and condition.get("status") == "True"
        for condition in conditions
    )


def _count_indexes(text: Any) -> int:
    """How many indexes a text like ``0,3-5`` names; what cannot be read names none."""
    count = 0
    for part in text.split(",") if isinstance(text, str) else ():
        first, _, last = part.partition("-")
        last = last or first
        if all(number.isascii() and number.isdigit() for number in (first, last)):
            count += max(0, int(last[:18]) - int(first[:18]) + 1)
    return count


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0
