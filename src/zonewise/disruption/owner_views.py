"""Lean views of workloads, as budgets read them: how many pods they request, and their owners.

Templates are left out where nothing reads them: fifty thousand pods have thousands of ReplicaSets.
"""

from __future__ import annotations

from typing import ClassVar

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
