"""Kinds of the core group: Node, Namespace, Service; and node selectors.

Lean: what traffic, storage, disruption and scheduling decide on. Pods are in
``zonewise.api.objects.pod``.
"""

from __future__ import annotations

from typing import ClassVar

from zonewise.api.meta import Condition, IntOrString, Object, QuantityText
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct, field


class NodeSelectorRequirement(Struct):
    """One condition on a node: ``In NotIn Exists DoesNotExist Gt Lt``."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = ()


class NodeSelectorTerm(Struct):
    """Conditions that must all hold; an empty term selects nothing."""

    match_expressions: tuple[NodeSelectorRequirement, ...] | None = ()
    match_fields: tuple[NodeSelectorRequirement, ...] | None = ()


class NodeSelector(Struct):
    """Terms of which one must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] | None = ()


class Taint(Struct):
    """Repels pods that do not tolerate it from a node."""

    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class NodeSpec(Struct):
    """The specification of a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    pod_cidr: str = field(name="podCIDR", default="")
    pod_cidrs: tuple[str, ...] = field(name="podCIDRs", default=())
    provider_id: str = field(name="providerID", default="")


class NodeCondition(Struct):
    """One aspect of a node's state, with the time it was last reported."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_heartbeat_time: str | None = None
    last_transition_time: str | None = None


class NodeAddress(Struct):
    """An address and its type: ``InternalIP``, ``Hostname``…"""

    type: str = ""
    address: str = ""


class AttachedVolume(Struct):
    """A volume that is attached to a node."""

    name: str = ""
    device_path: str = ""


class NodeSystemInfo(Struct):
    """What runs on a node."""

    kubelet_version: str = ""
    boot_id: str = field(name="bootID", default="")
    """Another one after each boot; empty if it is not known."""


class NodeStatus(Struct):
    """What a node reports."""

    capacity: dict[str, QuantityText] = field(default_factory=dict)
    allocatable: dict[str, QuantityText] = field(default_factory=dict)
    conditions: tuple[NodeCondition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    node_info: NodeSystemInfo = NodeSystemInfo()
    volumes_in_use: tuple[str, ...] = ()
    volumes_attached: tuple[AttachedVolume, ...] = ()


class Node(Object):
    """A machine pods run on."""

    resource: ClassVar = Resource("", "v1", "Node", "nodes", namespaced=False)

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class NamespaceSpec(Struct):
    """The finalizers that a deleted namespace waits for."""

    finalizers: tuple[str, ...] = ()


class NamespaceStatus(Struct):
    """``Active`` or ``Terminating``."""

    phase: str = ""
    conditions: tuple[Condition, ...] = ()


class Namespace(Object):
    """A scope of names."""

    resource: ClassVar = Resource("", "v1", "Namespace", "namespaces", namespaced=False)

    spec: NamespaceSpec = NamespaceSpec()
    status: NamespaceStatus = NamespaceStatus()


class ServicePort(Struct):
    """A port of a Service."""

    name: str = ""
    protocol: str = "TCP"
    app_protocol: str | None = None
    port: int = 0
    target_port: IntOrString = 0
    node_port: int = 0


class ClientIPConfig(Struct):
    """How long a client keeps its endpoint."""

    timeout_seconds: int | None = None


class SessionAffinityConfig(Struct):
    """Settings of session affinity."""

    client_ip: ClientIPConfig | None = field(name="clientIP", default=None)


class ServiceSpec(Struct):
    """The specification of a Service."""

    type: str = ""
    selector: dict[str, str] | None = None
    ports: tuple[ServicePort, ...] = ()
    cluster_ip: str = field(name="clusterIP", default="")
    cluster_ips: tuple[str, ...] = field(name="clusterIPs", default=())
    external_ips: tuple[str, ...] = field(name="externalIPs", default=())
    external_name: str = ""
    ip_families: tuple[str, ...] = ()
    ip_family_policy: str | None = None
    session_affinity: str = ""
    session_affinity_config: SessionAffinityConfig | None = None
    publish_not_ready_addresses: bool = False
    internal_traffic_policy: str | None = None
    external_traffic_policy: str = ""
    health_check_node_port: int = 0
    load_balancer_class: str | None = None
    load_balancer_ip: str = field(name="loadBalancerIP", default="")
    load_balancer_source_ranges: tuple[str, ...] = ()
    allocate_load_balancer_node_ports: bool | None = None
    traffic_distribution: str | None = None
    traffic_policy: str | None = None
    topology_keys: tuple[str, ...] = ()


class LoadBalancerIngress(Struct):
    """An address at which a load balancer listens."""

    ip: str = ""
    ip_mode: str | None = None
    hostname: str = ""


class LoadBalancerStatus(Struct):
    """All addresses at which a load balancer listens."""

    ingress: tuple[LoadBalancerIngress, ...] = ()


class ServiceStatus(Struct):
    """The addresses of its load balancer, and its conditions."""

    load_balancer: LoadBalancerStatus = LoadBalancerStatus()
    conditions: tuple[Condition, ...] = ()


class Service(Object):
    """A name and an address for a set of pods.

    ``spec.trafficPolicy`` and ``spec.topologyKeys`` exist on the embedded cluster only.
    """

    resource: ClassVar = Resource("", "v1", "Service", "services")

    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus = ServiceStatus()
