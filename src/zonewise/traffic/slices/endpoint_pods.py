"""Which pods are endpoints of a Service, and the endpoint that is written for each.

A pod counts while it has an address and has not ended; terminating pods count, because proxies
fall back to them. ``serving`` is its Ready condition, ``ready`` is that and not terminating; a
Service that publishes addresses that are not ready marks all of them *ready*.

A pod on a node that does not exist is left out until the node exists or the pod is deleted, and is
returned to the caller, which tries again; a Service that publishes addresses that are not ready has
it without a zone.

A named target port is looked for in each pod: containers, then init containers that keep running
beside them, by name and protocol. Pods therefore differ in their ports, and only pods with equal
ports can share a slice: that is their ``group``.

Everything here is derived from a pod, a zone and the Service's spec, so it is cached per pod: in a
Service of a thousand pods one change costs one pod.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec

from zonewise.api.meta import ObjectReference
from zonewise.api.objects.core import Service, ServicePort, ServiceSpec
from zonewise.api.objects.discovery import Endpoint, EndpointConditions, EndpointPort
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_finished, ready_condition
from zonewise.traffic.endpoint import Hint, TrafficEndpoint
from zonewise.traffic.slices.identity import IPV4, IPV6

PortGroup = frozenset[EndpointPort]
Ports = tuple[EndpointPort, ...]


class PodEndpoint:
    """A pod as an endpoint of one family, and the last hint it was written with."""

    __slots__ = ("_hint", "_written", "endpoint", "name", "traffic_endpoint")

    def __init__(self, name: str, endpoint: Endpoint, traffic_endpoint: TrafficEndpoint) -> None:
        self.name = name
        self.endpoint = endpoint
        self.traffic_endpoint = traffic_endpoint
        self._hint: Hint | None = None
        self._written = endpoint

    def with_hint(self, hint: Hint | None) -> Endpoint:
        """The endpoint with a hint."""
        if hint != self._hint:
            self._hint = hint
            hints = None if hint is None else hint.to_object()
            self._written = msgspec.structs.replace(self.endpoint, hints=hints)
        return self._written


@dataclass(frozen=True, slots=True)
class EndpointPod:
    """What one pod contributes to a Service."""

    pod: Pod
    zone: str | None
    ports: Ports
    group: PortGroup
    families: Mapping[str, PodEndpoint]
    ready_since: str
    """When its readiness changed last, "" if unknown."""


@dataclass(slots=True)
class EndpointPods:
    """The pods of one Service by name, cached while they do not change."""

    spec: ServiceSpec = field(default_factory=ServiceSpec)
    service: str = ""
    ports: Ports | None = None
    group: PortGroup = frozenset()
    by_name: dict[str, EndpointPod] = field(default_factory=dict)

    def update(
        self, service: Service, pods: Iterable[Pod], zones: Mapping[str, str]
    ) -> tuple[list[EndpointPod], list[Pod]]:
        """The endpoint pods, and the pods that are left out because their node does not exist."""
        spec, name = service.spec, service.metadata.name
        if self.spec != spec or self.service != name:
            self.spec, self.service, self.by_name = spec, name, {}
            self.ports = _numbered_ports(spec)
            self.group = frozenset(self.ports or ())
        cached, self.by_name = self.by_name, {}
        without_node: list[Pod] = []
        for pod in pods:
            pod_name, node = pod.metadata.name, pod.spec.node_name
            zone = zones.get(node)
            endpoint_pod = cached.get(pod_name)
            if endpoint_pod is None or endpoint_pod.pod is not pod or endpoint_pod.zone != zone:
                if not has_endpoint(pod):
                    continue
                if zone is None and not spec.publish_not_ready_addresses:
                    without_node.append(pod)
                    continue
                endpoint_pod = self._make_endpoint_pod(service, pod, zone)
            self.by_name[pod_name] = endpoint_pod
        return list(self.by_name.values()), without_node

    def _make_endpoint_pod(self, service: Service, pod: Pod, zone: str | None) -> EndpointPod:
        if self.ports is None:
            ports = _ports_of_pod(service.spec, pod)
            group = frozenset(ports)
        else:
            ports, group = self.ports, self.group
        condition = ready_condition(pod)
        serving = condition is not None and condition.status == "True"
        ready_since = (condition and condition.last_transition_time) or ""
        terminating = pod.metadata.deletion_timestamp is not None
        ready = service.spec.publish_not_ready_addresses or (serving and not terminating)
        meta = pod.metadata
        hostname = pod.spec.hostname
        has_hostname = hostname and pod.spec.subdomain == service.metadata.name
        families: dict[str, PodEndpoint] = {}
        for family, addresses in _addresses_by_family(pod).items():
            endpoint = Endpoint(
                addresses=addresses,
                conditions=EndpointConditions(
                    ready=ready, serving=serving, terminating=terminating
                ),
                hostname=hostname if has_hostname else None,
                node_name=pod.spec.node_name or None,
                zone=zone or None,
                target_ref=ObjectReference(
                    kind="Pod", namespace=meta.namespace, name=meta.name, uid=meta.uid
                ),
            )
            traffic_endpoint = TrafficEndpoint(
                addresses[0], zone or "", pod.spec.node_name, ready, serving, terminating
            )
            families[family] = PodEndpoint(meta.name, endpoint, traffic_endpoint)
        return EndpointPod(pod, zone, ports, group, families, ready_since)


def has_endpoint(pod: Pod) -> bool:
    """Whether a pod has an address and has not ended."""
    status = pod.status
    return bool(status.pod_ips or status.pod_ip) and not is_pod_finished(pod)


def _addresses_by_family(pod: Pod) -> dict[str, tuple[str, ...]]:
    """The pod's addresses by family, in canonical form."""
    by_family: dict[str, tuple[str, ...]] = {}
    for entry in pod.status.pod_ips:
        family, address = _parse_address(entry.ip)
        if family:
            by_family[family] = (*by_family.get(family, ()), address)
    return by_family


@lru_cache(maxsize=1 << 16)
def _parse_address(text: str) -> tuple[str, str]:
    """The family and the canonical form of an address; "" for text that is not an address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return "", ""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    canonical = str(mapped or address)
    return IPV6 if ":" in canonical else IPV4, canonical


def _numbered_ports(spec: ServiceSpec) -> Ports | None:
    """The ports of every pod, or None if they are to be looked for by name."""
    if any(isinstance(port.target_port, str) for port in spec.ports):
        return None
    return tuple(_endpoint_port(port, port.target_port) for port in spec.ports)


def _ports_of_pod(spec: ServiceSpec, pod: Pod) -> Ports:
    numbers = ((port, _target_port(port, pod)) for port in spec.ports)
    return tuple(_endpoint_port(port, number) for port, number in numbers if number is not None)


def _endpoint_port(port: ServicePort, number: int | str) -> EndpointPort:
    return EndpointPort(
        name=port.name, protocol=port.protocol, port=int(number), app_protocol=port.app_protocol
    )


def _target_port(port: ServicePort, pod: Pod) -> int | None:
    if isinstance(port.target_port, int):
        return port.target_port
    init_containers = pod.spec.init_containers
    sidecars = (item for item in init_containers if item.restart_policy == "Always")
    for container in (*(pod.spec.containers or ()), *sidecars):
        for container_port in container.ports:
            if container_port.name == port.target_port and container_port.protocol == port.protocol:
                return container_port.container_port
    return None
