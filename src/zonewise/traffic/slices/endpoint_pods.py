"""Which pods are endpoints of a Service, and what each is written as.

A pod counts while it has an address and has not ended; terminating pods count, because proxies
fall back to them. ``serving`` is its Ready condition, ``ready`` is that and not terminating; a
Service that publishes addresses that are not ready says *ready* for all of them.

A pod on a node that does not exist is left out until the node exists or the pod is deleted, and is
returned to the caller, which tries again; a Service that publishes everything has it without a
zone.

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
from zonewise.api.objects.pod_state import finished, readiness
from zonewise.traffic.endpoint import Hint, TrafficEndpoint
from zonewise.traffic.slices.identity import IPV4, IPV6

PortGroup = frozenset[EndpointPort]
Ports = tuple[EndpointPort, ...]


class Candidate:
    """A pod as an endpoint of one family, and the last hint it was written with."""

    __slots__ = ("_hint", "_written", "endpoint", "name", "target")

    def __init__(self, name: str, endpoint: Endpoint, target: TrafficEndpoint) -> None:
        self.name = name
        self.endpoint = endpoint
        self.target = target
        self._hint: Hint | None = None
        self._written = endpoint

    def written(self, hint: Hint | None) -> Endpoint:
        """The endpoint with a hint."""
        if hint != self._hint:
            self._hint = hint
            hints = None if hint is None else hint.written()
            self._written = msgspec.structs.replace(self.endpoint, hints=hints)
        return self._written


@dataclass(frozen=True, slots=True)
class Member:
    """What one pod contributes to a Service."""

    pod: Pod
    zone: str | None
    ports: Ports
    group: PortGroup
    families: Mapping[str, Candidate]
    since: str
    """When its readiness changed last, "" if never."""


@dataclass(slots=True)
class Members:
    """What is remembered about the pods of one Service, by name."""

    spec: ServiceSpec = field(default_factory=ServiceSpec)
    service: str = ""
    ports: Ports | None = None
    group: PortGroup = frozenset()
    known: dict[str, Member] = field(default_factory=dict)

    def update(
        self, service: Service, pods: Iterable[Pod], zones: Mapping[str, str]
    ) -> tuple[list[Member], list[Pod]]:
        """The members, and the pods that are left out because their node does not exist."""
        spec, name = service.spec, service.metadata.name
        if self.spec != spec or self.service != name:
            self.spec, self.service, self.known = spec, name, {}
            self.ports = _fixed_ports(spec)
            self.group = frozenset(self.ports or ())
        known, self.known = self.known, {}
        lost: list[Pod] = []
        for pod in pods:
            pod_name, node = pod.metadata.name, pod.spec.node_name
            zone = zones.get(node)
            member = known.get(pod_name)
            if member is None or member.pod is not pod or member.zone != zone:
                if not counts(pod):
                    continue
                if zone is None and not spec.publish_not_ready_addresses:
                    lost.append(pod)
                    continue
                member = self._member(service, pod, zone)
            self.known[pod_name] = member
        return list(self.known.values()), lost

    def _member(self, service: Service, pod: Pod, zone: str | None) -> Member:
        if self.ports is None:
            ports = _ports(service.spec, pod)
            group = frozenset(ports)
        else:
            ports, group = self.ports, self.group
        condition = readiness(pod)
        status = condition is not None and condition.status == "True"
        since = (condition and condition.last_transition_time) or ""
        terminating = pod.metadata.deletion_timestamp is not None
        ready = service.spec.publish_not_ready_addresses or (status and not terminating)
        meta = pod.metadata
        hostname = pod.spec.hostname
        named = hostname and pod.spec.subdomain == service.metadata.name
        families: dict[str, Candidate] = {}
        for family, addresses in _addresses(pod).items():
            endpoint = Endpoint(
                addresses=addresses,
                conditions=EndpointConditions(ready=ready, serving=status, terminating=terminating),
                hostname=hostname if named else None,
                node_name=pod.spec.node_name or None,
                zone=zone or None,
                target_ref=ObjectReference(
                    kind="Pod", namespace=meta.namespace, name=meta.name, uid=meta.uid
                ),
            )
            target = TrafficEndpoint(
                addresses[0], zone or "", pod.spec.node_name, ready, status, terminating
            )
            families[family] = Candidate(meta.name, endpoint, target)
        return Member(pod, zone, ports, group, families, since)


def counts(pod: Pod) -> bool:
    """Whether a pod has an address and has not ended."""
    status = pod.status
    return bool(status.pod_ips or status.pod_ip) and not finished(pod)


def _addresses(pod: Pod) -> dict[str, tuple[str, ...]]:
    """The pod's addresses by family, each in the one form that is compared."""
    found: dict[str, tuple[str, ...]] = {}
    for entry in pod.status.pod_ips:
        family, address = _canonical(entry.ip)
        if family:
            found[family] = (*found.get(family, ()), address)
    return found


@lru_cache(maxsize=1 << 16)
def _canonical(text: str) -> tuple[str, str]:
    """The family and the one form of an address; "" for what is none."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return "", ""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    shown = str(mapped or address)
    return IPV6 if ":" in shown else IPV4, shown


def _fixed_ports(spec: ServiceSpec) -> Ports | None:
    """The ports of every pod, or None if they are to be looked for by name."""
    if any(isinstance(port.target_port, str) for port in spec.ports):
        return None
    return tuple(_port(port, port.target_port) for port in spec.ports)


def _ports(spec: ServiceSpec, pod: Pod) -> Ports:
    found = ((port, _number(port, pod)) for port in spec.ports)
    return tuple(_port(port, number) for port, number in found if number is not None)


def _port(port: ServicePort, number: int | str) -> EndpointPort:
    return EndpointPort(
        name=port.name,
        protocol=port.protocol,
        port=int(number),
        app_protocol=port.app_protocol,
    )


def _number(port: ServicePort, pod: Pod) -> int | None:
    if isinstance(port.target_port, int):
        return port.target_port
    beside = (one for one in pod.spec.init_containers if one.restart_policy == "Always")
    for container in (*(pod.spec.containers or ()), *beside):
        for place in container.ports:
            if place.name == port.target_port and place.protocol == port.protocol:
                return place.container_port
    return None
