"""Workloads: Deployment, ReplicaSet, StatefulSet, DaemonSet and their relatives.

A pod template is copied into pods and revisions, and a lean type would drop unknown fields. So
templates, and whatever else is only passed on, stay the JSON text they were received as
(``msgspec.Raw``): nothing is lost, and nothing is decoded that is not read.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from zonewise.api.meta import Condition, IntOrString, LabelSelector, Object, ObjectMeta
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct, field

EMPTY_OBJECT = msgspec.Raw(b"{}")


class RawPodTemplate(Struct):
    """A pod template of which only the metadata are decoded."""

    metadata: ObjectMeta = ObjectMeta()
    spec: msgspec.Raw = EMPTY_OBJECT


_TEMPLATE_DECODER = msgspec.json.Decoder(RawPodTemplate)


def decode_pod_template(template: msgspec.Raw) -> RawPodTemplate:
    """The metadata of a template, and its spec undecoded."""
    return _TEMPLATE_DECODER.decode(template)


class WorkloadCondition(Condition):
    """One aspect of a workload's state; ``last_update_time`` moves while the status stays."""

    last_update_time: str | None = None


class RollingUpdateDeployment(Struct):
    """How many pods may be missing and how many may be too many during a rollout."""

    max_unavailable: IntOrString | None = None
    max_surge: IntOrString | None = None


class DeploymentStrategy(Struct):
    """``RollingUpdate`` or ``Recreate``."""

    type: str = ""
    rolling_update: RollingUpdateDeployment | None = None


class DeploymentSpec(Struct):
    """How many pods of which template, and how to change them."""

    replicas: int = 1
    selector: LabelSelector = LabelSelector()
    template: msgspec.Raw = EMPTY_OBJECT
    strategy: DeploymentStrategy = DeploymentStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None
    paused: bool = False
    progress_deadline_seconds: int | None = None


class DeploymentStatus(Struct):
    """The progress of a Deployment."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    terminating_replicas: int | None = None
    collision_count: int | None = None
    conditions: tuple[WorkloadCondition, ...] = ()


class Deployment(Object):
    """Interchangeable pods, changed gradually."""

    resource: ClassVar = Resource("apps", "v1", "Deployment", "deployments")

    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class ReplicaSetSpec(Struct):
    """How many pods of which template."""

    replicas: int = 1
    selector: LabelSelector = LabelSelector()
    template: msgspec.Raw = EMPTY_OBJECT
    min_ready_seconds: int = 0


class ReplicaSetStatus(Struct):
    """How many pods there are."""

    observed_generation: int = 0
    replicas: int = 0
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    terminating_replicas: int | None = None
    conditions: tuple[Condition, ...] = ()


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
        """Make the selector from the labels, so that readers treat both kinds alike."""
        msgspec.structs.force_setattr(self, "selector", LabelSelector(match_labels=self.labels))


class ReplicationController(ReplicaSet):
    """The predecessor of the ReplicaSet."""

    resource: ClassVar = Resource("", "v1", "ReplicationController", "replicationcontrollers")

    spec: ReplicationControllerSpec = ReplicationControllerSpec()


class RollingUpdateStatefulSet(Struct):
    """From which ordinal on pods are updated, and how many may be missing meanwhile."""

    partition: int | None = None
    max_unavailable: IntOrString | None = None


class StatefulSetStrategy(Struct):
    """``RollingUpdate`` or ``OnDelete``."""

    type: str = ""
    rolling_update: RollingUpdateStatefulSet | None = None


class StatefulSetOrdinals(Struct):
    """The first ordinal."""

    start: int = 0


class StatefulSetRetention(Struct):
    """Whether claims are kept: ``Retain`` or ``Delete``."""

    when_deleted: str = ""
    when_scaled: str = ""


class StatefulSetSpec(Struct):
    """How many pods with names of their own, and how to change them."""

    replicas: int = 1
    selector: LabelSelector = LabelSelector()
    template: msgspec.Raw = EMPTY_OBJECT
    volume_claim_templates: tuple[msgspec.Raw, ...] = ()
    service_name: str = ""
    pod_management_policy: str = ""
    update_strategy: StatefulSetStrategy = StatefulSetStrategy()
    revision_history_limit: int | None = None
    min_ready_seconds: int = 0
    persistent_volume_claim_retention_policy: StatefulSetRetention | None = None
    ordinals: StatefulSetOrdinals | None = None


class StatefulSetStatus(Struct):
    """The progress of a StatefulSet."""

    observed_generation: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    current_replicas: int = 0
    updated_replicas: int = 0
    available_replicas: int = 0
    current_revision: str = ""
    update_revision: str = ""
    collision_count: int | None = None
    conditions: tuple[Condition, ...] = ()


class StatefulSet(Object):
    """Pods with names and volumes of their own."""

    resource: ClassVar = Resource("apps", "v1", "StatefulSet", "statefulsets")

    spec: StatefulSetSpec = StatefulSetSpec()
    status: StatefulSetStatus = StatefulSetStatus()


class RollingUpdateDaemonSet(Struct):
    """How many nodes may miss their pod, or have two, during a rollout."""

    max_unavailable: IntOrString | None = None
    max_surge: IntOrString | None = None


class DaemonSetStrategy(Struct):
    """``RollingUpdate`` or ``OnDelete``."""

    type: str = ""
    rolling_update: RollingUpdateDaemonSet | None = None


class DaemonSetSpec(Struct):
    """Which template on which nodes, and how to change the pods."""

    selector: LabelSelector = LabelSelector()
    template: msgspec.Raw = EMPTY_OBJECT
    update_strategy: DaemonSetStrategy = DaemonSetStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None


class DaemonSetStatus(Struct):
    """The progress of a DaemonSet."""

    observed_generation: int = 0
    current_number_scheduled: int = 0
    number_misscheduled: int = 0
    desired_number_scheduled: int = 0
    number_ready: int = 0
    updated_number_scheduled: int = 0
    number_available: int = 0
    number_unavailable: int = 0
    collision_count: int | None = None
    conditions: tuple[Condition, ...] = ()


class DaemonSet(Object):
    """One pod on every node that fits."""

    resource: ClassVar = Resource("apps", "v1", "DaemonSet", "daemonsets")

    spec: DaemonSetSpec = DaemonSetSpec()
    status: DaemonSetStatus = DaemonSetStatus()


class ControllerRevision(Object):
    """A past state of a StatefulSet or DaemonSet; ``data`` is the patch that restores it."""

    resource: ClassVar = Resource("apps", "v1", "ControllerRevision", "controllerrevisions")

    data: msgspec.Raw = EMPTY_OBJECT
    revision: int = 0
