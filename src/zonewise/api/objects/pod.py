"""Pods and their templates.

Lean, and still the widest kind: what decides where a pod may run (scheduling), whether it takes
traffic (traffic), whether it may be disturbed (disruption), and which volumes it waits for
(storage). Of what only the kubelet reads, the commands are included; environments and probes are
left out.
"""

from __future__ import annotations

from typing import ClassVar

from zonewise.api.meta import LabelSelector, Object, ObjectMeta, QuantityText
from zonewise.api.objects.core import NodeSelector, NodeSelectorTerm
from zonewise.api.objects.storage import PersistentVolumeClaimTemplate
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct, field


class ContainerPort(Struct):
    """A port a container listens on; Services may name it."""

    name: str = ""
    container_port: int = 0
    protocol: str = "TCP"
    host_port: int = 0
    host_ip: str = field(name="hostIP", default="")


class ResourceRequirements(Struct):
    """What is requested of a node, and the limits."""

    requests: dict[str, QuantityText] = field(default_factory=dict)
    limits: dict[str, QuantityText] = field(default_factory=dict)


class Container(Struct):
    """A container: its resources, ports and command.

    ``restart_policy`` is ``Always`` on an init container that keeps running beside the others.
    """

    name: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    ports: tuple[ContainerPort, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str | None = None


class PreferredSchedulingTerm(Struct):
    """A preference for certain nodes, with a weight of 1 to 100."""

    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Struct):
    """Which nodes a pod requires, and which it prefers."""

    required: NodeSelector | None = field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )
    preferred: tuple[PreferredSchedulingTerm, ...] = field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=()
    )


class PodAffinityTerm(Struct):
    """The pods, in which namespaces, and the topology key whose domains count as near."""

    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    topology_key: str = ""
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(Struct):
    """A preference to be near certain pods, or away from them, with a weight of 1 to 100."""

    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Struct):
    """Which pods are required near a pod, or away from it, and which are preferred so."""

    required: tuple[PodAffinityTerm, ...] = field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=()
    )
    preferred: tuple[WeightedPodAffinityTerm, ...] = field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=()
    )


class Affinity(Struct):
    """Which nodes, and which other pods, attract a pod or repel it."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(Struct):
    """A taint the pod tolerates; an empty key with ``Exists`` tolerates all of them."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class TopologySpreadConstraint(Struct):
    """How unevenly matching pods may be spread over the domains of a topology key."""

    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: tuple[str, ...] = ()


class PodReadinessGate(Struct):
    """A condition that must be true before the pod counts as ready."""

    condition_type: str = ""


class PodSchedulingGate(Struct):
    """A name that must be removed before the pod is scheduled."""

    name: str = ""


class ClaimVolumeSource(Struct):
    """A volume that is a claim."""

    claim_name: str = ""
    read_only: bool = False


class EphemeralVolumeSource(Struct):
    """A volume whose claim is made with the pod."""

    volume_claim_template: PersistentVolumeClaimTemplate | None = None


class CSIVolumeSource(Struct):
    """A volume a CSI driver makes for this pod alone."""

    driver: str = ""
    read_only: bool | None = None
    volume_attributes: dict[str, str] = field(default_factory=dict)


class Volume(Struct):
    """A volume of a pod, as far as it limits where the pod can run."""

    name: str = ""
    persistent_volume_claim: ClaimVolumeSource | None = None
    ephemeral: EphemeralVolumeSource | None = None
    csi: CSIVolumeSource | None = None


class PodSpec(Struct):
    """The specification of a pod."""

    node_name: str = ""
    node_selector: dict[str, str] = field(default_factory=dict)
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    containers: tuple[Container, ...] | None = ()
    init_containers: tuple[Container, ...] = ()
    overhead: dict[str, QuantityText] = field(default_factory=dict)
    resources: ResourceRequirements | None = None
    volumes: tuple[Volume, ...] = ()
    readiness_gates: tuple[PodReadinessGate, ...] = ()
    scheduling_gates: tuple[PodSchedulingGate, ...] = ()
    scheduler_name: str = ""
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    service_account_name: str = ""
    hostname: str = ""
    subdomain: str = ""
    set_hostname_as_fqdn: bool | None = field(name="setHostnameAsFQDN", default=None)
    host_network: bool = False


class PodCondition(Struct):
    """One aspect of a pod's state."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    observed_generation: int = 0
    last_probe_time: str | None = None
    last_transition_time: str | None = None


class PodIP(Struct):
    """One address of a pod."""

    ip: str = ""


class HostIP(Struct):
    """One address of the pod's node."""

    ip: str = ""


class ContainerStateWaiting(Struct):
    """Why a container does not run yet."""

    reason: str = ""
    message: str = ""


class ContainerStateRunning(Struct):
    """Since when a container runs."""

    started_at: str | None = None


class ContainerStateTerminated(Struct):
    """How a container ended."""

    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None


class ContainerState(Struct):
    """Waiting, running or terminated: one of the three."""

    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(Struct):
    """The state of a container."""

    name: str = ""
    ready: bool = False
    started: bool | None = None
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodStatus(Struct):
    """What a kubelet reports about a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[PodCondition, ...] = ()
    pod_ip: str = field(name="podIP", default="")
    pod_ips: tuple[PodIP, ...] = field(name="podIPs", default=())
    host_ip: str = field(name="hostIP", default="")
    host_ips: tuple[HostIP, ...] = field(name="hostIPs", default=())
    start_time: str | None = None
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    nominated_node_name: str = ""
    qos_class: str = ""
    observed_generation: int = 0


class Pod(Object):
    """Containers that run together on one node."""

    resource: ClassVar = Resource("", "v1", "Pod", "pods")

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class PodTemplateSpec(Struct):
    """What a workload makes its pods from."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
